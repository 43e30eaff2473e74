//! `sweep`: many runs of one model, and their table.

mod array;
mod folder;
mod report;

use crate::args::{Cli, Command, DeviceChoice, SearchChoice, SweepArgs, TrainArgs};
use crate::console::Console;
use crate::signals;
use crate::stop::Stop;
use crate::sweep::check::{Verdict, check};
use crate::sweep::grid::{Combination, combinations};
use crate::sweep::halving::{Rung, best, reached, rungs, trials};
use crate::sweep::live::LiveView;
use crate::sweep::results::{Problem, Problems, Row, rows};
use crate::sweep::runner::{ProcessEnd, Signal, Task, run_all};
use crate::sweep::spec::{FILE, SweepSpec, wrong};
use crate::sweep::words;
use crate::text::counted;
use clap::Parser;
use folder::SweepDir;
use meshwright_diag::{Diagnostic, Sources};
use meshwright_train::runs::{RunLength, RunState, RunSummary, planned_steps};
use meshwright_train::{Checked, Monitor, Project, ProjectOptions};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// Of how many trials one goes on, where nothing is said.
const REDUCTION: u32 = 3;

/// Runs the command.
pub(crate) fn run(args: &SweepArgs, console: &mut Console) -> Result<(), Stop> {
    report::fits(&args.report, console)?;
    let (spec, dir) = subject(args).map_err(|e| e.said(console))?;
    let spec = spec.overridden(args);
    if args.report.table {
        let printed = of_folder(&spec, &dir).and_then(|rows| report::print(&rows, &args.report, console));
        return printed.map_err(|e| e.said(console));
    }
    swept(args, spec, dir, console)
}

/// Why a sweep ends before its runs.
enum Ends {
    /// Something is wrong, which is not said yet.
    Wrong(Box<Diagnostic>),
    /// All is said.
    Said(Stop),
}

impl Ends {
    fn said(self, console: &mut Console) -> Stop {
        match self {
            Ends::Said(stop) => stop,
            Ends::Wrong(d) => {
                console.diagnostics(&[*d], &Sources::new());
                Stop::Diagnosed
            }
        }
    }
}

impl From<Box<Diagnostic>> for Ends {
    fn from(d: Box<Diagnostic>) -> Self {
        Ends::Wrong(d)
    }
}

impl From<Stop> for Ends {
    fn from(stop: Stop) -> Self {
        Ends::Said(stop)
    }
}

/// What the command is about: the sweep, and its folder.
fn subject(args: &SweepArgs) -> Result<(SweepSpec, PathBuf), Ends> {
    let subject = args.subject.as_deref().unwrap_or_default();
    let from_file = match &args.file {
        Some(file) => Some(file.clone()),
        None if Path::new(subject).is_dir() => Some(Path::new(subject).join(FILE)),
        None => Some(PathBuf::from(subject)).filter(|f| f.extension().is_some_and(|e| e == "toml")),
    };
    let Some(file) = from_file else {
        if args.report.table && args.runs.run.is_none() {
            let d = wrong("`--table` needs the folder of a sweep".into());
            return Err(Box::new(d.help("name it: `meshwright sweep DIR --table`")).into());
        }
        let spec = SweepSpec::of(subject, args)?;
        let dir = spec.clone().overridden(args).dir();
        return Ok((spec, dir));
    };
    if !args.train.is_empty() || SweepSpec::of("", args)? != SweepSpec::default() {
        let at = file.display();
        return Err(
            Stop::Usage(format!("`{at}` says what varies and how runs are made: change it there")).into()
        );
    }
    let of_folder = args.file.is_none() && Path::new(subject).is_dir();
    if of_folder && !file.is_file() {
        let d = wrong(format!("`{subject}` holds no sweep: there is no `{FILE}`"));
        return Err(Box::new(d.help("name a model to start one: `meshwright sweep MODEL --run DIR`")).into());
    }
    let mut spec = SweepSpec::read(&file)?;
    if of_folder {
        if args.runs.run.is_some() {
            return Err(
                Stop::Usage(format!("`{subject}` is the folder of the sweep: leave `--run` out")).into()
            );
        }
        let dir = folder::absolute(Path::new(subject))?;
        spec.run = Some(dir.clone());
        return Ok((spec, dir));
    }
    let dir = spec.clone().overridden(args).dir();
    Ok((spec, dir))
}

