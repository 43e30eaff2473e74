//! A run in a few numbers, read from its folder.

use super::computation_hash::computed;
use super::costs::RunCosts;
use super::curves::{EpochPoint, EvaluationPoint, RunCurves};
use super::run_locks::HeldLocks;
use crate::history::{Ending, ending};
use crate::metrics::Evaluation;
use crate::run_dir::{lock_of, read_costs};
use crate::settings::RunSettings;
use meshwright_files::Checked;
use meshwright_sorted::{SortedMap, SortedSet};
use rayon::prelude::*;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// State of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// All that was asked for is done.
    Finished,
    /// A process is at work in it.
    Running,
    /// It was stopped or killed, and can go on.
    Interrupted,
    /// It ended by an error.
    Failed,
    /// It holds weights that were imported, and no training.
    Imported,
}

impl RunState {
    /// In a word.
    pub fn name(self) -> &'static str {
        match self {
            RunState::Finished => "finished",
            RunState::Running => "running",
            RunState::Interrupted => "interrupted",
            RunState::Failed => "failed",
            RunState::Imported => "imported",
        }
    }
}

/// Planned length of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunLength {
    /// Epochs.
    Epochs(u32),
    /// Steps.
    Steps(u64),
}

/// Wall time of steps, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepTimes {
    /// The fastest.
    pub least: f64,
    /// The middle one.
    pub median: f64,
    /// Nine of ten take no longer.
    pub p90: f64,
}

/// Summary of a run's folder.
#[derive(Clone, Debug, PartialEq)]
pub struct RunSummary {
    /// The folder.
    pub path: PathBuf,
    /// Its state.
    pub state: RunState,
    /// Its error, if it failed.
    pub error: Option<String>,
    /// Name of the model.
    pub model: String,
    /// Its file, or the name of a shipped one.
    pub file: String,
    /// `--preset`.
    pub preset: Option<String>,
    /// Arithmetic type.
    pub precision: String,
    /// The mesh, as `r=2,c=2`; empty for one device.
    pub mesh: String,
    /// The file of the layout, or `--layout`; none without a layout.
    pub layout_file: Option<String>,
    /// The rules of the layout.
    pub rules: Vec<String>,
    /// The SHA-256 of what it computes: equal for runs that differ in their layouts, lengths and rounding alone.
    pub computes: String,
    /// The seed, as text: there are greater ones than many formats of numbers take.
    pub seed: String,
    /// All dims.
    pub dims: SortedMap<String, usize>,
    /// All consts.
    pub consts: SortedMap<String, f64>,
    /// `--dim`.
    pub dim: SortedMap<String, usize>,
    /// `--set`.
    pub set: SortedMap<String, f64>,
    /// Metrics with the better direction, more (`max`) or less (`min`), as the model says.
    pub better: SortedMap<String, String>,
    /// Its planned length; none if it was not given.
    pub length: Option<RunLength>,
    /// Examples to train on.
    pub examples: usize,
    /// Cores, where `--cores` gave them.
    pub cores: Option<usize>,
    /// The costs of a step by the Plan; none for a run of an earlier version.
    pub costs: Option<RunCosts>,
    /// Steps done.
    pub steps: u64,
    /// Wall time of the steps, but for the first of each process, which prepares the others.
    pub step_times: Option<StepTimes>,
    /// Wall time of all its steps.
    pub step_seconds: f64,
    /// The epochs that have ended.
    pub epochs: Vec<EpochPoint>,
    /// The steps after the last of these.
    pub rest: Option<EpochPoint>,
    /// The evaluations, in order.
    pub evaluations: Vec<EvaluationPoint>,
    /// Bytes that a device sends in collectives in a step.
    pub bytes_communicated: Option<u64>,
    /// The most resident memory of its first process; none before the first step.
    pub memory_bytes: Option<u64>,
}

impl RunSummary {
    /// Reads the folder of a run.
    ///
    /// # Errors
    ///
    /// E0511 where a file of it is missing or malformed.
    pub fn read(run: &Path) -> Checked<RunSummary> {
        Ok(Self::with(run, &HeldLocks::now(), &|_| ())?.0)
    }

