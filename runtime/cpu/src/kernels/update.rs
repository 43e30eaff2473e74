//! Updates in place: some positions of a tensor are replaced, from a start that is known when the step runs.

use super::{Access, KernelError, Slice, SliceMut, check_in, check_out, dense_strides};
use meshwright_plan::DType;
use std::ops::Range;

/// A prepared update of a dense array: `out[.., start + i, ..] = value[.., i, ..]`, and nothing else.
#[derive(Clone, Debug)]
pub struct UpdateKernel {
    dtype: DType,
    /// Extents of the value without its contiguous inner dims: those of the array, except along the updated dim.
    counted: Vec<usize>,
    /// Index of the updated dim among them.
    along: usize,
    /// The positions along it that this device holds.
    held: Range<usize>,
    /// Strides of the array, the value and the start.
    strides: [Vec<usize>; 3],
    /// Elements that lie together in both, at the end.
    run: usize,
    /// Elements of the array, of the value and of the start, at least.
    reach: [usize; 3],
}

impl UpdateKernel {
    /// Prepares for an array that is dense over `shape` and holds the positions `held` along its extent `along`. The value and
    /// the start are walked over `shape` with `count` positions there. The start is `I32`.
    ///
    /// # Errors
    /// If a stride is missing, or the start is of another dtype.
    pub fn new(
        shape: &[usize],
        (along, held, count): (usize, Range<usize>, usize),
        value: &Access,
        start: &Access,
    ) -> Result<UpdateKernel, KernelError> {
        if start.dtype != DType::I32 {
            return Err(KernelError::DType { expected: DType::I32, found: start.dtype });
        }
        for access in [value, start] {
            if access.strides.len() != shape.len() || along >= shape.len() {
                return Err(KernelError::Rank { expected: shape.len(), found: access.strides.len() });
            }
        }
        let (mut counted, own) = (shape.to_vec(), dense_strides(shape));
        counted[along] = count;
        let reach = [shape.iter().product(), value.reach(&counted), start.reach(&counted)];
        let (mut run, mut outer) = (1, shape.len());
        while outer > along + 1
            && (shape[outer - 1] == 1 || value.strides[outer - 1] == run)
            && (shape[outer - 1] == 1 || start.strides[outer - 1] == 0)
        {
            outer -= 1;
            run *= shape[outer];
        }
        let strides = [own, value.strides.clone(), start.strides.clone()].map(|mut s| {
            s.truncate(outer);
            s
        });
        counted.truncate(outer);
        Ok(UpdateKernel { dtype: value.dtype, counted, along, held, strides, run, reach })
    }

    /// Writes.
    ///
    /// # Errors
    /// If dtypes or lengths of the operands are not what was prepared for.
    pub fn run(&self, value: Slice<'_>, start: Slice<'_>, out: SliceMut<'_>) -> Result<(), KernelError> {
        check_in(&value, self.dtype, self.reach[1])?;
        check_in(&start, DType::I32, self.reach[2])?;
        check_out(&out, self.dtype, self.reach[0])?;
        let Slice::I32(start) = start else { return Ok(()) };
        let (bytes, value, out) = (self.dtype.bytes(), value.bytes(), out.into_bytes());
        let mut index = vec![0usize; self.counted.len()];
        for _ in 0..self.counted.iter().product() {
            let [to, from, first] = [0, 1, 2].map(|k| {
                let others = index.iter().zip(&self.strides[k]).enumerate();
                let steps = others.map(|(d, (i, s))| if k == 0 && d == self.along { 0 } else { i * s });
                steps.sum::<usize>()
            });
            let position = i64::from(start[first]) + index[self.along] as i64 - self.held.start as i64;
            if let Some(position) = usize::try_from(position).ok().filter(|p| *p < self.held.len()) {
                let to = (to + position * self.strides[0][self.along]) * bytes;
                let (from, length) = (from * bytes, self.run * bytes);
                out[to..to + length].copy_from_slice(&value[from..from + length]);
            }
            for (i, size) in index.iter_mut().zip(&self.counted).rev() {
                *i += 1;
                if *i < *size {
                    break;
                }
                *i = 0;
            }
        }
        Ok(())
    }
}
