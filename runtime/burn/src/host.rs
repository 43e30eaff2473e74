//! Burn's backend of the host, on which tests run the device plans of GPUs: with Burn's operations alone, or with plain
//! kernels instead of all GPU kernels.

use crate::dtypes;
use crate::iteration::{slice_at, update_at};
use crate::memory::{BurnMemory, Pinning, uploaded};
use crate::reference::{self, RefTensor};
use crate::transfer::{download, typed, uninitialized, upload, upload_parts};
use burn_backend::Backend as _;
use burn_backend::ops::FloatTensorOps;
use burn_backend::{DType as BurnType, FloatDType};
use burn_flex::{Flex, FlexDevice, FlexTensor};
use burn_ir::{BackendIr, HandleKind};
use meshwright_cpu::kernels::DrawBlock;
use meshwright_cpu::{HostMemory, Pool, bytes_mut, handle, unhandle};
use meshwright_device::collective::calls::CallPiece;
use meshwright_device::kernels::Kernel;
use meshwright_device::kernels::matmul::FactorDigits;
use meshwright_device::launch::Launch;
use meshwright_device::lowering::local::DeviceContext;
use meshwright_device::stored::stored_as;
use meshwright_device::target::Target;
use meshwright_device::{KernelError, LoweringError};
use meshwright_exec::backend::{
    Backend, CallBuffers, DeviceError, Download, Handle, Handles, RngState, SentAndReceived, Upload,
};
use meshwright_exec::{ExecError, HostTensor, opaque};
use meshwright_gpu::matmuls::TunedMatmuls;
use meshwright_plan::{DType, Plan};

/// The compute capability of the GPU whose launches the reference runs: an H100's.
const REFERENCE: (u32, u32) = (9, 0);

/// A stand-in for a library of products, in the memory of the host.
pub(crate) trait HostMatmuls: Send {
    /// The product of two tensors of one dtype, with elements of `dtype`.
    fn product(&mut self, left: FlexTensor, right: FlexTensor, dtype: BurnType) -> FlexTensor;

    /// Its choice of kernels.
    fn tuned(&mut self) -> &mut TunedMatmuls;
}

/// Parts of a device of the host besides Burn's operations.
#[derive(Default)]
pub(crate) enum HostLibrary {
    #[default]
    Nothing,
    /// A stand-in for cuBLASLt.
    #[cfg_attr(not(test), expect(dead_code, reason = "tests alone have it"))]
    Matmuls(Box<dyn HostMatmuls>),
    /// The kernels of the reference: see [`reference`].
    Kernels {
        /// Whether the GPU multiplies FP8.
        fp8: bool,
    },
}

/// A tensor with storage of its own, which stays where it is.
pub(crate) struct Pinned(FlexTensor);

impl Pinning for Pinned {
    fn address(&self) -> u64 {
        self.0.bytes().as_ptr() as u64
    }
}

fn pinned(tensor: HandleKind<Flex>) -> Result<Pinned, DeviceError> {
    let tensor = unhandle(tensor).ok_or_else(|| DeviceError("a quantized tensor".into()))?;
    let mut tensor = tensor.to_contiguous();
    // So that it has storage of its own.
    bytes_mut(&mut tensor);
    Ok(Pinned(tensor))
}

/// Tests alone have transports that take memory of the host for that of a GPU.
fn pins(gpu: Option<u32>) -> Option<u32> {
    gpu.filter(|_| cfg!(test))
}

/// A thread of the host that runs operations of Burn.
pub(crate) struct Host {
    products: HostLibrary,
    /// Storage for a collective's results.
    pool: Pool,
}

impl Host {
    pub(crate) fn new(products: HostLibrary) -> Host {
        Host { products, pool: Pool::default() }
    }

    fn matmul(&mut self, left: FlexTensor, right: FlexTensor, dtype: BurnType) -> FlexTensor {
        if let HostLibrary::Matmuls(library) = &mut self.products {
            return library.product(left, right, dtype);
        }
        let to: FloatDType = dtype.into();
        Flex::float_matmul(Flex::float_cast(left, to), Flex::float_cast(right, to))
    }

    /// The results of a kernel of the reference.
    fn launched(
        (kernel, rng): (&Kernel, RngState),
        inputs: Vec<<Flex as BackendIr>::Handle>,
        launch: &Launch,
    ) -> Result<Vec<<Flex as BackendIr>::Handle>, KernelError> {
        let failed = |e: DeviceError| KernelError::Unsupported(e.0);
        let read = inputs.into_iter().zip(&launch.reads).map(|(handle, ir)| RefTensor::read(handle, ir));
        let inputs = read.collect::<Result<Vec<_>, _>>().map_err(failed)?;
        let made = reference::run((kernel, rng), &inputs, launch)?.into_iter().zip(&launch.writes);
        made.map(|(values, ir)| values.write(ir).map(opaque::<Flex>))
            .collect::<Result<_, _>>()
            .map_err(failed)
    }
}

impl Backend for Host {
    type Burn = Flex;
    type Kernel = Kernel;
    type CallMemory = BurnMemory<Pinned>;

    fn device(&self) -> &FlexDevice {
        &FlexDevice
    }

