//! What a kind of device has to tell the engine, and what it is told: each backend is a crate of its own, which implements [`Backend`].

pub use crate::collective::CallMemory;
use crate::error::{ExecError, HeldMemory};
use crate::tensor::HostTensor;
use burn_backend::BackendTypes;
use burn_backend::ops::FloatTensorOps;
use burn_backend::tensor::FloatTensor;
use burn_ir::{BackendIr, BaseOperationIr, HandleContainer};
use meshwright_device::arena::Arena;
use meshwright_device::collective::calls::CallPiece;
use meshwright_device::iteration::Iteration;
use meshwright_device::kernels::Kernel;
use meshwright_device::kernels::random::DrawPoint;
use meshwright_device::launch::Launch;
use meshwright_device::lowering::local::DeviceContext;
use meshwright_device::target::Target;
use meshwright_device::{KernelError, LoweringError};
use meshwright_gpu::monitor::{DeviceMemory, GpuHealth, GpuName};
use meshwright_gpu::products::TunedProducts;
use meshwright_plan::{DType, Plan};
use std::sync::Arc;

/// A tensor of a device.
pub type Handle<B> = <<B as Backend>::Burn as BackendIr>::Handle;

/// Tensors of a device, by id.
pub type Handles<B> = HandleContainer<Handle<B>>;

/// Memory of a device, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Most that was in use at once while a program ran, as seen after each of its steps, with what the step then released;
    /// 0 where nobody watched.
    pub peak: u64,
    /// What the program that ran last needs at once by its Plan, less what this device never makes.
    pub planned: u64,
    /// In use now.
    pub in_use: u64,
    /// What the allocator holds, in use or not.
    pub reserved: u64,
}

/// A device did not do what it was asked for, in its own words.
#[derive(Clone, Debug)]
pub struct DeviceError(pub String);

/// Where a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunPoint {
    /// The program, by order of loading.
    pub program: usize,
    /// The number of the training step, 0 in other programs.
    pub step_number: u64,
    /// The step of the Plan.
    pub step: usize,
}

/// What went wrong with a GPU.
#[derive(Clone, Debug)]
pub enum FaultKind {
    /// It has no memory for that many bytes, where they are known.
    OutOfMemory(Option<u64>),
    /// The driver's name of an error.
    Error(String),
}

/// What is known of a GPU that failed.
#[derive(Clone, Debug)]
pub struct DeviceFault {
    /// What went wrong.
    pub kind: FaultKind,
    /// Which GPU it is.
    pub gpu: GpuName,
    /// The step whose kernels failed, where that was seen.
    pub at: Option<RunPoint>,
    /// What this process's allocator had then.
    pub held: Option<HeldMemory>,
    /// Memory of the GPU.
    pub device: Option<DeviceMemory>,
    /// What the driver says of its state.
    pub health: GpuHealth,
}

/// What a run of a program depends on beside its buffers.
#[derive(Clone, Copy, Debug, Default)]
pub struct RngState {
    /// What random values are drawn from.
    pub seed: u64,
    /// The number of the training step.
    pub step: u64,
    /// Where values are drawn for each example by its number: that of the batch's first.
    pub first_example: Option<u64>,
    /// Where its loops are.
    pub iteration: Iteration,
}

impl RngState {
    /// The step and where in its loops: what random values are drawn at.
    pub fn moment(&self) -> DrawPoint {
        DrawPoint { step: self.step, repeat: self.iteration.index(), part: self.iteration.part() }
    }
}

/// Elements on their way to the host.
pub type Download = Box<dyn FnOnce() -> Result<HostTensor, DeviceError> + Send>;

/// A tensor with its dtype and shape on this device.
pub type Shaped<H> = (H, DType, Vec<usize>);

/// What was recorded: runs it again.
pub type Replay = Box<dyn FnMut() -> Result<(), DeviceError> + Send>;

/// Writes elements of the host into the storage of a tensor of their shape.
pub type Overwrite = Box<dyn FnMut(HostTensor) + Send>;

/// Recording runs into graphs. What is recorded reads and writes the storage that it had then.
pub trait Graphs<H> {
    /// Before the run that comes before the one to record.
    fn prepare(&mut self) -> Result<(), DeviceError>;

    /// The address of the stream on which the device computes, when all that was asked for is on it.
    fn stream(&mut self) -> Result<u64, DeviceError>;

    /// Records from now on, in place of running it. Until it ends nothing may be uploaded or read.
    fn start(&mut self) -> Result<(), DeviceError>;

    /// Ends the recording, of which nothing has run.
    fn finish(&mut self) -> Result<Replay, DeviceError>;

    /// Where the storage of a tensor is.
    fn location(&mut self, tensor: &Shaped<H>) -> Result<u64, DeviceError>;

    /// The tensor with storage that the host can write, and what writes it.
    fn writable(&mut self, tensor: &Shaped<H>) -> Result<(H, Overwrite), DeviceError>;

    /// Copies the elements of a tensor into the storage of another of its kind.
    fn copy(&mut self, from: &Shaped<H>, to: &Shaped<H>) -> Result<(), DeviceError>;
}

