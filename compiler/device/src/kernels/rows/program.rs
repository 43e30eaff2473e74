//! Steps of a row group as one expression, that is reductions of a row, and results from them and from each element; and the call
//! of that on a device.

use super::row_groups::RowSteps;
use super::{FOLDS, ResultOf, RowCall, RowExpr, RowResult};
use crate::decisions::fused::FusedCall;
use crate::error::LoweringError;
use crate::lowering::Lowering;
use crate::lowering::local::Local;
use meshwright_plan::expr::{BinaryFn, Expr, Reg, Scalar, UnaryFn};
use meshwright_plan::{BufId, DType, Dim, Monoid, Operand, Plan, Prim, Step};
use meshwright_sorted::SortedMap;
use std::ops::Range;

/// The expression of a group, its operands, and its results that other steps read.
struct RowProgram {
    of: RowExpr,
    reads: Vec<Operand>,
    writes: Vec<Operand>,
}

/// Exponentials of a row: each element less the maximum, its exponential, and their sum.
struct Exponentials {
    greatest: Reg,
    far: Reg,
    exp: Reg,
    sum: Reg,
}

struct Merger<'a> {
    plan: &'a Plan,
    dims: &'a [Dim],
    along: &'a [Dim],
    expr: Expr,
    folds: Vec<(Monoid, Reg)>,
    reads: Vec<Operand>,
    made: SortedMap<BufId, Reg>,
}

impl Lowering<'_> {
    /// The call of steps along rows; none if the target has no kernel for them.
    pub(super) fn row_call(&self, group: &RowSteps) -> Result<Option<FusedCall>, LoweringError> {
        if !self.graph.target.blocks {
            return Ok(None);
        }
        let plan = self.context.plan;
        let dims = group.space.dims();
        let Some(program) = RowProgram::of(plan, group, &dims) else { return Ok(None) };
        let all = |operands: &[Operand]| -> Result<Vec<Local>, LoweringError> {
            operands.iter().map(|o| self.local(o)).collect()
        };
        let (reads, writes) = (all(&program.reads)?, all(&program.writes)?);
        // A group that contradicts itself has no kernel; the lowering of its steps reports the error.
        let both: Vec<&Local> = reads.iter().chain(&writes).collect();
        let range = |dim| both.iter().find_map(|l| l.range(dim).ok().cloned());
        let ranges: Option<Vec<Range<usize>>> = dims.iter().map(|dim| range(*dim)).collect();
        let (Ok(()), Some(ranges)) = (self.context.check_aligned(&both, &[]), ranges) else {
            return Ok(None);
        };
        let mut operands = vec![];
        for local in &reads {
            let drawn = self.decisions.masks.drawn_by.get(&local.buf).copied();
            let Some(operand) = self.kernel_operand(local, &dims, drawn)? else { return Ok(None) };
            operands.push(operand);
        }
        let call = RowCall::new(&program.of, (&ranges, group.space.rows.len()), operands);
        let reads: Vec<Local> =
            reads.into_iter().filter(|l| !self.decisions.masks.drawn_by.contains_key(&l.buf)).collect();
        let given: Vec<(BufId, BufId)> =
            group.steps.iter().flat_map(|at| &plan.steps[*at].aliases).copied().collect();
        let donations: Vec<(usize, usize)> = (writes.iter().enumerate())
            .filter_map(|(to, out)| Some((reads.iter().position(|l| l.buf == first(&given, out.buf))?, to)))
            .collect();
        Ok(call.map(|call| FusedCall { kernel: call.with_donations(&donations).into(), reads, writes }))
    }
}

/// Whose storage a buffer has in the end, where each takes that of another.
fn first(given: &[(BufId, BufId)], mut buf: BufId) -> BufId {
    while let Some((from, _)) = given.iter().find(|(_, to)| *to == buf) {
        buf = *from;
    }
    buf
}

