//! The engine of one device: its parameters and optimizer state, and the programs that work on them.

mod faults;
pub(crate) mod interpreter;
mod kernels;
mod link_setup;
mod links;
mod notes;
pub(crate) mod place;
pub(crate) mod programs;
pub(crate) mod replays;
pub(crate) mod runner;
mod runs_in_flight;
pub(crate) mod slow_matmuls;
mod step_inputs;

pub(crate) use programs::MatmulTime;
pub use runs_in_flight::DeviceReport;
pub use step_inputs::{LocalInput, local_inputs};

use crate::backend::{DeviceError, Download, Memory, RngState};
use crate::cluster::devices::DeviceKind;
use crate::error::{ExecError, Place};
use crate::tensor::{Finiteness, HostTensor};
use crate::trace::{DeviceTrace, Recorder};
use links::axis_sets;
use meshwright_comm::{Collectives, Group, NotAGroup, Tag, Transport};
use meshwright_gpu::load::Paths;
use meshwright_plan::{Arithmetic, DType, Init, Plan, ProgramInput, ProgramInputKind};
use meshwright_sorted::{SortedMap, SortedSet};
use place::place;
use programs::Executor;
use runner::RunError;
use runs_in_flight::LaunchedRun;
use std::any::Any;
use std::collections::VecDeque;
use std::ops::{Range, RangeInclusive};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// A loaded program, by order of loading.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProgramId(pub usize);

/// A parameter or optimizer state, whole.
#[derive(Clone, Debug, PartialEq)]
pub struct StateInfo {
    /// Path of the parameter or optimizer state.
    pub name: String,
    /// [`ProgramInputKind::Param`] or [`ProgramInputKind::OptimizerState`].
    pub kind: ProgramInputKind,
    /// Extents in declared order.
    pub shape: Vec<usize>,
    /// Type of the elements.
    pub dtype: DType,
    /// First value, for [`Engine::init_state`].
    pub init: Option<Init>,
}

/// The part of a parameter or optimizer state on this device. The executor keeps its tensor, except while a program
/// runs.
struct DeviceState {
    info: StateInfo,
    ranges: Vec<Range<usize>>,
    /// Dims that are stored in another order, each with the position at each place.
    orders: Vec<(usize, Vec<usize>)>,
}

impl DeviceState {
    /// The first values of this device's part.
    fn first(&self, init: &Init, seed: u64) -> Option<HostTensor> {
        let lengths = |ranges: &[Range<usize>]| ranges.iter().map(ExactSizeIterator::len).collect::<Vec<_>>();
        let drawn = |ranges: &[Range<usize>]| {
            let shape = lengths(ranges);
            let mut values = vec![0.0; shape.iter().product()];
            let StateInfo { name, shape: whole, dtype, .. } = &self.info;
            meshwright_plan::random::fill(init, seed, name, whole, ranges, &mut values);
            HostTensor { shape, data: crate::HostData::from_f64(*dtype, values) }
        };
        let Some((dim, order)) = self.orders.first() else { return Some(drawn(&self.ranges)) };
        // Position by position, as each is drawn by its own number.
        let mut all = HostTensor::zeros(self.info.dtype, lengths(&self.ranges));
        let (mut from, mut to) = (self.ranges.clone(), lengths(&self.ranges));
        let mut to: Vec<Range<usize>> = to.drain(..).map(|n| 0..n).collect();
        for (at, place) in self.ranges[*dim].clone().enumerate() {
            from[*dim] = order[place]..order[place] + 1;
            to[*dim] = at..at + 1;
            all.paste(&to, &drawn(&from)).then_some(())?;
        }
        Some(all)
    }
}

/// RNG state of a program that does not train: the values of an example depend on its number in the data set, not on
/// its batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExampleDraws {
    /// Another seed gives other values.
    pub seed: u64,
    /// The number of the first example of the batch.
    pub first: u64,
}

/// Source of the inputs of a step.
enum Inputs {
    /// This device's blocks, in the order of [`Engine::local_inputs`].
    Given(Vec<HostTensor>),
    /// See [`Engine::hold_inputs`].
    Held,
}

