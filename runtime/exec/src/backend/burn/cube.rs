//! GPUs, and their stand-in on the host: the backend that compiles kernels for the device at hand.

mod arena;
mod arguments;
#[cfg(feature = "cuda")]
pub(crate) mod attention;
#[cfg(feature = "cuda")]
mod blas;
#[cfg(feature = "cuda")]
mod captures;
#[cfg(feature = "cuda")]
mod download;
mod drawn;
mod elements;
#[cfg(feature = "cuda")]
pub(crate) mod epilogue;
#[cfg(feature = "cuda")]
mod erf;
mod exp2;
#[cfg(feature = "cuda")]
pub(crate) mod faults;
#[cfg(feature = "cuda")]
pub(crate) mod folds;
#[cfg(feature = "cuda")]
mod graphs;
#[cfg(feature = "cuda")]
pub(crate) mod index;
#[cfg(feature = "cuda")]
mod input_upload;
pub(crate) mod maps;
pub(crate) mod operands;
pub(crate) mod product;
mod program;
#[cfg(feature = "cuda")]
mod ptx;
mod random;
#[cfg(feature = "cuda")]
pub(crate) mod rows;
#[cfg(feature = "cuda")]
pub(crate) mod space;
#[cfg(feature = "cuda")]
mod tile;
mod views;
#[cfg(feature = "cuda")]
pub(crate) mod windows;

use super::memory::Pinning;
use super::on_burn::{BurnBackend, OnBurn, ReceiveSpot};
#[cfg(feature = "cuda")]
use super::transfer::typed;
use crate::backend::{DeviceError, RngState};
#[cfg(feature = "cuda")]
use crate::backend::{DeviceFault, Download, Graphs, RunPoint};
use crate::cluster::devices::DeviceKind;
use crate::error::ExecError;
use crate::kernels::{KernelError, RandomBlock};
#[cfg(feature = "cuda")]
use crate::tensor::HostTensor;
use arena::ArenaMemory;
#[cfg(feature = "cuda")]
use burn_backend::Backend as _;
use burn_backend::DType as BurnType;
use burn_backend::tensor::FloatTensor;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{Cube, CubeDevice};
use burn_ir::{BaseOperationIr, HandleKind, TensorIr};
use cubecl::config::cache::CacheConfig;
use cubecl::config::{CubeClRuntimeConfig, RuntimeConfig};
use meshwright_device::arena::Arena;
use meshwright_device::kernels::Kernel;
use meshwright_device::launch::Launch;
#[cfg(feature = "cuda")]
use meshwright_device::stored::{stored_as, stored_shape};
use meshwright_device::target::Target;
use meshwright_gpu::driver::Driver;
use meshwright_gpu::load::Paths;
use meshwright_gpu::products::TunedProducts;
#[cfg(feature = "cuda")]
use meshwright_plan::DType;
use operands::{OwnInputs, ResultSlot};
use std::collections::BTreeSet;
use std::sync::Arc;

/// A device that kernels are compiled for.
pub(crate) fn backend(kind: DeviceKind, rank: usize, libraries: &Paths) -> Result<OnBurn<Cube>, ExecError> {
    let (libraries, not_kept) = libraries.with_writable_cache();
    keep_tuned(&libraries);
    let found = match kind {
        DeviceKind::Cuda(index) => CubeDevice::cuda(index),
        _ => CubeDevice::cpu(),
    };
    let message = |e: &dyn std::fmt::Display| {
        format!("cannot use {kind}: {e}; `meshwright devices` says what is there")
    };
    let device = found.map_err(|e| ExecError::Start { rank, message: message(&e) })?;
    let note = match &device {
        #[cfg(feature = "cuda")]
        CubeDevice::Cuda(gpu) => {
            faults::watch(gpu, &libraries);
            captures::allow_others(gpu, &libraries);
            blas::open(gpu, &libraries)
        }
        _ => None,
    };
    let notes: Vec<String> = [note, not_kept].into_iter().flatten().collect();
    let backend = OnBurn::new(device, ()).with_note((!notes.is_empty()).then(|| notes.join("; ")));
    #[cfg(feature = "cuda")]
    let backend = backend.with_records(matches!(kind, DeviceKind::Cuda(_)) && !libraries.launches_each);
    Ok(backend)
}

/// Has CubeCL keep what it tunes and compiles where other measurements of GPUs are, for each driver apart, so that a later start does
/// neither. Where a `cubecl.toml` names a place, that one.
fn keep_tuned(libraries: &Paths) {
    let Some(folder) = &libraries.cache else { return };
    let mut config = CubeClRuntimeConfig::from_current_dir().override_from_env();
    if matches!(config.environment.path, CacheConfig::Target) {
        config.environment.path = CacheConfig::Directory(folder.join("cubecl"));
        config.compilation.cache = true;
        if let Ok(version) = Driver::open(libraries).and_then(|driver| driver.version()) {
            config.environment.name = format!("cuda-{version}");
        }
    }
    // The first device of a process sets it for all.
    CubeClRuntimeConfig::try_set(config);
}

