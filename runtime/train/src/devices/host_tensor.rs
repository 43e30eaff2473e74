//! A tensor of a file, which is bytes, as one of the engine, whose elements have a type, and back.

use half::{bf16, f16};
use meshwright_exec::{HostData, HostTensor};
use meshwright_files::RawTensor;
use meshwright_files::tensor::array;
use meshwright_plan::DType;

/// The engine's tensor of the elements of one of a file; `None` for pairs, which no file holds, and where bytes and shape differ.
pub(crate) fn host_of(raw: RawTensor) -> Option<HostTensor> {
    if RawTensor::bytes_of(raw.dtype, &raw.shape) != Some(raw.data.len()) {
        return None;
    }
    let words = raw.data.chunks_exact(raw.dtype.bytes());
    let data = match raw.dtype {
        DType::F64 => HostData::F64(words.map(|b| f64::from_le_bytes(array(b))).collect()),
        DType::F32 => HostData::F32(words.map(|b| f32::from_le_bytes(array(b))).collect()),
        DType::BF16 => HostData::BF16(words.map(|b| bf16::from_le_bytes(array(b))).collect()),
        DType::F16 => HostData::F16(words.map(|b| f16::from_le_bytes(array(b))).collect()),
        DType::I32 => HostData::I32(words.map(|b| i32::from_le_bytes(array(b))).collect()),
        DType::U8 => HostData::U8(raw.data),
        DType::Bool => HostData::Bool(raw.data),
        DType::PairF32 | DType::PairF64 => return None,
    };
    HostTensor::new(raw.shape, data)
}

/// The bytes of an engine's tensor; `None` for pairs.
pub(crate) fn raw_of(tensor: &HostTensor) -> Option<RawTensor> {
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
            let raw = raw_of(&tensor).unwrap();
            assert_eq!(raw.dtype, tensor.dtype());
            assert_eq!(raw.to_f64().unwrap(), tensor.data.to_f64());
            assert_eq!(host_of(raw.clone()).unwrap(), tensor);
            let odd = RawTensor { shape: vec![3], ..raw };
            assert!(odd.to_f64().is_none() && host_of(odd).is_none());
        }
        assert!(raw_of(&HostTensor::zeros(DType::PairF32, vec![2])).is_none());
    }
}
