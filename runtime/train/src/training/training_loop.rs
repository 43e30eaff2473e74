//! The training loop: batches in, steps, evaluations, checkpoints, events out.

use crate::devices::consensus::synchronized_stop;
use crate::devices::host_tensor::raw_of;
use crate::devices::{Batch, LoadedProgram, batch, prefetch, provide, snapshot};
use crate::failure::Failure;
use crate::project::Project;
use crate::trace::Trace;
use crate::training::evaluator::Evaluator;
use crate::training::not_finite::NotFinite;
use crate::training::step_metrics::StepOf;
use crate::training::utilization::Utilization;
use crate::training::{Finished, Progress, TrainOptions};
use meshwright_core::GRADIENT_NORM;
use meshwright_cpu::peak_value_bytes;
use meshwright_data::{BatchSampler, Dataset};
use meshwright_diag::{Diagnostic, codes};
use meshwright_exec::{About, Cluster, LaunchedStep, StepReport};
use meshwright_plan::Arithmetic;
use meshwright_runs::checkpoint::{EpochLosses, Meta, Saver, not_finite};
use meshwright_runs::logs::MetricsFile;
use meshwright_runs::memory::peak_resident_bytes;
use meshwright_runs::metrics;
use meshwright_runs::metrics::{Event, StepMetrics};
use meshwright_runs::metrics_log::MetricsLog;
use meshwright_runs::policies::{Monitor, SaveEvery, Seen};
use meshwright_runs::run_dir::checkpoints_in;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The programs that evaluate on one set.
pub(crate) struct SetEvaluator {
    /// The split.
    pub(crate) set: &'static str,
    pub(crate) evaluator: Evaluator,
}

/// Evaluations and their times.
pub(crate) struct Evaluators {
    /// While the run goes on: on the validation set, or without one on the test set.
    pub(crate) during: Option<SetEvaluator>,
    /// At its end: on the test set, where there is a validation set too.
    pub(crate) last: Option<SetEvaluator>,
}

impl Evaluators {
    pub(crate) fn all(&self) -> impl Iterator<Item = &SetEvaluator> {
        self.during.iter().chain(&self.last)
    }
}

/// Whether all steps of an epoch are done, but its end is not told.
pub(crate) fn is_open(steps: u64, per_epoch: u64, losses: &EpochLosses) -> bool {
    steps.is_multiple_of(per_epoch) && losses.steps > 0
}

/// State of the loop, and its sinks.
pub(crate) struct TrainingLoop<'a> {
    pub(crate) project: &'a Project,
    pub(crate) cluster: &'a Cluster,
    pub(crate) program: &'a LoadedProgram,
    pub(crate) evaluators: &'a Evaluators,
    /// Some process writes checkpoints.
    pub(crate) writes: bool,
    pub(crate) saver: Option<Saver>,
    pub(crate) log: Option<MetricsLog>,
    pub(crate) metrics_file: Option<MetricsFile>,
    pub(crate) trace: Option<Trace>,
    pub(crate) sampler: &'a BatchSampler,
    pub(crate) seed: u64,
    /// Examples in a batch, and tokens in an example.
    pub(crate) examples: usize,
    pub(crate) tokens: Option<usize>,
    /// Operations of a step, and the peak of the devices.
    pub(crate) utilization: Utilization,
    pub(crate) options: &'a TrainOptions,
    /// All evaluations of the run.
    pub(crate) seen: Vec<Seen>,
    /// The step of the newest checkpoint, and when it was made.
    pub(crate) saved: u64,
    pub(crate) saved_at: Instant,
    /// Name and line of what is minimized.
    pub(crate) loss: &'a str,
    pub(crate) line: u32,
    /// Failure of this process since all processes met.
    pub(crate) failed: Option<Failure>,
    /// A value that is not finite, the same on all processes. The run ends with it.
    pub(crate) not_finite: Option<NotFinite>,
    pub(crate) stop: &'a AtomicBool,
    pub(crate) progress: &'a mut dyn FnMut(Progress),
}