/// The engine runs [`Plan`]s on one device. Parameters and optimizer states are shared by all loaded programs, by name.
///
/// After an error in [`Engine::run`] all devices abort, and the engine cannot be used further.
pub struct Engine {
    rank: usize,
    /// Goes before the transport: communicators end after the graphs that use them.
    executor: Box<dyn Executor>,
    transport: Box<dyn Transport>,
    /// Whether each program has run, by order of loading.
    programs_ran: Vec<bool>,
    state: SortedMap<String, DeviceState>,
    sequence: u64,
    /// Seed of the random values of training steps.
    seed: u64,
    /// RNG state of other programs, if examples are numbered.
    draws: Option<ExampleDraws>,
    ran: bool,
    broken: bool,
    /// Note for the user on the library and place of matmuls.
    products_note: Option<String>,
    /// The program that ran last.
    last: Option<ProgramId>,
    /// Number of the step that was requested last, for reports of timeouts.
    asked: Arc<AtomicU64>,
    /// Runs whose outputs were not taken yet.
    launched: VecDeque<LaunchedRun>,
    recorder: Option<Recorder>,
}

impl Engine {
    /// The engine of a device at that end of the transport. Kernels of the host use the rayon pool of the calling thread. What a
    /// GPU needs of NVIDIA is looked for in `libraries`.
    ///
    /// # Errors
    /// If there is no such device, or this build cannot use it.
    pub fn on(
        kind: &DeviceKind,
        transport: Box<dyn Transport>,
        libraries: &Paths,
    ) -> Result<Engine, ExecError> {
        Ok(Engine::with(kind.programs(transport.rank(), libraries)?.0, transport))
    }

    fn with(executor: Box<dyn Executor>, transport: Box<dyn Transport>) -> Engine {
        Engine {
            rank: transport.rank(),
            transport,
            executor,
            programs_ran: vec![],
            state: SortedMap::new(),
            sequence: 0,
            seed: 0,
            draws: None,
            ran: false,
            broken: false,
            products_note: None,
            last: None,
            asked: Arc::default(),
            launched: VecDeque::new(),
            recorder: None,
        }
    }

    /// This device.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The device's end of the transport.
    pub fn transport(&mut self) -> &mut dyn Transport {
        &mut *self.transport
    }

    /// Tells all devices to end, and why; later calls of [`Engine::run`] fail.
    pub fn abort(&mut self, reason: &str) {
        self.broken = true;
        self.transport.abort(reason);
    }

    /// Prepares a Plan for this device. All devices must load the same Plans in the same order: they compare its hash.
    pub fn load(&mut self, plan: Arc<Plan>) -> Result<ProgramId, ExecError> {
        let loaded = self.try_load(plan);
        self.end_all_on_error(loaded)
    }

    fn try_load(&mut self, plan: Arc<Plan>) -> Result<ProgramId, ExecError> {
        let at = |problem: String| ExecError::Plan { place: place(&plan, self.rank, None, None), problem };
        let devices = plan.mesh.devices();
        if devices != self.transport.size() {
            return Err(at(format!("it is for {devices} devices, not for {}", self.transport.size())));
        }
        let world = Group::world(devices, self.rank).map_err(|e: NotAGroup| at(e.to_string()))?;
        self.sequence += 1;
        let tag = Tag::new(self.sequence, "plan", 0);
        let place = place(&plan, self.rank, None, None);
        let at_plan = place.clone();
        self.transport
            .agree(&world, &tag, plan.hash().as_bytes())
            .map_err(|source| ExecError::Comm { place, source })?;
        let prepared = self.transport.prepare(&plan.mesh, &axis_sets(&plan));
        prepared.map_err(|source| ExecError::Comm { place: at_plan, source })?;
        let records_calls = self.transport.recorder().is_some();
        self.executor.load(plan.clone(), self.rank, records_calls)?;
        self.prepare_links(ProgramId(self.programs_ran.len()))?;
        self.agree_on_kernels(&plan)?;
        for leaf in &plan.program_inputs {
            if matches!(leaf.kind, ProgramInputKind::Param | ProgramInputKind::OptimizerState) {
                self.declare(&plan, leaf)?;
            }
        }
        self.programs_ran.push(false);
        Ok(ProgramId(self.programs_ran.len() - 1))
    }

