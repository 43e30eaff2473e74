//! Tensors between host and device, on any backend.

use super::lower::{extents, is_pair, stored};
use super::program::Kept;
use crate::host::{HostData, HostTensor};
use crate::kernels::{PairF32, PairF64};
use burn_backend::{Backend, TensorData, read_sync};
use burn_ir::{BackendIr, HandleKind};
use half::bf16;
use meshwright_plan::DType;

/// Why a device's elements could not be read.
#[derive(Clone, Debug)]
pub(crate) struct Lost(pub(crate) String);

/// A tensor of the device with the elements of one of the host, which are no pairs and not none.
pub(crate) fn upload<B: Backend>(host: HostTensor, device: &B::Device) -> HandleKind<B> {
    let shape = extents(&host.shape);
    match host.data {
        HostData::F64(v) => HandleKind::Float(B::float_from_data(TensorData::new(v, shape), device)),
        HostData::F32(v) => HandleKind::Float(B::float_from_data(TensorData::new(v, shape), device)),
        HostData::BF16(v) => HandleKind::Float(B::float_from_data(TensorData::new(v, shape), device)),
        HostData::I32(v) => HandleKind::Int(B::int_from_data(TensorData::new(v, shape), device)),
        HostData::U8(v) | HostData::Bool(v) => {
            HandleKind::Int(B::int_from_data(TensorData::new(v, shape), device))
        }
        // Pairs are split before.
        HostData::PairF32(v) => {
            let v: Vec<f32> = v.iter().map(|p| p.value).collect();
            HandleKind::Float(B::float_from_data(TensorData::new(v, shape), device))
        }
        HostData::PairF64(v) => {
            let v: Vec<f64> = v.iter().map(|p| p.value).collect();
            HandleKind::Float(B::float_from_data(TensorData::new(v, shape), device))
        }
    }
}

/// A tensor of the device, of at least one element, with anything in it. Of no pairs.
pub(crate) fn empty<B: Backend>(dtype: DType, shape: &[usize], device: &B::Device) -> HandleKind<B> {
    let (shape, dtype) = (extents(shape).into(), stored(dtype));
    match dtype.is_float() {
        true => HandleKind::Float(B::float_empty(shape, device, dtype.into())),
        false => HandleKind::Int(B::int_empty(shape, device, dtype.into())),
    }
}

/// A copy of a device's elements. Waits for whatever the device still has to do for them.
pub(crate) fn download<B: Backend>(
    tensor: HandleKind<B>,
    dtype: DType,
    shape: &[usize],
) -> Result<HostTensor, Lost> {
    let read = match tensor {
        HandleKind::Float(t) => read_sync(B::float_into_data(t)),
        HandleKind::Int(t) => read_sync(B::int_into_data(t)),
        HandleKind::Bool(t) => read_sync(B::bool_into_data(t)),
        HandleKind::Quantized(_) => return Err(Lost("it is quantized".into())),
    };
    let data: TensorData = read.map_err(|e| Lost(e.to_string()))?;
    let (bytes, found, stored_as) = data.into_parts();
    let elements: usize = shape.iter().product();
    if bytes.len() != elements * dtype.bytes() {
        return Err(Lost(format!("{found:?} of {stored_as:?} came for {shape:?} of {dtype}")));
    }
    macro_rules! vec {
        ($t:ty) => {
            bytemuck::pod_collect_to_vec::<u8, $t>(&bytes)
        };
    }
    let data = match dtype {
        DType::F64 => HostData::F64(vec![f64]),
        DType::F32 => HostData::F32(vec![f32]),
        DType::BF16 => HostData::BF16(vec![bf16]),
        DType::I32 => HostData::I32(vec![i32]),
        DType::U8 => HostData::U8(vec![u8]),
        DType::Bool => HostData::Bool(vec![u8]),
        DType::PairF32 | DType::PairF64 => return Err(Lost("pairs are stored in two parts".into())),
    };
    Ok(HostTensor { shape: shape.to_vec(), data })
}

/// The index that a pair of nothing has: the greatest.
const NONE: i32 = i32::MAX;

impl<B: BackendIr> Kept<B> {
    /// What the host has, on the device. Of pairs the values become elements of `values`.
    pub(crate) fn new(host: HostTensor, values: Option<DType>, device: &B::Device) -> Kept<B> {
        if host.data.is_empty() {
            return Kept { values: None, indices: None };
        }
        let shape = host.shape.clone();
        let (numbers, indices): (Vec<f64>, Vec<i32>) = match &host.data {
            HostData::PairF32(v) => {
                v.iter().map(|p| (f64::from(p.value), i32::try_from(p.index).unwrap_or(NONE))).unzip()
            }
            HostData::PairF64(v) => {
                v.iter().map(|p| (p.value, i32::try_from(p.index).unwrap_or(NONE))).unzip()
            }
            _ => return Kept { values: Some(upload::<B>(host, device)), indices: None },
        };
        let part = |data: HostData| Some(upload::<B>(HostTensor { shape: shape.clone(), data }, device));
        let values = HostData::from_f64(values.unwrap_or(DType::I32), numbers);
        Kept { values: part(values), indices: part(HostData::I32(indices)) }
    }

    /// A copy on the host.
    pub(crate) fn read(self, dtype: DType, values: DType, shape: &[usize]) -> Result<HostTensor, Lost> {
        let Some(held) = self.values else { return Ok(HostTensor::zeros(dtype, shape.to_vec())) };
        if !is_pair(dtype) {
            return download::<B>(held, dtype, shape);
        }
        let numbers = download::<B>(held, values, shape)?.data.to_f64();
        let Some(indices) = self.indices else { return Err(Lost("a pair lacks its index".into())) };
        let HostData::I32(indices) = download::<B>(indices, DType::I32, shape)?.data else {
            return Err(Lost("the indices of pairs are no integers".into()));
        };
        let pairs = numbers.into_iter().zip(indices);
        let data = if dtype == DType::PairF32 {
            let pair = |(value, i): (f64, i32)| PairF32 {
                value: value as f32,
                index: if i == NONE { u32::MAX } else { i as u32 },
            };
            HostData::PairF32(pairs.map(pair).collect())
        } else {
            let pair = |(value, i): (f64, i32)| PairF64 {
                value,
                index: if i == NONE { u64::MAX } else { i as u64 },
            };
            HostData::PairF64(pairs.map(pair).collect())
        };
        Ok(HostTensor { shape: shape.to_vec(), data })
    }
}
