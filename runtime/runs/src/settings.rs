//! The settings of a run, in `run.toml`, and which of them may change when the run is resumed.

use crate::catalog::{LAYOUTS, MODELS, STANDARD, Shipped};
use crate::checkpoint::Which;
use crate::policies::PolicySettings;
use crate::run_dir::read_settings;
use meshwright_diag::{Diagnostic, codes};
use meshwright_files::Checked;
use meshwright_files::given_paths::absolute;
use meshwright_sorted::{SortedMap, SortedSet};
use serde::{Deserialize, Serialize};
use std::fmt::Display;
use std::path::{Path, PathBuf};

/// The name of rules that stood on the command line, among texts.
pub const COMMAND_LINE: &str = "--layout";

/// Source of first values, in the words of the command line.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InitFrom {
    /// `--init`: the folder of a run, or a `.safetensors` file.
    pub path: PathBuf,
    /// `--init-map`.
    #[serde(default)]
    pub map: Vec<String>,
    /// `--from`: which checkpoint of a run.
    #[serde(default)]
    pub which: Which,
}

/// Prefix of the name of a map that ships.
pub const SHIPPED_MAP: &str = "hf:";

impl InitFrom {
    /// Whether a value of `--init-map` names a file of rules. Rules have a `=` behind one name, and a path may have one too.
    pub fn names_file(given: &str) -> bool {
        let rule = given.contains('=') && !Path::new(given).is_file();
        !rule && !given.starts_with(SHIPPED_MAP)
    }
}

/// The resolved settings of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunSettings {
    /// Name of the model.
    pub model: String,
    /// Its file, or the name of a shipped one.
    pub file: String,
    /// The files that it uses, in the order of their copies.
    #[serde(default)]
    pub used: Vec<String>,
    /// Seed of the initial values and of the order of examples. As text, since TOML has no integers above 2^63.
    pub seed: String,
    /// Arithmetic type.
    pub precision: String,
    /// The mesh, as `r=2,c=2`; empty for one device.
    pub mesh: String,
    /// The layout's rules.
    pub layout: Vec<String>,
    /// Its other lines but the mesh, such as `microbatches 8`; none in runs of earlier versions.
    #[serde(default)]
    pub layout_settings: Option<Vec<String>>,
    /// The file of the layout, `--layout` where the rules stood on the command line; none without a layout.
    #[serde(default)]
    pub layout_file: Option<String>,
    /// The devices, and the transport between GPUs.
    #[serde(default)]
    pub device: String,
    /// The transport between GPUs, if it was given.
    #[serde(default)]
    pub collectives: Option<String>,
    /// Cores, where `--cores` gave them.
    #[serde(alias = "threads")]
    pub cores: Option<usize>,
    /// The transport: `threads`, `mpi`.
    #[serde(default)]
    pub transport: String,
    /// Whether reductions have a fixed order on every transport.
    #[serde(default)]
    pub deterministic: bool,
    /// Seconds after which a collective is given up, where it was said.
    #[serde(default)]
    pub timeout: Option<u64>,
    /// Epochs to train.
    pub epochs: Option<u32>,
    /// Steps to train.
    pub steps: Option<u64>,
    /// Whether each epoch ends with an evaluation.
    pub eval: bool,
    /// `--preset`.
    #[serde(alias = "size")]
    pub preset: Option<String>,
    /// `--data`.
    pub data: Option<String>,
    /// The folder that its data was found in, where it has a `data.toml`.
    #[serde(default)]
    pub data_folder: Option<PathBuf>,
    /// `--allow-nonfinite`.
    #[serde(default)]
    pub allow_nonfinite: bool,
    /// The folder in which the command was given. Runs of earlier versions have paths that are relative to it.
    #[serde(default)]
    pub folder: Option<PathBuf>,
    /// The folder that its weights were imported from, where it did not train.
    #[serde(default)]
    pub imported: Option<String>,
    /// The class of theirs that they are of.
    #[serde(default)]
    pub class: Option<String>,
    /// Names of the positions along dims, from the data or an import.
    #[serde(default)]
    pub class_names: SortedMap<String, Vec<String>>,
    /// Examples to train on.
    pub examples: usize,
    /// Of some of these examples; see `Dataset::fingerprint`.
    pub fingerprint: String,
    /// `--set`, the last one of each name.
    pub set: SortedMap<String, f64>,
    /// `--dim`, the last one of each name.
    #[serde(default)]
    pub dim: SortedMap<String, usize>,
    /// All dims.
    pub dims: SortedMap<String, usize>,
    /// All consts, `--preset` and `--set` applied.
    pub consts: SortedMap<String, f64>,
    /// Of which metrics more (`max`) or less (`min`) is better, as the model says.
    #[serde(default)]
    pub better: SortedMap<String, String>,
    /// Policies of saving, evaluation and reports.
    #[serde(default)]
    pub policies: PolicySettings,
    /// Source of its first values; drawn without one.
    #[serde(default)]
    pub init: Option<InitFrom>,
}

