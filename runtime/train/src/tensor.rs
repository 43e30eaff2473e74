//! A whole tensor in host memory.

use meshwright_plan::DType;

/// A whole tensor: dense, row-major in declared order, little-endian.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostTensor {
    /// Element type.
    pub dtype: DType,
    /// Elements along each dim, in declared order.
    pub shape: Vec<usize>,
    /// Its bytes: product of `shape` times [`DType::bytes`].
    pub data: Vec<u8>,
}

impl HostTensor {
    /// A tensor of `f64` values.
    pub fn from_f64(shape: &[usize], values: &[f64]) -> Self {
        let data = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        HostTensor { dtype: DType::F64, shape: shape.to_vec(), data }
    }

    /// A tensor of `f32` values.
    pub fn from_f32(shape: &[usize], values: &[f32]) -> Self {
        let data = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        HostTensor { dtype: DType::F32, shape: shape.to_vec(), data }
    }

    /// Its values as `f64`, exactly; `None` for pairs.
    pub fn to_f64(&self) -> Option<Vec<f64>> {
        let words = self.data.chunks_exact(self.dtype.bytes());
        Some(match self.dtype {
            DType::F64 => words.map(|b| f64::from_le_bytes(array(b))).collect(),
            DType::F32 => words.map(|b| f64::from(f32::from_le_bytes(array(b)))).collect(),
            DType::I32 => words.map(|b| f64::from(i32::from_le_bytes(array(b)))).collect(),
            DType::U8 | DType::Bool => self.data.iter().map(|b| f64::from(*b)).collect(),
            DType::PairF32 | DType::PairF64 => return None,
        })
    }

    /// Bytes that a tensor of this shape takes, `None` if that overflows.
    pub(crate) fn bytes_of(dtype: DType, shape: &[usize]) -> Option<usize> {
        shape.iter().try_fold(dtype.bytes(), |n, d| n.checked_mul(*d))
    }
}

/// The first `N` bytes of `b`, which has them.
pub(crate) fn array<const N: usize>(b: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&b[..N]);
    out
}
