//! The training loop: batches in, steps, evaluation each epoch, checkpoints, events out.

use crate::checkpoint::{EpochLosses, Meta, Store};
use crate::data::Schedule;
use crate::devices::{batch, compiled, dataset, load, prefetch, provide, restore, snapshot, start};
use crate::evaluator::{Evaluator, data_failed};
use crate::failure::Failure;
use crate::metrics::{self, Event};
use crate::project::Project;
use crate::run_dir::{MetricsLog, RunDir};
use meshwright_core::training_step;
use meshwright_diag::{Diagnostic, Sources, codes};
use meshwright_exec::Cluster;
use serde::Serialize;
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
    /// How many epochs; with neither, one. `steps` wins.
    pub epochs: Option<u32>,
    /// How many steps.
    pub steps: Option<u64>,
    /// Seed of initial values and of the order of examples.
    pub seed: u64,
    /// The run's folder; without one nothing is written.
    pub run: Option<PathBuf>,
    /// Continue the run in that folder.
    pub resume: bool,
    /// Cores to use.
    pub threads: Option<usize>,
    /// Folders in which data is sought.
    pub roots: Vec<PathBuf>,
    /// Evaluate on the `test` split after each epoch, if there is one.
    pub eval: bool,
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
    /// Something worth knowing.
    Note(String),
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

