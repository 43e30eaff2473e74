//! A training run: what it needs is read and agreed on, then the loop runs.

use crate::devices::consensus::{abort_on_error, agree_on_result, check_same_configuration};
use crate::devices::device_failure::with_lines;
use crate::devices::{LoadedProgram, hold_rest, init_all, load, restore, start};
use crate::failure::Failure;
use crate::init::{Initializer, initialize};
use crate::project::warnings::warnings;
use crate::project::{Project, line_of};
use crate::trace::Trace;
use crate::training::evaluator::{Evaluator, data_failed};
use crate::training::history::FailureEvent;
use crate::training::not_finite::Rerun;
use crate::training::run_description::facts_of;
use crate::training::session::{Requirements, Session, StartPoint, Written, start_point, training_plan};
use crate::training::training_loop::{Evaluators, SetEvaluator, TrainingLoop, is_open};
use crate::training::utilization::Utilization;
use crate::training::{Finished, Progress, TrainOptions};
use meshwright_data::{BatchSampler, Dataset};
use meshwright_diag::{Diagnostic, Sources, codes};
use meshwright_exec::{Cluster, Processes};
use meshwright_plan::{Arithmetic, Plan};
use meshwright_runs::checkpoint::{EpochLosses, Meta, Saver};
use meshwright_runs::logs::{MetricsFile, RunState};
use meshwright_runs::metrics_log::Stands;
use meshwright_runs::run_dir::RunDir;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// Trains a project. `stop` ends it after the step at hand, or the batch at hand of an evaluation, with a checkpoint of the
/// last step. An epoch whose evaluation was stopped is evaluated when the run goes on.
pub fn train(
    project: &Project,
    sources: &Sources,
    options: &TrainOptions,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(Progress),
) -> Result<Finished, Failure> {
    let ended = trained(project, sources, options, stop, progress);
    abort_on_error(&options.devices.processes, ended).map_err(|failure| with_lines(failure, project, sources))
}

fn trained(
    project: &Project,
    sources: &Sources,
    options: &TrainOptions,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(Progress),
) -> Result<Finished, Failure> {
    let processes = &*options.devices.processes;
    let needs =
        agree_on_result(processes, "what the run needs", Requirements::of(project, sources, options))?;
    check_same_configuration(processes, &needs.asked(project, sources, options))?;
    // A new run's folder is made when nothing can be wrong any more.
    let session =
        processes.on_first("the run's folder".into(), || Session::of(project, sources, options, &needs))?;
    let session = agree_on_result(processes, "the run's folder", session.transpose())?;
    let start = start_point(processes, session.as_ref())?;
    let Requirements { mut plan, set, validation, test, examples } = needs;
    let mut counting = None;
    // The count of updates continues without those that were skipped in `f16`.
    if start.skips && project.program.float != Arithmetic::F16 {
        let now = counting.insert(project.counting_skips());
        plan = agree_on_result(processes, "what the run needs", training_plan(now, sources))?;
    }
    let project = counting.as_ref().unwrap_or(project);
    let sets = (&*set, validation, test, examples);
    let ready = Ready::of((project, sources), options, &start, plan, sets);
    let ready = agree_on_result(processes, "the programs", ready)?;
    let run = Run { project, sources, options, stop, start, set, examples };
    run.from(ready, session, progress)
}

/// A run that all processes agree on.
struct Run<'a> {
    project: &'a Project,
    sources: &'a Sources,
    options: &'a TrainOptions,
    stop: &'a AtomicBool,
    start: StartPoint,
    set: Arc<Dataset>,
    /// Examples in a batch.
    examples: usize,
}

