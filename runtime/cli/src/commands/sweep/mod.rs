//! `sweep`: many runs of one model, and their table.

mod array;
mod estimate;
mod folder;
mod report;
mod run_identity;
mod runs;

use super::project::data_roots;
use crate::args::{DeviceChoice, SearchChoice, SweepArgs, TrainArgs};
use crate::commands::command_end::CommandEnd;
use crate::commands::report::{page_of, title_of};
use crate::output::console::Console;
use crate::refusal::wrong;
use crate::run_places::{ReadRuns, RunPlace, read};
use crate::signals;
use crate::stop::Stop;
use crate::sweep::check::{Verdict, check};
use crate::sweep::combination::Combination;
use crate::sweep::grid::combinations;
use crate::sweep::results::{Problem, Problems, ReadOnce, SweepRow, rows};
use crate::sweep::spec::{FILE, SweepSpec};
use crate::value_parsers::too_many_cores;
use folder::SweepDir;
use meshwright_core::{StepGraph, training_step};
use meshwright_diag::Diagnostic;
use meshwright_files::Checked;
use meshwright_files::folder::Folder;
use meshwright_runs::policies::EvaluationPolicy;
use meshwright_train::{CHOSEN_ON_TEST, Failure, Project, TrainOptions, has_data};
use report::AskedTable;
use runs::{Sweep, given, objective, train_args};
use std::path::{Component, Path, PathBuf};

/// Runs the command.
pub(crate) fn run(args: &SweepArgs, console: &mut Console) -> Result<(), Stop> {
    // Before the command goes to another folder.
    let asked = AskedTable::of(&args.report).map_err(|e| e.said(console))?;
    let (spec, dir) = subject(args).map_err(|e| e.said(console))?;
    let mut spec = spec.overridden(args);
    if spec.folder.is_some() {
        // It goes on in the folder in which it was started, and `--run` is relative to that of the command.
        spec.run = Some(dir.path());
    }
    if args.report.table {
        let dir = dir.path();
        let printed = of_folder(&spec, &dir).and_then(|rows| asked.deliver(&rows, console));
        printed.map_err(|e| e.said(console))?;
        return asked.page.map_or(Ok(()), |page| write_page(&spec, &dir, &page, console));
    }
    if args.report.estimate {
        return estimate::run(args, &spec, &dir, &asked, console).map_err(|e| e.said(console));
    }
    spec.train.extend(machine_words(args, &spec.train)?);
    swept(args, spec, dir, asked, console)
}

/// The machine as arguments of each run, whose estimate is then beside its times.
fn machine_words(args: &SweepArgs, before: &[String]) -> Result<Vec<String>, Stop> {
    let machine = args.machine.machine.iter().map(|name| format!("--machine={name}"));
    let with = args.machine.with.iter().map(|change| format!("--with={change}"));
    let words: Vec<String> = machine.chain(with).collect();
    match before.iter().find(|word| word.starts_with("--machine") || word.starts_with("--with")) {
        Some(word) if !words.is_empty() => Err(Stop::Usage(format!(
            "the runs of this sweep have a machine: `{word}`; leave `--machine` out"
        ))),
        _ => Ok(words),
    }
}

/// What the command is about: the sweep, and its folder.
fn subject(args: &SweepArgs) -> Result<(SweepSpec, Folder), CommandEnd> {
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
        let dir = Folder::at(spec.clone().overridden(args).dir());
        return Ok((spec, dir));
    };
    if SweepSpec::given("", args)? != SweepSpec::default() {
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
    if let Some(folder) = &mut spec.folder {
        *folder = folder::absolute(&file.parent().unwrap_or(Path::new("")).join(&*folder))?;
    }
    if of_folder {
        if args.runs.run.is_some() {
            return Err(
                Stop::Usage(format!("`{subject}` is the folder of the sweep: leave `--run` out")).into()
            );
        }
        let dir = folder::absolute(Path::new(subject))?;
        spec.run = Some(dir.clone());
        return Ok((spec, Folder::at(dir)));
    }
    let dir = match (&args.runs.run, &spec.folder) {
        (Some(run), Some(_)) => Folder::at(folder::absolute(run)?),
        (Some(run), None) => Folder::at(run),
        (None, _) => dir_by_file(&spec, &file)?,
    };
    Ok((spec, dir))
}

