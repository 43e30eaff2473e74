//! A whole tensor as files have it: bytes. The engine's [`HostTensor`] is the same with typed elements.

use half::{bf16, f16};
use meshwright_exec::{HostData, HostTensor};
use meshwright_plan::DType;

/// A whole tensor: dense, row-major in declared order, little-endian.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawTensor {
    /// Element type.
    pub dtype: DType,
    /// Elements along each dim, in declared order.
    pub shape: Vec<usize>,
    /// Its bytes: product of `shape` times [`DType::bytes`].
    pub data: Vec<u8>,
}

impl RawTensor {
    /// The engine's tensor of the same elements; `None` for pairs, which no file holds, and where bytes and shape differ.
    pub fn into_host(self) -> Option<HostTensor> {
        if Self::bytes_of(self.dtype, &self.shape) != Some(self.data.len()) {
            return None;
        }
        let words = self.data.chunks_exact(self.dtype.bytes());
        let data = match self.dtype {
            DType::F64 => HostData::F64(words.map(|b| f64::from_le_bytes(array(b))).collect()),
            DType::F32 => HostData::F32(words.map(|b| f32::from_le_bytes(array(b))).collect()),
            DType::BF16 => HostData::BF16(words.map(|b| bf16::from_le_bytes(array(b))).collect()),
            DType::F16 => HostData::F16(words.map(|b| f16::from_le_bytes(array(b))).collect()),
            DType::I32 => HostData::I32(words.map(|b| i32::from_le_bytes(array(b))).collect()),
            DType::U8 => HostData::U8(self.data),
            DType::Bool => HostData::Bool(self.data),
            DType::PairF32 | DType::PairF64 => return None,
        };
        HostTensor::new(self.shape, data)
    }

    /// The bytes of an engine's tensor; `None` for pairs.
    pub fn from_host(tensor: &HostTensor) -> Option<RawTensor> {
        let data = match &tensor.data {
            HostData::F64(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
            HostData::F32(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
            HostData::BF16(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
            HostData::F16(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
            HostData::I32(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
            HostData::U8(v) | HostData::Bool(v) => v.clone(),
            HostData::PairF32(_) | HostData::PairF64(_) => return None,
        };
        Some(RawTensor { dtype: tensor.dtype(), shape: tensor.shape.clone(), data })
    }

    /// Whether all its elements are finite.
    pub(crate) fn is_finite(&self) -> bool {
        let words = self.data.chunks_exact(self.dtype.bytes());
        match self.dtype {
            DType::F64 => words.into_iter().all(|b| f64::from_le_bytes(array(b)).is_finite()),
            DType::F32 => words.into_iter().all(|b| f32::from_le_bytes(array(b)).is_finite()),
            DType::BF16 => words.into_iter().all(|b| bf16::from_le_bytes(array(b)).is_finite()),
            DType::F16 => words.into_iter().all(|b| f16::from_le_bytes(array(b)).is_finite()),
            DType::I32 | DType::U8 | DType::Bool | DType::PairF32 | DType::PairF64 => true,
        }
    }

    /// Bytes that a tensor of this shape takes, `None` if that overflows.
    pub(crate) fn bytes_of(dtype: DType, shape: &[usize]) -> Option<usize> {
        shape.iter().try_fold(dtype.bytes(), |n, d| n.checked_mul(*d))
    }
}

/// The elements of a row-major tensor of that shape with its dims in another order: dim `i` is dim `order[i]` of before.
pub(crate) fn permuted(data: &[u8], width: usize, shape: &[usize], order: &[usize]) -> Vec<u8> {
    let mut strides = vec![width; shape.len()];
    for d in (1..strides.len()).rev() {
        strides[d - 1] = strides[d] * shape[d];
    }
    let sizes: Vec<usize> = order.iter().map(|d| shape[*d]).collect();
    let strides: Vec<usize> = order.iter().map(|d| strides[*d]).collect();
    let mut out = Vec::with_capacity(data.len());
    let mut index = vec![0; sizes.len()];
    for _ in 0..data.len() / width {
        let at: usize = index.iter().zip(&strides).map(|(i, s)| i * s).sum();
        out.extend_from_slice(&data[at..at + width]);
        for (i, n) in index.iter_mut().zip(&sizes).rev() {
            *i += 1;
            if *i < *n {
                break;
            }
            *i = 0;
        }
    }
    out
}

/// The first `N` bytes of `b`, which has them.
pub(crate) fn array<const N: usize>(b: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&b[..N]);
    out
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn every_dtype_of_files_goes_to_the_engine_and_back() {
        let all = [
            HostData::F64(vec![1.5, -0.0, f64::MIN_POSITIVE, 1e300]),
            HostData::F32(vec![1.5, -0.0, f32::MIN_POSITIVE, 1e30]),
            HostData::BF16([1.5, -0.0, 1e-38, 1e38].map(bf16::from_f32).to_vec()),
            HostData::F16([1.5, -0.0, 1e-7, 65504.0].map(f16::from_f32).to_vec()),
            HostData::I32(vec![1, -1, i32::MIN, i32::MAX]),
            HostData::U8(vec![0, 1, 2, 255]),
            HostData::Bool(vec![0, 1, 1, 0]),
        ];
        for data in all {
            let tensor = HostTensor::new(vec![2, 2], data).unwrap();
            let raw = RawTensor::from_host(&tensor).unwrap();
            assert_eq!(raw.dtype, tensor.dtype());
            assert_eq!(raw.clone().into_host().unwrap(), tensor);
            assert!(RawTensor { shape: vec![3], ..raw }.into_host().is_none());
        }
        assert!(RawTensor::from_host(&HostTensor::zeros(DType::PairF32, vec![2])).is_none());
    }
}
