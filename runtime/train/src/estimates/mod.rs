//! Estimates of a project on a machine that need not be this one.

pub mod comparison;
pub mod foresight;
pub mod measured_step;
pub mod stages;

use crate::failure::Failure;
use crate::project::Project;
use crate::trace;
use meshwright_core::{StepGraph, model_flops_wide, training_step};
use meshwright_cost::engine::{EngineFacts, EngineKind};
use meshwright_cost::estimate::{Estimate, EstimateError, EstimateQuestion, estimate, timeline};
use meshwright_cost::machine::Machine;
use meshwright_cost::pipe::Pipe;
use meshwright_cost::shipped_machines::{MACHINES, find};
use meshwright_cost::timeline::TimelineEvent;
use meshwright_diag::{Diagnostic, Sources, codes, has_errors};
use meshwright_exec::{DeviceTrace, Record, What};
use meshwright_files::Checked;
use meshwright_files::replacing::write_whole;
use meshwright_files::text_file::text_of_at_most;
use meshwright_plan::Plan;
use meshwright_runs::RunEstimate;
use std::path::Path;

/// Most bytes of a machine file.
const MAX_BYTES: usize = 1 << 20;

/// What an estimate is asked for.
#[derive(Clone, Debug)]
pub struct EstimateOptions {
    /// The machine.
    pub machine: Machine,
    /// What executes the Plan.
    pub engine: EngineKind,
    /// A pipeline over the loop of layers.
    pub pipe: Option<Pipe>,
    /// The relative rate of the slowest device.
    pub slowest: f64,
}

impl EstimateOptions {
    /// Of a machine with the engine that suits it.
    pub fn of(machine: Machine) -> EstimateOptions {
        let engine = EngineKind::of(&machine);
        EstimateOptions { machine, engine, pipe: None, slowest: 1.0 }
    }
}

/// Estimates a training step of a project; of a model that is not trained, an evaluation.
///
/// # Errors
/// Where the project does not compile, or the machine cannot run it.
pub fn estimated(
    project: &Project,
    sources: &Sources,
    options: &EstimateOptions,
) -> Result<Estimate, Failure> {
    let (plan, flops) = compiled(project, sources)?;
    estimate(&plan, &question(project, options, flops)).map_err(unusable)
}

/// Estimates a program of a project that is compiled already.
///
/// # Errors
/// Where the machine cannot run it.
pub fn estimated_plan(
    project: &Project,
    (step, plan): (&StepGraph, &Plan),
    options: &EstimateOptions,
) -> Result<Estimate, Failure> {
    estimate(plan, &question(project, options, model_flops_wide(step))).map_err(unusable)
}

/// All that runs on a device in an estimated step of a project, by its Plan.
///
/// # Errors
/// If a device plan is missing.
pub fn timeline_of(
    project: &Project,
    plan: &Plan,
    options: &EstimateOptions,
) -> Result<Vec<TimelineEvent>, Failure> {
    timeline(plan, &question(project, options, 0.0)).map_err(unusable)
}

/// Writes the timeline of an estimated step in the format of a run's trace.
///
/// # Errors
/// Those of [`estimated`], and of writing.
pub fn write_timeline(
    project: &Project,
    sources: &Sources,
    options: &EstimateOptions,
    file: &Path,
) -> Result<(), Failure> {
    let (plan, _) = compiled(project, sources)?;
    let events = timeline_of(project, &plan, options)?;
    let nanoseconds = |s: f64| (s * 1e9).round() as u64;
    let mut sequence = 0;
    let mut records: Vec<Record> = vec![];
    for e in events {
        let (begin, end) = (nanoseconds(e.start), nanoseconds(e.end));
        let record = |what, begin, end, step: usize, sequence| Record {
            what,
            begin,
            end,
            step_number: 1,
            sequence,
            at: step as u32,
        };
        if !e.communicates {
            records.push(record(What::Compute, begin, end, e.step, 0));
            continue;
        }
        sequence += 1;
        match plan.end_of(e.step) {
            // It runs in one go.
            wait if wait == e.step => records.push(record(What::Start, begin, end, e.step, sequence)),
            wait => records.extend([
                record(What::Start, begin, begin, e.step, sequence),
                record(What::Wait, end, end, wait, sequence),
            ]),
        }
    }
    let mut text = vec![];
    let device = DeviceTrace { rank: 0, records };
    let written = trace::write(&mut text, &plan, &[device]).and_then(|()| write_whole(file, &text));
    written.map_err(|e| {
        let message = format!("`{}` cannot be written: {e}", file.display());
        Failure::Diagnostics(vec![Diagnostic::error(codes::E0511, message)])
    })
}

