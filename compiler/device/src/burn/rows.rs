//! Softmax, cross-entropy and their kin, along a dim that is whole. All of them compute in `f32` at least.

use super::lower::{Lower, Named};
use crate::error::LoweringError;
use crate::lowering::graph::Val;
use crate::lowering::local::Local;
use crate::lowering::ops::{Binary, Reduce};
use crate::stored::extents;
use burn_backend::DType as BurnType;
use burn_ir::{FloatOperationIr as FloatOp, NumericOperationIr as Numeric};
use meshwright_plan::{DType, Dim, Step};

/// Rows with the offset of their exponents.
struct Shifted {
    /// `x - shift`.
    x: Val,
    /// `exp(x - shift)`.
    exp: Val,
    /// Their sums, as extents of 1.
    sum: Val,
    /// The greatest of each row.
    shift: Val,
}

impl Lower<'_> {
    fn shifted(&mut self, x: Val, axis: usize) -> Shifted {
        let x = self.wide(x);
        let e = &mut self.graph;
        let shift = e.reduce(Reduce::Max, x, axis);
        let x = e.sub(x, shift);
        let exp = e.float(FloatOp::Exp, x);
        let sum = e.reduce(Reduce::Sum, exp, axis);
        Shifted { x, exp, sum, shift }
    }

    fn log_sum(&mut self, shift: Val, sum: Val) -> Val {
        let e = &mut self.graph;
        let log = e.float(FloatOp::Log, sum);
        let finite = e.add(log, shift);
        // An infinite maximum is the result: less itself it would be none.
        let size = e.numeric(Numeric::Abs, shift);
        let infinite = e.scalar(Binary::Eq, size, f64::INFINITY);
        e.choose(infinite, shift, finite)
    }

    /// The position of a dim that is whole, in an operand and a result of the same dims.
    pub(crate) fn same(&mut self, a: &Local, b: &Local, dim: Dim) -> Result<usize, LoweringError> {
        self.context.check_aligned(&[a, b], &[])?;
        if a.dims != b.dims {
            return Err(LoweringError::Plan("dims of input and result differ".into()));
        }
        a.at(dim).ok_or_else(|| LoweringError::Plan(format!("an operand lacks the dim {}", dim.0)))
    }

    /// See [`meshwright_plan::Prim::Softmax`].
    pub(crate) fn softmax(&mut self, step: &Step, dim: Dim, log: bool) -> Result<(), LoweringError> {
        let ([input], [out]) = self.locals(step)?;
        let axis = self.same(&input, &out, dim)?;
        let x = self.read(&input);
        let s = self.shifted(x.val, axis);
        let val = if log {
            let log = self.graph.float(FloatOp::Log, s.sum);
            self.graph.sub(s.x, log)
        } else {
            self.graph.binary(Binary::Div, s.exp, s.sum)
        };
        self.write_val(val, &out);
        Ok(())
    }

    /// The input with `dim` last, over the dims of the result; how many elements there are along `dim`.
    fn rows(&mut self, input: &Local, dim: Dim, out: &Local) -> Result<(Val, usize), LoweringError> {
        self.context.check_aligned(&[input, out], &[])?;
        let n = input.range(dim)?.len();
        let x = self.read(input);
        let x = self.align(&x, &[out.dims.as_slice(), &[dim]].concat());
        Ok((x, n))
    }

    /// See [`meshwright_plan::Prim::LogSumExp`].
    pub(crate) fn log_sum_exp(&mut self, step: &Step, dim: Dim) -> Result<(), LoweringError> {
        let ([input], [out]) = self.locals(step)?;
        if input.elements() == 0 {
            self.write_number(f64::NEG_INFINITY, &out);
            return Ok(());
        }
        let (x, _) = self.rows(&input, dim, &out)?;
        let s = self.shifted(x, out.dims.len());
        let val = self.log_sum(s.shift, s.sum);
        let val = self.graph.reshape(val, &extents(&out.shape));
        self.write_val(val, &out);
        Ok(())
    }

    /// Mask of the label along the last of `rank` axes; all false for a label that is not a class.
    fn labeled(&mut self, label: &Named, over: &[Dim], axis: usize, classes: usize) -> Val {
        let label = self.align(label, over);
        let label = self.convert(label, BurnType::I32);
        let places = self.graph.count(over.len(), axis, classes, 0);
        self.graph.binary(Binary::Eq, places, label)
    }

    /// See [`meshwright_plan::Prim::CrossEntropy`]. The logit of a label that is not a class counts as 0.
    pub(crate) fn cross_entropy(&mut self, step: &Step, dim: Dim) -> Result<(), LoweringError> {
        let ([logits, label], [out]) = self.locals(step)?;
        if label.dtype != DType::I32 {
            return Err(LoweringError::Plan(format!("labels are {}", label.dtype)));
        }
        self.context.check_aligned(&[&logits, &label, &out], &[])?;
        let (x, classes) = self.rows(&logits, dim, &out)?;
        let axis = out.dims.len();
        let s = self.shifted(x, axis);
        let x = self.wide(x);
        let label = self.read(&label);
        let over = [out.dims.as_slice(), &[dim]].concat();
        let at = self.labeled(&label, &over, axis, classes);
        let e = &mut self.graph;
        let other = e.not(at);
        let chosen = e.fill(x, other, 0.0);
        let logit = e.reduce(Reduce::Sum, chosen, axis);
        // The difference of the large numbers first: it is exact where they are close.
        let shift = e.sub(s.shift, logit);
        let log = e.float(FloatOp::Log, s.sum);
        let val = e.add(log, shift);
        let val = e.reshape(val, &extents(&out.shape));
        self.write_val(val, &out);
        Ok(())
    }

    /// See [`meshwright_plan::Prim::CrossEntropyGrad`].
    pub(crate) fn cross_entropy_grad(&mut self, step: &Step, dim: Dim) -> Result<(), LoweringError> {
        let ([logits, label, scale], [out]) = self.locals(step)?;
        self.context.check_aligned(&[&logits, &label, &scale, &out], &[])?;
        let axis = self.same(&logits, &out, dim)?;
        let x = self.read(&logits);
        let s = self.shifted(x.val, axis);
        let label = self.read(&label);
        let at = self.labeled(&label, &out.dims, axis, logits.shape[axis]);
        let softmax = self.graph.binary(Binary::Div, s.exp, s.sum);
        let dtype = self.graph.dtype(softmax);
        let one = self.graph.cast(at, dtype);
        let apart = self.graph.sub(softmax, one);
        let scale = self.read(&scale);
        let scale = self.align(&scale, &out.dims);
        let scale = self.wide(scale);
        let val = self.graph.mul(apart, scale);
        self.write_val(val, &out);
        Ok(())
    }
}
