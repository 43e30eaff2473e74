//! The backend's tensors as typed slices, and a pool of their storage.
//!
//! Dtypes that the backend does not know are stored as integers of the same size: truth values as bytes, pairs as
//! `u64`s. The backend's own ops meet floats only.

use crate::host::{HostData, HostTensor};
use crate::kernels::{PairF64, Slice, SliceMut};
use burn_backend::DType as BurnType;
use burn_flex::{FlexTensor, Layout};
use burn_ir::HandleKind;
use burn_std::{Bytes, Shape};
use half::bf16;
use meshwright_plan::DType;
use std::collections::BTreeMap;

/// The backend's dtype in which elements are stored.
pub(crate) fn stored_as(dtype: DType) -> BurnType {
    match dtype {
        DType::F64 => BurnType::F64,
        DType::F32 => BurnType::F32,
        DType::BF16 => BurnType::BF16,
        DType::I32 => BurnType::I32,
        DType::U8 | DType::Bool => BurnType::U8,
        DType::PairF32 | DType::PairF64 => BurnType::U64,
    }
}

/// The shape in which a tensor is stored: a pair of 16 bytes takes two elements.
pub(crate) fn stored_shape(dtype: DType, shape: &[usize]) -> Shape {
    let mut dims = shape.to_vec();
    if dtype == DType::PairF64 {
        dims.push(2);
    }
    Shape::from(dims)
}

/// The elements of a dense tensor.
pub(crate) fn slice(tensor: &FlexTensor, dtype: DType) -> Slice<'_> {
    match dtype {
        DType::F64 => Slice::F64(tensor.storage()),
        DType::F32 => Slice::F32(tensor.storage()),
        DType::BF16 => Slice::BF16(tensor.storage()),
        DType::I32 => Slice::I32(tensor.storage()),
        DType::U8 => Slice::U8(tensor.storage()),
        DType::Bool => Slice::Bool(tensor.storage()),
        DType::PairF32 => Slice::PairF32(bytemuck::cast_slice(tensor.storage::<u64>())),
        DType::PairF64 => Slice::PairF64(bytemuck::cast_slice(tensor.storage::<u64>())),
    }
}

/// The elements of a dense tensor, to be written; copied first where the storage is shared.
pub(crate) fn slice_mut(tensor: &mut FlexTensor, dtype: DType) -> SliceMut<'_> {
    match dtype {
        DType::F64 => SliceMut::F64(tensor.storage_mut()),
        DType::F32 => SliceMut::F32(tensor.storage_mut()),
        DType::BF16 => SliceMut::BF16(tensor.storage_mut()),
        DType::I32 => SliceMut::I32(tensor.storage_mut()),
        DType::U8 => SliceMut::U8(tensor.storage_mut()),
        DType::Bool => SliceMut::Bool(tensor.storage_mut()),
        DType::PairF32 => SliceMut::PairF32(bytemuck::cast_slice_mut(tensor.storage_mut::<u64>())),
        DType::PairF64 => SliceMut::PairF64(bytemuck::cast_slice_mut(tensor.storage_mut::<u64>())),
    }
}

/// The bytes of a dense tensor, to be written; copied first where the storage is shared.
pub(crate) fn bytes_mut(tensor: &mut FlexTensor) -> &mut [u8] {
    match tensor.dtype() {
        BurnType::F64 => bytemuck::cast_slice_mut(tensor.storage_mut::<f64>()),
        BurnType::F32 => bytemuck::cast_slice_mut(tensor.storage_mut::<f32>()),
        BurnType::BF16 => bytemuck::cast_slice_mut(tensor.storage_mut::<bf16>()),
        BurnType::I32 => bytemuck::cast_slice_mut(tensor.storage_mut::<i32>()),
        BurnType::U64 => bytemuck::cast_slice_mut(tensor.storage_mut::<u64>()),
        _ => tensor.storage_mut::<u8>(),
    }
}

