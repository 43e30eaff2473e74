//! `import hf`: a checkpoint of Hugging Face becomes the folder of a run.

use super::choose::map_of;
use super::config::{HfConfig, ModelSizes};
use super::map::HfMap;
use super::tied_tensors::tie;
use super::tokens::tokenizer_of;
use crate::failure::Failure;
use crate::init::{Initializer, TakenBy, Target, targets};
use crate::project::{Loaded, Project, ProjectOptions};
use crate::training::TrainOptions;
use crate::training::history::HistoryEvent;
use crate::training::run_description::settings_of;
use meshwright_diag::{Diagnostic, Sources, codes, has_errors, nearest};
use meshwright_files::text::listed;
use meshwright_files::{Checked, RawTensor};
use meshwright_plan::Arithmetic;
use meshwright_runs::checkpoint::Meta;
use meshwright_runs::checkpoint::{INDEX, TensorSource};
use meshwright_runs::run_dir::RunDir;
use meshwright_runs::settings::RunSettings;
use meshwright_sorted::{SortedMap, SortedSet};
use std::path::{Path, PathBuf};

/// Examples in a batch that a training may begin with.
const TRAINED_BATCH: usize = 8;

/// The import and its target.
#[derive(Clone, Debug, Default)]
pub struct HfImport {
    /// The folder of the checkpoint.
    pub from: PathBuf,
    /// The model; by default that of the map. Its dims and consts come before those of the checkpoint.
    pub project: ProjectOptions,
    /// A map, by name or file; by default the one for the model.
    pub map: Option<String>,
    /// The run's folder.
    pub run: PathBuf,
    /// The folder in which the command was given.
    pub folder: Option<PathBuf>,
    /// The words of the command.
    pub arguments: Vec<String>,
}

/// The result.
#[derive(Clone, Debug, Default)]
pub struct HfImported {
    /// The name of the model.
    pub model: String,
    /// Elements of all parameters.
    pub parameters: usize,
    /// The dims that the checkpoint sets.
    pub dims: SortedMap<String, usize>,
    /// The consts that it sets.
    pub consts: SortedMap<String, f64>,
    /// Sizes that a training must choose, with a first value: examples in a batch, the length of sequences.
    pub training: SortedMap<String, usize>,
    /// Other notes.
    pub notes: Vec<String>,
}

/// The name of the model of a map, or of the one whose map is for a checkpoint.
///
/// # Errors
///
/// E0529 where no map is for it, or the folder holds no configuration.
pub fn hf_model(from: &Path, map: Option<&str>) -> Checked<String> {
    let map = match map {
        Some(name) => HfMap::named(name)?,
        None => map_of(&HfConfig::read(from)?, None)?,
    };
    Ok(map.model)
}

/// Imports a checkpoint. `sources` get the texts of the model.
///
/// # Errors
///
/// E0529 where the configuration is of another model, E0512 where the tensors cannot be read, E0513 where they are not those of
/// the model, E0510 where the run's folder is taken.
pub fn import_hf(options: &HfImport, sources: &mut Sources) -> Result<HfImported, Failure> {
    RunDir::vacant(&options.run)?;
    let config = HfConfig::read(&options.from)?;
    let given = Some(options.project.model.as_str()).filter(|m| !m.is_empty());
    let map = match &options.map {
        Some(name) => HfMap::named(name)?,
        None => map_of(&config, given)?,
    };
    let sizes = config.sizes(&map, &options.project.sets)?;
    let (project, set) = sized(&options.project, (&config, &map), &sizes, sources)?;
    let (mut source, place) = tensors_in(&options.from)?;
    tie(&config, &map, &mut source, &place)?;
    let all = targets(&project);
    let names = source.names();
    // Parameters that the model lacks at these consts need no tensor; a tensor that is there all the same is named
    // below.
    let rules = map.names.of_paths(all.iter().map(|t| t.path.as_str()));
    let taken = Initializer::with(source, (place.clone(), TakenBy::Import), &rules, &all)?;
    complete(&taken, &all, &map)?;
    let (dropped, left): (Vec<&str>, Vec<&str>) = names
        .iter()
        .map(String::as_str)
        .filter(|n| !taken.tensors().contains(n) && !map.ignores(n))
        .partition(|n| map.drops(n));
    if !left.is_empty() {
        return Err(extra(&left, &place, &taken.tensors(), &map).into());
    }
    let mut notes = notes(&config, &map, &sizes);
    if !dropped.is_empty() {
        notes.push(format!("the model has no {}: left out", listed(&dropped)));
    }
    let untied: Vec<String> = taken
        .tensors()
        .into_iter()
        .filter(|n| map.copies(n) && !names.iter().any(|t| t == n))
        .map(String::from)
        .collect();
    if !untied.is_empty() {
        let list: Vec<&str> = untied.iter().map(String::as_str).collect();
        notes.push(format!(
            "{} is tied in the checkpoint, and a parameter of its own in `{}`: training makes two of it",
            listed(&list),
            project.program.model
        ));
    }
    let vocab = project.program.graph.dims.iter().find(|(_, n)| *n == "vocab");
    let (tokenizer, note) =
        tokenizer_of(&options.from, vocab.map(|(d, _)| project.program.graph.dims.size(d)))?;
    notes.extend(note);
    let labels = map.labels.as_ref().map_or(Ok(None), |_| config.labels())?;
    let class_names = map.labels.clone().zip(labels).into_iter().collect();
    write_run(options, (&project, sources), (&taken, &all), &tokenizer, (&map.class, class_names))?;
    Ok(HfImported {
        model: project.program.model.clone(),
        parameters: project.program.parameter_elements(),
        dims: set.dims,
        consts: set.consts,
        training: training_sizes(&project),
        notes,
    })
}