    /// The summary, and what is kept of its curves: they are large, and the summary is made of them anyway.
    fn with<T>(run: &Path, held: &HeldLocks, keep: &impl Fn(&RunCurves) -> T) -> Checked<(RunSummary, T)> {
        let settings = RunSettings::read(run)?;
        // A run in progress is at worst seen in an earlier state.
        let running = lock_of(run).is_some_and(|lock| held.has(&lock));
        let curves = RunCurves::read(run)?;
        let kept = keep(&curves);
        let ending = ending(run)?;
        let state = match () {
            () if settings.imported.is_some() => RunState::Imported,
            () if running => RunState::Running,
            () if curves.done.is_some() => RunState::Finished,
            () if ending.error.is_some() => RunState::Failed,
            () => RunState::Interrupted,
        };
        let error = ending.error.clone().filter(|_| state == RunState::Failed);
        let summary = RunSummary {
            path: run.into(),
            state,
            error,
            computes: computed(run, &settings),
            costs: read_costs(run)?,
            steps: curves.steps.last().map_or(0, |s| s.step),
            step_times: step_times(&curves, &ending),
            step_seconds: curves.steps.iter().map(|s| s.seconds).sum(),
            memory_bytes: Some(curves.memory_bytes).filter(|m| *m > 0),
            bytes_communicated: curves.bytes_communicated,
            epochs: curves.epochs,
            rest: curves.rest,
            evaluations: curves.evaluations,
            length: match (settings.steps, settings.epochs) {
                (Some(steps), _) => Some(RunLength::Steps(steps)),
                (None, epochs) => epochs.map(RunLength::Epochs),
            },
            model: settings.model,
            file: settings.file,
            preset: settings.preset,
            precision: settings.precision,
            mesh: settings.mesh,
            layout_file: settings.layout_file,
            rules: settings.layout,
            seed: settings.seed,
            dims: settings.dims,
            consts: settings.consts,
            dim: settings.dim,
            set: settings.set,
            better: settings.better,
            examples: settings.examples,
            cores: settings.cores,
        };
        Ok((summary, kept))
    }

    /// The last epoch, or the finished part of it.
    pub fn last(&self) -> Option<&EpochPoint> {
        self.rest.as_ref().or(self.epochs.last())
    }

    /// The splits that were evaluated, by name.
    pub fn evaluated_sets(&self) -> SortedSet<&str> {
        self.evaluations.iter().map(|e| &*e.set).collect()
    }

    /// The last evaluation on a split.
    pub fn evaluated_on(&self, set: &str) -> Option<&EvaluationPoint> {
        self.evaluations.iter().rev().find(|e| e.set == set)
    }

    /// The epoch whose evaluation has the least loss, the first of equal ones; by the losses of its steps where nothing is
    /// evaluated.
    pub fn best_epoch(&self) -> Option<u32> {
        if let Some((epoch, _)) = self.best_evaluation() {
            return Some(epoch);
        }
        let evaluated = !self.evaluations.is_empty() || self.epochs.iter().any(|e| e.evaluation.is_some());
        let steps = self.epochs.iter().filter(|_| !evaluated);
        least(steps.map(|e| (e, e.train_loss))).map(|e| e.epoch)
    }

    /// The evaluation with the least loss, the first of equal ones, and the epoch in which it was.
    pub fn best_evaluation(&self) -> Option<(u32, &Evaluation)> {
        let epoch = |step: u64| self.epochs.iter().find(|e| e.step >= step).map(|e| e.epoch);
        let of_steps = self.during().filter_map(|e| Some((epoch(e.step)?, &e.evaluation)));
        let of_epochs = self.epochs.iter().filter_map(|e| Some((e.epoch, e.evaluation.as_ref()?)));
        // Those of epochs are among those of steps, in logs that have them.
        least(of_steps.chain(of_epochs).map(|found| (found, found.1.loss)))
    }

    /// The last evaluation after a number of steps; none if there was none.
    pub fn evaluated_at(&self, step: u64) -> Option<&EvaluationPoint> {
        self.during().take_while(|e| e.step <= step).last()
    }

    /// The evaluations on the split that training goes by: at the end, another may be evaluated too.
    fn during(&self) -> impl Iterator<Item = &EvaluationPoint> {
        let set = self.evaluations.first().map(|e| &e.set);
        self.evaluations.iter().filter(move |e| Some(&e.set) == set)
    }

    /// Examples a second: of a batch, in the middle one of the steps.
    pub fn examples_per_second(&self) -> Option<f64> {
        Some(self.costs.as_ref()?.batch as f64 / self.step_times?.median)
    }
}

/// The item with the least value, the first of equal ones; NaN does not count.
fn least<T>(all: impl Iterator<Item = (T, f64)>) -> Option<T> {
    let mut best: Option<(T, f64)> = None;
    for (one, value) in all.filter(|(_, v)| !v.is_nan()) {
        if best.as_ref().is_none_or(|(_, least)| value < *least) {
            best = Some((one, value));
        }
    }
    best.map(|b| b.0)
}

