//! `launch`: writes the file that starts a training run on the nodes of a cluster.

mod fit;
mod job;

mod k8s;
mod slurm;

use super::model::estimate::{band, of_machine_if_named};
use super::model::note_assumed_rates;
use super::model::passes;
use super::model::passes::Made;
use crate::args::{
    Cli, Command, DeviceChoice, LaunchArgs, LaunchCommon, LaunchWhat, PassArgs, ResumeChoice, TrainArgs,
};
use crate::output::console::Console;
use crate::output::json::object;
use crate::output::text::step_time;
use crate::stop::Stop;
use clap::Parser;
use fit::Fit;
use job::Job;
pub(in crate::commands) use job::joined;
use meshwright_cost::engine::EngineKind;
use meshwright_cost::estimate::Estimate;
use meshwright_cost::machine::Machine;
use meshwright_diag::{Diagnostic, Sources, codes};
use meshwright_train::Failure;
use meshwright_train::estimates::{EstimateOptions, estimated};
use serde_json::{Value, json};
pub(in crate::commands) use slurm::submitted;

/// Runs the command.
pub(crate) fn run(args: &LaunchArgs, console: &mut Console) -> Result<(), Stop> {
    let common = args.what.common();
    let train = train(common);
    let checked = checked(&train, common)?;
    let options = checked.options();
    let nothing = PassArgs::default();
    let Some(made) = passes::make(&options, None, &nothing, console)? else { return Ok(()) };
    if !made.trains {
        let message = format!("`{}` has no `train` block: there is nothing to launch", options.model);
        return refused(Diagnostic::error(codes::E0516, message), console);
    }
    let fit = match fit::fit(&made, common) {
        Ok(fit) => fit,
        Err(found) => return refused(*found, console),
    };
    let device = if common.cpu { DeviceChoice::Cpu } else { DeviceChoice::Cuda };
    made.fits(common.memory, Some(device), console)?;
    let estimate = estimate(&made, common, console)?;
    let continues = checked.resume == Some(ResumeChoice::Auto);
    let job = Job {
        common,
        name: name(common),
        train,
        about: about(common, &made, &fit, estimate.as_ref()),
        continues,
    };
    let text = match &args.what {
        LaunchWhat::Slurm(slurm) => slurm::file(&job, slurm)?,
        LaunchWhat::K8s(k8s) => k8s::file(&job, k8s)?,
    };
    let Some(path) = &common.output else {
        return match console.json() {
            true => console.out_json(&object([("text", text.into())])),
            false => console.out_styled(&text),
        };
    };
    if path.exists() && !common.force {
        let found = Diagnostic::error(codes::E0524, format!("`{}` exists already", path.display()))
            .help("overwrite it with --force, or give another --output");
        return refused(found, console);
    }
    if let Err(e) = std::fs::write(path, &text) {
        let message = format!("`{}` cannot be written: {e}", path.display());
        return refused(Diagnostic::error(codes::E0524, message), console);
    }
    if console.json() {
        return console.out_json(&object([
            ("file", path.display().to_string().into()),
            ("devices", fit.devices.into()),
            ("nodes", common.nodes.into()),
            ("peak_bytes", fit.peak.into()),
            ("communication", fit.traffic.iter().map(|t| json!(t)).collect()),
            (
                "estimate",
                estimate.map_or(
                    Value::Null,
                    |(machine, e)| json!({ "machine": machine.name, "seconds": e.seconds, "error": e.error }),
                ),
            ),
        ]));
    }
    let told = job.about[..if estimate.is_some() { 2 } else { 1 }].join("\n");
    console.out(&format!("{}: {told}\nstart it with: {}\n", path.display(), args.what.start(path)))
}

fn refused(found: Diagnostic, console: &mut Console) -> Result<(), Stop> {
    console.diagnostics(&[found], &Sources::new());
    Err(Stop::Diagnosed)
}