impl RowProgram {
    /// None where a step is none that can be part of one. Positions are those along `dims`.
    fn of(plan: &Plan, group: &RowSteps, dims: &[Dim]) -> Option<RowProgram> {
        let space = &group.space;
        let (expr, folds, reads, made) = (Expr::default(), vec![], vec![], SortedMap::new());
        let mut merger = Merger { plan, dims, along: &space.along, expr, folds, reads, made };
        let steps = || group.steps.iter().map(|at| &plan.steps[*at]);
        steps().try_for_each(|step| merger.step(step))?;
        let Merger { expr, folds, reads, made, .. } = merger;
        let written = || steps().flat_map(|step| &step.writes);
        let result = |o: &Operand| {
            let of = match &o.dims {
                of if *of == space.rows => ResultOf::Rows,
                of if *of == space.along => ResultOf::Columns,
                _ => ResultOf::Elements,
            };
            Some(RowResult { reg: *made.get(&o.buf)?, dtype: plan.buffer(o.buf).dtype, of })
        };
        let mut writes: Vec<Operand> = written().filter(|o| !group.inner.contains(&o.buf)).cloned().collect();
        writes.sort_by_key(|o| o.dims == space.along);
        let results = writes.iter().map(result).collect::<Option<_>>()?;
        // The result of a step can be read in place of its operands, and is rounded already.
        let spreads = steps().any(|step| matches!(step.prim, Prim::Reduce { .. } | Prim::Contract));
        let steps = written().filter_map(|o| made.get(&o.buf).copied()).collect();
        Some(RowProgram { of: RowExpr { expr, folds, results, steps, spreads }, reads, writes })
    }
}

