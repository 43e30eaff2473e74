//! Softmax, cross-entropy and their kin by kernels of our own: of each row the greatest element, then the sum of the exponentials relative to
//! it, and for results that are as large one more pass. Nothing else of the size of the rows is in memory.

use super::super::lower::{Lower, Named};
use crate::engine::context::Local;
use crate::engine::graph::Val;
use crate::engine::lowering::LoweringError;
use meshwright_plan::expr::{BinaryFn, Expr, Reg, Scalar, UnaryFn};
use meshwright_plan::{Computed, DType, Dim, Monoid, Prim};

/// What is known of rows: their greatest elements, and the sums of the exponentials relative to these; both without the dim of the rows.
pub(super) struct OwnRows {
    pub(super) shift: Val,
    pub(super) sum: Val,
    like: Local,
}

/// `exp(x - shift)` of a row's element and its greatest, or of two numbers that are the first loads.
fn exponential(expr: &mut Expr, x: Reg, shift: Reg) -> (Reg, Reg) {
    let x = expr.cast(x, DType::F32);
    let far = expr.binary(BinaryFn::Sub, x, shift);
    (far, expr.unary(UnaryFn::Exp, far))
}

impl Lower<'_> {
    /// None where there is no kernel for it.
    pub(super) fn own_rows(&mut self, input: &Local, dim: Dim) -> Option<OwnRows> {
        let mut like = Local { dtype: DType::F32, ..input.clone() };
        let at = input.at(dim)?;
        like.dims.remove(at);
        like.ranges.remove(at);
        like.shape.remove(at);
        let x = self.read(input).val;
        let (mut expr, regs) = Expr::of_operands([input.dtype]);
        let reg = expr.cast(regs[0], DType::F32);
        let greatest = Computed { expr, reg };
        let kept = (&like.dims[..], DType::F32);
        let shift = self.own_fold(&greatest, Monoid::Max, &[(x, input)], kept)?.val;
        let (mut expr, regs) = Expr::of_operands([input.dtype, DType::F32]);
        let (_, reg) = exponential(&mut expr, regs[0], regs[1]);
        let read = [(x, input), (shift, &like)];
        let sum = self.own_fold(&Computed { expr, reg }, Monoid::Sum, &read, kept)?.val;
        Some(OwnRows { shift, sum, like })
    }

    /// The sum over each row of the element that its label names: of no class, 0.
    pub(super) fn own_labeled(
        &mut self,
        rows: &OwnRows,
        input: &Local,
        label: &Local,
        dim: Dim,
    ) -> Option<Named> {
        let places = self.class_numbers(input, dim);
        let (mut expr, regs) = Expr::of_operands([input.dtype, DType::I32, DType::I32]);
        let is = expr.binary(BinaryFn::Eq, regs[1], regs[2]);
        let x = expr.cast(regs[0], DType::F32);
        let zero = expr.constant(0.0, DType::F32);
        let reg = expr.select(is, x, zero);
        let inputs = [self.read(input).val, self.read(label).val];
        let read = [(inputs[0], input), (inputs[1], label), (places.0, &places.1)];
        self.own_fold(&Computed { expr, reg }, Monoid::Sum, &read, (&rows.like.dims, DType::F32))
    }

    /// The numbers of the classes, along a dim that is whole.
    fn class_numbers(&mut self, input: &Local, dim: Dim) -> (Val, Local) {
        let n = input.shape[input.at(dim).unwrap_or(0)];
        let val = self.graph.table(&[n], (0..n as i32).collect());
        let local = Local {
            dtype: DType::I32,
            dims: vec![dim],
            ranges: std::iter::once(0..n).collect(),
            shape: vec![n],
            ..input.clone()
        };
        (val, local)
    }

    /// The softmax of the rows, or its logarithm.
    pub(super) fn own_softmax(
        &mut self,
        rows: &OwnRows,
        input: &Local,
        out: &Local,
        log: bool,
    ) -> Result<bool, LoweringError> {
        let (mut expr, regs) = Expr::of_operands([input.dtype, DType::F32, DType::F32]);
        let (far, exp) = exponential(&mut expr, regs[0], regs[1]);
        let value = if log {
            let log = expr.unary(UnaryFn::Log, regs[2]);
            expr.binary(BinaryFn::Sub, far, log)
        } else {
            expr.binary(BinaryFn::Div, exp, regs[2])
        };
        let reg = expr.cast(value, out.dtype);
        let x = self.read(input).val;
        let read = [(x, input), (rows.shift, &rows.like), (rows.sum, &rows.like)];
        self.own_expression(&Computed { expr, reg }, &read, out)
    }

    /// The gradient of cross-entropy.
    pub(super) fn own_cross_entropy_grad(
        &mut self,
        rows: &OwnRows,
        operands: [&Local; 3],
        out: &Local,
        dim: Dim,
    ) -> Result<bool, LoweringError> {
        let mut of = cross_entropy_grad(operands, out.at(dim));
        of.reg = of.expr.cast(of.reg, out.dtype);
        self.own_cross_entropy_grad_of(&of, rows, operands, out)
    }

    fn own_cross_entropy_grad_of(
        &mut self,
        of: &Computed,
        rows: &OwnRows,
        [input, label, scale]: [&Local; 3],
        out: &Local,
    ) -> Result<bool, LoweringError> {
        let inputs = [input, label, scale].map(|local| self.read(local).val);
        let read = [
            (inputs[0], input),
            (rows.shift, &rows.like),
            (rows.sum, &rows.like),
            (inputs[1], label),
            (inputs[2], scale),
        ];
        self.own_expression(of, &read, out)
    }

    /// See [`crate::backend::Backend::finishes`].
    pub(in super::super) fn is_finished(&self, step: usize, map: usize) -> bool {
        let found = self.finished(step, map);
        matches!(found, Ok(Some((_, [logits, label, _], out)))
            if logits.dtype == DType::F32 && label.dtype == DType::I32 && out.elements() > 0)
            && self.graph.capabilities.own_folds
            && self.is_own_map(&self.context.plan.steps[map])
    }

    /// Records both: the gradient of cross-entropy, of which what an element-wise step makes is written.
    pub(in super::super) fn finished_cross_entropy_grad(
        &mut self,
        step: usize,
        map: usize,
    ) -> Result<(), LoweringError> {
        let none = || LoweringError::Plan("a gradient of cross-entropy is finished in another way".into());
        let Prim::CrossEntropyGrad { dim } = self.context.plan.steps[step].prim else { return Err(none()) };
        let Some((of, [logits, label, scale], out)) = self.finished(step, map)? else { return Err(none()) };
        let operands = [&logits, &label, &scale];
        self.context.check_aligned(&[&logits, &label, &scale, &out], &[])?;
        let rows = self.own_rows(&logits, dim).ok_or_else(none)?;
        if self.own_cross_entropy_grad_of(&of, &rows, operands, &out)? { Ok(()) } else { Err(none()) }
    }

    /// What the second of two steps makes of the first, whose operands are given, and where it goes.
    fn finished(
        &self,
        step: usize,
        map: usize,
    ) -> Result<Option<(Computed, [Local; 3], Local)>, LoweringError> {
        let (first, second) = (&self.context.plan.steps[step], &self.context.plan.steps[map]);
        let (Prim::CrossEntropyGrad { dim }, Prim::Map { expr, regs }) = (&first.prim, &second.prim) else {
            return Ok(None);
        };
        let ([logits, label, scale], [between]) = self.locals(first)?;
        let ([_], [out]) = self.locals::<1, 1>(second)?;
        let operands = [&logits, &label, &scale];
        let Computed { expr: mut made, reg } = cross_entropy_grad(operands, between.at(*dim));
        let mut known: Vec<Reg> = vec![];
        for node in &expr.nodes {
            known.push(match node.scalar {
                Scalar::Load(_) => made.cast(reg, between.dtype),
                other => made.push(other.map_reads(|r| known[usize::from(r)]), node.dtype),
            });
        }
        let Some(reg) = regs.first().and_then(|r| known.get(usize::from(*r)).copied()) else {
            return Ok(None);
        };
        let of = Computed { expr: made, reg };
        Ok((between.dtype == DType::F32).then_some((of, [logits, label, scale], out)))
    }
}

/// Of the logits, the greatest and the sum of exponentials of each row, labels and scales; `along` is where the classes are.
fn cross_entropy_grad([input, _, scale]: [&Local; 3], along: Option<usize>) -> Computed {
    let dtypes = [input.dtype, DType::F32, DType::F32, DType::I32, scale.dtype];
    let (mut expr, regs) = Expr::of_operands(dtypes);
    let (_, exp) = exponential(&mut expr, regs[0], regs[1]);
    let softmax = expr.binary(BinaryFn::Div, exp, regs[2]);
    let place = expr.push(Scalar::Index(along.unwrap_or(0) as u16), DType::I32);
    let is = expr.binary(BinaryFn::Eq, place, regs[3]);
    let one = expr.cast(is, DType::F32);
    let apart = expr.binary(BinaryFn::Sub, softmax, one);
    let scaled = expr.cast(regs[4], DType::F32);
    let reg = expr.binary(BinaryFn::Mul, apart, scaled);
    Computed { expr, reg }
}