/// The name of the job; the model's in letters, digits and dashes where none is given.
fn name(common: &LaunchCommon) -> String {
    if let Some(name) = &common.name {
        return name.clone();
    }
    let stem = std::path::Path::new(common.project.model()).file_stem().unwrap_or_default();
    let plain = stem.to_string_lossy().to_lowercase().replace(|c: char| !c.is_ascii_alphanumeric(), "-");
    match plain.trim_matches(|c: char| c == '-' || c.is_ascii_digit()) {
        "" => "meshwright".into(),
        plain => plain.into(),
    }
}

/// The training command as the nodes will read it: a mistake in it is found here, not in the queue.
fn checked(train: &[String], common: &LaunchCommon) -> Result<TrainArgs, Stop> {
    let command = match Cli::try_parse_from(train) {
        Ok(cli) => cli.command,
        Err(e) => {
            let told = e.render().to_string();
            let told = told.trim_start_matches("error: ").trim_end();
            return Err(Stop::Usage(format!("`meshwright train` would reject its arguments: {told}")));
        }
    };
    let Command::Train(args) = command else {
        return Err(Stop::Usage("the arguments make a command other than `train`".into()));
    };
    let each = args.data.devices.devices_per_process.map_or(1, u32::from);
    if each != common.devices_per_process {
        let how =
            format!("write `--devices-per-process {each}` before the `--`, so that the file knows of it");
        return Err(Stop::Usage(how));
    }
    Ok(args)
}

/// The training command.
fn train(common: &LaunchCommon) -> Vec<String> {
    let mut words = vec![common.program.clone(), "train".into()];
    words.extend(common.project.words());
    words.extend(["--device".to_string(), if common.cpu { "cpu".into() } else { "cuda".into() }]);
    if common.devices_per_process > 1 {
        words.extend(["--devices-per-process".to_string(), common.devices_per_process.to_string()]);
    }
    words.extend(common.train.iter().cloned());
    words
}

/// The estimate of a step on the machine that was named, if one was.
fn estimate(
    made: &Made,
    common: &LaunchCommon,
    console: &mut Console,
) -> Result<Option<(Machine, Estimate)>, Stop> {
    let Some(machine) = of_machine_if_named(&common.machine, console)? else { return Ok(None) };
    let mut options = EstimateOptions::of(machine);
    if common.cpu && options.engine == EngineKind::Threads {
        options.engine = EngineKind::Mpi;
    }
    match estimated(&made.project, &made.sources, &options) {
        Ok(found) => {
            note_assumed_rates(&options.machine.name, &found.assumed_rates, console);
            Ok(Some((options.machine, found)))
        }
        // Who names a machine for all commands asks for a job here.
        Err(Failure::Diagnostics(why)) if common.machine.machine.is_none() => {
            let why = why.first().map_or("", |why| why.message.as_str());
            console.note(&format!(
                "a step has no estimate on {} (MESHWRIGHT_MACHINE): {why}",
                options.machine.name
            ));
            Ok(None)
        }
        Err(failure) => Err(console.failed(failure, &made.sources)),
    }
}

fn about(
    common: &LaunchCommon,
    made: &Made,
    fit: &Fit,
    estimate: Option<&(Machine, Estimate)>,
) -> Vec<String> {
    let plan = &made.compiled.plan;
    let per_node = common.per_node;
    let mut lines = vec![format!(
        "{} on mesh {}: {} nodes with {per_node} {} each{}",
        made.project.program.model,
        super::project::mesh(&made.project),
        common.nodes,
        if common.cpu { "devices" } else { "GPUs" },
        match common.devices_per_process {
            1 => String::new(),
            each => format!(", {each} in a process"),
        },
    )];
    lines.extend(estimate.map(|(machine, e)| {
        format!("a step takes {} {} on {}", step_time(e.seconds), band(machine, e.error), machine.name)
    }));
    lines.push(format!("plan {}, peak of {} per device", plan.hash(), crate::output::text::bytes(fit.peak)));
    for traffic in &fit.traffic {
        lines.push(format!(
            "{} per step and device over {}, {}",
            crate::output::text::bytes(traffic.bytes),
            traffic.axes,
            if traffic.crosses { "between nodes" } else { "within a node" }
        ));
    }
    lines
}