/// The first steps of processes prepare kernels and memory: they tell nothing of the others.
fn step_times(curves: &RunCurves, ending: &Ending) -> Option<StepTimes> {
    let first = |step: u64| ending.starts.contains(&(step - 1));
    let mut seconds: Vec<f64> =
        curves.steps.iter().filter(|s| s.step > 0 && !first(s.step)).map(|s| s.seconds).collect();
    if seconds.is_empty() {
        seconds = curves.steps.iter().map(|s| s.seconds).collect();
    }
    seconds.sort_by(f64::total_cmp);
    // The nearest rank: a time that a step took.
    let at = |share: f64| seconds.get(((seconds.len() as f64 * share).ceil() as usize).max(1) - 1).copied();
    Some(StepTimes { least: *seconds.first()?, median: at(0.5)?, p90: at(0.9)? })
}

/// Reads runs, several at once, each as [`RunSummary::read`] does.
pub fn read_all(runs: &[PathBuf]) -> Vec<Checked<RunSummary>> {
    read_all_with(runs, |_| ()).into_iter().map(|run| Ok(run?.0)).collect()
}

/// Reads runs, several at once, each with what `keep` makes of its curves. At no time are there more curves than cores.
pub fn read_all_with<T: Send>(
    runs: &[PathBuf],
    keep: impl Fn(&RunCurves) -> T + Sync,
) -> Vec<Checked<(RunSummary, T)>> {
    let held = HeldLocks::now();
    runs.par_iter().map(|run| RunSummary::with(run, &held, &keep)).collect()
}

/// Whether a process is at work in the run of a folder; false where there is none.
pub fn at_work(run: &Path) -> bool {
    lock_of(run).is_some_and(|lock| HeldLocks::now().has(&lock))
}

/// The same of several runs, as they are at one moment.
pub fn at_work_in(runs: &[PathBuf]) -> Vec<bool> {
    let held = HeldLocks::now();
    runs.iter().map(|run| lock_of(run).is_some_and(|lock| held.has(&lock))).collect()
}

