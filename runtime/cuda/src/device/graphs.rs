//! Runs recorded as CUDA graphs, by CubeCL's own support: it reserves the memory of a graph for the graph's lifetime,
//! and rejects work that a graph cannot hold.

use super::tensors::{Server, inner};
use super::{GpuBackend, input_upload};
use burn_backend::cubecl::dtype_to_storage_type;
use burn_backend::{Backend as _, Device as _, ExecutionError};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{Cube, CubeDevice};
use burn_ir::BackendIr;
use burn_std::id::StreamId;
use cubecl::device_handle::DeviceHandle;
use cubecl::server::ServerError;
use cubecl::std::tensor::copy_into;
use cubecl_server::stream::WriteScoped;
use meshwright_burn::transfer::typed;
use meshwright_device::stored::{stored_as, stored_shape};
use meshwright_exec::HostTensor;
use meshwright_exec::backend::{DeviceError, Graphs, Overwrite, Replay, Shaped};
use std::time::Duration;

/// Time that a thread of CubeCL has before a recording begins. After an input came by another stream, that thread waits for the
/// copy and frees the host's memory; a wait that begins while a graph is recorded breaks the recording off.
const OTHER_THREADS_TURN: Duration = Duration::from_millis(20);

type CubeHandle = <Cube as BackendIr>::Handle;

/// The tensor itself.
fn shaped((tensor, dtype, shape): &Shaped<CubeHandle>) -> Result<CubeTensor, DeviceError> {
    inner(typed::<Cube>(tensor.clone(), stored_as(*dtype), &stored_shape(*dtype, shape)))
}

fn failed(e: ExecutionError) -> DeviceError {
    DeviceError(e.to_string())
}

impl Graphs<CubeHandle> for GpuBackend {
    fn prepare(&mut self) -> Result<(), DeviceError> {
        Cube::graph_prepare(&self.device).map_err(failed)
    }

    fn stream(&mut self) -> Result<u64, DeviceError> {
        let CubeDevice::Cuda(gpu) = &self.device else { return Err(DeviceError("it is no GPU".into())) };
        let current = StreamId::current();
        let found = DeviceHandle::<Server>::new(gpu.to_id()).submit_blocking(move |server| {
            let mut streams = server.write_streams().resolve(current, [].into_iter())?;
            Ok::<_, ServerError>(streams.current().sys.expose_provenance() as u64)
        });
        let address = found.map_err(|e| DeviceError(format!("{e:?}")))?;
        address.map_err(|e| DeviceError(e.to_string()))
    }

    fn start(&mut self) -> Result<(), DeviceError> {
        std::thread::sleep(OTHER_THREADS_TURN);
        Cube::graph_start_capture(&self.device).map_err(failed)
    }

    fn finish(&mut self) -> Result<Replay, DeviceError> {
        let graph = Cube::graph_stop_capture(&self.device).map_err(failed)?;
        let (device, arena) = (self.device.clone(), self.arena.memory.clone());
        #[expect(unsafe_code, reason = "a graph works on memory by its address")]
        // SAFETY: this value owns the arena, and CubeCL reserves the memory that was used during the recording for the
        // graph's lifetime; the owner of the graph keeps the tensors that it reads and writes; and all of them are used
        // from the thread of their device, which is the graph's.
        Ok(Box::new(move || {
            let _held = &arena;
            unsafe { Cube::graph_replay(&device, &graph) }.map_err(failed)
        }))
    }

    fn location(&mut self, tensor: &Shaped<CubeHandle>) -> Result<u64, DeviceError> {
        let tensor = shaped(tensor)?;
        let resource = tensor.client.get_resource::<Server>(tensor.handle.clone());
        Ok(resource.map_err(|e| DeviceError(e.to_string()))?.resource().ptr)
    }

    fn writable(&mut self, tensor: &Shaped<CubeHandle>) -> Result<(CubeHandle, Overwrite), DeviceError> {
        // Tensors of a GPU may have gaps between their rows.
        let tensor = into_contiguous(shaped(tensor)?);
        let handle = tensor.clone();
        let device = self.device.clone();
        let overwrite = move |host: HostTensor| {
            // A recorded run may still read the tensor: only a copy within the device waits for it.
            let (from, dtype) = (input_upload::sent(host, &device), dtype_to_storage_type(tensor.dtype));
            copy_into(&tensor.client, from.binding(), tensor.clone().binding(), dtype);
        };
        Ok((handle, Box::new(overwrite)))
    }

    fn copy(&mut self, from: &Shaped<CubeHandle>, to: &Shaped<CubeHandle>) -> Result<(), DeviceError> {
        let (from, to) = (shaped(from)?, shaped(to)?);
        let (client, dtype) = (from.client.clone(), dtype_to_storage_type(from.dtype));
        copy_into(&client, from.binding(), to.binding(), dtype);
        Ok(())
    }
}
