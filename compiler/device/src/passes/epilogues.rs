//! Epilogues of matmuls: a bias and a function before the result is written, the sum of a factor that is read anyway, or a value
//! to which the result is added (`added_matmuls.rs`).
//!
//! A Plan has these as steps of their own, since processors without such matmuls are no faster with one step instead of
//! two. If a device has a library that fuses them, the step is fused into the matmul.

use super::canonical::{Canonical, canonical};
use super::inlined::InlinedValues;
use super::masks::Masks;
use super::residuals::Residuals;
use super::step_order::StepOrder;
use crate::decisions::def_use::DefUse;
use crate::decisions::fused::FusedGroups;
use crate::kernels::matmul::EpilogueFunction;
use meshwright_plan::expr::{BinaryFn, Expr, Reg, Scalar, UnaryFn};
use meshwright_plan::{BufId, DType, Monoid, Prim};
use meshwright_sorted::{SortedMap, SortedSet};

/// Epilogue of a matmul.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Epilogue {
    /// The matmul, in whose position both steps run.
    pub product: usize,
    /// The other step.
    pub other: usize,
    /// Steps between the two that load operands of the other one from a stack, and run before both.
    pub before: Vec<usize>,
    /// Steps before the matmul that are consumers of the other one, and run after both.
    pub after: Vec<usize>,
    /// Computation of the other step.
    pub does: EpilogueKind,
}

impl EpilogueKind {
    /// Index of the matmul's result among the operands of the other step; none if that does not read it.
    pub fn product(&self) -> Option<usize> {
        match *self {
            EpilogueKind::Map { product, .. }
            | EpilogueKind::Adds { product, .. }
            | EpilogueKind::GeluKeeping { product, .. }
            | EpilogueKind::ReluGrad { product, .. }
            | EpilogueKind::GeluGrad { product, .. } => Some(product),
            EpilogueKind::FactorSums { .. } => None,
        }
    }
}

impl Epilogue {
    /// The fused steps.
    pub fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let more = match self.does {
            EpilogueKind::GeluKeeping { gelu, .. } => Some(gelu),
            EpilogueKind::Adds { sums: Some(sums), .. } => Some(sums.step),
            _ => None,
        };
        std::iter::once(self.other).chain(more)
    }
}

/// Computation of the fused step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EpilogueKind {
    /// A function of the matmul's elements, after a bias if there is one.
    Map {
        /// The function.
        function: EpilogueFunction,
        /// Index of the matmul's result among the operands of the fused step.
        product: usize,
        /// Index of the bias among the operands of the fused step.
        bias: Option<usize>,
    },
    /// A matmul with a bias, and [`EpilogueFunction::GeluTanh`] of that in a step of its own. Both results are written.
    GeluKeeping {
        /// Index of the matmul's result among the operands of the step that adds the bias.
        product: usize,
        /// Index of the bias among them.
        bias: usize,
        /// The step of the Plan that computes the `gelu`.
        gelu: usize,
    },
    /// The gradient of a `relu` that is an epilogue itself.
    ReluGrad {
        /// Index of the matmul's result, the cotangent, among the operands of the fused step.
        product: usize,
        /// The step of the Plan that computes the `relu`.
        of: usize,
        /// The matmul whose epilogue the `relu` is, as a step of the Plan.
        forward: usize,
    },
    /// The gradient of [`EpilogueFunction::GeluTanh`].
    GeluGrad {
        /// Index of the matmul's result, the cotangent, among the operands of the fused step.
        product: usize,
        /// Index of the operand of the `gelu` among them.
        operand: usize,
    },
    /// Sums of a factor over the dims that the matmul sums.
    FactorSums {
        /// Index of the factor among the operands of the matmul.
        factor: usize,
    },
    /// The matmul is added to a value that ends there, in its memory: see `added_matmuls.rs`.
    Adds {
        /// Index of the matmul's result among the operands of the fused step; the other one is the value.
        product: usize,
        /// Sums of a factor beside, if there are any.
        sums: Option<SummedBeside>,
    },
}

/// Sums of a factor beside a matmul that is added to a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SummedBeside {
    /// The step of the Plan that sums it.
    pub step: usize,
    /// Index of the factor among the operands of the matmul.
    pub factor: usize,
}

