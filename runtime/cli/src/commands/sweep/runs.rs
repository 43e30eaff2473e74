//! The runs of a sweep: which are to do, and how they come to their ends.

use super::folder::{self, SweepDir, log_of};
use super::report;
use crate::args::{Cli, Command, SearchChoice, TrainArgs};
use crate::commands::command_end::CommandEnd;
use crate::output::console::Console;
use crate::output::text::{counted, short_number};
use crate::refusal::wrong;
use crate::stop::Stop;
use crate::sweep::check::Verdict;
use crate::sweep::child::{ProcessEnd, RunTask, Signal};
use crate::sweep::combination::Combination;
use crate::sweep::halving::{Rung, best, reached, rungs, trials};
use crate::sweep::live_lines::LiveView;
use crate::sweep::results::{Problem, Problems, ReadOnce, SweepRow};
use crate::sweep::runner::run_all;
use crate::sweep::spec::SweepSpec;
use crate::sweep::train_command::{self, TrainWords};
use clap::Parser;
use meshwright_files::Checked;
use meshwright_files::text::listed;
use meshwright_runs::policies::Monitor;
use meshwright_runs::{RunLength, RunState, RunSummary, planned_steps};
use meshwright_syntax::ast::Better;
use meshwright_train::monitor_of;
use meshwright_train::{Loaded, Project, ProjectOptions};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Of how many trials one goes on, where nothing is said.
const REDUCTION: u32 = 3;

/// A sweep that runs.
pub(super) struct Sweep<'a> {
    pub(super) spec: SweepSpec,
    pub(super) dir: SweepDir,
    pub(super) all: Vec<Combination>,
    pub(super) names: Vec<String>,
    pub(super) verdicts: Vec<Verdict>,
    pub(super) problems: Problems,
    /// What was read of its runs.
    pub(super) read: ReadOnce,
    /// Whether its runs compute on GPUs.
    pub(super) cuda: bool,
    pub(super) stop: &'a AtomicBool,
    /// Wall time of all processes.
    pub(super) own: f64,
}