    fn declare(&mut self, plan: &Plan, leaf: &ProgramInput) -> Result<(), ExecError> {
        let buffer = plan.buffer(leaf.buf);
        let ranges = buffer.ranges(&plan.mesh, &plan.mesh.coords(self.rank));
        let shape: Vec<usize> = buffer.extents.iter().map(|e| e.size).collect();
        let info = StateInfo {
            name: leaf.name.clone(),
            kind: leaf.kind.clone(),
            shape,
            dtype: buffer.dtype,
            init: leaf.init.clone(),
        };
        let fail = |problem| Err(ExecError::State { rank: self.rank, name: leaf.name.clone(), problem });
        if let Some(next) = leaf.next.map(|n| plan.buffer(n))
            && (next.dtype != info.dtype || next.ranges(&plan.mesh, &plan.mesh.coords(self.rank)) != ranges)
        {
            return fail("its next value differs in dtype or placement".into());
        }
        match self.state.get(&leaf.name) {
            None => {
                self.state.insert(leaf.name.clone(), DeviceState { info, ranges, orders: buffer.orders() });
                Ok(())
            }
            Some(known) if known.info.dtype != info.dtype => fail(format!(
                "it is {} here and {} in a program loaded earlier",
                info.dtype, known.info.dtype
            )),
            Some(known) if known.info.shape != info.shape || known.ranges != ranges => fail(format!(
                "this device holds {ranges:?} here and {:?} in a program loaded earlier",
                known.ranges
            )),
            Some(_) => Ok(()),
        }
    }

    fn plan(&self, program: ProgramId) -> Result<&Arc<Plan>, ExecError> {
        self.executor.plan(program.0).ok_or(ExecError::NoProgram { rank: self.rank, program: program.0 })
    }

    /// Runs a program once. `inputs` are this device's blocks in the order of [`Engine::local_inputs`]; `step_number`
    /// counts from 1. Gives this device's blocks of the outputs, by name.
    ///
    /// On an error (or a panic of a kernel) all devices abort.
    pub fn run(
        &mut self,
        program: ProgramId,
        inputs: Vec<HostTensor>,
        step_number: u64,
    ) -> Result<SortedMap<String, HostTensor>, ExecError> {
        Ok(self.run_with(program, Inputs::Given(inputs), step_number)?.outputs)
    }

    /// [`Engine::run`] of a program that does not train, with examples that are numbered.
    ///
    /// # Errors
    /// Those of [`Engine::run`].
    pub fn run_drawing(
        &mut self,
        program: ProgramId,
        inputs: Vec<HostTensor>,
        draws: ExampleDraws,
    ) -> Result<DeviceReport, ExecError> {
        self.draws = Some(draws);
        let ran = self.run_with(program, Inputs::Given(inputs), 1);
        self.draws = None;
        ran
    }

    /// [`Engine::run`], with the finiteness of each buffer of the Plan on this device, by its number. Slow: it examines
    /// each value.
    ///
    /// # Errors
    /// Those of [`Engine::run`].
    pub fn run_examined(
        &mut self,
        program: ProgramId,
        inputs: Vec<HostTensor>,
        step_number: u64,
    ) -> Result<(DeviceReport, Vec<Finiteness>), ExecError> {
        self.executor.examine(true);
        let ran = self.run_with(program, Inputs::Given(inputs), step_number);
        let seen = self.executor.take_examined();
        Ok((ran?, seen))
    }

