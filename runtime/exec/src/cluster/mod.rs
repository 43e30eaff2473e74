//! The devices of a mesh, or those of them that are this process's, as threads behind a synchronous facade.
//!
//! A device is one OS thread with an engine and a rayon pool of its own, of which the thread itself is the first member:
//! kernels of one device never wait for another's, and a device that waits in a collective blocks nobody. A call sends
//! each device one job and collects the answers. If any device fails, all are told to end; of the errors, that which caused
//! the others is reported.
//!
//! Where a mesh is spread over several processes, each has a cluster, and all make the same calls in the same order.

mod copies;
pub(crate) mod devices;
mod peak;
pub(crate) mod processes;
mod root_cause;
mod runs;
pub(crate) mod share;
mod shared_end;
mod states;

pub use devices::{CpuBackend, DeviceCollectives, DeviceKind};
pub use processes::{About, Processes};
pub use runs::{Provider, StepReport};

use crate::backend::Memory;
use crate::cluster::share::Blocks;
use crate::engine::{Engine, LocalInput, ProgramId, StateInfo, local_inputs, panic_message};
use crate::error::{ExecError, Place};
use crate::trace::DeviceTrace;
use meshwright_comm::{Timeouts, Transport, World, flush_subnormals};
use meshwright_gpu::load::Paths;
use meshwright_plan::{BufId, Mesh, Plan, ProgramInputKind};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// How to start the devices.
#[derive(Clone, Debug, Default)]
pub struct ClusterOptions {
    /// Cores for this process, by default those that it may use, divided among the processes that may use the same ones.
    /// Its devices share them: each has `cores / devices` threads, at least one.
    pub cores: Option<usize>,
    /// Time-outs of collectives.
    pub timeouts: Timeouts,
    /// On what the first rank of this process runs; see [`DeviceKind::of_rank`] for the others.
    pub device: DeviceKind,
    /// Number of GPUs, where there may be fewer than ranks, which then share them.
    pub gpus: Option<usize>,
    /// How GPUs communicate.
    pub collectives: DeviceCollectives,
    /// Where NVIDIA's libraries are.
    pub libraries: Paths,
}

type Job = Box<dyn FnOnce(&mut Engine) + Send>;

struct Device {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

/// The devices of a mesh, or this process's part of them. Dropping it ends them.
pub struct Cluster {
    mesh: Mesh,
    processes: Arc<Processes>,
    /// Rank of the first device here.
    first: usize,
    devices: Vec<Device>,
    chooses_kernels: bool,
    plans: Vec<LoadedPlan>,
    states: BTreeMap<String, Held>,
}

struct LoadedPlan {
    inputs: Vec<Arc<[LocalInput]>>,
    outputs: Vec<Output>,
}

/// An output of a program.
struct Output {
    name: String,
    blocks: Blocks,
    /// Whether each process has all of it.
    everywhere: bool,
}

/// A parameter or moment, and the block that each rank holds.
struct Held {
    info: StateInfo,
    blocks: Blocks,
}

impl Cluster {
    /// Starts a thread for each device of a mesh.
    pub fn threads(mesh: &Mesh, options: &ClusterOptions) -> Result<Cluster, ExecError> {
        let ends = World::new(mesh.devices(), options.timeouts);
        let ends = ends.into_iter().map(|t| Box::new(t) as Box<dyn Transport>).collect();
        Cluster::with_transports(mesh, ends, options)
    }

    /// Starts a thread for each end of a transport: those of all devices of the mesh, in ascending rank.
    pub fn with_transports(
        mesh: &Mesh,
        ends: Vec<Box<dyn Transport>>,
        options: &ClusterOptions,
    ) -> Result<Cluster, ExecError> {
        Cluster::of(mesh, ends, Arc::new(Processes::alone()), options)
    }