/// The runs of a sweep that is there.
fn of_folder(spec: &SweepSpec, dir: &Path) -> Result<Vec<Row>, Ends> {
    if !dir.is_dir() {
        let d = wrong(format!("there is no sweep in `{}`", dir.display()));
        return Err(Box::new(d.help("leave `--table` out to run it")).into());
    }
    Ok(rows(dir, &combinations(spec)?, &Problems::read(dir)?)?)
}

/// A sweep that runs.
struct Sweep<'a> {
    spec: SweepSpec,
    dir: SweepDir,
    all: Vec<Combination>,
    names: Vec<String>,
    verdicts: Vec<Verdict>,
    problems: Problems,
    stop: &'a AtomicBool,
    /// Wall time of all processes.
    own: f64,
}

fn swept(args: &SweepArgs, mut spec: SweepSpec, dir: PathBuf, console: &mut Console) -> Result<(), Stop> {
    let prepared = prepare(args, &mut spec, dir, console);
    let mut sweep = prepared.map_err(|e| e.said(console))?;
    let begin = std::time::Instant::now();
    if args.runs.launch.is_some() {
        let written = array::launch(&mut sweep, args, console);
        return written.map_err(|e| e.said(console));
    }
    let ended = sweep.runs(console).and_then(|()| {
        let rows = rows(sweep.dir.path(), &sweep.all, &sweep.problems)?;
        report::write_files(&rows, sweep.dir.path(), args.report.sort.as_deref())?;
        Ok(rows)
    });
    let rows = ended.map_err(|e| e.said(console))?;
    report::print(&rows, &args.report, console).map_err(|e| e.said(console))?;
    console.flush()?;
    report::end(&rows, (begin.elapsed().as_secs_f64(), sweep.own), sweep.dir.path(), sweep.stop, console)
}

/// What all runs have alike.
fn given(spec: &SweepSpec, train: &TrainArgs) -> ProjectOptions {
    let options = train.options();
    ProjectOptions { model: spec.model.clone(), dims: Vec::new(), sets: Vec::new(), ..options }
}

/// The command of a run, read as its process will read it: a mistake in it is found here.
fn train_args(spec: &SweepSpec, c: &Combination, run: &Path) -> Result<TrainArgs, Stop> {
    let words = words::train(spec, c, run, spec.length(), &[]);
    let words = ["meshwright".to_string()].into_iter().chain(words).chain(["--format=json".into()]);
    match Cli::try_parse_from(words) {
        Ok(Cli { command: Command::Train(train), .. }) => Ok(train),
        Ok(_) => Err(Stop::Internal(Some("the command of a run is no training".into()))),
        Err(e) => {
            let text = e.to_string();
            let first = text.lines().next().unwrap_or_default();
            Err(Stop::Usage(format!(
                "`meshwright train` does not take this: {}",
                first.trim_start_matches("error: ")
            )))
        }
    }
}

