//! `predict`: outputs, or any values, of a checkpoint for the examples of a split.

use crate::arrays::{ArrayFile, ArrayTarget, PredictedOutput};
use crate::devices::consensus::{abort_on_error, agree_on_result, check_same_configuration};
use crate::devices::{Batch, LoadedProgram, batch, compiled, load, provide, remainder, start};
use crate::failure::Failure;
use crate::inference::{EvalOptions, asked, checkpoint_of, oddities, prepare, set_of};
use crate::project::Project;
use crate::recorded::Recorded;
use crate::training::totals::Totals;
use meshwright_core::{Evaluation, LossDecl, Program};
use meshwright_data::{Dataset, EpochSeed};
use meshwright_diag::{Diagnostic, Sources, codes, nearest};
use meshwright_exec::{ExampleDraws, HostData, HostTensor};
use meshwright_ops::F64Tensor;
use meshwright_plan::{Dim, InputDecl, Plan};
use meshwright_sorted::{SortedMap, SortedSet};
use std::path::PathBuf;
use std::sync::Arc;

/// The prediction to run.
#[derive(Clone, Debug, Default)]
pub struct PredictOptions {
    /// Data, split and checkpoint.
    pub eval: EvalOptions,
    /// Which outputs; where these and `values` are empty, all of them.
    pub outputs: Vec<String>,
    /// Which other values, by their paths.
    pub values: Vec<String>,
    /// Most examples; without an input that is read, exactly this number.
    pub limit: Option<usize>,
    /// Seed of random values.
    pub seed: u64,
    /// The file or folder that the outputs are written to.
    pub to: Option<PathBuf>,
}

/// Result of `predict`.
#[derive(Clone, Debug, Default)]
pub struct Prediction {
    /// The outputs, in the order in which they were asked for.
    pub outputs: Vec<PredictedOutput>,
    /// Names of the positions along their dims, or of the positions that are their values.
    pub class_names: SortedMap<String, Vec<String>>,
    /// The files that were written, each with the names of its outputs.
    pub written: Vec<(PathBuf, Vec<String>)>,
    /// Probable mistakes.
    pub warnings: Vec<Diagnostic>,
    /// Other notes.
    pub notes: Vec<String>,
}

