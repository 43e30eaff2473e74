//! The devices of a mesh that belong to this process, as threads behind a synchronous facade.
//!
//! A device is one OS thread with an engine and a rayon pool of its own, whose first member is the thread itself:
//! kernels of one device never wait for another's, and a device that waits in a collective blocks no other. A call
//! sends each device one job and collects the answers. If any device fails, all abort; the root cause of the errors is
//! reported.
//!
//! On a mesh over several processes each process has a cluster, and all make the same calls in the same order.

mod copies;
mod device_thread;
pub(crate) mod devices;
mod merged_notes;
mod peak;
pub(crate) mod processes;
mod root_cause;
mod runs;
pub(crate) mod share;
mod shared_end;
mod states;

pub use devices::{DeviceCollectives, DeviceKind, Platform};
pub use processes::{About, ProcessHome, Processes};
pub use runs::{LaunchedStep, Provider, StepReport};

use crate::backend::Memory;
use crate::cluster::device_thread::{Answer, Device, spawn};
use crate::cluster::share::Blocks;
use crate::engine::{Engine, LocalInput, ProgramId, StateInfo, local_inputs};
use crate::error::ExecError;
use crate::trace::DeviceTrace;
use crate::watch::{KernelWatch, KernelsBy};
use meshwright_comm::{Timeouts, Transport, World};
use meshwright_device::error::NoAttentionKernel;
use meshwright_device::target::Target;
use meshwright_gpu::devices::memory;
use meshwright_gpu::load::Paths;
use meshwright_plan::{BufId, Mesh, Plan, ProgramInputKind};
use meshwright_sorted::{SortedMap, SortedSet};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Settings for the start of the devices.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    /// Cores for this process; by default the cores that it may use, divided among the processes that may use the same
    /// ones. Its devices share them: each has `cores / devices` threads, at least one.
    pub cores: Option<usize>,
    /// Time-outs of collectives.
    pub timeouts: Timeouts,
    /// The device of the first rank of this process; see [`DeviceKind::of_rank`] for the others.
    pub device: DeviceKind,
    /// Number of GPUs, where there may be fewer than ranks, which then share them.
    pub gpus: Option<usize>,
    /// The transport between GPUs.
    pub collectives: DeviceCollectives,
    /// Paths of NVIDIA's libraries.
    pub libraries: Paths,
    /// Whether other clusters may have the only device of this process too: whoever started them runs them one after the other.
    pub beside: bool,
}

impl ClusterOptions {
    /// Devices of that kind, with the cores that this process may use and the usual time-outs.
    pub fn on(device: DeviceKind) -> ClusterOptions {
        ClusterOptions {
            cores: None,
            timeouts: Timeouts::default(),
            device,
            gpus: None,
            collectives: DeviceCollectives::default(),
            libraries: Paths::default(),
            beside: false,
        }
    }
}

/// A GPU, and how many devices of this process it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuShare {
    /// Its number.
    pub gpu: usize,
    /// The devices.
    pub ranks: usize,
    /// Bytes of its memory, if the driver reports them.
    pub memory: Option<u64>,
    /// Its kind.
    pub target: Target,
}

/// The devices of a mesh, or this process's part of them. Dropping it ends them.
pub struct Cluster {
    mesh: Mesh,
    processes: Arc<Processes>,
    /// Rank of the first device here.
    first: usize,
    devices: Vec<Device>,
    /// Kind of each device.
    kinds: Vec<DeviceKind>,
    timeouts: Timeouts,
    libraries: Paths,
    plans: Vec<LoadedPlan>,
    states: SortedMap<String, Held>,
}

/// Pending answers of devices.
struct Asked<T> {
    answers: Receiver<Answer<T>>,
    /// Indices of the devices that have not answered.
    waiting: SortedSet<usize>,
    errors: Vec<(usize, ExecError)>,
}

struct LoadedPlan {
    inputs: Vec<Arc<[LocalInput]>>,
    outputs: Vec<Output>,
}

/// An output of a program.
struct Output {
    name: String,
    blocks: Blocks,
    /// Whether each process has the whole value.
    everywhere: bool,
}

/// A parameter or optimizer state, and the block that each rank holds.
struct Held {
    info: StateInfo,
    blocks: Blocks,
}

/// The cores that this process may use.
fn available() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

impl Cluster {
    /// Starts a thread for each device of a mesh.
    pub fn threads(mesh: &Mesh, options: &ClusterOptions) -> Result<Cluster, ExecError> {
        let ends = World::new(mesh.devices(), options.timeouts);
        let ends = ends.into_iter().map(|t| Box::new(t) as Box<dyn Transport>).collect();
        Cluster::with_transports(mesh, ends, options)
    }

