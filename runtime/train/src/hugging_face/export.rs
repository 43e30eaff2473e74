//! `export hf`: a checkpoint of a run as a folder that `from_pretrained` of transformers reads.

use super::config_text::{ConfigDetails, config_text};
use super::map::HfMap;
use super::tokens::TokenizerFiles;
use crate::ProjectOptions;
use crate::failure::Failure;
use crate::inference::read_checkpoint;
use crate::init::{TensorGroup, targets, tensor_groups};
use crate::project::Project;
use crate::recorded::Recorded;
use meshwright_data::Source;
use meshwright_data::corpus::TextTokenizer;
use meshwright_diag::{Diagnostic, Sources, codes, nearest};
use meshwright_files::durable::write_durably;
use meshwright_files::folder::{Folder, entries};
use meshwright_files::{Checked, RawTensor};
use meshwright_plan::{DType, InputDecl};
use meshwright_runs::checkpoint::INDEX;
use meshwright_runs::checkpoint::{AVERAGE, Checkpoint, Which, write_tensors};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

/// The run to export, and the target.
#[derive(Clone, Debug, Default)]
pub struct HfExport {
    /// The folder of the run.
    pub run: PathBuf,
    /// Which of its checkpoints.
    pub which: Which,
    /// Exports the moving average of each parameter that has one.
    pub averages: bool,
    /// A map, by name or file; by default the one for the model.
    pub map: Option<String>,
    /// A tokenizer in place of that of the run or its data.
    pub tokenizer: Option<PathBuf>,
    /// The folder to write.
    pub to: PathBuf,
    /// Folders in which data is sought.
    pub roots: Vec<PathBuf>,
    /// The most bytes of tensors in a file.
    pub most_bytes: u64,
}

/// The result.
#[derive(Clone, Debug, Default)]
pub struct HfExported {
    /// The step of the checkpoint.
    pub step: u64,
    /// Their class.
    pub class: String,
    /// Tensors that were written.
    pub tensors: usize,
    /// The files, by name.
    pub files: Vec<String>,
    /// Other notes.
    pub notes: Vec<String>,
}

/// Exports a checkpoint. `sources` get the texts of the model.
///
/// # Errors
///
/// E0514 where the folder cannot be written, E0516 where it is not empty or the model has no map, E0512 and E0513 for the
/// checkpoint.
pub fn export_hf(options: &HfExport, sources: &mut Sources) -> Result<HfExported, Failure> {
    vacant(&options.to)?;
    if !Recorded::is_run(&options.run) {
        let message = format!("`{}` is not the folder of a run", options.run.display());
        let d = Diagnostic::error(codes::E0516, message);
        return Err(d.help("name the folder that `train` or `import hf` wrote: `runs/gpt-1`").into());
    }
    let recorded = Recorded::read(&options.run)?;
    let loaded = Project::load(&recorded.project(&ProjectOptions::default())?);
    *sources = loaded.sources;
    let project = loaded.project.ok_or(Failure::Diagnostics(loaded.diagnostics))?;
    let class = recorded.imported_as();
    let map = match &options.map {
        Some(name) => HfMap::named(name)?,
        None => map_for(&project, class.as_deref())?,
    };
    let found = read_checkpoint(&options.run, options.which)?;
    let checkpoint = found.checkpoint;
    let mut all = targets(&project);
    let mut dtype = DType::F32;
    for t in &mut all {
        t.dtype = checkpoint.fits(&t.path, t.dtype, &t.shape)?.dtype;
        dtype = t.dtype;
    }
    let reader = Reader { checkpoint: &checkpoint, averages: options.averages };
    reader.checked()?;
    let groups = tensor_groups(&map.names, &all)?;
    let source = data_of(&recorded, &project, &options.roots);
    let of_data = source.as_ref().and_then(tokenizer_of);
    let tokenizer = TokenizerFiles::of(&map, &options.run, options.tokenizer.as_deref(), of_data)?;
    let mut notes: Vec<String> = found.skipped.iter().map(ToString::to_string).collect();
    if tokenizer.is_none() {
        notes.push(
            "neither the run nor its data has a tokenizer: none is written; `--tokenizer FILE` names one"
                .into(),
        );
    }
    let ids = tokenizer.as_ref().map(|t| t.ids.iter().map(|(k, id)| (k.as_str(), *id)).collect());
    let labels = map.labels.as_ref().map(|dim| class_names(&project, dim, source.as_ref(), &recorded));
    let details = ConfigDetails { labels, tokens: ids.unwrap_or_default(), dtype };
    let config = config_text(&map, &project, &details)?;
    let folder = Folder::at(&options.to).create().map_err(|e| unwritable(&options.to, &e))?;
    let mut files = write_weights(&groups, &reader, &options.to, options.most_bytes)?;
    let texts = tokenizer.map(|t| t.files).unwrap_or_default();
    for (name, text) in texts.into_iter().chain([("config.json".to_string(), config)]) {
        write_durably(&folder, &name, &[text.as_bytes()])
            .map_err(|e| unwritable(&options.to.join(&name), &e))?;
        files.push(name);
    }
    Ok(HfExported {
        step: checkpoint.meta.step,
        class: map.class.clone(),
        tensors: groups.iter().map(|g| g.names().len()).sum(),
        files,
        notes,
    })
}