/// Notes on a configuration: keys without a rule, and differences of the model.
fn notes(config: &HfConfig, map: &HfMap, sizes: &ModelSizes) -> Vec<String> {
    let unread = config.unread(map);
    let mut notes = Vec::new();
    if !unread.is_empty() {
        let (all, place) = (unread.join(", "), map.place());
        notes.push(format!(
            "`config.json` has {all}, of which `{place}` knows nothing: it is left out, whatever it changes"
        ));
    }
    for (dim, (window, most)) in &sizes.windows {
        notes.push(format!(
            "attention has a window there, {window}, and none here: both are the same up to `{dim}` = {most}"
        ));
    }
    notes
}

/// The dims that a training has to choose: how many examples a batch has, and how long its sequences are.
fn training_sizes(project: &Project) -> SortedMap<String, usize> {
    let dims = &project.program.graph.dims;
    let seq = dims.iter().find(|(_, n)| *n == "seq").map(|(d, n)| (n.to_string(), dims.size(d)));
    let batch = project.example_dim().map(|(_, n)| (n.to_string(), TRAINED_BATCH));
    batch.into_iter().chain(seq).collect()
}

/// The model at the sizes of a checkpoint, with what of these it takes. A batch of one does for whoever only reads.
fn sized(
    given: &ProjectOptions,
    (config, map): (&HfConfig, &HfMap),
    sizes: &ModelSizes,
    sources: &mut Sources,
) -> Result<(Project, ModelSizes), Failure> {
    let mut options = given.clone();
    if options.model.is_empty() {
        options.model = map.model.clone();
    }
    options.precision = options.precision.or(Some(Arithmetic::F32));
    let chosen: SortedSet<&String> = given.dims.iter().map(|d| &d.0).collect();
    let mut set = ModelSizes { consts: sizes.consts.clone(), ..ModelSizes::default() };
    set.consts.retain(|name, _| !given.sets.iter().any(|s| s.0 == *name));
    set.dims = sizes.dims.iter().filter(|d| !chosen.contains(d.0)).map(|(n, s)| (n.clone(), *s)).collect();
    let mut load = |options: &ProjectOptions| -> Result<Project, Failure> {
        let Loaded { project, sources: read, diagnostics, .. } = Project::load(options);
        *sources = read;
        match project {
            Some(p) if !has_errors(&diagnostics) => Ok(p),
            _ => Err(Failure::Diagnostics(diagnostics)),
        }
    };
    // At its own sizes, which say how long its sequences are where nobody does.
    let own = load(&ProjectOptions { dims: Vec::new(), sets: Vec::new(), ..options.clone() })?;
    let lacking: Vec<String> =
        set.consts.keys().filter(|n| !own.program.consts.contains_key(*n)).cloned().collect();
    for name in lacking {
        let value = set.consts.remove(&name);
        if value != map.without(&name) {
            let said = sizes.said.get(&name).cloned().unwrap_or_else(|| format!("the class `{}`", map.class));
            let d = config
                .error(format!("has {said}; the model `{}` has no const `{name}` for it", own.program.model));
            return Err(d.help(format!("take `{}`, or a model with such a const", map.model)).into());
        }
    }
    let dims = &own.program.graph.dims;
    for (name, most) in sizes.limits.iter().filter(|l| !chosen.contains(l.0)) {
        let is = dims.iter().find(|(_, n)| n == name).map(|(d, _)| dims.size(d));
        if is.is_some_and(|is| is > *most) {
            set.dims.insert(name.clone(), *most);
        }
    }
    if let Some((_, name)) = own.example_dim().filter(|(_, n)| !chosen.iter().any(|c| c == n)) {
        set.dims.insert(name.into(), 1);
    }
    options.dims.splice(0..0, set.dims.clone());
    options.sets.splice(0..0, set.consts.clone());
    Ok((load(&options)?, set))
}

