//! Softmax, its logarithm, and the logarithm of a sum of exponentials.

#[cfg(test)]
use super::instruction_set::Level;
use super::rows::{InPlace, Rows, Scratched, logarithm, own};
use super::{Access, Arg, KernelError, Slice, SliceMut};
use meshwright_plan::DType;

/// A prepared softmax or log-softmax along one dim of a dense array.
#[derive(Clone, Debug)]
pub struct SoftmaxKernel {
    rows: InPlace,
    log: bool,
}

impl SoftmaxKernel {
    /// Prepares for dense operands of that shape, along dim number `dim`.
    ///
    /// # Errors
    /// If the dim is missing, or the dtype is not a float.
    pub fn new(dtype: DType, shape: &[usize], dim: usize, log: bool) -> Result<SoftmaxKernel, KernelError> {
        Ok(SoftmaxKernel { rows: InPlace::new(dtype, shape, dim)?, log })
    }

    /// Normalizes. The input may be `Arg::Out(0)`.
    ///
    /// # Errors
    /// If dtypes or lengths of the operands are not what was prepared for.
    pub fn run(&self, input: Arg<'_>, out: SliceMut<'_>) -> Result<(), KernelError> {
        self.rows.check(&input, &out)?;
        match self.rows.dtype {
            DType::F64 => self.go::<f64>(input, out),
            _ => self.go::<f32>(input, out),
        }
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn with_level(mut self, level: Level) -> SoftmaxKernel {
        self.rows.level = level;
        self
    }

    fn go<T: Scratched>(&self, input: Arg<'_>, out: SliceMut<'_>) {
        let Some(out) = T::of_mut(out) else { return };
        self.rows.run(own(input), out, |_, rows, s| {
            if self.log { self.rows.log_softmax(rows, s) } else { self.rows.softmax(rows, s) }
        });
    }
}

/// A prepared `log(sum(exp(x)))` of rows. Of nothing it is `-inf`.
#[derive(Clone, Debug)]
pub struct LogSumExpKernel {
    rows: Rows,
}

impl LogSumExpKernel {
    /// Prepares for an output that is dense over `rows`; the input is walked over `rows`, then the classes.
    ///
    /// # Errors
    /// If a stride is missing or the dtype is not a float.
    pub fn new(rows: &[usize], classes: usize, input: &Access) -> Result<LogSumExpKernel, KernelError> {
        Ok(LogSumExpKernel { rows: Rows::new(rows, classes, input)? })
    }

    /// Computes.
    ///
    /// # Errors
    /// If dtypes or lengths of the operands are not what was prepared for.
    pub fn run(&self, input: Slice<'_>, out: SliceMut<'_>) -> Result<(), KernelError> {
        super::check_in(&input, self.rows.dtype, self.rows.reach)?;
        super::check_out(&out, self.rows.dtype, self.rows.count)?;
        match self.rows.dtype {
            DType::F64 => self.go::<f64>(input, out),
            _ => self.go::<f32>(input, out),
        }
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn with_level(mut self, level: Level) -> LogSumExpKernel {
        self.rows.level = level;
        self
    }

    fn go<T: Scratched>(&self, input: Slice<'_>, out: SliceMut<'_>) {
        let (Some(x), Some(out)) = (T::of(input), T::of_mut(out)) else { return };
        self.rows.run(x, out, |_, out, s| {
            for (o, (shift, sum)) in out.iter_mut().zip(s.shift.iter().zip(&s.sum)) {
                *o = if !shift.finite() { *shift } else { *shift + logarithm(*sum) };
            }
        });
    }
}