/// All that can be known before one of them runs: nothing is written until it is.
fn prepare<'a>(
    args: &SweepArgs,
    spec: &mut SweepSpec,
    dir: PathBuf,
    console: &mut Console,
) -> Result<Sweep<'a>, Ends> {
    let from_folder = args.subject.as_deref().is_some_and(|s| Path::new(s).is_dir());
    match spec.folder.as_deref().filter(|_| from_folder) {
        // Its runs go on where they began.
        Some(folder) => folder::enter(folder)?,
        None => spec.folder = Some(folder::current()?),
    }
    let all = combinations(spec)?;
    let names: Vec<String> = all.iter().map(Combination::name).collect();
    let Some((first, name)) = all.first().zip(names.first()) else {
        return Err(Box::new(wrong("there is no combination to run".into())).into());
    };
    let train = train_args(spec, first, &dir.join(name))?;
    if spec.jobs.is_some_and(|n| n > 1)
        && train.data.devices.device == Some(DeviceChoice::Cuda)
        && args.runs.launch.is_none()
    {
        // All would take the first GPUs.
        return Err(Stop::Usage("on GPUs runs go one after the other: leave `--jobs` out".into()).into());
    }
    let given = given(spec, &train);
    objective(spec, &given)?;
    let verdicts = check(&all, &given);
    if let Some(by) = &args.report.sort {
        // A column that is not there is better known before the runs than after them.
        report::sortable(&rows(&dir, &all, &Problems::default())?, by)?;
    }
    let rejected = reject(&names, &verdicts, console);
    if rejected == all.len() {
        return Err(Stop::Diagnosed.into());
    }
    let dir = SweepDir::open(&dir, spec)?;
    let mut problems = Problems::read(dir.path())?;
    for (name, verdict) in names.iter().zip(&verdicts) {
        if let Verdict::Rejected(why) = verdict {
            problems.note(dir.path(), name, Some(Problem::Skipped(why.reason())))?;
        }
    }
    let stop = signals::stop_of(&mut |text| console.note(text));
    let spec = spec.clone();
    Ok(Sweep { spec, dir, all, names, verdicts, problems, stop, own: 0.0 })
}

/// What halving looks at, and whether more of it is better.
fn objective(spec: &SweepSpec, given: &ProjectOptions) -> Checked<(String, bool)> {
    let Some(text) = spec.objective.as_deref() else { return Ok(("loss".into(), false)) };
    let Some(project) = Project::load(given).project else { return Ok((text.into(), false)) };
    Monitor::of(&project, text).map(|m| (m.metric, m.greater))
}

/// Reports the combinations that do not compile, equal errors once; how many there are.
fn reject(names: &[String], verdicts: &[Verdict], console: &mut Console) -> usize {
    let mut reported: Vec<(String, &str, Vec<&str>)> = Vec::new();
    for (name, verdict) in names.iter().zip(verdicts) {
        let Verdict::Rejected(why) = verdict else { continue };
        let reason = why.found.iter().map(|d| format!("{}: {}\n", d.code.id, d.message)).collect::<String>();
        if let Some(known) = reported.iter_mut().find(|r| r.0 == reason) {
            known.2.push(name);
            continue;
        }
        console.note(&format!("`{name}` is skipped, since it does not compile:"));
        console.diagnostics(&why.found, &why.sources);
        reported.push((reason, name, Vec::new()));
    }
    for (_, first, others) in &reported {
        if !others.is_empty() {
            console.note(&format!("skipped for the same reason as `{first}`: {}", others.join(", ")));
        }
    }
    reported.iter().map(|r| 1 + r.2.len()).sum()
}

