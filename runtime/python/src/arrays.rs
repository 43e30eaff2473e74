//! Arrays of NumPy as batches, from which each device takes its own part, and tensors as arrays of NumPy.

use meshwright_exec::{HostData, HostTensor};
use meshwright_plan::DType;
use meshwright_train::GivenBatch;
use numpy::ndarray::Slice;
use numpy::{Element, PyArray1, PyArrayMethods, PyReadonlyArrayDyn, PyUntypedArrayMethods};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::ops::Range;

/// An array of an element type that inputs have.
enum AnyArray<'py> {
    F32(PyReadonlyArrayDyn<'py, f32>),
    F64(PyReadonlyArrayDyn<'py, f64>),
    I32(PyReadonlyArrayDyn<'py, i32>),
    U8(PyReadonlyArrayDyn<'py, u8>),
    Bool(PyReadonlyArrayDyn<'py, bool>),
}

/// The part of an array at these ranges: copied once, whatever its strides are.
fn part<T: Element + Copy>(array: &PyReadonlyArrayDyn<'_, T>, ranges: &[Range<usize>]) -> Option<Vec<T>> {
    let view = array.as_array();
    let within = view.shape().iter().zip(ranges).all(|(n, r)| r.start <= r.end && r.end <= *n);
    if view.ndim() != ranges.len() || !within {
        return None;
    }
    let part = view.slice_each_axis(|axis| Slice::from(ranges[axis.axis.index()].clone()));
    Some(part.as_slice().map_or_else(|| part.iter().copied().collect(), <[T]>::to_vec))
}

impl<'py> AnyArray<'py> {
    fn of(value: &Bound<'py, PyAny>) -> PyResult<AnyArray<'py>> {
        let array = (value.extract().map(AnyArray::F32).ok())
            .or_else(|| value.extract().map(AnyArray::I32).ok())
            .or_else(|| value.extract().map(AnyArray::Bool).ok())
            .or_else(|| value.extract().map(AnyArray::U8).ok())
            .or_else(|| value.extract().map(AnyArray::F64).ok());
        array.ok_or_else(|| {
            PyTypeError::new_err("an array of float32, float64, int32, uint8 or bool is expected")
        })
    }

    fn form(&self) -> (DType, Vec<usize>) {
        match self {
            AnyArray::F32(a) => (DType::F32, a.shape().to_vec()),
            AnyArray::F64(a) => (DType::F64, a.shape().to_vec()),
            AnyArray::I32(a) => (DType::I32, a.shape().to_vec()),
            AnyArray::U8(a) => (DType::U8, a.shape().to_vec()),
            AnyArray::Bool(a) => (DType::Bool, a.shape().to_vec()),
        }
    }

    fn part(&self, ranges: &[Range<usize>]) -> Option<HostTensor> {
        let data = match self {
            AnyArray::F32(a) => HostData::F32(part(a, ranges)?),
            AnyArray::F64(a) => HostData::F64(part(a, ranges)?),
            AnyArray::I32(a) => HostData::I32(part(a, ranges)?),
            AnyArray::U8(a) => HostData::U8(part(a, ranges)?),
            AnyArray::Bool(a) => HostData::Bool(part(a, ranges)?.into_iter().map(u8::from).collect()),
        };
        HostTensor::new(ranges.iter().map(ExactSizeIterator::len).collect(), data)
    }
}

/// A batch of arrays of NumPy.
pub(crate) struct ArrayBatch<'py>(Vec<(String, AnyArray<'py>)>);

impl<'py> ArrayBatch<'py> {
    pub(crate) fn of(batch: &Bound<'py, PyDict>) -> PyResult<ArrayBatch<'py>> {
        let one = |(name, value): (Bound<'py, PyAny>, Bound<'py, PyAny>)| {
            Ok((name.extract::<String>()?, AnyArray::of(&value)?))
        };
        Ok(ArrayBatch(batch.iter().map(one).collect::<PyResult<_>>()?))
    }

    /// Its examples: the extent of the first dim of its first array.
    pub(crate) fn examples(&self) -> usize {
        self.0.iter().find_map(|(_, a)| a.form().1.first().copied()).unwrap_or(1)
    }

    fn find(&self, name: &str) -> Option<&AnyArray<'py>> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, a)| a)
    }
}

impl GivenBatch for ArrayBatch<'_> {
    fn names(&self) -> Vec<&str> {
        self.0.iter().map(|(name, _)| name.as_str()).collect()
    }

    fn form(&self, name: &str) -> Option<(DType, Vec<usize>)> {
        self.find(name).map(AnyArray::form)
    }

    fn part(&self, name: &str, ranges: &[Range<usize>]) -> Option<HostTensor> {
        self.find(name)?.part(ranges)
    }
}

/// A tensor as an array, which takes its memory. Half types are `float32`.
pub(crate) fn array_of<'py>(py: Python<'py>, tensor: HostTensor) -> PyResult<Bound<'py, PyAny>> {
    let HostTensor { shape, data } = tensor;
    fn shaped<'py, T: Element>(py: Python<'py>, v: Vec<T>, shape: &[usize]) -> PyResult<Bound<'py, PyAny>> {
        Ok(PyArray1::from_vec(py, v).reshape(shape.to_vec())?.into_any())
    }
    match data {
        HostData::F64(v) => shaped(py, v, &shape),
        HostData::F32(v) => shaped(py, v, &shape),
        HostData::I32(v) => shaped(py, v, &shape),
        HostData::U8(v) => shaped(py, v, &shape),
        HostData::Bool(v) => shaped(py, v.into_iter().map(|b| b != 0).collect::<Vec<bool>>(), &shape),
        other => shaped(py, other.to_f64().into_iter().map(|x| x as f32).collect::<Vec<f32>>(), &shape),
    }
}

/// The name of the type of NumPy that an input is taken in.
pub(crate) fn numpy_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F64 | DType::PairF64 => "float64",
        DType::F32 | DType::BF16 | DType::F16 | DType::PairF32 => "float32",
        DType::I32 => "int32",
        DType::U8 => "uint8",
        DType::Bool => "bool",
    }
}