    /// Starts a thread for each end of a transport. The ends are all devices of the mesh, in ascending rank.
    pub fn with_transports(
        mesh: &Mesh,
        ends: Vec<Box<dyn Transport>>,
        options: &ClusterOptions,
    ) -> Result<Cluster, ExecError> {
        Cluster::of(mesh, ends, Arc::new(Processes::alone()), options)
    }

    /// Starts a thread for each of this process's devices.
    pub fn start(
        mesh: &Mesh,
        processes: Arc<Processes>,
        options: &ClusterOptions,
    ) -> Result<Cluster, ExecError> {
        let failed = |message: String| ExecError::Start { rank: processes.rank(), message };
        match (processes.devices(), processes.take_ends(options.beside)) {
            (None, _) => Cluster::threads(mesh, options),
            (Some(n), _) if n != mesh.devices() => {
                Err(failed(format!("the mesh has {} devices, the processes have {n}", mesh.devices())))
            }
            (Some(_), None) => Err(failed("its devices are at work already".into())),
            (Some(_), Some(ends)) => Cluster::of(mesh, ends, processes, options),
        }
    }

    fn of(
        mesh: &Mesh,
        ends: Vec<Box<dyn Transport>>,
        processes: Arc<Processes>,
        options: &ClusterOptions,
    ) -> Result<Cluster, ExecError> {
        let cores = options.cores.unwrap_or_else(|| available() / processes.neighbors());
        let threads = (cores / ends.len().max(1)).max(1);
        let first = ends.first().map_or(0, |e| e.rank());
        let mut started = vec![];
        let kind = |local| options.device.of_rank(local, options.gpus);
        let kinds: Vec<DeviceKind> = (0..ends.len()).map(kind).collect();
        for (kind, end) in kinds.iter().zip(ends) {
            started.push(spawn(
                end.rank(),
                end,
                threads,
                kind.clone(),
                (options.collectives, options.timeouts, options.libraries.clone()),
            )?);
        }
        // All start before the first is waited for, since devices may wait for each other at their start.
        let mut devices = vec![];
        for s in started {
            devices.push(s.ready()?);
        }
        Ok(Cluster {
            mesh: mesh.clone(),
            processes,
            first,
            devices,
            kinds,
            timeouts: options.timeouts,
            libraries: options.libraries.clone(),
            plans: vec![],
            states: SortedMap::new(),
        })
    }

    /// The mesh.
    pub fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    /// The processes that the mesh is spread over.
    pub fn processes(&self) -> &Arc<Processes> {
        &self.processes
    }

    /// The devices of this process.
    pub fn ranks(&self) -> std::ops::Range<usize> {
        self.first..self.first + self.devices.len()
    }