/// The epilogues of a Plan.
#[derive(Clone, Debug, Default)]
pub struct Epilogues {
    /// Epilogues by their matmul.
    pub at: SortedMap<usize, Epilogue>,
    /// Matmul with which or after which a step is computed, by that step.
    pub moved: SortedMap<usize, usize>,
    /// Results of matmuls that are never stored without the epilogue.
    pub never: SortedSet<BufId>,
    /// Matmul of the gradient, by the step of a `relu` whose gradient is an epilogue too.
    pub keep_bits: SortedMap<usize, usize>,
    /// Values to which a matmul is added, and which end with it, with the matmul.
    pub added: SortedMap<BufId, usize>,
}

impl Epilogues {
    /// Finds them; `computes` says whether the device can.
    pub fn of(
        uses: &DefUse<'_>,
        (residuals, masks, fused, inlined): (&Residuals, &Masks, &FusedGroups, &InlinedValues),
        order: &StepOrder,
        computes: impl Fn(&Epilogue) -> bool,
    ) -> Epilogues {
        let plan = uses.plan;
        let mut found = Finder { uses, fused, order, all: Epilogues::default() };
        let taken = |at: usize| {
            let computed = |b: &BufId| masks.drawn_by.contains_key(b) || inlined.values.contains_key(b);
            let step = &plan.steps[at];
            fused.members.contains_key(&at) || step.reads.iter().chain(&step.writes).any(|o| computed(&o.buf))
        };
        for at in 0..plan.steps.len() {
            let made = if taken(at) { None } else { found.map(at) };
            let made = made.filter(|e| computes(e));
            let other = || found.keeping(at).filter(|e| !taken(at) && computes(e));
            let adds = || found.adds(at, residuals).filter(|e| !taken(at) && computes(e));
            if let Some(epilogue) = made.or_else(other).or_else(adds) {
                found.take(epilogue);
            }
        }
        for at in 0..plan.steps.len() {
            let made = if taken(at) { None } else { found.factor_sums(at, residuals) };
            if let Some(epilogue) = made.filter(|e| computes(e)) {
                found.take(epilogue);
            }
        }
        found.all
    }

    /// Whether a step runs after the epilogue at that position.
    pub fn is_after(&self, step: usize, at: usize) -> bool {
        self.at.get(&at).is_some_and(|epilogue| epilogue.after.contains(&step))
    }
}

pub(super) struct Finder<'a> {
    pub(super) uses: &'a DefUse<'a>,
    pub(super) fused: &'a FusedGroups,
    pub(super) order: &'a StepOrder,
    pub(super) all: Epilogues,
}

