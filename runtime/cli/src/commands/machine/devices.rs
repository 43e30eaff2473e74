//! `devices`: what a machine has to run on.

use crate::args::ListDevicesArgs;
use crate::output::console::Console;
use crate::output::json::{Object, object};
use crate::output::table::{Align, Table};
use crate::output::text::{bytes, counted};
use crate::stop::Stop;
use meshwright_gpu::devices::{DevicesReport, GpuReport, look};
use meshwright_gpu::load::FoundLibrary;
use meshwright_gpu::load::Paths;
use meshwright_gpu::monitor::RemappedRows;
use serde_json::Value;

/// Runs the command. That a GPU cannot be used is no failure: to say so is what it is for.
pub(crate) fn run(_: &ListDevicesArgs, console: &mut Console) -> Result<(), Stop> {
    let variable = |name: &str| std::env::var_os(name);
    let devices = look(&Paths::from_env(variable), variable, cfg!(feature = "cuda"));
    if console.json() {
        return console.out_json(&json(&devices));
    }
    console.out(&text(&devices))
}

fn text(d: &DevicesReport) -> String {
    let mut table = Table::new(&[Align::Left, Align::Left]);
    let cores = counted(d.cpu.cores as u64, "core");
    let memory = d.cpu.memory.map(|m| format!(", {} of memory", bytes(m))).unwrap_or_default();
    let name = d.cpu.name.as_deref().map(|n| format!(", {n}")).unwrap_or_default();
    table.row(["CPU", &format!("{cores}{memory}{name}")]);
    for gpu in &d.gpus {
        table.row([format!("GPU {}", gpu.ordinal), describe(gpu)]);
    }
    let found = |f: &FoundLibrary| format!("{} ({})", f.version, f.path);
    let mut tool = |name: &str, found: Option<String>| {
        if let Some(found) = found {
            table.row([name, &found]);
        }
    };
    tool("driver", d.driver.clone());
    tool("CUDA", d.cuda.as_ref().ok().map(found));
    tool("cuBLASLt", d.cublas_lt.as_ref().ok().map(found));
    tool("NCCL", d.nccl.as_ref().ok().map(found));
    tool("libdevice", d.libdevice.as_ref().ok().map(|p| p.display().to_string()));
    let mut out = table.render();
    let list = |title: &str, all: &[String]| {
        let lines: String = all.iter().map(|why| format!("  - {why}\n")).collect();
        if all.is_empty() { lines } else { format!("\n{title}:\n{lines}") }
    };
    let title = if d.gpus.is_empty() { "No GPU can be used" } else { "The GPUs cannot be used" };
    out += &list(title, &d.hindrances);
    out += &list("Notes", &d.notes);
    out
}

fn describe(gpu: &GpuReport) -> String {
    let p = &gpu.properties;
    let free = gpu.free.map(|f| format!(" ({} free)", bytes(f))).unwrap_or_default();
    let (major, minor) = p.capability;
    let nvlink = match gpu.nvlink.as_deref() {
        Some([]) => ", no NVLink".into(),
        Some(peers) => {
            let peers: Vec<String> = peers.iter().map(u32::to_string).collect();
            format!(", NVLink to {}", peers.join(", "))
        }
        None => String::new(),
    };
    format!(
        "{}, {} of memory{free}, compute capability {major}.{minor}, PCI {}{nvlink}{}",
        p.name,
        bytes(p.memory),
        p.bus_id,
        errors(gpu)
    )
}

/// What is wrong with a GPU, in a few words; nothing where nothing is.
fn errors(gpu: &GpuReport) -> String {
    let Some(health) = &gpu.health else { return String::new() };
    let ecc = health.ecc.filter(|e| e.volatile.max(e.aggregate) > 0);
    let rows = |which: fn(&RemappedRows) -> bool| health.rows.as_ref().is_some_and(which);
    let all = [
        health.lost.then(|| "LOST: the driver cannot reach it".to_string()),
        ecc.map(|e| format!("{} uncorrected ECC errors now, {} in its life", e.volatile, e.aggregate)),
        rows(|r| r.pending).then(|| "broken rows of memory to be replaced at its next reset".into()),
        rows(|r| r.failed).then(|| "no spare rows of memory left".into()),
    ];
    all.into_iter().flatten().map(|found| format!(", {found}")).collect()
}

fn json(d: &DevicesReport) -> Object {
    let found = |f: &FoundLibrary| serde_json::json!({ "version": f.version, "path": f.path });
    let gpus: Vec<Value> = d.gpus.iter().map(gpu).collect();
    object([
        (
            "cpu",
            serde_json::json!({ "name": d.cpu.name, "cores": d.cpu.cores, "memory_bytes": d.cpu.memory }),
        ),
        ("gpus", gpus.into()),
        ("driver", d.driver.clone().into()),
        ("cuda", d.cuda.as_ref().ok().map(found).into()),
        ("cublas_lt", d.cublas_lt.as_ref().ok().map(found).into()),
        ("nccl", d.nccl.as_ref().ok().map(found).into()),
        ("libdevice", d.libdevice.as_ref().ok().map(|p| p.display().to_string()).into()),
        ("usable", (d.hindrances.is_empty() && !d.gpus.is_empty()).into()),
        ("hindrances", d.hindrances.clone().into()),
        ("notes", d.notes.clone().into()),
    ])
}

fn gpu(gpu: &GpuReport) -> Value {
    let p = &gpu.properties;
    serde_json::json!({
        "ordinal": gpu.ordinal,
        "name": p.name,
        "memory_bytes": p.memory,
        "free_bytes": gpu.free,
        "compute_capability": format!("{}.{}", p.capability.0, p.capability.1),
        "pci": p.bus_id,
        "nvlink": gpu.nvlink,
        "reachable": gpu.health.as_ref().map(|h| !h.lost),
        "uncorrected_ecc_errors": gpu.health.as_ref().and_then(|h| h.ecc).map(|e| {
            serde_json::json!({ "volatile": e.volatile, "aggregate": e.aggregate })
        }),
        "remapped_rows": gpu.health.as_ref().and_then(|h| h.rows).map(|r| {
            serde_json::json!({ "uncorrected": r.uncorrected, "pending": r.pending, "failed": r.failed })
        }),
    })
}
