//! What a sweep is asked to do: from the command line, or from its file, `sweep.toml`. The folder of a sweep keeps one, with
//! which it goes on.

use super::values::{ConstValues, OneOrMany, layouts, meshes};
use crate::args::{MOST_JOBS, MOST_REDUCTION, MOST_SEEDS, MOST_TRIALS, SearchChoice, SweepArgs};
use crate::refusal::wrong;
use clap::ValueEnum;
use meshwright_files::Checked;
use meshwright_files::text_file::text_of_at_most;
use meshwright_runs::{RunLength, parsed};
use meshwright_sorted::SortedMap;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The file that a folder of a sweep has.
pub(crate) const FILE: &str = "sweep.toml";
/// Held while a sweep runs: its folder has this file from the first time on.
pub(crate) const LOCK: &str = "sweep.lock";

/// The largest file of a sweep.
const MOST_BYTES: usize = 16 << 20;

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
    pub(crate) dim: SortedMap<String, OneOrMany<usize>>,
    pub(crate) set: SortedMap<String, ConstValues>,
}

impl Choices {
    /// What has no values, or one that cannot be.
    fn wrong(&self) -> Option<(String, &'static str)> {
        const NONE: &str = "no values of";
        if self.seeds == Some(SeedList::List(Vec::new())) {
            return Some(("seeds".into(), NONE));
        }
        let mut dims = self.dim.iter().filter_map(|(name, sizes)| match &sizes.all()[..] {
            [] => Some((format!("dim.{name}"), NONE)),
            sizes => sizes.contains(&0).then(|| (format!("dim.{name}"), "a size of 0 of")),
        });
        let mut sets = self.set.iter().filter_map(|(name, values)| match values {
            ConstValues::List(list) if list.is_empty() => Some((format!("set.{name}"), NONE)),
            ConstValues::List(list) if list.iter().any(|v| !v.is_finite()) => {
                Some((format!("set.{name}"), "a value that is no number of"))
            }
            _ => None,
        });
        dims.next().or_else(|| sets.next())
    }
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
    pub(crate) dim: SortedMap<String, OneOrMany<usize>>,
    pub(crate) set: SortedMap<String, ConstValues>,
    /// A list in place of all combinations: each has what it does not say from above.
    pub(crate) combination: Vec<Choices>,
}

impl SweepSpec {
    /// Of the options of a command that names a model.
    pub(crate) fn of(model: &str, args: &SweepArgs) -> Checked<SweepSpec> {
        Self::given(model, args)?.checked("the command")
    }

    /// What the options say, whether it can be or not.
    pub(crate) fn given(model: &str, args: &SweepArgs) -> Checked<SweepSpec> {
        let (v, search) = (&args.variants, &args.search);
        let mut dim: SortedMap<String, OneOrMany<usize>> = SortedMap::new();
        for (name, sizes) in &v.dims {
            let all = dim.remove(name).map(|before| before.all()).unwrap_or_default();
            dim.insert(name.clone(), OneOrMany::Many([all, sizes.clone()].concat()));
        }
        let mut set = SortedMap::new();
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
        let text = text_of_at_most(path, MOST_BYTES).map_err(unreadable)?;
        let spec: SweepSpec = parsed::toml(&text).map_err(|why| {
            // What is not of that name beside the lock of a sweep, somebody has written.
            let folder = path.parent().filter(|_| path.file_name().is_some_and(|name| name == FILE));
            let help = match folder.is_some_and(|folder| folder.join(LOCK).exists()) {
                true => {
                    "correct it there, or remove the file and start the sweep again with `--run` of its folder: \
                     runs that are done stay"
                }
                false => "correct it there",
            };
            Box::new(unreadable(why).help(help))
        })?;
        spec.checked(&format!("the sweep `{}`", path.display()))
    }

