//! The engine of one device: its parameters and moments, and the programs that work on them.

use crate::build::place;
use crate::collective::Failed;
use crate::error::ExecError;
use crate::host::HostTensor;
use crate::own::Dice;
use crate::program::{Ended, Program, lock};
use crate::tensor::{Pool, from_host, to_host};
use burn_flex::FlexTensor;
use meshwright_comm::{Collectives, Group, NotAGroup, Tag, Transport};
use meshwright_plan::{DType, Dim, Init, Leaf, LeafKind, Plan};
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

/// A loaded program, by order of loading.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProgramId(pub usize);

/// An input as one device needs it.
#[derive(Clone, Debug, PartialEq)]
pub struct InputLeaf {
    /// Name of the input. It may occur several times, in different ranges.
    pub name: String,
    /// Its dims in declared order; the first counts examples.
    pub dims: Vec<Dim>,
    /// What the device needs of each dim; may be empty.
    pub ranges: Vec<Range<usize>>,
    /// Type of the elements.
    pub dtype: DType,
}

impl InputLeaf {
    /// Shape of the tensor that the device needs.
    pub fn shape(&self) -> Vec<usize> {
        self.ranges.iter().map(ExactSizeIterator::len).collect()
    }
}

/// A parameter or moment, whole.
#[derive(Clone, Debug, PartialEq)]
pub struct StateInfo {
    /// Path of the parameter, or of the moment.
    pub name: String,
    /// [`LeafKind::Param`] or [`LeafKind::Moment`].
    pub kind: LeafKind,
    /// Extents in declared order.
    pub shape: Vec<usize>,
    /// Type of the elements.
    pub dtype: DType,
    /// First value, for [`Engine::init_state`].
    pub init: Option<Init>,
}

struct State {
    info: StateInfo,
    ranges: Vec<Range<usize>>,
    /// None until it is set, and while a program runs.
    tensor: Option<FlexTensor>,
}

/// What runs [`Plan`]s on one device. Parameters and moments are shared by all loaded programs, by name.
///
/// After an error in [`Engine::run`] all devices are told to end, and the engine cannot be used further.
pub struct Engine {
    rank: usize,
    transport: Box<dyn Transport>,
    pool: Arc<Mutex<Pool>>,
    programs: Vec<Program>,
    state: BTreeMap<String, State>,
    sequence: u64,
    /// What random values of training steps are drawn from.
    seed: u64,
    ran: bool,
    broken: bool,
}