/// Outputs of a checkpoint for the examples of a split, in the order of the file. One that lacks the example dim is of all
/// examples together. Of several processes the first reads the checkpoint and writes files; all get the outputs.
///
/// Random values of an example depend on the seed and on its number, not on its batch.
pub fn predict(
    project: &Project,
    sources: &Sources,
    options: &PredictOptions,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Prediction, Failure> {
    abort_on_error(&options.eval.devices.processes, predicted(project, sources, options, progress))
}

/// The requested outputs, and the number of examples.
struct Question {
    /// The project of the requested outputs.
    project: Project,
    prediction: Evaluation,
    warnings: Vec<Diagnostic>,
    /// The project for the examples that whole batches leave over.
    rest: Option<Project>,
    records: usize,
    /// `None` where no input is read.
    set: Option<Dataset>,
}

impl Question {
    fn of(project: &Project, options: &PredictOptions) -> Result<Question, Failure> {
        let processes = &*options.eval.devices.processes;
        let chosen = wanted(project, options).and_then(|p| Ok((prediction(&p)?, p)));
        let ((prediction, warnings), chosen) = agree_on_result(processes, "the outputs", chosen)?;
        let read = prediction.step.inputs_read();
        let set = match read.is_empty() {
            true => None,
            false => Some(set_of(project, &options.eval, Some(&read))?),
        };
        let records = match (&set, options.limit) {
            (Some(set), limit) => Ok(limit.unwrap_or(usize::MAX).min(set.records())),
            (None, Some(n)) => Ok(n),
            // Without a value for each example, a batch is as good as many.
            (None, None) if !chosen.program.outputs.iter().any(|o| of_examples(&chosen, o)) => {
                Ok(project.batch())
            }
            (None, None) => Err(no_number(&chosen)),
        };
        let rest = records.and_then(|n| {
            let rest = remainder(project, n)?;
            Ok((rest.map(|p| wanted(&p, options)).transpose()?, n))
        });
        let (rest, records) = agree_on_result(processes, "the number of examples", rest)?;
        Ok(Question { project: chosen, prediction, warnings, rest, records, set })
    }

    /// The batch of the examples from `first` on.
    fn batch(&self, program: &LoadedProgram, first: usize) -> Result<Batch, Failure> {
        let records: Vec<usize> = (first..first + program.examples).collect();
        match &self.set {
            Some(set) => Ok(batch(set, &program.needs, (&records, EpochSeed::default()))?),
            None => Ok(vec![Vec::new(); program.needs.len()]),
        }
    }
}

/// Whether an output has a value for each example.
fn of_examples(project: &Project, output: &LossDecl) -> bool {
    project.example_dim().is_some_and(|d| project.program.graph.ty(output.id).has(d.0))
}

fn no_number(project: &Project) -> Failure {
    let names: Vec<String> = project.program.outputs.iter().map(|o| format!("`{}`", o.name)).collect();
    let message = format!("nothing says how many examples there are: {} read no input", names.join(", "));
    Diagnostic::error(codes::E0516, message).help("say it: `--limit 100`").into()
}

/// The files that the examples are read from; none where they are made of something else.
fn files_read(project: &Project, options: &PredictOptions) -> Vec<PathBuf> {
    let declared: Vec<InputDecl> = project.program.inputs.iter().map(|i| i.0.clone()).collect();
    let found = meshwright_data::find(options.eval.data.as_deref(), &options.eval.roots, &declared);
    found.map_or(Vec::new(), |source| source.files().map(Into::into).collect())
}

pub(crate) fn prediction(project: &Project) -> Result<(Evaluation, Vec<Diagnostic>), Failure> {
    let names: Vec<String> = project.program.outputs.iter().map(|o| o.name.clone()).collect();
    match meshwright_core::prediction(&project.program, &names) {
        (Some(e), warnings) => Ok((e, warnings)),
        (None, found) => Err(Failure::Diagnostics(found)),
    }
}

fn predicted(
    project: &Project,
    sources: &Sources,
    options: &PredictOptions,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Prediction, Failure> {
    let e = &options.eval;
    let processes = &*e.devices.processes;
    let q = Question::of(project, options)?;
    let names: Vec<&str> = q.project.program.outputs.iter().map(|o| o.name.as_str()).collect();
    // The first process writes, and alone sees where.
    let about = "the file of the outputs";
    let target = || {
        let to = options.to.as_deref().map(|to| ArrayTarget::of(to, &names)).transpose()?;
        to.map(|to| to.beside(&files_read(project, options), &names).map(|()| to)).transpose()
    };
    let to = processes.on_first(about.into(), target)?.transpose().map_err(Failure::from);
    let to = agree_on_result(processes, about, to)?.flatten();
    let checkpoint = checkpoint_of(e)?;
    let mut cluster = agree_on_result(processes, "the devices", start(project, e.cores, &e.devices))?;
    let more = [
        ("`--output` and `--value`", names.join(", ")),
        ("`--limit`", q.records.to_string()),
        ("`--seed`", options.seed.to_string()),
    ];
    check_same_configuration(processes, &asked(e, q.set.as_ref(), None, &more))?;
    let (accumulators, rows) = q.prediction.step.outputs.split_at(q.prediction.accumulate.len());
    let rows: Vec<&str> = rows.iter().map(|g| g.name.as_str()).collect();
    let mut parts: Vec<Vec<HostTensor>> = vec![Vec::new(); rows.len()];
    let mut totals = Totals::new(&q.prediction);
    let (mut first, size) = (0, project.batch());
    let whole = (q.records >= size).then_some(&q.project);
    for (p, count) in [(whole, q.records / size), (q.rest.as_ref(), 1)] {
        let Some(p) = p else { continue };
        let step = prediction(p).and_then(|(e, _)| compiled(p, &e.step, sources));
        let program =
            agree_on_result(processes, "the program", step.and_then(|c| load(&mut cluster, c.plan, None)))?;
        prepare(&cluster, checkpoint.as_ref())?;
        for _ in 0..count {
            let given = provide(&program, q.batch(&program, first)?);
            let draws = ExampleDraws { seed: options.seed, first: first as u64 };
            let report = cluster.run_drawing(program.id, draws, &given)?;
            for (name, list) in rows.iter().zip(&mut parts) {
                list.extend(report.outputs.get(*name).and_then(|t| in_order(p, &program.plan, name, t)));
            }
            if !accumulators.is_empty() {
                agree_on_result(processes, "the outputs", totals.add(&program, &report.outputs))?;
            }
            first += program.examples;
            progress(first, q.records);
        }
    }
    // Constants are results without an accumulator.
    let totals = if q.records == 0 { Vec::new() } else { totals.finish() };
    let mut outputs = Vec::new();
    for decl in &q.project.program.outputs {
        let part = rows.iter().position(|r| *r == decl.name).and_then(|k| joined(&parts[k]));
        let total = totals.iter().find(|t| t.0 == decl.name).and_then(|t| total(&q.project, decl, &t.1));
        outputs.extend(part.or(total).map(|tensor| described(&q.project, decl, tensor)));
    }
    let write = || to.as_ref().map(|to| to.write(&outputs)).transpose();
    let written = processes.on_first(about.into(), write)?.transpose().map_err(Failure::from);
    let written = agree_on_result(processes, about, written)?.flatten();
    cluster.shutdown();
    let class_names = class_names(&q, options, &outputs)?;
    let mut notes = oddities(checkpoint.as_ref(), project);
    notes.extend(q.set.as_ref().map(Dataset::notes).unwrap_or_default());
    let written = written.unwrap_or_default().into_iter().map(|ArrayFile { path, names }| (path, names));
    Ok(Prediction { outputs, class_names, written: written.collect(), warnings: q.warnings, notes })
}

/// The names of the positions along dims of outputs, as the run was trained with them; of a plain checkpoint as the data has
/// them. The first process, which says them, has them.
fn class_names(
    q: &Question,
    options: &PredictOptions,
    outputs: &[PredictedOutput],
) -> Result<SortedMap<String, Vec<String>>, Failure> {
    let run = &options.eval.checkpoint;
    let recorded = || Recorded::read(run).map(|r| r.class_names()).unwrap_or_default();
    let of_run = options.eval.devices.processes.on_first("the names of classes".into(), recorded)?;
    let mut all = q.set.as_ref().map(|set| set.class_names().clone()).unwrap_or_default();
    all.extend(of_run.unwrap_or_default());
    let dims = &q.project.program.graph.dims;
    let size = |dim: &str| dims.iter().find(|(_, name)| *name == dim).map(|(d, _)| dims.size(d));
    let said =
        |dim: &String| outputs.iter().any(|o| o.dims.contains(dim) || o.position_in.as_ref() == Some(dim));
    all.retain(|dim, names| said(dim) && size(dim) == Some(names.len()));
    Ok(all)
}

/// Meaning of an output's numbers.
pub(crate) fn described(project: &Project, decl: &LossDecl, tensor: HostTensor) -> PredictedOutput {
    let graph = &project.program.graph;
    let example = project.example_dim().map(|d| d.0);
    let mut dims = graph.ty(decl.id).dims.clone();
    dims.sort_by_key(|d| Some(*d) != example);
    let each_example = dims.first().is_some_and(|d| Some(*d) == example);
    let name = |d: &Dim| graph.dims.name(*d).to_string();
    let dims = dims.iter().map(name).collect();
    let position_in = graph.ty(decl.id).range.as_ref().map(name);
    PredictedOutput { name: decl.name.clone(), dims, each_example, position_in, tensor }
}

/// An output over all examples as a tensor of its own dtype.
pub(crate) fn total(project: &Project, decl: &LossDecl, t: &F64Tensor) -> Option<HostTensor> {
    let ty = project.program.graph.ty(decl.id);
    let shape = project.program.graph.dims.shape(&ty.dims);
    HostTensor::new(shape, HostData::from_f64(ty.dtype, t.ordered(&ty.dims).data))
}

/// The project with what is asked for as its only outputs.
pub(crate) fn wanted(project: &Project, options: &PredictOptions) -> Result<Project, Failure> {
    let declared = &project.program.outputs;
    let all = options.outputs.is_empty() && options.values.is_empty();
    let mut chosen: Vec<LossDecl> = if all { declared.clone() } else { Vec::new() };
    if all && declared.is_empty() {
        let message = format!("the model `{}` declares no output", project.program.model);
        return Err(Diagnostic::error(codes::E0516, message)
            .help("ask for values by their names: `--value logits`")
            .help("or declare an output: `output class = argmax[classes](logits)`")
            .into());
    }
    for name in &options.outputs {
        match declared.iter().find(|o| o.name == *name) {
            Some(o) => chosen.push(o.clone()),
            None => return Err(no_output(&project.program, name).into()),
        }
    }
    let mut program = (*project.program).clone();
    for name in &options.values {
        chosen.push(program.value_of_all_iterations(name)?);
    }
    let mut names = SortedSet::new();
    chosen.retain(|c| names.insert(c.name.clone()));
    program.outputs = chosen;
    let mut project = project.clone();
    project.program = Arc::new(program);
    Ok(project)
}

fn no_output(program: &Program, name: &str) -> Diagnostic {
    let all: Vec<&str> = program.outputs.iter().map(|o| o.name.as_str()).collect();
    let has = if all.is_empty() { "none".into() } else { all.join(", ") };
    let d = Diagnostic::error(codes::E0516, format!("the model has no output `{name}`: it has {has}"));
    match nearest(name, all) {
        Some(c) => d.help(format!("did you mean `{c}`?")),
        None if program.named_value(name).is_ok() => d.help(format!("it has such a value: `--value {name}`")),
        None => d,
    }
}

/// An output in the order in which the model has its dims, the example dim first. The Plan stores it as it likes.
pub(crate) fn in_order(project: &Project, plan: &Plan, name: &str, t: &HostTensor) -> Option<HostTensor> {
    let stored = &plan.outputs.iter().find(|o| o.name == name)?.dims;
    let id = project.program.outputs.iter().find(|o| o.name == name)?.id;
    let mut dims = project.program.graph.ty(id).dims.clone();
    let example = project.example_dim().map(|d| d.0);
    dims.sort_by_key(|d| Some(*d) != example);
    let values = F64Tensor::new(&plan.dims, stored.clone(), t.data.to_f64()).ordered(&dims).data;
    let shape = plan.dims.shape(&dims);
    HostTensor::new(shape, HostData::from_f64(t.dtype(), values))
}

/// Tensors joined along their first dim, which counts examples.
fn joined(parts: &[HostTensor]) -> Option<HostTensor> {
    let first = parts.first()?;
    let mut shape = first.shape.clone();
    *shape.first_mut()? = parts.iter().map(|p| p.shape[0]).sum();
    let values = parts.iter().flat_map(|p| p.data.to_f64()).collect();
    HostTensor::new(shape, HostData::from_f64(first.dtype(), values))
}
