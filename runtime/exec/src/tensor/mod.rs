//! Tensors outside of a device: what data sets, checkpoints and metrics are made of.

mod elements;
mod finite;

pub use elements::{HostData, Slice, SliceMut};
pub use finite::Finiteness;

use meshwright_device::access::dense_strides;
use meshwright_plan::DType;
use std::ops::Range;

/// A dense row-major tensor in host memory: a device's shard, or a whole value.
#[derive(Clone, Debug, PartialEq)]
pub struct HostTensor {
    /// Extents, major first.
    pub shape: Vec<usize>,
    /// The elements: as many as the product of the shape.
    pub data: HostData,
}

impl HostTensor {
    /// A tensor; none if the number of elements does not fit the shape.
    pub fn new(shape: Vec<usize>, data: HostData) -> Option<HostTensor> {
        (shape.iter().product::<usize>() == data.len()).then_some(HostTensor { shape, data })
    }

    /// A tensor of zeros.
    pub fn zeros(dtype: DType, shape: Vec<usize>) -> HostTensor {
        let data = HostData::zeros(dtype, shape.iter().product());
        HostTensor { shape, data }
    }

    /// Type of the elements.
    pub fn dtype(&self) -> DType {
        self.data.dtype()
    }

    /// The only element as `f64` (of a pair the value), if there is exactly one.
    pub fn scalar(&self) -> Option<f64> {
        (self.data.len() == 1).then(|| self.data.to_f64()[0])
    }

    /// The part at `ranges`, or none if they are not within the shape.
    pub fn slice(&self, ranges: &[Range<usize>]) -> Option<HostTensor> {
        let shape: Vec<usize> = ranges.iter().map(ExactSizeIterator::len).collect();
        let mut out = HostTensor::zeros(self.dtype(), shape);
        let fits = each_run(&self.shape, ranges, |whole, part, len| {
            copy_run(&mut out.data, part, &self.data, whole, len)
        });
        fits.then_some(out)
    }

    /// The same with the position `order[i]` of a dim at each `i`; none if it has no such position.
    pub fn reordered(&self, dim: usize, order: &[usize]) -> Option<HostTensor> {
        let mut out = HostTensor::zeros(self.dtype(), self.shape.clone());
        let mut ranges: Vec<Range<usize>> = self.shape.iter().map(|n| 0..*n).collect();
        for (to, from) in order.iter().enumerate() {
            ranges[dim] = *from..from + 1;
            let part = self.slice(&ranges)?;
            ranges[dim] = to..to + 1;
            out.paste(&ranges, &part).then_some(())?;
        }
        Some(out)
    }

    /// Writes `part` to `ranges` of this tensor; false (and contents unspecified) if they do not fit each other.
    pub fn paste(&mut self, ranges: &[Range<usize>], part: &HostTensor) -> bool {
        let fits = ranges.iter().map(ExactSizeIterator::len).eq(part.shape.iter().copied());
        let HostTensor { shape, data } = self;
        fits && each_run(shape, ranges, |whole, at, len| copy_run(data, whole, &part.data, at, len))
    }
}

/// Copies a run of elements from data of the same dtype; false where dtypes or bounds do not fit.
fn copy_run(to: &mut HostData, at: usize, from: &HostData, start: usize, len: usize) -> bool {
    match (to.view_mut().part(at..at + len), from.view().part(start..start + len)) {
        (Some(to), Some(from)) => to.copy_from(from),
        _ => false,
    }
}

/// Calls `run(position in the whole, position in the part, length)` for each contiguous run of a block. False if the
/// ranges are not within the shape, or as soon as `run` is.
fn each_run(
    shape: &[usize],
    ranges: &[Range<usize>],
    mut run: impl FnMut(usize, usize, usize) -> bool,
) -> bool {
    if shape.len() != ranges.len() || shape.iter().zip(ranges).any(|(n, r)| r.start > r.end || r.end > *n) {
        return false;
    }
    if ranges.iter().any(|r| r.is_empty()) {
        return true;
    }
    let Some((last, outer)) = ranges.split_last() else {
        return run(0, 0, 1);
    };
    let strides = dense_strides(shape);
    let mut index: Vec<usize> = outer.iter().map(|r| r.start).collect();
    let mut part = 0;
    loop {
        let whole = index.iter().zip(&strides).map(|(i, s)| i * s).sum::<usize>() + last.start;
        if !run(whole, part, last.len()) {
            return false;
        }
        part += last.len();
        let mut d = outer.len();
        loop {
            if d == 0 {
                return true;
            }
            d -= 1;
            index[d] += 1;
            if index[d] < outer[d].end {
                break;
            }
            index[d] = outer[d].start;
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn parts_put_together_are_the_whole() {
        let whole = HostTensor::new(vec![3, 4], HostData::I32((0..12).collect())).unwrap();
        let mut copy = HostTensor::zeros(DType::I32, vec![3, 4]);
        for (r, c) in [(0..2, 0..3), (0..2, 3..4), (2..3, 0..3), (2..3, 3..4), (1..1, 0..4)] {
            let part = whole.slice(&[r.clone(), c.clone()]).unwrap();
            assert_eq!(part.shape, [r.len(), c.len()]);
            assert!(copy.paste(&[r, c], &part));
        }
        assert_eq!(copy, whole);
        assert!(whole.slice(&[0..4, 0..1]).is_none());
        assert!(!copy.paste(&[0..1, 0..1], &HostTensor::zeros(DType::F32, vec![1, 1])));
        let scalar = HostTensor::new(vec![], HostData::F32(vec![2.5])).unwrap();
        assert_eq!(scalar.slice(&[]).unwrap().scalar(), Some(2.5));
    }
}
