//! Tensors of any type as arguments of kernels.

use super::elements::Kind;
use burn_backend::DType as BurnType;
use burn_backend::cubecl::dtype_to_storage_type;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;
use meshwright_plan::DType;

/// Arguments by kind.
#[derive(Default)]
pub(super) struct Arguments {
    pub(super) words: Vec<TensorArg>,
    pub(super) halves: Vec<TensorArg>,
    pub(super) bytes: Vec<TensorArg>,
}

impl Arguments {
    /// Gives its slot.
    pub(super) fn push(&mut self, dtype: DType, arg: TensorArg) -> usize {
        let list = match Kind::of(dtype) {
            Kind::Word => &mut self.words,
            Kind::Half => &mut self.halves,
            Kind::Byte => &mut self.bytes,
        };
        list.push(arg);
        list.len() - 1
    }
}

/// The type that a kernel has for halves, of which there may be none.
pub(super) fn half_type(half: Option<DType>) -> ElemType {
    dtype_to_storage_type(match half {
        Some(DType::BF16) => BurnType::BF16,
        Some(_) => BurnType::F16,
        None => BurnType::F32,
    })
}

/// How far the next position along each dim of a step is; `dims` says which dim of the tensor each is.
pub(super) fn strides(tensor: &CubeTensor, dims: &[Option<usize>]) -> Vec<u64> {
    let stride = |at: &Option<usize>| at.map_or(0, |i| tensor.meta.strides[i] as u64);
    dims.iter().map(stride).collect()
}

/// The first element of a tensor, in elements from the start of its memory.
pub(super) fn first(tensor: &CubeTensor) -> u64 {
    tensor.handle.offset_start.unwrap_or(0) / tensor.dtype.size() as u64
}
