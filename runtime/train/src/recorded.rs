//! A run's folder, with everything that a command needs to continue it, to evaluate it, or to predict.

use crate::devices::consensus::agree_on_result;
use crate::failure::Failure;
use crate::project::{Project, ProjectOptions};
use crate::training::policies::reports_of;
use meshwright_core::Reports;
use meshwright_core::resolve::is_preset;
use meshwright_diag::{Diagnostic, codes};
use meshwright_exec::Processes;
use meshwright_files::Checked;
use meshwright_plan::Arithmetic;
use meshwright_runs::catalog::MODELS;
use meshwright_runs::policies::PolicySettings;
use meshwright_runs::run_dir::{read_texts, unusable_settings};
use meshwright_runs::settings::{COMMAND_LINE, RunSettings};
use meshwright_sorted::SortedMap;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The settings of a run with its texts. They can be sent to other processes, which need not see its folder.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Recorded {
    run: PathBuf,
    settings: RunSettings,
    /// Text of each model file, by its name.
    models: SortedMap<String, String>,
    layout: String,
}

impl Recorded {
    /// Whether a folder holds a run.
    pub fn is_run(folder: &Path) -> bool {
        meshwright_files::folder::holds_run(folder)
    }

    /// Reads what a run's folder says of it.
    ///
    /// # Errors
    ///
    /// E0511 where a file of it is missing or malformed.
    pub fn read(run: &Path) -> Checked<Recorded> {
        let settings = RunSettings::read(run)?;
        let texts = read_texts(run, settings.used.len())?;
        let names = std::iter::once(&settings.file).chain(&settings.used);
        let models = names.cloned().zip(texts.models).collect();
        Ok(Recorded { run: run.into(), settings, models, layout: texts.layout })
    }

    /// The name of the model as the user gave it: a file, or a shipped model.
    pub fn model_file(&self) -> &str {
        &self.settings.file
    }

