//! `eval` and `predict`: a checkpoint on any mesh, without training.

use crate::checkpoint::{Checkpoint, Store, Which, read_file};
use crate::consensus::{abort_on_error, agree_on_result, check_same_configuration};
use crate::data::Dataset;
use crate::devices::{
    DataOptions, Devices, batch, compiled, dataset, load, provide, remainder, restore, start,
};
use crate::evaluator::Evaluator;
use crate::failure::Failure;
use crate::metrics;
use crate::project::Project;
use crate::run_dir::checkpoints_in;
use crate::session::common;
use crate::totals::Totals;
use meshwright_diag::{Diagnostic, Sources, codes, nearest};
use meshwright_exec::{Cluster, HostData, HostTensor, ProgramId};
use meshwright_ops::F64Tensor;
use meshwright_plan::Plan;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// What to evaluate on.
#[derive(Clone, Debug, Default)]
pub struct EvalOptions {
    /// `--data`.
    pub data: Option<String>,
    /// Let data pass that is infinite or not a number.
    pub allow_nonfinite: bool,
    /// The split: `test` as a rule.
    pub split: String,
    /// Cores to use, in this process.
    pub cores: Option<usize>,
    /// The devices.
    pub devices: Devices,
    /// Folders in which data is sought.
    pub roots: Vec<PathBuf>,
    /// A run's folder, or one checkpoint file.
    pub checkpoint: PathBuf,
    /// Which checkpoint of a run's folder.
    pub which: Which,
}

/// What to predict.
#[derive(Clone, Debug, Default)]
pub struct PredictOptions {
    /// Data, split and checkpoint.
    pub eval: EvalOptions,
    /// Which outputs; all of them where empty.
    pub outputs: Vec<String>,
    /// At most so many examples.
    pub limit: Option<usize>,
}

/// Reads a checkpoint: one of a run's folder, or one file.
pub fn read_checkpoint(path: &Path, which: Which) -> Result<Checkpoint, Failure> {
    if path.is_file() {
        return Ok(read_file(path)?);
    }
    let folder = checkpoints_in(path);
    let found = Store::read_only(folder).find(which)?;
    match found {
        Some(l) => Ok(l.checkpoint),
        None => Err(Diagnostic::error(codes::E0516, format!("`{}` holds no checkpoint", path.display()))
            .help("name the folder of a run (`--run` of `train`), or a `.safetensors` file of one")
            .into()),
    }
}