    /// [`Engine::run`] without its outputs, which may still be computed when this comes back: [`Engine::take_outputs`] waits for
    /// them.
    ///
    /// # Errors
    /// Those of [`Engine::run`].
    pub fn launch(
        &mut self,
        program: ProgramId,
        inputs: Vec<HostTensor>,
        step_number: u64,
    ) -> Result<(), ExecError> {
        self.launch_with(program, Inputs::Given(inputs), step_number)
    }

    /// The report of the first run whose outputs were not taken, with these outputs. Fails after an error, and without
    /// such a run.
    ///
    /// # Errors
    /// Those of [`Engine::run`].
    pub fn take_outputs(&mut self) -> Result<DeviceReport, ExecError> {
        let Some(launched) = self.launched.pop_front() else {
            return Err(ExecError::Broken { rank: self.rank });
        };
        let (begun, place) = (launched.begun, launched.place());
        let taken = catch_unwind(AssertUnwindSafe(|| launched.outputs()));
        let taken = taken.unwrap_or_else(|panic| {
            Err(ExecError::Panicked { place: place.clone(), message: panic_message(&*panic) })
        });
        let taken = taken.and_then(|mut report| {
            report.time = begun.elapsed();
            // With a later launch this would wait for that too.
            if self.launched.is_empty() {
                self.transport.settle().map_err(|source| ExecError::Comm { place, source })?;
            }
            Ok(report)
        });
        self.end_all_on_error(taken)
    }

    fn run_with(
        &mut self,
        program: ProgramId,
        inputs: Inputs,
        step_number: u64,
    ) -> Result<DeviceReport, ExecError> {
        self.launch_with(program, inputs, step_number)?;
        self.take_outputs()
    }

    fn launch_with(&mut self, program: ProgramId, inputs: Inputs, step_number: u64) -> Result<(), ExecError> {
        if self.broken {
            return Err(ExecError::Broken { rank: self.rank });
        }
        self.last = Some(program);
        self.asked.store(step_number, Ordering::Relaxed);
        let mut at = None;
        let ran = catch_unwind(AssertUnwindSafe(|| self.try_run(program, inputs, step_number, &mut at)));
        let ran = ran.unwrap_or_else(|panic| {
            let message = panic_message(&*panic);
            let place = match self.executor.plan(program.0) {
                Some(plan) => place(plan, self.rank, Some(step_number), at),
                None => Box::default(),
            };
            Err(ExecError::Panicked { place, message })
        });
        self.end_all_on_error(ran)
    }

    fn end_all_on_error<T>(&mut self, result: Result<T, ExecError>) -> Result<T, ExecError> {
        let result = result.map_err(|error| self.explained(error));
        if let Err(error) = &result {
            self.abort(&error.to_string());
            // After the abort, so that others report the cause: cancelled collectives are a consequence.
            self.executor.cancel();
        }
        result
    }

    fn try_run(
        &mut self,
        id: ProgramId,
        inputs: Inputs,
        step_number: u64,
        at: &mut Option<usize>,
    ) -> Result<(), ExecError> {
        let (rank, begun) = (self.rank, Instant::now());
        let plan = self.plan(id)?.clone();
        self.bind_all(id, &plan, inputs, step_number)?;
        let (seed, step, first_example) = match self.draws {
            _ if plan.trains() => (self.seed, step_number, None),
            Some(draws) => (draws.seed, 0, Some(draws.first)),
            None => (meshwright_plan::random::FIXED_SEED, 0, None),
        };
        let rng = RngState { seed, step, first_example, ..RngState::default() };
        let first = !self.programs_ran[id.0];
        if first {
            self.measure_kernels(&plan, true)?;
        }
        let mut recorder = self.recorder.as_mut();
        if !recorder.as_mut().is_some_and(|r| r.begin(id.0, step_number, plan.steps.len())) {
            recorder = None;
        }
        let (sequence, recording) = (&mut self.sequence, recorder.as_deref_mut());
        let ran = self.executor.run(id.0, rng, &mut *self.transport, sequence, at, recording);
        let launching = begun.elapsed();
        ran.map_err(|ended| {
            let place = place(&plan, rank, Some(step_number), *at);
            match ended {
                RunError::Kernel(source) => ExecError::Kernel { place, source },
                RunError::Comm(source) => ExecError::Comm { place, source },
                RunError::Device(DeviceError(problem)) => ExecError::Device { place, problem },
                RunError::Buffer(m) => ExecError::Plan { place, problem: m.to_string() },
            }
        })?;
        *at = None;
        if let Some(r) = recorder {
            r.end();
        }
        let outputs = self.collect(id, &plan);
        let report = DeviceReport {
            launching,
            graph: self.executor.replays(id.0),
            waited: self.executor.take_waited(),
            note: self.take_note(),
            ..DeviceReport::default()
        };
        let mut launched = LaunchedRun { plan: plan.clone(), rank, step_number, begun, outputs, report };
        if first {
            launched.wait()?;
            let settled = self.transport.settle();
            settled.map_err(|source| ExecError::Comm { place: launched.place(), source })?;
            self.programs_ran[id.0] = true;
            self.measure_kernels(&plan, false)?;
            self.agree_on_kernels(&plan)?;
        }
        self.launched.push_back(launched);
        if !self.ran {
            self.ran = true;
            self.transport.first_step_done();
        }
        Ok(())
    }

