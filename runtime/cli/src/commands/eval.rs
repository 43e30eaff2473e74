//! `eval`.

use super::project;
use crate::args::{CheckpointArgs, EvalArgs};
use crate::console::Console;
use crate::json::object;
use crate::progress::{bar, evaluation};
use crate::stop::Stop;
use crate::text::{seconds, thousands};
use meshwright_train::{Devices, EvalOptions, evaluate};
use std::time::Instant;

/// What to evaluate, or to predict, on.
pub(super) fn options(args: &CheckpointArgs, devices: Devices) -> EvalOptions {
    EvalOptions {
        data: args.data.data.clone(),
        split: args.split.clone(),
        cores: args.data.cores.get(),
        devices,
        roots: project::data_roots(),
        checkpoint: args.checkpoint.clone(),
    }
}

/// Runs the command.
pub(crate) fn run(args: &EvalArgs, console: &mut Console) -> Result<(), Stop> {
    let what = &args.what;
    let (project, sources, devices) = project::load_for(&what.data.devices, &what.options(), console)?;
    project::warn(&project.evaluation().1, console, &sources);
    let begin = Instant::now();
    let bar = bar(0, console);
    let mut examples = 0;
    let ended = evaluate(&project, &sources, &options(what, devices), &mut |done, total| {
        bar.set_length(total as u64);
        bar.set_position(done as u64);
        examples = done;
    });
    bar.finish_and_clear();
    let result = ended.map_err(|failure| console.failed(failure, &sources))?;
    let wall = begin.elapsed().as_secs_f64();
    if console.json() {
        let fields = [("event", "eval".into()), ("split", args.what.split.clone().into())];
        let mut line = object(fields);
        line.push("examples", examples);
        // The same keys as in the line of an epoch.
        line.push("eval_loss", result.loss);
        for (name, value) in result.metrics.iter().filter(|m| m.0 != "loss") {
            line.push(format!("eval_{name}"), *value);
        }
        line.push("seconds", wall);
        return console.out_json(&line);
    }
    let n = thousands(examples as u64);
    console.out(&format!(
        "{}: {}  ({n} examples in {})\n",
        args.what.split,
        evaluation(&result),
        seconds(wall)
    ))
}
