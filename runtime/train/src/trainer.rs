//! The training loop: batches in, steps, evaluation each epoch, checkpoints, events out.

use crate::checkpoint::{EpochLosses, Meta, Store};
use crate::consensus::{abort_on_error, agree_on_result, check_same_configuration, synchronized_stop};
use crate::data::{Dataset, Schedule};
use crate::devices::{
    LoadedProgram, batch, hold_rest, init_all, load, prefetch, provide, restore, snapshot, start,
};
use crate::evaluator::{Evaluator, data_failed};
use crate::failure::Failure;
use crate::metrics::{self, Event};
use crate::project::{Project, line_of};
use crate::run_dir::MetricsLog;
use crate::session::{Requirements, Session, StartPoint, Written, start_point};
use crate::trace::Trace;
use crate::training::{Finished, Progress, TrainOptions};
use meshwright_diag::{Diagnostic, Sources, codes};
use meshwright_exec::{About, Cluster, Provider};
use meshwright_plan::Plan;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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
    abort_on_error(&options.devices.processes, trained(project, sources, options, stop, progress))
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
    let Requirements { plan, set, test, examples } = needs;
    // A new run's folder is made when nothing can be wrong any more.
    let session =
        processes.on_first("the run's folder".into(), || Session::of(project, sources, options, &set))?;
    let mut session = agree_on_result(processes, "the run's folder", session.transpose())?;
    let start = start_point(processes, session.as_ref())?;
    let ready = Ready::of((project, sources), options, &start, plan, (&set, test, examples));
    let Ready { cluster, program, evaluator, schedule, from, losses } =
        agree_on_result(processes, "the programs", ready)?;
    if start.at.is_some() {
        let resumed = session.as_mut().and_then(|s| s.resumed.take());
        restore(&cluster, resumed.as_ref(), true)?;
    }
    let per_epoch = schedule.steps_per_epoch();
    let last = start.steps.unwrap_or_else(|| u64::from(start.epochs.unwrap_or(1)) * per_epoch);
    // What comes after the checkpoint comes again: so does the end of an epoch that it leaves open.
    let open = u64::from(is_open(from, per_epoch, &losses));
    let after = (from, (from / per_epoch - open) as u32);
    let mut notes = session.as_mut().map(|s| std::mem::take(&mut s.notes)).unwrap_or_default();
    notes.extend(set.notes());
    notes.extend(evaluator.iter().flat_map(Evaluator::notes));
    notes.extend(cluster.notes()?);
    notes.extend(options.trace.as_ref().and_then(|t| t.shows_nothing(from + 1..=last)));
    let written = processes.on_first("the run's folder".into(), || {
        session.map(|s| Written::of(s, (project, sources), options, (&set, &program.plan), after)).transpose()
    })?;
    let written = written.transpose().map(|w| w.flatten().unwrap_or_default());
    let Written { run: _run, log, store } = agree_on_result(processes, "the run's folder", written)?;
    let trace = match &options.trace {
        Some(t) => Some(Trace::start(t, &cluster, program.id, from + 1, processes)?),
        None => None,
    };
    progress(Progress::Started {
        parameters: project.program.parameter_elements(),
        steps_per_epoch: per_epoch,
        total_steps: last,
        devices: project.layout.mesh.devices(),
        from_step: from,
        examples: set.records(),
        notes,
    });
    let minimized = project.program.train.as_ref().map(|t| &t.minimize);
    let mut l = Loop {
        project,
        cluster: &cluster,
        program: &program,
        evaluator: evaluator.as_ref(),
        writes: options.run.is_some(),
        store,
        log,
        trace,
        schedule: &schedule,
        seed: start.seed,
        examples,
        folder: options.run.as_deref().map(crate::run_dir::checkpoints_in).unwrap_or_default(),
        loss: minimized.map_or("the loss", |d| d.name.as_str()),
        line: minimized.map_or(0, |d| line_of(sources, d.span)),
        failed: None,
        stop,
        progress,
    };
    let run = options.run.clone();
    let finished = Finished { steps: from, epochs: 0, loss: None, eval: None, interrupted: false, run };
    let finished = l.run(last, set, losses, finished)?;
    cluster.shutdown();
    Ok(finished)
}

/// The devices with all programs loaded and first values set, and where the run begins.
struct Ready {
    cluster: Cluster,
    program: LoadedProgram,
    evaluator: Option<Evaluator>,
    schedule: Schedule,
    from: u64,
    losses: EpochLosses,
}

