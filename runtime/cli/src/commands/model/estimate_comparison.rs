//! `estimate --against`: what was measured, beside the estimate.

use crate::output::console::Console;
use crate::output::table::{Align, Table};
use crate::output::text::{band, bytes, counted, dashed, short_seconds as seconds, thousands};
use crate::stop::Stop;
use meshwright_cost::machine::{DeviceKind, Machine};
use meshwright_diag::Sources;
use meshwright_train::Project;
use meshwright_train::estimates::EstimateOptions;
use meshwright_train::estimates::comparison::against;
use meshwright_train::estimates::measured_step::{Compared, StepPart};
use std::path::Path;

/// Compares, and reports.
pub(in crate::commands) fn run(
    project: &Project,
    sources: &Sources,
    (name, asked): (&str, &EstimateOptions),
    of: &Path,
    console: &mut Console,
) -> Result<(), Stop> {
    let found = against(project, sources, asked, of).map_err(|e| console.failed(e, sources))?;
    super::note_assumed_rates(&asked.machine.name, &found.assumed_rates, console);
    if asked.machine.device.kind == DeviceKind::Gpu && !found.parts.is_empty() {
        console.note("on GPUs a timeline shows what the host does: its parts are launches, not kernels");
    }
    if console.json() {
        return console.out_json(&serde_json::json!({
            "version": 1,
            "model": project.program.model,
            "mesh": project.layout.mesh.option(),
            "machine": { "name": name, "calibrated": asked.machine.calibration.is_some(), "error": found.band },
            "engine": asked.engine.name(),
            "against": of.display().to_string(),
            "steps": found.steps,
            "estimated": found.estimated,
            "measured": found.measured,
            "error": found.estimated / found.measured - 1.0,
            "assumed_rates": found.assumed_rates,
            "parts": found.parts,
            "collectives": found.collectives,
        }));
    }
    console.out(&text(project, &asked.machine, &found))
}

fn part(of: StepPart) -> &'static str {
    match of {
        StepPart::Matmul => "matrix products",
        StepPart::Attention => "attention",
        StepPart::MemoryBound => "memory-bound kernels",
        StepPart::Update => "optimizer",
        StepPart::Collective => "collectives",
    }
}

fn off(estimated: f64, measured: f64) -> String {
    if measured > 0.0 { format!("{:+.1} %", 100.0 * (estimated / measured - 1.0)) } else { "-".into() }
}

fn text(project: &Project, machine: &Machine, found: &Compared) -> String {
    let [left, right] = [Align::Left, Align::Right];
    let mut table = Table::new(&[left, right, right, right]);
    table.titles(["", "estimated", "measured", "error"]);
    let mut row = |what: &str, estimated: f64, measured: f64| {
        table.row([what.into(), seconds(estimated), seconds(measured), off(estimated, measured)]);
    };
    row("step", found.estimated, found.measured);
    for p in &found.parts {
        row(part(p.part), p.estimated, p.measured);
    }
    let known: f64 = found.parts.iter().map(|p| p.measured).sum();
    if known > 0.0 {
        row("between them", 0.0, (found.measured - known).max(0.0));
    }
    let mut out = format!(
        "{} on {}: {}, median\nestimates of {} are {}\n\n{}",
        project.program.model,
        counted(project.layout.mesh.devices() as u64, "device"),
        counted(found.steps as u64, "step"),
        machine.name,
        band(machine, found.band),
        table.render()
    );
    if !found.collectives.is_empty() {
        let mut table = Table::new(&[left, left, right, right, right, right, right, left]);
        table.titles(["collective", "over", "bytes", "times", "estimated", "measured", "error", "for"]);
        for c in &found.collectives {
            table.row([
                dashed(&c.op),
                c.axes.join(","),
                bytes(c.bytes),
                thousands(c.times),
                seconds(c.estimated),
                seconds(c.measured),
                off(c.estimated, c.measured),
                if c.line > 0 { format!("{}, line {}", c.value, c.line) } else { c.value.clone() },
            ]);
        }
        out += &format!("\n{}", table.render());
    }
    out
}