pub(crate) fn unusable(error: EstimateError) -> Failure {
    Failure::Diagnostics(vec![Diagnostic::error(codes::E0531, error.to_string())])
}

pub(crate) fn question<'a>(
    project: &Project,
    options: &'a EstimateOptions,
    model_flops: f64,
) -> EstimateQuestion<'a> {
    let batch = project.batch();
    EstimateQuestion {
        machine: &options.machine,
        engine: options.engine.clone(),
        model_flops,
        examples: batch,
        tokens: project.tokens().map(|each| each * batch),
        pipe: options.pipe.clone(),
        slowest: options.slowest,
    }
}

/// The Plan of a step, and the operations of the model in it.
pub(crate) fn compiled(project: &Project, sources: &Sources) -> Result<(Plan, f64), Failure> {
    let step = match training_step(&project.program) {
        Some(step) => step,
        None => match project.evaluation() {
            (Some(evaluation), _) => evaluation.step,
            (None, found) => return Err(Failure::Diagnostics(found)),
        },
    };
    let (compiled, found) = project.compile(&step, sources);
    let compiled = compiled.filter(|_| !has_errors(&found)).ok_or(Failure::Diagnostics(found))?;
    Ok((compiled.plan, model_flops_wide(&step)))
}

/// The estimate that a run keeps along with what is measured, and notes on rates that the machine's file lacks.
///
/// # Errors
/// Those of [`estimated`].
pub(crate) fn run_estimate(
    project: &Project,
    sources: &Sources,
    (name, machine): &(String, Machine),
) -> Result<(RunEstimate, Vec<String>), Failure> {
    let found = estimated(project, sources, &EstimateOptions::of(machine.clone()))?;
    let notes = found.assumed_rates.iter().map(|rate| rate.note(&machine.name)).collect();
    Ok((RunEstimate { machine: name.clone(), seconds: found.seconds, error: found.error }, notes))
}

/// Reads a machine: one that ships, or a file; `changes` are of the form `tier.rail.rate=25e9`.
///
/// # Errors
/// If the machine is unknown, or its file has mistakes.
pub fn machine(name: &str, changes: &[String]) -> Checked<Machine> {
    let wrong = |message: String| Box::new(Diagnostic::error(codes::E0531, message));
    let text = match find(name) {
        Some(shipped) => shipped.to_string(),
        None if Path::new(name).exists() => text_of_at_most(Path::new(name), MAX_BYTES)
            .map_err(|e| wrong(format!("cannot read the machine file {name}: {e}")))?,
        None => {
            let found = Diagnostic::error(
                codes::E0515,
                format!("`{name}` is not a machine: neither a file, nor a machine that ships"),
            );
            let all = MACHINES.iter().map(|m| m.name).collect::<Vec<_>>().join(", ");
            return Err(Box::new(found.help(format!("give a file, or one of {all}"))));
        }
    };
    let machine = Machine::read(&text).map_err(|e| wrong(format!("{name}: {e}")))?;
    changes
        .iter()
        .try_fold(machine, |m, change| m.with(change).map_err(|e| wrong(format!("--with {change}: {e}"))))
}

/// Reads facts about another system from a file.
///
/// # Errors
/// Where the file cannot be read, or has keys that are no facts.
pub fn facts(file: &str) -> Checked<EngineFacts> {
    let wrong = |message: String| Box::new(Diagnostic::error(codes::E0531, message));
    let text = text_of_at_most(Path::new(file), MAX_BYTES).map_err(|e| {
        let found = Diagnostic::error(
            codes::E0531,
            format!("`{file}` is no engine: neither threads, mpi nor cuda, nor a file ({e})"),
        );
        Box::new(found)
    })?;
    toml::from_str(&text).map_err(|e| wrong(format!("{file}: {}", e.to_string().trim_end())))
}
