//! All devices of a mesh as threads of this process, behind a synchronous facade.
//!
//! A device is one OS thread with an engine and a rayon pool of its own, of which the thread itself is the first member:
//! kernels of one device never wait for another's, and a device that waits in a collective blocks nobody. A call sends
//! each device one job and collects the answers. If any device fails, all are told to end; of the errors, that which caused
//! the others is reported.

use crate::devices::DeviceKind;
use crate::engine::{Engine, InputLeaf, ProgramId, StateInfo, input_leaves, panic_message};
use crate::error::{ExecError, Place};
use crate::host::HostTensor;
use crate::machine::Memory;
use meshwright_comm::{Timeouts, Transport, World};
use meshwright_plan::{Mesh, Plan};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How to start the devices.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClusterOptions {
    /// Cores to use, by default those that this process may use. Devices share them: each has `cores / devices` threads,
    /// at least one.
    pub cores: Option<usize>,
    /// Time-outs of collectives.
    pub timeouts: Timeouts,
    /// On what the first rank of this process runs; see [`DeviceKind::of_rank`] for the others.
    pub device: DeviceKind,
}

/// Gives each device its inputs: called on the device's own thread with its rank and what it needs, in the order of
/// [`Engine::input_leaves`].
pub type Provider = Arc<dyn Fn(usize, &[InputLeaf]) -> Result<Vec<HostTensor>, String> + Send + Sync>;

/// What one step gave.
#[derive(Clone, Debug)]
pub struct StepReport {
    /// The outputs, whole, by name.
    pub outputs: BTreeMap<String, HostTensor>,
    /// Time from the call to the last answer.
    pub wall: Duration,
    /// For each device the time in its program, without the provider.
    pub devices: Vec<Duration>,
}

type Job = Box<dyn FnOnce(&mut Engine) + Send>;

struct Device {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

/// The devices of a mesh. Dropping it ends them.
pub struct Cluster {
    mesh: Mesh,
    devices: Vec<Device>,
    plans: Vec<Loaded>,
    states: BTreeMap<String, Held>,
}

struct Loaded {
    plan: Arc<Plan>,
    inputs: Vec<Arc<[InputLeaf]>>,
}

/// A parameter or moment, and the range of each dim that each rank holds.
struct Held {
    info: StateInfo,
    ranges: Vec<Vec<Range<usize>>>,
}

impl Cluster {
    /// Starts a thread for each device of a mesh.
    pub fn threads(mesh: &Mesh, options: &ClusterOptions) -> Result<Cluster, ExecError> {
        let ends = World::new(mesh.devices(), options.timeouts);
        let ends = ends.into_iter().map(|t| Box::new(t) as Box<dyn Transport>).collect();
        Cluster::with_transports(mesh, ends, options)
    }

    /// Starts a thread for each end of a transport, which must be given in ascending rank.
    pub fn with_transports(
        mesh: &Mesh,
        ends: Vec<Box<dyn Transport>>,
        options: &ClusterOptions,
    ) -> Result<Cluster, ExecError> {
        let available = || std::thread::available_parallelism().map_or(1, usize::from);
        let cores = options.cores.unwrap_or_else(available);
        let threads = (cores / ends.len().max(1)).max(1);
        let mut devices = vec![];
        for (rank, end) in ends.into_iter().enumerate() {
            devices.push(start(rank, end, threads, options.device.of_rank(rank))?);
        }
        Ok(Cluster { mesh: mesh.clone(), devices, plans: vec![], states: BTreeMap::new() })
    }

    /// The mesh.
    pub fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    /// Runs a job on each device at once, and waits for all answers, in ascending rank.
    fn on_all<T: Send + 'static>(
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
        for (rank, answer) in answers.into_iter().enumerate() {
            match answer.and_then(|a| a.recv().ok()).unwrap_or(Err(ExecError::Gone { rank })) {
                Ok(value) => values.push(value),
                Err(e) => errors.push(e),
            }
        }
        crate::blame::cause(errors).map_or(Ok(values), Err)
    }