impl Ready {
    fn of(
        (project, sources): (&Project, &Sources),
        options: &TrainOptions,
        start_at: &StartPoint,
        plan: Plan,
        (set, test, examples): (&Dataset, Option<Dataset>, usize),
    ) -> Result<Ready, Failure> {
        let Some(schedule) = Schedule::of(start_at.seed, set, examples) else {
            return Err(data_failed("there is not one whole batch".into()));
        };
        let (from, losses) = match &start_at.at {
            Some(meta) => (stands_at(meta, &schedule, examples)?, meta.losses),
            None => (0, EpochLosses::default()),
        };
        let mut cluster = start(project, options.cores, &options.devices)?;
        let program = load(&mut cluster, plan)?;
        let evaluator = match test {
            Some(t) => Some(self::evaluator(project, sources, &mut cluster, t)?),
            None => None,
        };
        let rest = hold_rest(project, sources, &mut cluster)?;
        let evaluating = evaluator.iter().flat_map(Evaluator::programs);
        init_all(&cluster, std::iter::once(&program).chain(evaluating).chain(&rest), start_at.seed)?;
        Ok(Ready { cluster, program, evaluator, schedule, from, losses })
    }
}

/// Whether all steps of an epoch are done, but it is not evaluated.
fn is_open(steps: u64, per_epoch: u64, losses: &EpochLosses) -> bool {
    steps.is_multiple_of(per_epoch) && losses.steps > 0
}

/// After which step a checkpoint was written, which must be one of this schedule.
fn stands_at(meta: &Meta, schedule: &Schedule, examples: usize) -> Result<u64, Failure> {
    let (epoch, position) = schedule.position(meta.step);
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
                d.helps.push("or train without evaluating on the test set: `--no-eval`".into());
            }
            Failure::Diagnostics(found)
        }
        other => other,
    })
}

/// What the loop writes to.
struct Loop<'a> {
    project: &'a Project,
    cluster: &'a Cluster,
    program: &'a LoadedProgram,
    evaluator: Option<&'a Evaluator>,
    /// Whether checkpoints are written, by whichever process.
    writes: bool,
    store: Option<Store>,
    log: Option<MetricsLog>,
    trace: Option<Trace>,
    schedule: &'a Schedule,
    seed: u64,
    examples: usize,
    /// Where checkpoints go.
    folder: PathBuf,
    /// Name and line of what is minimized.
    loss: &'a str,
    line: u32,
    /// What went wrong here since all processes met.
    failed: Option<Failure>,
    stop: &'a AtomicBool,
    progress: &'a mut dyn FnMut(Progress),
}

