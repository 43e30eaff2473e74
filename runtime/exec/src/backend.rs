//! The interface between the engine and a kind of device. Each backend is a crate of its own, which implements
//! [`Backend`].

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
use meshwright_device::kernels::matmul::FactorDigits;
use meshwright_device::kernels::random::DrawPoint;
use meshwright_device::launch::Launch;
use meshwright_device::lowering::local::DeviceContext;
use meshwright_device::target::Target;
use meshwright_device::{KernelError, LoweringError};
use meshwright_gpu::matmuls::TunedMatmuls;
use meshwright_gpu::monitor::{DeviceMemory, GpuHealth, GpuName};
use meshwright_plan::{DType, Plan};
use std::sync::Arc;

/// A tensor of a device.
pub type Handle<B> = <<B as Backend>::Burn as BackendIr>::Handle;

/// Tensors of a device, by id.
pub type Handles<B> = HandleContainer<Handle<B>>;

/// Memory of a device, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Peak while a program ran, sampled after each step with the values that the step then freed; 0 if memory was not
    /// watched.
    pub peak: u64,
    /// Peak of the program that ran last by its Plan, without values that this device fuses away.
    pub planned: u64,
    /// In use now.
    pub in_use: u64,
    /// Held by the allocator, in use or free.
    pub reserved: u64,
}

/// A failure of a device, in the device's words.
#[derive(Clone, Debug)]
pub struct DeviceError(pub String);

/// The position of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunPoint {
    /// The program, by order of loading.
    pub program: usize,
    /// The number of the training step, 0 in other programs.
    pub step_number: u64,
    /// The step of the Plan.
    pub step: usize,
}

/// The kind of a GPU's failure.
#[derive(Clone, Debug)]
pub enum FaultKind {
    /// It has no memory for that many bytes, where they are known.
    OutOfMemory(Option<u64>),
    /// The driver's name of an error.
    Error(String),
}

/// A GPU that failed, with its state.
#[derive(Clone, Debug)]
pub struct DeviceFault {
    /// The failure.
    pub kind: FaultKind,
    /// The GPU.
    pub gpu: GpuName,
    /// The step whose kernels failed, where that was seen.
    pub at: Option<RunPoint>,
    /// Memory of this process's allocator at that time.
    pub held: Option<HeldMemory>,
    /// Memory of the GPU.
    pub device: Option<DeviceMemory>,
    /// Its state by the driver.
    pub health: GpuHealth,
}

/// State of a run besides its buffers.
#[derive(Clone, Copy, Debug, Default)]
pub struct RngState {
    /// Seed of the random values.
    pub seed: u64,
    /// The number of the training step.
    pub step: u64,
    /// Number of the batch's first example, if values are drawn for each example by its number.
    pub first_example: Option<u64>,
    /// Iterations of its loops.
    pub iteration: Iteration,
}

impl RngState {
    /// The step and the iteration, at which random values are drawn.
    pub fn moment(&self) -> DrawPoint {
        DrawPoint { step: self.step, repeat: self.iteration.index(), part: self.iteration.part() }
    }
}

/// The beginning of a part of a run, reported to the device.
#[derive(Clone, Copy, Debug)]
pub enum RunEvent {
    /// A program with random kernels begins, in the training step of this number.
    Begun(u64),
    /// The launches that follow are those of a step; of none outside of programs.
    Step(Option<RunPoint>),
    /// The first run of a program has ended: memory that was needed once goes back to the device.
    RanFirst,
}

/// Lifetime of an uploaded tensor.
#[derive(Clone, Copy, Debug)]
pub enum Upload {
    /// Until its last consumer has run. If pairs are stored in two parts, their values become elements of this type.
    Value(Option<DType>),
    /// An input of a run, whose upload may overlap with the device's work.
    Input,
    /// Over all runs, such as a parameter.
    Kept,
}