impl Run<'_> {
    /// Runs from where it stands to its end.
    fn from(
        self,
        ready: Ready,
        mut session: Option<Session>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Finished, Failure> {
        let Run { project, sources, options, stop, start, set, examples } = self;
        let processes = &*options.devices.processes;
        let Ready { mut cluster, program, evaluators, rest, sampler, from, losses } = ready;
        // Before the parameters are there: what is measured leaves no trace.
        let measured = Utilization::of(project, options, &cluster);
        let utilization = agree_on_result(processes, "the peak of the devices", measured)?;
        let initializer = set_values(&cluster, session.as_mut(), &start)?;
        let per_epoch = sampler.steps_per_epoch();
        let last = start.steps.unwrap_or_else(|| u64::from(start.epochs.unwrap_or(1)) * per_epoch);
        let stands = stands(from, per_epoch, &losses);
        let mut notes = notes(session.as_mut(), &set, &evaluators, &cluster)?;
        notes.extend(compared_by(options));
        notes.extend(options.trace.as_ref().and_then(|t| t.shows_nothing(from + 1..=last)));
        let Written { run, log, store, notes: more } =
            written(processes, session, (project, sources), options, (&*set, &*program.plan), stands)?;
        notes.extend(more);
        let trace = options.trace.as_ref();
        let trace = trace.map(|t| Trace::start(t, &cluster, program.id, from + 1, processes)).transpose()?;
        let metrics_file = metrics_file((project, sources, options), &program.plan, (from, last, per_epoch))?;
        let warned =
            warnings(project, options, (evaluators.during.as_ref().map(|e| e.set), &start.initialized));
        let sets = (set.records(), evaluators.during.is_some());
        progress(started(project, (per_epoch, last, from), sets, (warned, notes)));
        let minimized = project.program.train.as_ref().map(|t| t.loss());
        let mut l = TrainingLoop {
            project,
            cluster: &cluster,
            program: &program,
            evaluators: &evaluators,
            writes: options.run.is_some(),
            saver: store.map(Saver::new),
            log,
            metrics_file,
            trace,
            sampler: &sampler,
            seed: start.seed,
            examples,
            tokens: project.tokens(),
            utilization,
            options,
            seen: start.seen,
            saved: from,
            saved_at: Instant::now(),
            loss: minimized.map_or("the loss", |d| d.name.as_str()),
            line: minimized.map_or(0, |d| line_of(sources, d.span)),
            failed: None,
            not_finite: None,
            stop,
            progress,
        };
        let eval_set = evaluators.during.as_ref().map_or("", |e| e.set);
        let beginning = Finished { steps: from, run: options.run.clone(), eval_set, ..Finished::default() };
        let ended = l.run(last, set.clone(), losses, beginning);
        let (not_finite, saved) = (l.not_finite, l.saved);
        let first_values = &|cluster: &Cluster| {
            first_values(cluster, (&program, &evaluators, &rest), start.seed)?;
            initialize(cluster, initializer.as_ref(), &start.initialized)
        };
        let with = (&sampler, &*set, &program);
        let ended = match (ended, not_finite) {
            (Ok(finished), None) => {
                end_of(l.metrics_file.as_mut(), finished.interrupted).into_iter().for_each(progress);
                cluster.shutdown();
                return Ok(finished);
            }
            (Ok(_), Some(at)) => {
                let rerun = Rerun::of((project, sources, options), with, (saved, stop), first_values);
                let failed = Err(rerun.error(&mut cluster, &at, progress).into());
                agree_on_result(processes, "the loss", failed)
            }
            (failed, _) => failed,
        };
        ended.inspect_err(|failure| noted(failure, run.as_ref()))
    }
}

/// Notes in the run's history what it failed by.
fn noted(failure: &Failure, run: Option<&RunDir>) {
    // That it cannot be noted is less than what it failed by, which is reported.
    let _unnoted = run.map(|run| run.remember(&FailureEvent::now(failure)));
}

/// Position in its log of a run that continues from a checkpoint.
fn stands(from: u64, per_epoch: u64, losses: &EpochLosses) -> Stands {
    // Steps after the checkpoint are repeated, and so is the end of an epoch that it leaves open.
    let open = is_open(from, per_epoch, losses);
    Stands { steps: from, epochs: (from / per_epoch - u64::from(open)) as u32, open }
}

/// The file of `--metrics-file`, which the first process writes.
fn metrics_file(
    (project, sources, options): (&Project, &Sources, &TrainOptions),
    plan: &Plan,
    (from, last, per_epoch): (u64, u64, u64),
) -> Result<Option<MetricsFile>, Failure> {
    let Some(file) = options.metrics_file.as_deref() else { return Ok(None) };
    let processes = &*options.devices.processes;
    let run = facts_of((project, sources, options), plan, (last, per_epoch), file);
    let made = processes.is_first().then(|| MetricsFile::start(file, run, from)).transpose();
    agree_on_result(processes, "the metrics file", made.map_err(Failure::from))
}

/// Tells the file for Prometheus how the run has ended; gives what there is to warn of.
fn end_of(file: Option<&mut MetricsFile>, interrupted: bool) -> Option<Progress<'static>> {
    let state = if interrupted { RunState::Interrupted } else { RunState::Finished };
    file?.end(state).map(Progress::Warning)
}

/// Criterion of evaluations, and its better values.
fn compared_by(options: &TrainOptions) -> Vec<String> {
    let best = options.saves.best.as_ref().map(|m| format!("--keep-best: {}", m.in_words()));
    let (patience, monitor) = (options.evaluation.patience, &options.evaluation.monitor);
    best.into_iter().chain(patience.map(|_| format!("--patience: {}", monitor.in_words()))).collect()
}

/// Report before the first step.
fn started(
    project: &Project,
    (steps_per_epoch, total_steps, from_step): (u64, u64, u64),
    (examples, evaluates): (usize, bool),
    (warnings, notes): (Vec<String>, Vec<String>),
) -> Progress<'static> {
    Progress::Started {
        parameters: project.program.parameter_elements(),
        steps_per_epoch,
        total_steps,
        devices: project.layout.mesh.devices(),
        from_step,
        examples,
        evaluates,
        warnings,
        notes,
    }
}

