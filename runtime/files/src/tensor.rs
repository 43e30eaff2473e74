//! A whole tensor as files have it: bytes.

use half::{bf16, f16};
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
    /// Its elements as numbers; `None` for pairs, which no file holds, and where bytes and shape differ.
    pub fn to_f64(&self) -> Option<Vec<f64>> {
        if Self::bytes_of(self.dtype, &self.shape) != Some(self.data.len()) {
            return None;
        }
        let words = self.data.chunks_exact(self.dtype.bytes());
        Some(match self.dtype {
            DType::F64 => words.map(|b| f64::from_le_bytes(array(b))).collect(),
            DType::F32 => words.map(|b| f32::from_le_bytes(array(b)).into()).collect(),
            DType::BF16 => words.map(|b| bf16::from_le_bytes(array(b)).into()).collect(),
            DType::F16 => words.map(|b| f16::from_le_bytes(array(b)).into()).collect(),
            DType::I32 => words.map(|b| i32::from_le_bytes(array(b)).into()).collect(),
            DType::U8 | DType::Bool => self.data.iter().map(|b| f64::from(*b)).collect(),
            DType::PairF32 | DType::PairF64 => return None,
        })
    }

    /// Whether all its elements are finite.
    pub fn is_finite(&self) -> bool {
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
    pub fn bytes_of(dtype: DType, shape: &[usize]) -> Option<usize> {
        shape.iter().try_fold(dtype.bytes(), |n, d| n.checked_mul(*d))
    }
}

/// The elements of a row-major tensor of that shape with its dims in another order: dim `i` is dim `order[i]` of before.
pub fn permuted(data: &[u8], width: usize, shape: &[usize], order: &[usize]) -> Vec<u8> {
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
pub fn array<const N: usize>(b: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&b[..N]);
    out
}
