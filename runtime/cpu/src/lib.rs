//! Devices that are threads of the host: kernels on its memory, and the backend that runs them.
//!
//! **Invariant:** results depend on the operands and the instruction set, not on the number of threads.
//!
//! Every primitive is a kernel: a custom operation of the graph that names it. Storage goes through a pool, so a step asks the
//! system for no memory. Contractions are matrix products of the crate `gemm`, which Burn's own are too, and would allocate.

mod attention;
mod blocks;
mod index;
mod kernel;
pub mod kernels;
mod moves;
mod pool;
mod prepare;
mod rows;
mod storage;
mod tensor;
mod windows;

pub use pool::{NoMemory, Pool};
pub use storage::peak_value_bytes;
use tensor::{bytes, owns_storage};
pub use tensor::{bytes_mut, from_host, handle, to_host, unhandle};

use burn_flex::{Flex, FlexDevice, FlexTensor};
use burn_ir::TensorStatus;
use kernel::Kernel;
use kernels::KernelError;
use meshwright_comm::{Buf, BufMut, BufferMismatch};
use meshwright_device::LoweringError;
use meshwright_device::collective::calls::CallPiece;
use meshwright_device::kernels::Kernel as DeviceKernel;
use meshwright_device::launch::Launch;
use meshwright_device::lowering::local::DeviceContext;
use meshwright_device::target::Target;
use meshwright_exec::backend::{
    Backend, CallBuffers, CallMemory, DeviceError, Download, Handle, Handles, RngState, SentAndReceived,
    Upload,
};
use meshwright_exec::{DeviceKind, ExecError, HostTensor, Platform, Programs};
use meshwright_gpu::load::Paths;
use meshwright_plan::DType;
use std::fmt;

/// A thread of the host, with the kernels of this crate.
pub fn device() -> DeviceKind {
    DeviceKind::new(Threads)
}

/// Threads of the host.
struct Threads;

impl fmt::Display for Threads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cpu")
    }
}

impl Platform for Threads {
    fn programs(&self, _: Option<usize>, _: usize, _: &Paths) -> Result<Programs, ExecError> {
        Ok(Programs::new(Native::default()))
    }

    fn runs_ahead(&self) -> bool {
        false
    }
}

/// A device that is a thread of the host.
#[derive(Default)]
struct Native {
    pool: Pool,
}

impl From<NoMemory> for KernelError {
    fn from(e: NoMemory) -> Self {
        KernelError::Memory(e.to_string())
    }
}

impl From<NoMemory> for DeviceError {
    fn from(e: NoMemory) -> Self {
        DeviceError(e.to_string())
    }
}

fn quantized() -> DeviceError {
    DeviceError("a quantized tensor".into())
}

impl Backend for Native {
    type Burn = Flex;
    type Kernel = Kernel;
    type CallMemory = HostMemory;

    fn device(&self) -> &FlexDevice {
        &FlexDevice
    }

    fn target(&self) -> Target {
        Target::cpu()
    }

    fn prepare(&self, context: &DeviceContext<'_>, kernel: &DeviceKernel) -> Result<Kernel, LoweringError> {
        match kernel {
            DeviceKernel::Host(kernel) => prepare::ready(context, kernel),
            other => Err(LoweringError::Plan(format!("the host has no kernel `{}`", other.name()))),
        }
    }

    fn run_kernel(
        &mut self,
        kernel: &Kernel,
        launch: &Launch,
        handles: &mut Handles<Self>,
        rng: RngState,
    ) -> Result<(), KernelError> {
        let mut inputs = Vec::with_capacity(launch.reads.len());
        for input in &launch.reads {
            let tensor = unhandle(handles.get_handle(&input.id, &input.status));
            inputs.push(Some(tensor.ok_or_else(|| KernelError::Unsupported("a quantized tensor".into()))?));
        }
        let ends = |at: usize| matches!(launch.reads[at].status, TensorStatus::ReadWrite);
        let outputs = kernel.run(inputs, ends, rng, &mut self.pool)?;
        for (ir, output) in launch.writes.iter().zip(outputs) {
            handles.register_handle(ir.id, handle(output));
        }
        Ok(())
    }

    fn upload(&mut self, host: HostTensor, lifetime: Upload) -> Vec<Handle<Self>> {
        let (dtype, shape) = (host.dtype(), host.shape.clone());
        let given = from_host(host);
        if let Upload::Kept = lifetime
            && let Ok(mut kept) = self.pool.take(dtype, &shape)
        {
            // In the pool's storage, which goes on to the next values.
            bytes_mut(&mut kept).copy_from_slice(bytes(&given));
            return vec![handle(kept)];
        }
        vec![handle(given)]
    }

    fn download(
        &self,
        tensors: Vec<Handle<Self>>,
        dtype: DType,
        _: Option<DType>,
        shape: &[usize],
    ) -> Download {
        let tensor = tensors.into_iter().next().and_then(unhandle).ok_or_else(quantized);
        let done = tensor.map(|tensor| to_host(&tensor, dtype, shape));
        Box::new(move || done)
    }

    fn recycle(&mut self, tensor: Handle<Self>) {
        if let Some(tensor) = unhandle(tensor) {
            self.pool.give(tensor);
        }
    }

    fn call_memory(
        &mut self,
        tensor: Option<Handle<Self>>,
        (sent, received): SentAndReceived<'_>,
        over: bool,
        _: Option<u32>,
    ) -> Result<CallBuffers<HostMemory>, DeviceError> {
        let send = match tensor {
            Some(tensor) => unhandle(tensor).ok_or_else(quantized)?,
            None => self.pool.take(sent.dtype, &sent.shape)?,
        };
        // Where nobody else reads it.
        if over && owns_storage(&send) {
            return Ok((None, HostMemory(send)));
        }
        let receive = self.pool.take(received.dtype, &received.shape)?;
        Ok((Some(HostMemory(send)), HostMemory(receive)))
    }

    fn received(
        &mut self,
        HostMemory(memory): HostMemory,
        _: &CallPiece,
        sent: Option<HostMemory>,
    ) -> Option<Handle<Self>> {
        if let Some(HostMemory(sent)) = sent {
            self.pool.give(sent);
        }
        Some(handle(memory))
    }

    fn address(tensor: &Handle<Self>) -> Option<usize> {
        unhandle(tensor.clone()).map(|t| bytes(&t).as_ptr() as usize)
    }
}

/// Memory of the host that a transport reads or writes: that of a dense tensor.
pub struct HostMemory(pub FlexTensor);

impl CallMemory for HostMemory {
    fn buf(&self, piece: &CallPiece) -> Result<Buf<'_>, BufferMismatch> {
        Buf::from_bytes(bytes(&self.0), piece.dtype)
    }

    fn buf_mut(&mut self, piece: &CallPiece) -> Result<BufMut<'_>, BufferMismatch> {
        BufMut::from_bytes(bytes_mut(&mut self.0), piece.dtype)
    }
}