/// What the run's folder remembers of how it was started.
#[derive(Serialize)]
struct RunSettings<'a> {
    model: &'a str,
    mesh: String,
    precision: &'a str,
    seed: u64,
    data: Option<&'a str>,
    dims: std::collections::BTreeMap<String, usize>,
    layout: Vec<String>,
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
    let Some(step) = training_step(&project.program) else {
        let model = &project.program.model;
        return Err(Diagnostic::error(codes::E0516, format!("the file has no `train {model}` block"))
            .help(format!("add one: `train {model} {{ minimize LOSS optimizer adam(lr = 1e-3) }}`"))
            .into());
    };
    let plan = compiled(project, &step, sources)?.plan;
    let set = match dataset(project, options.data.as_deref(), &options.roots, "train", false)? {
        Some(s) => Arc::new(s),
        None => return Err(data_failed("there is no `train` split".into())),
    };
    let test = if options.eval {
        dataset(project, options.data.as_deref(), &options.roots, "test", true)?
    } else {
        None
    };
    let run = match &options.run {
        Some(path) if options.resume => Some(RunDir::resume(path)?),
        Some(path) => Some(RunDir::create(path)?),
        None => None,
    };
    let store = run.as_ref().map(RunDir::checkpoints).transpose()?;
    let mut cluster = start(project, options.threads)?;
    let program = load(&mut cluster, plan)?;
    let mut notes = Vec::new();
    let resumed = if options.resume { newest(store.as_ref(), &mut notes)? } else { None };
    let seed = resumed.as_ref().map_or(options.seed, |c| c.meta.seed);
    let examples = program.examples;
    let Some(schedule) = Schedule::new(seed, set.records(), examples) else {
        let name = project.example_dim().map_or("?", |d| d.1);
        return Err(Diagnostic::error(
            codes::E0516,
            format!(
                "`{name}` = {examples}, but there are only {} examples: not one whole batch",
                set.records()
            ),
        )
        .help(format!("take a smaller batch: `--dim {name}={}`", set.records()))
        .into());
    };
    cluster.init_state(program.id, seed)?;
    let (mut from, mut losses) = (0, EpochLosses::default());
    if let Some(c) = &resumed {
        let (epoch, position) = schedule.position(c.meta.step);
        if (epoch, position as u64) != (c.meta.epoch, c.meta.position) {
            return Err(Diagnostic::error(
                codes::E0516,
                format!(
                    "the run stands at example {} of epoch {}, which no step of {examples} examples reaches",
                    c.meta.position,
                    c.meta.epoch + 1
                ),
            )
            .help("resume with the batch size and the data of the run")
            .into());
        }
        restore(&cluster, c)?;
        (from, losses) = (c.meta.step, c.meta.losses);
    }
    let evaluator = match test {
        Some(t) => Some(Evaluator::new(project, sources, &mut cluster, Arc::new(t))?),
        None => None,
    };
    let per_epoch = schedule.steps_per_epoch();
    let last = options.steps.unwrap_or_else(|| u64::from(options.epochs.unwrap_or(1)) * per_epoch);
    let log = match &run {
        Some(run) => {
            if resumed.is_none() {
                run.write_settings(&settings(project, options, seed))?;
            }
            run.write_plan(&program.plan.to_json())?;
            // What comes after the checkpoint comes again: so does the end of an epoch that it leaves open.
            let open = u64::from(is_open(from, per_epoch, &losses));
            Some(run.metrics(from, (from / per_epoch - open) as u32)?)
        }
        None => None,
    };
    progress(Progress::Started {
        parameters: project.program.params.iter().map(|p| project.program.graph.ty(p.id).elements()).sum(),
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
    let mut l = Loop {
        project,
        cluster: &cluster,
        store,
        log,
        schedule: &schedule,
        seed,
        examples,
        folder,
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
    let (mut done, mut saved) = (0, from);
    loop {
        if is_open(finished.steps, per_epoch, &losses) {
            let ControlFlow::Continue(eval) = l.evaluate(evaluator.as_ref(), stop)? else {
                finished.interrupted = true;
                break;
            };
            finished.epochs = (finished.steps / per_epoch) as u32;
            finished.eval = eval.clone();
            l.epoch(finished.epochs, &losses, eval, epoch_began)?;
            (losses, done, epoch_began) = (EpochLosses::default(), 0, Instant::now());
            l.save(finished.steps, losses)?;
            saved = finished.steps;
        }
        if finished.steps > from && stop.load(Ordering::Relaxed) {
            finished.interrupted = true;
            break;
        }
        let Some(b) = batches.next() else { break };
        let n = finished.steps + 1;
        let report = cluster.run(program.id, n, &provide(b.map_err(data_failed)?))?;
        let name = &program.plan.outputs[0].name;
        let loss = report.outputs.get(name).and_then(|t| t.scalar()).unwrap_or(f64::NAN);
        done += 1;
        l.step(n, loss, epoch_began, done)?;
        losses.add(loss);
        (finished.steps, finished.loss) = (n, Some(loss));
    }
    drop(batches);
    if saved != finished.steps {
        l.save(finished.steps, losses)?;
    }
    if !finished.interrupted && !finished.steps.is_multiple_of(per_epoch) && evaluator.is_some() {
        match l.evaluate(evaluator.as_ref(), stop)? {
            ControlFlow::Continue(eval) => finished.eval = eval,
            ControlFlow::Break(()) => finished.interrupted = true,
        }
    }
    if !finished.interrupted {
        let seconds = began.elapsed().as_secs_f64();
        finished.epochs = (finished.steps / per_epoch) as u32;
        l.event(Event::Done { steps: finished.steps, epochs: finished.epochs, seconds })?;
    }
    if let Some(log) = &l.log {
        log.sync()?;
    }
    cluster.shutdown();
    Ok(finished)
}

/// Whether all steps of an epoch are done, but it is not evaluated.
fn is_open(steps: u64, per_epoch: u64, losses: &EpochLosses) -> bool {
    steps.is_multiple_of(per_epoch) && losses.steps > 0
}

fn newest(
    store: Option<&Store>,
    notes: &mut Vec<String>,
) -> Result<Option<crate::checkpoint::Checkpoint>, Failure> {
    let Some(store) = store else {
        return Err(Diagnostic::error(codes::E0516, "`--resume` needs the folder of the run")
            .help("name it: `--run DIR --resume`")
            .into());
    };
    Ok(match store.newest()? {
        Some(found) => {
            notes.extend(found.skipped.iter().map(|s| format!("skipped a damaged checkpoint: {s:?}")));
            Some(found.checkpoint)
        }
        None => {
            notes.push("the run has no checkpoint yet: it starts again".into());
            None
        }
    })
}

fn settings<'a>(project: &'a Project, options: &'a TrainOptions, seed: u64) -> RunSettings<'a> {
    RunSettings {
        model: &project.program.model,
        mesh: project.layout.mesh.describe(),
        precision: project.program.float.name(),
        seed,
        data: options.data.as_deref(),
        dims: project.program.graph.dims.iter().map(|(d, n)| (n.to_string(), d.size)).collect(),
        layout: project.layout.rules.iter().map(|r| r.text.clone()).collect(),
    }
}

/// What the loop writes to.
struct Loop<'a> {
    project: &'a Project,
    cluster: &'a Cluster,
    store: Option<Store>,
    log: Option<MetricsLog>,
    schedule: &'a Schedule,
    seed: u64,
    examples: usize,
    /// Where checkpoints go.
    folder: PathBuf,
    progress: &'a mut dyn FnMut(Progress),
}

impl Loop<'_> {
    fn event(&mut self, event: Event) -> Result<(), Failure> {
        if let Some(log) = &mut self.log {
            log.append(&event)?;
        }
        (self.progress)(Progress::Event(&event));
        Ok(())
    }

    fn step(&mut self, step: u64, loss: f64, epoch_began: Instant, done: usize) -> Result<(), Failure> {
        self.event(Event::Step { step, loss })?;
        let rate = (done * self.examples) as f64 / epoch_began.elapsed().as_secs_f64().max(1e-9);
        let epoch = self.schedule.position(step - 1).0 + 1;
        (self.progress)(Progress::StepDone { step, epoch, loss, examples_per_second: rate });
        if loss.is_finite() {
            return Ok(());
        }
        let decl = self.project.program.train.as_ref().map(|t| &t.minimize);
        let name = decl.map_or("the loss", |d| d.name.as_str());
        let mut d = Diagnostic::error(codes::E0517, format!("the loss `{name}` is {loss} at step {step}"));
        if let Some(decl) = decl {
            d = d.at(decl.span, "not finite from here on");
        }
        Err(d.help("try a smaller learning rate, or `clip global_norm = 1.0` in the `train` block").into())
    }

    /// Measures on the test set, where there is one; breaks off where it was stopped.
    fn evaluate(
        &mut self,
        evaluator: Option<&Evaluator>,
        stop: &AtomicBool,
    ) -> Result<ControlFlow<(), Option<metrics::Evaluation>>, Failure> {
        let Some(e) = evaluator else { return Ok(ControlFlow::Continue(None)) };
        let progress = &mut *self.progress;
        let told = &mut |done, total| progress(Progress::Evaluating { done, total });
        Ok(match e.run(self.cluster, stop, told)? {
            Some(result) => ControlFlow::Continue(Some(result)),
            None => ControlFlow::Break(()),
        })
    }

    fn epoch(
        &mut self,
        epoch: u32,
        losses: &EpochLosses,
        eval: Option<metrics::Evaluation>,
        began: Instant,
    ) -> Result<(), Failure> {
        let seconds = began.elapsed().as_secs_f64();
        self.event(Event::Epoch { epoch, train_loss: losses.mean(), eval, seconds })
    }

    fn save(&mut self, step: u64, losses: EpochLosses) -> Result<(), Failure> {
        let Some(store) = &self.store else { return Ok(()) };
        let (epoch, position) = self.schedule.position(step);
        let name = self.project.program.model.as_str();
        let meta = Meta { losses, ..Meta::new(name, step, epoch, position as u64, self.seed) };
        // What the log says of these steps must be on disk before the checkpoint that vouches for them.
        if let Some(log) = &self.log {
            log.sync()?;
        }
        let tensors = snapshot(self.cluster)?;
        store.save(&meta, tensors.iter().map(|(n, t)| (n.as_str(), t)))?;
        (self.progress)(Progress::Checkpoint { step, path: self.folder.clone() });
        Ok(())
    }
}
