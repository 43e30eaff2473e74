//! Reductions over any dims.

use super::data::Element;
use super::fold::{self, *};
use super::instruction_set::Level;
use super::strided_walk::{Walk, stretches};
use super::{Access, KernelError, Slice, SliceMut, par};
use half::{bf16, f16};
use meshwright_plan::{DType, Monoid};

/// Columns that are accumulated at a time.
const COLUMNS: usize = 256;

/// Elements of a long row that make one partial result.
const PIECE: usize = 1 << 15;

/// A prepared reduction. Sums and products of `f32` accumulate in `f64`, and those of half types too, which give `f32`; integers
/// wrap around; maximum and minimum give NaN if there is one; an empty fold gives the identity. Arg-reductions treat NaN as
/// coming first, whether the greatest or the least is sought, and take the lowest index of equals.
#[derive(Clone, Debug)]
pub struct ReduceKernel {
    monoid: Monoid,
    dtype: DType,
    keep: Walk,
    fold: Walk,
    /// Elements of the output, and of the fold of each.
    sizes: (usize, usize),
    reach: usize,
    arg_offset: usize,
    /// Whether the squares of scaled elements are folded, in place of elements.
    squares: bool,
    level: Level,
}

impl ReduceKernel {
    /// Prepares `out[keep] = sum of (scale * input[keep, fold])^2`, with the scale of [`meshwright_plan::square_scale`].
    ///
    /// # Errors
    /// If a stride is missing, or the dtype is neither `f32` nor `f64`.
    pub fn scaled_squares(
        keep: &[usize],
        fold: &[usize],
        input: &Access,
    ) -> Result<ReduceKernel, KernelError> {
        if !matches!(input.dtype, DType::F32 | DType::F64) {
            return Err(KernelError::Unsupported(format!("squares of {}", input.dtype)));
        }
        Ok(ReduceKernel { squares: true, ..ReduceKernel::new(Monoid::Sum, keep, fold, input, 0)? })
    }

    /// Prepares `out[keep] = fold of input[keep, fold]`; the input's strides are those of the dims of `keep`, then `fold`.
    /// Arg-reductions have one dim in `fold`, and add `arg_offset` to the index.
    ///
    /// # Errors
    /// If a stride is missing, or the monoid has no meaning for the dtype.
    pub fn new(
        monoid: Monoid,
        keep: &[usize],
        fold: &[usize],
        input: &Access,
        arg_offset: usize,
    ) -> Result<ReduceKernel, KernelError> {
        let shape = [keep, fold].concat();
        input.check_rank(&shape)?;
        let part =
            |offset, strides: &[usize]| Access { dtype: input.dtype, offset, strides: strides.to_vec() };
        let (ks, fs) = input.strides.split_at(keep.len());
        let arg = matches!(monoid, Monoid::ArgMax | Monoid::ArgMin);
        let logic = matches!(monoid, Monoid::And | Monoid::Or);
        if input.dtype.is_pair()
            || logic != (input.dtype == DType::Bool) && !(arg && input.dtype == DType::Bool)
            || arg && fold.len() != 1
        {
            return Err(KernelError::Unsupported(format!(
                "reduction {monoid} of {} over {} dims",
                input.dtype,
                fold.len()
            )));
        }
        let fits = u32::try_from(arg_offset.saturating_add(fold.iter().product())).is_ok();
        if arg && input.dtype.pair() == DType::PairF32 && !fits {
            return Err(KernelError::Unsupported("indices beyond 32 bits".into()));
        }
        Ok(ReduceKernel {
            monoid,
            dtype: input.dtype,
            keep: Walk::new(keep, &[&part(input.offset, ks)])?,
            fold: Walk::new(fold, &[&part(0, fs)])?,
            sizes: (keep.iter().product(), fold.iter().product()),
            reach: input.reach(&shape),
            arg_offset,
            squares: false,
            level: Level::best(),
        })
    }

    /// Dtype of the output.
    pub fn out_dtype(&self) -> DType {
        match self.monoid {
            Monoid::ArgMax | Monoid::ArgMin => self.dtype.pair(),
            Monoid::Sum | Monoid::Prod => self.dtype.wide(),
            _ => self.dtype,
        }
    }

