//! What a sweep is asked to do: from the command line, or from its file, `sweep.toml`. The folder of a sweep keeps one, with which
//! it goes on.

use super::values::{ConstValues, OneOrMany, layouts, meshes};
use crate::args::{SearchChoice, SweepArgs};
use clap::ValueEnum;
use meshwright_diag::{Diagnostic, codes};
use meshwright_train::Checked;
use meshwright_train::runs::RunLength;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The file that a folder of a sweep has.
pub(crate) const FILE: &str = "sweep.toml";
/// Held while a sweep runs: its folder has this file from the first time on.
pub(crate) const LOCK: &str = "sweep.lock";

/// Epochs where neither epochs nor steps are given.
const EPOCHS: u32 = 5;

/// The seeds: how many, from 0 on, or which.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected how many seeds there are, or a list of them")]
pub(crate) enum SeedList {
    Count(u32),
    List(Vec<u64>),
}

/// What varies.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Choices {
    pub(crate) layout: OneOrMany<String>,
    pub(crate) mesh: OneOrMany<String>,
    pub(crate) seeds: Option<SeedList>,
    pub(crate) dim: BTreeMap<String, OneOrMany<usize>>,
    pub(crate) set: BTreeMap<String, ConstValues>,
}

/// A sweep, as its file has it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct SweepSpec {
    pub(crate) model: String,
    pub(crate) preset: Option<String>,
    pub(crate) precision: Option<String>,
    pub(crate) data: Option<String>,
    pub(crate) epochs: Option<u32>,
    pub(crate) steps: Option<u64>,
    pub(crate) layout: OneOrMany<String>,
    pub(crate) mesh: OneOrMany<String>,
    pub(crate) seeds: Option<SeedList>,
    pub(crate) one_device: bool,
    pub(crate) only: Vec<String>,
    pub(crate) skip: Vec<String>,
    pub(crate) search: SearchChoice,
    pub(crate) trials: Option<u32>,
    pub(crate) search_seed: u64,
    pub(crate) objective: Option<String>,
    pub(crate) reduction: Option<u32>,
    pub(crate) run: Option<PathBuf>,
    pub(crate) jobs: Option<u16>,
    pub(crate) cores: Option<u16>,
    pub(crate) timing: bool,
    /// More arguments of `train`.
    pub(crate) train: Vec<String>,
    /// The folder in which the command was given: relative paths are relative to it.
    pub(crate) folder: Option<PathBuf>,
    pub(crate) dim: BTreeMap<String, OneOrMany<usize>>,
    pub(crate) set: BTreeMap<String, ConstValues>,
    /// A list in place of all combinations: each has what it does not say from above.
    pub(crate) combination: Vec<Choices>,
}

impl SweepSpec {
    /// Of the options of a command that names a model.
    pub(crate) fn of(model: &str, args: &SweepArgs) -> Checked<SweepSpec> {
        let (v, search) = (&args.variants, &args.search);
        let mut dim: BTreeMap<String, OneOrMany<usize>> = BTreeMap::new();
        for (name, sizes) in &v.dims {
            let all = dim.remove(name).map(|before| before.all()).unwrap_or_default();
            dim.insert(name.clone(), OneOrMany::Many([all, sizes.clone()].concat()));
        }
        let mut set = BTreeMap::new();
        for text in &v.sets {
            let (name, values) = text.split_once('=').ok_or_else(|| {
                wrong(format!("`--set {text}` has no `=`")).help(format!("write `--set {text}=VALUE`"))
            })?;
            let values = ConstValues::parse(values).map_err(|why| wrong(format!("`--set {name}`: {why}")))?;
            if set.insert(name.trim().to_string(), values).is_some() {
                let help = format!("give all values at once: `--set {name}=0.1,0.01`");
                return Err(Box::new(wrong(format!("`--set {name}` stands twice")).help(help)));
            }
        }
        Ok(SweepSpec {
            model: model.into(),
            preset: v.preset.clone(),
            precision: v.precision.and_then(|p| Some(p.to_possible_value()?.get_name().to_string())),
            data: v.data.clone(),
            epochs: v.epochs,
            steps: v.steps,
            layout: OneOrMany::Many(v.layouts.iter().flat_map(|l| layouts(l)).collect()),
            mesh: OneOrMany::Many(v.meshes.iter().flat_map(|m| meshes(m)).collect()),
            seeds: v.seeds.map(SeedList::Count),
            one_device: v.one_device,
            only: v.only.clone(),
            skip: v.skip.clone(),
            search: search.search.unwrap_or_default(),
            trials: search.trials,
            search_seed: search.search_seed.unwrap_or(0),
            objective: search.objective.clone(),
            reduction: search.reduction,
            train: args.train.clone(),
            dim,
            set,
            ..SweepSpec::default()
        })
    }

    /// Reads the file of a sweep.
    pub(crate) fn read(path: &Path) -> Checked<SweepSpec> {
        let unreadable = |why: String| {
            let at = path.display();
            Box::new(wrong(format!("the sweep `{at}` cannot be read: {why}")))
        };
        let text = std::fs::read_to_string(path).map_err(|e| unreadable(e.to_string()))?;
        let spec: SweepSpec =
            toml::from_str(&text).map_err(|e| unreadable(e.to_string().trim_end().into()))?;
        if spec.model.is_empty() {
            let d = wrong(format!("the sweep `{}` names no model", path.display()));
            return Err(Box::new(d.help("add a line such as `model = \"mlp\"`")));
        }
        if spec.epochs.is_some() && spec.steps.is_some() {
            let d = wrong(format!("the sweep `{}` has both epochs and steps", path.display()));
            return Err(Box::new(d.help("take one of them out")));
        }
        Ok(spec)
    }

    /// What the command says of how it runs takes precedence over the file.
    pub(crate) fn overridden(mut self, args: &SweepArgs) -> SweepSpec {
        let runs = &args.runs;
        self.run = runs.run.clone().or(self.run);
        self.cores = runs.cores.or(self.cores);
        if runs.timing {
            (self.timing, self.jobs) = (true, None);
        } else if runs.jobs.is_some() {
            (self.timing, self.jobs) = (false, runs.jobs);
        }
        self
    }

    /// The folder of the sweep.
    pub(crate) fn dir(&self) -> PathBuf {
        let name =
            Path::new(&self.model).file_stem().map_or("model".into(), |s| s.to_string_lossy().into_owned());
        self.run.clone().unwrap_or_else(|| Path::new("runs").join(format!("{name}-sweep")))
    }

    /// How long each run is.
    pub(crate) fn length(&self) -> RunLength {
        match (self.steps, self.epochs) {
            (Some(steps), _) => RunLength::Steps(steps),
            (None, epochs) => RunLength::Epochs(epochs.unwrap_or(EPOCHS)),
        }
    }

    /// What varies in all combinations.
    pub(crate) fn choices(&self) -> Choices {
        Choices {
            layout: self.layout.clone(),
            mesh: self.mesh.clone(),
            seeds: self.seeds.clone(),
            dim: self.dim.clone(),
            set: self.set.clone(),
        }
    }

    /// Its text, as its folder has it.
    pub(crate) fn text(&self) -> Checked<String> {
        toml::to_string(self).map_err(|e| Box::new(wrong(format!("the sweep cannot be written: {e}"))))
    }
}

/// Something that a sweep is asked for and cannot be.
pub(crate) fn wrong(message: String) -> Diagnostic {
    Diagnostic::error(codes::E0516, message)
}
