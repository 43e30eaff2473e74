//! `eval`.

use super::project::{self, COMMAND, OfRun};
use crate::args::{CheckpointArgs, EvalArgs};
use crate::output::console::Console;
use crate::output::json::object;
use crate::output::progress::{bar, evaluation};
use crate::output::text::{seconds, thousands};
use crate::stop::Stop;
use meshwright_diag::{Diagnostic, Sources, codes};
use meshwright_runs::metrics::Evaluation;
use meshwright_runs::run_dir::tokenizer_in;
use meshwright_train::{EvalOptions, Evaluated, Failure, Project, agree_on_result, evaluate};
use std::path::Path;
use std::time::Instant;

/// What to evaluate, or to predict, on.
pub(super) fn load(
    (args, command): (&CheckpointArgs, &str),
    split: &str,
    console: &mut Console,
) -> Result<(OfRun, EvalOptions), Stop> {
    let folder = Path::new(&args.subject);
    let (given, subject) = (args.options(), args.subject.as_str());
    // A model is named beside a checkpoint; a folder with a run in it has one.
    let model = args.checkpoint.as_ref().map(|_| subject).ok_or_else(|| {
        let message = format!("`{subject}` is not the folder of a run, and no checkpoint is named");
        Diagnostic::error(codes::E0516, message)
            .help("name the folder of a run: `runs/NAME-1`")
            .help("or, for a model, add a checkpoint of it: `--checkpoint RUN|FILE`")
    });
    let loaded = project::load_of_run(
        (&args.data.devices, &[(COMMAND, command.into())]),
        &given,
        Some(folder),
        model,
        console,
    )?;
    let data = args.data.data.as_deref();
    let recorded = loaded.recorded.as_ref();
    for line in recorded.map(|r| r.overridden(&given, data)).unwrap_or_default() {
        console.note(&line);
    }
    let found = data.is_none() && recorded.is_some_and(|r| r.asked_data().is_none());
    let tokenizer = if found { tokenizer_in(folder) } else { Ok(None) };
    let tokenizer = tokenizer.map_err(|d| console.failed((*d).into(), &loaded.sources))?;
    let options = EvalOptions {
        data: data.map(String::from).or_else(|| recorded?.data()),
        tokenizer,
        allow_nonfinite: args.data.allow_nonfinite || recorded.is_some_and(|r| r.allow_nonfinite()),
        split: split.into(),
        cores: args.data.cores.get().or_else(|| recorded?.cores()),
        devices: loaded.devices.clone(),
        roots: project::data_roots(),
        checkpoint: args.checkpoint.clone().unwrap_or_else(|| folder.into()),
        which: args.from.unwrap_or_default(),
    };
    Ok((loaded, options))
}

/// Runs the command.
pub(crate) fn run(args: &EvalArgs, console: &mut Console) -> Result<(), Stop> {
    let what = &args.what;
    let split = what.split.as_deref().unwrap_or("test");
    let (OfRun { project, sources, .. }, options) = load((what, "eval"), split, console)?;
    project::warn(&project.evaluation().1, console, &sources);
    let begin = Instant::now();
    let bar = bar(0, console);
    let mut examples = 0;
    let ended = evaluate(&project, &sources, &options, &mut |done, total| {
        bar.set_length(total as u64);
        bar.set_position(done as u64);
        examples = done;
    });
    bar.finish_and_clear();
    let Evaluated { evaluation: result, notes } =
        ended.map_err(|failure| console.failed(failure, &sources))?;
    notes.iter().for_each(|note| console.note(note));
    let wall = begin.elapsed().as_secs_f64();
    if console.json() {
        let fields = [("event", "eval".into()), ("split", split.into())];
        let mut line = object(fields);
        line.push("examples", examples);
        // The same keys as in the line of an epoch.
        line.push("eval_loss", result.loss);
        for (name, value) in result.metrics.iter().filter(|m| m.0 != "loss") {
            line.push(format!("eval_{name}"), *value);
        }
        line.push("seconds", wall);
        console.out_json(&line)?;
        return finite((&project, &sources), &result, split, console);
    }
    let n = thousands(examples as u64);
    console.out(&format!("{}: {}  ({n} examples in {})\n", split, evaluation(&result), seconds(wall)))?;
    finite((&project, &sources), &result, split, console)
}

/// An evaluation that found no numbers has failed, whoever reads what it printed.
fn finite(
    (project, sources): (&Project, &Sources),
    result: &Evaluation,
    split: &str,
    console: &mut Console,
) -> Result<(), Stop> {
    let Some(name) = project.loss().filter(|_| !result.loss.is_finite()) else { return Ok(()) };
    let message = format!("the loss `{name}` is {} on the {split} set", result.loss);
    let help = "an earlier checkpoint may be finite: `ckpt list RUN` lists them, `--from STEP` takes one";
    let failed: Failure = Diagnostic::error(codes::E0517, message).help(help).into();
    let agreed = agree_on_result(console.processes(), "the evaluation", Err(failed));
    agreed.map_err(|failure| console.failed(failure, sources))
}