    fn tunes(&self) -> bool {
        matches!(self.products, HostLibrary::Matmuls(_))
    }

    fn tuned<R>(&mut self, f: impl FnOnce(&mut TunedMatmuls) -> R) -> Result<Option<R>, DeviceError> {
        Ok(match &mut self.products {
            HostLibrary::Matmuls(l) => Some(f(l.tuned())),
            HostLibrary::Nothing | HostLibrary::Kernels { .. } => None,
        })
    }

    fn product(
        &mut self,
        left: FlexTensor,
        right: FlexTensor,
        _: FactorDigits,
    ) -> Result<FlexTensor, KernelError> {
        let dtype = left.dtype();
        Ok(self.matmul(left, right, dtype))
    }

    fn target(&self) -> Target {
        match self.products {
            HostLibrary::Nothing => Target::burn_on_host(false),
            HostLibrary::Matmuls(_) => Target::burn_on_host(true),
            HostLibrary::Kernels { fp8 } => {
                Target { boolean: Target::cpu().boolean, fp8, ..Target::cuda(REFERENCE, true) }
            }
        }
    }

    fn check(&self, plan: &Plan, rank: usize) -> Result<(), ExecError> {
        dtypes::check(plan, rank, |dtype| Flex::supports_dtype(&FlexDevice, dtype))
    }

    fn prepare(&self, _: &DeviceContext<'_>, kernel: &Kernel) -> Result<Kernel, LoweringError> {
        Ok(kernel.clone())
    }

    fn run_kernel(
        &mut self,
        kernel: &Kernel,
        launch: &Launch,
        handles: &mut Handles<Self>,
        rng: RngState,
    ) -> Result<(), KernelError> {
        let made = match (kernel, &launch.reads[..]) {
            (Kernel::Matmul(_), [left, right]) => {
                let [left, right] = [left, right].map(|t| handles.get_float_tensor::<Flex>(t));
                HandleKind::Float(self.matmul(left, right, launch.writes[0].dtype))
            }
            (Kernel::Random(block), _) => {
                let mut host = HostTensor::zeros(block.dtype(), block.shape());
                block.run(rng.seed, rng.moment(), rng.first_example, host.data.view_mut())?;
                upload::<Flex>(host, &FlexDevice)
            }
            (Kernel::Blank, []) => {
                let ir = &launch.writes[0];
                uninitialized::<Flex>(ir.shape.clone(), ir.dtype, &FlexDevice)
            }
            (Kernel::IterationSlice(dim), [all]) => {
                slice_at(handles, all, &launch.writes[0], rng.iteration.position(*dim)?)
            }
            (Kernel::IterationUpdate(dim), [all, value]) => {
                update_at(handles, all, value, rng.iteration.position(*dim)?)
            }
            (kernel, inputs) => {
                let inputs = inputs.iter().map(|t| handles.get_handle(&t.id, &t.status)).collect();
                let made = Host::launched((kernel, rng), inputs, launch)?;
                let outs = launch.writes.iter().zip(made);
                outs.for_each(|(out, made)| handles.register_handle(out.id, made));
                return Ok(());
            }
        };
        handles.register_handle(launch.writes[0].id, opaque::<Flex>(made));
        Ok(())
    }

    fn upload(&mut self, host: HostTensor, lifetime: Upload) -> Vec<Handle<Self>> {
        upload_parts::<Flex>(host, lifetime.values(), &FlexDevice)
    }

    fn download(
        &self,
        tensors: Vec<Handle<Self>>,
        dtype: DType,
        values: Option<DType>,
        shape: &[usize],
    ) -> Download {
        let done = download::<Flex>(tensors, dtype, values, shape);
        Box::new(move || done)
    }

    fn call_memory(
        &mut self,
        tensor: Option<Handle<Self>>,
        (sent, received): SentAndReceived<'_>,
        _: bool,
        gpu: Option<u32>,
    ) -> Result<CallBuffers<BurnMemory<Pinned>>, DeviceError> {
        let Some(gpu) = pins(gpu) else {
            let send = BurnMemory::of_host::<Flex>(tensor, sent)?;
            let receive = HostMemory(self.pool.take(received.dtype, &received.shape)?);
            return Ok((Some(send), BurnMemory::Host(receive)));
        };
        let on_gpu = |tensor: Option<HandleKind<Flex>>| {
            Ok::<_, DeviceError>(BurnMemory::Device { pinned: tensor.map(pinned).transpose()?, gpu })
        };
        let send = tensor.map(|t| typed::<Flex>(t, stored_as(sent.dtype), &sent.shape));
        let new = received.result().map(|ir| uninitialized::<Flex>(ir.shape, ir.dtype, &FlexDevice));
        Ok((Some(on_gpu(send)?), on_gpu(new)?))
    }

    fn received(
        &mut self,
        memory: BurnMemory<Pinned>,
        piece: &CallPiece,
        _: Option<BurnMemory<Pinned>>,
    ) -> Option<Handle<Self>> {
        match memory {
            BurnMemory::Device { pinned, .. } => pinned.map(|Pinned(tensor)| opaque::<Flex>(handle(tensor))),
            BurnMemory::Host(memory) => uploaded::<Flex>(memory, &mut self.pool, piece, &FlexDevice),
        }
    }
}
