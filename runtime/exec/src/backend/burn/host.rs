//! Burn's backend of the host, on which tests run what GPUs run: with Burn's operations alone, or with plain kernels for all that a GPU has kernels for.

use super::memory::Pinning;
use super::on_burn::BurnBackend;
use super::reference::{self, RefTensor};
use crate::backend::native::{bytes_mut, handle, unhandle};
use crate::backend::{DeviceError, RngState};
use crate::engine::interpreter::opaque;
use crate::kernels::KernelError;
use burn_backend::ops::FloatTensorOps;
use burn_backend::{DType as BurnType, FloatDType};
use burn_flex::{Flex, FlexTensor};
use burn_ir::HandleKind;
use meshwright_device::kernels::Kernel;
use meshwright_device::launch::Launch;
use meshwright_device::target::Target;
use meshwright_gpu::products::TunedProducts;

/// The compute capability of the GPU whose launches the reference runs: an H100's.
const REFERENCE: (u32, u32) = (9, 0);

/// A stand-in for a library of products, in the memory of the host.
pub(crate) trait HostProducts: Send {
    /// The product of two tensors of one dtype, with elements of `dtype`.
    fn product(&mut self, left: FlexTensor, right: FlexTensor, dtype: BurnType) -> FlexTensor;

    /// What chooses its kernels.
    fn tuned(&mut self) -> &mut TunedProducts;
}

/// What a device of the host has beside Burn's operations.
#[derive(Default)]
pub(crate) enum HostLibrary {
    #[default]
    Nothing,
    /// A stand-in for cuBLASLt.
    #[cfg_attr(not(test), expect(dead_code, reason = "tests alone have it"))]
    Products(Box<dyn HostProducts>),
    /// The kernels of the reference: see [`reference`].
    Kernels,
}

impl Pinning for FlexTensor {
    fn address(&self) -> u64 {
        self.bytes().as_ptr() as u64
    }
}

impl BurnBackend for Flex {
    type Pinned = FlexTensor;
    type State = ();
    type Library = HostLibrary;

    fn target(_: &Self::Device, library: &Self::Library) -> Target {
        match library {
            HostLibrary::Nothing => Target::burn_on_host(false),
            HostLibrary::Products(_) => Target::burn_on_host(true),
            HostLibrary::Kernels => {
                Target { boolean: Target::cpu().boolean, ..Target::cuda(REFERENCE, true) }
            }
        }
    }

    fn tunes(_: &Self::Device, library: &Self::Library) -> bool {
        matches!(library, HostLibrary::Products(_))
    }

    fn tuned<R>(
        _: &Self::Device,
        library: &mut Self::Library,
        f: impl FnOnce(&mut TunedProducts) -> R,
    ) -> Option<R> {
        match library {
            HostLibrary::Products(l) => Some(f(l.tuned())),
            HostLibrary::Nothing | HostLibrary::Kernels => None,
        }
    }

    fn matmul(
        library: &mut Self::Library,
        (left, right): (FlexTensor, FlexTensor),
        dtype: BurnType,
        _: Option<FlexTensor>,
    ) -> Result<FlexTensor, KernelError> {
        if let HostLibrary::Products(library) = library {
            return Ok(library.product(left, right, dtype));
        }
        let to: FloatDType = dtype.into();
        Ok(Flex::float_matmul(Flex::float_cast(left, to), Flex::float_cast(right, to)))
    }

    fn run_own(
        _: (&Self::Device, &mut Self::State),
        (kernel, rng): (&Kernel, RngState),
        inputs: Vec<Self::Handle>,
        launch: &Launch,
    ) -> Result<Vec<Self::Handle>, KernelError> {
        let failed = |e: DeviceError| KernelError::Unsupported(e.0);
        let read = inputs.into_iter().zip(&launch.reads).map(|(handle, ir)| RefTensor::read(handle, ir));
        let inputs = read.collect::<Result<Vec<_>, _>>().map_err(failed)?;
        let made = reference::run((kernel, rng), &inputs, launch)?.into_iter().zip(&launch.writes);
        made.map(|(values, ir)| values.write(ir).map(opaque::<Flex>))
            .collect::<Result<_, _>>()
            .map_err(failed)
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
