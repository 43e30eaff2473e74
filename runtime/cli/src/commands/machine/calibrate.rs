//! `calibrate`: a machine file of this machine.

use super::bench_collectives::mesh_of_option;
use crate::args::{CalibrateArgs, DeviceChoice, DevicesArgs};
use crate::commands::project::COMMAND;
use crate::launch::{devices, mesh_fits, nvidia};
use crate::output::console::Console;
use crate::output::progress::bar;
use crate::output::table::{Align, Table};
use crate::output::text::{percent, short_seconds as seconds, thousands};
use crate::stop::Stop;
use meshwright_cost::machine::{DeviceKind, Machine};
use meshwright_diag::{Diagnostic, Sources, codes};
use meshwright_files::{Checked, ReplacingFile};
use meshwright_gpu::driver::Driver;
use meshwright_plan::Mesh;
use meshwright_train::calibrate::{
    CalibrateOptions, Calibrated, CalibrationErrors, CalibrationWatcher, UNSTEADY, calibrate, check_machine,
};
use meshwright_train::estimates::machine;
use meshwright_train::{Failure, agree_on_result};
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

/// Devices, where neither a mesh nor a launcher says how many.
const DEVICES: usize = 4;

/// Runs the command. Of several processes the first reads and writes the machine file.
pub(crate) fn run(args: &CalibrateArgs, console: &mut Console) -> Result<(), Stop> {
    if args.device == DeviceChoice::CubeclCpu {
        return Err(Stop::Usage("`--device cubecl-cpu` is for tests, and has no times to measure".into()));
    }
    let threads = DevicesArgs { device: Some(args.device), ..DevicesArgs::default() };
    let devices = devices(&threads, &[(COMMAND, "machine calibrate".into())], console)?;
    let mesh = match &args.mesh {
        Some(text) => mesh_of_option(text, console)?,
        None => Mesh::new([("all", devices.processes.devices().unwrap_or_else(|| there(args.device)))]),
    };
    mesh_fits(&mesh, "batch", console, &Sources::new())?;
    let time = Duration::from_secs_f64(args.minutes * 60.0);
    let options = CalibrateOptions { mesh, time, name: args.name.clone(), devices };
    if let Some(name) = &args.check {
        return check(name, &options, console);
    }
    // What cannot be written is not measured first.
    let file = on_first("the machine file", console, || begun(&args.output))?;
    let found = watched(console, |watch| calibrate(&options, watch))?;
    let text = found.as_ref().map(|found| text_of(&found.machine)).transpose();
    let text = text.map_err(|why| Stop::Internal(Some(why)))?;
    on_first("the machine file", console, || match (file, &text) {
        (Some(file), Some(text)) => {
            let written = file.file().write_all(text.as_bytes()).and_then(|()| file.replace());
            written.map_err(|e| unwritten(&args.output, &e.to_string()))
        }
        _ => Ok(()),
    })?;
    let Some(found) = found else { return Ok(()) };
    if let Some(note) = unsteady(&found) {
        console.note(&note);
    }
    report(args, &found, console)
}

/// Devices of this process where nothing says how many: all GPUs, or some threads.
fn there(device: DeviceChoice) -> usize {
    match device {
        DeviceChoice::Cuda => {
            Driver::open(&nvidia()).and_then(|d| d.count()).map_or(1, |n| n.max(1) as usize)
        }
        DeviceChoice::Cpu | DeviceChoice::CubeclCpu => DEVICES,
    }
}

/// Says how far estimates with a machine are off.
fn check(name: &str, options: &CalibrateOptions, console: &mut Console) -> Result<(), Stop> {
    let known =
        agree_on_result(console.processes(), "the machine", machine(name, &[]).map_err(Failure::from));
    let known = known.map_err(|failure| failed(failure, console))?;
    let Some(found) = watched(console, |watch| check_machine(&known, options, watch))? else { return Ok(()) };
    match console.json() {
        true => console.out_json(&serde_json::json!({ "version": 1, "machine": name, "errors": found })),
        false => console.out(&format!("{}\n\n{}", known.name, errors(&found))),
    }
}

/// What the first process does, and all learn of if it fails.
fn on_first<T>(
    about: &str,
    console: &mut Console,
    work: impl FnOnce() -> Checked<T>,
) -> Result<Option<T>, Stop> {
    let done = console.processes().is_first().then(work).transpose();
    let agreed = agree_on_result(console.processes(), about, done.map_err(Failure::from));
    agreed.map_err(|failure| failed(failure, console))
}

fn failed(failure: Failure, console: &mut Console) -> Stop {
    console.failed(failure, &Sources::new())
}

