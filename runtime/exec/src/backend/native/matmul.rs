//! Contractions: views of the factors, Burn's matrix product, and a view of it. Factors of half types are read as `f32` copies.

use super::contract::{Contraction, Factor, contraction};
use super::kernel::{Args, Held, Kernel, KernelWork, exactly};
use super::kernels::{KernelError, SliceMut};
use super::moves::copy;
use crate::engine::context::Local;
use crate::engine::graph::Val;
use crate::engine::lowering::{Lowering, LoweringError, stored_shape};
use meshwright_plan::Dim;

impl Lowering<'_, Kernel> {
    /// See [`meshwright_plan::Prim::Contract`].
    pub(super) fn contract(&mut self, reads: Vec<Held>, writes: Vec<Local>) -> Result<(), LoweringError> {
        let (Ok([a, b]), [out]) = (<[Held; 2]>::try_from(reads), exactly(&writes)?) else {
            return Err(LoweringError::Plan("a contraction has two factors".into()));
        };
        self.context.check_aligned(&[&a.local, &b.local, out], &[])?;
        let dtypes = [a.local.dtype, b.local.dtype, out.dtype];
        if dtypes.iter().any(|t| t.wide() != dtypes[0].wide()) || !dtypes[0].is_float() {
            let [a, b, out] = dtypes;
            return Err(LoweringError::Plan(format!("a contraction of {a} and {b} to {out}")));
        }
        let product = match contraction(&a.local, &b.local, out)? {
            Contraction::Zero => {
                let zero = self.one("zero", KernelWork::to_one(zeros), &[], out);
                return self.store(zero, out);
            }
            Contraction::Product(product) => product,
        };
        let (a, b) = (self.upcast(a)?, self.upcast(b)?);
        let (left, right) = if product.swapped { (b, a) } else { (a, b) };
        let left = self.factor(left, &product.left)?;
        let right = self.factor(right, &product.right)?;
        let wide = Local { dtype: out.dtype.wide(), ..out.clone() };
        let target = product.copy.as_ref().map_or_else(|| wide.clone(), |order| reordered(&wide, order));
        let val = self.graph.matmul(left, right);
        let val = self.graph.reshape(val, &stored_shape(target.dtype, &target.shape));
        let made = Held { local: target, val };
        let made = if product.copy.is_some() { self.reorder(made, &wide)? } else { made };
        self.store(made, out)
    }

    /// A factor of a matrix product as a view of its buffer, or of a copy.
    fn factor(&mut self, of: Held, factor: &Factor) -> Result<Val, LoweringError> {
        let of = match &factor.copy {
            Some(order) => {
                let to = reordered(&of.local, order);
                self.reorder(of, &to)?
            }
            None => of,
        };
        let val = self.graph.reshape(of.val, &factor.reshape);
        Ok(match &factor.permute {
            Some(axes) => self.graph.permute(val, axes),
            None => val,
        })
    }

    fn reorder(&mut self, from: Held, to: &Local) -> Result<Held, LoweringError> {
        let work = copy(std::slice::from_ref(&from.local), std::slice::from_ref(to))?;
        Ok(self.one("copy", work, &[from], to))
    }
}

/// A tensor of the dims of `like` (extents of 1 last) in another order.
fn reordered(like: &Local, order: &[Dim]) -> Local {
    let rest = like.dims.iter().filter(|d| !order.contains(d));
    let dims: Vec<Dim> = order.iter().chain(rest).copied().collect();
    let places: Vec<usize> = dims.iter().filter_map(|d| like.at(*d)).collect();
    let ranges = places.iter().map(|i| like.ranges[*i].clone()).collect();
    let shape = places.iter().map(|i| like.shape[*i]).collect();
    Local { dims, ranges, shape, ..like.clone() }
}

/// Of every dtype zero is all bits 0.
fn zeros(_: &Args<'_>, out: SliceMut<'_>) -> Result<(), KernelError> {
    out.into_bytes().fill(0);
    Ok(())
}