    /// Begins to read the outputs, and takes the next state out of a program, and clears the rest.
    fn collect(&mut self, id: ProgramId, plan: &Plan) -> Vec<(String, Download)> {
        let outputs = plan.outputs.iter();
        let outputs = outputs.map(|o| (o.name.clone(), self.executor.start_read(id.0, o.buf))).collect();
        let held =
            |l: &&ProgramInput| matches!(l.kind, ProgramInputKind::Param | ProgramInputKind::OptimizerState);
        let finals: Vec<_> =
            plan.program_inputs.iter().filter(held).map(|l| (&l.name, l.next.unwrap_or(l.buf))).collect();
        for (i, (name, buf)) in finals.iter().enumerate() {
            let last = finals[i + 1..].iter().all(|later| later.1 != *buf);
            self.executor.store(id.0, *buf, name, last);
        }
        self.executor.clear(id.0, &finals.iter().map(|f| f.1).collect::<SortedSet<_>>());
        outputs
    }

    /// Starts to record the device's work in these steps of a program, by their numbers.
    pub fn trace(&mut self, program: ProgramId, steps: RangeInclusive<u64>) -> Result<(), ExecError> {
        self.plan(program)?;
        self.recorder = Some(Recorder::new(program.0, steps));
        Ok(())
    }

    /// The records of all devices since [`Engine::trace`], in ascending rank, with times of rank 0's clock; recording
    /// ends. All devices of the world must call it.
    pub fn traced(&mut self) -> Result<Vec<DeviceTrace>, ExecError> {
        let place = Box::new(Place { rank: self.rank, value: "trace".into(), ..Place::default() });
        let recorder = self.recorder.take().unwrap_or_else(|| Recorder::new(0, 0..=0));
        let world = match Group::world(self.transport.size(), self.rank) {
            Ok(world) => world,
            Err(e) => return Err(ExecError::Plan { place, problem: e.to_string() }),
        };
        let gathered = recorder.gather(&mut *self.transport, &world, &mut self.sequence);
        self.end_all_on_error(gathered.map_err(|source| ExecError::Comm { place, source }))
    }

    /// Sets the parameters and optimizer state of a program to their first values. Element `i` (row-major in declared order)
    /// depends on the seed, the name and `i` alone. From then on training steps draw their random values from that seed.
    pub fn init_state(&mut self, program: ProgramId, seed: u64) -> Result<(), ExecError> {
        self.seed = seed;
        let plan = self.plan(program)?.clone();
        for leaf in &plan.program_inputs {
            let Some(state) = self.state.get(&leaf.name) else { continue };
            if !matches!(leaf.kind, ProgramInputKind::Param | ProgramInputKind::OptimizerState) {
                continue;
            }
            let Some(init) = &leaf.init else {
                let problem = "the plan gives no first value".into();
                return Err(ExecError::State { rank: self.rank, name: leaf.name.clone(), problem });
            };
            let Some(first) = state.first(init, seed) else {
                let problem = "its first value does not fit what the device holds".into();
                return Err(ExecError::State { rank: self.rank, name: leaf.name.clone(), problem });
            };
            self.executor.set(&leaf.name, first);
        }
        Ok(())
    }