impl Engine {
    /// The engine of the device at that end of the transport. Kernels use the rayon pool of the calling thread.
    pub fn new(transport: Box<dyn Transport>) -> Engine {
        Engine {
            rank: transport.rank(),
            transport,
            pool: Arc::default(),
            programs: vec![],
            state: BTreeMap::new(),
            sequence: 0,
            seed: 0,
            ran: false,
            broken: false,
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
        self.transport
            .agree(&world, &tag, plan.hash().as_bytes())
            .map_err(|source| ExecError::Comm { place, source })?;
        let program = Program::new(plan.clone(), self.rank, self.pool.clone())?;
        for leaf in &plan.leaves {
            if matches!(leaf.kind, LeafKind::Param | LeafKind::Moment) {
                self.declare(&plan, leaf)?;
            }
        }
        self.programs.push(program);
        Ok(ProgramId(self.programs.len() - 1))
    }

    fn declare(&mut self, plan: &Plan, leaf: &Leaf) -> Result<(), ExecError> {
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
                self.state.insert(leaf.name.clone(), State { info, ranges, tensor: None });
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

    fn program(&self, program: ProgramId) -> Result<&Program, ExecError> {
        self.programs.get(program.0).ok_or(ExecError::NoProgram { rank: self.rank, program: program.0 })
    }

    /// The inputs of a program, in the order in which [`Engine::run`] takes them.
    pub fn input_leaves(&self, program: ProgramId) -> Result<Vec<InputLeaf>, ExecError> {
        Ok(input_leaves(&self.program(program)?.plan, self.rank))
    }

    /// Runs a program once. `inputs` are this device's blocks in the order of [`Engine::input_leaves`]; `step_number`
    /// counts from 1. Gives this device's blocks of the outputs, by name.
    ///
    /// On an error (or a panic of a kernel) all devices are told to end.
    pub fn run(
        &mut self,
        program: ProgramId,
        inputs: Vec<HostTensor>,
        step_number: u64,
    ) -> Result<BTreeMap<String, HostTensor>, ExecError> {
        if self.broken {
            return Err(ExecError::Broken { rank: self.rank });
        }
        let mut at = None;
        let ran = catch_unwind(AssertUnwindSafe(|| self.try_run(program, inputs, step_number, &mut at)));
        let ran = ran.unwrap_or_else(|panic| {
            let message = panic_message(&*panic);
            let place = match self.programs.get(program.0) {
                Some(p) => place(&p.plan, self.rank, Some(step_number), at),
                None => Box::default(),
            };
            Err(ExecError::Panicked { place, message })
        });
        self.end_all_on_error(ran)
    }

    fn end_all_on_error<T>(&mut self, result: Result<T, ExecError>) -> Result<T, ExecError> {
        if let Err(error) = &result {
            self.abort(&error.to_string());
            // After the others were told why: that this device gives up what is in flight is a consequence.
            self.programs.iter_mut().for_each(Program::give_up);
        }
        result
    }

    fn try_run(
        &mut self,
        id: ProgramId,
        inputs: Vec<HostTensor>,
        step_number: u64,
        at: &mut Option<usize>,
    ) -> Result<BTreeMap<String, HostTensor>, ExecError> {
        let rank = self.rank;
        let Some(program) = self.programs.get_mut(id.0) else {
            return Err(ExecError::NoProgram { rank, program: id.0 });
        };
        let plan = program.plan.clone();
        bind_inputs(program, inputs, rank)?;
        for leaf in &plan.leaves {
            match leaf.kind {
                LeafKind::Input => {}
                LeafKind::Param | LeafKind::Moment => {
                    let held = self.state.get_mut(&leaf.name).and_then(|s| s.tensor.take());
                    let Some(held) = held else {
                        let problem = "it has no value yet".into();
                        return Err(ExecError::State { rank, name: leaf.name.clone(), problem });
                    };
                    program.put(leaf.buf, held);
                }
                LeafKind::StepNumber => {
                    let dtype = plan.buffer(leaf.buf).dtype;
                    let data = crate::HostData::from_f64(dtype, vec![step_number as f64]);
                    program.put(leaf.buf, from_host(HostTensor { shape: vec![], data }));
                }
            }
        }
        let dice = if plan.trains() {
            Dice { seed: self.seed, step: step_number }
        } else {
            Dice { seed: meshwright_plan::random::FIXED_SEED, step: 0 }
        };
        program.run(dice, &mut *self.transport, &mut self.sequence, at).map_err(|ended| {
            let place = place(&plan, rank, Some(step_number), *at);
            match ended {
                Ended::Kernel(source) => ExecError::Kernel { place, source },
                Ended::Collective(Failed::Comm(source)) => ExecError::Comm { place, source },
                Ended::Collective(Failed::Misfit(m)) => ExecError::Plan { place, problem: m.to_string() },
            }
        })?;
        *at = None;
        let outputs = self.collect(id, &plan)?;
        if !self.ran {
            self.ran = true;
            self.transport.first_step_done();
        }
        Ok(outputs)
    }

    /// Takes outputs and the next state out of a program, and clears the rest.
    fn collect(&mut self, id: ProgramId, plan: &Plan) -> Result<BTreeMap<String, HostTensor>, ExecError> {
        let rank = self.rank;
        let coords = plan.mesh.coords(rank);
        let Some(program) = self.programs.get_mut(id.0) else {
            return Err(ExecError::NoProgram { rank, program: id.0 });
        };
        let mut outputs = BTreeMap::new();
        for output in &plan.outputs {
            let buffer = plan.buffer(output.buf);
            if let Some(value) = program.get(output.buf, false) {
                let shape = buffer.shape(&plan.mesh, &coords);
                outputs.insert(output.name.clone(), to_host(&value, buffer.dtype, &shape));
            }
        }
        let mut left: BTreeSet<_> = program.left.clone();
        let held = |l: &&Leaf| matches!(l.kind, LeafKind::Param | LeafKind::Moment);
        let finals: Vec<_> =
            plan.leaves.iter().filter(held).map(|l| (&l.name, l.next.unwrap_or(l.buf))).collect();
        for (i, (name, buf)) in finals.iter().enumerate() {
            let last = finals[i + 1..].iter().all(|later| later.1 != *buf);
            if let Some(state) = self.state.get_mut(*name) {
                state.tensor = program.get(*buf, last);
            }
            left.remove(buf);
        }
        let mut pool = lock(&self.pool);
        for buf in left {
            let buffer = plan.buffer(buf);
            let elements = buffer.shape(&plan.mesh, &coords).iter().product();
            if let Some(value) = program.get(buf, true) {
                pool.give(value, buffer.dtype, elements);
            }
        }
        Ok(outputs)
    }

    /// Sets the parameters and moments of a program to their first values. Element `i` (row-major in declared order)
    /// depends on the seed, the name and `i` alone. From then on training steps draw their random values from that seed.
    pub fn init_state(&mut self, program: ProgramId, seed: u64) -> Result<(), ExecError> {
        self.seed = seed;
        let plan = self.program(program)?.plan.clone();
        for leaf in &plan.leaves {
            let Some(state) = self.state.get_mut(&leaf.name) else { continue };
            if !matches!(leaf.kind, LeafKind::Param | LeafKind::Moment) {
                continue;
            }
            let Some(init) = &leaf.init else {
                let problem = "the plan gives no first value".into();
                return Err(ExecError::State { rank: self.rank, name: leaf.name.clone(), problem });
            };
            let shape: Vec<usize> = state.ranges.iter().map(ExactSizeIterator::len).collect();
            let mut values = vec![0.0; shape.iter().product()];
            meshwright_plan::random::fill(
                init,
                seed,
                &leaf.name,
                &state.info.shape,
                &state.ranges,
                &mut values,
            );
            let data = crate::HostData::from_f64(state.info.dtype, values);
            state.tensor = Some(from_host(HostTensor { shape, data }));
        }
        Ok(())
    }

    /// All parameters and moments of the loaded programs, in order of names.
    pub fn states(&self) -> impl Iterator<Item = &StateInfo> {
        self.state.values().map(|s| &s.info)
    }

    fn held(&self, name: &str) -> Result<&State, ExecError> {
        self.state.get(name).ok_or_else(|| self.unknown(name))
    }

    fn unknown(&self, name: &str) -> ExecError {
        let problem = "no loaded program has such a parameter or moment".into();
        ExecError::State { rank: self.rank, name: name.into(), problem }
    }

    /// What this device holds of a parameter or moment: a range of each dim.
    pub fn state_ranges(&self, name: &str) -> Result<&[Range<usize>], ExecError> {
        Ok(&self.held(name)?.ranges)
    }

    /// This device's block of a parameter or moment.
    pub fn state(&self, name: &str) -> Result<HostTensor, ExecError> {
        let state = self.held(name)?;
        let Some(tensor) = &state.tensor else {
            let problem = "it has no value yet".into();
            return Err(ExecError::State { rank: self.rank, name: name.into(), problem });
        };
        let shape: Vec<usize> = state.ranges.iter().map(ExactSizeIterator::len).collect();
        Ok(to_host(tensor, state.info.dtype, &shape))
    }

    /// Sets this device's block of a parameter or moment.
    pub fn set_state(&mut self, name: &str, value: HostTensor) -> Result<(), ExecError> {
        let unknown = self.unknown(name);
        let Some(state) = self.state.get_mut(name) else { return Err(unknown) };
        let problem = misfit(&value, state.info.dtype, &state.ranges);
        if let Some(problem) = problem {
            return Err(ExecError::State { rank: self.rank, name: name.into(), problem });
        }
        state.tensor = Some(from_host(value));
        Ok(())
    }

    /// Address of the storage of a parameter or moment: it stays the same where steps update it in place.
    pub fn state_address(&self, name: &str) -> Result<Option<usize>, ExecError> {
        Ok(self.held(name)?.tensor.as_ref().map(|t| t.bytes().as_ptr() as usize))
    }
}

/// The inputs that the device of that rank needs for a Plan, in the order in which [`Engine::run`] takes them.
pub fn input_leaves(plan: &Plan, rank: usize) -> Vec<InputLeaf> {
    let coords = plan.mesh.coords(rank);
    let leaves = plan.leaves.iter().filter(|l| l.kind == LeafKind::Input);
    leaves
        .map(|leaf| {
            let buffer = plan.buffer(leaf.buf);
            InputLeaf {
                name: leaf.name.clone(),
                dims: leaf.dims.clone(),
                ranges: buffer.ranges(&plan.mesh, &coords),
                dtype: buffer.dtype,
            }
        })
        .collect()
}

fn bind_inputs(program: &mut Program, inputs: Vec<HostTensor>, rank: usize) -> Result<(), ExecError> {
    let plan = program.plan.clone();
    let coords = plan.mesh.coords(rank);
    let leaves: Vec<&Leaf> = plan.leaves.iter().filter(|l| l.kind == LeafKind::Input).collect();
    if leaves.len() != inputs.len() {
        let name = leaves.last().map_or_else(String::new, |l| l.name.clone());
        let problem = format!("{} tensors were given for {} inputs", inputs.len(), leaves.len());
        return Err(ExecError::Input { rank, name, problem });
    }
    for (leaf, value) in leaves.into_iter().zip(inputs) {
        let buffer = plan.buffer(leaf.buf);
        if let Some(problem) = misfit(&value, buffer.dtype, &buffer.ranges(&plan.mesh, &coords)) {
            return Err(ExecError::Input { rank, name: leaf.name.clone(), problem });
        }
        program.put(leaf.buf, from_host(value));
    }
    Ok(())
}

fn misfit(value: &HostTensor, dtype: DType, ranges: &[Range<usize>]) -> Option<String> {
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