/// How steps become operations of one device's graphs, and how these run.
pub trait Backend: Send + Sized + 'static {
    /// Whose operations the graphs hold, beside kernels.
    type Burn: BackendIr;
    /// A kernel: an operation that Burn does not have.
    type Kernel: Send;
    /// Memory that a transport reads or writes during a call.
    type CallMemory: CallMemory;

    /// The device.
    fn device(&self) -> &<Self::Burn as BackendTypes>::Device;

    /// Whether it chooses kernels by measuring them, so that all devices must agree on them: the same on all devices.
    fn tunes(&self) -> bool {
        false
    }

    /// Does something with what chooses the kernels of products, once all that was asked for has run. None where nothing chooses.
    fn tuned<R>(&mut self, f: impl FnOnce(&mut TunedProducts) -> R) -> Result<Option<R>, DeviceError> {
        let _ = f;
        Ok(None)
    }

    /// What the user should know of how it computes.
    fn note(&self) -> Option<&str> {
        None
    }

    /// A matrix product, by whatever computes those of steps.
    fn product(
        &mut self,
        left: FloatTensor<Self::Burn>,
        right: FloatTensor<Self::Burn>,
    ) -> Result<FloatTensor<Self::Burn>, KernelError> {
        Ok(Self::Burn::float_matmul(left, right))
    }

    /// What Plans are compiled for.
    fn target(&self) -> Target;

    /// Fails where the device cannot run a Plan.
    fn check(&self, plan: &Plan, rank: usize) -> Result<(), ExecError> {
        let _ = (plan, rank);
        Ok(())
    }

    /// Makes a kernel ready to run.
    ///
    /// # Errors
    /// Where its operands contradict what it computes, or there is no such kernel.
    fn prepare(&self, context: &DeviceContext<'_>, kernel: &Kernel) -> Result<Self::Kernel, LoweringError>;

    /// What a reshape or a slice shows of a tensor, where the backend can do that without a copy and Burn cannot.
    fn view(tensor: &Handle<Self>, operation: &BaseOperationIr) -> Option<Handle<Self>> {
        let _ = (tensor, operation);
        None
    }

    /// A program will run that has such an arena, whose memory is that of all programs.
    fn load_arena(&mut self, arena: &Arena) {
        let _ = arena;
    }

    /// Whether the next run has to ask for the memory.
    fn lacks_arena(&self) -> bool {
        false
    }

    /// A run has ended. Fails where it has asked for another number of results than was foreseen.
    fn leave_arena(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Gives the arena other memory: what failed has left parts of it unwritten.
    fn renew_arena(&mut self) {}

    /// A run begins, of which kernels put what they make where the arena says, one after the other.
    fn enter_arena(&mut self, arena: &Arc<Arena>) {
        let _ = arena;
    }

    /// Runs a kernel on the tensors of its launch.
    fn run_kernel(
        &mut self,
        kernel: &Self::Kernel,
        launch: &Launch,
        handles: &mut Handles<Self>,
        rng: RngState,
    ) -> Result<(), KernelError>;

    /// Tensors of the device with the elements of one of the host. Of pairs that are stored in two parts the values become
    /// elements of `values`.
    fn upload(&mut self, host: HostTensor, values: Option<DType>) -> Vec<Handle<Self>>;

    /// The same of what is kept from run to run.
    fn upload_kept(&mut self, host: HostTensor) -> Vec<Handle<Self>> {
        self.upload(host, None)
    }

    /// The same of an input, which may be on its way beside what the device computes.
    fn upload_input(&mut self, host: HostTensor) -> Vec<Handle<Self>> {
        self.upload(host, None)
    }

    /// A copy of a device's elements, as they were uploaded. Waits for whatever the device still has to do for them.
    fn download(
        &self,
        tensors: Vec<Handle<Self>>,
        dtype: DType,
        values: Option<DType>,
        shape: &[usize],
    ) -> Result<HostTensor, DeviceError>;

    /// Begins [`Backend::download`] of what is no pair, in the order of what the device was told before; what is given waits for it. None
    /// where it cannot be begun and left alone.
    fn start_download(&self, tensor: &Handle<Self>, dtype: DType, shape: &[usize]) -> Option<Download> {
        let _ = (tensor, dtype, shape);
        None
    }

    /// Takes back storage that nobody reads any more.
    fn recycle(&mut self, tensor: Handle<Self>) {
        drop(tensor);
    }

    /// Memory that a transport is to read: of a tensor, or of nothing. `gpu` is set where the transport works on the memory
    /// of that GPU.
    fn send(
        &mut self,
        tensor: Option<Handle<Self>>,
        piece: &CallPiece,
        gpu: Option<u32>,
    ) -> Result<Self::CallMemory, DeviceError>;

    /// Memory that a transport is to write; none where it is to write over what is sent, which it may if `over`.
    fn receive(
        &mut self,
        to: (&CallPiece, Option<u32>),
        from: (&Self::CallMemory, bool),
    ) -> Result<Option<Self::CallMemory>, DeviceError>;

    /// The tensor that was received; none where nothing could be.
    fn received(&mut self, memory: Self::CallMemory, piece: &CallPiece) -> Option<Handle<Self>>;

    /// Takes back memory that was sent.
    fn sent(&mut self, memory: Self::CallMemory);

    /// After the first run of a program: memory that was needed once goes back to the device.
    fn ran_first(&mut self) {}

    /// Memory in use and reserved; none where the device does not tell. Waits for the device.
    fn memory(&self) -> Result<Option<Memory>, DeviceError> {
        Ok(None)
    }

    /// Before a run of a program with kernels: what random values of all that follows are drawn at.
    fn begin(&mut self, rng: RngState) {
        let _ = rng;
    }

    /// What follows belongs to a step of a program, or to none.
    fn reached(&mut self, at: Option<RunPoint>) {
        let _ = at;
    }

    /// What is known of the device, where it is a GPU and an error that it or what uses it reported in these words is the GPU's.
    fn fault(&mut self, problem: &str) -> Option<DeviceFault> {
        let _ = problem;
        None
    }

    /// What records runs, where the device can run again by one call what was recorded.
    fn graphs(&mut self) -> Option<&mut dyn Graphs<Handle<Self>>> {
        None
    }

    /// Address of a tensor's storage, where it can be known.
    fn address(tensor: &Handle<Self>) -> Option<usize> {
        let _ = tensor;
        None
    }
}
