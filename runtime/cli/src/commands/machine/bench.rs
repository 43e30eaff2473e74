//! `bench model`; `bench collectives` is in a file of its own.

use crate::args::{BenchArgs, BenchModelArgs, BenchWhat, By};
use crate::commands::project;
use crate::output::console::Console;
use crate::output::progress::bar;
use crate::output::text::{bytes, counted};
use crate::stop::Stop;
use meshwright_diag::Sources;
use meshwright_exec::KernelUse;
use meshwright_train::{BenchOptions, BenchResult, Project, bench};

/// Runs the command.
pub(crate) fn run(args: &BenchArgs, console: &mut Console) -> Result<(), Stop> {
    match &args.what {
        BenchWhat::Model(a) => model(a, console),
        BenchWhat::Collectives(a) => super::bench_collectives::run(a, console),
    }
}

/// Times training steps, with a bar. The notes of the result are not said yet.
pub(in crate::commands) fn timed(
    project: &Project,
    sources: &Sources,
    options: &BenchOptions,
    console: &mut Console,
) -> Result<BenchResult, Stop> {
    let bar = bar(0, console);
    let ended = bench(project, sources, options, &mut |done, total| {
        bar.set_length(total as u64);
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
    ended.map_err(|failure| console.failed(failure, sources))
}

fn model(args: &BenchModelArgs, console: &mut Console) -> Result<(), Stop> {
    let (project, sources, devices) =
        project::load_for((&args.devices, "bench model"), &args.project.options(), console)?;
    let options = BenchOptions {
        steps: args.steps as usize,
        warmup: args.warmup as usize,
        cores: args.cores.get(),
        seed: args.seed,
        devices,
        by: args.by.kernels(),
        trace: args.trace.get(),
    };
    let r = timed(&project, &sources, &options, console)?;
    r.notes.iter().for_each(|note| console.note(note));
    if args.by != By::Kernel && r.kernels.is_empty() {
        console
            .note("--by counts the kernels of GPUs, and CPUs have none: --trace shows where their time goes");
    }
    if console.json() {
        return console.out_json(&r);
    }
    let device = match (r.device_peak_bytes, r.device_plan_bytes, r.device_reserved_bytes) {
        (Some(peak), Some(planned), Some(reserved)) => format!(
            "  on a device {} in use at the peak of {} planned, {} reserved\n",
            bytes(peak),
            bytes(planned),
            bytes(reserved)
        ),
        _ => String::new(),
    };
    let graph = if r.graph { ", in one launch: the step is recorded as a graph" } else { "" };
    let host =
        r.host_ms.map_or_else(String::new, |ms| format!("  the host takes {ms:.2} ms to launch it{graph}\n"));
    let kernels = kernels(&r.kernels, r.devices);
    console.out(&format!(
        "{} on {}: {}\n  median {:.2} ms, least {:.2} ms, 90th percentile {:.2} ms\n  {:.3} TFLOP/s of the model, {:.3} with what is computed again or on several devices\n  {:.2} ms of CPU time a step, {} of memory at most\n{device}{host}{kernels}",
        args.project.model,
        project::mesh(&project),
        counted(r.samples as u64, "step"),
        r.median_ms,
        r.min_ms,
        r.p90_ms,
        r.model_tflops,
        r.tflops,
        r.cpu_ms_per_step,
        bytes(r.peak_rss_bytes)
    ))
}

/// How many kernels the devices of this process launch in a step, those that take most of the time, and what these read and
/// write.
fn kernels(all: &[KernelUse], devices: usize) -> String {
    const SHOWN: usize = 8;
    if all.is_empty() {
        return String::new();
    }
    let sum = |of: &[KernelUse]| KernelUse {
        name: format!("{} others", of.len()),
        launches: of.iter().map(|k| k.launches).sum(),
        ms: of.iter().map(|k| k.ms).sum(),
        bytes: of.iter().map(|k| k.bytes).sum(),
        products: vec![],
    };
    let KernelUse { launches, ms, bytes: moved, .. } = sum(all);
    let of = if devices > 1 { format!(" of all {devices} devices together") } else { String::new() };
    let mut text = format!(
        "  {} in a step{of}, which run for {ms:.2} ms, and read and write {}\n",
        counted(launches, "kernel"),
        bytes(moved)
    );
    for k in all.iter().take(SHOWN) {
        text += &format!("  {:>10.2} ms {:>7}x  {}{}\n", k.ms, k.launches, k.name, rate(k));
        for product in k.products.iter().take(SHOWN) {
            text += &format!("  {:>12.2} ms {:>5}x    {}\n", product.ms, product.launches, product.name);
        }
    }
    if let Some(others) = all.get(SHOWN..).filter(|others| !others.is_empty()) {
        let k = sum(others);
        text += &format!("  {:>10.2} ms {:>7}x  {}{}\n", k.ms, k.launches, k.name, rate(&k));
    }
    text
}

/// What a kernel reads and writes, and how fast, where both are known.
fn rate(kernel: &KernelUse) -> String {
    match kernel.bytes {
        0 => String::new(),
        moved if kernel.ms > 0.0 => {
            format!("  {}, {:.0} GB/s", bytes(moved), moved as f64 / kernel.ms / 1e6)
        }
        moved => format!("  {}", bytes(moved)),
    }
}