/// A tensor with the elements of a vector, which is not copied (but for pairs).
pub(crate) fn from_host(host: HostTensor) -> FlexTensor {
    let dtype = host.dtype();
    let layout = Layout::contiguous(stored_shape(dtype, &host.shape));
    let bytes = match host.data {
        HostData::F64(v) => Bytes::from_elems(v),
        HostData::F32(v) => Bytes::from_elems(v),
        HostData::BF16(v) => Bytes::from_elems(v),
        HostData::I32(v) => Bytes::from_elems(v),
        HostData::U8(v) | HostData::Bool(v) => Bytes::from_elems(v),
        // One by one: a vector of pairs need not be aligned as `u64`s are, and where it is empty it is not.
        HostData::PairF32(v) => Bytes::from_elems::<u64>(v.iter().map(|p| bytemuck::cast(*p)).collect()),
        HostData::PairF64(v) => {
            Bytes::from_elems::<u64>(v.iter().flat_map(|p| bytemuck::cast::<PairF64, [u64; 2]>(*p)).collect())
        }
    };
    FlexTensor::new(bytes, layout, stored_as(dtype))
}

/// A copy of a dense tensor's elements.
pub(crate) fn to_host(tensor: &FlexTensor, dtype: DType, shape: &[usize]) -> HostTensor {
    let data = match slice(tensor, dtype) {
        Slice::F64(s) => HostData::F64(s.to_vec()),
        Slice::F32(s) => HostData::F32(s.to_vec()),
        Slice::BF16(s) => HostData::BF16(s.to_vec()),
        Slice::I32(s) => HostData::I32(s.to_vec()),
        Slice::U8(s) => HostData::U8(s.to_vec()),
        Slice::Bool(s) => HostData::Bool(s.to_vec()),
        Slice::PairF32(s) => HostData::PairF32(s.to_vec()),
        Slice::PairF64(s) => HostData::PairF64(s.to_vec()),
    };
    HostTensor { shape: shape.to_vec(), data }
}

/// A tensor of zeros.
pub(crate) fn zeros(dtype: DType, shape: &[usize]) -> FlexTensor {
    from_host(HostTensor::zeros(dtype, shape.to_vec()))
}

/// The interpreter's handle of a tensor.
pub(crate) fn handle(tensor: FlexTensor) -> HandleKind<burn_flex::Flex> {
    match tensor.dtype() {
        BurnType::F64 | BurnType::F32 | BurnType::BF16 => HandleKind::Float(tensor),
        _ => HandleKind::Int(tensor),
    }
}

/// The tensor of a handle; none for quantized ones, which no step makes.
pub(crate) fn unhandle(handle: HandleKind<burn_flex::Flex>) -> Option<FlexTensor> {
    match handle {
        HandleKind::Float(t) | HandleKind::Int(t) | HandleKind::Bool(t) => Some(t),
        HandleKind::Quantized(_) => None,
    }
}

/// Storage for results, kept from step to step: memory that is neither asked from the system nor cleared again.
///
/// It takes back at most as many tensors of a size as it gave out, so that storage from elsewhere (inputs, results of the
/// backend's own ops) does not pile up in it.
#[derive(Default)]
pub(crate) struct Pool {
    shelves: BTreeMap<(DType, usize), Shelf>,
}

#[derive(Default)]
struct Shelf {
    free: Vec<FlexTensor>,
    out: usize,
}

fn storage_class(dtype: DType) -> DType {
    if dtype == DType::Bool { DType::U8 } else { dtype }
}

impl Pool {
    /// A tensor of unspecified contents that shares its storage with nobody.
    pub(crate) fn take(&mut self, dtype: DType, shape: &[usize]) -> FlexTensor {
        let key = (storage_class(dtype), shape.iter().product());
        let shelf = self.shelves.entry(key).or_default();
        shelf.out += 1;
        match shelf.free.pop() {
            Some(tensor) => tensor.with_layout(Layout::contiguous(stored_shape(dtype, shape))),
            None => zeros(dtype, shape),
        }
    }

    /// Takes back storage that is not needed any more, unless others share it.
    pub(crate) fn give(&mut self, tensor: FlexTensor, dtype: DType, elements: usize) {
        let Some(shelf) = self.shelves.get_mut(&(storage_class(dtype), elements)) else { return };
        let fits = tensor.dtype() == stored_as(dtype) && tensor.bytes().len() == elements * dtype.bytes();
        if shelf.out > 0 && fits && tensor.is_unique() {
            shelf.out -= 1;
            shelf.free.push(tensor);
        }
    }
}