impl Merger<'_> {
    fn step(&mut self, step: &Step) -> Option<()> {
        let made = match &step.prim {
            Prim::Map { expr, regs } => {
                let known = self.map(step, expr)?;
                regs.iter().map(|reg| known.get(usize::from(*reg)).copied()).collect::<Option<Vec<_>>>()?
            }
            Prim::Reduce { monoid } => {
                let x = self.operand(step.reads.first()?);
                vec![self.sum(step, *monoid, x)?]
            }
            Prim::Contract => {
                let [a, b] = &step.reads[..] else { return None };
                let [a, b] = [a, b].map(|o| self.operand(o));
                let [a, b] = [a, b].map(|reg| self.expr.cast(reg, DType::F32));
                let product = self.expr.binary(BinaryFn::Mul, a, b);
                vec![self.sum(step, Monoid::Sum, product)?]
            }
            Prim::Softmax { log, .. } => {
                let e = self.exponentials(step.reads.first()?)?;
                vec![match log {
                    true => {
                        let log = self.expr.unary(UnaryFn::Log, e.sum);
                        self.expr.binary(BinaryFn::Sub, e.far, log)
                    }
                    false => self.share(&e),
                }]
            }
            Prim::LogSumExp { .. } => vec![self.log_sum(step)?],
            Prim::CrossEntropy { dim } => vec![self.cross_entropy(step, *dim)?],
            Prim::CrossEntropyGrad { dim } => vec![self.cross_entropy_grad(step, *dim)?],
            _ => return None,
        };
        for (reg, out) in made.into_iter().zip(&step.writes) {
            let reg = match step.prim {
                Prim::Map { .. } => reg,
                _ if out.dims == self.along => reg,
                _ => self.expr.cast(reg, self.plan.buffer(out.buf).dtype),
            };
            self.made.insert(out.buf, reg);
        }
        Some(())
    }

    /// The registers of an element-wise step.
    fn map(&mut self, step: &Step, expr: &Expr) -> Option<Vec<Reg>> {
        let mut known: Vec<Reg> = vec![];
        for node in &expr.nodes {
            known.push(match node.scalar {
                Scalar::Load(k) => self.operand(step.reads.get(usize::from(k))?),
                Scalar::Index(d) => self.position(*step.writes.first()?.dims.get(usize::from(d))?)?,
                Scalar::PairIndex(_) => return None,
                other => self.expr.push(other.map_reads(|r| known[usize::from(r)]), node.dtype),
            });
        }
        Some(known)
    }

    /// An operand: a value of the group, or a load.
    fn operand(&mut self, operand: &Operand) -> Reg {
        if let Some(reg) = self.made.get(&operand.buf) {
            return *reg;
        }
        let slot = self.reads.iter().position(|o| o == operand).unwrap_or_else(|| {
            self.reads.push(operand.clone());
            self.reads.len() - 1
        });
        self.expr.push(Scalar::Load(slot as u16), self.plan.buffer(operand.buf).dtype)
    }

    fn position(&mut self, dim: Dim) -> Option<Reg> {
        let at = self.dims.iter().position(|d| *d == dim)?;
        Some(self.expr.push(Scalar::Index(at as u16), DType::I32))
    }

    /// A fold along the row, or the element that is summed over all rows.
    fn sum(&mut self, step: &Step, monoid: Monoid, reg: Reg) -> Option<Reg> {
        match step.writes.first()?.dims == self.along {
            true if monoid == Monoid::Sum => self.float(reg),
            true => None,
            false => self.fold(monoid, reg),
        }
    }

    /// A float as `f32`.
    fn float(&mut self, reg: Reg) -> Option<Reg> {
        let dtype = self.expr.dtype(reg);
        (dtype == DType::F32 || dtype.is_half()).then(|| self.expr.cast(reg, DType::F32))
    }

    /// A fold of floats along the row, in `f32`.
    fn fold(&mut self, monoid: Monoid, reg: Reg) -> Option<Reg> {
        let reg = self.float(reg)?;
        if !matches!(monoid, Monoid::Sum | Monoid::Max | Monoid::Min) {
            return None;
        }
        let which = self.folds.iter().position(|fold| *fold == (monoid, reg)).unwrap_or_else(|| {
            self.folds.push((monoid, reg));
            self.folds.len() - 1
        });
        Some(self.expr.push(Scalar::Load(FOLDS + which as u16), DType::F32))
    }

    fn exponentials(&mut self, of: &Operand) -> Option<Exponentials> {
        let x = self.operand(of);
        let greatest = self.fold(Monoid::Max, x)?;
        let x = self.expr.cast(x, DType::F32);
        let far = self.expr.binary(BinaryFn::Sub, x, greatest);
        let exp = self.expr.unary(UnaryFn::Exp, far);
        Some(Exponentials { greatest, far, exp, sum: self.fold(Monoid::Sum, exp)? })
    }

    /// The softmax. A division by the sum would be one for each element.
    fn share(&mut self, e: &Exponentials) -> Reg {
        let inverse = self.expr.unary(UnaryFn::Recip, e.sum);
        self.expr.binary(BinaryFn::Mul, e.exp, inverse)
    }

    fn log_sum(&mut self, step: &Step) -> Option<Reg> {
        let e = self.exponentials(step.reads.first()?)?;
        let x = &mut self.expr;
        let log = x.unary(UnaryFn::Log, e.sum);
        let finite = x.binary(BinaryFn::Add, log, e.greatest);
        // An infinite maximum is the result: less itself it would be none.
        let (size, infinity) = (x.unary(UnaryFn::Abs, e.greatest), x.constant(f64::INFINITY, DType::F32));
        let infinite = x.binary(BinaryFn::Eq, size, infinity);
        Some(x.select(infinite, e.greatest, finite))
    }

    /// Whether an element is the one of its row's label.
    fn labeled(&mut self, label: &Operand, dim: Dim) -> Option<Reg> {
        let label = self.operand(label);
        let place = self.position(dim)?;
        (self.expr.dtype(label) == DType::I32).then(|| self.expr.binary(BinaryFn::Eq, place, label))
    }

    /// The logit of a label that is not a class counts as 0.
    fn cross_entropy(&mut self, step: &Step, dim: Dim) -> Option<Reg> {
        let [logits, label] = &step.reads[..] else { return None };
        let e = self.exponentials(logits)?;
        let (x, is) = (self.operand(logits), self.labeled(label, dim)?);
        let (x, zero) = (self.expr.cast(x, DType::F32), self.expr.constant(0.0, DType::F32));
        let chosen = self.expr.select(is, x, zero);
        let logit = self.fold(Monoid::Sum, chosen)?;
        // The difference of the large numbers first: it is exact where they are close.
        let shift = self.expr.binary(BinaryFn::Sub, e.greatest, logit);
        let log = self.expr.unary(UnaryFn::Log, e.sum);
        Some(self.expr.binary(BinaryFn::Add, log, shift))
    }

    fn cross_entropy_grad(&mut self, step: &Step, dim: Dim) -> Option<Reg> {
        let [logits, label, scale] = &step.reads[..] else { return None };
        let e = self.exponentials(logits)?;
        let (is, scale) = (self.labeled(label, dim)?, self.operand(scale));
        let softmax = self.share(&e);
        let one = self.expr.cast(is, DType::F32);
        let apart = self.expr.binary(BinaryFn::Sub, softmax, one);
        let scale = self.expr.cast(scale, DType::F32);
        Some(self.expr.binary(BinaryFn::Mul, apart, scale))
    }
}