#[cfg(feature = "cuda")]
type Server = <cubecl::cuda::CudaRuntime as cubecl_runtime::runtime::Runtime>::Server;

/// A dense tensor with the address of its memory, which stays where it is as long as this lives.
pub(crate) struct Pinned {
    tensor: CubeTensor,
    address: u64,
    /// Keeps the allocation in its place.
    #[cfg(feature = "cuda")]
    _resource: Box<dyn std::any::Any + Send>,
}

impl Pinning for Pinned {
    fn address(&self) -> u64 {
        self.address
    }
}

/// What a device has from run to run for kernels of our own: the number of the step, in its memory too, and the arena.
#[derive(Default)]
pub(crate) struct CubeState {
    clock: Option<(u64, CubeTensor)>,
    arena: ArenaMemory,
    /// The steps with a `relu` whose bits the run has written.
    relu_bits: BTreeSet<usize>,
}

impl BurnBackend for Cube {
    type Pinned = Pinned;
    /// None: GPUs have theirs by number, since a product is put on the stream by the thread of the device.
    type Library = ();
    type State = CubeState;

    fn set_clock(device: &CubeDevice, state: &mut CubeState, step: u64) {
        random::set_step(device, &mut state.clock, step);
    }

    fn view(tensor: &CubeTensor, operation: &BaseOperationIr) -> Option<CubeTensor> {
        views::view(tensor, operation)
    }

    fn load_arena(state: &mut CubeState, arena: &Arena) {
        state.arena.load(arena);
    }

    fn lacks_arena(state: &CubeState) -> bool {
        state.arena.is_missing()
    }

    fn leave_arena(state: &CubeState) -> [usize; 2] {
        state.arena.leave()
    }

    fn renew_arena(state: &mut CubeState) {
        state.arena.memory = None;
    }

    fn enter_arena(device: &CubeDevice, state: &mut CubeState, arena: &Arc<Arena>) {
        state.arena.enter(arena, device);
    }

    fn place(
        device: &CubeDevice,
        state: &mut CubeState,
        ir: &TensorIr,
    ) -> Result<Option<CubeTensor>, KernelError> {
        let slots = state.arena.results(std::slice::from_ref(ir), device)?;
        Ok(slots.first().and_then(ResultSlot::placed))
    }

    fn receive(
        device: &CubeDevice,
        state: &mut CubeState,
        ir: &TensorIr,
    ) -> Result<ReceiveSpot<CubeTensor>, KernelError> {
        state.arena.received(ir, device)
    }

    fn updated(
        state: &mut CubeState,
        [all, value]: [&CubeTensor; 2],
        position: usize,
    ) -> Result<Option<CubeTensor>, KernelError> {
        state.arena.updated(all, value, position)
    }

    #[cfg(feature = "cuda")]
    fn keeping<R: Send>(device: &CubeDevice, f: impl FnOnce() -> R + Send) -> R {
        device.client().memory_persistent_allocation((), |()| f())
    }

    /// Kernels were tried, and what is not updated in place has left the memory that it was uploaded to.
    #[cfg(feature = "cuda")]
    fn ran_first(device: &CubeDevice) {
        // What cannot be given back now stays reserved.
        if Cube::sync(device).is_ok() {
            let _ = device.client().memory_cleanup();
        }
    }

    #[cfg(feature = "cuda")]
    fn upload_input(host: HostTensor, device: &CubeDevice) -> HandleKind<Cube> {
        kind_of(input_upload::sent(host, device))
    }

    #[cfg(feature = "cuda")]
    fn start_download(
        device: &CubeDevice,
        tensor: &Self::Handle,
        dtype: DType,
        shape: &[usize],
    ) -> Option<Download> {
        let tensor = typed::<Cube>(tensor.clone(), stored_as(dtype), &stored_shape(dtype, shape));
        download::started(device, inner(tensor).ok()?, dtype, shape)
    }

    #[cfg(feature = "cuda")]
    fn graphs(backend: &mut OnBurn<Cube>) -> Option<&mut dyn Graphs<Self::Handle>> {
        if backend.records { Some(backend) } else { None }
    }

    #[cfg(feature = "cuda")]
    fn reached(device: &CubeDevice, at: Option<RunPoint>) {
        if let CubeDevice::Cuda(gpu) = device {
            faults::reached(gpu, at);
        }
    }

    #[cfg(feature = "cuda")]
    fn fault(device: &CubeDevice, problem: &str) -> Option<DeviceFault> {
        faults::fault(device, problem)
    }

    fn target(device: &CubeDevice, (): &()) -> Target {
        match device {
            #[cfg(feature = "cuda")]
            CubeDevice::Cuda(gpu) => Target {
                tensor_cores: attention::is_there(&device.client()),
                ..Target::cuda((0, 0), blas::is_open(gpu.index))
            },
            _ => Target::compiled_on_host(),
        }
    }

    fn tunes(device: &CubeDevice, (): &()) -> bool {
        !matches!(device, CubeDevice::Cpu(_))
    }

