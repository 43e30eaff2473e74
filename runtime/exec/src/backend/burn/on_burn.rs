//! What a backend of Burn has to tell, and a device that runs on it.

use super::memory::Pinning;
use super::transfer::upload;
#[cfg(doc)]
use crate::backend::Backend;
use crate::backend::native::Pool;
use crate::backend::{DeviceError, DeviceFault, Download, Graphs, RngState, RunPoint};
use crate::kernels::{DrawBlock, KernelError, RandomBlock};
use crate::tensor::HostTensor;
use burn_backend::DType as BurnType;
use burn_backend::tensor::FloatTensor;
use burn_ir::{BackendIr, BaseOperationIr, HandleKind, TensorIr};
use meshwright_device::arena::Arena;
use meshwright_device::kernels::Kernel;
use meshwright_device::launch::Launch;
use meshwright_device::target::Target;
use meshwright_gpu::products::TunedProducts;
use meshwright_plan::DType;
use std::sync::Arc;

/// A backend of Burn that steps run on.
pub(crate) trait BurnBackend: BackendIr + 'static {
    /// A dense tensor whose memory stays where it is.
    type Pinned: Pinning;

    /// A library for products that belongs to one device.
    type Library: Send + 'static;

    /// Whether the device stores elements of that dtype and computes with them.
    fn computes(device: &Self::Device, dtype: BurnType) -> bool {
        Self::supports_dtype(device, dtype)
    }

    /// See [`Backend::target`].
    fn target(device: &Self::Device, library: &Self::Library) -> Target;

    /// Whether devices of this kind choose kernels by measuring them: see [`Backend::tunes`].
    fn tunes(device: &Self::Device, library: &Self::Library) -> bool;

    /// See [`Backend::tuned`].
    fn tuned<R>(
        device: &Self::Device,
        library: &mut Self::Library,
        f: impl FnOnce(&mut TunedProducts) -> R,
    ) -> Option<R>;

    /// The matrix product of two tensors of one dtype, with elements of `dtype`, in which it is summed at least; `out` is memory for it.
    fn matmul(
        library: &mut Self::Library,
        factors: (FloatTensor<Self>, FloatTensor<Self>),
        dtype: BurnType,
        out: Option<FloatTensor<Self>>,
    ) -> Result<FloatTensor<Self>, KernelError>;

    /// What a device has from run to run for kernels of our own.
    type State: Default + Send;

    /// Sets the number of the step for what is drawn on the device.
    fn set_clock(device: &Self::Device, state: &mut Self::State, step: u64) {
        let _ = (device, state, step);
    }

    /// See [`Backend::view`].
    fn view(tensor: &Self::Handle, operation: &BaseOperationIr) -> Option<Self::Handle> {
        let _ = (tensor, operation);
        None
    }

    /// See [`Backend::load_arena`].
    fn load_arena(state: &mut Self::State, arena: &Arena) {
        let _ = (state, arena);
    }

    /// See [`Backend::lacks_arena`].
    fn lacks_arena(state: &Self::State) -> bool {
        let _ = state;
        false
    }

    /// How many results a run has asked for, and how many were foreseen.
    fn leave_arena(state: &Self::State) -> [usize; 2] {
        let _ = state;
        [0, 0]
    }

    /// See [`Backend::renew_arena`].
    fn renew_arena(state: &mut Self::State) {
        let _ = state;
    }

    /// See [`Backend::enter_arena`].
    fn enter_arena(device: &Self::Device, state: &mut Self::State, arena: &Arc<Arena>) {
        let _ = (device, state, arena);
    }

    /// The memory of the next result, where that is in the arena.
    fn place(
        device: &Self::Device,
        state: &mut Self::State,
        ir: &TensorIr,
    ) -> Result<Option<Self::Handle>, KernelError> {
        let _ = (device, state, ir);
        Ok(None)
    }

    /// Where the next result of a collective is.
    fn receive(
        device: &Self::Device,
        state: &mut Self::State,
        ir: &TensorIr,
    ) -> Result<ReceiveSpot<Self::Handle>, KernelError> {
        let _ = (device, state, ir);
        Ok(ReceiveSpot::Own)
    }

    /// The first operand with the second put at a position of its first dim, where that is in the arena.
    fn updated(
        state: &mut Self::State,
        operands: [&Self::Handle; 2],
        position: usize,
    ) -> Result<Option<Self::Handle>, KernelError> {
        let _ = (state, operands, position);
        Ok(None)
    }

    /// See [`Backend::upload_input`]; of no pairs, and of at least one element.
    fn upload_input(host: HostTensor, device: &Self::Device) -> HandleKind<Self> {
        upload::<Self>(host, device)
    }

    /// See [`Backend::start_download`]; none where it is done at once.
    fn start_download(
        device: &Self::Device,
        tensor: &Self::Handle,
        dtype: DType,
        shape: &[usize],
    ) -> Option<Download> {
        let _ = (device, tensor, dtype, shape);
        None
    }

    /// Does something whose results are kept from run to run.
    fn keeping<R: Send>(device: &Self::Device, f: impl FnOnce() -> R + Send) -> R {
        let _ = device;
        f()
    }

    /// See [`Backend::ran_first`].
    fn ran_first(device: &Self::Device) {
        let _ = device;
    }

    /// See [`Backend::reached`].
    fn reached(device: &Self::Device, at: Option<RunPoint>) {
        let _ = (device, at);
    }

    /// See [`Backend::fault`].
    fn fault(device: &Self::Device, problem: &str) -> Option<DeviceFault> {
        let _ = (device, problem);
        None
    }

    /// See [`Backend::graphs`].
    fn graphs(backend: &mut OnBurn<Self>) -> Option<&mut dyn Graphs<Self::Handle>> {
        let _ = backend;
        None
    }

    /// Random values with elements of `dtype`, drawn on the device; none where the host is to draw them.
    fn drawn(
        (device, state): (&Self::Device, &Self::State),
        kernel: &RandomBlock,
        rng: RngState,
        dtype: BurnType,
    ) -> Option<HandleKind<Self>> {
        let _ = (device, state, kernel, rng, dtype);
        None
    }

    /// The results of a kernel of our own of these operands.
    fn run_own(
        (device, state): (&Self::Device, &mut Self::State),
        (kernel, rng): (&Kernel, RngState),
        inputs: Vec<Self::Handle>,
        launch: &Launch,
    ) -> Result<Vec<Self::Handle>, KernelError> {
        let _ = (device, state, rng, inputs, launch);
        Err(KernelError::Unsupported(format!("there is no kernel `{}`", kernel.name())))
    }

    /// Whether a transport that works on the memory of that GPU can read and write the device's.
    fn is_gpu(device: &Self::Device, gpu: u32) -> bool;

    /// Brings a tensor into place, in the order of what the device was told before.
    fn pin(tensor: HandleKind<Self>) -> Result<Self::Pinned, DeviceError>;

    /// The tensor again.
    fn unpin(pinned: Self::Pinned) -> HandleKind<Self>;
}