    /// Starts a thread for each of this process's devices: all those of the mesh where it is alone.
    pub fn start(
        mesh: &Mesh,
        processes: Arc<Processes>,
        options: &ClusterOptions,
    ) -> Result<Cluster, ExecError> {
        let failed = |message: String| ExecError::Start { rank: processes.rank(), message };
        match (processes.devices(), processes.take_ends()) {
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
        let available = || std::thread::available_parallelism().map_or(1, usize::from);
        let cores = options.cores.unwrap_or_else(|| available() / processes.neighbors());
        let threads = (cores / ends.len().max(1)).max(1);
        let first = ends.first().map_or(0, |e| e.rank());
        let mut started = vec![];
        for (local, end) in ends.into_iter().enumerate() {
            started.push(spawn(
                end.rank(),
                end,
                threads,
                options.device.of_rank(local).among(options.gpus),
                (options.collectives, options.timeouts, options.libraries.clone()),
            )?);
        }
        // All begin before one is waited for: devices may have to meet while they are made ready.
        let mut devices = vec![];
        for s in started {
            devices.push(s.ready()?);
        }
        Ok(Cluster {
            mesh: mesh.clone(),
            processes,
            first,
            devices,
            chooses_kernels: options.device.chooses_kernels(),
            plans: vec![],
            states: BTreeMap::new(),
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
        let mut answers = vec![];
        for (device, job) in self.devices.iter().zip(jobs) {
            answers.push(device.ask(job));
        }
        let mut values = vec![];
        let mut errors = vec![];
        for (rank, answer) in self.ranks().zip(answers) {
            match answer.and_then(|a| a.recv().ok()).unwrap_or(Err(ExecError::Gone { rank })) {
                Ok(value) => values.push(value),
                Err(e) => errors.push(e),
            }
        }
        match root_cause::root_cause(errors) {
            None => Ok(values),
            Some(cause) => {
                self.processes.abort(&cause.to_string());
                Err(cause)
            }
        }
    }

    /// Runs a job on one device.
    pub(crate) fn on_one<T: Send + 'static>(
        &self,
        rank: usize,
        job: impl FnOnce(&mut Engine) -> Result<T, ExecError> + Send + 'static,
    ) -> Result<T, ExecError> {
        let device = rank.checked_sub(self.first).and_then(|i| self.devices.get(i));
        let answer = device.and_then(|d| d.ask(job));
        answer.and_then(|a| a.recv().ok()).unwrap_or(Err(ExecError::Gone { rank }))
    }

    /// Loads a Plan on all devices.
    pub fn load(&mut self, plan: Arc<Plan>) -> Result<ProgramId, ExecError> {
        let shared = plan.clone();
        let known = self.on_all(move |engine| {
            engine.load(shared.clone())?;
            Ok(engine.states().cloned().collect::<Vec<StateInfo>>())
        })?;
        let id = ProgramId(self.plans.len());
        let mut infos: BTreeMap<String, StateInfo> =
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

    /// Whether to look at the memory in use after each step of a program; see [`Engine::watch_memory`].
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

    /// What the user should know of how the devices communicate and compute; see [`Engine::notes`].
    pub fn notes(&self) -> Result<Vec<String>, ExecError> {
        let all = self.on_all(|engine| Ok(engine.notes()))?;
        // All devices of a world have the same to say.
        Ok(all.into_iter().next().unwrap_or_default())
    }

    /// How a value of a Plan lies on the devices.
    fn blocks(&self, plan: &Plan, buf: BufId) -> Blocks {
        let buffer = plan.buffer(buf);
        let ranges = (0..self.mesh.devices()).map(|rank| buffer.ranges(&plan.mesh, &plan.mesh.coords(rank)));
        Blocks {
            shape: buffer.extents.iter().map(|e| e.size).collect(),
            dtype: buffer.dtype,
            ranges: ranges.collect(),
        }
    }

    /// Sets the parameters and moments of a program to their first values; see [`Engine::init_state`].
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

    /// Whether devices may compute the same to other last bits.
    pub fn chooses_kernels(&self) -> bool {
        self.chooses_kernels
    }

    /// Has all devices record what they do in those steps of a program, by their numbers.
    pub fn trace(&self, program: ProgramId, steps: RangeInclusive<u64>) -> Result<(), ExecError> {
        self.on_all(move |engine| engine.trace(program, steps.clone())).map(|_| ())
    }

    /// What all devices of the world have recorded, in ascending rank, with times of one clock; recording ends.
    pub fn traced(&self) -> Result<Vec<DeviceTrace>, ExecError> {
        self.on_all(Engine::traced).map(|all| all.into_iter().next().unwrap_or_default())
    }

    /// Ends the devices and waits for their threads.
    pub fn shutdown(mut self) {
        self.end();
    }

    fn end(&mut self) {
        for device in &mut self.devices {
            device.jobs = None;
        }
        for device in &mut self.devices {
            if let Some(thread) = device.thread.take() {
                // A panic of the thread was reported to whoever waited for its answer.
                let _ = thread.join();
            }
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.end();
    }
}

impl Device {
    /// Sends a job; the answer comes through the channel, which closes if the thread is gone.
    fn ask<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Engine) -> Result<T, ExecError> + Send + 'static,
    ) -> Option<Receiver<Result<T, ExecError>>> {
        let (answer, answers) = channel();
        let job: Job = Box::new(move |engine| {
            let done = catch_unwind(AssertUnwindSafe(|| job(engine))).unwrap_or_else(|panic| {
                let place = Box::new(Place { rank: engine.rank(), ..Place::default() });
                let error = ExecError::Panicked { place, message: panic_message(&*panic) };
                engine.abort(&error.to_string());
                Err(error)
            });
            // Nobody waits any more: then nobody needs the answer.
            let _ = answer.send(done);
        });
        self.jobs.as_ref()?.send(job).ok()?;
        Some(answers)
    }
}

/// A device whose thread makes itself ready.
struct Starting {
    rank: usize,
    device: Device,
    started: Receiver<Result<(), String>>,
}

impl Starting {
    fn ready(self) -> Result<Device, ExecError> {
        let failed = |message: String| ExecError::Start { rank: self.rank, message };
        match self.started.recv() {
            Ok(Ok(())) => Ok(self.device),
            Ok(Err(message)) => Err(failed(message)),
            Err(_) => Err(failed("it ended at once".into())),
        }
    }
}

fn spawn(
    rank: usize,
    end: Box<dyn Transport>,
    threads: usize,
    kind: DeviceKind,
    (collectives, timeouts, libraries): (DeviceCollectives, Timeouts, Paths),
) -> Result<Starting, ExecError> {
    let (jobs, inbox) = channel::<Job>();
    let (ready, started) = channel::<Result<(), String>>();
    let body = move || {
        flush_subnormals();
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(move |i| format!("device-{rank}.{i}"))
            .use_current_thread()
            .build();
        let made = match &pool {
            Ok(_) => collectives
                .over(end, kind, timeouts, libraries.clone())
                .and_then(|end| Engine::on(kind, end, &libraries))
                .map_err(|e| match e {
                    ExecError::Start { message, .. } => message,
                    other => other.to_string(),
                }),
            Err(e) => Err(e.to_string()),
        };
        let (mut engine, told) = match made {
            Ok(engine) => (engine, ready.send(Ok(()))),
            Err(message) => {
                // Nobody waits any more: then nobody needs to know.
                let _ = ready.send(Err(message));
                return;
            }
        };
        if told.is_err() {
            return;
        }
        while let Ok(job) = inbox.recv() {
            job(&mut engine);
        }
    };
    let failed = |message: String| ExecError::Start { rank, message };
    let thread = std::thread::Builder::new()
        .name(format!("device-{rank}"))
        .spawn(body)
        .map_err(|e| failed(e.to_string()))?;
    Ok(Starting { rank, device: Device { jobs: Some(jobs), thread: Some(thread) }, started })
}
