//! Tensors between host and device, on any backend of Burn.

use burn_backend::{Backend, DType as BurnType, Shape, TensorData, read_sync};
use burn_ir::{BackendIr, HandleKind, TensorHandle};
use meshwright_comm::{ValueIndexF32, ValueIndexF64};
use meshwright_device::stored::{stored_as, stored_shape};
use meshwright_exec::backend::DeviceError;
use meshwright_exec::{HostData, HostTensor, opaque};
use meshwright_plan::DType;

/// The tensor of a handle.
pub fn typed<B: BackendIr>(handle: B::Handle, dtype: BurnType, shape: &[usize]) -> HandleKind<B> {
    let handle = TensorHandle { handle, shape: Shape::from(shape.to_vec()) };
    if dtype.is_float() {
        HandleKind::Float(B::float_tensor(handle))
    } else {
        HandleKind::Int(B::int_tensor(handle))
    }
}

/// The elements of a host tensor without pairs, in Burn's form.
pub fn elements(host: HostTensor) -> TensorData {
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

/// A tensor of the device with the elements of a host tensor, which is not empty and has no pairs.
pub fn upload<B: Backend>(host: HostTensor, device: &B::Device) -> HandleKind<B> {
    let whole = matches!(host.data, HostData::I32(_) | HostData::U8(_) | HostData::Bool(_));
    let data = elements(host);
    match whole {
        true => HandleKind::Int(B::int_from_data(data, device)),
        false => HandleKind::Float(B::float_from_data(data, device)),
    }
}

/// A tensor of the device, of at least one element, with anything in it.
pub fn uninitialized<B: Backend>(shape: Shape, dtype: BurnType, device: &B::Device) -> HandleKind<B> {
    match dtype.is_float() {
        true => HandleKind::Float(B::float_empty(shape, device, dtype.into())),
        false => HandleKind::Int(B::int_empty(shape, device, dtype.into())),
    }
}

/// A copy of a device's elements. Waits for the launches that write them.
pub fn download_numbers<B: BackendIr>(
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
pub fn host_tensor(bytes: &[u8], dtype: DType, shape: &[usize]) -> Result<HostTensor, usize> {
    let elements: usize = shape.iter().product();
    if bytes.len() != elements * dtype.bytes() {
        return Err(bytes.len());
    }
    Ok(HostTensor { shape: shape.to_vec(), data: HostData::from_bytes(dtype, bytes) })
}

/// The index that a pair of nothing has: the greatest.
const NONE: i32 = i32::MAX;

/// Handles of a device with the elements of a tensor of the host: none of an empty one, and of pairs their values, as elements of
/// `values`, and their indices.
pub fn upload_parts<B: BackendIr>(
    host: HostTensor,
    values: Option<DType>,
    device: &B::Device,
) -> Vec<B::Handle> {
    if host.data.is_empty() {
        return vec![];
    }
    let part = |data: HostData| {
        let shape = host.shape.clone();
        opaque::<B>(upload::<B>(HostTensor { shape, data }, device))
    };
    let (numbers, indices): (Vec<f64>, Vec<i32>) = match &host.data {
        HostData::PairF32(v) => {
            v.iter().map(|p| (f64::from(p.value), i32::try_from(p.index).unwrap_or(NONE))).unzip()
        }
        HostData::PairF64(v) => v.iter().map(|p| (p.value, i32::try_from(p.index).unwrap_or(NONE))).unzip(),
        _ => return vec![opaque::<B>(upload::<B>(host, device))],
    };
    let values = HostData::from_f64(values.unwrap_or(DType::I32), numbers);
    vec![part(values), part(HostData::I32(indices))]
}

/// A copy of a device's elements in the form of [`upload_parts`]. Waits for the launches that write them.
///
/// # Errors
/// If a part of a pair is missing, or elements have another dtype or number.
pub fn download<B: BackendIr>(
    parts: Vec<B::Handle>,
    dtype: DType,
    values: Option<DType>,
    shape: &[usize],
) -> Result<HostTensor, DeviceError> {
    let mut parts = parts.into_iter();
    let Some(held) = parts.next() else { return Ok(HostTensor::zeros(dtype, shape.to_vec())) };
    if !dtype.is_pair() {
        return download_numbers::<B>(held, dtype, shape);
    }
    let numbers = download_numbers::<B>(held, values.unwrap_or(DType::I32), shape)?.data.to_f64();
    let Some(indices) = parts.next() else { return Err(DeviceError("a pair lacks its index".into())) };
    let HostData::I32(indices) = download_numbers::<B>(indices, DType::I32, shape)?.data else {
        return Err(DeviceError("the indices of pairs are no integers".into()));
    };
    let pairs = numbers.into_iter().zip(indices);
    let data = if dtype == DType::PairF32 {
        let pair = |(value, i): (f64, i32)| ValueIndexF32 {
            value: value as f32,
            index: if i == NONE { u32::MAX } else { i as u32 },
        };
        HostData::PairF32(pairs.map(pair).collect())
    } else {
        let pair = |(value, i): (f64, i32)| ValueIndexF64 {
            value,
            index: if i == NONE { u64::MAX } else { i as u64 },
        };
        HostData::PairF64(pairs.map(pair).collect())
    };
    Ok(HostTensor { shape: shape.to_vec(), data })
}
