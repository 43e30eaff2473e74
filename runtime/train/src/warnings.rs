//! What is probably not meant of a training that is about to begin.

use crate::project::Project;
use crate::training::TrainOptions;

/// The most names that a warning lists.
const LISTED: usize = 6;

/// Frozen parameters that nothing has set, and metrics that nothing measures; `measured` says that there is a test set.
pub(crate) fn warnings(project: &Project, options: &TrainOptions, measured: bool) -> Vec<String> {
    let mut out = Vec::new();
    let program = &project.program;
    let frozen: Vec<&str> = program.params.iter().filter(|p| p.frozen).map(|p| p.path.as_str()).collect();
    if !frozen.is_empty() && !options.resume {
        let (of, keep) =
            if frozen.len() == 1 { ("parameter", "keeps its") } else { ("parameters", "keep their") };
        out.push(format!(
            "the frozen {of} {} {keep} initial values: no checkpoint was loaded, so what is frozen was never trained",
            listed(&frozen)
        ));
    }
    let metrics: Vec<&str> = program.metrics.iter().map(|m| m.name.as_str()).collect();
    if !metrics.is_empty() && options.eval && !measured {
        let of = if metrics.len() == 1 { "the metric" } else { "the metrics" };
        out.push(format!(
            "nothing measures {of} {}: the data has no test set (`[test]` in `data.toml`, or `test.NAME=FILE` in `--data`)",
            listed(&metrics)
        ));
    }
    out
}

fn listed(names: &[&str]) -> String {
    let some: Vec<String> = names.iter().take(LISTED).map(|n| format!("`{n}`")).collect();
    let more = names.len().saturating_sub(LISTED);
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    some.join(", ") + &rest
}
