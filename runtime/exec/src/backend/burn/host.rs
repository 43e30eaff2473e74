//! Burn's backend of the host, on which tests run what GPUs run.

use super::memory::Pinning;
use super::on_burn::BurnBackend;
use crate::backend::DeviceError;
use crate::backend::native::{bytes_mut, handle, unhandle};
use crate::kernels::KernelError;
use burn_backend::ops::FloatTensorOps;
use burn_backend::{DType as BurnType, FloatDType};
use burn_flex::{Flex, FlexTensor};
use burn_ir::HandleKind;
use meshwright_device::target::Target;
use meshwright_gpu::products::TunedProducts;

/// A stand-in for a library of products, in the memory of the host.
pub(crate) trait HostProducts: Send {
    /// The product of two tensors of one dtype, with elements of `dtype`.
    fn product(&mut self, left: FlexTensor, right: FlexTensor, dtype: BurnType) -> FlexTensor;

    /// What chooses its kernels.
    fn tuned(&mut self) -> &mut TunedProducts;
}

impl Pinning for FlexTensor {
    fn address(&self) -> u64 {
        self.bytes().as_ptr() as u64
    }
}

impl BurnBackend for Flex {
    type Pinned = FlexTensor;
    type State = ();
    /// Of tests: the stand-in for that of GPUs.
    type Library = Option<Box<dyn HostProducts>>;

    fn target(_: &Self::Device, library: &Self::Library) -> Target {
        Target::burn_on_host(library.is_some())
    }

    fn tunes(_: &Self::Device, library: &Self::Library) -> bool {
        library.is_some()
    }

    fn tuned<R>(
        _: &Self::Device,
        library: &mut Self::Library,
        f: impl FnOnce(&mut TunedProducts) -> R,
    ) -> Option<R> {
        library.as_mut().map(|l| f(l.tuned()))
    }

    fn matmul(
        library: &mut Self::Library,
        (left, right): (FlexTensor, FlexTensor),
        dtype: BurnType,
        _: Option<FlexTensor>,
    ) -> Result<FlexTensor, KernelError> {
        if let Some(library) = library {
            return Ok(library.product(left, right, dtype));
        }
        let to: FloatDType = dtype.into();
        Ok(Flex::float_matmul(Flex::float_cast(left, to), Flex::float_cast(right, to)))
    }

    /// Tests alone have transports that take memory of the host for that of a GPU.
    fn is_gpu(_: &Self::Device, _: u32) -> bool {
        cfg!(test)
    }

    fn pin(tensor: HandleKind<Self>) -> Result<Self::Pinned, DeviceError> {
        let tensor = unhandle(tensor).ok_or_else(|| DeviceError("a quantized tensor".into()))?;
        let mut tensor = tensor.to_contiguous();
        // So that it has storage of its own.
        bytes_mut(&mut tensor);
        Ok(tensor)
    }

    fn unpin(pinned: Self::Pinned) -> HandleKind<Self> {
        handle(pinned)
    }
}