impl Loop<'_> {
    /// Runs the steps up to `last`, from where `finished` stands; `losses` are those of an epoch that a checkpoint leaves open.
    fn run(
        &mut self,
        last: u64,
        set: Arc<Dataset>,
        mut losses: EpochLosses,
        mut finished: Finished,
    ) -> Result<Finished, Failure> {
        let (from, per_epoch) = (finished.steps, self.schedule.steps_per_epoch());
        let (needs, schedule, examples) = (self.program.needs.clone(), self.schedule.clone(), self.examples);
        let readers = set.readers();
        let mut batches = prefetch(from..last.max(from), readers, move |n| {
            batch(&set, &needs, &schedule.records(n, 0..examples))
        })?;
        let began = Instant::now();
        let mut epoch_began = Instant::now();
        // Steps of the epoch that this process did.
        let (mut done, mut saved, mut stopping) = (0, from, false);
        loop {
            if is_open(finished.steps, per_epoch, &losses) {
                let ControlFlow::Continue(eval) = self.evaluate()? else {
                    finished.interrupted = true;
                    break;
                };
                finished.epochs = (finished.steps / per_epoch) as u32;
                finished.eval = eval.clone();
                self.epoch(finished.epochs, &losses, eval, epoch_began);
                (losses, done, epoch_began) = (EpochLosses::default(), 0, Instant::now());
                self.save(finished.steps, losses)?;
                saved = finished.steps;
                stopping = self.meet(saved)?;
            }
            // All that was asked for is done where this was the last step.
            if (from + 1..last).contains(&finished.steps) && stopping {
                finished.interrupted = true;
                break;
            }
            let Some(b) = batches.next() else { break };
            let n = finished.steps + 1;
            let loss = self.compute(n, &provide(self.program, b?))?;
            done += 1;
            self.step(n, loss, epoch_began, done);
            losses.add(loss);
            (finished.steps, finished.loss) = (n, Some(loss));
            stopping = self.meet(n)?;
        }
        drop(batches);
        self.end(began, saved, losses, finished)
    }

    /// Computes a step: its loss.
    fn compute(&mut self, n: u64, given: &Provider) -> Result<f64, Failure> {
        let report = self.cluster.run(self.program.id, n, given)?;
        if let Some(t) = self.trace.take_if(|t| t.is_over(n)) {
            t.finish(self.cluster, &self.program.plan, self.cluster.processes())?;
        }
        let name = &self.program.plan.outputs[0].name;
        Ok(report.outputs.get(name).and_then(|t| t.scalar()).unwrap_or(f64::NAN))
    }

    /// What is left to do after the last step: the timeline, a checkpoint, the evaluation of an epoch that is cut short.
    fn end(
        &mut self,
        began: Instant,
        saved: u64,
        losses: EpochLosses,
        mut finished: Finished,
    ) -> Result<Finished, Failure> {
        let per_epoch = self.schedule.steps_per_epoch();
        if let Some(t) = self.trace.take() {
            t.finish(self.cluster, &self.program.plan, self.cluster.processes())?;
        }
        if saved != finished.steps {
            self.save(finished.steps, losses)?;
            self.meet(finished.steps)?;
        }
        if !finished.interrupted && !finished.steps.is_multiple_of(per_epoch) && self.evaluator.is_some() {
            match self.evaluate()? {
                ControlFlow::Continue(eval) => finished.eval = eval,
                ControlFlow::Break(()) => finished.interrupted = true,
            }
        }
        if !finished.interrupted {
            let seconds = began.elapsed().as_secs_f64();
            finished.epochs = (finished.steps / per_epoch) as u32;
            self.event(Event::Done { steps: finished.steps, epochs: finished.epochs, seconds });
        }
        self.sync()?;
        self.meet(finished.steps)?;
        Ok(finished)
    }

    fn event(&mut self, event: Event) {
        let written = self.log.as_mut().map_or(Ok(()), |log| log.append(&event));
        self.note(written.map_err(Failure::from));
        (self.progress)(Progress::Event(&event));
    }

    /// Keeps a failure until all processes meet. The first one counts.
    fn note(&mut self, result: Result<(), Failure>) {
        if let Err(failure) = result {
            self.failed.get_or_insert(failure);
        }
    }

    /// All processes meet after a step: whether one of them was asked to stop.
    fn meet(&mut self, step: u64) -> Result<bool, Failure> {
        // No value that `explain` shows: an error must not send its reader there.
        let what = format!("{}: whether to go on after step {step}", self.loss);
        let about = About { what: &what, line: self.line };
        synchronized_stop(
            self.cluster.processes(),
            about,
            self.stop.load(Ordering::Relaxed),
            self.failed.take(),
        )
    }

    fn step(&mut self, step: u64, loss: f64, epoch_began: Instant, done: usize) {
        self.event(Event::Step { step, loss });
        let rate = (done * self.examples) as f64 / epoch_began.elapsed().as_secs_f64().max(1e-9);
        let epoch = self.schedule.position(step - 1).0 + 1;
        (self.progress)(Progress::StepDone { step, epoch, loss, examples_per_second: rate });
        if loss.is_finite() {
            return;
        }
        let name = self.loss;
        let mut d = Diagnostic::error(codes::E0517, format!("the loss `{name}` is {loss} at step {step}"));
        if let Some(decl) = self.project.program.train.as_ref().map(|t| &t.minimize) {
            d = d.at(decl.span, "not finite from here on");
        }
        let help = "try a smaller learning rate, or `clip global_norm = 1.0` in the `train` block";
        self.note(Err(d.help(help).into()));
    }

    /// Measures on the test set, where there is one; breaks off where it was stopped.
    fn evaluate(&mut self) -> Result<ControlFlow<(), Option<metrics::Evaluation>>, Failure> {
        let Some(e) = self.evaluator else { return Ok(ControlFlow::Continue(None)) };
        let progress = &mut *self.progress;
        let told = &mut |done, total| progress(Progress::Evaluating { done, total });
        Ok(match e.run(self.cluster, self.stop, told)? {
            Some(result) => ControlFlow::Continue(Some(result)),
            None => ControlFlow::Break(()),
        })
    }

    fn epoch(&mut self, epoch: u32, losses: &EpochLosses, eval: Option<metrics::Evaluation>, began: Instant) {
        let seconds = began.elapsed().as_secs_f64();
        self.event(Event::Epoch { epoch, train_loss: losses.mean(), eval, seconds });
    }

    /// Saves a checkpoint: the first process has it written while the others wait. That it failed is told when they meet.
    fn save(&mut self, step: u64, losses: EpochLosses) -> Result<(), Failure> {
        if !self.writes {
            return Ok(());
        }
        let (epoch, position) = self.schedule.position(step);
        let name = self.project.program.model.as_str();
        let meta = Meta { losses, ..Meta::new(name, step, epoch, position as u64, self.seed) };
        let tensors = snapshot(self.cluster)?;
        // What the log says of these steps must be on disk before the checkpoint that vouches for them.
        self.sync()?;
        let (store, sound) = (self.store.as_ref(), self.failed.is_none());
        let saved = self.cluster.processes().on_first("the checkpoint".into(), || match store {
            Some(store) if sound => store.save(&meta, tensors.iter().map(|(n, t)| (n.as_str(), t))),
            _ => Ok(()),
        })?;
        match saved {
            Some(Err(d)) => self.note(Err(d.into())),
            Some(Ok(())) if sound => {
                (self.progress)(Progress::Checkpoint { step, path: self.folder.clone() });
            }
            _ => {}
        }
        Ok(())
    }

    /// Makes the log durable, by the first process while the others wait.
    fn sync(&mut self) -> Result<(), Failure> {
        if !self.writes {
            return Ok(());
        }
        let log = self.log.as_ref();
        let about = About::from("the log");
        let synced = self.cluster.processes().on_first(about, || log.map_or(Ok(()), MetricsLog::sync))?;
        self.note(synced.unwrap_or(Ok(())).map_err(Failure::from));
        Ok(())
    }
}
