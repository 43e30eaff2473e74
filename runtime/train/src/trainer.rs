//! The training loop: batches in, steps, evaluation each epoch, checkpoints, events out.

use crate::checkpoint::{EpochLosses, Meta, Store};
use crate::data::{Dataset, Schedule};
use crate::devices::{
    Devices, Loaded, batch, hold_rest, init_all, load, prefetch, provide, restore, snapshot, start,
};
use crate::evaluator::{Evaluator, data_failed};
use crate::failure::Failure;
use crate::metrics::{self, Event};
use crate::opening::{Needs, Opened, Standing, Written, standing};
use crate::project::{Project, line_of};
use crate::run_dir::MetricsLog;
use crate::together::{guarded, met, same, settled};
use crate::trace::{Trace, TraceOptions};
use meshwright_diag::{Diagnostic, Sources, codes};
use meshwright_exec::{About, Cluster};
use meshwright_plan::Plan;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// What a run is asked to do.
#[derive(Clone, Debug, Default)]
pub struct TrainOptions {
    /// `--data`.
    pub data: Option<String>,
    /// How many epochs; with neither, as many as the run where one is resumed, else one. `steps` wins.
    pub epochs: Option<u32>,
    /// How many steps.
    pub steps: Option<u64>,
    /// Seed of initial values and of the order of examples. Without one it is the run's where one is resumed, else 0.
    pub seed: Option<u64>,
    /// The run's folder; without one nothing is written.
    pub run: Option<PathBuf>,
    /// Continue the run in that folder.
    pub resume: bool,
    /// Cores to use, in this process.
    pub threads: Option<usize>,
    /// The devices.
    pub devices: Devices,
    /// Folders in which data is sought.
    pub roots: Vec<PathBuf>,
    /// Evaluate on the `test` split after each epoch, if there is one.
    pub eval: bool,
    /// A timeline of some steps.
    pub trace: Option<TraceOptions>,
}

/// What a run tells while it goes.
#[derive(Debug)]
pub enum Progress<'a> {
    /// Once, before the first step.
    Started {
        /// Elements of all parameters.
        parameters: usize,
        /// Steps in an epoch.
        steps_per_epoch: u64,
        /// The last step of the run.
        total_steps: u64,
        /// Devices.
        devices: usize,
        /// Steps already done.
        from_step: u64,
        /// Examples in the training set.
        examples: usize,
        /// What else is worth knowing.
        notes: Vec<String>,
    },
    /// An event, as `metrics.jsonl` has it.
    Event(&'a Event),
    /// A step is done.
    StepDone {
        /// Its number, from 1.
        step: u64,
        /// Its epoch, from 1.
        epoch: u32,
        /// Its loss.
        loss: f64,
        /// Speed since the start of the epoch.
        examples_per_second: f64,
    },
    /// A checkpoint is on disk.
    Checkpoint {
        /// After which step.
        step: u64,
        /// The folder of checkpoints.
        path: PathBuf,
    },
    /// Evaluation goes on.
    Evaluating {
        /// Examples done.
        done: usize,
        /// Examples in all.
        total: usize,
    },
}

/// How a run ended.
#[derive(Clone, Debug)]
pub struct Finished {
    /// Steps done, since the beginning.
    pub steps: u64,
    /// Epochs done, since the beginning.
    pub epochs: u32,
    /// The last loss.
    pub loss: Option<f64>,
    /// The last evaluation.
    pub eval: Option<metrics::Evaluation>,
    /// Whether it was stopped from outside.
    pub interrupted: bool,
    /// The run's folder.
    pub run: Option<PathBuf>,
}

/// Trains a project. `stop` ends it after the step at hand, or the batch at hand of an evaluation, with a checkpoint of the
/// last step. An epoch whose evaluation was stopped is evaluated when the run goes on.
pub fn train(
    project: &Project,
    sources: &Sources,
    options: &TrainOptions,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(Progress),
) -> Result<Finished, Failure> {
    guarded(&options.devices.processes, trained(project, sources, options, stop, progress))
}