/// The folder of a sweep that a file describes and the command does not name. The file may come from a stranger: it names no
/// folder that is not below the current one, and there no link is followed; or it lies in the folder of its sweep, which it
/// names.
fn dir_by_file(spec: &SweepSpec, file: &Path) -> Checked<Folder> {
    if spec.run.is_none() && spec.folder.is_none() {
        return Ok(Folder::at(spec.dir()));
    }
    let named = spec.folder.clone().unwrap_or_default().join(spec.dir());
    let at = folder::absolute(&Path::new(".").join(file.parent().unwrap_or(Path::new(""))))?;
    if at.canonicalize().is_ok_and(|at| named.canonicalize().is_ok_and(|named| named == at)) {
        return Ok(Folder::at(named));
    }
    let current = folder::current()?;
    let base = if named.is_absolute() { current.clone() } else { PathBuf::new() };
    let names: Option<Vec<&str>> = named.strip_prefix(&base).ok().and_then(|below| {
        let parts = below.components().filter(|part| *part != Component::CurDir);
        parts.map(|part| if let Component::Normal(name) = part { name.to_str() } else { None }).collect()
    });
    match names.filter(|names| !names.is_empty()) {
        Some(names) => Ok(names.into_iter().fold(Folder::at(base), |folder, name| folder.below(name))),
        None => {
            let message = format!(
                "the sweep `{}` is to be written to `{}`, which is not below the current folder",
                file.display(),
                named.display()
            );
            let d = wrong(message).help("let `run` name a folder below it, or give `--run DIR`");
            Err(Box::new(d))
        }
    }
}

/// The runs of a sweep that is there.
fn of_folder(spec: &SweepSpec, dir: &Path) -> Result<Vec<SweepRow>, CommandEnd> {
    if !dir.is_dir() {
        let d = wrong(format!("there is no sweep in `{}`", dir.display()));
        return Err(Box::new(d.help("leave `--table` out to run it")).into());
    }
    Ok(rows(dir, &combinations(spec)?, &Problems::read(dir)?)?)
}

/// The page of a sweep, with what its folder says by now.
fn write_page(spec: &SweepSpec, dir: &Path, page: &Path, console: &mut Console) -> Result<(), Stop> {
    let place = RunPlace::sweep(dir, spec).map_err(|d| CommandEnd::from(d).said(console))?;
    page_of(&read(&[place], dir, &mut ReadRuns::default()), &title_of(&[dir.into()]), page, console)
}

fn swept(
    args: &SweepArgs,
    mut spec: SweepSpec,
    dir: Folder,
    mut asked: AskedTable,
    console: &mut Console,
) -> Result<(), Stop> {
    let prepared = prepare(args, &mut spec, dir, console);
    let mut sweep = prepared.map_err(|e| e.said(console))?;
    let begin = std::time::Instant::now();
    if args.runs.launch.is_some() {
        let written = array::launch(&mut sweep, args, console);
        return written.map_err(|e| e.said(console));
    }
    let ended = sweep.runs(console).and_then(|()| Ok(sweep.rows()?));
    let rows = ended.map_err(|e| e.said(console))?;
    asked.sort = report::sorted_by(&rows, asked.sort.as_deref(), console).map(String::from);
    let printed = report::write_files(&rows, sweep.dir.path(), asked.sort.as_deref());
    printed.and_then(|()| asked.deliver(&rows, console)).map_err(|e| e.said(console))?;
    console.flush()?;
    let times = (begin.elapsed().as_secs_f64(), sweep.own);
    let paged = asked.page.map_or(Ok(()), |page| write_page(&spec, sweep.dir.path(), &page, console));
    report::end(&rows, times, sweep.dir.path(), sweep.stop, console).and(paged)
}