    /// The texts that it was made from, each with what it is (`model`, `layout`, or the name of a file that the model uses) and
    /// the name of its file.
    pub fn texts(&self) -> Vec<(&str, &str, &str)> {
        let of = |file: &'_ String| self.models.get(file).map_or("", String::as_str);
        let main = &self.settings.file;
        let mut all = vec![("model", main.as_str(), of(main))];
        // By the way from the model's file: runs of one model in two places have the same.
        let home = Path::new(main).parent().and_then(Path::to_str).unwrap_or_default();
        let role = |used: &'_ str| match used.strip_prefix(home) {
            Some(below) if !home.is_empty() => below.trim_start_matches('/').len(),
            _ => used.len(),
        };
        all.extend(
            self.settings.used.iter().map(|used| (&used[used.len() - role(used)..], used.as_str(), of(used))),
        );
        all.extend(self.settings.layout_file.as_deref().map(|file| ("layout", file, self.layout.as_str())));
        all
    }

    /// Whether it can go on: it has trained.
    ///
    /// # Errors
    ///
    /// E0510 where its weights were imported.
    pub fn resumable(&self) -> Checked<()> {
        let Some(from) = &self.settings.imported else { return Ok(()) };
        let run = self.run.display();
        let message = format!("`{run}` holds weights that were imported from `{from}`, and no training");
        let file = self.settings.file.as_str();
        let model = MODELS.iter().find(|m| m.path == file).map_or(file, |m| m.name);
        let help = format!("begin one with them: `meshwright train {model} --init {run}`");
        Err(Box::new(Diagnostic::error(codes::E0510, message).help(help)))
    }

    /// The project to load: `given` if it says something, and the run's own settings otherwise. If `given` names no
    /// model, the run's own copy of its text is taken.
    ///
    /// # Errors
    ///
    /// E0511 where `run.toml` has a precision that nobody knows.
    pub fn project(&self, given: &ProjectOptions) -> Checked<ProjectOptions> {
        let s = &self.settings;
        let mut merged = given.clone();
        if given.model.is_empty() {
            merged.model = s.file.clone();
            merged.texts.extend(self.models.clone());
        }
        if given.layout.is_none() {
            merged.layout = match s.layout_file.as_deref() {
                // Of a run that was started before layouts were named, the rules are all there is.
                None => Some(s.layout.join("; ")).filter(|rules| !rules.is_empty()),
                Some(COMMAND_LINE) => Some(self.layout.clone()),
                Some(file) => {
                    merged.texts.insert(file.into(), self.layout.clone());
                    Some(file.into())
                }
            };
        }
        if !s.mesh.is_empty() && given.mesh.is_none() {
            let mesh = Some(s.mesh.replace(" x ", ","));
            // A mesh that a layout declares is the run's unless the layout is; another layout brings its own.
            let place = if given.layout.is_none() { &mut merged.mesh } else { &mut merged.default_mesh };
            *place = mesh.filter(|m| m.contains('='));
        }
        let asked = |name: &String, given: &[String]| given.contains(name);
        let names: Vec<String> = given.dims.iter().map(|d| d.0.clone()).collect();
        merged.dims.splice(0..0, s.dim.clone().into_iter().filter(|d| !asked(&d.0, &names)));
        let names: Vec<String> = given.sets.iter().map(|d| d.0.clone()).collect();
        merged.sets.splice(0..0, s.set.clone().into_iter().filter(|d| !asked(&d.0, &names)));
        merged.preset = given.preset.clone().or_else(|| s.preset.clone());
        if given.reports == Reports::default() {
            merged.reports = reports_of(&s.policies);
        }
        if given.precision.is_none() {
            merged.precision = Some(self.precision()?);
        }
        Ok(merged)
    }

    fn precision(&self) -> Checked<Arithmetic> {
        let name = &self.settings.precision;
        Arithmetic::named(name).ok_or_else(|| {
            let all: Vec<String> = Arithmetic::ALL.iter().map(|a| format!("`{}`", a.name())).collect();
            let why = format!("its `precision` is `{name}`, which is not one of {}", all.join(", "));
            unusable_settings(&self.run, &why)
        })
    }

    /// The project of a training that begins with the values of this run: `given`, and for dims and consts that it does
    /// not name those that this run was given, if it has the same model. An imported run has no number of examples in a
    /// batch. The taken settings are in words. A preset says it all.
    pub fn begun_by(&self, given: &ProjectOptions) -> (ProjectOptions, Vec<String>) {
        let s = &self.settings;
        let mut merged = given.clone();
        let plain = ProjectOptions { layout: None, mesh: None, expect_devices: None, ..given.clone() };
        let same = || Project::load(&plain).project.filter(|p| p.program.model == s.model);
        let Some(project) = given.preset.is_none().then(same).flatten() else { return (merged, Vec::new()) };
        let batch = project.example_dim().map(|(_, n)| n).filter(|_| s.imported.is_some());
        let (graph, consts) = (&project.program.graph, &project.program.consts);
        let mut taken = Vec::new();
        for (name, size) in &s.dim {
            let known = graph.dims.iter().any(|(_, n)| n == name);
            if known && batch != Some(name.as_str()) && !given.dims.iter().any(|d| d.0 == *name) {
                merged.dims.push((name.clone(), *size));
                taken.push(format!("--dim {name}={size}"));
            }
        }
        for (name, value) in &s.set {
            if consts.contains_key(name) && !given.sets.iter().any(|d| d.0 == *name) {
                merged.sets.push((name.clone(), *value));
                taken.push(format!("--set {name}={value}"));
            }
        }
        (merged, taken)
    }

    /// Changes of the run by `given`, a line each.
    pub fn overridden(&self, given: &ProjectOptions, data: Option<&str>) -> Vec<String> {
        let s = &self.settings;
        let none = |v: &Option<String>, none: &str| v.clone().unwrap_or_else(|| none.into());
        let lines = s.layout_lines();
        let rules = if lines.is_empty() { "no rules".into() } else { lines.join("; ") };
        let mesh = if s.mesh.is_empty() { "one device".into() } else { s.mesh.replace(" x ", ",") };
        let precision = given.precision.map(|p| p.name().to_string());
        let (preset, place) = (none(&s.preset, "none"), none(&s.data_place(), "the default place"));
        let mut changes = vec![
            ("layout".to_string(), given.layout.clone(), rules),
            ("mesh".into(), given.mesh.clone(), mesh),
            ("preset".into(), given.preset.clone().filter(|p| !is_preset(&preset, p)), preset.clone()),
            ("precision".into(), precision, s.precision.clone()),
            ("data".into(), data.map(String::from), place),
        ];
        if let Some(gone) = s.data_folder.as_ref().filter(|f| data.is_none() && !f.is_dir()) {
            let was = format!("`{}`, which is not there", gone.display());
            changes.push(("data".into(), Some("it is searched for again".into()), was));
        }
        let shown = |v: Option<String>| v.unwrap_or_else(|| "another value".into());
        for (name, size) in &given.dims {
            let was = shown(s.dims.get(name).map(usize::to_string));
            changes.push((format!("dim {name}"), Some(size.to_string()), was));
        }
        for (name, value) in &given.sets {
            let was = shown(s.consts.get(name).map(f64::to_string));
            changes.push((format!("const {name}"), Some(value.to_string()), was));
        }
        let changed = changes.into_iter().filter_map(|(what, is, was)| Some((what, is?, was)));
        let changed = changed.filter(|(_, is, was)| is != was);
        changed.map(|(what, is, was)| format!("{what}: {is}; the run had {was}")).collect()
    }

    /// Folder of the run's data: the one in which it was found, or the value of `--data` if that is not there any more.
    pub fn data(&self) -> Option<String> {
        let found = self.settings.data_folder.as_ref().filter(|f| f.is_dir());
        found.map(|f| f.display().to_string()).or_else(|| self.settings.data.clone())
    }

    /// `--data` of the run.
    pub fn asked_data(&self) -> Option<&str> {
        self.settings.data.as_deref()
    }

    /// The class of Hugging Face that its weights are of: of this run where it was imported, or of the one that it began with.
    pub(crate) fn imported_as(&self) -> Option<String> {
        self.first().map_or_else(|| self.settings.class.clone(), |first| first.settings.class)
    }

    /// Names of the positions along dims, from their data, or from the run of the same model with whose values it
    /// began.
    pub(crate) fn class_names(&self) -> SortedMap<String, Vec<String>> {
        let mut all = self.first().map(|first| first.settings.class_names).unwrap_or_default();
        all.extend(self.settings.class_names.clone());
        all
    }

    /// The run of the same model that it began with.
    fn first(&self) -> Option<Recorded> {
        let init = self.settings.init.as_ref().filter(|_| self.settings.imported.is_none())?;
        Recorded::read(&init.path).ok().filter(|first| first.settings.model == self.settings.model)
    }

    /// `--allow-nonfinite` of the run.
    pub fn allow_nonfinite(&self) -> bool {
        self.settings.allow_nonfinite
    }

    /// `--cores` of the run.
    pub fn cores(&self) -> Option<usize> {
        self.settings.cores
    }

    /// The kind of its devices, in the words of the command line; empty if the run does not say.
    pub fn device(&self) -> &str {
        &self.settings.device
    }

    /// The transport between its GPUs, if it was given.
    pub fn collectives(&self) -> Option<&str> {
        self.settings.collectives.as_deref()
    }

    /// When it saves and evaluates, and what it tells.
    pub fn policies(&self) -> &PolicySettings {
        &self.settings.policies
    }
}

/// The first process's reading of a run in `folder`, sent to all; `None` if the folder has none.
///
/// # Errors
///
/// Those of [`Recorded::read`].
pub fn recorded(processes: &Processes, folder: &Path) -> Result<Option<Recorded>, Failure> {
    let about = "the run's folder";
    let read = || if Recorded::is_run(folder) { Recorded::read(folder).map(Some) } else { Ok(None) };
    let found = processes.on_first(about.into(), read)?.transpose().map_err(Failure::from);
    let found = agree_on_result(processes, about, found)?;
    Ok(processes.broadcast("the settings of the run".into(), found.flatten())?)
}
