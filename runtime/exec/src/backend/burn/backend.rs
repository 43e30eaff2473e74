//! What a backend has to tell for its tensors to be sent from its own memory.

use super::transfer::Lost;
use crate::tensor::{bytes_mut, handle, unhandle};
use burn_backend::ops::FloatTensorOps;
use burn_backend::tensor::FloatTensor;
use burn_backend::{DType as BurnType, FloatDType};
use burn_flex::{Flex, FlexTensor};
use burn_ir::{BackendIr, HandleKind};

/// A backend that plain operations run on.
pub(crate) trait Plain: BackendIr + 'static {
    /// A dense tensor whose memory stays where it is.
    type Pinned: Send + 'static;

    /// Whether the device stores elements of that dtype and computes with them.
    fn computes(device: &Self::Device, dtype: BurnType) -> bool {
        Self::supports_dtype(device, dtype)
    }

    /// Whether [`Plain::product`] is to compute also the products whose result has the dtype of the factors, in place of
    /// the backend's own call.
    fn own_products(_: &Self::Device) -> bool {
        false
    }

    /// The matrix product of two tensors of one dtype, with elements of `dtype`, in which it is summed at least.
    fn product(left: FloatTensor<Self>, right: FloatTensor<Self>, dtype: BurnType) -> FloatTensor<Self>;

    /// Whether a transport that works on the memory of that GPU can read and write the device's.
    fn is_gpu(device: &Self::Device, gpu: u32) -> bool;

    /// Brings a tensor into place, in the order of what the device was told before.
    fn pin(tensor: HandleKind<Self>) -> Result<Self::Pinned, Lost>;

    /// Where it is.
    fn address(pinned: &Self::Pinned) -> u64;

    /// The tensor again.
    fn unpin(pinned: Self::Pinned, device: &Self::Device) -> HandleKind<Self>;
}

impl Plain for Flex {
    type Pinned = FlexTensor;

    fn product(left: FlexTensor, right: FlexTensor, dtype: BurnType) -> FlexTensor {
        let to: FloatDType = dtype.into();
        Flex::float_matmul(Flex::float_cast(left, to), Flex::float_cast(right, to))
    }

    /// Tests alone have transports that take memory of the host for that of a GPU.
    fn is_gpu(_: &Self::Device, _: u32) -> bool {
        cfg!(test)
    }

    fn pin(tensor: HandleKind<Self>) -> Result<Self::Pinned, Lost> {
        let mut tensor = unhandle(tensor).ok_or_else(|| Lost("a quantized tensor".into()))?;
        // So that it has storage of its own.
        bytes_mut(&mut tensor);
        Ok(tensor)
    }

    fn address(pinned: &Self::Pinned) -> u64 {
        pinned.bytes().as_ptr() as u64
    }

    fn unpin(pinned: Self::Pinned, _: &Self::Device) -> HandleKind<Self> {
        handle(pinned)
    }
}