    /// Refuses what cannot be, wherever it was said.
    fn checked(self, named: &str) -> Checked<SweepSpec> {
        let refused = |why: String, help: &str| Err(Box::new(wrong(format!("{named} {why}")).help(help)));
        if self.model.is_empty() {
            return refused("names no model".into(), "add a line such as `model = \"mlp\"`");
        }
        if self.model.starts_with('-') {
            return refused(
                format!("has the model `{}`", self.model),
                "no name of a model begins with a dash",
            );
        }
        let both = [
            ("epochs and steps", self.epochs.is_some() && self.steps.is_some()),
            ("timing and jobs", self.timing && self.jobs.is_some_and(|n| n > 1)),
        ];
        if let Some((what, _)) = both.iter().find(|b| b.1) {
            return refused(format!("has both {what}"), "take one of them out");
        }
        let numbers = [
            ("epochs", self.epochs.map(u64::from), 1..=u64::MAX),
            ("steps", self.steps, 1..=u64::MAX),
            ("trials", self.trials.map(u64::from), 1..=MOST_TRIALS),
            ("reduction", self.reduction.map(u64::from), 2..=MOST_REDUCTION),
            ("jobs", self.jobs.map(u64::from), 1..=MOST_JOBS),
            ("cores", self.cores.map(u64::from), 1..=u64::MAX),
        ];
        let above = self.choices();
        for choices in std::iter::once(&above).chain(&self.combination) {
            let seeds = match &choices.seeds {
                Some(SeedList::Count(n)) => Some(u64::from(*n)),
                _ => None,
            };
            let seeds = ("seeds", seeds, 1..=MOST_SEEDS);
            for (name, n, range) in numbers.iter().chain([&seeds]) {
                let Some(n) = n.filter(|n| !range.contains(n)) else { continue };
                let help = match (range.start(), range.end()) {
                    (least, &u64::MAX) => format!("{name} are at least {least}"),
                    (least, most) => format!("{name} are from {least} to {most}"),
                };
                return refused(format!("has `{name} = {n}`"), &help);
            }
            if let Some((what, why)) = choices.wrong() {
                return refused(format!("has {why} `{what}`"), "list values, or take the line out");
            }
        }
        Ok(self)
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

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// What clap refuses of options is refused of a file.
    #[test]
    fn a_file_has_the_ranges_of_the_options() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        let read = |text: &str| {
            std::fs::write(&path, format!("model = \"m\"\n{text}\n")).unwrap();
            SweepSpec::read(&path).map_err(|d| format!("{} {:?}", d.message, d.helps))
        };
        for (text, why) in [
            ("jobs = 0", "`jobs = 0` [\"jobs are from 1 to 1024\"]"),
            ("jobs = 1025", "from 1 to 1024"),
            ("cores = 0", "cores are at least 1"),
            ("epochs = 0", "epochs are at least 1"),
            ("steps = 0", "steps are at least 1"),
            ("trials = 0", "from 1 to 10000"),
            ("reduction = 1", "from 2 to 100"),
            ("seeds = 0", "from 1 to 10000"),
            ("seeds = 4000000000", "from 1 to 10000"),
            ("seeds = []", "no values of `seeds`"),
            ("dim.batch = []", "no values of `dim.batch`"),
            ("dim.batch = [10, 0]", "a size of 0 of `dim.batch`"),
            ("set.lr = []", "no values of `set.lr`"),
            ("set.lr = [nan]", "no number of `set.lr`"),
            ("timing = true\njobs = 4", "both timing and jobs"),
            ("epochs = 1\nsteps = 1", "both epochs and steps"),
            ("[[combination]]\nseeds = 20000", "from 1 to 10000"),
        ] {
            assert!(read(text).unwrap_err().contains(why), "{text}: {:?}", read(text));
        }
        for text in ["timing = true\njobs = 1", "seeds = 10000\nepochs = 3", "seeds = [5, 20000]"] {
            assert!(read(text).is_ok(), "{text}: {:?}", read(text));
        }
    }
}
