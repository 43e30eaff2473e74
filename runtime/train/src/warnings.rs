//! What is probably not meant of a training that is about to begin.

use crate::project::Project;
use crate::text::listed;
use crate::training::TrainOptions;

/// Frozen parameters that nothing has set, and metrics that nothing measures; `measured` says that there is a test set, `set` which
/// parameters got their values from elsewhere.
pub(crate) fn warnings(
    project: &Project,
    options: &TrainOptions,
    (measured, set): (bool, &[String]),
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
    if !metrics.is_empty() && options.eval && !measured {
        let of = if metrics.len() == 1 { "the metric" } else { "the metrics" };
        out.push(format!(
            "nothing measures {of} {}: the data has no test set (`[test]` in `data.toml`, or `test.NAME=FILE` in `--data`)",
            listed(&metrics)
        ));
    }
    out
}
