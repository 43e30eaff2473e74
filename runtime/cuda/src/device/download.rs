//! Asynchronous copies of a GPU's elements to the host.

use burn_backend::Device as _;
use burn_cubecl::CubeDevice;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use burn_std::id::StreamId;
use cubecl::cuda::CudaRuntime;
use cubecl::device_handle::DeviceHandle;
use cubecl::future::block_on;
use cubecl::server::{CopyDescriptor, Server as _};
use cubecl_runtime::runtime::Runtime;
use meshwright_burn::transfer::host_tensor;
use meshwright_exec::backend::{DeviceError, Download};
use meshwright_plan::DType;

type CudaServer = <CudaRuntime as Runtime>::Server;

/// Starts the copy of a tensor on the stream of the device: later launches may overwrite the tensor. None for a device
/// that is not a GPU.
pub(crate) fn started(
    device: &CubeDevice,
    tensor: CubeTensor,
    dtype: DType,
    shape: &[usize],
) -> Option<Download> {
    let CubeDevice::Cuda(gpu) = device else { return None };
    let tensor = into_contiguous(tensor);
    let (strides, bytes) = (tensor.meta.strides().clone(), tensor.elem_size());
    let from = CopyDescriptor::new(tensor.handle.binding(), tensor.meta.shape().clone(), strides, bytes);
    let stream = StreamId::current();
    let begin = move |server: &mut CudaServer| server.read(vec![from], stream);
    let read = DeviceHandle::<CudaServer>::new(gpu.to_id()).submit_blocking(begin);
    let shape = shape.to_vec();
    Some(Box::new(move || {
        let read = read.map_err(|e| DeviceError(format!("{e:?}")))?;
        let read = block_on(read).map_err(|e| DeviceError(e.to_string()))?;
        let bytes = read.first().map_or(&[][..], |bytes| bytes);
        let other = |came| DeviceError(format!("{came} bytes came for {shape:?} of {dtype}"));
        host_tensor(bytes, dtype, &shape).map_err(other)
    }))
}