impl Sweep<'_> {
    /// Runs what is not done.
    fn runs(&mut self, console: &mut Console) -> Result<(), Ends> {
        let full = self.spec.length();
        let every: Vec<usize> =
            (0..self.all.len()).filter(|i| matches!(self.verdicts[*i], Verdict::Runs(_))).collect();
        self.same_runs(&every)?;
        if self.spec.timing {
            folder::note_busy(console);
        }
        if self.spec.search != SearchChoice::Halving {
            return self.run(&every, full, console);
        }
        let given = given(&self.spec, &train_args(&self.spec, &self.all[0], self.dir.path())?);
        let (metric, greater) = objective(&self.spec, &given)?;
        let of_all = trials(&self.all);
        let mut left: Vec<Vec<usize>> =
            of_all.into_iter().filter(|t| t.iter().all(|i| every.contains(i))).collect();
        let parts = rungs(full, left.len(), self.spec.reduction.unwrap_or(REDUCTION));
        for (k, Rung { length, .. }) in parts.iter().enumerate() {
            let these: Vec<usize> = left.iter().flatten().copied().collect();
            self.run(&these, *length, console)?;
            let Some(next) = parts.get(k + 1) else { break };
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            left = self.chosen(left, (*length, next.trials), (&metric, greater), console)?;
        }
        Ok(())
    }

    /// The trials that go on after a rung.
    fn chosen(
        &mut self,
        left: Vec<Vec<usize>>,
        (length, how_many): (RunLength, usize),
        (metric, greater): (&str, bool),
        console: &mut Console,
    ) -> Result<Vec<Vec<usize>>, Ends> {
        let rows = rows(self.dir.path(), &self.all, &self.problems)?;
        let value = |i: &usize| reached(rows[*i].summary.as_ref()?, length, metric);
        let values: Vec<Vec<Option<f64>>> = left.iter().map(|t| t.iter().map(value).collect()).collect();
        let go_on = best(&values, how_many, greater);
        if go_on.is_empty() {
            let d =
                wrong(format!("no trial has a `{metric}` after {}: halving cannot choose", in_words(length)));
            return Err(Box::new(
                d.help("evaluate the runs: leave `--no-eval` out; `--table` shows how each ended"),
            )
            .into());
        }
        for (t, trial) in left.iter().enumerate().filter(|(t, _)| !go_on.contains(t)) {
            for i in trial.iter().filter(|_| values[t].iter().all(Option::is_some)) {
                let why = format!("not among the best {how_many} after {}", in_words(length));
                self.problems.note(self.dir.path(), &self.names[*i], Some(Problem::Stopped(why)))?;
            }
        }
        console.note(&format!(
            "{} of {} go on after {}",
            go_on.len(),
            counted(left.len() as u64, "trial"),
            in_words(length)
        ));
        Ok(left.into_iter().enumerate().filter(|(t, _)| go_on.contains(t)).map(|(_, trial)| trial).collect())
    }

    /// Refuses folders that hold other runs than those of this sweep.
    fn same_runs(&self, these: &[usize]) -> Checked<()> {
        let rows = rows(self.dir.path(), &self.all, &self.problems)?;
        for i in these {
            let (Some(summary), Verdict::Runs(asked)) = (&rows[*i].summary, &self.verdicts[*i]) else {
                continue;
            };
            folder::same_run(summary, &self.all[*i], asked, &self.spec)?;
        }
        Ok(())
    }

    /// Runs some combinations to a length, as far as they are not there yet.
    fn run(&mut self, these: &[usize], length: RunLength, console: &mut Console) -> Result<(), Ends> {
        let rows = rows(self.dir.path(), &self.all, &self.problems)?;
        let done = |i: &usize| rows[*i].summary.as_ref().is_some_and(|s| is_done(s, length));
        let (done, todo): (Vec<usize>, Vec<usize>) = these.iter().copied().partition(done);
        for i in &done {
            self.problems.note(self.dir.path(), &self.names[*i], None)?;
        }
        if todo.is_empty() {
            return Ok(());
        }
        let jobs = usize::from(self.spec.jobs.unwrap_or(1)).min(todo.len());
        let tasks = todo.iter().map(|i| self.task(*i, length, jobs)).collect::<Checked<Vec<Task>>>()?;
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
    fn task(&self, i: usize, length: RunLength, jobs: usize) -> Checked<Task> {
        let (run, name) = (self.dir.path().join(&self.names[i]), &self.names[i]);
        let (metrics, bytes) = match &self.verdicts[i] {
            Verdict::Runs(runnable) => (&runnable.metrics[..], runnable.bytes),
            Verdict::Rejected(_) => (&[][..], 0),
        };
        let mut words = words::train(&self.spec, &self.all[i], &run, length, metrics);
        let cores = self.spec.cores.map_or_else(folder::cores, usize::from);
        // Each has its share, at least one.
        words.push(format!("--cores={}", (cores / jobs).max(1)));
        words.push("--format=json".into());
        Ok(Task { words, run, log: self.dir.log(name)?, bytes })
    }
}

/// Whether a run has got there, and as far as it is to go.
fn is_done(s: &RunSummary, length: RunLength) -> bool {
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