impl Finder<'_> {
    fn take(&mut self, epilogue: Epilogue) {
        let product = epilogue.product;
        if !matches!(epilogue.does, EpilogueKind::FactorSums { .. }) {
            self.all.never.extend(self.uses.plan.steps[product].writes.iter().map(|o| o.buf));
        }
        if let EpilogueKind::ReluGrad { of, .. } = epilogue.does {
            self.all.keep_bits.insert(of, product);
        }
        if let EpilogueKind::Adds { product: of, .. } = epilogue.does {
            self.all.added.insert(self.uses.plan.steps[epilogue.other].reads[1 - of].buf, product);
        }
        let Epilogue { before, after, .. } = &epilogue;
        let steps = before.iter().chain(after).copied().chain(epilogue.others());
        self.all.moved.extend(steps.map(|step| (step, product)));
        self.all.at.insert(product, epilogue);
    }

    /// A matmul that an element-wise step alone reads.
    fn map(&self, at: usize) -> Option<Epilogue> {
        let step = &self.uses.plan.steps[at];
        let (Prim::Map { expr, regs }, [written]) = (&step.prim, &step.writes[..]) else { return None };
        let form = canonical(expr, *regs.first()?)?;
        (0..step.reads.len()).find_map(|product| {
            let read = &step.reads[product];
            let by = self.uses.written_by(read.buf, at)?;
            let alone = self.uses.only(read.buf) == Some(at) && !self.uses.leaves(read.buf);
            // Read under other names of dims, the matmul would have to be there.
            let once = step.reads.iter().filter(|o| o.buf == read.buf).count() == 1;
            let others = step.reads.iter().filter(|o| o.buf != read.buf);
            let runs = |step: usize| self.order.place[step];
            let late = |w: &usize| runs(*w) >= runs(by);
            let before: Vec<usize> =
                others.filter_map(|o| self.uses.written_by(o.buf, at)).filter(late).collect();
            let early = before.iter().all(|w| self.can_come_before(*w, by, at));
            // A collective in flight before the matmul may end after it.
            let arrives = self.uses.plan.steps[by..at].iter().any(|s| matches!(s.prim, Prim::Wait));
            let fits =
                alone && once && early && (step.reads.len() == 1 || !arrives) && read.dims == written.dims;
            if !fits || !self.is_free_product(by) || !self.uses.is_beside(by, at) {
                return None;
            }
            let does = self.does(&form, at, product)?;
            Some(Epilogue { product: by, other: at, before, after: vec![], does })
        })
    }

    /// A `gelu` of a matmul with bias whose sum another step reads too, such as the gradient: the epilogue stores it.
    fn keeping(&self, at: usize) -> Option<Epilogue> {
        let step = &self.uses.plan.steps[at];
        let (Prim::Map { expr, regs }, [read], [written]) = (&step.prim, &step.reads[..], &step.writes[..])
        else {
            return None;
        };
        let by = self.uses.written_by(read.buf, at)?;
        let epilogue = self.all.at.get(self.all.moved.get(&by)?).filter(|e| e.other == by)?;
        let EpilogueKind::Map { function: EpilogueFunction::Identity, product, bias: Some(bias) } =
            epilogue.does
        else {
            return None;
        };
        let same = self.uses.plan.steps[by].writes.first() == Some(read) && read.dims == written.dims;
        let fits = same && self.uses.is_beside(by, at);
        let form = Some(canonical(expr, *regs.first()?)?);
        (fits && form == applied(EpilogueFunction::GeluTanh, 0, None)).then(|| Epilogue {
            does: EpilogueKind::GeluKeeping { product, bias, gelu: at },
            ..epilogue.clone()
        })
    }

    /// Epilogue that a step computes of one of its operands, if it is one.
    fn does(&self, form: &Canonical, at: usize, product: usize) -> Option<EpilogueKind> {
        let step = &self.uses.plan.steps[at];
        let other = match step.reads.len() {
            1 => None,
            2 => Some(1 - product),
            _ => return None,
        };
        for function in [EpilogueFunction::Identity, EpilogueFunction::Relu, EpilogueFunction::GeluTanh] {
            if (other.is_some() || function != EpilogueFunction::Identity)
                && applied(function, product, other).as_ref() == Some(form)
            {
                return Some(EpilogueKind::Map { function, product, bias: other });
            }
        }
        let result = other?;
        if gelu_grad(product, result).as_ref() == Some(form) {
            return Some(EpilogueKind::GeluGrad { product, operand: result });
        }
        let of = self.uses.written_by(step.reads[result].buf, usize::MAX)?;
        let forward = self.all.at.get(self.all.moved.get(&of)?)?;
        let is_relu = matches!(forward.does, EpilogueKind::Map { function: EpilogueFunction::Relu, .. });
        // Once: the lifetime of the stored bits ends with it.
        let first = !self.all.keep_bits.contains_key(&of);
        (is_relu && first && self.uses.is_beside(of, at) && relu_grad(product, result).as_ref() == Some(form))
            .then_some(EpilogueKind::ReluGrad { product, of, forward: forward.product })
    }

    /// A reduction of a factor of a matmul, over the matmul's reduction dim.
    fn factor_sums(&self, at: usize, residuals: &Residuals) -> Option<Epilogue> {
        let step = &self.uses.plan.steps[at];
        let (Prim::Reduce { monoid: Monoid::Sum }, [read], [written]) =
            (&step.prim, &step.reads[..], &step.writes[..])
        else {
            return None;
        };
        self.uses.readers.get(&read.buf)?.iter().find_map(|by| {
            let product = &self.uses.plan.steps[*by];
            let (Prim::Contract, [made]) = (&product.prim, &product.writes[..]) else { return None };
            let factor = product.reads.iter().position(|o| o == read)?;
            let sums = read.dims.iter().filter(|d| !made.dims.contains(d));
            let folds = read.dims.iter().filter(|d| !written.dims.contains(d));
            let same = sums.eq(folds) && product.reads[1 - factor].buf != read.buf;
            let known =
                self.all.at.get(by).filter(|e| matches!(e.does, EpilogueKind::Adds { sums: None, .. }));
            if !same || known.is_none() && !self.is_free_product(*by) || !self.uses.is_beside(*by, at) {
                return None;
            }
            let first = self.order.place[at] < self.order.place[*by];
            let after = if first { self.updates(at, *by, residuals)? } else { vec![] };
            let none = Epilogue {
                product: *by,
                other: at,
                before: vec![],
                after: vec![],
                does: EpilogueKind::FactorSums { factor },
            };
            let of = known.cloned().unwrap_or(none);
            let does = match of.does {
                EpilogueKind::Adds { product, .. } => {
                    EpilogueKind::Adds { product, sums: Some(SummedBeside { step: at, factor }) }
                }
                does => does,
            };
            Some(Epilogue { after, does, ..of })
        })
    }

    /// The consumers of a step's result before a later one, if they only store the value into the stack of a loop, or
    /// add it to the stack or to a sum that the loop carries: they may be delayed.
    fn updates(&self, first: usize, last: usize, residuals: &Residuals) -> Option<Vec<usize>> {
        let steps = &self.uses.plan.steps;
        // A consumer may have been moved itself.
        let runs = |s: &usize| self.order.place[*s];
        let place = |s: &usize| self.all.moved.get(s).map_or(runs(s), |to| runs(s).min(runs(to)));
        let read_before = |buf: BufId| {
            let readers = self.uses.readers.get(&buf).into_iter().flatten().copied();
            readers.filter(move |s| place(s) < runs(&last))
        };
        let waits = |s: &usize| {
            !residuals.steps.contains_key(s)
                && !self.all.moved.contains_key(s)
                && steps[*s].reads.iter().all(|o| self.uses.lasts(o.buf, *s, last))
        };
        let mut after: Vec<usize> = read_before(steps[first].writes.first()?.buf).collect();
        let mut next = 0;
        while let Some(at) = after.get(next).copied().filter(|s| waits(s)) {
            let readers: Vec<usize> = steps[at].writes.iter().flat_map(|o| read_before(o.buf)).collect();
            match steps[at].prim {
                Prim::IterationUpdate { .. } if readers.is_empty() => {}
                Prim::Map { .. } if self.adds_at_position(at, &readers) => after.extend(readers),
                Prim::Map { .. } if readers.is_empty() && self.adds_to_carry(at) => {}
                _ => return None,
            }
            next += 1;
        }
        (next == after.len()).then_some(after)
    }

    /// Whether an element-wise step adds to a slice of a stack, and its only consumer stores the sum there.
    fn adds_at_position(&self, at: usize, readers: &[usize]) -> bool {
        let steps = &self.uses.plan.steps;
        let ([one, two], [sum]) = (&steps[at].reads[..], &steps[at].writes[..]) else { return false };
        let slice = |buf: BufId| {
            let by = &steps[self.uses.written_by(buf, at)?];
            matches!(by.prim, Prim::IterationSlice { .. }).then_some(by.reads.first()?.buf)
        };
        let Some(stack) = slice(one.buf).or_else(|| slice(two.buf)) else { return false };
        let puts = |s: &usize| {
            matches!(steps[*s].prim, Prim::IterationUpdate { .. }) && steps[*s].reads[0].buf == stack
        };
        self.uses.only(sum.buf).is_some() && readers.iter().all(puts)
    }

    /// Whether an element-wise step adds to a sum that a loop carries: only the end of the loop reads the new sum.
    fn adds_to_carry(&self, at: usize) -> bool {
        let steps = &self.uses.plan.steps;
        let ([_, _], [sum]) = (&steps[at].reads[..], &steps[at].writes[..]) else { return false };
        self.uses.only(sum.buf).is_some_and(|by| matches!(steps[by].prim, Prim::EndRepeat))
    }

    /// Whether a step slices a stack for a single consumer, and could do so before another step.
    fn can_come_before(&self, step: usize, other: usize, reader: usize) -> bool {
        let plan = &self.uses.plan.steps[step];
        let (Prim::IterationSlice { .. }, [stack], [one]) = (&plan.prim, &plan.reads[..], &plan.writes[..])
        else {
            return false;
        };
        // The last load of a value from a stack ends its lifetime.
        self.uses.only(stack.buf) == Some(step)
            && self.uses.only(one.buf) == Some(reader)
            && self.uses.is_beside(step, other)
            && self.uses.written_by(stack.buf, step).is_none_or(|w| w < other)
    }

    /// Whether a step is a matmul without an epilogue.
    pub(super) fn is_free_product(&self, at: usize) -> bool {
        let taken = self.all.moved.contains_key(&at)
            || self.all.at.contains_key(&at)
            || self.fused.members.contains_key(&at);
        matches!(self.uses.plan.steps[at].prim, Prim::Contract) && !taken
    }
}

