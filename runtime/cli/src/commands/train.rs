//! `train`.

use super::new_run::claim;
use super::project::{self, COMMAND, OfRun};
use crate::args::{LogChoice, ResumeChoice, TrainArgs};
use crate::output::console::Console;
use crate::output::progress::{Head, Watcher, summary};
use crate::output::text::thousands;
use crate::signals;
use crate::stop::Stop;
use clap::ValueEnum;
use meshwright_core::refused_outputs;
use meshwright_diag::Sources;
use meshwright_runs::cluster_job::ClusterJob;
use meshwright_runs::logs::LogFormat;
use meshwright_runs::run_dir::{checkpoints_in, no_run};
use meshwright_train::policies_of;
use meshwright_train::{
    Failure, Finished, Progress, Project, ProjectOptions, Recorded, TrainOptions, agree_on_result, recorded,
    train,
};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Epochs where neither epochs nor steps are given.
const EPOCHS: u32 = 5;

/// Runs the command.
pub(crate) fn run(args: &TrainArgs, console: &mut Console) -> Result<(), Stop> {
    let old = args.run.as_deref().filter(|_| args.resume.is_some());
    let given = match old.is_some_and(Recorded::is_run) {
        true => args.options(),
        false => begun(args, console)?,
    };
    let model = args.project.model.as_deref().ok_or_else(|| *no_run(old.unwrap_or(Path::new(""))));
    let loaded = project::load_of_run((&args.data.devices, &command(args)), &given, old, model, console)?;
    let goes_on = loaded.recorded.as_ref().map_or(Ok(()), |r| r.resumable().map_err(Failure::from));
    let goes_on = agree_on_result(console.processes(), "the run", goes_on);
    goes_on.map_err(|f| console.failed(f, &Sources::new()))?;
    warn_of_answers(&loaded, console);
    let claimed = match (&args.run, &args.project.model) {
        (None, Some(model)) if !args.no_save => {
            let new = claim(model, console.processes());
            Some(new.map_err(|f| console.failed(f, &Sources::new()))?)
        }
        _ => None,
    };
    let run = args.run.clone().or_else(|| claimed.as_ref().map(|c| c.folder().into()));
    let options = options(args, &loaded, run, console)?;
    let OfRun { project, sources, recorded, .. } = loaded;
    let stop = signals::stop_of_later(&mut |text| console.note(text));
    let run = options.run.clone();
    let head = Head {
        model: from_here(recorded.as_ref().map_or(given.model.as_str(), |r| r.model_file())),
        mesh: project::mesh(&project),
        run: run.as_ref().map_or("not saved (--no-save)".into(), |r| r.display().to_string()),
        metrics: project.metrics().map(String::from).collect(),
        eval: options.eval,
        tokens: project.tokens(),
    };
    let begin = Instant::now();
    let mut watcher = Watcher::new(console, head);
    let ended = train(&project, &sources, &options, stop, &mut |progress| {
        // Before the first step there is nothing that a checkpoint would keep.
        if matches!(progress, Progress::Started { .. }) {
            signals::is_looked_at();
        }
        if !watcher.see(progress) {
            // Nobody reads on: end as for Ctrl-C, with a checkpoint.
            stop.store(true, Ordering::Relaxed);
        }
    });
    watcher.finish();
    let broken = watcher.broken.take();
    let on = run.as_deref().and_then(go_on);
    let finished = ended.map_err(|failure| console.failed_with(failure, &sources, on))?;
    report(&finished, begin.elapsed().as_secs_f64(), broken, console)
}

/// A project and what a run of it is asked to do, for a program that runs the steps itself.
pub(crate) fn prepared(
    args: &TrainArgs,
    console: &mut Console,
) -> Result<(Project, Sources, TrainOptions), Stop> {
    let model = args.project.model.as_deref().ok_or_else(|| *no_run(Path::new("")));
    let loaded =
        project::load_of_run((&args.data.devices, &command(args)), &args.options(), None, model, console)?;
    warn_of_answers(&loaded, console);
    let options = options(args, &loaded, args.run.clone(), console)?;
    Ok((loaded.project, loaded.sources, options))
}

/// Warns of what an evaluation or a prediction of the model will not give.
fn warn_of_answers(loaded: &OfRun, console: &mut Console) {
    let mut found = loaded.project.evaluation().1;
    found.extend(refused_outputs(&loaded.project.program));
    project::warn(&found, console, &loaded.sources);
}