impl RunSettings {
    /// Reads those of a run.
    ///
    /// # Errors
    ///
    /// E0511.
    pub fn read(run: &Path) -> Checked<RunSettings> {
        Ok(read_settings::<RunSettings>(run)?.absolute())
    }

    /// The same with absolute paths: what they name is the same in whichever folder a command goes on with the run.
    pub fn absolute(mut self) -> RunSettings {
        let Some(folder) = self.folder.clone() else { return self };
        let placed = |path: &str| folder.join(path).display().to_string();
        // Maps that ship, and rules on the command line, are not the user's files.
        let own = |name: &str| name != COMMAND_LINE && !name.starts_with(STANDARD);
        let ships = |list: &[Shipped], name: &str| list.iter().any(|s| s.path == name);
        if !ships(MODELS, &self.file) && own(&self.file) {
            self.file = placed(&self.file);
        }
        self.used.iter_mut().filter(|u| own(u)).for_each(|u| *u = placed(u));
        if let Some(file) = self.layout_file.as_mut().filter(|f| !ships(LAYOUTS, f) && own(f)) {
            *file = placed(file);
        }
        self.data = self.data.map(|data| absolute(&data, &folder));
        self.data_folder = self.data_folder.map(|at| folder.join(at));
        self.imported = self.imported.map(|from| placed(&from));
        if let Some(init) = &mut self.init {
            init.path = folder.join(&init.path);
            init.map.iter_mut().filter(|m| InitFrom::names_file(m)).for_each(|m| *m = placed(m));
        }
        self
    }

    /// The lines of its layout but the mesh: rules, then settings.
    pub fn layout_lines(&self) -> Vec<String> {
        self.layout.iter().chain(self.layout_settings.iter().flatten()).cloned().collect()
    }

    /// Folder of its data: the one in which it was found, or the value of `--data`.
    pub fn data_place(&self) -> Option<String> {
        let folder = self.data_folder.as_ref().map(|f| f.display().to_string());
        folder.or_else(|| self.data.clone())
    }

    /// Settings that all processes of a run must share, by name. Each has its own number of cores and paths of files.
    pub fn agreed(&self) -> SortedMap<String, String> {
        let option = |v: Option<String>| v.unwrap_or_else(|| "none".into());
        let mut all: SortedMap<String, String> = SortedMap::from([
            ("the model".into(), self.model.clone()),
            ("the precision".into(), self.precision.clone()),
            ("the mesh".into(), self.mesh.clone()),
            ("the layout".into(), format!("`{}`", self.layout_lines().join("; "))),
            ("the transport".into(), self.transport.clone()),
            ("`--deterministic`".into(), self.deterministic.to_string()),
            ("`--timeout`".into(), option(self.timeout.map(|t| t.to_string()))),
            ("`--epochs`".into(), option(self.epochs.map(|n| n.to_string()))),
            ("`--steps`".into(), option(self.steps.map(|n| n.to_string()))),
            ("evaluation".into(), self.eval.to_string()),
            ("its data".into(), format!("{} examples ({})", self.examples, self.fingerprint)),
        ]);
        all.extend(self.dims.iter().map(|(n, v)| (format!("`{n}`"), v.to_string())));
        all.extend(self.consts.iter().map(|(n, v)| (format!("`{n}`"), v.to_string())));
        all
    }