    /// Runs a job on one device.
    fn on_one<T: Send + 'static>(
        &self,
        rank: usize,
        job: impl FnOnce(&mut Engine) -> Result<T, ExecError> + Send + 'static,
    ) -> Result<T, ExecError> {
        let answer = self.devices.get(rank).and_then(|d| d.ask(job));
        answer.and_then(|a| a.recv().ok()).unwrap_or(Err(ExecError::Gone { rank }))
    }

    /// Loads a Plan on all devices.
    pub fn load(&mut self, plan: Arc<Plan>) -> Result<ProgramId, ExecError> {
        let shared = plan.clone();
        let loaded = self.on_all(move |engine| {
            let id = engine.load(shared.clone())?;
            let mut states = vec![];
            for info in engine.states() {
                states.push((info.clone(), engine.state_ranges(&info.name)?.to_vec()));
            }
            Ok((id, states))
        })?;
        let id = ProgramId(self.plans.len());
        let mut states: BTreeMap<String, Held> = BTreeMap::new();
        for (_, of_rank) in loaded {
            for (info, ranges) in of_rank {
                let held = Held { info: info.clone(), ranges: vec![] };
                states.entry(info.name).or_insert(held).ranges.push(ranges);
            }
        }
        self.states = states;
        let inputs = (0..self.devices.len()).map(|rank| input_leaves(&plan, rank).into()).collect();
        self.plans.push(Loaded { plan, inputs });
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

    /// Sets the parameters and moments of a program to their first values; see [`Engine::init_state`].
    pub fn init_state(&self, program: ProgramId, seed: u64) -> Result<(), ExecError> {
        self.on_all(move |engine| engine.init_state(program, seed)).map(|_| ())
    }

    fn loaded(&self, program: ProgramId) -> Result<&Loaded, ExecError> {
        self.plans.get(program.0).ok_or(ExecError::NoProgram { rank: 0, program: program.0 })
    }

    /// The inputs that a device needs for a program.
    pub fn input_leaves(&self, program: ProgramId, rank: usize) -> Result<&[InputLeaf], ExecError> {
        let loaded = self.loaded(program)?;
        loaded.inputs.get(rank).map(AsRef::as_ref).ok_or(ExecError::Gone { rank })
    }

    /// Runs a program once on all devices. `step_number` counts from 1.
    pub fn run(
        &self,
        program: ProgramId,
        step_number: u64,
        provider: &Provider,
    ) -> Result<StepReport, ExecError> {
        let begin = Instant::now();
        let loaded = self.loaded(program)?;
        let jobs = loaded.inputs.iter().map(|inputs| {
            let (inputs, provider) = (inputs.clone(), provider.clone());
            move |engine: &mut Engine| {
                let rank = engine.rank();
                let given = provider(rank, &inputs).map_err(|message| {
                    let error = ExecError::Provider { rank, message };
                    engine.abort(&error.to_string());
                    error
                })?;
                let begin = Instant::now();
                let outputs = engine.run(program, given, step_number)?;
                Ok((outputs, begin.elapsed()))
            }
        });
        let answers = self.on_each(jobs)?;
        let devices = answers.iter().map(|a| a.1).collect();
        let parts: Vec<_> = answers.into_iter().map(|a| a.0).collect();
        let outputs = self.whole_outputs(&loaded.plan, parts)?;
        Ok(StepReport { outputs, wall: begin.elapsed(), devices })
    }

    fn whole_outputs(
        &self,
        plan: &Plan,
        parts: Vec<BTreeMap<String, HostTensor>>,
    ) -> Result<BTreeMap<String, HostTensor>, ExecError> {
        let mut outputs = BTreeMap::new();
        for output in &plan.outputs {
            let buffer = plan.buffer(output.buf);
            let shape: Vec<usize> = buffer.extents.iter().map(|e| e.size).collect();
            let blocks = parts.iter().enumerate().filter_map(|(rank, part)| {
                let ranges = buffer.ranges(&plan.mesh, &plan.mesh.coords(rank));
                part.get(&output.name).map(|value| (ranges, value))
            });
            let whole = assemble(shape, blocks);
            let whole = whole.ok_or_else(|| ExecError::Plan {
                place: Box::new(Place { value: output.name.clone(), ..Place::default() }),
                problem: format!("the blocks of the output `{}` do not make a whole", output.name),
            })?;
            outputs.insert(output.name.clone(), whole);
        }
        Ok(outputs)
    }

    /// All parameters and moments of the loaded programs, in order of names.
    pub fn states(&self) -> impl Iterator<Item = &StateInfo> {
        self.states.values().map(|h| &h.info)
    }

    fn held(&self, name: &str) -> Result<&Held, ExecError> {
        self.states.get(name).ok_or_else(|| ExecError::State {
            rank: 0,
            name: name.into(),
            problem: "no loaded program has such a parameter or moment".into(),
        })
    }

    /// A parameter or moment, whole. Of copies that several devices hold, that of the lowest rank is taken.
    pub fn state(&self, name: &str) -> Result<HostTensor, ExecError> {
        let held = self.held(name)?;
        let mut seen: BTreeSet<Vec<(usize, usize)>> = BTreeSet::new();
        let mut blocks = vec![];
        for (rank, ranges) in held.ranges.iter().enumerate() {
            if seen.insert(ranges.iter().map(|r| (r.start, r.end)).collect()) {
                let name = name.to_string();
                blocks.push((ranges.clone(), self.on_one(rank, move |engine| engine.state(&name))?));
            }
        }
        let whole = assemble(held.info.shape.clone(), blocks.iter().map(|(r, b)| (r.clone(), b)));
        whole.ok_or_else(|| ExecError::State {
            rank: 0,
            name: name.into(),
            problem: "the blocks of the devices do not make a whole".into(),
        })
    }

    /// Sets a parameter or moment on all devices that hold a part of it.
    pub fn set_state(&self, name: &str, whole: &HostTensor) -> Result<(), ExecError> {
        let held = self.held(name)?;
        let fail = |problem: String| ExecError::State { rank: 0, name: name.into(), problem };
        if whole.shape != held.info.shape || whole.dtype() != held.info.dtype {
            let given = format!("{} of shape {:?} was given", whole.dtype(), whole.shape);
            return Err(fail(format!("{given}, not {} of {:?}", held.info.dtype, held.info.shape)));
        }
        let mut jobs = vec![];
        for ranges in &held.ranges {
            let Some(part) = whole.slice(ranges) else {
                return Err(fail(format!("{ranges:?} is not within {:?}", whole.shape)));
            };
            let name = name.to_string();
            jobs.push(move |engine: &mut Engine| engine.set_state(&name, part));
        }
        self.on_each(jobs).map(|_| ())
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

/// Puts blocks together; of equal blocks the first counts. None if a block does not fit.
fn assemble<'a>(
    shape: Vec<usize>,
    blocks: impl Iterator<Item = (Vec<Range<usize>>, &'a HostTensor)>,
) -> Option<HostTensor> {
    let mut whole: Option<HostTensor> = None;
    let mut seen: BTreeSet<Vec<(usize, usize)>> = BTreeSet::new();
    let mut elements = 0;
    for (ranges, block) in blocks {
        if seen.insert(ranges.iter().map(|r| (r.start, r.end)).collect()) {
            let whole = whole.get_or_insert_with(|| HostTensor::zeros(block.dtype(), shape.clone()));
            elements += block.data.len();
            if !whole.paste(&ranges, block) {
                return None;
            }
        }
    }
    whole.filter(|w| w.data.len() == elements)
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

fn start(
    rank: usize,
    end: Box<dyn Transport>,
    threads: usize,
    kind: DeviceKind,
) -> Result<Device, ExecError> {
    let (jobs, inbox) = channel::<Job>();
    let (ready, started) = channel::<Result<(), String>>();
    let body = move || {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(move |i| format!("device-{rank}.{i}"))
            .use_current_thread()
            .build();
        let made = match &pool {
            Ok(_) => Engine::on(kind, end).map_err(|e| match e {
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
    match started.recv() {
        Ok(Ok(())) => Ok(Device { jobs: Some(jobs), thread: Some(thread) }),
        Ok(Err(message)) => Err(failed(message)),
        Err(_) => Err(failed("it ended at once".into())),
    }
}