/// The memory of what a collective gives.
#[cfg_attr(
    not(any(feature = "cuda", feature = "cubecl-cpu")),
    expect(dead_code, reason = "others have no arena")
)]
pub(crate) enum ReceiveSpot<H> {
    /// That of what is sent.
    Sent,
    /// A place in the arena.
    At(H),
    /// Its own.
    Own,
}

/// A device that runs the operations of a backend of Burn.
pub(crate) struct OnBurn<B: BurnBackend> {
    pub(super) device: B::Device,
    /// Whether runs are recorded.
    #[cfg(feature = "cuda")]
    pub(super) records: bool,
    pub(super) state: B::State,
    pub(super) products: B::Library,
    /// Storage on the host for what collectives receive.
    pub(super) pool: Pool,
    pub(super) note: Option<String>,
}

impl<B: BurnBackend> OnBurn<B> {
    pub(crate) fn new(device: B::Device, library: B::Library) -> OnBurn<B> {
        let (state, pool) = (B::State::default(), Pool::default());
        OnBurn {
            device,
            #[cfg(feature = "cuda")]
            records: false,
            state,
            products: library,
            pool,
            note: None,
        }
    }

    /// The same, with something that the user should know of it.
    #[cfg(any(feature = "cuda", feature = "cubecl-cpu"))]
    pub(crate) fn with_note(self, note: Option<String>) -> OnBurn<B> {
        OnBurn { note, ..self }
    }

    /// The same, which records runs or does not.
    #[cfg(feature = "cuda")]
    pub(crate) fn with_records(self, records: bool) -> OnBurn<B> {
        OnBurn { records, ..self }
    }

    /// Whether a transport works on the memory of this device: then the GPU's number.
    pub(super) fn pins(&self, gpu: Option<u32>) -> Option<u32> {
        gpu.filter(|gpu| B::is_gpu(&self.device, *gpu))
    }

    pub(super) fn drawn(
        &self,
        kernel: &RandomBlock,
        rng: RngState,
        dtype: BurnType,
    ) -> Result<HandleKind<B>, KernelError> {
        if let Some(drawn) = B::drawn((&self.device, &self.state), kernel, rng, dtype) {
            return Ok(drawn);
        }
        let mut host = HostTensor::zeros(kernel.dtype(), kernel.shape());
        kernel.run(rng.seed, rng.moment(), rng.first_example, host.data.view_mut())?;
        Ok(upload::<B>(host, &self.device))
    }
}
