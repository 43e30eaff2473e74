//! Running a program: inputs to the devices, and their outputs, merged.

use super::processes::About;
use super::{Asked, Cluster, LoadedPlan, Output};
use crate::engine::{DeviceReport, Engine, ExampleDraws, LocalInput, ProgramId};
use crate::error::{ExecError, Place};
use crate::tensor::{Finiteness, HostTensor};
use meshwright_sorted::SortedMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Inputs for each device: called on the device's own thread with its rank and its [`Engine::local_inputs`], in their
/// order.
pub type Provider = Arc<dyn Fn(usize, &[LocalInput]) -> Result<Vec<HostTensor>, String> + Send + Sync>;

/// Result of one step.
#[derive(Clone, Debug)]
pub struct StepReport {
    /// The outputs, whole, by name.
    pub outputs: SortedMap<String, HostTensor>,
    /// Time from the call to the last answer.
    pub wall: Duration,
    /// For each device of this process the time in its program, without the provider.
    pub devices: Vec<Duration>,
    /// Part of these times in which each device waited in collectives for others.
    pub waiting: Vec<Duration>,
    /// Part of these times until each device's host had launched all, and only outputs were outstanding; on threads,
    /// until all had run.
    pub launching: Vec<Duration>,
    /// Whether each device launched it as one graph.
    pub graph: bool,
    /// Notes for the user on the run.
    pub notes: Vec<String>,
}

/// A run that was launched, and whose outputs have not been read.
pub struct LaunchedStep {
    program: ProgramId,
    begin: Instant,
    asked: Asked<()>,
}

/// A function that gives a device its inputs, and aborts all devices if it fails.
fn giver(
    inputs: &Arc<[LocalInput]>,
    provider: &Provider,
) -> impl FnOnce(&mut Engine) -> Result<Vec<HostTensor>, ExecError> + Send + use<> {
    let (inputs, provider) = (inputs.clone(), provider.clone());
    move |engine| {
        let rank = engine.rank();
        provider(rank, &inputs).map_err(|message| {
            let error = ExecError::Provider { rank, message };
            engine.abort(&error.to_string());
            error
        })
    }
}

/// The worst finiteness of each buffer on all devices.
fn worst(all: &[Vec<Finiteness>]) -> Vec<Finiteness> {
    let buffers = all.iter().map(Vec::len).max().unwrap_or(0);
    let of = |i: usize| all.iter().filter_map(|seen| seen.get(i)).max().copied();
    (0..buffers).map(|i| of(i).unwrap_or_default()).collect()
}

impl Cluster {
    /// Runs a program once on all devices. `step_number` counts from 1.
    pub fn run(
        &self,
        program: ProgramId,
        step_number: u64,
        provider: &Provider,
    ) -> Result<StepReport, ExecError> {
        self.run_by(program, |inputs| {
            let give = giver(inputs, provider);
            move |engine| {
                let given = give(engine)?;
                engine.launch(program, given, step_number)?;
                engine.take_outputs()
            }
        })
    }

    /// Starts [`Cluster::run`]; [`Cluster::outputs`] gives the outputs. Another run may be launched before that, so
    /// that devices that compute asynchronously, such as GPUs, stay busy while the host reads the outputs.
    ///
    /// # Errors
    /// If there is no such program. [`Cluster::outputs`] gives the errors of devices.
    pub fn launch(
        &self,
        program: ProgramId,
        step_number: u64,
        provider: &Provider,
    ) -> Result<LaunchedStep, ExecError> {
        let begin = Instant::now();
        let jobs = self.loaded(program)?.inputs.iter().map(|inputs| {
            let give = giver(inputs, provider);
            move |engine: &mut Engine| {
                let given = give(engine)?;
                engine.launch(program, given, step_number)
            }
        });
        Ok(LaunchedStep { program, begin, asked: self.ask_each(jobs) })
    }

    /// Waits for the outputs of the oldest run whose outputs have not been read.
    ///
    /// # Errors
    /// Those of [`Cluster::run`].
    pub fn outputs(&self, step: LaunchedStep) -> Result<StepReport, ExecError> {
        let LaunchedStep { program, begin, asked } = step;
        let loaded = self.loaded(program)?;
        let outputs =
            self.ask_each(loaded.inputs.iter().map(|_| |engine: &mut Engine| engine.take_outputs()));
        self.answered(asked)?;
        let answers = self.answered(outputs)?;
        self.reported(loaded, answers, begin)
    }

