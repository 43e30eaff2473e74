//! Tensors of the reference: numbers, and positions in them.

use crate::transfer::{typed, upload};
use burn_backend::ops::{BoolTensorOps, FloatTensorOps, IntTensorOps};
use burn_backend::{DType as BurnType, TensorData, read_sync};
use burn_flex::{Flex, FlexDevice};
use burn_ir::{BackendIr, HandleKind, TensorIr};
use meshwright_exec::backend::DeviceError;
use meshwright_exec::{HostData, HostTensor};
use meshwright_plan::DType;

type FlexHandle = <Flex as BackendIr>::Handle;

/// The elements of a tensor, row-major.
#[derive(Clone, Debug)]
pub(in super::super) struct RefTensor {
    pub(super) shape: Vec<usize>,
    pub(super) numbers: Vec<f64>,
}

impl RefTensor {
    pub(super) fn zeros(shape: Vec<usize>) -> RefTensor {
        let elements = shape.iter().product();
        RefTensor { shape, numbers: vec![0.0; elements] }
    }

    /// The elements of a tensor of the device.
    pub(in super::super) fn read(handle: FlexHandle, ir: &TensorIr) -> Result<RefTensor, DeviceError> {
        let shape = ir.shape.to_vec();
        let read = match typed::<Flex>(handle, ir.dtype, &shape) {
            HandleKind::Float(t) => read_sync(Flex::float_into_data(t)),
            HandleKind::Int(t) => read_sync(Flex::int_into_data(t)),
            HandleKind::Bool(t) => read_sync(Flex::bool_into_data(t)),
            HandleKind::Quantized(_) => return Err(DeviceError("it is quantized".into())),
        };
        let data: TensorData = read.map_err(|e| DeviceError(e.to_string()))?;
        let numbers = data.iter::<f64>().collect();
        Ok(RefTensor { shape, numbers })
    }

    /// A tensor of the device with these elements, rounded to its dtype.
    pub(in super::super) fn write(self, ir: &TensorIr) -> Result<HandleKind<Flex>, DeviceError> {
        let dtype = match ir.dtype {
            BurnType::F64 => DType::F64,
            BurnType::F32 => DType::F32,
            BurnType::BF16 => DType::BF16,
            BurnType::F16 => DType::F16,
            BurnType::I32 => DType::I32,
            BurnType::U8 => DType::U8,
            BurnType::U32 => {
                let words: Vec<u32> = self.numbers.iter().map(|x| *x as u32).collect();
                let data = TensorData::new(words, self.shape);
                return Ok(HandleKind::Int(Flex::int_from_data(data, &FlexDevice)));
            }
            other => return Err(DeviceError(format!("a result of {other:?}"))),
        };
        let host = HostTensor { data: HostData::from_f64(dtype, self.numbers), shape: self.shape };
        Ok(upload::<Flex>(host, &FlexDevice))
    }

    /// The place of the element at a position: `axes` are the tensor's own, by the dims of the position.
    pub(super) fn place(&self, axes: &[Option<usize>], position: &[usize]) -> usize {
        let mut at = vec![0; self.shape.len()];
        for (axis, p) in axes.iter().zip(position) {
            if let Some(axis) = axis {
                at[*axis] = *p;
            }
        }
        row_major(&self.shape, &at)
    }

    /// The element at a position.
    pub(super) fn at(&self, axes: &[Option<usize>], position: &[usize]) -> f64 {
        self.numbers[self.place(axes, position)]
    }
}

/// The place of an element of a dense tensor.
pub(super) fn row_major(shape: &[usize], at: &[usize]) -> usize {
    shape.iter().zip(at).fold(0, |place, (size, p)| place * size + p)
}

/// All positions along dims of these sizes, in row-major order.
pub(super) fn positions(sizes: &[usize]) -> impl Iterator<Item = Vec<usize>> + use<> {
    let sizes = sizes.to_vec();
    (0..sizes.iter().product::<usize>()).map(move |number| {
        let (mut rest, mut at) = (number, vec![0; sizes.len()]);
        for (p, size) in at.iter_mut().zip(&sizes).rev() {
            *p = rest % size;
            rest /= size;
        }
        at
    })
}