    /// Reduces.
    ///
    /// # Errors
    /// If dtypes or lengths of the operands are not what was prepared for.
    pub fn run(&self, input: Slice<'_>, out: SliceMut<'_>) -> Result<(), KernelError> {
        super::check_in(&input, self.dtype, self.reach)?;
        super::check_out(&out, self.out_dtype(), self.sizes.0)?;
        use {DType::*, Monoid::*};
        match (self.monoid, self.dtype) {
            (Sum, F32) if self.squares => self.fold::<ScaledSquares<f32>>(input, out),
            (Sum, F64) if self.squares => self.fold::<ScaledSquares<f64>>(input, out),
            (Sum, F32) => self.fold::<SumF32>(input, out),
            (Sum, F64) => self.fold::<SumF64>(input, out),
            (Sum, BF16) => self.fold::<SumHalf<bf16>>(input, out),
            (Sum, F16) => self.fold::<SumHalf<f16>>(input, out),
            (Sum, I32) => self.fold::<SumI32>(input, out),
            (Sum, _) => self.fold::<SumU8>(input, out),
            (Prod, F32) => self.fold::<ProdF32>(input, out),
            (Prod, F64) => self.fold::<ProdF64>(input, out),
            (Prod, BF16) => self.fold::<ProdHalf<bf16>>(input, out),
            (Prod, F16) => self.fold::<ProdHalf<f16>>(input, out),
            (Prod, I32) => self.fold::<ProdI32>(input, out),
            (Prod, _) => self.fold::<ProdU8>(input, out),
            (Max, F32) => self.fold::<MaxF32>(input, out),
            (Max, F64) => self.fold::<MaxF64>(input, out),
            (Max, BF16) => self.fold::<MaxHalf<bf16>>(input, out),
            (Max, F16) => self.fold::<MaxHalf<f16>>(input, out),
            (Max, I32) => self.fold::<MaxI32>(input, out),
            (Max, _) => self.fold::<MaxU8>(input, out),
            (Min, F32) => self.fold::<MinF32>(input, out),
            (Min, F64) => self.fold::<MinF64>(input, out),
            (Min, BF16) => self.fold::<MinHalf<bf16>>(input, out),
            (Min, F16) => self.fold::<MinHalf<f16>>(input, out),
            (Min, I32) => self.fold::<MinI32>(input, out),
            (Min, _) => self.fold::<MinU8>(input, out),
            (And, _) => self.fold::<fold::And>(input, out),
            (Or, _) => self.fold::<fold::Or>(input, out),
            (ArgMax | ArgMin, F32) => self.arg::<f32>(input, out),
            (ArgMax | ArgMin, F64) => self.arg::<f64>(input, out),
            (ArgMax | ArgMin, BF16) => self.arg::<bf16>(input, out),
            (ArgMax | ArgMin, F16) => self.arg::<f16>(input, out),
            (ArgMax | ArgMin, I32) => self.arg::<i32>(input, out),
            (ArgMax | ArgMin, _) => self.arg::<u8>(input, out),
        }
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn with_level(mut self, level: Level) -> ReduceKernel {
        self.level = level;
        self
    }

    /// Whether each result's elements are read row by row, rather than those of several results side by side.
    fn by_rows(&self) -> bool {
        let contiguous = self.fold.inner_stride(0) == 1;
        contiguous && (self.fold.inner() >= 8 || self.keep.inner_stride(0) != 1)
    }

    fn fold<F: Fold>(&self, input: Slice<'_>, out: SliceMut<'_>) {
        let (Some(x), Some(out)) = (F::Item::of(input), F::Out::of_mut(out)) else { return };
        if self.sizes.1 == 0 {
            out.fill(F::finish(F::IDENTITY));
        } else if self.by_rows() {
            par::parts(out, 1, self.sizes.1, &|base, part| {
                self.each_result(base, part.len(), |i, at| part[i] = F::finish(self.row::<F>(x, at)));
            });
        } else {
            par::parts(out, COLUMNS, self.sizes.1, &|base, part| {
                let mut acc = [F::IDENTITY; COLUMNS];
                self.each_panel(base, part.len(), |i, at, n, stride| {
                    acc[..n].fill(F::IDENTITY);
                    let (count, step) = (self.fold.inner(), self.fold.inner_stride(0));
                    self.fold.each_row(0..self.fold.rows(), |_, [p]| {
                        fold::columns::<F>(self.level, &mut acc[..n], &x[at + p..], count, step, stride);
                    });
                    part[i..i + n].iter_mut().zip(&acc).for_each(|(o, a)| *o = F::finish(*a));
                });
            });
        }
    }

    /// Calls `f(i, at)` with the position of each result's first element.
    fn each_result(&self, base: usize, n: usize, mut f: impl FnMut(usize, usize)) {
        let stride = self.keep.inner_stride(0);
        stretches(&self.keep.shape, &self.keep.strides[0], self.keep.offsets[0], base, n, |i, at, len| {
            (0..len).for_each(|j| f(i + j, at + j * stride));
        });
    }

    /// Calls `f(i, at, n, stride)` for up to [`COLUMNS`] results side by side.
    fn each_panel(&self, base: usize, n: usize, mut f: impl FnMut(usize, usize, usize, usize)) {
        let stride = self.keep.inner_stride(0);
        stretches(&self.keep.shape, &self.keep.strides[0], self.keep.offsets[0], base, n, |i, at, len| {
            for j in (0..len).step_by(COLUMNS) {
                f(i + j, at + j * stride, (len - j).min(COLUMNS), stride);
            }
        });
    }

    /// Folds the rows of one result. Long rows are folded in pieces, which a pool may share.
    fn row<F: Fold>(&self, x: &[F::Item], at: usize) -> F::Acc {
        let mut acc = F::IDENTITY;
        let len = self.fold.inner();
        self.fold.each_row(0..self.fold.rows(), |_, [p]| {
            let row = &x[at + p..at + p + len];
            if len <= PIECE {
                acc = F::join(acc, fold::row::<F>(self.level, row));
            } else if par::worth(len) {
                let mut pieces = vec![F::IDENTITY; len.div_ceil(PIECE)];
                par::parts(&mut pieces, 1, PIECE, &|base, part| {
                    for (k, piece) in part.iter_mut().enumerate() {
                        let lo = (base + k) * PIECE;
                        *piece = fold::row::<F>(self.level, &row[lo..len.min(lo + PIECE)]);
                    }
                });
                acc = pieces.into_iter().fold(acc, F::join);
            } else {
                acc = row.chunks(PIECE).fold(acc, |acc, c| F::join(acc, fold::row::<F>(self.level, c)));
            }
        });
        acc
    }

    fn arg<T: Ranked>(&self, input: Slice<'_>, out: SliceMut<'_>) {
        let (Some(x), Some(out)) = (T::of(input), T::Pair::of_mut(out)) else { return };
        let greatest = self.monoid == Monoid::ArgMax;
        let (count, step) = (self.fold.inner(), self.fold.inner_stride(0));
        if self.sizes.1 == 0 {
            out.fill(T::nothing(greatest));
        } else if self.by_rows() {
            par::parts(out, 1, count, &|base, part| {
                self.each_result(base, part.len(), |i, at| {
                    let row = &x[at..at + count];
                    let best = if greatest {
                        fold::row::<T::Greatest>(self.level, row)
                    } else {
                        fold::row::<T::Least>(self.level, row)
                    };
                    let place = row.iter().position(|x| x.is_best(best)).unwrap_or(0);
                    part[i] = row[place].pair(self.arg_offset + place);
                });
            });
        } else {
            par::parts(out, COLUMNS, count, &|base, part| {
                let (mut best, mut place) = ([T::default(); COLUMNS], [0usize; COLUMNS]);
                self.each_panel(base, part.len(), |i, at, n, stride| {
                    place[..n].fill(0);
                    best[..n].iter_mut().enumerate().for_each(|(j, b)| *b = x[at + j * stride]);
                    let (best, place) = (&mut best[..n], &mut place[..n]);
                    fold::best_columns::<T>(
                        self.level,
                        (&mut *best, &mut *place),
                        &x[at..],
                        count,
                        step,
                        stride,
                        greatest,
                    );
                    for (o, (b, p)) in part[i..i + n].iter_mut().zip(best.iter().zip(place.iter())) {
                        *o = b.pair(self.arg_offset + *p);
                    }
                });
            });
        }
    }
}