/// All that can be known before one of them runs: nothing is written until it is.
fn prepare<'a>(
    args: &SweepArgs,
    spec: &mut SweepSpec,
    dir: Folder,
    console: &mut Console,
) -> Result<Sweep<'a>, CommandEnd> {
    match spec.folder.as_deref() {
        // Its runs go on where they began.
        Some(folder) => folder::enter(folder)?,
        None => spec.folder = Some(folder::current()?),
    }
    let all = combinations(spec)?;
    let names: Vec<String> = all.iter().map(Combination::name).collect();
    let Some((first, name)) = all.first().zip(names.first()) else {
        return Err(Box::new(wrong("there is no combination to run".into())).into());
    };
    let train = train_args(spec, first, &dir.path().join(name))?;
    let cuda = train.data.devices.device == Some(DeviceChoice::Cuda);
    if let Some(why) = spec.cores.and_then(too_many_cores).filter(|_| args.runs.launch.is_none()) {
        return Err(Stop::Usage(format!("`--cores`: {why}")).into());
    }
    if spec.jobs.is_some_and(|n| n > 1) && cuda && args.runs.launch.is_none() {
        // All would take the first GPUs.
        return Err(Stop::Usage("on GPUs runs go one after the other: leave `--jobs` out".into()).into());
    }
    let given = given(spec, &train);
    objective(spec, &given)?;
    let launched = args.runs.launch.is_some();
    let verdicts =
        check(&all, &given, &|project| if launched { Vec::new() } else { wrong_data(&train, project) });
    if let Some(by) = &args.report.sort {
        // A column that is not there is better known before the runs than after them.
        report::sortable(&rows(&dir.path(), &all, &Problems::default())?, &verdicts, by)?;
    }
    let rejected = reject(&names, &verdicts, console);
    if rejected == all.len() && Project::load(&given).project.is_none() {
        // The model is wrong, and not what varies: there is no sweep.
        return Err(Stop::Diagnosed.into());
    }
    if args.runs.launch.is_none() {
        let runs = all.iter().zip(&verdicts).find(|(_, v)| matches!(v, Verdict::Runs(_)));
        let runs = runs.and_then(|(c, _)| Project::load(&c.options(&given)).project);
        let data = runs.map(|project| data_of(train.data.data.as_deref(), &project)).transpose()?;
        let policies = train.policies();
        let validated = policies.validation.is_some() || data.is_none_or(|d| d.has("validation"));
        if !validated && spec.search == SearchChoice::Halving {
            console.warn(&format!("`--search halving` chooses {CHOSEN_ON_TEST}"));
        }
    }
    let dir = SweepDir::lock(dir, spec)?;
    dir.same_runs(spec, &all, &verdicts)?;
    dir.remember(spec)?;
    let mut problems = Problems::read(dir.path())?;
    let skipped = names.iter().zip(&verdicts).filter_map(|(name, verdict)| match verdict {
        Verdict::Rejected(why) => Some((name.as_str(), Some(Problem::Skipped(why.reason())))),
        Verdict::Runs(_) => None,
    });
    problems.note_all(dir.path(), skipped)?;
    let stop = signals::stop_of(&mut |text| console.note(text));
    let spec = spec.clone();
    Ok(Sweep { spec, dir, all, names, verdicts, problems, read: ReadOnce::default(), cuda, stop, own: 0.0 })
}

/// The files for the inputs, which must be there before each run says so; what is in them it says itself.
fn data_of(given: Option<&str>, project: &Project) -> Checked<meshwright_data::Source> {
    let all: Vec<_> = project.program.inputs.iter().map(|i| i.0.clone()).collect();
    // Training needs only what its step reads.
    let step = training_step(&project.program);
    let read = step.as_ref().map(StepGraph::inputs_read).unwrap_or_default();
    let some: Vec<_> = all.iter().filter(|i| read.contains(&*i.name)).cloned().collect();
    let roots = data_roots();
    meshwright_data::find(given, &roots, &all).or_else(|_| meshwright_data::find(given, &roots, &some))
}

/// What is wrong with the data for the sizes of a project. Where there is none at all, that is said of the sweep.
fn wrong_data(train: &TrainArgs, project: &Project) -> Vec<Diagnostic> {
    let data = train.data.data.clone();
    if training_step(&project.program).is_none() || data_of(data.as_deref(), project).is_err() {
        return Vec::new();
    }
    let options = TrainOptions {
        data,
        allow_nonfinite: train.data.allow_nonfinite,
        roots: data_roots(),
        eval: !train.evaluation.no_eval,
        evaluation: EvaluationPolicy {
            validation: train.policies().validation,
            ..EvaluationPolicy::default()
        },
        init: train.init(),
        ..TrainOptions::default()
    };
    match has_data(project, &options) {
        Err(Failure::Diagnostics(found)) => found,
        Ok(()) | Err(_) => Vec::new(),
    }
}

/// Reports the combinations that cannot run, equal errors once; how many there are.
fn reject(names: &[String], verdicts: &[Verdict], console: &mut Console) -> usize {
    let mut reported: Vec<(String, &str, Vec<&str>)> = Vec::new();
    for (name, verdict) in names.iter().zip(verdicts) {
        let Verdict::Rejected(why) = verdict else { continue };
        let reason = why.found.iter().map(|d| format!("{}: {}\n", d.code.id, d.message)).collect::<String>();
        if let Some(known) = reported.iter_mut().find(|r| r.0 == reason) {
            known.2.push(name);
            continue;
        }
        console.note(&format!("`{name}` is skipped, since it cannot run:"));
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