/// What decides which messages the processes exchange until they compare all settings. The folders that they name may differ.
fn command(args: &TrainArgs) -> [(&'static str, String); 3] {
    let folder = match (&args.run, args.no_save) {
        (Some(_), _) => "the one of `--run`",
        (None, true) => "none (`--no-save`)",
        (None, false) => "a new one",
    };
    let resume = match args.resume {
        None => "none",
        Some(ResumeChoice::Always) => "always",
        Some(ResumeChoice::Auto) => "auto",
    };
    [(COMMAND, "train".into()), ("the folder of its run", folder.into()), ("`--resume`", resume.into())]
}

/// What is loaded where a training begins: dims and consts that are not given are those of the run whose values it begins with.
fn begun(args: &TrainArgs, console: &mut Console) -> Result<ProjectOptions, Stop> {
    let (given, Some(init)) = (args.options(), args.init()) else { return Ok(args.options()) };
    let found = recorded(console.processes(), &init.path).map_err(|f| console.failed(f, &Sources::new()))?;
    let Some((merged, taken)) = found.map(|r| r.begun_by(&given)) else { return Ok(given) };
    if !taken.is_empty() {
        console.note(&format!("as `{}` has it: {}", init.path.display(), taken.join(" ")));
    }
    Ok(merged)
}

/// What the run is asked to do; what the command leaves open of a run that is resumed is the run's.
fn options(
    args: &TrainArgs,
    of_run: &OfRun,
    run: Option<PathBuf>,
    console: &mut Console,
) -> Result<TrainOptions, Stop> {
    let recorded = of_run.recorded.as_ref();
    let resume = args.resume == Some(ResumeChoice::Always) || recorded.is_some();
    let policies = args.policies();
    let policies = recorded.map_or(policies.clone(), |r| policies.or(r.policies()));
    let of_project = policies_of(&policies, &of_run.project).map_err(Failure::from);
    let of_project = agree_on_result(console.processes(), "the policies", of_project);
    let (saves, evaluation) = of_project.map_err(|f| console.failed(f, &of_run.sources))?;
    let policies = policies.resolved(&saves, &evaluation);
    let named = args.machine.name();
    let machine = super::model::estimate::of_machine_if_named(&args.machine, console)?;
    Ok(TrainOptions {
        machine: named.zip(machine),
        data: args.data.data.clone().or_else(|| recorded?.asked_data().map(String::from)),
        data_found: recorded.filter(|_| args.data.data.is_none()).and_then(|r| r.data()),
        allow_nonfinite: args.data.allow_nonfinite || recorded.is_some_and(|r| r.allow_nonfinite()),
        // A run that is resumed goes on as long as it was meant to.
        epochs: args.epochs.or((args.steps.is_none() && !resume).then_some(EPOCHS)),
        steps: args.steps,
        seed: args.seed,
        run,
        resume,
        from: args.goes_on_from(),
        init: args.init(),
        cores: args.data.cores.get().or_else(|| recorded?.cores()),
        devices: of_run.devices.clone(),
        roots: project::data_roots(),
        eval: !args.evaluation.no_eval,
        evaluation,
        saves,
        logs: policies.log.iter().filter_map(|l| log(l)).collect(),
        policies,
        metrics_file: args.metrics_file.clone(),
        measure_peak: true,
        trace: args.trace.get(),
        folder: std::env::current_dir().ok(),
        arguments: std::env::args_os().map(|a| a.to_string_lossy().into_owned()).collect(),
        job: ClusterJob::of(|name| std::env::var(name).ok()),
    })
}

fn log(name: &str) -> Option<LogFormat> {
    Some(match LogChoice::from_str(name, false).ok()? {
        LogChoice::Csv => LogFormat::Csv,
        LogChoice::Tensorboard => LogFormat::Tensorboard,
    })
}

/// Says how the run ended.
fn report(finished: &Finished, wall: f64, broken: Option<Stop>, console: &mut Console) -> Result<(), Stop> {
    let at = thousands(finished.steps);
    let kept = match &finished.run {
        Some(run) => {
            format!(
                "a checkpoint is saved; continue with `meshwright train --run {} --resume`",
                run.display()
            )
        }
        None => "nothing was saved (--no-save)".to_string(),
    };
    if let Some(why) = broken {
        console.note(&format!("standard output was closed: stopped after step {at}; {kept}"));
        return match why {
            Stop::Output(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Err(Stop::Diagnosed),
            other => Err(other),
        };
    }
    if finished.interrupted {
        console.note(&format!("interrupted after step {at}; {kept}"));
        return Err(Stop::Interrupted);
    }
    if finished.stopped_early {
        console
            .note(&format!("stopped early after step {at}: the evaluations became no better (--patience)"));
    }
    if console.json() {
        return Ok(());
    }
    console.out(&summary(finished, wall))
}

/// How to go on where a device has failed and there is a checkpoint.
fn go_on(run: &Path) -> Option<String> {
    checkpoints_in(run).entries().ok()?.first()?;
    Some(format!("continue from the newest checkpoint: `meshwright train --run {} --resume`", run.display()))
}

/// A path below the current folder, as one would write it there: runs keep whole paths.
fn from_here(path: &str) -> String {
    let here = std::env::current_dir().ok();
    let below = here.and_then(|here| Path::new(path).strip_prefix(here).ok());
    below.map_or(path.into(), |below| below.display().to_string())
}