/// Sets parameters and moments to those of the checkpoint that a run goes on from, or those first values that come from
/// elsewhere; gives these.
fn set_values(
    cluster: &Cluster,
    session: Option<&mut Session>,
    start: &StartPoint,
) -> Result<Option<Initializer>, Failure> {
    let (resumed, initializer) =
        session.map(|s| (s.resumed.take(), s.initializer.take())).unwrap_or_default();
    if start.at.is_some() {
        restore(cluster, resumed.as_ref(), true)?;
    }
    initialize(cluster, initializer.as_ref(), &start.initialized)?;
    Ok(initializer)
}

/// Notes before the first step.
fn notes(
    session: Option<&mut Session>,
    set: &Dataset,
    evaluators: &Evaluators,
    cluster: &Cluster,
) -> Result<Vec<String>, Failure> {
    let mut notes = session.map(|s| std::mem::take(&mut s.notes)).unwrap_or_default();
    notes.extend(set.notes());
    notes.extend(evaluators.all().flat_map(|e| e.evaluator.notes()));
    notes.extend(cluster.notes()?);
    Ok(notes)
}

/// Sinks of the run, which the first process opens.
fn written(
    processes: &Processes,
    session: Option<Session>,
    of: (&Project, &Sources),
    options: &TrainOptions,
    with: (&Dataset, &Plan),
    stands: Stands,
) -> Result<Written, Failure> {
    let about = "the run's folder";
    let open = || session.map(|s| Written::of(s, of, options, with, stands)).transpose();
    let opened = processes.on_first(about.into(), open)?.transpose();
    agree_on_result(processes, about, opened.map(|w| w.flatten().unwrap_or_default()))
}

/// Sets everything that the programs hold to what a new run begins with.
fn first_values(
    cluster: &Cluster,
    (program, evaluators, rest): (&LoadedProgram, &Evaluators, &Option<LoadedProgram>),
    seed: u64,
) -> Result<(), Failure> {
    let evaluating = evaluators.all().flat_map(|e| e.evaluator.programs());
    init_all(cluster, std::iter::once(program).chain(evaluating).chain(rest), seed)
}

/// The devices with all programs loaded and first values set, and where the run begins.
struct Ready {
    cluster: Cluster,
    program: LoadedProgram,
    evaluators: Evaluators,
    /// The rest of the run's state.
    rest: Option<LoadedProgram>,
    sampler: BatchSampler,
    from: u64,
    losses: EpochLosses,
}

impl Ready {
    fn of(
        (project, sources): (&Project, &Sources),
        options: &TrainOptions,
        start_at: &StartPoint,
        plan: Plan,
        (set, validation, test, examples): (&Dataset, Option<Dataset>, Option<Dataset>, usize),
    ) -> Result<Ready, Failure> {
        let Some(sampler) = BatchSampler::of(start_at.seed, set, examples) else {
            return Err(data_failed("there is not one whole batch".into()));
        };
        let (from, losses) = match &start_at.at {
            Some(meta) => (stands_at(meta, &sampler, examples)?, meta.losses),
            None => (0, EpochLosses::default()),
        };
        let mut cluster = start(project, options.cores, &options.devices)?;
        let program = load(&mut cluster, plan, Some((project, sources)))?;
        let mut make = |set: Option<Dataset>, name: &'static str| -> Result<Option<SetEvaluator>, Failure> {
            let Some(set) = set else { return Ok(None) };
            Ok(Some(SetEvaluator { set: name, evaluator: evaluator(project, sources, &mut cluster, set)? }))
        };
        let validation = make(validation, "validation")?;
        let test = make(test, "test")?;
        let evaluators = match validation {
            Some(v) => Evaluators { during: Some(v), last: test },
            None => Evaluators { during: test, last: None },
        };
        let rest = hold_rest(project, sources, &mut cluster)?;
        first_values(&cluster, (&program, &evaluators, &rest), start_at.seed)?;
        Ok(Ready { cluster, program, evaluators, rest, sampler, from, losses })
    }
}

/// The step after which a checkpoint was written, which must end a batch of this sampler.
fn stands_at(meta: &Meta, sampler: &BatchSampler, examples: usize) -> Result<u64, Failure> {
    let (epoch, position) = sampler.position(meta.step);
    if (epoch, position as u64) == (meta.epoch, meta.position) {
        return Ok(meta.step);
    }
    Err(Diagnostic::error(
        codes::E0516,
        format!(
            "the run stands at example {} of epoch {}, which no step of {examples} examples reaches",
            meta.position,
            meta.epoch + 1
        ),
    )
    .help("resume with the batch size and the data of the run")
    .into())
}

fn evaluator(
    project: &Project,
    sources: &Sources,
    cluster: &mut Cluster,
    test: Dataset,
) -> Result<Evaluator, Failure> {
    Evaluator::new(project, sources, cluster, Arc::new(test)).map_err(|failure| match failure {
        Failure::Diagnostics(mut found) => {
            if let Some(d) = found.last_mut() {
                d.helps.push("or train without evaluating: `--no-eval`".into());
            }
            Failure::Diagnostics(found)
        }
        other => other,
    })
}