    /// Compares with the settings of a resumed run. A change of numbers is refused, except of consts that only `train`
    /// reads: `model_consts` are the others. For the rest, a line for each change.
    ///
    /// # Errors
    ///
    /// E0518 with both values of everything that differs.
    pub fn resumed_as(
        &self,
        now: &RunSettings,
        model_consts: &SortedSet<String>,
    ) -> Result<Vec<String>, Vec<Diagnostic>> {
        let mut errors = Vec::new();
        let mut differs = |what: String, was: &dyn Display, is: &dyn Display, help: String| {
            let message = format!("the run has {what} = {was}, it is resumed with {is}");
            let d = Diagnostic::error(codes::E0518, message).help(help);
            errors.push(
                d.help("another value is another run: give another folder with `--run`, without `--resume`"),
            );
        };
        if self.model != now.model {
            differs("the model".into(), &self.model, &now.model, format!("resume with `{}`", self.file));
        }
        if self.seed != now.seed {
            let help = format!("leave `--seed` out, or give `--seed {}`", self.seed);
            differs("the seed".into(), &self.seed, &now.seed, help);
        }
        let names = |a: SortedSet<&String>, b: SortedSet<&String>| -> Vec<String> {
            a.union(&b).map(|n| n.to_string()).collect()
        };
        for name in names(self.consts.keys().collect(), now.consts.keys().collect()) {
            let (was, is) = (self.consts.get(&name), now.consts.get(&name));
            if is.is_some() && !model_consts.contains(&name) {
                continue;
            }
            if was.map(|v| v.to_bits()) != is.map(|v| v.to_bits()) {
                let help = match was {
                    Some(v) => format!("resume with `--set {name}={v}`"),
                    None => format!("take `const {name}` out of the model's file"),
                };
                differs(format!("`{name}`"), &shown(was), &shown(is), help);
            }
        }
        for name in names(self.dims.keys().collect(), now.dims.keys().collect()) {
            let (was, is) = (self.dims.get(&name), now.dims.get(&name));
            if was != is {
                let help = match was {
                    Some(v) => format!("resume with `--dim {name}={v}`"),
                    None => format!("take `dim {name}` out of the model's file"),
                };
                differs(format!("`{name}`"), &shown(was), &shown(is), help);
            }
        }
        if (self.examples, &self.fingerprint) != (now.examples, &now.fingerprint) {
            let about = |s: &RunSettings| {
                let from = s.data_place().unwrap_or_else(|| "the default place".into());
                format!("{} examples ({}) from {from}", s.examples, s.fingerprint)
            };
            let help = match &self.data {
                Some(d) => format!("resume with `--data {d}`"),
                None => "resume without `--data`".into(),
            };
            differs("its data".into(), &about(self), &about(now), help);
        }
        if !errors.is_empty() {
            return Err(errors);
        }
        Ok(self.changed_to(now))
    }

    /// Allowed changes, a line for each.
    fn changed_to(&self, now: &RunSettings) -> Vec<String> {
        let preset = |s: &RunSettings| s.preset.clone().unwrap_or_else(|| "none".into());
        // Of a run of an earlier version the rules alone are known.
        let whole = self.layout_settings.is_some() && now.layout_settings.is_some();
        let layout = |s: &RunSettings| {
            let lines = if whole { s.layout_lines() } else { s.layout.clone() };
            if lines.is_empty() { "no rules".to_string() } else { lines.join("; ") }
        };
        // Runs of earlier versions have it as reports print it.
        let mesh = |m: &str| match m {
            "" => "one device".to_string(),
            m => m.replace(" x ", ","),
        };
        let cores = |t: Option<usize>| t.map_or("all".to_string(), |t| t.to_string());
        let place = |d: &Option<String>| d.clone().unwrap_or_else(|| "the default place".into());
        let device = |s: &RunSettings| match s.device.as_str() {
            "" => "cpu".to_string(),
            other => other.to_string(),
        };
        let or_default = |given: &Option<String>| given.clone().unwrap_or_else(|| "the default".into());
        let timeout = |s: &RunSettings| or_default(&s.timeout.map(|t| format!("{t} s")));
        let transport = |s: &RunSettings| match s.transport.as_str() {
            "" => "threads".to_string(),
            other => other.to_string(),
        };
        let changes = [
            ("transport", transport(self), transport(now)),
            ("device", device(self), device(now)),
            ("deterministic", self.deterministic.to_string(), now.deterministic.to_string()),
            ("mesh", mesh(&self.mesh), mesh(&now.mesh)),
            ("layout", layout(self), layout(now)),
            ("cores", cores(self.cores), cores(now.cores)),
            ("collectives", or_default(&self.collectives), or_default(&now.collectives)),
            ("timeout", timeout(self), timeout(now)),
            ("evaluation", self.eval.to_string(), now.eval.to_string()),
            ("allow-nonfinite", self.allow_nonfinite.to_string(), now.allow_nonfinite.to_string()),
            ("precision", self.precision.clone(), now.precision.clone()),
            ("preset", preset(self), preset(now)),
            ("data", place(&self.data_place()), place(&now.data_place())),
        ];
        let changed = changes.into_iter().filter(|(_, was, is)| was != is);
        let changed = changed.map(|(what, was, is)| (what.to_string(), was, is));
        let changed = changed.chain(self.policies.changed_to(&now.policies));
        let consts = now.consts.iter().filter_map(|(name, is)| {
            let was = self.consts.get(name);
            let differs = was.is_none_or(|was| was.to_bits() != is.to_bits());
            differs.then(|| (format!("const {name}"), shown(was), is.to_string()))
        });
        changed.chain(consts).map(|(what, was, is)| format!("{what}: {is}; the run had {was}")).collect()
    }
}

fn shown<T: Display>(v: Option<&T>) -> String {
    v.map_or("none".into(), |v| v.to_string())
}
