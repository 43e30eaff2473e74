//! Running sums along one dim of a dense array.

use super::data::Element;
use super::fold::{Fold, SumF32, SumF64, SumI32};
use super::instruction_set::{Level, multiversion};
use super::{Arg, KernelError, SliceMut, par};
use meshwright_plan::DType;

/// A prepared running sum. Sums of `f32` run in `f64`, so that each is the rounding of its own sum; integers wrap around.
#[derive(Clone, Debug)]
pub struct CumSumKernel {
    dtype: DType,
    /// Elements along the dim, and of the dims inside of it.
    count: usize,
    inner: usize,
    total: usize,
    reverse: bool,
    exclusive: bool,
    level: Level,
}

impl CumSumKernel {
    /// Prepares for dense operands of that shape, along dim number `dim`: from the end if `reverse`, each without its own
    /// element if `exclusive`.
    ///
    /// # Errors
    /// If there is no such dim, or the dtype is neither a float nor `i32`.
    pub fn new(
        dtype: DType,
        shape: &[usize],
        dim: usize,
        reverse: bool,
        exclusive: bool,
    ) -> Result<CumSumKernel, KernelError> {
        let Some(count) = shape.get(dim) else {
            return Err(KernelError::Rank { expected: dim + 1, found: shape.len() });
        };
        if !(dtype.is_float() || dtype == DType::I32) {
            return Err(KernelError::Unsupported(format!("running sums of {dtype}")));
        }
        Ok(CumSumKernel {
            dtype,
            count: *count,
            inner: shape[dim + 1..].iter().product(),
            total: shape.iter().product(),
            reverse,
            exclusive,
            level: Level::best(),
        })
    }

    /// Sums. The input may be `Arg::Out(0)`.
    ///
    /// # Errors
    /// If dtypes or lengths of the operands are not what was prepared for.
    pub fn run(&self, input: Arg<'_>, out: SliceMut<'_>) -> Result<(), KernelError> {
        super::check_out(&out, self.dtype, self.total)?;
        match input {
            Arg::Slice(s) => super::check_in(&s, self.dtype, self.total)?,
            Arg::Out(0) => {}
            Arg::Out(k) => return Err(KernelError::Count { expected: 1, found: k + 1 }),
        }
        match self.dtype {
            DType::F64 => self.go::<SumF64>(input, out),
            DType::F32 => self.go::<SumF32>(input, out),
            _ => self.go::<SumI32>(input, out),
        }
        Ok(())
    }

    fn go<F: Fold<Out = <F as Fold>::Item>>(&self, input: Arg<'_>, out: SliceMut<'_>) {
        let Some(out) = F::Item::of_mut(out) else { return };
        let input = super::rows::own::<F::Item>(input);
        let plane = self.count * self.inner;
        if plane == 0 {
            return;
        }
        par::parts(out, plane, 4, &|base, part| {
            let mut sums = vec![F::IDENTITY; self.inner];
            if let Some(x) = input {
                part.copy_from_slice(&x[base..base + part.len()]);
            }
            for rows in part.chunks_exact_mut(plane) {
                sums.fill(F::IDENTITY);
                scan::<F>(self.level, rows, &mut sums, self.count, self.reverse, self.exclusive);
            }
        });
    }

    #[cfg(test)]
    pub(super) fn with_level(mut self, level: Level) -> CumSumKernel {
        self.level = level;
        self
    }
}

multiversion! {
    /// Running sums of `count` rows, each as long as `sums`, which hold 0 at first.
    fn scan[F: Fold<Out = <F as Fold>::Item>](rows: &mut [F::Item], sums: &mut [F::Acc], count: usize, reverse: bool, exclusive: bool) {
        let inner = sums.len();
        for k in 0..count {
            let i = if reverse { count - 1 - k } else { k };
            let row = &mut rows[i * inner..(i + 1) * inner];
            for (x, sum) in row.iter_mut().zip(sums.iter_mut()) {
                let next = F::step(*sum, *x);
                *x = F::finish(if exclusive { *sum } else { next });
                *sum = next;
            }
        }
    }
}
