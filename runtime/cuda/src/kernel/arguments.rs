//! Tensors of any type as arguments of kernels.

use super::elements::Kind;
use burn_backend::DType as BurnType;
use burn_backend::cubecl::dtype_to_storage_type;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;
use meshwright_device::kernels::merged_dims::JointWalk;
use meshwright_exec::watch;
use meshwright_plan::DType;

/// Arguments by kind.
#[derive(Default)]
pub(crate) struct Arguments {
    pub(crate) words: Vec<TensorArg>,
    pub(crate) halves: Vec<TensorArg>,
    pub(crate) bytes: Vec<TensorArg>,
}

impl Arguments {
    /// Gives its slot.
    pub(crate) fn push(&mut self, dtype: DType, arg: TensorArg) -> usize {
        let list = match Kind::of(dtype) {
            Kind::Word => &mut self.words,
            Kind::Half => &mut self.halves,
            Kind::Byte => &mut self.bytes,
        };
        list.push(arg);
        list.len() - 1
    }
}

/// The half type of a kernel; any if it has none.
pub(crate) fn half_type(half: Option<DType>) -> ElemType {
    dtype_to_storage_type(match half {
        Some(DType::BF16) => BurnType::BF16,
        Some(_) => BurnType::F16,
        None => BurnType::F32,
    })
}

/// A tensor as a kernel walks it.
pub(crate) fn walked(walk: &JointWalk, tensor: &CubeTensor, which: usize) -> TensorArg {
    let strides: Vec<usize> = walk.strides[which].iter().map(|n| *n as usize).collect();
    let extent = |(size, stride): (&usize, &usize)| if *stride == 0 { 1 } else { *size };
    let shape: Vec<usize> = walk.sizes.iter().zip(&strides).map(extent).collect();
    #[expect(unsafe_code, reason = "the strides are those of the tensor, of dims that are joined")]
    // SAFETY: no position along the dims of the kernel is beyond the tensor's, or the gap after a row where vectors reach into
    // it.
    unsafe {
        TensorArg::from_raw_parts(tensor.handle.clone(), strides.into(), shape.into())
    }
}

/// Strides of a step's dims; `dims` has the dim of the tensor for each.
pub(crate) fn strides(tensor: &CubeTensor, dims: &[Option<usize>]) -> Vec<u64> {
    let stride = |at: &Option<usize>| at.map_or(0, |i| tensor.meta.strides[i] as u64);
    dims.iter().map(stride).collect()
}

/// Width of indices into a tensor. CubeCL counts the whole allocation, which may be an arena.
pub(crate) fn address_type(tensor: &CubeTensor) -> AddressType {
    AddressType::from_len(tensor.handle.size_in_used() as usize / tensor.dtype.size())
}

/// The first element of a tensor, in elements from the start of its memory.
pub(crate) fn first(tensor: &CubeTensor) -> u64 {
    tensor.handle.offset_start.unwrap_or(0) / tensor.dtype.size() as u64
}

/// Reports the tensors that a launch reads and writes to the active watch.
pub(crate) fn moves<'a>(kernel: &'static str, tensors: impl IntoIterator<Item = &'a CubeTensor>) {
    watch::moved(kernel, || tensors.into_iter().map(bytes).sum());
}

/// Bytes of a tensor's elements; broadcast ones count once.
pub(crate) fn bytes(tensor: &CubeTensor) -> u64 {
    let dims = tensor.meta.shape.iter().zip(tensor.meta.strides.iter());
    let elements: usize = dims.filter(|(_, stride)| **stride != 0).map(|(size, _)| *size).product();
    (elements * tensor.dtype.size()) as u64
}

/// Vector width along the last dim, for tensors by their index in the walk: as wide as results can be written at once,
/// of at most 16 bytes of halves, or of words without halves: next to halves a vector of words is read in two. `gaps`
/// says whether rows of results may have gaps: rows of a part of a tensor are followed by the rest of it.
pub(crate) fn vector_width(
    walk: &JointWalk,
    inputs: &[(usize, &CubeTensor)],
    outputs: &[(usize, &CubeTensor)],
    gaps: bool,
) -> usize {
    let has_halves = inputs.iter().chain(outputs).any(|tensor| tensor.1.dtype.size() == 2);
    let most = if has_halves { 32 } else { 16 };
    let fits = |width: &usize| {
        let small = |tensor: &CubeTensor| width * tensor.dtype.size() <= most;
        let vectors = |(i, tensor): &(usize, &CubeTensor)| walk.is_vectors(*i, first(tensor), *width);
        let reaches = |(i, tensor): &(usize, &CubeTensor)| walk.has_gaps(*i, first(tensor), *width);
        // A single row ends in a vector within the alignment of allocations.
        let alone = |input: &(usize, &CubeTensor)| walk.is_one_row(input.0) && vectors(input);
        let all = || outputs.iter().all(reaches) && inputs.iter().all(|i| reaches(i) || alone(i));
        (walk.inner().is_multiple_of(*width) || gaps && all())
            && outputs.iter().all(|out| small(out.1) && vectors(out))
            && inputs.iter().all(|input| small(input.1) || !vectors(input))
    };
    [8, 4, 2].into_iter().find(fits).unwrap_or(1)
}
