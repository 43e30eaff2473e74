//! What is probably not meant of a training that is about to begin.

use crate::project::Project;
use crate::training::TrainOptions;
use meshwright_files::text::listed;

/// Frozen parameters that nothing has set, metrics that nothing measures, and choices by the test set; `measured` is the set that
/// the run is evaluated on while it goes on, `set` are the parameters that got their values from elsewhere.
pub(crate) fn warnings(
    project: &Project,
    options: &TrainOptions,
    (measured, set): (Option<&str>, &[String]),
) -> Vec<String> {
    let mut out = Vec::new();
    let program = &project.program;
    let unset =
        program.params.iter().filter(|p| (p.frozen || !p.frozen_at.is_empty()) && !set.contains(&p.path));
    let frozen: Vec<&str> = unset.map(|p| p.path.as_str()).collect();
    if !frozen.is_empty() && !options.resume {
        let (of, keep) =
            if frozen.len() == 1 { ("parameter", "keeps its") } else { ("parameters", "keep their") };
        out.push(format!(
            "the frozen {of} {} {keep} initial values: nothing was loaded (`--init`), so what is frozen was never trained",
            listed(&frozen)
        ));
    }
    let metrics: Vec<&str> = program.metrics.iter().map(|m| m.name.as_str()).collect();
    if !metrics.is_empty() && options.eval && measured.is_none() {
        let of = if metrics.len() == 1 { "the metric" } else { "the metrics" };
        out.push(format!(
            "nothing measures {of} {}: the data has no test set (`[test]` in `data.toml`, or `test.NAME=FILE` in `--data`)",
            listed(&metrics)
        ));
    }
    if measured == Some("test") {
        let best = options.saves.best.is_some().then_some("--keep-best");
        let patience = options.evaluation.patience.is_some().then_some("--patience");
        let choosing: Vec<&str> = best.into_iter().chain(patience).collect();
        if !choosing.is_empty() {
            let verb = if choosing.len() == 1 { "chooses" } else { "choose" };
            out.push(format!("{} {verb} {CHOSEN_ON_TEST}", listed(&choosing)));
        }
    }
    out
}

/// What is wrong with a choice by the only set that there is to evaluate on.
pub const CHOSEN_ON_TEST: &str = "by the test set, as there is no validation set: results on it are then better than on other data; \
     `--validation 0.1` holds out a part of the training set to choose by";