/// The last step of the run in a folder, as it was asked for; none without a run, or if nobody said.
pub fn planned_steps(run: &Path) -> Option<u64> {
    let settings = RunSettings::read(run).ok()?;
    let batch = read_costs(run).ok()??.batch;
    let epoch = settings.examples as u64 / batch.max(1) as u64;
    settings.steps.or(settings.epochs.map(|n| u64::from(n) * epoch))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::runs_below;
    use std::fs::write;

    const SETTINGS: &str = "model = \"m\"\nfile = \"m.mw\"\nseed = \"3\"\nprecision = \"f32\"\nmesh = \"r=2\"\nlayout = [\"batch -> r\"]\n\
        cores = 1\nepochs = 2\neval = true\nexamples = 35\nfingerprint = \"f\"\n[set]\nlr = 0.5\n[dims]\nbatch = 10\n[consts]\nlr = 0.5\n";

    fn step(n: u64, seconds: f64) -> String {
        format!("{{\"event\":\"step\",\"step\":{n},\"loss\":1.0,\"seconds\":{seconds}}}\n")
    }

    #[test]
    fn a_folder_says_what_its_run_is_and_how_it_stands() {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path();
        let at = |name: &str| run.join(name);
        assert_eq!(RunSummary::read(run).unwrap_err().code.id, "E0511");
        write(at("run.toml"), SETTINGS).unwrap();
        let read = || RunSummary::read(run).unwrap();
        let new = read();
        assert_eq!(
            (new.state, new.steps, new.step_times, new.length),
            (RunState::Interrupted, 0, None, Some(RunLength::Epochs(2)))
        );
        assert_eq!((new.seed.as_str(), new.set["lr"], new.dims["batch"], new.costs), ("3", 0.5, 10, None));

        // Two processes: the first step of each does not count.
        write(at("history.jsonl"), "{\"event\":\"start\",\"step\":0}\n{\"event\":\"resume\",\"step\":3}\n")
            .unwrap();
        let seconds = [9.0, 0.3, 0.2, 9.0, 0.1, 0.5];
        let log: String = seconds.iter().zip(1..).map(|(s, n)| step(n, *s)).collect();
        write(at("metrics.jsonl"), &log).unwrap();
        let costs = RunCosts { devices: 2, batch: 10, ..RunCosts::default() };
        write(at("costs.json"), serde_json::to_string(&costs).unwrap()).unwrap();
        let going = read();
        assert_eq!(going.step_times, Some(StepTimes { least: 0.1, median: 0.2, p90: 0.5 }));
        assert_eq!((going.examples_per_second(), going.steps, planned_steps(run)), (Some(50.0), 6, Some(6)));
        assert_eq!(going.costs, Some(costs));

        // A process at work is seen, and disturbs nobody.
        let lock = std::fs::File::create(at("run.lock")).unwrap();
        lock.lock().unwrap();
        assert!(read().state == RunState::Running && at_work(run));
        drop(lock);
        assert!(!at_work(run));
        let failed = "{\"event\":\"start\",\"step\":0}\n{\"event\":\"failed\",\"error\":\"E0517: why\"}\n";
        write(at("history.jsonl"), failed).unwrap();
        assert_eq!((read().state, read().error.as_deref()), (RunState::Failed, Some("E0517: why")));
        write(at("metrics.jsonl"), log + "{\"event\":\"done\",\"steps\":6,\"epochs\":2,\"seconds\":1}\n")
            .unwrap();
        assert_eq!((read().state, read().error), (RunState::Finished, None));
        write(at("costs.json"), "{").unwrap();
        assert!(RunSummary::read(run).unwrap_err().message.contains("costs.json"));
    }

    #[test]
    fn the_best_epoch_is_the_first_of_the_least_loss() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path().join("run.toml"), SETTINGS).unwrap();
        let epoch = |n: u32, loss: &str| {
            format!(
                "{{\"event\":\"epoch\",\"epoch\":{n},\"step\":{n},\"train_loss\":1,\"eval_loss\":{loss},\"seconds\":1}}\n"
            )
        };
        let log = epoch(1, "0.5") + &epoch(2, "0.25") + &epoch(3, "null") + &epoch(4, "0.25");
        let best = |log: &str| {
            write(folder.path().join("metrics.jsonl"), log).unwrap();
            RunSummary::read(folder.path()).unwrap().best_epoch()
        };
        assert_eq!(best(&log), Some(2));
        // With `--eval-every`, an epoch that is not evaluated does not compete with the losses of its steps.
        let plain = |n: u32, step: u64, loss: f64| {
            format!(
                "{{\"event\":\"epoch\",\"epoch\":{n},\"step\":{step},\"train_loss\":{loss},\"seconds\":1}}\n"
            )
        };
        let evaluated = |step: u64, set: &str, loss: f64| {
            format!(
                "{{\"event\":\"evaluation\",\"step\":{step},\"set\":\"{set}\",\"eval_loss\":{loss},\"seconds\":1}}\n"
            )
        };
        assert_eq!(best(&(plain(1, 10, 0.3) + &plain(2, 20, 0.1))), Some(2));
        let some = evaluated(7, "validation", 0.9)
            + &plain(1, 10, 0.01)
            + &evaluated(14, "validation", 0.7)
            + &plain(2, 20, 0.01)
            + &evaluated(21, "validation", 0.8)
            + &plain(3, 30, 0.001)
            + &evaluated(30, "test", 0.1);
        assert_eq!(best(&some), Some(2));
        let s = RunSummary::read(folder.path()).unwrap();
        assert_eq!(s.best_evaluation().map(|b| b.1.loss), Some(0.7));
        let at = |step: u64| s.evaluated_at(step).map(|e| e.step);
        assert_eq!((at(6), at(10), at(20), at(30)), (None, Some(7), Some(14), Some(21)));
    }

    /// The reads of a report of a large sweep: with LONG set, 500 runs of 10,000 steps.
    #[test]
    fn many_long_runs_are_read_in_one_go() {
        let (runs, steps) = if std::env::var_os("LONG").is_some() { (500, 10_000) } else { (8, 1000) };
        let folder = tempfile::tempdir().unwrap();
        let line = |n: u64| {
            format!(
                "{{\"event\":\"step\",\"step\":{n},\"loss\":0.07281903922557831,\"train_accuracy\":0.9700000286102295,\"learning_rate\":0.1,\"seconds\":0.004186608,\"examples_per_second\":23885.685022337893,\"model_flops\":327270400,\"mfu\":0.8391890271766409,\"peak_flops\":93150380169.22397,\"bytes_communicated\":0,\"waiting\":0.0,\"memory_bytes\":122212352,\"time\":\"2026-11-23T06:46:12.121Z\"}}\n"
            )
        };
        let log: String = (1..=steps).map(line).collect();
        let first = folder.path().join("0");
        for n in 0..runs {
            let run = folder.path().join(n.to_string());
            std::fs::create_dir(&run).unwrap();
            write(run.join("run.toml"), SETTINGS).unwrap();
            // One log under many names: the disk need not hold gigabytes.
            match n {
                0 => write(run.join("metrics.jsonl"), &log).unwrap(),
                _ => std::fs::hard_link(first.join("metrics.jsonl"), run.join("metrics.jsonl")).unwrap(),
            }
        }
        let begin = std::time::Instant::now();
        let all = read_all(&runs_below(folder.path()).unwrap().found);
        let took = begin.elapsed();
        assert!(all.len() == runs && all.iter().all(|s| s.as_ref().unwrap().steps == steps));
        // A generous limit, for busy machines: 20 MB/s.
        assert!(
            took.as_secs_f64() < 1.0 + (log.len() * runs) as f64 / 20e6,
            "{runs} runs of {steps} steps: {took:?}"
        );
    }
}