impl Upload {
    /// The type of the values of a pair that is stored in two parts.
    pub fn values(self) -> Option<DType> {
        match self {
            Upload::Value(values) => values,
            Upload::Input | Upload::Kept => None,
        }
    }
}

/// The pieces that a call of a transport reads and writes.
pub type SentAndReceived<'a> = (&'a CallPiece, &'a CallPiece);

/// Memory that a call reads, where it is another than what it writes, and memory that it writes.
pub type CallBuffers<M> = (Option<M>, M);

/// Elements on their way to the host.
pub type Download = Box<dyn FnOnce() -> Result<HostTensor, DeviceError> + Send>;

/// A tensor with its dtype and shape on this device.
pub type Shaped<H> = (H, DType, Vec<usize>);

/// Launches a recorded graph.
pub type Replay = Box<dyn FnMut() -> Result<(), DeviceError> + Send>;

/// Writes elements of the host into the storage of a tensor of their shape.
pub type Overwrite = Box<dyn FnMut(HostTensor) + Send>;

/// Recording runs into graphs. What is recorded reads and writes the storage that it had then.
pub trait Graphs<H> {
    /// Prepares a recording; called before the last run that is not recorded.
    fn prepare(&mut self) -> Result<(), DeviceError>;

    /// Address of the device's stream, after all requested operations have been launched on it.
    fn stream(&mut self) -> Result<u64, DeviceError>;

    /// Starts recording; launches are recorded, not run. No uploads or downloads until `finish`.
    fn start(&mut self) -> Result<(), DeviceError>;

    /// Ends the recording. Nothing that was recorded has run.
    fn finish(&mut self) -> Result<Replay, DeviceError>;

    /// Address of a tensor's storage.
    fn location(&mut self, tensor: &Shaped<H>) -> Result<u64, DeviceError>;

    /// The tensor in storage that the host can write, and the function that writes it.
    fn writable(&mut self, tensor: &Shaped<H>) -> Result<(H, Overwrite), DeviceError>;

    /// Copies the elements of a tensor into the storage of another of its kind.
    fn copy(&mut self, from: &Shaped<H>, to: &Shaped<H>) -> Result<(), DeviceError>;
}

/// The memory of arenas: one allocation for all programs of a device, since they run one after the other.
pub trait ArenaMemory {
    /// Registers the arena of a program that will run.
    fn load(&mut self, arena: &Arena);

    /// Whether the next run must allocate the memory.
    fn is_missing(&self) -> bool;

    /// Begins a run whose kernels write their results in the arena, one after the other.
    fn enter(&mut self, arena: &Arc<Arena>);

    /// Ends a run. Fails if it asked for another number of results than the arena has.
    fn leave(&self) -> Result<(), DeviceError>;

    /// Gives the arena other memory, after a failure that left parts of it unwritten.
    fn renew(&mut self);
}