fn trained(
    project: &Project,
    sources: &Sources,
    options: &TrainOptions,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(Progress),
) -> Result<Finished, Failure> {
    let processes = &*options.devices.processes;
    let needs = settled(processes, "what the run needs", Needs::of(project, sources, options))?;
    same(processes, &needs.asked(project, sources, options))?;
    let Needs { plan, set, test, examples } = needs;
    // A new run's folder is made when nothing can be wrong any more.
    let opened =
        processes.on_first("the run's folder".into(), || Opened::of(project, sources, options, &set))?;
    let mut opened = settled(processes, "the run's folder", opened.transpose())?;
    let standing = standing(processes, opened.as_ref())?;
    let ready = Ready::of((project, sources), options, &standing, plan, (&set, test, examples));
    let ready = settled(processes, "the programs", ready)?;
    let Ready { cluster, program, evaluator, schedule, from, mut losses } = ready;
    if standing.at.is_some() {
        let resumed = opened.as_mut().and_then(|o| o.resumed.take());
        restore(&cluster, resumed.as_ref(), true)?;
    }
    let per_epoch = schedule.steps_per_epoch();
    let last = standing.steps.unwrap_or_else(|| u64::from(standing.epochs.unwrap_or(1)) * per_epoch);
    // What comes after the checkpoint comes again: so does the end of an epoch that it leaves open.
    let open = u64::from(is_open(from, per_epoch, &losses));
    let after = (from, (from / per_epoch - open) as u32);
    let mut notes = opened.as_mut().map(|o| std::mem::take(&mut o.notes)).unwrap_or_default();
    notes.extend(cluster.notes()?);
    notes.extend(options.trace.as_ref().and_then(|t| t.shows_nothing(from + 1..=last)));
    let written = processes.on_first("the run's folder".into(), || {
        opened.map(|o| Written::of(o, (project, sources), options, (&set, &program.plan), after)).transpose()
    })?;
    let written = written.transpose().map(|w| w.flatten().unwrap_or_default());
    let Written { run: _run, log, store } = settled(processes, "the run's folder", written)?;
    let mut trace = match &options.trace {
        Some(t) => Some(Trace::start(t, &cluster, program.id, from + 1, processes)?),
        None => None,
    };
    progress(Progress::Started {
        parameters: project
            .program
            .params
            .iter()
            .map(|p| project.program.graph.ty(p.id).elements(&project.program.graph.dims))
            .sum(),
        steps_per_epoch: per_epoch,
        total_steps: last,
        devices: project.layout.mesh.devices(),
        from_step: from,
        examples: set.records(),
        notes,
    });
    let (needs, source_schedule, source_set) = (program.needs.clone(), schedule, set.clone());
    let mut batches = prefetch(from..last.max(from), move |n| {
        Ok(batch(&source_set, &needs, &source_schedule.records(n, 0..examples)))
    })?;
    let folder = options.run.as_deref().map(crate::run_dir::checkpoints_in).unwrap_or_default();
    let minimized = project.program.train.as_ref().map(|t| &t.minimize);
    let mut l = Loop {
        project,
        cluster: &cluster,
        writes: options.run.is_some(),
        store,
        log,
        schedule: &schedule,
        seed: standing.seed,
        examples,
        folder,
        loss: minimized.map_or("the loss", |d| d.name.as_str()),
        line: minimized.map_or(0, |d| line_of(sources, d.span)),
        failed: None,
        stop,
        progress,
    };
    let mut finished = Finished {
        steps: from,
        epochs: 0,
        loss: None,
        eval: None,
        interrupted: false,
        run: options.run.clone(),
    };
    let began = Instant::now();
    let mut epoch_began = Instant::now();
    // Steps of the epoch that this process did.
    let (mut done, mut saved, mut stopping) = (0, from, false);
    loop {
        if is_open(finished.steps, per_epoch, &losses) {
            let ControlFlow::Continue(eval) = l.evaluate(evaluator.as_ref())? else {
                finished.interrupted = true;
                break;
            };
            finished.epochs = (finished.steps / per_epoch) as u32;
            finished.eval = eval.clone();
            l.epoch(finished.epochs, &losses, eval, epoch_began);
            (losses, done, epoch_began) = (EpochLosses::default(), 0, Instant::now());
            l.save(finished.steps, losses)?;
            saved = finished.steps;
            stopping = l.meet(saved)?;
        }
        // All that was asked for is done where this was the last step.
        if (from + 1..last).contains(&finished.steps) && stopping {
            finished.interrupted = true;
            break;
        }
        let Some(b) = batches.next() else { break };
        let n = finished.steps + 1;
        let report = cluster.run(program.id, n, &provide(&program, b.map_err(data_failed)?))?;
        if let Some(t) = trace.take_if(|t| t.is_over(n)) {
            t.finish(&cluster, &program.plan, processes)?;
        }
        let name = &program.plan.outputs[0].name;
        let loss = report.outputs.get(name).and_then(|t| t.scalar()).unwrap_or(f64::NAN);
        done += 1;
        l.step(n, loss, epoch_began, done);
        losses.add(loss);
        (finished.steps, finished.loss) = (n, Some(loss));
        stopping = l.meet(n)?;
    }
    drop(batches);
    if let Some(t) = trace {
        t.finish(&cluster, &program.plan, processes)?;
    }
    if saved != finished.steps {
        l.save(finished.steps, losses)?;
        l.meet(finished.steps)?;
    }
    if !finished.interrupted && !finished.steps.is_multiple_of(per_epoch) && evaluator.is_some() {
        match l.evaluate(evaluator.as_ref())? {
            ControlFlow::Continue(eval) => finished.eval = eval,
            ControlFlow::Break(()) => finished.interrupted = true,
        }
    }
    if !finished.interrupted {
        let seconds = began.elapsed().as_secs_f64();
        finished.epochs = (finished.steps / per_epoch) as u32;
        l.event(Event::Done { steps: finished.steps, epochs: finished.epochs, seconds });
    }
    l.sync()?;
    l.meet(finished.steps)?;
    cluster.shutdown();
    Ok(finished)
}

