//! The command of a run: the words of `train`.

use super::combination::Combination;
use super::spec::SweepSpec;
use meshwright_train::runs::RunLength;
use std::path::Path;

/// What a run is given beside its combination.
pub(crate) struct TrainWords<'a> {
    /// Its folder.
    pub(crate) run: &'a Path,
    pub(crate) length: RunLength,
    /// Those of the model: the table has them of the training set too.
    pub(crate) metrics: &'a [String],
    /// None for all that its process may use.
    pub(crate) cores: Option<usize>,
}

/// The words after the name of the program.
pub(crate) fn train(spec: &SweepSpec, c: &Combination, given: &TrainWords<'_>) -> Vec<String> {
    let mut words = vec!["train".to_string(), spec.model.clone()];
    let mut add = |option: &str, value: String| words.push(format!("--{option}={value}"));
    c.layout.iter().for_each(|l| add("layout", l.clone()));
    c.mesh.iter().for_each(|m| add("mesh", m.clone()));
    c.dims.iter().for_each(|(name, size)| add("dim", format!("{name}={size}")));
    c.sets.iter().for_each(|(name, value)| add("set", format!("{name}={value}")));
    for (option, value) in [("preset", &spec.preset), ("precision", &spec.precision), ("data", &spec.data)] {
        value.iter().for_each(|v| add(option, v.clone()));
    }
    match given.length {
        RunLength::Epochs(n) => add("epochs", n.to_string()),
        RunLength::Steps(n) => add("steps", n.to_string()),
    }
    add("seed", c.seed.to_string());
    let asked = spec.train.iter().any(|w| w == "--metrics" || w.starts_with("--metrics="));
    if !given.metrics.is_empty() && !asked {
        add("metrics", given.metrics.join(","));
    }
    given.cores.iter().for_each(|n| add("cores", n.to_string()));
    add("run", given.run.display().to_string());
    add("resume", "auto".into());
    words.extend(spec.train.iter().cloned());
    words
}
