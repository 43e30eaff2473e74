//! The training loop: batches in, steps, evaluation each epoch, checkpoints, events out.

use crate::checkpoint::{Checkpoint, EpochLosses, Meta, Store};
use crate::data::{Dataset, Schedule};
use crate::devices::{
    batch, compiled, dataset, hold_rest, init_all, load, prefetch, provide, restore, snapshot, start,
};
use crate::evaluator::{Evaluator, data_failed};
use crate::failure::Failure;
use crate::metrics::{self, Event};
use crate::project::Project;
use crate::run_dir::{MetricsLog, RunDir, read_settings};
use crate::settings::RunSettings;
use crate::trace::{Trace, TraceOptions};
use meshwright_core::training_step;
use meshwright_diag::{Diagnostic, Sources, codes};
use meshwright_exec::Cluster;
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
    /// Cores to use.
    pub threads: Option<usize>,
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
    let examples = plan.inputs.first().and_then(|i| i.dims.first()).map_or(1, |d| d.size);
    if Schedule::new(0, set.records(), examples).is_none() {
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
    }
    // A new run's folder is made when nothing can be wrong any more.
    let mut notes = Vec::new();
    let mut run = None;
    let mut resumed = None;
    let options = &mut options.clone();
    if options.resume {
        let dir = resume(project, sources, options, &set, &mut notes)?;
        resumed = newest(&dir, &mut notes)?;
        run = Some(dir);
    } else if let Some(path) = &options.run {
        RunDir::vacant(path)?;
    }
    let seed = options.seed.unwrap_or(0);
    let Some(schedule) = Schedule::new(seed, set.records(), examples) else {
        return Err(data_failed("there is not one whole batch".into()));
    };
    let (from, mut losses) = match &resumed {
        Some(c) => (stands_at(c, &schedule, examples)?, c.meta.losses),
        None => (0, EpochLosses::default()),
    };
    let mut cluster = start(project, options.threads)?;
    let program = load(&mut cluster, plan)?;
    let evaluator = match test {
        Some(t) => Some(evaluator(project, sources, &mut cluster, t)?),
        None => None,
    };
    let rest = hold_rest(project, sources, &mut cluster)?;
    let evaluating = evaluator.iter().flat_map(Evaluator::programs);
    init_all(&cluster, std::iter::once(&program).chain(evaluating).chain(&rest), seed)?;
    if let Some(c) = &resumed {
        restore(&cluster, c)?;
        c.only(cluster.states().map(|s| s.name.as_str()))?;
    }
    let per_epoch = schedule.steps_per_epoch();
    let last = options.steps.unwrap_or_else(|| u64::from(options.epochs.unwrap_or(1)) * per_epoch);
    if let (None, Some(path)) = (&run, &options.run) {
        run = Some(RunDir::create(path)?);
    }
    let log = match &run {
        Some(run) => {
            let texts = &project.texts;
            let used: Vec<&str> = texts.used.iter().map(|id| sources.text(*id)).collect();
            run.write_texts(sources.text(texts.model), &used, texts.layout.map(|id| sources.text(id)))?;
            run.write_plan(&program.plan.to_json())?;
            // From here on it is a run.
            run.write_settings(&RunSettings::new(project, sources, options, seed, &set))?;
            // What comes after the checkpoint comes again: so does the end of an epoch that it leaves open.
            let open = u64::from(is_open(from, per_epoch, &losses));
            Some(run.metrics(from, (from / per_epoch - open) as u32)?)
        }
        None => None,
    };
    let store = run.as_ref().map(RunDir::checkpoints).transpose()?;
    let mut trace = match &options.trace {
        Some(t) => Some(Trace::start(t, &cluster, program.id, from + 1)?),
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
        // All that was asked for is done where this was the last step.
        if (from + 1..last).contains(&finished.steps) && stop.load(Ordering::Relaxed) {
            finished.interrupted = true;
            break;
        }
        let Some(b) = batches.next() else { break };
        let n = finished.steps + 1;
        let report = cluster.run(program.id, n, &provide(b.map_err(data_failed)?))?;
        if let Some(t) = trace.take_if(|t| t.is_over(n)) {
            t.finish(&cluster, &program.plan)?;
        }
        let name = &program.plan.outputs[0].name;
        let loss = report.outputs.get(name).and_then(|t| t.scalar()).unwrap_or(f64::NAN);
        done += 1;
        l.step(n, loss, epoch_began, done)?;
        losses.add(loss);
        (finished.steps, finished.loss) = (n, Some(loss));
    }
    drop(batches);
    if let Some(t) = trace {
        t.finish(&cluster, &program.plan)?;
    }
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

/// Opens the run's folder and checks that what is asked for is the same run. What is not asked for, seed and length, becomes
/// the run's.
fn resume(
    project: &Project,
    sources: &Sources,
    options: &mut TrainOptions,
    set: &Dataset,
    notes: &mut Vec<String>,
) -> Result<RunDir, Failure> {
    let Some(path) = &options.run else {
        return Err(Diagnostic::error(codes::E0516, "`--resume` needs the folder of the run")
            .help("name it: `--run DIR --resume`")
            .into());
    };
    let dir = RunDir::resume(path)?;
    let before: RunSettings = read_settings(path)?;
    let Ok(of_run) = before.seed.parse() else {
        let message = format!("`{}` cannot be used: its seed is `{}`", path.display(), before.seed);
        return Err(Diagnostic::error(codes::E0511, message).into());
    };
    let seed = *options.seed.get_or_insert(of_run);
    if (options.steps, options.epochs) == (None, None) {
        (options.steps, options.epochs) = (before.steps, before.epochs);
    }
    notes.extend(before.resumed_as(&RunSettings::new(project, sources, options, seed, set))?);
    if dir.model_text()? != sources.text(project.texts.model) {
        let now = sources.name(project.texts.model);
        notes.push(format!(
            "the text of `{now}` has changed since the run was started; it goes on with the new one"
        ));
    }
    Ok(dir)
}

fn newest(run: &RunDir, notes: &mut Vec<String>) -> Result<Option<Checkpoint>, Failure> {
    Ok(match run.checkpoints()?.newest()? {
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

/// After which step a checkpoint was written, which must be one of this schedule.
fn stands_at(c: &Checkpoint, schedule: &Schedule, examples: usize) -> Result<u64, Failure> {
    let (epoch, position) = schedule.position(c.meta.step);
    if (epoch, position as u64) == (c.meta.epoch, c.meta.position) {
        return Ok(c.meta.step);
    }
    Err(Diagnostic::error(
        codes::E0516,
        format!(
            "the run stands at example {} of epoch {}, which no step of {examples} examples reaches",
            c.meta.position,
            c.meta.epoch + 1
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
