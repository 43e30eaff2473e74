//! Tensors of CubeCL as the engine holds them.

use burn_backend::DType as BurnType;
use burn_cubecl::Cube;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use burn_ir::HandleKind;
use meshwright_burn::memory::Pinning;
use meshwright_exec::backend::DeviceError;
use std::any::Any;

pub(crate) type Server = <cubecl::cuda::CudaRuntime as cubecl_runtime::runtime::Runtime>::Server;

/// A dense tensor with the address of its memory, which stays where it is as long as this lives.
pub(crate) struct Pinned {
    pub(crate) tensor: CubeTensor,
    address: u64,
    /// Keeps the allocation alive.
    _resource: Box<dyn Any + Send>,
}

impl Pinning for Pinned {
    fn address(&self) -> u64 {
        self.address
    }
}

/// Pins a tensor, in order with earlier launches.
pub(crate) fn pinned(tensor: HandleKind<Cube>) -> Result<Pinned, DeviceError> {
    let tensor = inner(tensor)?;
    // Tensors of a GPU may have gaps between their rows.
    let tensor = into_contiguous(tensor);
    let resource = tensor.client.get_resource::<Server>(tensor.handle.clone());
    let resource = resource.map_err(|e| DeviceError(e.to_string()))?;
    let address = resource.resource().ptr;
    Ok(Pinned { tensor, address, _resource: Box::new(resource) })
}

/// The tensor itself.
pub(crate) fn inner(tensor: HandleKind<Cube>) -> Result<CubeTensor, DeviceError> {
    match tensor {
        HandleKind::Float(t) | HandleKind::Int(t) => Ok(t),
        _ => Err(DeviceError("it holds no numbers".into())),
    }
}

/// A tensor with its kind.
pub(crate) fn kind_of(tensor: CubeTensor) -> HandleKind<Cube> {
    match tensor.dtype {
        BurnType::Bool(_) => HandleKind::Bool(tensor),
        dtype if dtype.is_float() => HandleKind::Float(tensor),
        _ => HandleKind::Int(tensor),
    }
}
