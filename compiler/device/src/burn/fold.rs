//! Folds by kernels of our own, where the backend has them.

use super::lower::Lower;
use crate::error::LoweringError;
use crate::kernels::fold::{FoldCall, FoldCalls, FoldOperand};
use crate::lowering::contraction::{Contraction, contraction};
use crate::lowering::local::Local;
use crate::passes::inlined::Inlined;
use meshwright_plan::expr::{BinaryFn, Expr, Scalar};
use meshwright_plan::{BufId, Computed, DType, Dim, Monoid, Operand, Prim, Step, square_scale};

/// A fold kernel with its operands and result.
struct OwnFold {
    call: FoldCall,
    reads: Vec<Local>,
    out: Local,
}

impl Lower<'_> {
    /// Whether a step has a fold kernel: a reduction, or a sum of products without matrices.
    pub(crate) fn is_own_fold(&self, step: &Step) -> bool {
        matches!(self.own_fold_of(step), Ok(Some(_)))
    }

    /// Records independent steps as one launch.
    pub(crate) fn own_folds(&mut self, steps: &[&Step]) -> Result<(), LoweringError> {
        let (mut calls, mut reads, mut outs) = (vec![], vec![], vec![]);
        for step in steps {
            if let Some(fold) = self.own_fold_of(step)? {
                calls.push(fold.call);
                reads.extend(fold.reads);
                outs.push(fold.out);
            }
        }
        self.record(FoldCalls(calls), &reads, &outs);
        Ok(())
    }

    /// Call of a step, if there is a kernel for it.
    pub(crate) fn own_fold_call(&self, step: &Step) -> Result<Option<FoldCall>, LoweringError> {
        Ok(self.own_fold_of(step)?.map(|fold| fold.call))
    }

    fn own_fold_of(&self, step: &Step) -> Result<Option<OwnFold>, LoweringError> {
        self.own_fold_with(step, &|o| self.decisions.inlined.values.get(&o.buf))
    }

    /// The same where some operands are computed.
    fn own_fold_with<'i>(
        &self,
        step: &Step,
        computed: &dyn Fn(&Operand) -> Option<&'i Inlined>,
    ) -> Result<Option<OwnFold>, LoweringError> {
        let [out] = &step.writes[..] else { return Ok(None) };
        let out = self.local(out)?;
        let of = |o: &Operand| -> Result<_, LoweringError> {
            Ok(match computed(o) {
                Some(i) => (i.of.clone(), i.reads.clone()),
                None => (element_of(self.local(o)?.dtype), vec![o.clone()]),
            })
        };
        let factors = step.reads.iter().map(of).collect::<Result<Vec<_>, _>>()?;
        let reads =
            factors.iter().flat_map(|f| &f.1).map(|o| self.local(o)).collect::<Result<Vec<_>, _>>()?;
        // Without a kernel, lowering reports operands that contradict each other.
        let aligned: Vec<&Local> = reads.iter().chain([&out]).collect();
        if self.context.check_aligned(&aligned, &[]).is_err() {
            return Ok(None);
        }
        let (monoid, of) = match (&step.prim, &factors[..]) {
            (Prim::Reduce { monoid }, [of]) => (*monoid, of.0.clone()),
            (Prim::ScaledSquares, [of]) => (Monoid::Sum, scaled_square(&of.0, square_scale(out.dtype))),
            (Prim::Contract, [a, b]) => {
                let (left, right) = (self.local(&step.reads[0])?, self.local(&step.reads[1])?);
                if !has_no_matrices(&left, &right, &out) {
                    return Ok(None);
                }
                (Monoid::Sum, product_of(a, b))
            }
            _ => return Ok(None),
        };
        let whole = step.reads.iter().map(|o| self.local(o)).collect::<Result<Vec<_>, _>>()?;
        let call = self.fold_call(&of, monoid, (&reads, &whole), (&out.dims, out.dtype));
        Ok(call.filter(|_| out.elements() > 0).map(|call| OwnFold { call, reads, out }))
    }

    /// The call of a fold. An inlined value may have dims that none of its operands has: `whole` are the operands of
    /// the step.
    fn fold_call(
        &self,
        of: &Computed,
        monoid: Monoid,
        (inputs, whole): (&[Local], &[Local]),
        (kept, dtype): (&[Dim], DType),
    ) -> Option<FoldCall> {
        if !self.graph.target.blocks {
            return None;
        }
        let mut dims = kept.to_vec();
        let all: Vec<&Local> = inputs.iter().chain(whole).collect();
        all.iter().flat_map(|i| &i.dims).for_each(|d| {
            if !dims.contains(d) {
                dims.push(*d);
            }
        });
        let sizes = Self::sizes(&dims, &all);
        let operand =
            |i: &Local| FoldOperand { dtype: i.dtype, dims: dims.iter().map(|d| i.at(*d)).collect() };
        let operands = inputs.iter().map(operand).collect();
        FoldCall::new(of, monoid, (sizes, kept.len()), operands, dtype)
    }

    /// See [`Lowering::computes`](crate::lowering::Lowering::computes).
    pub(crate) fn can_fold(&self, inlined: &Inlined, value: BufId) -> bool {
        let drawn = |o: &Operand| self.decisions.masks.drawn_by.contains_key(&o.buf);
        let step = &self.context.plan.steps[inlined.by];
        let folds = self.own_fold_with(step, &|o| (o.buf == value).then_some(inlined));
        !inlined.reads.iter().any(drawn) && matches!(folds, Ok(Some(_)))
    }
}

/// An operand as it is.
pub(super) fn element_of(dtype: DType) -> Computed {
    let (expr, regs) = Expr::of_operands([dtype]);
    Computed { expr, reg: regs[0] }
}

/// The square of an expression times a number.
fn scaled_square(of: &Computed, scale: f64) -> Computed {
    let mut expr = of.expr.clone();
    let x = expr.cast(of.reg, of.expr.dtype(of.reg).wide());
    let scale = expr.constant(scale, expr.dtype(x));
    let scaled = expr.binary(BinaryFn::Mul, x, scale);
    let reg = expr.binary(BinaryFn::Mul, scaled, scaled);
    Computed { expr, reg }
}

/// The product of two factors, each an expression with its operands; the operands of the second follow those of the
/// first.
fn product_of(left: &(Computed, Vec<Operand>), right: &(Computed, Vec<Operand>)) -> Computed {
    let mut expr = left.0.expr.clone();
    let loads = left.1.len() as u16;
    let mut regs: Vec<u16> = vec![];
    for node in &right.0.expr.nodes {
        let scalar = match node.scalar {
            Scalar::Load(i) => Scalar::Load(loads + i),
            other => other.map_reads(|r| regs[usize::from(r)]),
        };
        regs.push(expr.push(scalar, node.dtype));
    }
    let factors = [left.0.reg, regs[usize::from(right.0.reg)]];
    let [left, right] = factors.map(|reg| expr.cast(reg, DType::F32));
    let reg = expr.binary(BinaryFn::Mul, left, right);
    Computed { expr, reg }
}

/// Whether each element of a factor is in one product alone.
fn has_no_matrices(a: &Local, b: &Local, out: &Local) -> bool {
    match contraction(a, b, out) {
        Ok(Contraction::Matmul(product)) => product.shape.iter().rev().take(2).all(|n| *n == 1),
        _ => false,
    }
}