fn unwritable(path: &Path, why: &dyn std::fmt::Display) -> Box<Diagnostic> {
    Box::new(Diagnostic::error(codes::E0514, format!("`{}` cannot be written: {why}", path.display())))
}

/// That nothing is in the way: what was there before would be taken for a part of the checkpoint.
fn vacant(folder: &Path) -> Checked<()> {
    if folder.exists() && !folder.is_dir() {
        return Err(unwritable(folder, &"it is not a folder"));
    }
    let there =
        if folder.exists() { entries(folder).map_err(|e| unwritable(folder, &e))? } else { Vec::new() };
    match there.first() {
        None => Ok(()),
        Some(entry) => {
            let name = entry.name.to_string_lossy();
            let message = format!("`{}` is not empty: there is `{name}`", folder.display());
            Err(Box::new(Diagnostic::error(codes::E0516, message).help("name a new folder")))
        }
    }
}

/// The map for a model of ours: that of the class that its weights are of, or the first that has it with these consts.
fn map_for(project: &Project, class: Option<&str>) -> Checked<HfMap> {
    let (model, consts) = (project.program.model.as_str(), &project.program.consts);
    let mut all = HfMap::shipped()?;
    let has = |(name, value): (&String, &f64)| consts.get(name).copied().unwrap_or_default() == *value;
    let fits = |m: &HfMap| m.model == model && m.set.iter().all(has);
    let of_class = |m: &HfMap| fits(m) && Some(m.class.as_str()) == class;
    let first = all.iter().position(of_class).or_else(|| all.iter().position(fits));
    if let Some(at) = first.or_else(|| all.iter().position(|m| m.model == model)) {
        return Ok(all.swap_remove(at));
    }
    let names: Vec<&str> = all.iter().map(|m| m.model.as_str()).collect();
    let d = Diagnostic::error(
        codes::E0516,
        format!("no map between the model `{model}` and one of Hugging Face ships"),
    );
    let d = match nearest(model, names.iter().copied()) {
        Some(near) => d.help(format!("where it has the paths of `{near}`, take its map: `--map {near}`")),
        None => d,
    };
    Err(Box::new(d.help(format!("maps ship for {}; `--map FILE` names one of your own", names.join(", ")))))
}

/// Reads parameters, or their averages.
struct Reader<'a> {
    checkpoint: &'a Checkpoint,
    averages: bool,
}

impl Reader<'_> {
    /// That there are averages where they are asked for.
    fn checked(&self) -> Checked<()> {
        if !self.averages || self.checkpoint.tensors.iter().any(|t| t.name.ends_with(AVERAGE)) {
            return Ok(());
        }
        let message = format!("the checkpoint of step {} holds no averages", self.checkpoint.meta.step);
        let d = Diagnostic::error(codes::E0516, message);
        Err(Box::new(d.help("leave out `--averages`; `ema` in the `train` block keeps averages")))
    }

    fn read(&self, path: &str) -> Checked<RawTensor> {
        let average = format!("{path}{AVERAGE}");
        let has = self.averages && self.checkpoint.info(&average).is_some();
        self.checkpoint.tensor(if has { &average } else { path })
    }

    fn tensors(&self, group: &TensorGroup) -> Checked<Vec<RawTensor>> {
        group.tensors(&mut |path| self.read(path))
    }
}

