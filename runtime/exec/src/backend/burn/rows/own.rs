//! Softmax, cross-entropy and their kin by kernels of our own: of each row the greatest element, then the sum of the exponentials relative to
//! it, and for results that are as large one more pass. Nothing else of the size of the rows is in memory.

use super::super::lower::{Lower, Named};
use crate::engine::context::Local;
use crate::engine::graph::Val;
use crate::engine::lowering::LoweringError;
use meshwright_plan::expr::{BinaryFn, Expr, Reg, Scalar, UnaryFn};
use meshwright_plan::{Computed, DType, Dim, Monoid};

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
        [input, label, scale]: [&Local; 3],
        out: &Local,
        dim: Dim,
    ) -> Result<bool, LoweringError> {
        let dtypes = [input.dtype, DType::F32, DType::F32, DType::I32, scale.dtype];
        let (mut expr, regs) = Expr::of_operands(dtypes);
        let (_, exp) = exponential(&mut expr, regs[0], regs[1]);
        let softmax = expr.binary(BinaryFn::Div, exp, regs[2]);
        let along = out.at(dim).unwrap_or(0);
        let place = expr.push(Scalar::Index(along as u16), DType::I32);
        let is = expr.binary(BinaryFn::Eq, place, regs[3]);
        let one = expr.cast(is, DType::F32);
        let apart = expr.binary(BinaryFn::Sub, softmax, one);
        let scaled = expr.cast(regs[4], DType::F32);
        let value = expr.binary(BinaryFn::Mul, apart, scaled);
        let reg = expr.cast(value, out.dtype);
        let inputs = [input, label, scale].map(|local| self.read(local).val);
        let read = [
            (inputs[0], input),
            (rows.shift, &rows.like),
            (rows.sum, &rows.like),
            (inputs[1], label),
            (inputs[2], scale),
        ];
        self.own_expression(&Computed { expr, reg }, &read, out)
    }
}