    /// All parameters and optimizer states of the loaded programs, in order of names.
    pub fn states(&self) -> impl Iterator<Item = &StateInfo> {
        self.state.values().map(|s| &s.info)
    }

    fn held(&self, name: &str) -> Result<&DeviceState, ExecError> {
        self.state.get(name).ok_or_else(|| self.unknown(name))
    }

    fn unknown(&self, name: &str) -> ExecError {
        let problem = "no loaded program has such a parameter or optimizer state".into();
        ExecError::State { rank: self.rank, name: name.into(), problem }
    }

    /// This device's range of a parameter or optimizer state along each dim.
    pub fn state_ranges(&self, name: &str) -> Result<&[Range<usize>], ExecError> {
        Ok(&self.held(name)?.ranges)
    }

    /// This device's block of a parameter or optimizer state.
    pub fn state(&self, name: &str) -> Result<HostTensor, ExecError> {
        let state = self.held(name)?;
        let shape: Vec<usize> = state.ranges.iter().map(ExactSizeIterator::len).collect();
        let held = self.executor.get(name, state.info.dtype, &shape);
        let fail = |problem| ExecError::State { rank: self.rank, name: name.into(), problem };
        held.map_err(|DeviceError(problem)| fail(problem))?.ok_or_else(|| fail("it has no value yet".into()))
    }

    /// Sets this device's block of a parameter or optimizer state.
    pub fn set_state(&mut self, name: &str, value: HostTensor) -> Result<(), ExecError> {
        let unknown = self.unknown(name);
        let Some(state) = self.state.get_mut(name) else { return Err(unknown) };
        let problem = mismatch(&value, state.info.dtype, &state.ranges);
        if let Some(problem) = problem {
            return Err(ExecError::State { rank: self.rank, name: name.into(), problem });
        }
        self.executor.set(name, value);
        Ok(())
    }

    /// Starts or stops to sample the memory in use after each step, which takes time, and resets the peak.
    pub fn watch_memory(&mut self, watch: bool) {
        self.executor.watch_memory(watch);
    }

    /// Memory of the device in use, its peak while it was watched, and the reserved memory; none if the device does not
    /// report it. Compare it with `peak_bytes` of the Plan's summary. A device that several ranks share reports the sum
    /// of all.
    pub fn memory(&mut self) -> Option<Memory> {
        self.executor.memory()
    }

    /// The time of a product of two matrices of `n` rows and columns, of the dtype in which this device computes `of`.
    ///
    /// # Errors
    /// Where the device fails.
    pub(crate) fn time_product(&mut self, n: usize, of: Arithmetic) -> Result<MatmulTime, ExecError> {
        self.executor.time_product(n, of).map_err(|DeviceError(message)| ExecError::Start {
            rank: self.rank,
            message: format!("cannot measure its peak: {message}"),
        })
    }

    /// Address of the storage of a parameter or optimizer state: it stays the same where steps update it in place. `None` if it
    /// has no value, or the device does not report addresses.
    pub fn state_address(&self, name: &str) -> Result<Option<usize>, ExecError> {
        self.held(name).map(|_| self.executor.address(name))
    }
}

fn mismatch(value: &HostTensor, dtype: DType, ranges: &[Range<usize>]) -> Option<String> {
    let shape: Vec<usize> = ranges.iter().map(ExactSizeIterator::len).collect();
    if value.dtype() != dtype {
        return Some(format!("elements of {} were given, not of {dtype}", value.dtype()));
    }
    if value.shape != shape || value.data.len() != shape.iter().product::<usize>() {
        return Some(format!("shape {:?} was given, not {shape:?}", value.shape));
    }
    None
}

/// The message of a panic.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_string());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic".into())
}
