//! Contractions: views of the factors, a matmul, and a view of it.

use super::lower::{Lower, Named};
use crate::error::LoweringError;
use crate::kernels::matmul::FactorDigits;
use crate::lowering::contraction::{Contraction, Factor, contraction};
use crate::lowering::graph::Val;
use crate::lowering::local::Local;
use crate::stored::{extents, is_half, stored_as};
use burn_backend::DType as BurnType;
use meshwright_plan::{DType, Step};

impl Lower<'_> {
    /// See [`meshwright_plan::Prim::Contract`].
    pub(crate) fn contract(&mut self, step: &Step) -> Result<(), LoweringError> {
        let ([a, b], [out]) = self.locals(step)?;
        self.context.check_aligned(&[&a, &b, &out], &[])?;
        let dtypes = [a.dtype, b.dtype, out.dtype].map(DType::wide);
        if dtypes[0] != dtypes[1] || dtypes[0] != dtypes[2] || !a.dtype.is_float() {
            let message = format!("a contraction of {} and {} to {}", a.dtype, b.dtype, out.dtype);
            return Err(LoweringError::Plan(message));
        }
        if a.elements() == 0 || b.elements() == 0 {
            self.write_number(0.0, &out);
            return Ok(());
        }
        if let Some(of) = self.fp8_operands([&a, &b], &out)? {
            return self.fp8_matmul(&of, &out);
        }
        let (x, y) = (self.read(&a).val, self.read(&b).val);
        let digits = self.decisions.digits([a.buf, b.buf]);
        match self.product((x, &a), (y, &b), &out, digits)? {
            Some(val) => self.write_val(val, &out),
            None => self.write_number(0.0, &out),
        }
        Ok(())
    }

    /// The matmul of two tensors, summed over the dims that `out` lacks, with the extents of `out`; none where it is 0.
    pub(crate) fn product(
        &mut self,
        a: (Val, &Local),
        b: (Val, &Local),
        out: &Local,
        digits: FactorDigits,
    ) -> Result<Option<Val>, LoweringError> {
        let product = match contraction(a.1, b.1, out)? {
            Contraction::Zero => return Ok(None),
            Contraction::Matmul(product) => product,
        };
        let (left, right) = if product.swapped { (b, a) } else { (a, b) };
        // Of one dtype. A matmul of a half type sums in `f32`, and is not rounded if the result is `f32`.
        let (left, right) = if self.graph.dtype(left.0) == self.graph.dtype(right.0) {
            (left, right)
        } else {
            ((self.wide(left.0), left.1), (self.wide(right.0), right.1))
        };
        let left = self.factor(left, &product.left);
        let right = self.factor(right, &product.right);
        let (factors, result) = (self.graph.dtype(left), stored_as(out.dtype));
        let widens = is_half(factors) && result == BurnType::F32;
        let val = self.graph.product(left, right, if widens { result } else { factors }, digits);
        Ok(Some(match &product.copy {
            None => self.graph.reshape(val, &extents(&out.shape)),
            Some(order) => {
                let shape = extents(&Self::sizes(order, &[out]));
                let val = self.graph.reshape(val, &shape);
                let named = Named { val, dims: order.clone() };
                self.align(&named, &out.dims)
            }
        }))
    }

    pub(crate) fn factor(&mut self, of: (Val, &Local), factor: &Factor) -> Val {
        let (mut val, local) = of;
        if let Some(order) = &factor.copy {
            // Extents of 1, which the order does not name, go last.
            let rest = local.dims.iter().filter(|d| !order.contains(d));
            let dims: Vec<_> = order.iter().chain(rest).copied().collect();
            val = self.align(&Named { val, dims: local.dims.clone() }, &dims);
        }
        let val = self.graph.reshape(val, &factor.reshape);
        match &factor.permute {
            Some(axes) => self.graph.permute(val, axes),
            None => val,
        }
    }
}