    /// Runs a job on each device at once, and waits for all answers, in ascending rank.
    pub(crate) fn on_all<T: Send + 'static>(
        &self,
        job: impl Fn(&mut Engine) -> Result<T, ExecError> + Send + Sync + 'static,
    ) -> Result<Vec<T>, ExecError> {
        let job = Arc::new(job);
        let jobs = (0..self.devices.len()).map(|_| {
            let job = job.clone();
            move |engine: &mut Engine| job(engine)
        });
        self.on_each(jobs)
    }

    /// Runs a job of its own on each device, and waits for all answers.
    fn on_each<T: Send + 'static, F>(&self, jobs: impl IntoIterator<Item = F>) -> Result<Vec<T>, ExecError>
    where
        F: FnOnce(&mut Engine) -> Result<T, ExecError> + Send + 'static,
    {
        self.answered(self.ask_each(jobs))
    }

    /// Sends each device a job of its own, after its earlier jobs.
    fn ask_each<T: Send + 'static, F>(&self, jobs: impl IntoIterator<Item = F>) -> Asked<T>
    where
        F: FnOnce(&mut Engine) -> Result<T, ExecError> + Send + 'static,
    {
        let (answer, answers) = channel();
        let (mut waiting, mut errors) = (SortedSet::new(), vec![]);
        for (local, (device, job)) in self.devices.iter().zip(jobs).enumerate() {
            if device.ask(job, local, answer.clone()) {
                waiting.insert(local);
            } else {
                errors.push((local, ExecError::Gone { rank: self.first + local }));
            }
        }
        Asked { answers, waiting, errors }
    }

    /// The answers of devices, in ascending rank, or the root cause if one is missing. After a failure of one device
    /// the others have the timeout of a collective to end; GPUs have it in any case.
    fn answered<T>(&self, asked: Asked<T>) -> Result<Vec<T>, ExecError> {
        let Asked { answers, mut waiting, mut errors } = asked;
        let mut values = SortedMap::new();
        let begin = Instant::now();
        while !waiting.is_empty() {
            let answer = match self.patience(!errors.is_empty()) {
                Some(time) => answers.recv_timeout(time),
                None => answers.recv().map_err(RecvTimeoutError::from),
            };
            match answer {
                Ok((local, answer)) => {
                    waiting.remove(&local);
                    match answer {
                        Ok(value) => drop(values.insert(local, value)),
                        Err(e) => errors.push((local, e)),
                    }
                }
                Err(why) => {
                    let silent = std::mem::take(&mut waiting).into_iter();
                    errors.extend(silent.map(|local| (local, self.unanswered(local, why, begin))));
                }
            }
        }
        errors.sort_by_key(|(local, _)| *local);
        match root_cause::root_cause(errors.into_iter().map(|(_, e)| e).collect()) {
            None => Ok(values.into_values().collect()),
            Some(cause) => {
                self.processes.abort(&cause.to_string());
                Err(cause)
            }
        }
    }

    /// Limit for the devices' answers; none for threads without a failure. A collective's timeout says more, so it is
    /// shorter.
    fn patience(&self, failed: bool) -> Option<Duration> {
        let Timeouts { first_step, later } = self.timeouts;
        match failed {
            true => Some(later),
            false => self.chooses_kernels().then(|| first_step + later),
        }
    }

    fn unanswered(&self, local: usize, why: RecvTimeoutError, begin: Instant) -> ExecError {
        let rank = self.first + local;
        match why {
            RecvTimeoutError::Timeout => {
                self.devices[local].leave();
                let step_number = self.devices[local].step_number();
                let gpu = self.kinds[local].silent().map(Box::new);
                ExecError::Silent { rank, seconds: begin.elapsed().as_secs(), step_number, gpu }
            }
            RecvTimeoutError::Disconnected => ExecError::Gone { rank },
        }
    }

    /// Runs a job on the device of that rank.
    ///
    /// # Errors
    /// Those of the job, and of a device that is not here, has ended, or does not answer in time.
    pub fn on_one<T: Send + 'static>(
        &self,
        rank: usize,
        job: impl FnOnce(&mut Engine) -> Result<T, ExecError> + Send + 'static,
    ) -> Result<T, ExecError> {
        let local = rank.checked_sub(self.first).filter(|local| *local < self.devices.len());
        let (answer, answers) = channel();
        let asked = local.filter(|local| self.devices[*local].ask(job, *local, answer));
        let waiting = asked.into_iter().collect();
        let found = self.answered(Asked { answers, waiting, errors: vec![] })?;
        found.into_iter().next().ok_or(ExecError::Gone { rank })
    }

    /// Loads a Plan on all devices.
    pub fn load(&mut self, plan: Arc<Plan>) -> Result<ProgramId, ExecError> {
        let shared = plan.clone();
        let known = self.on_all(move |engine| {
            engine.load(shared.clone())?;
            Ok(engine.states().cloned().collect::<Vec<StateInfo>>())
        })?;
        let id = ProgramId(self.plans.len());
        let mut infos: SortedMap<String, StateInfo> =
            known.into_iter().flatten().map(|info| (info.name.clone(), info)).collect();
        for leaf in plan
            .program_inputs
            .iter()
            .filter(|l| matches!(l.kind, ProgramInputKind::Param | ProgramInputKind::OptimizerState))
        {
            if let Some(info) = infos.remove(&leaf.name) {
                let blocks = self.blocks(&plan, leaf.buf);
                self.states.entry(leaf.name.clone()).or_insert(Held { info, blocks });
            }
        }
        let inputs = self.ranks().map(|rank| local_inputs(&plan, rank).into()).collect();
        let outputs = plan.outputs.iter().map(|output| {
            let blocks = self.blocks(&plan, output.buf);
            let everywhere = blocks.whole_everywhere(&self.processes);
            Output { name: output.name.clone(), blocks, everywhere }
        });
        self.plans.push(LoadedPlan { inputs, outputs: outputs.collect() });
        Ok(id)
    }

    /// Starts or stops to sample the memory in use; see [`Engine::watch_memory`].
    pub fn watch_memory(&self, watch: bool) -> Result<(), ExecError> {
        self.on_all(move |engine| {
            engine.watch_memory(watch);
            Ok(())
        })
        .map(|_| ())
    }

    /// Memory of each device of this process; see [`Engine::memory`].
    pub fn memory(&self) -> Result<Vec<Option<Memory>>, ExecError> {
        self.on_all(|engine| Ok(engine.memory()))
    }

    /// Notes for the user on how the devices of this process communicate and compute, each once; see [`Engine::notes`].
    /// A note that only some devices have names them.
    pub fn notes(&self) -> Result<Vec<String>, ExecError> {
        Ok(merged_notes::merged(self.first, self.on_all(|engine| Ok(engine.notes()))?))
    }

    /// Reasons why attention steps of a program have no kernel, by step, on any device of this process; see
    /// [`Engine::attention_without_kernel`].
    pub fn attention_without_kernel(
        &self,
        program: ProgramId,
    ) -> Result<SortedMap<usize, NoAttentionKernel>, ExecError> {
        let all = self.on_all(move |engine| Ok(engine.attention_without_kernel(program)))?;
        Ok(all.into_iter().flatten().collect())
    }

    /// The shards of a value of a Plan.
    fn blocks(&self, plan: &Plan, buf: BufId) -> Blocks {
        let buffer = plan.buffer(buf);
        let ranges = (0..self.mesh.devices()).map(|rank| buffer.ranges(&plan.mesh, &plan.mesh.coords(rank)));
        Blocks {
            shape: buffer.extents.iter().map(|e| e.size).collect(),
            dtype: buffer.dtype,
            ranges: ranges.collect(),
            orders: buffer.orders(),
        }
    }

    /// Sets the parameters and optimizer state of a program to their first values; see [`Engine::init_state`].
    pub fn init_state(&self, program: ProgramId, seed: u64) -> Result<(), ExecError> {
        self.on_all(move |engine| engine.init_state(program, seed)).map(|_| ())
    }

    fn loaded(&self, program: ProgramId) -> Result<&LoadedPlan, ExecError> {
        self.plans.get(program.0).ok_or(ExecError::NoProgram { rank: 0, program: program.0 })
    }

    /// The inputs that a device of this process needs for a program.
    pub fn local_inputs(&self, program: ProgramId, rank: usize) -> Result<&[LocalInput], ExecError> {
        let loaded = self.loaded(program)?;
        let inputs = rank.checked_sub(self.first).and_then(|i| loaded.inputs.get(i));
        inputs.map(AsRef::as_ref).ok_or(ExecError::Gone { rank })
    }

    /// Whether devices compute asynchronously: then the next run should be launched before the outputs of the last are
    /// waited for.
    pub fn runs_ahead(&self) -> bool {
        self.kinds.iter().all(|kind| kind.runs_ahead())
    }

    /// Whether replicated values may differ in their last bits: on GPUs, which choose kernels by timing them.
    pub fn chooses_kernels(&self) -> bool {
        self.kinds.iter().any(|kind| kind.gpu_number().is_some())
    }

    /// The GPUs of this process's devices, in ascending number; none where devices are threads.
    pub fn gpus(&self) -> Vec<GpuShare> {
        let mut gpus: SortedMap<usize, GpuShare> = SortedMap::new();
        for (kind, gpu) in self.kinds.iter().filter_map(|kind| Some((kind, kind.gpu_number()?))) {
            let bytes = || memory(&self.libraries, u32::try_from(gpu).ok()?);
            let share = || GpuShare {
                gpu,
                ranks: 0,
                memory: bytes(),
                target: kind.target().unwrap_or_else(Target::h100),
            };
            gpus.entry(gpu).or_insert_with(share).ranks += 1;
        }
        gpus.into_values().collect()
    }

    /// Counts the kernels that devices launch, until the returned value ends.
    pub fn watch_kernels(&self, by: KernelsBy) -> KernelWatch {
        self.kinds.first().map_or_else(|| KernelWatch::start(by, |_| None), |kind| kind.watch_kernels(by))
    }

    /// Starts to record the devices' work in these steps of a program, by their numbers.
    pub fn trace(&self, program: ProgramId, steps: RangeInclusive<u64>) -> Result<(), ExecError> {
        self.on_all(move |engine| engine.trace(program, steps.clone())).map(|_| ())
    }

    /// The records of all devices of the world, in ascending rank, with times of one clock; recording ends.
    pub fn traced(&self) -> Result<Vec<DeviceTrace>, ExecError> {
        self.on_all(Engine::traced).map(|all| all.into_iter().next().unwrap_or_default())
    }

    /// Ends the devices and waits for their threads.
    pub fn shutdown(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.devices.iter_mut().for_each(Device::close);
        // A read from a GPU that is lost may never end.
        let limit = self.chooses_kernels().then_some(self.timeouts.later);
        self.devices.iter_mut().for_each(|device| device.join(limit));
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.end();
    }
}