/// The data of a run's training, if it is still there.
fn data_of(recorded: &Recorded, project: &Project, roots: &[PathBuf]) -> Option<Source> {
    let declared: Vec<InputDecl> = project.program.inputs.iter().map(|i| i.0.clone()).collect();
    meshwright_data::find(Some(&recorded.data()?), roots, &declared).ok()
}

/// The tokenizer of data, if it is text.
fn tokenizer_of(source: &Source) -> Option<TextTokenizer> {
    source.splits.values().find_map(|s| s.tokens.as_ref())?.files.tokenizer().ok()
}

/// The names of the positions along a dim: those of the data, of the run, or their numbers in the form of transformers.
fn class_names(project: &Project, dim: &str, source: Option<&Source>, recorded: &Recorded) -> Vec<String> {
    let dims = &project.program.graph.dims;
    let count = dims.iter().find(|(_, n)| *n == dim).map_or(0, |(d, _)| dims.size(d));
    let of_data = source.map(|s| s.class_names(project.program.inputs.iter().map(|i| &i.0), dims));
    let all = [of_data.unwrap_or_default(), recorded.class_names()];
    let known = all.into_iter().find_map(|mut names| names.remove(dim).filter(|names| names.len() == count));
    known.unwrap_or_else(|| (0..count).map(|i| format!("LABEL_{i}")).collect())
}

/// Writes tensors to one file, or to several of at most `most` bytes with an index; gives the names of the files.
fn write_weights(groups: &[TensorGroup], reader: &Reader, folder: &Path, most: u64) -> Checked<Vec<String>> {
    let sizes: Vec<(String, u64)> =
        groups.iter().flat_map(|g| g.names().into_iter().map(|n| (n, g.bytes()))).collect();
    let shards = shards(&sizes, most);
    let count = shards.iter().copied().max().unwrap_or(0) + 1;
    let name = |k: usize| match count {
        1 => "model.safetensors".to_string(),
        _ => format!("model-{:05}-of-{count:05}.safetensors", k + 1),
    };
    let (mut open, mut at): (Vec<(String, RawTensor)>, usize) = (Vec::new(), 0);
    let write = |k: usize, tensors: &[(String, RawTensor)]| {
        let list: Vec<(&str, &RawTensor)> = tensors.iter().map(|(n, t)| (n.as_str(), t)).collect();
        write_tensors(("format", "pt"), &list, &folder.join(name(k)))
    };
    for group in groups {
        for (name, tensor) in group.names().into_iter().zip(reader.tensors(group)?) {
            if at > 0 && shards[at] != shards[at - 1] {
                write(shards[at - 1], &open)?;
                open.clear();
            }
            open.push((name, tensor));
            at += 1;
        }
    }
    write(count - 1, &open)?;
    let mut files: Vec<String> = (0..count).map(name).collect();
    if count > 1 {
        let places: Map<String, Value> =
            sizes.iter().zip(&shards).map(|((n, _), k)| (n.clone(), name(*k).into())).collect();
        let total: u64 = sizes.iter().map(|s| s.1).sum();
        let index = json!({ "metadata": { "total_size": total }, "weight_map": places });
        let text = serde_json::to_string_pretty(&index).unwrap_or_default();
        let index = format!("model{INDEX}");
        write_durably(&Folder::at(folder), &index, &[text.as_bytes()])
            .map_err(|e| unwritable(&folder.join(&index), &e))?;
        files.push(index);
    }
    Ok(files)
}

/// In which file each tensor is.
fn shards(sizes: &[(String, u64)], most: u64) -> Vec<usize> {
    let (mut shard, mut filled) = (0, 0);
    let next = |(_, bytes): &(String, u64)| {
        if filled > 0 && filled + bytes > most {
            (shard, filled) = (shard + 1, 0);
        }
        filled += bytes;
        shard
    };
    sizes.iter().map(next).collect()
}