/// Losses and metrics of a checkpoint over a split of the data. Of several processes the first reads the checkpoint; all
/// get the result.
pub fn evaluate(
    project: &Project,
    sources: &Sources,
    options: &EvalOptions,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<metrics::Evaluation, Failure> {
    abort_on_error(&options.devices.processes, evaluated(project, sources, options, progress))
}

fn evaluated(
    project: &Project,
    sources: &Sources,
    options: &EvalOptions,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<metrics::Evaluation, Failure> {
    let processes = &*options.devices.processes;
    let (checkpoint, set) = read(project, options)?;
    let ready = (|| {
        let mut cluster = start(project, options.cores, &options.devices)?;
        let set = Arc::new(set);
        let evaluator = Evaluator::new(project, sources, &mut cluster, set.clone())?;
        Ok((cluster, evaluator, set))
    })();
    let (cluster, evaluator, set) = agree_on_result(processes, "the programs", ready)?;
    let plans: Vec<&Plan> = evaluator.programs().map(|p| &*p.plan).collect();
    check_same_configuration(processes, &asked(options, &set, plans.first().copied(), &[]))?;
    prepare(&cluster, checkpoint.as_ref())?;
    let result = evaluator.run(&cluster, &AtomicBool::new(false), progress)?;
    cluster.shutdown();
    match result {
        Some(result) => Ok(result),
        None => unreachable!("nobody stopped the evaluation"),
    }
}

/// The checkpoint, on the first process, and the data.
fn read(project: &Project, options: &EvalOptions) -> Result<(Option<Checkpoint>, Dataset), Failure> {
    let processes = &*options.devices.processes;
    let about = "the checkpoint";
    let checkpoint =
        processes.on_first(about.into(), || read_checkpoint(&options.checkpoint, options.which))?;
    let checkpoint = agree_on_result(processes, about, checkpoint.transpose())?;
    let wanted = DataOptions {
        given: options.data.as_deref(),
        roots: &options.roots,
        allow_nonfinite: options.allow_nonfinite,
    };
    let set = match dataset(project, wanted, &options.split, false) {
        Ok(Some(set)) => Ok(set),
        Ok(None) => Err(crate::evaluator::data_failed(format!("there is no `{}` split", options.split))),
        Err(failure) => Err(failure),
    };
    Ok((checkpoint, agree_on_result(processes, "the data", set)?))
}

/// What all processes must be asked for alike.
fn asked(
    options: &EvalOptions,
    set: &Dataset,
    plan: Option<&Plan>,
    more: &[(&str, String)],
) -> BTreeMap<String, String> {
    let mut asked = plan.map(common).unwrap_or_default();
    asked.insert("`--split`".into(), options.split.clone());
    asked.insert("its data".into(), format!("{} examples ({})", set.records(), set.fingerprint()));
    asked.extend(more.iter().map(|(name, value)| (name.to_string(), value.clone())));
    asked
}

/// Sets all parameters and states to those of a checkpoint, which the first process has.
fn prepare(cluster: &Cluster, checkpoint: Option<&Checkpoint>) -> Result<(), Failure> {
    let seed = checkpoint.map_or(0, |c| c.meta.seed);
    let seed = cluster.processes().broadcast("the seed".into(), seed)?;
    cluster.init_state(ProgramId(0), seed)?;
    restore(cluster, checkpoint, false)
}

/// Outputs of a checkpoint for the examples of a split, in the order of the file: name, and a tensor whose first dim counts
/// examples where the output has the example dim. One that lacks it is of all examples together. Of several processes the
/// first reads the checkpoint; all get the outputs.
pub fn predict(
    project: &Project,
    sources: &Sources,
    options: &PredictOptions,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Vec<(String, HostTensor)>, Failure> {
    abort_on_error(&options.eval.devices.processes, predicted(project, sources, options, progress))
}

fn predicted(
    project: &Project,
    sources: &Sources,
    options: &PredictOptions,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Vec<(String, HostTensor)>, Failure> {
    let e = &options.eval;
    let processes = &*e.devices.processes;
    let wanted = agree_on_result(processes, "the outputs", wanted(project, &options.outputs))?;
    let (checkpoint, set) = read(project, e)?;
    let records = options.limit.unwrap_or(usize::MAX).min(set.records());
    let of = |p: &Project| match meshwright_core::prediction(&p.program, &wanted) {
        (Some(e), _) => Ok(e),
        (None, d) => Err(Failure::Diagnostics(d)),
    };
    let size = project.batch();
    let ready = (|| {
        let remainder = remainder(project, records)?;
        let prediction = of(project)?;
        let cluster = start(project, e.cores, &e.devices)?;
        Ok((remainder, prediction, cluster))
    })();
    let (remainder, prediction, mut cluster) = agree_on_result(processes, "the outputs", ready)?;
    let more = [("`--output`", wanted.join(", ")), ("`--limit`", records.to_string())];
    check_same_configuration(processes, &asked(e, &set, None, &more))?;
    let (accumulators, rows) = prediction.step.outputs.split_at(prediction.accumulate.len());
    let rows: Vec<&str> = rows.iter().map(|g| g.name.as_str()).collect();
    let mut parts: Vec<Vec<HostTensor>> = vec![Vec::new(); rows.len()];
    let mut totals = Totals::new(&prediction);
    let mut first = 0;
    let whole = (records >= size).then_some(project);
    for (p, count) in [(whole, records / size), (remainder.as_ref(), 1)] {
        let Some(p) = p else { continue };
        let step = of(p).and_then(|e| compiled(p, &e.step, sources));
        let program =
            agree_on_result(processes, "the program", step.and_then(|c| load(&mut cluster, c.plan)))?;
        prepare(&cluster, checkpoint.as_ref())?;
        for _ in 0..count {
            let records_of: Vec<usize> = (first..first + program.examples).collect();
            let given = provide(&program, batch(&set, &program.needs, &records_of)?);
            let report = cluster.run(program.id, 1, &given)?;
            for (name, list) in rows.iter().zip(&mut parts) {
                list.extend(report.outputs.get(*name).and_then(|t| in_order(p, &program.plan, name, t)));
            }
            if !accumulators.is_empty() {
                agree_on_result(processes, "the outputs", totals.add(&program, &report.outputs))?;
            }
            first += program.examples;
            progress(first, records);
        }
    }
    cluster.shutdown();
    let totals = if accumulators.is_empty() || records == 0 { Vec::new() } else { totals.finish() };
    let mut out = Vec::new();
    for name in wanted {
        let part = rows.iter().position(|r| *r == name).and_then(|k| joined(&parts[k]));
        let total = totals.iter().find(|t| t.0 == name).and_then(|t| total(project, &name, &t.1));
        out.extend(part.or(total).map(|t| (name, t)));
    }
    Ok(out)
}

/// An output over all examples as a tensor of its own dtype.
fn total(project: &Project, name: &str, t: &F64Tensor) -> Option<HostTensor> {
    let id = project.program.outputs.iter().find(|o| o.name == name)?.id;
    let ty = project.program.graph.ty(id);
    let shape = project.program.graph.dims.shape(&ty.dims);
    HostTensor::new(shape, HostData::from_f64(ty.dtype, t.ordered(&ty.dims).data))
}

fn wanted(project: &Project, names: &[String]) -> Result<Vec<String>, Failure> {
    let all: Vec<String> = project.program.outputs.iter().map(|o| o.name.clone()).collect();
    if all.is_empty() {
        return Err(Diagnostic::error(
            codes::E0516,
            format!("the model `{}` declares no output", project.program.model),
        )
        .help("declare one: `output class = argmax[classes](logits)`")
        .into());
    }
    for n in names {
        if !all.contains(n) {
            let d = Diagnostic::error(
                codes::E0516,
                format!("the model has no output `{n}`: it has {}", all.join(", ")),
            );
            let d = match nearest(n, all.iter().map(String::as_str)) {
                Some(c) => d.help(format!("did you mean `{c}`?")),
                None => d,
            };
            return Err(d.into());
        }
    }
    Ok(if names.is_empty() { all } else { names.to_vec() })
}

/// An output in the order in which the model has its dims, the example dim first. The Plan stores it as it likes.
fn in_order(project: &Project, plan: &Plan, name: &str, t: &HostTensor) -> Option<HostTensor> {
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
