//! `eval`: a checkpoint on any mesh, without training; and what `predict` begins with too.

use crate::devices::consensus::{abort_on_error, agree_on_result, check_same_configuration};
use crate::devices::{DataOptions, Devices, dataset, restore, start};
use crate::failure::Failure;
use crate::project::Project;
use crate::training::evaluator::Evaluator;
use crate::training::session::common;
use meshwright_core::ParamDecl;
use meshwright_data::Dataset;
use meshwright_diag::{Diagnostic, Sources, codes};
use meshwright_exec::{Cluster, ProgramId};
use meshwright_files::folder::Folder;
use meshwright_files::folder::holds_run;
use meshwright_files::text::listed;
use meshwright_plan::Plan;
use meshwright_runs::checkpoint::INDEX;
use meshwright_runs::checkpoint::{AVERAGE, Checkpoint, Loaded, Store, Which, one_only, read_file};
use meshwright_runs::metrics;
use meshwright_runs::run_dir::checkpoints_in;
use meshwright_sorted::{SortedMap, SortedSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The evaluation to run.
#[derive(Clone, Debug, Default)]
pub struct EvalOptions {
    /// `--data`.
    pub data: Option<String>,
    /// The model's own tokenizer, for text that was found and not named.
    pub tokenizer: Option<PathBuf>,
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

/// Result of an evaluation.
#[derive(Clone, Debug)]
pub struct Evaluated {
    /// Losses and metrics.
    pub evaluation: metrics::Evaluation,
    /// Other notes, such as damaged examples that were left out.
    pub notes: Vec<String>,
}

/// Reads a checkpoint: one of a run's folder, one file, or the files of a folder that is none of a run.
pub fn read_checkpoint(path: &Path, which: Which) -> Result<Loaded, Failure> {
    let inside = || if holds_run(path) { None } else { weights_in(path) };
    if let Some(file) = if path.is_file() { Some(path.to_path_buf()) } else { inside() } {
        one_only(&file, which)?;
        return Ok(Loaded { checkpoint: read_file(&file)?, skipped: Vec::new() });
    }
    let folder = checkpoints_in(path);
    let found = Store::read_only(folder).find(which)?;
    match found {
        Some(loaded) => Ok(loaded),
        None => Err(Diagnostic::error(codes::E0516, format!("`{}` holds no checkpoint", path.display()))
            .help("name a run that has saved a checkpoint (`meshwright runs ls` lists runs), or a `.safetensors` file of one")
            .into()),
    }
}

/// The one index of several files in a folder, or else the one file of tensors.
fn weights_in(folder: &Path) -> Option<PathBuf> {
    let entries = Folder::at(folder).entries().ok()?;
    [INDEX, ".safetensors"].into_iter().find_map(|ending| {
        let mut all = entries.iter().filter(|e| e.name.to_string_lossy().ends_with(ending));
        all.next().filter(|_| all.next().is_none()).map(|e| e.path.clone())
    })
}

/// Losses and metrics of a checkpoint over a split of the data. Of several processes the first reads the checkpoint; all
/// get the result.
pub fn evaluate(
    project: &Project,
    sources: &Sources,
    options: &EvalOptions,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Evaluated, Failure> {
    abort_on_error(&options.devices.processes, evaluated(project, sources, options, progress))
}

fn evaluated(
    project: &Project,
    sources: &Sources,
    options: &EvalOptions,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Evaluated, Failure> {
    let processes = &*options.devices.processes;
    let checkpoint = checkpoint_of(options)?;
    let set = set_of(project, options, None)?;
    let mut notes = oddities(checkpoint.as_ref(), project);
    notes.extend(set.notes());
    let ready = (|| {
        let mut cluster = start(project, options.cores, &options.devices)?;
        let set = Arc::new(set);
        let evaluator = Evaluator::new(project, sources, &mut cluster, set.clone())?;
        Ok((cluster, evaluator, set))
    })();
    let (cluster, evaluator, set) = agree_on_result(processes, "the programs", ready)?;
    notes.extend(evaluator.whole_batches());
    let plans: Vec<&Plan> = evaluator.programs().map(|p| &*p.plan).collect();
    check_same_configuration(processes, &asked(options, Some(&set), plans.first().copied(), &[]))?;
    prepare(&cluster, checkpoint.as_ref())?;
    let result = evaluator.run(&cluster, &AtomicBool::new(false), progress)?;
    cluster.shutdown();
    match result {
        Some(evaluation) => Ok(Evaluated { evaluation, notes }),
        None => unreachable!("nobody stopped the evaluation"),
    }
}

/// The checkpoint, on the first process.
pub(crate) fn checkpoint_of(options: &EvalOptions) -> Result<Option<Loaded>, Failure> {
    let processes = &*options.devices.processes;
    let about = "the checkpoint";
    let checkpoint =
        processes.on_first(about.into(), || read_checkpoint(&options.checkpoint, options.which))?;
    agree_on_result(processes, about, checkpoint.transpose())
}

/// Oddities of a checkpoint for a project: newer ones are damaged, another model wrote it, or it has another type.
pub(crate) fn oddities(loaded: Option<&Loaded>, project: &Project) -> Vec<String> {
    let (Some(Loaded { checkpoint, skipped }), program) = (loaded, &project.program) else {
        return Vec::new();
    };
    let (mut notes, meta): (Vec<String>, _) =
        (skipped.iter().map(ToString::to_string).collect(), &checkpoint.meta);
    if checkpoint.is_plain() {
        notes.push(format!(
            "{} is no checkpoint of a run: parameters are taken by their paths",
            checkpoint.place()
        ));
        let params = program.params.iter().map(|p| p.path.as_str());
        let kept: SortedSet<&str> = params.chain(program.states.iter().map(|s| s.path.as_str())).collect();
        let names = checkpoint.names();
        let left = names.iter().map(String::as_str);
        let left: Vec<&str> = left.filter(|n| !kept.contains(n.strip_suffix(AVERAGE).unwrap_or(n))).collect();
        if !left.is_empty() {
            notes.push(format!("the model has no {}: left out", listed(&left)));
        }
    } else if meta.model != program.model {
        let (wrote, is) = (&meta.model, &program.model);
        notes.push(format!("the checkpoint was written by the model `{wrote}`, and this is `{is}`: what has the same path and size is taken"));
    }
    let other =
        |p: &&ParamDecl| checkpoint.info(&p.path).is_some_and(|t| t.dtype != program.graph.ty(p.id).dtype);
    if let Some((p, has)) =
        program.params.iter().find(other).and_then(|p| Some((p, checkpoint.info(&p.path)?)))
    {
        let (is, has) = (program.graph.ty(p.id).dtype, has.dtype);
        notes.push(format!(
            "the parameters of the checkpoint are {has}, those of the model {is}: they are converted"
        ));
    }
    notes
}

/// The data: for those of the inputs, or for all.
pub(crate) fn set_of(
    project: &Project,
    options: &EvalOptions,
    inputs: Option<&SortedSet<&str>>,
) -> Result<Dataset, Failure> {
    let wanted = DataOptions {
        given: options.data.as_deref(),
        roots: &options.roots,
        tokenizer: options.tokenizer.clone(),
        allow_nonfinite: options.allow_nonfinite,
        inputs,
    };
    let set = match dataset(project, wanted, &options.split, false) {
        Ok(Some(set)) => Ok(set),
        Ok(None) => {
            Err(crate::training::evaluator::data_failed(format!("there is no `{}` split", options.split)))
        }
        Err(failure) => Err(failure),
    };
    agree_on_result(&options.devices.processes, "the data", set)
}

/// Settings that all processes must share.
pub(crate) fn asked(
    options: &EvalOptions,
    set: Option<&Dataset>,
    plan: Option<&Plan>,
    more: &[(&str, String)],
) -> SortedMap<String, String> {
    let mut asked = plan.map(common).unwrap_or_default();
    asked.insert("`--split`".into(), options.split.clone());
    let data = set.map(|set| format!("{} examples ({})", set.records(), set.fingerprint()));
    asked.insert("its data".into(), data.unwrap_or_else(|| "none".into()));
    asked.extend(more.iter().map(|(name, value)| (name.to_string(), value.clone())));
    asked
}

/// Sets all parameters and states to those of a checkpoint, which the first process has.
pub(crate) fn prepare(cluster: &Cluster, loaded: Option<&Loaded>) -> Result<(), Failure> {
    let checkpoint: Option<&Checkpoint> = loaded.map(|l| &l.checkpoint);
    let seed = checkpoint.map_or(0, |c| c.meta.seed);
    let seed = cluster.processes().broadcast("the seed".into(), seed)?;
    cluster.init_state(ProgramId(0), seed)?;
    restore(cluster, checkpoint, false)
}