/// A function of a matmul and a bias, by the numbers of the operands.
pub(super) fn applied(function: EpilogueFunction, product: usize, bias: Option<usize>) -> Option<Canonical> {
    let mut e = Expr::default();
    let mut x = e.push(Scalar::Load(product as u16), DType::F32);
    if let Some(bias) = bias {
        let bias = e.push(Scalar::Load(bias as u16), DType::F32);
        x = e.binary(BinaryFn::Add, x, bias);
    }
    let made = match function {
        EpilogueFunction::Identity => x,
        EpilogueFunction::Relu => e.unary(UnaryFn::Relu, x),
        EpilogueFunction::GeluTanh => {
            let tanh = tanh_of_gelu(&mut e, x);
            let (half, one) = (e.constant(0.5, DType::F32), e.constant(1.0, DType::F32));
            let sum = e.binary(BinaryFn::Add, one, tanh);
            product_of(&mut e, &[half, x, sum])
        }
    };
    canonical(&e, made)
}

const CUBES: f64 = 0.044_715;

/// `sqrt(2 / pi)`, the scale in the approximation of `gelu`.
fn scale() -> f64 {
    (2.0 / std::f64::consts::PI).sqrt()
}

fn product_of(e: &mut Expr, factors: &[Reg]) -> Reg {
    let rest = factors[1..].iter();
    rest.fold(factors[0], |product, factor| e.binary(BinaryFn::Mul, product, *factor))
}