/// The devices with all programs loaded and first values set, and where the run begins.
struct Ready {
    cluster: Cluster,
    program: Loaded,
    evaluator: Option<Evaluator>,
    schedule: Schedule,
    from: u64,
    losses: EpochLosses,
}

impl Ready {
    fn of(
        (project, sources): (&Project, &Sources),
        options: &TrainOptions,
        standing: &Standing,
        plan: Plan,
        (set, test, examples): (&Dataset, Option<Dataset>, usize),
    ) -> Result<Ready, Failure> {
        let Some(schedule) = Schedule::new(standing.seed, set.records(), examples) else {
            return Err(data_failed("there is not one whole batch".into()));
        };
        let (from, losses) = match &standing.at {
            Some(meta) => (stands_at(meta, &schedule, examples)?, meta.losses),
            None => (0, EpochLosses::default()),
        };
        let mut cluster = start(project, options.threads, &options.devices)?;
        let program = load(&mut cluster, plan)?;
        let evaluator = match test {
            Some(t) => Some(self::evaluator(project, sources, &mut cluster, t)?),
            None => None,
        };
        let rest = hold_rest(project, sources, &mut cluster)?;
        let evaluating = evaluator.iter().flat_map(Evaluator::programs);
        init_all(&cluster, std::iter::once(&program).chain(evaluating).chain(&rest), standing.seed)?;
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
    /// Whether checkpoints are written, by whichever process.
    writes: bool,
    store: Option<Store>,
    log: Option<MetricsLog>,
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
        met(self.cluster.processes(), about, self.stop.load(Ordering::Relaxed), self.failed.take())
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
    fn evaluate(
        &mut self,
        evaluator: Option<&Evaluator>,
    ) -> Result<ControlFlow<(), Option<metrics::Evaluation>>, Failure> {
        let Some(e) = evaluator else { return Ok(ControlFlow::Continue(None)) };
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
