//! What kernels of our own are given, and the memory of what they make.

use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use burn_ir::{TensorIr, TensorStatus};
use burn_std::Shape;

/// Tensors that a kernel reads, of which some end there. Each is held once, so that one that nobody else holds can be told.
pub(crate) struct OwnInputs {
    pub(super) tensors: Vec<CubeTensor>,
    pub(super) ended: Vec<bool>,
}

impl OwnInputs {
    pub(crate) fn new(tensors: Vec<CubeTensor>, irs: &[TensorIr]) -> OwnInputs {
        OwnInputs { tensors, ended: irs.iter().map(|ir| ir.status == TensorStatus::ReadWrite).collect() }
    }
}

/// Memory for a result, on the device of another tensor.
pub(super) fn empty(ir: &TensorIr, beside: &CubeTensor) -> CubeTensor {
    let (client, device) = (beside.client.clone(), beside.device.clone());
    empty_device_contiguous_dtype(client, device, Shape::from(ir.shape.to_vec()), ir.dtype)
}
