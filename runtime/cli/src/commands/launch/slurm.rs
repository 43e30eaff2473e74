//! A Slurm batch file: one task a process.

use super::job::{Job, joined};
use crate::args::LaunchSlurmArgs;
use crate::stop::Stop;
use meshwright_runs::cluster_job::SUBMITTED;
use std::fmt::Write;

/// Shows a task the GPU of its local rank, among those that Slurm gave to the job on this node. A process that sees all
/// would open a context on each. One that has several takes them by its local rank itself.
const ONE_GPU: &str = r#"# Each task sees one GPU: that of its local rank, among those that are the job's on this node.
# shellcheck disable=SC2016 # the shells of the tasks expand it
one_gpu='
    IFS=, read -ra gpus <<< "${CUDA_VISIBLE_DEVICES:-}"
    export CUDA_VISIBLE_DEVICES="${gpus[SLURM_LOCALID]:-${gpus[0]:-$SLURM_LOCALID}}"
    exec "$@"
'"#;

/// The file.
pub(super) fn file(job: &Job<'_>, args: &LaunchSlurmArgs) -> Result<String, Stop> {
    let common = job.common;
    let mut out = String::from("#!/bin/bash\n");
    let mut set = |option: &str, value: &dyn std::fmt::Display| {
        // A string takes every write.
        let _ = writeln!(out, "#SBATCH --{option}={value}");
    };
    set("job-name", &job.name);
    set("nodes", &common.nodes);
    set("ntasks-per-node", &job.processes_per_node());
    if !common.cpu {
        set("gpus-per-node", &common.per_node);
    }
    if let Some(cores) = common.cores {
        set("cpus-per-task", &cores);
    }
    set("time", &args.time);
    let optional = [("partition", &args.partition), ("account", &args.account), ("qos", &args.qos)];
    for (option, value) in optional {
        if let Some(value) = value {
            set(option, value);
        }
    }
    // The loss of one task ends all: without it the others would wait for their time-out.
    set("output", &"%x-%j.log");
    if job.continues {
        set("open-mode", &"append");
    }
    // Many clusters start a job again by themselves: without `--resume=auto` its run would refuse to begin in its own folder.
    out.push_str(if job.continues { "#SBATCH --requeue\n" } else { "#SBATCH --no-requeue\n" });
    for option in &args.sbatch {
        let _ = writeln!(out, "#SBATCH {option}");
    }
    out.push('\n');
    for line in &job.about {
        let _ = writeln!(out, "# {line}");
    }
    // Not `-u`: the scripts of modules read variables that nobody set.
    out.push_str("\nset -eo pipefail\n");
    for module in &args.modules {
        let _ = writeln!(out, "module load {}", quoted(module)?);
    }
    for (name, value, why) in job.variables() {
        let _ = writeln!(out, "export {name}={}  # {why}", quoted(value)?);
    }
    let _ = writeln!(out, "{}", submitted());
    let mut srun = format!("srun --mpi={} --kill-on-bad-exit=1", quoted(&args.mpi)?);
    if let Some(cores) = common.cores {
        // A step does not take it from the batch file since Slurm 22.05.
        let _ = write!(srun, " --cpus-per-task={cores}");
    }
    if !common.cpu && common.devices_per_process == 1 {
        let _ = writeln!(out, "\n{ONE_GPU}");
        srun += " bash -c \"$one_gpu\" bash";
    }
    let _ = write!(
        out,
        "\n# --kill-on-bad-exit: when one task fails, Slurm ends the others too.\n{srun} \\\n    {}\n",
        joined(&job.train)?
    );
    Ok(out)
}

/// Tells the processes when the job was submitted: `meshwright runs stats` has the time in the queue by it, and Slurm sets no
/// such variable. A cluster that does not tell is no reason to fail.
pub(in crate::commands) fn submitted() -> String {
    format!(
        "{SUBMITTED}=$(SLURM_TIME_FORMAT=%s squeue -h -j \"$SLURM_JOB_ID\" -o %V 2>/dev/null | head -n 1 || true)\nexport {SUBMITTED}"
    )
}

fn quoted(word: &str) -> Result<String, Stop> {
    joined(&[word.to_string()])
}
