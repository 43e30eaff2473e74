//! The backend's tensors as typed slices.
//!
//! Dtypes that the backend does not know are stored as integers of the same size: truth values as bytes, pairs as
//! `u64`s. The backend's own ops meet floats only.

use super::kernels::ValueIndexF64;
use burn_backend::DType as BurnType;
use burn_flex::{FlexTensor, Layout};
use burn_ir::HandleKind;
use burn_std::Bytes;
use half::{bf16, f16};
use meshwright_device::stored::{stored_as, stored_shape};
use meshwright_exec::{HostData, HostTensor, Slice, SliceMut};
use meshwright_plan::DType;

/// The elements of a dense tensor.
pub(crate) fn slice(tensor: &FlexTensor, dtype: DType) -> Slice<'_> {
    Slice::of_bytes(bytes(tensor), dtype)
}

/// The bytes of a dense tensor, which may be a part of what it shares with others.
pub(crate) fn bytes(tensor: &FlexTensor) -> &[u8] {
    let (layout, element) = (tensor.layout(), tensor.dtype().size());
    let first = layout.start_offset() * element;
    &tensor.bytes()[first..first + layout.num_elements() * element]
}

/// Whether a tensor is the only one in its storage, and fills it.
pub(crate) fn owns_storage(tensor: &FlexTensor) -> bool {
    tensor.is_unique() && bytes(tensor).len() == tensor.bytes().len()
}

/// A view of a part of a dense tensor: of its parts of that shape, the one with index `position`.
pub(crate) fn view_of_part(tensor: &FlexTensor, position: usize, shape: Vec<usize>) -> FlexTensor {
    let first = tensor.layout().start_offset() + position * shape.iter().product::<usize>();
    let dense = Layout::contiguous(shape.into());
    let part = Layout::new(dense.shape().clone(), dense.strides().to_vec(), first);
    tensor.clone().with_layout(part)
}

/// The elements of a dense tensor, to be written; copied first where the storage is shared.
pub(crate) fn slice_mut(tensor: &mut FlexTensor, dtype: DType) -> SliceMut<'_> {
    SliceMut::of_bytes(bytes_mut(tensor), dtype)
}

/// The bytes of a dense tensor, to be written; copied first where the storage is shared.
pub fn bytes_mut(tensor: &mut FlexTensor) -> &mut [u8] {
    match tensor.dtype() {
        BurnType::F64 => bytemuck::cast_slice_mut(tensor.storage_mut::<f64>()),
        BurnType::F32 => bytemuck::cast_slice_mut(tensor.storage_mut::<f32>()),
        BurnType::BF16 => bytemuck::cast_slice_mut(tensor.storage_mut::<bf16>()),
        BurnType::F16 => bytemuck::cast_slice_mut(tensor.storage_mut::<f16>()),
        BurnType::I32 => bytemuck::cast_slice_mut(tensor.storage_mut::<i32>()),
        BurnType::U64 => bytemuck::cast_slice_mut(tensor.storage_mut::<u64>()),
        _ => tensor.storage_mut::<u8>(),
    }
}

/// A tensor with the elements of a vector, which is not copied (but for pairs).
pub fn from_host(host: HostTensor) -> FlexTensor {
    let dtype = host.dtype();
    let layout = Layout::contiguous(stored_shape(dtype, &host.shape).into());
    let bytes = match host.data {
        HostData::F64(v) => Bytes::from_elems(v),
        HostData::F32(v) => Bytes::from_elems(v),
        HostData::BF16(v) => Bytes::from_elems(v),
        HostData::F16(v) => Bytes::from_elems(v),
        HostData::I32(v) => Bytes::from_elems(v),
        HostData::U8(v) | HostData::Bool(v) => Bytes::from_elems(v),
        // One by one: a vector of pairs need not be aligned as `u64`s are, and where it is empty it is not.
        HostData::PairF32(v) => Bytes::from_elems::<u64>(v.iter().map(|p| bytemuck::cast(*p)).collect()),
        HostData::PairF64(v) => Bytes::from_elems::<u64>(
            v.iter().flat_map(|p| bytemuck::cast::<ValueIndexF64, [u64; 2]>(*p)).collect(),
        ),
    };
    FlexTensor::new(bytes, layout, stored_as(dtype))
}

/// A copy of a dense tensor's elements.
pub fn to_host(tensor: &FlexTensor, dtype: DType, shape: &[usize]) -> HostTensor {
    let data = slice(tensor, dtype).to_host();
    HostTensor { shape: shape.to_vec(), data }
}

/// A tensor of zeros.
pub(crate) fn zeros(dtype: DType, shape: &[usize]) -> FlexTensor {
    from_host(HostTensor::zeros(dtype, shape.to_vec()))
}

/// The interpreter's handle of a tensor.
pub fn handle(tensor: FlexTensor) -> HandleKind<burn_flex::Flex> {
    match tensor.dtype() {
        BurnType::F64 | BurnType::F32 | BurnType::BF16 | BurnType::F16 => HandleKind::Float(tensor),
        _ => HandleKind::Int(tensor),
    }
}

/// The tensor of a handle; none for quantized ones, which no step makes.
pub fn unhandle(handle: HandleKind<burn_flex::Flex>) -> Option<FlexTensor> {
    match handle {
        HandleKind::Float(t) | HandleKind::Int(t) | HandleKind::Bool(t) => Some(t),
        HandleKind::Quantized(_) => None,
    }
}