/// Agreement of all processes after a step.
#[derive(Clone, Copy, Default)]
struct Agreed {
    /// Somebody was asked to stop.
    stop: bool,
    /// A checkpoint is due, by the clock of the first process.
    save: bool,
}

impl TrainingLoop<'_> {
    /// Runs the steps up to `last`, from where `finished` stands; `losses` are those of an epoch that a checkpoint leaves open.
    pub(crate) fn run(
        &mut self,
        last: u64,
        set: Arc<Dataset>,
        mut losses: EpochLosses,
        mut finished: Finished,
    ) -> Result<Finished, Failure> {
        let (from, per_epoch) = (finished.steps, self.sampler.steps_per_epoch());
        let (needs, sampler, examples) = (self.program.needs.clone(), self.sampler.clone(), self.examples);
        let readers = set.readers();
        let mut batches = prefetch(from..last.max(from), readers, move |n| {
            batch(&set, &needs, (&sampler.records(n, 0..examples), sampler.epoch_seed(n)))
        })?;
        let began = Instant::now();
        let mut epoch_began = Instant::now();
        // Steps of the epoch that this process did.
        let (mut done, mut agreed) = (0, Agreed::default());
        // The step after the one that is waited for, where that is launched.
        let mut ahead: Option<LaunchedStep> = None;
        loop {
            let n = finished.steps;
            let epoch_ends = is_open(n, per_epoch, &losses);
            let evaluates = epoch_ends || self.evaluates_after(n);
            // Steps must not be lost with a long evaluation.
            let saves = evaluates || n > from && ahead.is_none() && (agreed.save || self.saves_after(n));
            if saves && self.not_finite.is_none() {
                self.save(n, losses)?;
            }
            if self.not_finite.is_some() {
                return self.end_early(n, ahead).map(|()| finished);
            }
            if evaluates {
                let ControlFlow::Continue(eval) = self.evaluate_after(n, epoch_ends)? else {
                    finished.interrupted = true;
                    break;
                };
                finished.eval = eval.clone().or(finished.eval);
                if epoch_ends {
                    finished.epochs = (n / per_epoch) as u32;
                    self.epoch(n, &losses, eval, epoch_began);
                    (losses, done, epoch_began) = (EpochLosses::default(), 0, Instant::now());
                }
                agreed = self.meet(n)?;
                if n < last && self.out_of_patience() {
                    finished.stopped_early = true;
                    break;
                }
            }
            // All that was asked for is done where this was the last step.
            if (from + 1..last).contains(&n) && ahead.is_none() && agreed.stop {
                finished.interrupted = true;
                break;
            }
            let begin = Instant::now();
            let launched = match ahead.take() {
                Some(launched) => launched,
                None => match batches.next() {
                    Some(b) => self.launch(n + 1, b?)?,
                    None => break,
                },
            };
            if self.runs_ahead(n + 1, last, agreed)
                && let Some(b) = batches.next()
            {
                ahead = Some(self.launch(n + 2, b?)?);
            }
            let report = self.outputs(n + 1, launched)?;
            done += 1;
            report.notes.iter().for_each(|note| (self.progress)(Progress::Warning(note.clone())));
            let wall = begin.elapsed();
            self.review_peak(wall, ahead.is_none())?;
            let measured = self.measured(n + 1, &report, wall);
            losses.add(measured.loss);
            (finished.steps, finished.loss) = (n + 1, Some(measured.loss));
            self.examined_step(measured, (epoch_began, done), n + 1 + u64::from(ahead.is_some()))?;
            agreed = self.meet(n + 1)?;
        }
        drop(batches);
        self.end(began, losses, finished)
    }

    fn launch(&self, step: u64, given: Batch) -> Result<LaunchedStep, Failure> {
        Ok(self.cluster.launch(self.program.id, step, &provide(self.program, given))?)
    }

    /// Measures the peak again that a step of this wall time exceeds, or tells that it is not known; not while devices compute.
    fn review_peak(&mut self, wall: Duration, idle: bool) -> Result<(), Failure> {
        if !idle {
            return Ok(());
        }
        let (cluster, float) = (self.cluster, self.project.program.float);
        let told = self.utilization.review(wall.as_secs_f64(), || cluster.measured_peak(float))?;
        told.into_iter().for_each(|told| (self.progress)(Progress::Warning(told)));
        Ok(())
    }

    /// Whether the step after `n` is launched before the results of `n` are awaited: nothing else is to be done in
    /// between.
    fn runs_ahead(&self, n: u64, last: u64, agreed: Agreed) -> bool {
        let due = self.evaluates_after(n) || self.saves_after(n) || agreed.stop || agreed.save;
        let epoch_ends = n.is_multiple_of(self.sampler.steps_per_epoch());
        self.cluster.runs_ahead() && n < last && !due && !epoch_ends && self.trace.is_none()
    }

    fn outputs(&mut self, n: u64, launched: LaunchedStep) -> Result<StepReport, Failure> {
        let report = self.cluster.outputs(launched)?;
        if let Some(t) = self.trace.take_if(|t| t.is_over(n)) {
            t.finish(self.cluster, &self.program.plan, self.cluster.processes())?;
        }
        Ok(report)
    }

    /// Ends after a step, with what was launched after it.
    fn end_early(&mut self, n: u64, ahead: Option<LaunchedStep>) -> Result<(), Failure> {
        ahead.map(|launched| self.cluster.outputs(launched)).transpose()?;
        self.written()?;
        self.meet(n).map(|_| ())
    }

    /// Measurements of a step; it took `wall` with the wait for its data.
    fn measured(&self, step: u64, report: &StepReport, wall: Duration) -> StepMetrics {
        let of = StepOf {
            program: &self.project.program,
            plan: &self.program.plan,
            examples: self.examples,
            tokens: self.tokens,
            utilization: &self.utilization,
        };
        of.measured(step, report, wall)
    }

    /// Work after the last step: the timeline, a checkpoint, the last evaluations.
    fn end(
        &mut self,
        began: Instant,
        losses: EpochLosses,
        mut finished: Finished,
    ) -> Result<Finished, Failure> {
        let (per_epoch, n) = (self.sampler.steps_per_epoch(), finished.steps);
        if let Some(t) = self.trace.take() {
            t.finish(self.cluster, &self.program.plan, self.cluster.processes())?;
        }
        match self.writes {
            true => self.save(n, losses)?,
            false => self.examine_states(n)?,
        }
        self.written()?;
        self.meet(n)?;
        if self.not_finite.is_some() {
            return Ok(finished);
        }
        let cut = !n.is_multiple_of(per_epoch) || self.options.evaluation.every.is_some();
        if !finished.interrupted && cut && self.seen.last().is_none_or(|s| s.step != n) {
            match self.evaluate(n, self.evaluators.during.as_ref())? {
                ControlFlow::Continue(eval) => finished.eval = eval.or(finished.eval),
                ControlFlow::Break(()) => finished.interrupted = true,
            }
        }
        if !finished.interrupted {
            match self.evaluate(n, self.evaluators.last.as_ref())? {
                ControlFlow::Continue(test) => finished.test = test,
                ControlFlow::Break(()) => finished.interrupted = true,
            }
        }
        if !finished.interrupted {
            let seconds = began.elapsed().as_secs_f64();
            finished.epochs = (n / per_epoch) as u32;
            let (epochs, peak_memory_bytes) = (finished.epochs, peak_resident_bytes());
            let peak_value_bytes = peak_value_bytes();
            self.event(Event::Done { steps: n, epochs, seconds, peak_memory_bytes, peak_value_bytes });
        }
        self.written()?;
        self.meet(n)?;
        Ok(finished)
    }

    fn event(&mut self, event: Event) {
        let line = event.line();
        let written = self.log.as_mut().map_or(Ok(()), |log| log.append(&line, &event));
        self.note(written.map_err(Failure::from));
        if let Some(warning) = self.metrics_file.as_mut().and_then(|f| f.tell(&event)) {
            (self.progress)(Progress::Warning(warning));
        }
        (self.progress)(Progress::Event { event: &event, line: &line });
    }

    /// Keeps a failure until all processes meet. The first one counts.
    fn note(&mut self, result: Result<(), Failure>) {
        if let Err(failure) = result {
            self.failed.get_or_insert(failure);
        }
    }

    /// All processes meet after a step: whether one of them was asked to stop, and whether the first wants a checkpoint.
    fn meet(&mut self, step: u64) -> Result<Agreed, Failure> {
        self.told(false);
        // No value that `explain` shows: an error must not send its reader there.
        let what = format!("{}: whether to go on after step {step}", self.loss);
        let about = About { what: &what, line: self.line };
        let due = match self.options.saves.every {
            Some(SaveEvery::Time(t)) if self.saver.is_some() => self.saved_at.elapsed() >= t,
            _ => false,
        };
        let asked = [self.stop.load(Ordering::Relaxed), due];
        let [stop, save] = synchronized_stop(self.cluster.processes(), about, asked, self.failed.take())?;
        Ok(Agreed { stop, save })
    }

    fn examined_step(
        &mut self,
        measured: StepMetrics,
        (epoch_began, done): (Instant, usize),
        reached: u64,
    ) -> Result<(), Failure> {
        let squares_overflow = self.squares_overflow(&measured);
        self.step(measured, epoch_began, done);
        if squares_overflow && self.not_finite.is_none() {
            self.examine_states(reached)?;
        }
        Ok(())
    }

    fn step(&mut self, measured: StepMetrics, epoch_began: Instant, done: usize) {
        let (step, loss) = (measured.step, measured.loss);
        self.not_finite = NotFinite::of(&measured);
        let skipped = measured.loss_scale.filter(|_| measured.skipped == Some(true));
        self.event(Event::Step(measured));
        let rate = (done * self.examples) as f64 / epoch_began.elapsed().as_secs_f64().max(1e-9);
        let epoch = self.sampler.position(step - 1).0 + 1;
        let mfu = self.utilization.share(rate / self.examples.max(1) as f64);
        (self.progress)(Progress::StepDone { step, epoch, loss, examples_per_second: rate, mfu });
        if let Some(scale) = skipped.filter(|_| self.not_finite.is_none()) {
            self.skipped(step, scale);
        }
    }

    /// A step of `f16` has updated nothing, since gradients were not finite at its loss scale. All processes see it alike.
    fn skipped(&mut self, step: u64, scale: f64) {
        (self.progress)(Progress::StepSkipped { step, scale });
        if scale / 2.0 >= 1.0 {
            return;
        }
        self.not_finite = Some(NotFinite::gradients(step));
    }

    // --------------------------------------------------------------------------------------------- evaluations

    /// True if `--eval-every` asks for an evaluation after a step that has none.
    fn evaluates_after(&self, n: u64) -> bool {
        let every = self.options.evaluation.every;
        n > 0 && every.is_some_and(|e| n.is_multiple_of(e)) && self.seen.last().is_none_or(|s| s.step != n)
    }

    /// Evaluates after a step where that is due: at the end of an epoch unless `--eval-every` says when.
    fn evaluate_after(
        &mut self,
        n: u64,
        epoch_ends: bool,
    ) -> Result<ControlFlow<(), Option<metrics::Evaluation>>, Failure> {
        let due = match self.options.evaluation.every {
            Some(_) => self.evaluates_after(n),
            None => epoch_ends,
        };
        if due { self.evaluate(n, self.evaluators.during.as_ref()) } else { Ok(ControlFlow::Continue(None)) }
    }

    /// Measures on a set, where there is one; breaks off where it was stopped.
    fn evaluate(
        &mut self,
        step: u64,
        on: Option<&SetEvaluator>,
    ) -> Result<ControlFlow<(), Option<metrics::Evaluation>>, Failure> {
        let Some(SetEvaluator { set, evaluator }) = on else { return Ok(ControlFlow::Continue(None)) };
        let begin = Instant::now();
        let progress = &mut *self.progress;
        let file = &mut self.metrics_file;
        let told = &mut |done, total| {
            progress(Progress::Evaluating { done, total });
            if let Some(warning) = file.as_mut().and_then(MetricsFile::goes_on) {
                progress(Progress::Warning(warning));
            }
        };
        let Some(eval) = evaluator.run(self.cluster, self.stop, told)? else {
            return Ok(ControlFlow::Break(()));
        };
        let seconds = begin.elapsed().as_secs_f64();
        self.event(Event::Evaluation { step, set: set.to_string(), eval: eval.clone(), seconds });
        if !eval.loss.is_finite() {
            // Steps before the evaluation are saved.
            self.written()?;
            let message =
                format!("the loss `{}` is {} on the {set} set after step {step}", self.loss, eval.loss);
            let help = "the checkpoint before the evaluation is kept: `meshwright eval` measures it again";
            self.note(Err(Diagnostic::error(codes::E0517, message).help(help).into()));
        }
        let during = self.evaluators.during.as_ref().is_some_and(|d| d.set == *set);
        if during {
            self.seen.push(Seen { step, eval: eval.clone() });
            self.keep_best(step)?;
        }
        Ok(ControlFlow::Continue(Some(eval)))
    }

    fn epoch(&mut self, step: u64, losses: &EpochLosses, eval: Option<metrics::Evaluation>, began: Instant) {
        let epoch = (step / self.sampler.steps_per_epoch()) as u32;
        let seconds = began.elapsed().as_secs_f64();
        self.event(Event::Epoch { epoch, step, train_loss: losses.mean(), eval, seconds });
    }

    /// Whether as many evaluations as `--patience` allows were no better than the best one.
    fn out_of_patience(&self) -> bool {
        let policy = &self.options.evaluation;
        let Some(patience) = policy.patience else { return false };
        let best = policy.monitor.best(&self.seen);
        best.is_some_and(|(at, _)| self.seen.len() - 1 - at >= patience as usize)
    }

    /// Marks the checkpoint of a step as the best where its evaluation is.
    fn keep_best(&mut self, step: u64) -> Result<(), Failure> {
        let Some(monitor) = &self.options.saves.best else { return Ok(()) };
        let Some((at, value)) = monitor.best(&self.seen) else { return Ok(()) };
        if self.seen[at].step != step || !self.writes {
            return Ok(());
        }
        let Monitor { metric, .. } = monitor.clone();
        self.written()?;
        let saver = self.saver.as_ref();
        let about = About::from("the best checkpoint");
        let marked = self
            .cluster
            .processes()
            .on_first(about, || saver.map_or(Ok(()), |s| s.mark_best(step, &metric, value)))?;
        self.note(marked.unwrap_or(Ok(())).map_err(Failure::from));
        Ok(())
    }

    // ------------------------------------------------------------------------------------------------- moments

    /// True where gradients are known to be so large that squares of some may not fit in the type of the moments.
    fn squares_overflow(&self, measured: &StepMetrics) -> bool {
        let program = &self.project.program;
        let clips = program.train.as_ref().is_some_and(|t| t.clip.is_some());
        let root =
            if program.float == Arithmetic::F64 { f64::MAX.sqrt() } else { f64::from(f32::MAX).sqrt() };
        let others = measured.values.iter().filter(|(name, _)| name.starts_with(GRADIENT_NORM));
        let mut norms = others.map(|(_, norm)| *norm).chain(measured.gradient_norm);
        !clips && norms.any(|norm| norm > root)
    }

    /// Looks at all parameters and moments: of one that is not finite nothing more would be learned.
    fn examine_states(&mut self, step: u64) -> Result<(), Failure> {
        let states: Vec<String> = self.cluster.states().map(|s| s.name.clone()).collect();
        let mut found = None;
        for name in states {
            let whole = self.cluster.gathered_state(&name)?;
            let bad = whole.and_then(|t| raw_of(&t)).is_some_and(|raw| !raw.is_finite());
            found = found.or(bad.then_some(name));
        }
        self.ends_with_state(step, found, || vec!["nothing more is learned with it".into()]).map(|_| ())
    }

    /// Whether the first process has found a parameter or a moment that is not finite: the run ends with it, on all processes.
    fn ends_with_state(
        &mut self,
        step: u64,
        found: Option<String>,
        notes: impl FnOnce() -> Vec<String>,
    ) -> Result<bool, Failure> {
        let all = self.cluster.processes().gather("what is not finite".into(), &found)?;
        let found = all.into_iter().flatten().next();
        let ends = found.is_some();
        if let Some(name) = found {
            self.not_finite.get_or_insert(NotFinite::state(step, name, notes()));
        }
        Ok(ends)
    }

    // --------------------------------------------------------------------------------------------- checkpoints

    fn saves_after(&self, n: u64) -> bool {
        matches!(self.options.saves.every, Some(SaveEvery::Steps(every)) if n.is_multiple_of(every))
    }

    /// Copies the state of all devices, and has the first process write it during training. A failure is reported when
    /// all meet.
    fn save(&mut self, step: u64, losses: EpochLosses) -> Result<(), Failure> {
        if !self.writes || self.saved == step {
            return Ok(());
        }
        let (epoch, position) = self.sampler.position(step);
        let name = self.project.program.model.as_str();
        let log = self.log.as_ref().map(MetricsLog::mark);
        let meta = Meta { losses, log, ..Meta::new(name, step, epoch, position as u64, self.seed) };
        let tensors = snapshot(self.cluster)?;
        let (found, saved) = (not_finite(&tensors).map(String::from), self.saved);
        let notes = || {
            let kept = (saved > 0).then(|| format!("the checkpoint of step {saved} is the last one"));
            ["no checkpoint is written of it".into()].into_iter().chain(kept).collect()
        };
        if self.ends_with_state(step, found, notes)? {
            return Ok(());
        }
        (self.saved, self.saved_at) = (step, Instant::now());
        // The one before must be whole before it may be removed. While it is waited for, the others hear that this one lives.
        self.written()?;
        if self.failed.is_some() {
            return Ok(());
        }
        let Some(saver) = &mut self.saver else { return Ok(()) };
        let log = self.log.as_ref().map(MetricsLog::to_sync).transpose();
        let started = log.and_then(|log| saver.start(meta, tensors, log));
        self.note(started.map_err(Failure::from));
        Ok(())
    }

    /// Waits until the checkpoint at hand is written, and the log too: the first process, which tells the others that it lives.
    fn written(&mut self) -> Result<(), Failure> {
        if !self.writes {
            return Ok(());
        }
        let (saver, log) = (self.saver.as_mut(), self.log.as_ref());
        let about = About::from("the checkpoint");
        let synced = self.cluster.processes().on_first(about, || {
            saver.map(Saver::wait);
            log.map_or(Ok(()), MetricsLog::sync)
        })?;
        self.note(synced.unwrap_or(Ok(())).map_err(Failure::from));
        self.told(true);
        Ok(())
    }

    /// Tells of a checkpoint that has been written since it was last asked, or failed to be.
    fn told(&mut self, waited: bool) {
        match self.saver.as_mut().and_then(|s| s.ended(waited)) {
            Some(Ok(step)) => {
                let path =
                    self.options.run.as_deref().map(|run| checkpoints_in(run).path()).unwrap_or_default();
                (self.progress)(Progress::Checkpoint { step, path });
            }
            Some(Err(d)) => self.note(Err(d.into())),
            None => {}
        }
    }
}