impl Sweep<'_> {
    /// Runs what is not done.
    pub(super) fn runs(&mut self, console: &mut Console) -> Result<(), CommandEnd> {
        let full = self.spec.length();
        let every: Vec<usize> =
            (0..self.all.len()).filter(|i| matches!(self.verdicts[*i], Verdict::Runs(_))).collect();
        if self.spec.timing {
            folder::note_busy(console);
        }
        if self.spec.search != SearchChoice::Halving {
            return self.run(&every, full, console);
        }
        let given = given(&self.spec, &train_args(&self.spec, &self.all[0], self.dir.path())?);
        let by = objective(&self.spec, &given)?;
        let way = if by.better == Better::More { "greatest" } else { "least" };
        console.note(&format!("halving goes on with the {way} `{}` ({by})", by.metric));
        let trials = trials(&self.all);
        let of_all = trials.len();
        let mut left: Vec<Vec<usize>> =
            trials.into_iter().filter(|t| t.iter().all(|i| every.contains(i))).collect();
        let parts = rungs(full, left.len(), self.spec.reduction.unwrap_or(REDUCTION));
        for (k, Rung { length, .. }) in parts.iter().enumerate() {
            let these: Vec<usize> = left.iter().flatten().copied().collect();
            self.run(&these, *length, console)?;
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            let Some(next) = parts.get(k + 1) else {
                self.winner(&left, (*length, of_all), &by, console)?;
                break;
            };
            left = self.chosen(left, (*length, next.trials), &by, console)?;
        }
        Ok(())
    }

    /// What is known of its runs now.
    pub(super) fn rows(&mut self) -> Checked<Vec<SweepRow>> {
        self.read.rows(self.dir.path(), &self.all, &self.problems)
    }

    /// What the runs of some trials had reached at the end of a rung.
    fn values(
        &mut self,
        of: &[Vec<usize>],
        length: RunLength,
        metric: &str,
    ) -> Checked<Vec<Vec<Option<f64>>>> {
        let rows = self.rows()?;
        let value = |i: &usize| reached(rows[*i].summary.as_ref()?, length, metric);
        Ok(of.iter().map(|t| t.iter().map(value).collect()).collect())
    }

    /// Names the best of the trials that went all the way.
    fn winner(
        &mut self,
        left: &[Vec<usize>],
        (length, of_all): (RunLength, usize),
        by: &Monitor,
        console: &mut Console,
    ) -> Result<(), CommandEnd> {
        let values = self.values(left, length, &by.metric)?;
        let Some(best) = best(&values, 1, by.better == Better::More).first().copied() else { return Ok(()) };
        let reached: Vec<String> = values[best].iter().flatten().map(|v| short_number(*v)).collect();
        let why = format!(
            "the best of {} by {}: {} after {}",
            counted(of_all as u64, "trial"),
            by.metric,
            reached.join(", "),
            in_words(length)
        );
        let runs: Vec<&str> = left[best].iter().map(|i| self.names[*i].as_str()).collect();
        let chosen = runs.iter().map(|name| (*name, Some(Problem::Chosen(why.clone()))));
        self.problems.note_all(self.dir.path(), chosen)?;
        console.note(&format!("{} is {why}", listed(&runs)));
        Ok(())
    }

    /// The trials that go on after a rung.
    fn chosen(
        &mut self,
        left: Vec<Vec<usize>>,
        (length, how_many): (RunLength, usize),
        by: &Monitor,
        console: &mut Console,
    ) -> Result<Vec<Vec<usize>>, CommandEnd> {
        let values = self.values(&left, length, &by.metric)?;
        let go_on = best(&values, how_many, by.better == Better::More);
        if go_on.is_empty() {
            let d = wrong(format!(
                "no trial has a `{}` after {}: halving cannot choose",
                by.metric,
                in_words(length)
            ));
            return Err(Box::new(
                d.help("evaluate the runs: leave `--no-eval` out; `--table` shows how each ended"),
            )
            .into());
        }
        let why = format!("not among the best {how_many} after {}", in_words(length));
        let out = |t: &usize| !go_on.contains(t) && values[*t].iter().all(Option::is_some);
        let stopped = (0..left.len()).filter(out).flat_map(|t| &left[t]);
        let stopped = stopped.map(|i| (self.names[*i].as_str(), Some(Problem::Stopped(why.clone()))));
        self.problems.note_all(self.dir.path(), stopped)?;
        console.note(&format!(
            "{} of {} go on after {}",
            go_on.len(),
            counted(left.len() as u64, "trial"),
            in_words(length)
        ));
        Ok(left.into_iter().enumerate().filter(|(t, _)| go_on.contains(t)).map(|(_, trial)| trial).collect())
    }

    /// Runs some combinations to a length, as far as they are not there yet.
    fn run(&mut self, these: &[usize], length: RunLength, console: &mut Console) -> Result<(), CommandEnd> {
        let rows = self.rows()?;
        let done = |i: &usize| rows[*i].summary.as_ref().is_some_and(|s| is_done(s, length));
        let (done, todo): (Vec<usize>, Vec<usize>) = these.iter().copied().partition(done);
        self.problems.note_all(self.dir.path(), done.iter().map(|i| (self.names[*i].as_str(), None)))?;
        if todo.is_empty() {
            return Ok(());
        }
        let jobs = usize::from(self.spec.jobs.unwrap_or(1)).min(todo.len());
        let tasks = todo.iter().map(|i| self.task(*i, length, jobs)).collect::<Checked<Vec<RunTask>>>()?;
        tasks.iter().for_each(|t| self.read.goes_on(&t.run));
        let mut view = LiveView::new(console, these.len(), done.len());
        let (mut failed, mut totals) = (None, vec![None; tasks.len()]);
        run_all(&tasks, jobs, self.stop, &mut |k, signal| {
            let (name, folder) = (&self.names[todo[k]], &tasks[k].run);
            if totals[k].is_none() && matches!(signal, Signal::Step { .. }) {
                totals[k] = planned_steps(folder);
            }
            view.see(name, &signal, totals[k], &|| report::in_a_line(folder));
            let Signal::Ends { how, seconds } = signal else { return };
            self.own += seconds;
            let problem = match how {
                ProcessEnd::Failed(why) => Some(Problem::Failed(why)),
                ProcessEnd::Well | ProcessEnd::Stopped => None,
            };
            if let Err(d) = self.problems.note(self.dir.path(), name, problem) {
                // A sweep that cannot write must not go on as if it could.
                self.stop.store(true, Ordering::Relaxed);
                failed.get_or_insert(d);
            }
        });
        view.finish();
        failed.map_or(Ok(()), |d| Err(d.into()))
    }

    /// The process of a combination.
    fn task(&self, i: usize, length: RunLength, jobs: usize) -> Checked<RunTask> {
        let (run, name) = (self.dir.path().join(&self.names[i]), &self.names[i]);
        let (metrics, bytes) = match &self.verdicts[i] {
            Verdict::Runs(runnable) => (&runnable.metrics[..], runnable.bytes),
            Verdict::Rejected(_) => (&[][..], 0),
        };
        let cores = self.spec.cores.map_or_else(folder::cores, usize::from);
        // Each has its share, at least one.
        let cores = Some((cores / jobs).max(1));
        let mut words =
            train_command::train(&self.spec, &self.all[i], &TrainWords { run: &run, length, metrics, cores });
        words.push("--format=json".into());
        Ok(RunTask { words, run, logs: self.dir.logs()?, log: log_of(name), bytes })
    }
}

