//! The programs of a device, and the tensors that it keeps from run to run.

use super::replays::{Peers, Recording, changes};
use super::runner::{Program, RunContext, RunError};
use crate::backend::{
    Backend, DeviceError, DeviceFault, Download, Handle, Memory, RngState, RunEvent, Upload,
};
use crate::error::ExecError;
use crate::tensor::Finiteness;
use crate::tensor::HostTensor;
use crate::trace::Recorder;
use crate::watch::watched;
use burn_backend::ops::FloatTensorOps;
use burn_backend::{Backend as _, DType as BurnType, Shape};
use meshwright_comm::{Group, Transport};
use meshwright_device::error::NoAttentionKernel;
use meshwright_device::kernels::matmul::FactorDigits;
use meshwright_device::stored::stored_as;
use meshwright_gpu::matmuls::KernelProposal;
use meshwright_plan::{Arithmetic, BufId, DType, Plan};
use meshwright_sorted::{SortedMap, SortedSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The value of a buffer before a run.
pub(crate) enum Binding<'a> {
    /// A tensor of the host.
    Host(HostTensor),
    /// A kept tensor, which is then no longer kept.
    Stored(&'a str),
    /// A kept tensor, which stays: the program gets a copy if it changes the storage.
    Copy(&'a str),
}

/// Programs and kept tensors of a device, whatever its backend. Programs are named by order of loading; all of them exist
/// when they are named.
pub(crate) trait Executor: Send {
    /// Prepares a Plan. `records_calls`: whether its collectives can be recorded.
    fn load(&mut self, plan: Arc<Plan>, rank: usize, records_calls: bool) -> Result<(), ExecError>;

    /// The Plan of a program.
    fn plan(&self, program: usize) -> Option<&Arc<Plan>>;

    /// The links over which a program sends or receives.
    fn links(&self, program: usize) -> Vec<Group>;

    /// See [`Backend::stream`].
    fn stream(&mut self) -> Result<Option<u64>, DeviceError>;

    /// Reasons why attention steps of a program have no kernel, by step.
    fn attention_without_kernel(&self, program: usize) -> SortedMap<usize, NoAttentionKernel>;

    /// Binds a buffer; false where no such tensor is kept.
    fn bind(&mut self, program: usize, buf: BufId, value: Binding<'_>) -> bool;

    /// Runs all steps; random values have the state `rng`, `at` is the step that runs, and `recorder` gets a record of
    /// each.
    fn run(
        &mut self,
        program: usize,
        rng: RngState,
        transport: &mut dyn Transport,
        sequence: &mut u64,
        at: &mut Option<usize>,
        recorder: Option<&mut Recorder>,
    ) -> Result<(), RunError>;

    /// The time that runs have waited for other devices since it was last asked for.
    fn take_waited(&mut self) -> Duration;

    /// Gives up the collectives that a failed run has left in flight.
    fn cancel(&mut self);

    /// See [`Backend::fault`].
    fn fault(&mut self, problem: &str) -> Option<DeviceFault>;

    /// Starts or stops to sample the memory in use after each step, which takes time, and resets the peak.
    fn watch_memory(&mut self, watch: bool);

    /// Starts or stops to examine every value, and drops earlier findings.
    fn examine(&mut self, examine: bool);

    /// Finiteness of each buffer of the program that ran, by its number.
    fn take_examined(&mut self) -> Vec<Finiteness>;

    /// Whether kernels without a known time are measured in later runs.
    fn measure_kernels(&mut self, measure: bool) -> Result<(), DeviceError>;

    /// The device's proposal for the choice of kernels; none if it does not choose, and then no device does.
    fn proposed_kernels(&mut self) -> Result<Option<KernelProposal>, DeviceError>;

    /// Chooses kernels by the proposals of all devices, in the order of their ranks.
    fn choose_kernels(&mut self, proposed: &[KernelProposal]) -> Result<(), DeviceError>;

    /// Whether the last run of a program was a recorded one.
    fn replays(&self, program: usize) -> bool;

    /// Note for the user on the runs since the last call.
    fn take_news(&mut self) -> Option<String>;

    /// Note for the user on how the device computes.
    fn note(&self) -> Option<&str>;

    /// Memory of the device; none if the device does not report it.
    fn memory(&mut self) -> Option<Memory>;

    /// The time of a product of two matrices of `n` rows and columns.
    fn time_product(&mut self, n: usize, arithmetic: Arithmetic) -> Result<MatmulTime, DeviceError>;

    /// Begins to copy a buffer's elements to the host.
    fn start_read(&mut self, program: usize, buf: BufId) -> Download;

    /// Keeps a buffer under a name; it ends if `take`.
    fn store(&mut self, program: usize, buf: BufId, name: &str, take: bool);

    /// Frees the buffers that are live at the end of a program, except `kept`.
    fn clear(&mut self, program: usize, kept: &SortedSet<BufId>);

    /// Keeps a tensor.
    fn set(&mut self, name: &str, value: HostTensor);

    /// Drops a kept tensor, if there is one.
    fn drop_kept(&mut self, name: &str);

    /// A copy of a kept tensor.
    fn get(&self, name: &str, dtype: DType, shape: &[usize]) -> Result<Option<HostTensor>, DeviceError>;

    /// Address of a kept tensor's storage, where it can be known.
    fn address(&self, name: &str) -> Option<usize>;
}

/// Programs and kept tensors of a device, whatever its backend.
pub struct Programs(pub(super) Box<dyn Executor>);

impl Programs {
    /// No programs yet, on a device with that backend.
    pub fn new(backend: impl Backend) -> Programs {
        Programs(Box::new(ProgramsOn::new(backend)))
    }
}

/// Programs and kept tensors of a device with that backend.
struct ProgramsOn<B: Backend> {
    backend: B,
    programs: Vec<Program<B>>,
    /// Progress of each program towards a recording.
    recordings: Vec<Recording<B>>,
    kept: SortedMap<String, Vec<Handle<B>>>,
    /// Why a program was not recorded that was to be.
    news: Option<String>,
    /// The program that ran last, and the programs that have not run.
    last: usize,
    fresh: SortedSet<usize>,
    /// Peak of the sampled memory in use, while it is watched.
    peak: Option<u64>,
    /// See [`Executor::take_waited`].
    waited: Duration,
    /// Finiteness of each buffer, while values are examined.
    examined: Option<Vec<Finiteness>>,
}

impl<B: Backend> ProgramsOn<B> {
    fn new(backend: B) -> ProgramsOn<B> {
        ProgramsOn {
            backend,
            programs: vec![],
            recordings: vec![],
            kept: SortedMap::new(),
            news: None,
            last: 0,
            fresh: SortedSet::new(),
            peak: None,
            waited: Duration::ZERO,
            examined: None,
        }
    }

    /// Has a program run in the ordinary way again.
    fn give_up(&mut self, program: usize) {
        let Some(bound) = self.recordings[program].give_up(&mut self.backend) else { return };
        let program = &mut self.programs[program];
        for (buf, tensor) in bound.inputs {
            program.bind(buf, vec![tensor]);
        }
        for (buf, name) in bound.kept {
            if let Some(tensors) = self.kept.remove(&name) {
                program.bind(buf, tensors);
            }
        }
    }
}

impl<B: Backend> Executor for ProgramsOn<B> {
    fn load(&mut self, plan: Arc<Plan>, rank: usize, records_calls: bool) -> Result<(), ExecError> {
        let (recording, why) = Recording::of(&mut self.backend, &plan, records_calls);
        self.recordings.push(recording);
        // It is the same on all ranks.
        self.news = why.filter(|_| rank == 0).or(self.news.take());
        let program = Program::new(&mut self.backend, plan, rank)?;
        if let Some(arena) = self.backend.arena() {
            arena.load(&program.arena);
        }
        // Their memory may be another one from now on. On all devices, whose arenas may differ: they record together.
        (0..self.programs.len()).for_each(|other| self.give_up(other));
        self.programs.push(program);
        self.fresh.insert(self.programs.len() - 1);
        Ok(())
    }

    fn plan(&self, program: usize) -> Option<&Arc<Plan>> {
        self.programs.get(program).map(|p| &p.plan)
    }

    fn links(&self, program: usize) -> Vec<Group> {
        self.programs.get(program).map_or_else(Vec::new, |p| p.device.links())
    }

    fn stream(&mut self) -> Result<Option<u64>, DeviceError> {
        self.backend.stream()
    }

    fn attention_without_kernel(&self, program: usize) -> SortedMap<usize, NoAttentionKernel> {
        self.programs.get(program).map_or_else(SortedMap::new, |p| p.device.attention_without_kernel.clone())
    }

    fn bind(&mut self, program: usize, buf: BufId, value: Binding<'_>) -> bool {
        let state = &self.recordings[program];
        let written = state.is_written(buf);
        if matches!((&value, written), (Binding::Copy(_), true) | (Binding::Host(_), false))
            && state.is_done()
        {
            self.give_up(program);
        }
        let kept = match value {
            Binding::Host(host) => {
                let of = &mut self.programs[program];
                self.recordings[program].write(&mut self.backend, of, buf, host);
                return true;
            }
            Binding::Stored(name) if self.recordings[program].reads(buf, name) => {
                return self.kept.contains_key(name);
            }
            Binding::Stored(name) => self.kept.remove(name),
            Binding::Copy(name) => self.kept.get(name).cloned(),
        };
        kept.map(|tensors| self.programs[program].bind(buf, tensors)).is_some()
    }

    fn run(
        &mut self,
        program: usize,
        rng: RngState,
        transport: &mut dyn Transport,
        sequence: &mut u64,
        at: &mut Option<usize>,
        recorder: Option<&mut Recorder>,
    ) -> Result<(), RunError> {
        let mut recorder = recorder;
        if recorder.is_some() || self.peak.is_some() || self.examined.is_some() || watched().is_some() {
            // Whoever looks sees an ordinary run.
            self.give_up(program);
        }
        if !self.recordings[program].is_done() && changes(&self.programs[program].plan) {
            // States that it changes may move to another address.
            (0..self.programs.len()).filter(|other| *other != program).for_each(|other| self.give_up(other));
        }
        let ProgramsOn { backend, programs, recordings, last, peak, waited, examined, .. } = self;
        let number = program;
        *last = program;
        let (program, recording) = (&mut programs[program], &mut recordings[program]);
        if program.draws() {
            backend.reached(RunEvent::Begun(rng.step));
        }
        let peers = Peers { transport, sequence };
        let why = recording.run(backend, program, peers, |backend, program, peers| {
            let (peak, waited) = (peak.as_mut(), &mut *waited);
            let (recorder, examined) = (recorder.as_deref_mut(), examined.as_mut());
            let (transport, sequence, at) = (&mut *peers.transport, &mut *peers.sequence, &mut *at);
            let ran = program.run(
                backend,
                RunContext {
                    program: number,
                    rng,
                    transport,
                    sequence,
                    at,
                    recorder,
                    peak,
                    waited,
                    examined,
                },
            );
            backend.reached(RunEvent::Step(None));
            ran
        })?;
        self.news = why.or(self.news.take());
        if self.fresh.remove(&number) {
            self.backend.reached(RunEvent::RanFirst);
        }
        Ok(())
    }

    fn replays(&self, program: usize) -> bool {
        self.recordings.get(program).is_some_and(Recording::is_done)
    }

    fn take_news(&mut self) -> Option<String> {
        self.news.take()
    }

    fn take_waited(&mut self) -> Duration {
        std::mem::take(&mut self.waited)
    }

    fn cancel(&mut self) {
        self.programs.iter_mut().for_each(Program::cancel);
    }

    fn fault(&mut self, problem: &str) -> Option<DeviceFault> {
        self.backend.fault(problem)
    }

    fn watch_memory(&mut self, watch: bool) {
        self.peak = watch.then_some(0);
    }

    fn examine(&mut self, examine: bool) {
        self.examined = examine.then(Vec::new);
    }

    fn take_examined(&mut self) -> Vec<Finiteness> {
        self.examined.take().unwrap_or_default()
    }

    fn measure_kernels(&mut self, measure: bool) -> Result<(), DeviceError> {
        self.backend.tuned(|products| products.measure(measure)).map(|_| ())
    }

    fn proposed_kernels(&mut self) -> Result<Option<KernelProposal>, DeviceError> {
        if !self.backend.tunes() {
            return Ok(None);
        }
        Ok(Some(self.backend.tuned(|products| products.proposed())?.unwrap_or_default()))
    }

    fn choose_kernels(&mut self, proposed: &[KernelProposal]) -> Result<(), DeviceError> {
        self.backend.tuned(|products| products.choose(proposed)).map(|_| ())
    }

    fn note(&self) -> Option<&str> {
        self.backend.note()
    }

    fn memory(&mut self) -> Option<Memory> {
        let memory = self.backend.memory().ok().flatten()?;
        let planned = self.programs.get(self.last).map_or(0, |p| p.planned);
        Some(Memory { peak: self.peak.unwrap_or(0), planned, ..memory })
    }

    fn time_product(&mut self, n: usize, arithmetic: Arithmetic) -> Result<MatmulTime, DeviceError> {
        // Kernels of the host read `bf16` as `f32`.
        let on_host = self.backend.target().host_kernels;
        let dtype = if on_host { arithmetic.wide() } else { arithmetic.stored() };
        let digits = match arithmetic {
            Arithmetic::TF32 => FactorDigits::Tf32,
            _ => FactorDigits::All,
        };
        timed_product(&mut self.backend, n, (stored_as(dtype), digits))
    }

    fn start_read(&mut self, program: usize, buf: BufId) -> Download {
        self.programs[program].start_read(&self.backend, buf)
    }

    fn store(&mut self, program: usize, buf: BufId, name: &str, take: bool) {
        let tensors = match (self.recordings[program].stays(name), &self.recordings[program]) {
            (Some(stays), Recording::Done(_)) => vec![stays],
            (Some(stays), _) => {
                self.programs[program].get(buf, take);
                vec![stays]
            }
            (None, Recording::Done(_)) if self.kept.contains_key(name) => return,
            (None, _) => self.programs[program].get(buf, take),
        };
        self.kept.insert(name.into(), tensors);
    }

    fn clear(&mut self, program: usize, kept: &SortedSet<BufId>) {
        if let Recording::Done(_) = &self.recordings[program] {
            return;
        }
        let program = &mut self.programs[program];
        let left: Vec<BufId> = program.left().difference(kept).copied().collect();
        for tensor in left.into_iter().flat_map(|buf| program.get(buf, true)) {
            self.backend.recycle(tensor);
        }
    }

    fn set(&mut self, name: &str, value: HostTensor) {
        (0..self.programs.len()).for_each(|program| self.give_up(program));
        self.kept.insert(name.into(), self.backend.upload(value, Upload::Kept));
    }

    fn drop_kept(&mut self, name: &str) {
        self.kept.remove(name);
    }

    fn get(&self, name: &str, dtype: DType, shape: &[usize]) -> Result<Option<HostTensor>, DeviceError> {
        let kept = self.kept.get(name).cloned();
        kept.map(|tensors| self.backend.download(tensors, dtype, None, shape)()).transpose()
    }

    fn address(&self, name: &str) -> Option<usize> {
        self.kept.get(name).and_then(|t| t.first()).and_then(B::address)
    }
}

/// Time of a matmul.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MatmulTime {
    pub(crate) wall: Duration,
    /// If threads of this process computed it: the processor time of the thread that worked longest, and of all
    /// threads. Other processes on the machine do not change it.
    pub(crate) processor: Option<(Duration, Duration)>,
}

/// The processor time of each thread of this one's pool.
fn thread_times() -> Vec<Duration> {
    rayon::broadcast(|_| {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::new(now.tv_sec.cast_unsigned(), now.tv_nsec as u32)
    })
}

/// The time of a product of two matrices of ones.
fn timed_product<B: Backend>(
    backend: &mut B,
    n: usize,
    (dtype, digits): (BurnType, FactorDigits),
) -> Result<MatmulTime, DeviceError> {
    let on_host = backend.target().host_kernels;
    let device = backend.device().clone();
    let ones = || B::Burn::float_ones(Shape::new([n, n]), &device, dtype.into());
    let done = || B::Burn::sync(&device).map_err(|e| DeviceError(e.to_string()));
    let (left, right) = (ones(), ones());
    done()?;
    let before = if on_host { thread_times() } else { Vec::new() };
    let begin = Instant::now();
    let product = backend.product(left, right, digits).map_err(|e| DeviceError(e.to_string()))?;
    done()?;
    let wall = begin.elapsed();
    let after = if on_host { thread_times() } else { Vec::new() };
    drop(product);
    let worked = after.iter().zip(&before).map(|(a, b)| a.saturating_sub(*b));
    let longest = worked.clone().max();
    Ok(MatmulTime { wall, processor: longest.map(|longest| (longest, worked.sum())) })
}
