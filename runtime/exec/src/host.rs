//! Tensors outside of a device: what data sets, checkpoints and metrics are made of.

use crate::kernels::{PairF32, PairF64};
use half::bf16;
use meshwright_plan::DType;
use std::ops::Range;

/// Elements of one dtype, row-major.
#[derive(Clone, Debug, PartialEq)]
pub enum HostData {
    /// [`DType::F64`].
    F64(Vec<f64>),
    /// [`DType::F32`].
    F32(Vec<f32>),
    /// [`DType::BF16`].
    BF16(Vec<bf16>),
    /// [`DType::I32`].
    I32(Vec<i32>),
    /// [`DType::U8`].
    U8(Vec<u8>),
    /// [`DType::Bool`]: bytes 0 and 1.
    Bool(Vec<u8>),
    /// [`DType::PairF32`].
    PairF32(Vec<PairF32>),
    /// [`DType::PairF64`].
    PairF64(Vec<PairF64>),
}

/// Runs `$body` with `$v` bound to the vector inside of a [`HostData`].
macro_rules! each_vec {
    ($data:expr, $v:pat => $body:expr) => {
        match $data {
            HostData::F64($v) => $body,
            HostData::F32($v) => $body,
            HostData::BF16($v) => $body,
            HostData::I32($v) => $body,
            HostData::U8($v) | HostData::Bool($v) => $body,
            HostData::PairF32($v) => $body,
            HostData::PairF64($v) => $body,
        }
    };
}

impl HostData {
    /// `len` zeros (false; 0 at index 0).
    pub fn zeros(dtype: DType, len: usize) -> HostData {
        match dtype {
            DType::F64 => HostData::F64(vec![0.0; len]),
            DType::F32 => HostData::F32(vec![0.0; len]),
            DType::BF16 => HostData::BF16(vec![bf16::ZERO; len]),
            DType::I32 => HostData::I32(vec![0; len]),
            DType::U8 => HostData::U8(vec![0; len]),
            DType::Bool => HostData::Bool(vec![0; len]),
            DType::PairF32 => HostData::PairF32(vec![PairF32::default(); len]),
            DType::PairF64 => HostData::PairF64(vec![PairF64::default(); len]),
        }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        each_vec!(self, v => v.len())
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Type of the elements.
    pub fn dtype(&self) -> DType {
        match self {
            HostData::F64(_) => DType::F64,
            HostData::F32(_) => DType::F32,
            HostData::BF16(_) => DType::BF16,
            HostData::I32(_) => DType::I32,
            HostData::U8(_) => DType::U8,
            HostData::Bool(_) => DType::Bool,
            HostData::PairF32(_) => DType::PairF32,
            HostData::PairF64(_) => DType::PairF64,
        }
    }

    /// The elements as `f64` (of pairs the values). `f32` and integers are exact.
    pub fn to_f64(&self) -> Vec<f64> {
        match self {
            HostData::F64(v) => v.clone(),
            HostData::F32(v) => v.iter().map(|x| f64::from(*x)).collect(),
            HostData::BF16(v) => v.iter().map(|x| f64::from(*x)).collect(),
            HostData::I32(v) => v.iter().map(|x| f64::from(*x)).collect(),
            HostData::U8(v) | HostData::Bool(v) => v.iter().map(|x| f64::from(*x)).collect(),
            HostData::PairF32(v) => v.iter().map(|p| f64::from(p.value)).collect(),
            HostData::PairF64(v) => v.iter().map(|p| p.value).collect(),
        }
    }

    /// Numbers as elements of `dtype`: floats are rounded, integers cut off at their bounds, bools are `x != 0`, pairs
    /// stand at index 0.
    pub fn from_f64(dtype: DType, values: Vec<f64>) -> HostData {
        match dtype {
            DType::F64 => HostData::F64(values),
            DType::F32 => HostData::F32(values.iter().map(|x| *x as f32).collect()),
            DType::BF16 => HostData::BF16(values.iter().map(|x| bf16::from_f64(*x)).collect()),
            DType::I32 => HostData::I32(values.iter().map(|x| *x as i32).collect()),
            DType::U8 => HostData::U8(values.iter().map(|x| *x as u8).collect()),
            DType::Bool => HostData::Bool(values.iter().map(|x| u8::from(*x != 0.0)).collect()),
            DType::PairF32 => {
                HostData::PairF32(values.iter().map(|x| PairF32 { value: *x as f32, index: 0 }).collect())
            }
            DType::PairF64 => {
                HostData::PairF64(values.into_iter().map(|value| PairF64 { value, index: 0 }).collect())
            }
        }
    }

    /// Copies a run of elements from data of the same dtype; false where dtypes or bounds do not fit.
    fn copy_run(&mut self, at: usize, from: &HostData, start: usize, len: usize) -> bool {
        macro_rules! copy {
            ($a:expr, $b:expr) => {
                match ($a.get_mut(at..at + len), $b.get(start..start + len)) {
                    (Some(a), Some(b)) => a.copy_from_slice(b),
                    _ => return false,
                }
            };
        }
        match (self, from) {
            (HostData::F64(a), HostData::F64(b)) => copy!(a, b),
            (HostData::F32(a), HostData::F32(b)) => copy!(a, b),
            (HostData::BF16(a), HostData::BF16(b)) => copy!(a, b),
            (HostData::I32(a), HostData::I32(b)) => copy!(a, b),
            (HostData::U8(a), HostData::U8(b)) | (HostData::Bool(a), HostData::Bool(b)) => copy!(a, b),
            (HostData::PairF32(a), HostData::PairF32(b)) => copy!(a, b),
            (HostData::PairF64(a), HostData::PairF64(b)) => copy!(a, b),
            _ => return false,
        }
        true
    }
}

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
        let fits =
            each_run(&self.shape, ranges, |whole, part, len| out.data.copy_run(part, &self.data, whole, len));
        fits.then_some(out)
    }

    /// Writes `part` to `ranges` of this tensor; false (and contents unspecified) if they do not fit each other.
    pub fn paste(&mut self, ranges: &[Range<usize>], part: &HostTensor) -> bool {
        let fits = ranges.iter().map(ExactSizeIterator::len).eq(part.shape.iter().copied());
        let HostTensor { shape, data } = self;
        fits && each_run(shape, ranges, |whole, at, len| data.copy_run(whole, &part.data, at, len))
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
    let strides = crate::kernels::dense_strides(shape);
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
