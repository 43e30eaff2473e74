//! The command of a run: the words of `train`.

use super::combination::Combination;
use super::spec::SweepSpec;
use meshwright_train::runs::RunLength;
use std::path::Path;

/// The words after the name of the program. `metrics` are those of the model: the table has them of the training set too.
pub(crate) fn train(
    spec: &SweepSpec,
    c: &Combination,
    run: &Path,
    length: RunLength,
    metrics: &[String],
) -> Vec<String> {
    let mut words = vec!["train".to_string(), spec.model.clone()];
    let mut add = |option: &str, value: String| words.push(format!("--{option}={value}"));
    c.layout.iter().for_each(|l| add("layout", l.clone()));
    c.mesh.iter().for_each(|m| add("mesh", m.clone()));
    c.dims.iter().for_each(|(name, size)| add("dim", format!("{name}={size}")));
    c.sets.iter().for_each(|(name, value)| add("set", format!("{name}={value}")));
    for (option, value) in [("preset", &spec.preset), ("precision", &spec.precision), ("data", &spec.data)] {
        value.iter().for_each(|v| add(option, v.clone()));
    }
    match length {
        RunLength::Epochs(n) => add("epochs", n.to_string()),
        RunLength::Steps(n) => add("steps", n.to_string()),
    }
    add("seed", c.seed.to_string());
    let asked = spec.train.iter().any(|w| w == "--metrics" || w.starts_with("--metrics="));
    if !metrics.is_empty() && !asked {
        add("metrics", metrics.join(","));
    }
    add("run", run.display().to_string());
    add("resume", "auto".into());
    words.extend(spec.train.iter().cloned());
    words
}
