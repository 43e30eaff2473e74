//! The positions of the greatest elements of rows.

use super::data::Element;
use super::fold::Ranked;
use super::rows::PerRow;
use super::strided_walk::stretches;
use super::{Access, KernelError, Slice, SliceMut, par};
use meshwright_plan::DType;
use std::cmp::Ordering;
use std::ops::Range;

/// A prepared search for the positions of given ranks in rows: rank 0 is the greatest element; of equal ones the lowest
/// position goes first, NaN goes before all numbers.
#[derive(Clone, Debug)]
pub struct TopKKernel {
    dtype: DType,
    row: PerRow,
    count: usize,
    step: usize,
    rows: usize,
    reach: usize,
    ranks: Range<usize>,
}

impl TopKKernel {
    /// Prepares for an output that is dense over `rows`, then the ranks; the input is walked over `rows`, then the `count`
    /// elements of each.
    ///
    /// # Errors
    /// If a stride is missing, a row has fewer elements than ranks, or the dtype has no order.
    pub fn new(
        rows: &[usize],
        count: usize,
        input: &Access,
        ranks: Range<usize>,
    ) -> Result<TopKKernel, KernelError> {
        if !(input.dtype.is_float() || input.dtype.is_int()) {
            return Err(KernelError::Unsupported(format!("the greatest of {}", input.dtype)));
        }
        if ranks.end > count || i32::try_from(count).is_err() {
            return Err(KernelError::Unsupported(format!("the ranks {ranks:?} of {count} elements")));
        }
        let shape = [rows, &[count]].concat();
        input.check_rank(&shape)?;
        let (strides, step) = input.strides.split_at(rows.len());
        let row = Access { dtype: input.dtype, offset: input.offset, strides: strides.to_vec() };
        Ok(TopKKernel {
            dtype: input.dtype,
            row: PerRow::new(rows, &row)?,
            count,
            step: step[0],
            rows: rows.iter().product(),
            reach: input.reach(&shape),
            ranks,
        })
    }

    /// Searches.
    ///
    /// # Errors
    /// If dtypes or lengths of the operands are not what was prepared for.
    pub fn run(&self, input: Slice<'_>, out: SliceMut<'_>) -> Result<(), KernelError> {
        super::check_in(&input, self.dtype, self.reach)?;
        super::check_out(&out, DType::I32, self.rows * self.ranks.len())?;
        match self.dtype {
            DType::F64 => self.go::<f64>(input, out),
            DType::F32 => self.go::<f32>(input, out),
            DType::I32 => self.go::<i32>(input, out),
            _ => self.go::<u8>(input, out),
        }
        Ok(())
    }

    fn go<T: Ranked>(&self, input: Slice<'_>, out: SliceMut<'_>) {
        let (Some(x), Some(out)) = (T::of(input), i32::of_mut(out)) else { return };
        let (ranks, walk) = (self.ranks.len(), &self.row.walk);
        if ranks == 0 {
            return;
        }
        par::parts(out, ranks, (self.count / ranks).saturating_mul(4), &|base, part| {
            let mut order: Vec<i32> = Vec::with_capacity(self.count);
            let (first, n) = (base / ranks, part.len() / ranks);
            let stride = walk.inner_stride(0);
            stretches(&walk.shape, &walk.strides[0], walk.offsets[0], first, n, |i, at, len| {
                for j in 0..len {
                    let row = &x[at + j * stride..];
                    let found = &mut part[(i + j) * ranks..(i + j + 1) * ranks];
                    self.search(|k| row[k as usize * self.step], &mut order, found);
                }
            });
        });
    }

    /// The positions of one row; `order` is scratch.
    fn search<T: Ranked>(&self, value: impl Fn(i32) -> T, order: &mut Vec<i32>, found: &mut [i32]) {
        let compare = |a: &i32, b: &i32| {
            let (x, y) = (value(*a), value(*b));
            let nan = y.is_nan().cmp(&x.is_nan());
            let by_value = || y.partial_cmp(&x).unwrap_or(Ordering::Equal);
            nan.then_with(by_value).then_with(|| a.cmp(b))
        };
        order.clear();
        order.extend(0..self.count as i32);
        let end = self.ranks.end;
        if end < self.count {
            order.select_nth_unstable_by(end - 1, compare);
            order.truncate(end);
        }
        order.sort_unstable_by(compare);
        found.copy_from_slice(&order[self.ranks.clone()]);
    }
}
