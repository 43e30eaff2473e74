//! A Slurm array job: a task for each run that is not done.

use super::folder::{absolute, log_of};
use super::report;
use super::runs::{Sweep, is_done};
use crate::args::SearchChoice;
use crate::args::SweepArgs;
use crate::commands::command_end::CommandEnd;
use crate::commands::launch::{joined, submitted};
use crate::output::console::Console;
use crate::output::json::object;
use crate::output::text::counted;
use crate::refusal::wrong;
use crate::replace::write;
use crate::sweep::check::Verdict;
use crate::sweep::train_command::{self, TrainWords};
use std::fmt::Write as _;
use std::path::Path;

/// The file, in the folder of the sweep.
const FILE: &str = "sweep.sbatch";

/// Writes the job.
pub(super) fn launch(
    sweep: &mut Sweep<'_>,
    args: &SweepArgs,
    console: &mut Console,
) -> Result<(), CommandEnd> {
    if sweep.spec.search == SearchChoice::Halving {
        let d = wrong(
            "halving chooses among runs that are done, and the tasks of an array know nothing of each other"
                .into(),
        );
        return Err(Box::new(d.help("launch a grid or a random search: `--search random`")).into());
    }
    let all = sweep.rows()?;
    let todo = all.iter().enumerate().filter(|(i, r)| {
        let done = r.summary.as_ref().is_some_and(|s| is_done(s, sweep.spec.length()));
        matches!(sweep.verdicts[*i], Verdict::Runs(_)) && !done
    });
    let todo: Vec<usize> = todo.map(|(i, _)| i).collect();
    if todo.is_empty() {
        return Err(report::nothing_to_launch());
    }
    let path = sweep.dir.path().join(FILE);
    write(&path, file(sweep, &todo, args)?.as_bytes())?;
    if console.json() {
        let fields = [("file", path.display().to_string().into()), ("runs", todo.len().into())];
        return Ok(console.out_json(&object(fields))?);
    }
    let quoted = |path: &Path| joined(&[path.display().to_string()]);
    let (job, dir) = (quoted(&path)?, quoted(sweep.dir.path())?);
    Ok(console.out(&format!(
        "{}: {}\nstart them with: sbatch {job}\nthen print the table with: meshwright sweep {dir} --table\n",
        path.display(),
        counted(todo.len() as u64, "run")
    ))?)
}

fn file(sweep: &Sweep<'_>, todo: &[usize], args: &SweepArgs) -> Result<String, CommandEnd> {
    let devices = todo.iter().filter_map(|i| match &sweep.verdicts[*i] {
        Verdict::Runs(r) => Some(r.devices),
        Verdict::Rejected(_) => None,
    });
    let at_once = sweep.spec.jobs.map_or(String::new(), |n| format!("%{n}"));
    let name = sweep.dir.path().file_name().map_or("sweep".into(), |n| n.to_string_lossy().into_owned());
    let name = name.replace(|c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '_', "-");
    // From wherever `sbatch` is called. Of a `%` in the path Slurm would make something else.
    let log = absolute(&sweep.dir.logs()?.path().join(log_of("slurm-TASK")))?.display().to_string();
    let log = log.replace('%', "%%").replace("slurm-TASK", "slurm-%a");
    let mut out = String::from("#!/bin/bash\n");
    let mut line = |text: String| {
        // A string takes every write.
        let _ = writeln!(out, "{text}");
    };
    line(format!("#SBATCH --job-name={name}"));
    line(format!("#SBATCH --array=0-{}{at_once}", todo.len() - 1));
    line("#SBATCH --ntasks=1".into());
    if let Some(cores) = sweep.spec.cores {
        line(format!("#SBATCH --cpus-per-task={cores}"));
    }
    if sweep.cuda {
        line(format!("#SBATCH --gpus-per-task={}", devices.max().unwrap_or(1)));
    }
    if sweep.spec.timing {
        line("#SBATCH --exclusive".into());
    }
    // A run that is started again goes on from its checkpoint.
    line("#SBATCH --requeue\n#SBATCH --open-mode=append".into());
    // Slurm reads these before any shell does: what is between quotes is the path.
    line(format!("#SBATCH --output=\"{log}\""));
    args.runs.sbatch.iter().for_each(|option| line(format!("#SBATCH {option}")));
    line("\nset -eo pipefail".into());
    for module in &args.runs.modules {
        line(format!("module load {}", joined(std::slice::from_ref(module))?));
    }
    if let Some(folder) = &sweep.spec.folder {
        line(format!("cd {}", joined(&[folder.display().to_string()])?));
    }
    line(submitted());
    line("# One process a run: its devices are threads of it, or its GPUs.".into());
    line("case \"$SLURM_ARRAY_TASK_ID\" in".into());
    let program = args.runs.program.clone().unwrap_or_else(|| "meshwright".into());
    for (task, i) in todo.iter().enumerate() {
        let metrics = match &sweep.verdicts[*i] {
            Verdict::Runs(r) => &r.metrics[..],
            Verdict::Rejected(_) => &[],
        };
        let run = sweep.dir.path().join(&sweep.names[*i]);
        let cores = sweep.spec.cores.map(usize::from);
        let given = TrainWords { run: &run, length: sweep.spec.length(), metrics, cores };
        let train = train_command::train(&sweep.spec, &sweep.all[*i], &given);
        let train = [vec![program.clone()], train].concat();
        line(format!("{task}) exec {} ;;", joined(&train)?));
    }
    line("esac".into());
    Ok(out)
}