    /// [`Cluster::run`] of a program that does not train: random values of an example depend on its number alone.
    ///
    /// # Errors
    /// Those of [`Cluster::run`].
    pub fn run_drawing(
        &self,
        program: ProgramId,
        draws: ExampleDraws,
        provider: &Provider,
    ) -> Result<StepReport, ExecError> {
        self.run_by(program, |inputs| {
            let give = giver(inputs, provider);
            move |engine| {
                let given = give(engine)?;
                engine.run_drawing(program, given, draws)
            }
        })
    }

    /// [`Cluster::run`], with the worst finiteness of each buffer of the Plan, by its number, on all devices of all
    /// processes.
    ///
    /// # Errors
    /// Those of [`Cluster::run`].
    pub fn run_examined(
        &self,
        program: ProgramId,
        step_number: u64,
        provider: &Provider,
    ) -> Result<(StepReport, Vec<Finiteness>), ExecError> {
        let seen: Arc<Mutex<Vec<Vec<Finiteness>>>> = Arc::default();
        let report = self.run_by(program, |inputs| {
            let (give, seen) = (giver(inputs, provider), seen.clone());
            move |engine| {
                let given = give(engine)?;
                let (report, mine) = engine.run_examined(program, given, step_number)?;
                seen.lock().unwrap_or_else(PoisonError::into_inner).push(mine);
                Ok(report)
            }
        })?;
        let mine = worst(&seen.lock().unwrap_or_else(PoisonError::into_inner));
        let all = self.processes.gather(About::from("what is not finite"), &mine)?;
        Ok((report, worst(&all)))
    }

    /// Has every device keep inputs, for any number of [`Cluster::run_held`].
    pub fn hold_inputs(&self, program: ProgramId, provider: &Provider) -> Result<(), ExecError> {
        let jobs = self.loaded(program)?.inputs.iter().map(|inputs| {
            let give = giver(inputs, provider);
            move |engine: &mut Engine| {
                let given = give(engine)?;
                engine.hold_inputs(program, given)
            }
        });
        self.on_each(jobs).map(|_| ())
    }

    /// Has every device give up the memory of inputs that it keeps.
    pub fn release_inputs(&self, program: ProgramId) -> Result<(), ExecError> {
        self.on_all(move |engine| engine.release_inputs(program)).map(|_| ())
    }

    /// [`Cluster::run`] on the inputs that devices keep: nothing is made, and nothing moves between host and device, but
    /// the outputs.
    pub fn run_held(&self, program: ProgramId, step_number: u64) -> Result<StepReport, ExecError> {
        self.run_by(program, |_| move |engine| engine.run_held(program, step_number))
    }

    fn run_by<F>(
        &self,
        program: ProgramId,
        job: impl Fn(&Arc<[LocalInput]>) -> F,
    ) -> Result<StepReport, ExecError>
    where
        F: FnOnce(&mut Engine) -> Result<DeviceReport, ExecError> + Send + 'static,
    {
        let begin = Instant::now();
        let loaded = self.loaded(program)?;
        let answers = self.on_each(loaded.inputs.iter().map(job))?;
        self.reported(loaded, answers, begin)
    }

    fn reported(
        &self,
        loaded: &LoadedPlan,
        answers: Vec<DeviceReport>,
        begin: Instant,
    ) -> Result<StepReport, ExecError> {
        let devices = answers.iter().map(|a| a.time).collect();
        let waiting = answers.iter().map(|a| a.waited).collect();
        let launching = answers.iter().map(|a| a.launching).collect();
        let graph = answers.iter().all(|a| a.graph);
        let notes = answers.iter().filter_map(|a| a.note.clone()).collect();
        let parts: Vec<_> = answers.into_iter().map(|a| a.outputs).collect();
        let outputs = self.whole_outputs(loaded, parts)?;
        self.processes.first_step_done();
        Ok(StepReport { outputs, wall: begin.elapsed(), devices, waiting, launching, graph, notes })
    }

    fn whole_outputs(
        &self,
        loaded: &LoadedPlan,
        parts: Vec<SortedMap<String, HostTensor>>,
    ) -> Result<SortedMap<String, HostTensor>, ExecError> {
        let mut outputs = SortedMap::new();
        for Output { name, blocks, everywhere } in &loaded.outputs {
            let taken =
                self.ranks().zip(&parts).filter_map(|(rank, part)| Some((rank, part.get(name)?.clone())));
            let mut held: SortedMap<usize, HostTensor> = taken.collect();
            if !everywhere {
                held = blocks.exchanged(&self.processes, name.as_str().into(), &held, false)?;
            }
            let whole = blocks.assembled(&held).ok_or_else(|| ExecError::Plan {
                place: Box::new(Place { value: name.clone(), ..Place::default() }),
                problem: format!("the blocks of the output `{name}` do not make a whole"),
            })?;
            outputs.insert(name.clone(), whole);
        }
        Ok(outputs)
    }
}