/// Whether a run has got there, and as far as it is to go.
pub(super) fn is_done(s: &RunSummary, length: RunLength) -> bool {
    let ended = s.state == RunState::Finished;
    match (length, s.length) {
        (RunLength::Epochs(n), Some(RunLength::Epochs(to))) => {
            (ended && to == n) || (to > n && s.epochs.last().is_some_and(|e| e.epoch >= n))
        }
        (RunLength::Steps(n), Some(RunLength::Steps(to))) => (ended && to == n) || (to > n && s.steps > n),
        _ => false,
    }
}

fn in_words(length: RunLength) -> String {
    match length {
        RunLength::Epochs(n) => counted(u64::from(n), "epoch"),
        RunLength::Steps(n) => counted(n, "step"),
    }
}

/// What all runs have alike.
pub(super) fn given(spec: &SweepSpec, train: &TrainArgs) -> ProjectOptions {
    let options = train.options();
    ProjectOptions { model: spec.model.clone(), dims: Vec::new(), sets: Vec::new(), ..options }
}

/// The command of a run, read as its process will read it: a mistake in it is found here.
pub(super) fn train_args(spec: &SweepSpec, c: &Combination, run: &Path) -> Result<TrainArgs, CommandEnd> {
    // Each run is given its cores: nobody else may.
    let given = TrainWords { run, length: spec.length(), metrics: &[], cores: Some(1) };
    let words = train_command::train(spec, c, &given);
    let words = ["meshwright".to_string()].into_iter().chain(words).chain(["--format=json".into()]);
    match Cli::try_parse_from(words) {
        Ok(Cli { command: Command::Train(train), .. }) => {
            train_command::only_taken(spec, c, &given)?;
            Ok(train)
        }
        Ok(_) => Err(Stop::Internal(Some("the command of a run is no training".into())).into()),
        Err(e) => {
            let text = e.to_string();
            let first = text.lines().next().unwrap_or_default();
            Err(Stop::Usage(format!(
                "`meshwright train` does not take this: {}",
                first.trim_start_matches("error: ")
            ))
            .into())
        }
    }
}

/// What halving looks at, and which way is better.
pub(super) fn objective(spec: &SweepSpec, given: &ProjectOptions) -> Result<Monitor, CommandEnd> {
    let Some(text) = spec.objective.as_deref() else { return Ok(Monitor::default()) };
    let Loaded { project, sources, .. } = Project::load(given);
    // What is wrong with the model is said of each combination.
    let Some(project) = project else { return Ok(Monitor::default()) };
    monitor_of(&project, text).map_err(|d| CommandEnd::Wrong(d, sources))
}
