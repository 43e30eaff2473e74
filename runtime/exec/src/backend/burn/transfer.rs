//! Tensors between host and device, on any backend of Burn.

use crate::backend::DeviceError;
use crate::tensor::{HostData, HostTensor};
use burn_backend::{Backend, DType as BurnType, Shape, TensorData, read_sync};
use burn_ir::{BackendIr, HandleKind, TensorHandle};
use meshwright_device::stored::{stored_as, stored_shape};
use meshwright_plan::DType;

/// The tensor of a handle.
pub(super) fn typed<B: BackendIr>(handle: B::Handle, dtype: BurnType, shape: &[usize]) -> HandleKind<B> {
    let handle = TensorHandle { handle, shape: Shape::from(shape.to_vec()) };
    if dtype.is_float() {
        HandleKind::Float(B::float_tensor(handle))
    } else {
        HandleKind::Int(B::int_tensor(handle))
    }
}

/// The elements of a tensor of the host, which are no pairs, as Burn takes them.
pub(super) fn elements(host: HostTensor) -> TensorData {
    let shape = stored_shape(host.dtype(), &host.shape);
    match host.data {
        HostData::F64(v) => TensorData::new(v, shape),
        HostData::F32(v) => TensorData::new(v, shape),
        HostData::BF16(v) => TensorData::new(v, shape),
        HostData::F16(v) => TensorData::new(v, shape),
        HostData::I32(v) => TensorData::new(v, shape),
        HostData::U8(v) | HostData::Bool(v) => TensorData::new(v, shape),
        // Pairs are split before; of one that is not the values are kept.
        pairs => TensorData::new(pairs.to_f64(), host.shape),
    }
}

/// A tensor of the device with the elements of one of the host, which are no pairs and not none.
pub(super) fn upload<B: Backend>(host: HostTensor, device: &B::Device) -> HandleKind<B> {
    let whole = matches!(host.data, HostData::I32(_) | HostData::U8(_) | HostData::Bool(_));
    let data = elements(host);
    match whole {
        true => HandleKind::Int(B::int_from_data(data, device)),
        false => HandleKind::Float(B::float_from_data(data, device)),
    }
}

/// A tensor of the device, of at least one element, with anything in it.
pub(super) fn uninitialized<B: Backend>(shape: Shape, dtype: BurnType, device: &B::Device) -> HandleKind<B> {
    match dtype.is_float() {
        true => HandleKind::Float(B::float_empty(shape, device, dtype.into())),
        false => HandleKind::Int(B::int_empty(shape, device, dtype.into())),
    }
}

/// A copy of a device's elements. Waits for whatever the device still has to do for them.
pub(super) fn download<B: BackendIr>(
    tensor: B::Handle,
    dtype: DType,
    shape: &[usize],
) -> Result<HostTensor, DeviceError> {
    let tensor = typed::<B>(tensor, stored_as(dtype), &stored_shape(dtype, shape));
    let read = match tensor {
        HandleKind::Float(t) => read_sync(B::float_into_data(t)),
        HandleKind::Int(t) => read_sync(B::int_into_data(t)),
        HandleKind::Bool(t) => read_sync(B::bool_into_data(t)),
        HandleKind::Quantized(_) => return Err(DeviceError("it is quantized".into())),
    };
    let data: TensorData = read.map_err(|e| DeviceError(e.to_string()))?;
    let (bytes, found, stored_as) = data.into_parts();
    let came = |_| DeviceError(format!("{found:?} of {stored_as:?} came for {shape:?} of {dtype}"));
    host_tensor(&bytes, dtype, shape).map_err(came)
}

/// The tensor with these elements; else how many bytes there are.
pub(super) fn host_tensor(bytes: &[u8], dtype: DType, shape: &[usize]) -> Result<HostTensor, usize> {
    let elements: usize = shape.iter().product();
    if bytes.len() != elements * dtype.bytes() {
        return Err(bytes.len());
    }
    Ok(HostTensor { shape: shape.to_vec(), data: HostData::from_bytes(dtype, bytes) })
}