/// Measures, and says on standard error what.
fn watched<T>(
    console: &mut Console,
    measure: impl FnOnce(&mut CalibrationWatcher<'_>) -> Result<T, Failure>,
) -> Result<T, Stop> {
    let bar = bar(0, console);
    let mut part = String::new();
    let ended = measure(&mut |now, what| {
        if part != now && console.leads() {
            part = now.into();
            bar.suspend(|| console.err(&format!("measuring {now}\n")));
        }
        bar.set_message(format!("{now}: {what}"));
        bar.tick();
    });
    bar.finish_and_clear();
    ended.map_err(|failure| failed(failure, console))
}

fn unwritten(path: &Path, why: &str) -> Box<Diagnostic> {
    let found = Diagnostic::error(codes::E0524, format!("`{}` cannot be written: {why}", path.display()));
    Box::new(
        found.help("name a new file, or an older calibration, in a folder that is there: `--output FILE`"),
    )
}

/// Begins the file. Of what is there, only an older calibration is replaced.
fn begun(path: &Path) -> Checked<ReplacingFile> {
    if path.symlink_metadata().is_ok_and(|m| m.is_file()) {
        let old = machine(&path.display().to_string(), &[]).ok();
        if old.is_none_or(|m| m.calibration.is_none()) {
            return Err(unwritten(path, "a file of that name is there, and it is no calibrated machine"));
        }
    }
    ReplacingFile::beside(path).map_err(|e| unwritten(path, &e.to_string()))
}

/// A machine file with its heading; one that cannot be read is a bug.
fn text_of(machine: &Machine) -> Result<String, String> {
    let date = machine.calibration.as_ref().map_or("", |c| c.date.as_str());
    let toml = machine.to_toml().map_err(|e| e.to_string())?;
    let text = format!("# {}: measured by `meshwright calibrate` on {date}.\n{toml}", machine.name);
    Machine::read(&text)
        .map_err(|e| format!("the machine that was measured is no machine file: {e}\n{text}"))?;
    Ok(text)
}

/// Most times that are named as unsteady.
const NAMED: usize = 12;

fn unsteady(found: &Calibrated) -> Option<String> {
    let mut all: Vec<_> = found.unsteady.iter().collect();
    all.sort_by(|a, b| b.spread.total_cmp(&a.spread));
    let names: Vec<String> =
        all.iter().take(NAMED).map(|u| format!("  {} ({})", u.name, percent(u.spread))).collect();
    let more = match all.len().saturating_sub(NAMED) {
        0 => String::new(),
        n => format!("\n  and {n} more"),
    };
    (!all.is_empty()).then(|| {
        format!(
            "of {} programs and collectives {} had quartiles further apart than {}: something else is at work here, or devices share cores; measure again when nothing is\n{}{more}",
            found.probes,
            all.len(),
            percent(UNSTEADY),
            names.join("\n")
        )
    })
}

fn report(args: &CalibrateArgs, found: &Calibrated, console: &mut Console) -> Result<(), Stop> {
    let file = args.output.display().to_string();
    let engine = found.machine.calibration.as_ref().and_then(|c| c.engine.as_deref());
    if console.json() {
        return console.out_json(&serde_json::json!({
            "version": 1,
            "file": file,
            "machine": found.machine,
            "errors": found.errors,
            "probes": found.probes,
            "unsteady": found.unsteady,
        }));
    }
    console.out(&format!(
        "{}{}\n\n{}\n{}\nwritten to {file}: use it with `--machine {file}`\n",
        found.machine.name,
        engine.map_or(String::new(), |engine| format!(", with {engine}")),
        numbers(&found.machine),
        errors(&found.errors)
    ))
}

/// The numbers that say most.
fn numbers(machine: &Machine) -> String {
    let d = &machine.device;
    let on = if d.kind == DeviceKind::Gpu { "on a GPU" } else { "on a core" };
    let giga = |rate: f64, unit: &str| format!("{:.1} {unit}", rate / 1e9);
    let mut table = Table::new(&[Align::Left, Align::Right, Align::Left]);
    table.row(["kernel".into(), seconds(d.kernel), "beside its work".into()]);
    for (dtype, rates) in &d.matrix {
        table.row([format!("products in {dtype}"), giga(rates.best, "GFLOP/s"), on.into()]);
    }
    let ends = d.stream.rates.first().zip(d.stream.rates.last());
    if let Some(((_, cached), (_, far))) = ends {
        table.row(["memory".into(), giga(*cached, "GB/s"), "of a few bytes".into()]);
        table.row([String::new(), giga(*far, "GB/s"), "of many".into()]);
    }
    if let Some(total) = d.stream.total {
        table.row([String::new(), giga(total, "GB/s"), "of all cores together".into()]);
    }
    for line in machine.tier.iter().flat_map(|t| &t.line) {
        let (least, most) = line.members;
        let what =
            format!("{} among {least} to {}, {}", line.ops.join(", "), thousands(most as u64), line.name);
        table.row([what, giga(line.rate, "GB/s"), format!("after {}", seconds(line.latency))]);
    }
    table.render()
}

fn errors(found: &CalibrationErrors) -> String {
    let [left, right] = [Align::Left, Align::Right];
    let mut table = Table::new(&[left, left, right, right, right]);
    table.titles(["plan", "mesh", "measured", "estimated", "error"]);
    for plan in &found.plans {
        table.row([
            plan.name.clone(),
            plan.mesh.clone(),
            seconds(plan.measured),
            seconds(plan.estimated),
            format!("{:+.1} %", 100.0 * plan.error),
        ]);
    }
    let families: Vec<String> =
        found.families.iter().map(|(family, error)| format!("{family} {}", percent(*error))).collect();
    format!(
        "{}  mean {}, greatest {}; by family: {}\n",
        table.render(),
        percent(found.mean),
        percent(found.max),
        families.join(", ")
    )
}