/// `tanh(sqrt(2 / pi) (x + 0.044715 x^3))`.
fn tanh_of_gelu(e: &mut Expr, x: Reg) -> Reg {
    let (cubes, scale) = (e.constant(CUBES, DType::F32), e.constant(scale(), DType::F32));
    let cube = product_of(e, &[cubes, x, x, x]);
    let inner = e.binary(BinaryFn::Add, x, cube);
    let inner = e.binary(BinaryFn::Mul, scale, inner);
    e.unary(UnaryFn::Tanh, inner)
}

/// The gradient of `gelu` by `tanh`, of a matmul and the operand of the `gelu`, as the chain rule gives it.
fn gelu_grad(product: usize, operand: usize) -> Option<Canonical> {
    let mut e = Expr::default();
    let [dy, x] = [product, operand].map(|i| e.push(Scalar::Load(i as u16), DType::F32));
    let tanh = tanh_of_gelu(&mut e, x);
    let one = e.constant(1.0, DType::F32);
    let square = e.binary(BinaryFn::Mul, tanh, tanh);
    let negative = e.unary(UnaryFn::Neg, square);
    let slope = e.binary(BinaryFn::Add, one, negative);
    let number = e.constant(0.5 * scale(), DType::F32);
    let linear = product_of(&mut e, &[number, dy, x, slope]);
    let number = e.constant(0.5 * scale() * CUBES * 3.0, DType::F32);
    let cubic = product_of(&mut e, &[number, dy, x, slope, x, x]);
    let half = e.constant(0.5, DType::F32);
    let sum = e.binary(BinaryFn::Add, one, tanh);
    let outer = product_of(&mut e, &[half, dy, sum]);
    let made = e.binary(BinaryFn::Add, linear, cubic);
    let made = e.binary(BinaryFn::Add, made, outer);
    canonical(&e, made)
}

/// The gradient of `relu`, of a matmul and the result of the `relu`.
fn relu_grad(product: usize, result: usize) -> Option<Canonical> {
    let mut e = Expr::default();
    let [x, y] = [product, result].map(|i| e.push(Scalar::Load(i as u16), DType::F32));
    let zero = e.constant(0.0, DType::F32);
    let above = e.binary(BinaryFn::Gt, y, zero);
    let through = e.cast(above, DType::F32);
    let made = e.binary(BinaryFn::Mul, through, x);
    canonical(&e, made)
}