    fn tuned<R>(device: &CubeDevice, (): &mut (), f: impl FnOnce(&mut TunedProducts) -> R) -> Option<R> {
        match device {
            #[cfg(feature = "cuda")]
            CubeDevice::Cuda(gpu) => blas::tuned(gpu.index, f),
            _ => {
                let _ = f;
                None
            }
        }
    }

    fn matmul(
        (): &mut (),
        (left, right): (FloatTensor<Self>, FloatTensor<Self>),
        dtype: BurnType,
        out: Option<FloatTensor<Self>>,
    ) -> Result<FloatTensor<Self>, KernelError> {
        product::compute(left, right, dtype, out)
            .map_err(|e| KernelError::Unsupported(format!("a matrix product: {e}")))
    }

    fn drawn(
        (device, state): (&CubeDevice, &CubeState),
        kernel: &RandomBlock,
        rng: RngState,
        dtype: BurnType,
    ) -> Option<HandleKind<Self>> {
        let (_, step) = state.clock.as_ref()?;
        Some(kind_of(random::draw(kernel, (rng, step), dtype, device)))
    }

    fn run_own(
        (device, state): (&CubeDevice, &mut CubeState),
        (kernel, rng): (&Kernel, RngState),
        inputs: Vec<Self::Handle>,
        launch: &Launch,
    ) -> Result<Vec<Self::Handle>, KernelError> {
        let CubeState { clock, arena, relu_bits } = state;
        let Some((_, step)) = clock else {
            return Err(KernelError::Unsupported("no run has begun".into()));
        };
        let inputs = OwnInputs::new(inputs, &launch.reads);
        let outputs = &arena.results(&launch.writes, device)?;
        match kernel {
            Kernel::Map(calls) => maps::map(calls, rng, step, inputs, outputs),
            Kernel::Join(call) => maps::join(call, step, &inputs.tensors, &outputs[0]),
            #[cfg(feature = "cuda")]
            Kernel::Fold(calls) => Ok(folds::fold(calls, &inputs.tensors, outputs)),
            #[cfg(feature = "cuda")]
            Kernel::Rows(call) => rows::compute(call, rng, step, inputs, outputs),
            #[cfg(feature = "cuda")]
            Kernel::AttentionDraws(call) => attention::draw(call, rng, step, inputs.tensors, outputs),
            #[cfg(feature = "cuda")]
            Kernel::Attention(call) => attention::attend(call, rng, step, inputs.tensors, outputs),
            #[cfg(feature = "cuda")]
            Kernel::LookUp(call) => index::look_up(call, &inputs.tensors, outputs),
            #[cfg(feature = "cuda")]
            Kernel::Scatter(call) => index::scatter(call, &inputs.tensors, outputs),
            #[cfg(feature = "cuda")]
            Kernel::Convolve(call) => windows::convolve(call, &inputs.tensors, outputs),
            #[cfg(feature = "cuda")]
            Kernel::Pool(call) => windows::pool(call, &inputs.tensors, outputs),
            #[cfg(feature = "cuda")]
            Kernel::Product(call) => epilogue::product(call, relu_bits, step, inputs, outputs),
            other => Err(KernelError::Unsupported(format!("there is no kernel `{}`", other.name()))),
        }
    }

    fn is_gpu(device: &CubeDevice, gpu: u32) -> bool {
        match device {
            #[cfg(feature = "cuda")]
            CubeDevice::Cuda(d) => u32::try_from(d.index) == Ok(gpu),
            _ => {
                let _ = gpu;
                false
            }
        }
    }

    fn pin(tensor: HandleKind<Self>) -> Result<Pinned, DeviceError> {
        let tensor = inner(tensor)?;
        // Tensors of a GPU may have gaps between their rows.
        let tensor = into_contiguous(tensor);
        #[cfg(feature = "cuda")]
        {
            let resource = tensor.client.get_resource::<Server>(tensor.handle.clone());
            let resource = resource.map_err(|e| DeviceError(e.to_string()))?;
            let address = resource.resource().ptr;
            Ok(Pinned { tensor, address, _resource: Box::new(resource) })
        }
        #[cfg(not(feature = "cuda"))]
        {
            let _ = tensor;
            Err(DeviceError("it is in the memory of the host".into()))
        }
    }

    fn unpin(pinned: Pinned) -> HandleKind<Self> {
        kind_of(pinned.tensor)
    }
}

/// The tensor itself.
fn inner(tensor: HandleKind<Cube>) -> Result<CubeTensor, DeviceError> {
    match tensor {
        HandleKind::Float(t) | HandleKind::Int(t) => Ok(t),
        _ => Err(DeviceError("it holds no numbers".into())),
    }
}

/// A tensor with its kind.
fn kind_of(tensor: CubeTensor) -> HandleKind<Cube> {
    match tensor.dtype {
        BurnType::Bool(_) => HandleKind::Bool(tensor),
        dtype if dtype.is_float() => HandleKind::Float(tensor),
        _ => HandleKind::Int(tensor),
    }
}
