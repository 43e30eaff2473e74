//! Cross-entropy and its gradient.

use super::data::Element;
#[cfg(test)]
use super::instruction_set::Level;
use super::rows::{
    InPlace, PerRow, Rows, Scratched, affine, divide, labels, logarithm, own, shifted_exponentials,
};
use super::{Access, Arg, KernelError, Slice, SliceMut};
use meshwright_plan::DType;

/// A prepared `logsumexp(logits) - logits[label]` of rows.
#[derive(Clone, Debug)]
pub struct CrossEntropyKernel {
    rows: Rows,
    label: PerRow,
}

impl CrossEntropyKernel {
    /// Prepares for an output that is dense over `rows`; the logits are walked over `rows`, then the classes, the label
    /// (`I32`) over `rows`.
    ///
    /// # Errors
    /// If a stride is missing or a dtype does not fit.
    pub fn new(
        rows: &[usize],
        classes: usize,
        logits: &Access,
        label: &Access,
    ) -> Result<CrossEntropyKernel, KernelError> {
        labels(label)?;
        Ok(CrossEntropyKernel { rows: Rows::new(rows, classes, logits)?, label: PerRow::new(rows, label)? })
    }

    /// Computes. The logit of a label that is not a class counts as 0, as a lookup has it.
    ///
    /// # Errors
    /// If dtypes or lengths of the operands are not what was prepared for.
    pub fn run(&self, logits: Slice<'_>, label: Slice<'_>, out: SliceMut<'_>) -> Result<(), KernelError> {
        super::check_in(&logits, self.rows.dtype, self.rows.reach)?;
        super::check_in(&label, DType::I32, self.label.reach)?;
        super::check_out(&out, self.rows.dtype, self.rows.count)?;
        match self.rows.dtype {
            DType::F64 => self.go::<f64>(logits, label, out),
            _ => self.go::<f32>(logits, label, out),
        }
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn with_level(mut self, level: Level) -> CrossEntropyKernel {
        self.rows.level = level;
        self
    }

    fn go<T: Scratched>(&self, logits: Slice<'_>, label: Slice<'_>, out: SliceMut<'_>) {
        let (Some(x), Some(label), Some(out)) = (T::of(logits), i32::of(label), T::of_mut(out)) else {
            return;
        };
        let classes = self.rows.classes;
        self.rows.run(x, out, |first, out, s| {
            self.label.read(label, first, out.len(), &mut s.label);
            for (r, o) in out.iter_mut().enumerate() {
                let row = &s.rows[r * classes..(r + 1) * classes];
                let logit = usize::try_from(s.label[r]).ok().and_then(|l| row.get(l));
                // The difference of the large numbers first: it is exact where they are close.
                *o = logarithm(s.sum[r]) + (s.shift[r] - logit.copied().unwrap_or_default());
            }
        });
    }
}

/// A prepared gradient of the cross-entropy along one dim of a dense array.
#[derive(Clone, Debug)]
pub struct CrossEntropyGradKernel {
    rows: InPlace,
    label: PerRow,
    scale: PerRow,
}

impl CrossEntropyGradKernel {
    /// Prepares `out = (softmax(logits) - onehot(label)) * scale` for dense logits and output of that shape, along dim
    /// number `dim`. Label (`I32`) and scale are walked over `shape`, with stride 0 along `dim`.
    ///
    /// # Errors
    /// If the dim or a stride is missing, or a dtype does not fit.
    pub fn new(
        dtype: DType,
        shape: &[usize],
        dim: usize,
        label: &Access,
        scale: &Access,
    ) -> Result<CrossEntropyGradKernel, KernelError> {
        let rows = InPlace::new(dtype, shape, dim)?;
        labels(label)?;
        if scale.dtype != dtype {
            return Err(KernelError::DType { expected: dtype, found: scale.dtype });
        }
        let mut row_shape = shape.to_vec();
        row_shape.remove(dim);
        let per_row = |a: &Access| {
            a.check_rank(shape)?;
            let mut a = a.clone();
            if a.strides.remove(dim) != 0 {
                return Err(KernelError::Unsupported("a label or scale for each class".into()));
            }
            PerRow::new(&row_shape, &a)
        };
        Ok(CrossEntropyGradKernel { rows, label: per_row(label)?, scale: per_row(scale)? })
    }

    /// Computes the gradient. The logits may be `Arg::Out(0)`. A label that is not a class has no 1 in its row.
    ///
    /// # Errors
    /// If dtypes or lengths of the operands are not what was prepared for.
    pub fn run(
        &self,
        logits: Arg<'_>,
        label: Slice<'_>,
        scale: Slice<'_>,
        out: SliceMut<'_>,
    ) -> Result<(), KernelError> {
        self.rows.check(&logits, &out)?;
        let empty = self.rows.total == 0;
        super::check_in(&label, DType::I32, if empty { 0 } else { self.label.reach })?;
        super::check_in(&scale, self.rows.dtype, if empty { 0 } else { self.scale.reach })?;
        match self.rows.dtype {
            DType::F64 => self.go::<f64>(logits, label, scale, out),
            _ => self.go::<f32>(logits, label, scale, out),
        }
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn with_level(mut self, level: Level) -> CrossEntropyGradKernel {
        self.rows.level = level;
        self
    }

    fn go<T: Scratched>(&self, logits: Arg<'_>, label: Slice<'_>, scale: Slice<'_>, out: SliceMut<'_>) {
        let (Some(out), Some(label), Some(scale)) = (T::of_mut(out), i32::of(label), T::of(scale)) else {
            return;
        };
        let classes = self.rows.classes;
        self.rows.run(own(logits), out, |first, rows, s| {
            let n = rows.len() / classes;
            self.label.read(label, first, n, &mut s.label);
            self.scale.read(scale, first, n, &mut s.scale);
            shifted_exponentials(self.rows.level, rows, classes, &mut s.shift, &mut s.sum, n);
            // (e / sum - onehot) * scale
            divide(self.rows.level, rows, classes, &s.sum);
            for (row, label) in rows.chunks_exact_mut(classes).zip(&s.label) {
                if let Some(x) = usize::try_from(*label).ok().and_then(|l| row.get_mut(l)) {
                    *x -= T::ONE;
                }
            }
            s.shift.iter_mut().for_each(|x| *x = T::default());
            affine(self.rows.level, rows, classes, &s.scale, &s.shift);
        });
    }
}