/// The tensors of a folder, and how messages call them.
fn tensors_in(folder: &Path) -> Result<(TensorSource, String), Failure> {
    let (one, index) = (folder.join("model.safetensors"), folder.join(format!("model{INDEX}")));
    let path = if one.is_file() { one } else { index };
    let shown = path.display().to_string();
    if !path.is_file() {
        let message = format!(
            "`{}` has neither `model.safetensors` nor `model{INDEX}`: there are no weights to import",
            folder.display()
        );
        return Err(Diagnostic::error(codes::E0512, message)
            .help("other forms become these in Python: `AutoModel.from_pretrained(DIR).save_pretrained(NEW)`, of the model's own class")
            .into());
    }
    let source = TensorSource::open(&path).map_err(|why| {
        let message = format!("`{shown}` holds no weights that can be read: {why}");
        Failure::from(Diagnostic::error(codes::E0512, message).help("it may be damaged: fetch it again"))
    })?;
    Ok((source, format!("`{shown}`")))
}

/// That all parameters get their values.
fn complete(taken: &Initializer, all: &[Target], map: &HfMap) -> Result<(), Failure> {
    let lacks: Vec<&Target> = all.iter().filter(|t| !taken.is_whole(t)).collect();
    let errors = lacks.iter().map(|t| {
        let message = format!(
            "nothing of the checkpoint is `{}` {}: `{}` has no rule for it",
            t.path,
            t.dims,
            map.place()
        );
        Diagnostic::error(codes::E0513, message)
            .help("take the model that the map is for, or name a map that has a rule: `--map FILE`")
    });
    let errors: Vec<Diagnostic> = errors.collect();
    if errors.is_empty() { Ok(()) } else { Err(Failure::Diagnostics(errors)) }
}

/// Tensors that nobody takes.
fn extra(left: &[&str], place: &str, taken: &SortedSet<&str>, map: &HfMap) -> Diagnostic {
    let message = format!("{place} has {}, which the model `{}` has not", listed(left), map.model);
    let d = Diagnostic::error(codes::E0513, message);
    let d = match nearest(left[0], taken.iter().copied()) {
        Some(near) => d.note(format!("the nearest that it has is `{near}`")),
        None => d,
    };
    d.help("without them it would be another model; a map of your own may leave them out: `dropped`, and `--map FILE`")
}

/// The options of a run that would have trained from this.
fn lasting(options: &HfImport) -> TrainOptions {
    TrainOptions {
        folder: options.folder.clone(),
        arguments: options.arguments.clone(),
        ..TrainOptions::default()
    }
}

/// Writes the folder of a new run, or nothing.
fn write_run(
    options: &HfImport,
    (project, sources): (&Project, &Sources),
    (taken, all): (&Initializer, &[Target]),
    tokenizer: &SortedMap<String, String>,
    (class, class_names): (&str, SortedMap<String, Vec<String>>),
) -> Result<(), Failure> {
    let mut tensors: Vec<(&str, RawTensor)> = Vec::with_capacity(all.len());
    for t in all {
        tensors.extend(taken.tensor(&t.path, (t.dtype, &t.shape), None)?.map(|raw| (t.path.as_str(), raw)));
    }
    let run = RunDir::create(&options.run)?;
    let texts = &project.texts;
    let used: Vec<&str> = texts.used.iter().map(|id| sources.text(*id)).collect();
    run.write_texts(sources.text(texts.model), &used, texts.layout.map(|id| sources.text(id)))?;
    let lasting = lasting(options);
    run.remember(&HistoryEvent::new((project, sources), &lasting, ("import", 0)))?;
    let meta = Meta::new(project.program.model.as_str(), 0, 0, 0, 0);
    run.checkpoints()?.save(&meta, tensors.iter().map(|(n, t)| (*n, t)))?;
    tokenizer.iter().try_for_each(|(name, text)| run.write_tokenizer(name, text))?;
    // From here on it is a run.
    let settings = RunSettings {
        imported: Some(options.from.display().to_string()),
        class: Some(class.into()),
        class_names,
        ..settings_of(project, sources, &lasting, 0, None)
    }
    .absolute();
    Ok(run.write_settings(&settings)?)
}
