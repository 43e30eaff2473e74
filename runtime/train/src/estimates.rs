//! Estimates of a project on a machine that need not be this one.

use crate::Checked;
use crate::failure::Failure;
use crate::project::{Project, text_of_at_most};
use crate::runs::RunEstimate;
use meshwright_core::{model_flops_wide, training_step};
use meshwright_cost::engine::{EngineFacts, EngineKind};
use meshwright_cost::estimate::{Estimate, EstimateQuestion, estimate};
use meshwright_cost::machine::Machine;
use meshwright_cost::pipe::Pipe;
use meshwright_cost::shipped::{MACHINES, find};
use meshwright_diag::{Diagnostic, Sources, codes, has_errors};
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
    let step = match training_step(&project.program) {
        Some(step) => step,
        None => match project.evaluation() {
            (Some(evaluation), _) => evaluation.step,
            (None, found) => return Err(Failure::Diagnostics(found)),
        },
    };
    let (compiled, found) = project.compile(&step, sources);
    let compiled = compiled.filter(|_| !has_errors(&found)).ok_or(Failure::Diagnostics(found))?;
    let batch = project.batch();
    let question = EstimateQuestion {
        machine: &options.machine,
        engine: options.engine.clone(),
        model_flops: model_flops_wide(&step),
        examples: batch,
        tokens: project.tokens().map(|each| each * batch),
        pipe: options.pipe.clone(),
        slowest: options.slowest,
    };
    estimate(&compiled.plan, &question)
        .map_err(|e| Failure::Diagnostics(vec![Diagnostic::error(codes::E0531, e.to_string())]))
}

/// The estimate that a run keeps beside what is measured.
///
/// # Errors
/// Those of [`estimated`].
pub(crate) fn run_estimate(
    project: &Project,
    sources: &Sources,
    (name, machine): &(String, Machine),
) -> Result<RunEstimate, Failure> {
    let found = estimated(project, sources, &EstimateOptions::of(machine.clone()))?;
    Ok(RunEstimate { machine: name.clone(), seconds: found.seconds, error: found.error })
}

/// Reads a machine: one that ships, or a file; `changes` are of the form `tier.rail.rate=25e9`.
///
/// # Errors
/// Where there is no such machine, or its file has mistakes.
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
