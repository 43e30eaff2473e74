//! The command of a run: the words of `train`.

use super::combination::Combination;
use super::spec::SweepSpec;
use crate::args::Cli;
use crate::refusal::wrong;
use clap::CommandFactory;
use clap::parser::ValueSource;
use meshwright_files::Checked;
use meshwright_runs::RunLength;
use meshwright_sorted::SortedMap;
use std::path::Path;

/// The arguments of `train` that a sweep takes, by the names of their fields: those that neither the sweep says itself nor name a
/// file to write. The file of a sweep may come from a stranger.
const TAKEN: [&str; 23] = [
    "no_eval",
    "validation",
    "eval_every",
    "patience",
    "monitor",
    "checkpoint_every",
    "keep",
    "keep_best",
    "metrics",
    "logs",
    "init",
    "init_map",
    "from",
    "peak_flops",
    "no_overlap",
    "allow_nonfinite",
    "device",
    "collectives",
    "deterministic",
    "timeout",
    "verbose",
    "machine",
    "with",
];

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

/// Refuses arguments of `train` that are not [`TAKEN`], in a command that `train` understands.
///
/// # Errors
///
/// E0516 with the argument.
pub(crate) fn only_taken(spec: &SweepSpec, c: &Combination, given: &TrainWords<'_>) -> Checked<()> {
    let own = SweepSpec { train: Vec::new(), ..spec.clone() };
    let own = counts(&train(&own, c, given));
    let mut command = Cli::command();
    // Options of all commands are among its own then.
    command.build();
    let Some(command) = command.find_subcommand("train") else { return Ok(()) };
    let option = |id: &str| {
        let arg = command.get_arguments().find(|a| a.get_id() == id);
        arg.and_then(|a| a.get_long()).map_or(id.to_uppercase(), |long| format!("--{long}"))
    };
    // Groups of arguments have names too.
    let is_argument = |id: &str| command.get_arguments().any(|a| a.get_id() == id);
    let more = |(id, count): &(&String, &usize)| {
        is_argument(id) && own.get(*id) != Some(*count) && !TAKEN.contains(&id.as_str())
    };
    let all = counts(&train(spec, c, given));
    let Some((id, _)) = all.iter().find(more) else { return Ok(()) };
    let message = format!("`{}` is not an argument of `train` that a sweep takes", option(id));
    let taken: Vec<String> = TAKEN.iter().map(|id| format!("`{}`", option(id))).collect();
    Err(Box::new(
        wrong(message)
            .help(format!("it takes {}", taken.join(", ")))
            .help("sizes, consts, data, lengths, seeds and cores are options of the sweep itself"),
    ))
}

/// How often each argument of `train` is given; nothing where `train` does not understand the words.
fn counts(words: &[String]) -> SortedMap<String, usize> {
    let words = std::iter::once("meshwright").chain(words.iter().map(String::as_str));
    let Ok(matches) = Cli::command().try_get_matches_from(words) else { return SortedMap::new() };
    let Some((_, train)) = matches.subcommand() else { return SortedMap::new() };
    let given = train.ids().filter(|id| train.value_source(id.as_str()) == Some(ValueSource::CommandLine));
    given.map(|id| (id.to_string(), train.get_raw(id.as_str()).map_or(1, Iterator::count))).collect()
}