/// Lowering of steps to operations of one device, and their execution.
pub trait Backend: Send + Sized + 'static {
    /// The backend of Burn whose operations the graphs have, besides kernels.
    type Burn: BackendIr;
    /// A kernel: an operation that Burn does not have.
    type Kernel: Send;
    /// Memory that a transport reads or writes during a call.
    type CallMemory: CallMemory;

    /// The device.
    fn device(&self) -> &<Self::Burn as BackendTypes>::Device;

    /// Whether it chooses kernels by measurement. All devices must then agree on them, so this is the same on all
    /// devices.
    fn tunes(&self) -> bool {
        false
    }

    /// Calls `f` with the choice of matmul kernels, after all launches have run. None without such a choice.
    fn tuned<R>(&mut self, f: impl FnOnce(&mut TunedMatmuls) -> R) -> Result<Option<R>, DeviceError> {
        let _ = f;
        Ok(None)
    }

    /// A note for the user on how it computes.
    fn note(&self) -> Option<&str> {
        None
    }

    /// A matmul by the library or kernel that computes the steps' matmuls.
    fn product(
        &mut self,
        left: FloatTensor<Self::Burn>,
        right: FloatTensor<Self::Burn>,
        digits: FactorDigits,
    ) -> Result<FloatTensor<Self::Burn>, KernelError> {
        let _ = digits;
        Ok(Self::Burn::float_matmul(left, right))
    }

    /// The target of its device plans.
    fn target(&self) -> Target;

    /// Fails where the device cannot run a Plan.
    fn check(&self, plan: &Plan, rank: usize) -> Result<(), ExecError> {
        let _ = (plan, rank);
        Ok(())
    }

    /// Makes a kernel ready to run.
    ///
    /// # Errors
    /// If its operands contradict the kernel, or there is no such kernel.
    fn prepare(&self, context: &DeviceContext<'_>, kernel: &Kernel) -> Result<Self::Kernel, LoweringError>;

    /// A view of a reshape or slice, if the backend can make one without a copy and Burn cannot.
    fn view(tensor: &Handle<Self>, operation: &BaseOperationIr) -> Option<Handle<Self>> {
        let _ = (tensor, operation);
        None
    }

    /// The memory of its arenas, if its kernels write their results there.
    fn arena(&mut self) -> Option<&mut dyn ArenaMemory> {
        None
    }

    /// Runs a kernel on the tensors of its launch.
    fn run_kernel(
        &mut self,
        kernel: &Self::Kernel,
        launch: &Launch,
        handles: &mut Handles<Self>,
        rng: RngState,
    ) -> Result<(), KernelError>;

    /// Tensors of the device with the elements of one of the host.
    fn upload(&mut self, host: HostTensor, lifetime: Upload) -> Vec<Handle<Self>>;

    /// Starts a copy of a device's elements, as they were uploaded, in order with earlier launches; the returned function
    /// waits for it.
    fn download(
        &self,
        tensors: Vec<Handle<Self>>,
        dtype: DType,
        values: Option<DType>,
        shape: &[usize],
    ) -> Download;

    /// Frees storage without readers.
    fn recycle(&mut self, tensor: Handle<Self>) {
        drop(tensor);
    }

    /// Memory for a call of a transport, which reads `tensor`, or nothing, and writes a result. It may write over what it
    /// reads if `over`. `gpu` is set where the transport works on the memory of that GPU.
    fn call_memory(
        &mut self,
        tensor: Option<Handle<Self>>,
        pieces: SentAndReceived<'_>,
        over: bool,
        gpu: Option<u32>,
    ) -> Result<CallBuffers<Self::CallMemory>, DeviceError>;

    /// The tensor that was received; none where nothing could be. Takes back memory that was sent.
    fn received(
        &mut self,
        memory: Self::CallMemory,
        piece: &CallPiece,
        sent: Option<Self::CallMemory>,
    ) -> Option<Handle<Self>>;

    /// Memory in use and reserved; none where the device does not tell. Waits for the device.
    fn memory(&self) -> Result<Option<Memory>, DeviceError> {
        Ok(None)
    }

    /// A run has come to a point at which a device may have something to do.
    fn reached(&mut self, event: RunEvent) {
        let _ = event;
    }

    /// The state of the GPU if this problem, in the words of the device or of a library that uses it, is the GPU's.
    fn fault(&mut self, problem: &str) -> Option<DeviceFault> {
        let _ = problem;
        None
    }

    /// Address of the device's stream, after all requested operations have been launched on it; `None` if the device has no
    /// streams.
    fn stream(&mut self) -> Result<Option<u64>, DeviceError> {
        Ok(None)
    }

    /// The recorder of graphs, if the device has graphs.
    fn graphs(&mut self) -> Option<&mut dyn Graphs<Handle<Self>>> {
        None
    }

    /// Address of a tensor's storage, where it can be known.
    fn address(tensor: &Handle<Self>) -> Option<usize> {
        let _ = tensor;
        None
    }
}
