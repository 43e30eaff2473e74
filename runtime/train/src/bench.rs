//! Timing of whole training steps with data in memory.

use crate::devices::consensus::{abort_on_error, agree_on_result, check_same_configuration};
use crate::devices::device_failure::with_lines;
use crate::devices::{Devices, LoadedProgram, compiled, load, start};
use crate::failure::Failure;
use crate::project::{Project, line_of};
use crate::trace::{Trace, TraceOptions};
use crate::training::session::common;
use meshwright_core::explain::{AttentionReport, attention, attention_lines, note_no_kernels};
use meshwright_core::{model_flops, training_step};
use meshwright_diag::{Diagnostic, Sources, codes};
use meshwright_exec::{
    Cluster, HostData, HostTensor, KernelUse, KernelsBy, LocalInput, Memory, Provider, process_cpu_time,
};
use meshwright_plan::random::{Key, uniform01};
use meshwright_runs::memory::peak_resident_bytes;
use serde::Serialize;
use std::sync::Arc;
use std::time::Instant;

/// The step to time.
#[derive(Clone, Debug)]
pub struct BenchOptions {
    /// Timed steps.
    pub steps: usize,
    /// Steps before them.
    pub warmup: usize,
    /// Cores to use.
    pub cores: Option<usize>,
    /// Seed of values and data.
    pub seed: u64,
    /// The devices.
    pub devices: Devices,
    /// The key of kernel counts.
    pub by: KernelsBy,
    /// A timeline of some steps, counted from the first one of the warm-up.
    pub trace: Option<TraceOptions>,
}

/// Times of whole steps.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BenchResult {
    /// Median wall time, in milliseconds.
    pub median_ms: f64,
    /// Shortest.
    pub min_ms: f64,
    /// 90th percentile.
    pub p90_ms: f64,
    /// CPU time of all threads of the process for a mean step.
    pub cpu_ms_per_step: f64,
    /// Number of timed steps.
    pub samples: usize,
    /// Greatest resident memory of the process.
    pub peak_rss_bytes: u64,
    /// Operations of all devices together in a step, over the median time: 10^12 operations a second. Recomputed values
    /// count again, and replicated ones once for each device.
    pub tflops: f64,
    /// The same of the operations of the model alone, whatever the layout: those of MFU.
    pub model_tflops: f64,
    /// Greatest memory of a device by the Plan.
    pub plan_peak_bytes: u64,
    /// The same of the device with `device_peak_bytes`, less what it never makes: masks that are drawn where they are read, and
    /// values that are computed there.
    pub device_plan_bytes: Option<u64>,
    /// The most that a device of this process had in use, seen in one more step; none where devices do not tell.
    pub device_peak_bytes: Option<u64>,
    /// Memory held by the allocator of that device then, in use or free.
    pub device_reserved_bytes: Option<u64>,
    /// Devices of this process.
    pub devices: usize,
    /// Median of what the host takes to launch a step, of the slowest device; none on CPUs, where it computes.
    pub host_ms: Option<f64>,
    /// Whether a step was one launch: of a graph that was recorded.
    pub graph: bool,
    /// Kernels of one more step that was not recorded, in descending order of time; empty on CPUs.
    pub kernels: Vec<KernelUse>,
    /// Bytes that these read and wrote in memory, as far as they are counted; none on CPUs.
    pub memory_bytes: Option<u64>,
    /// Notes for the user on how devices communicate and compute.
    pub notes: Vec<String>,
}

/// Times training steps of a project on random data. Times, and the memory, are those of this process.
pub fn bench(
    project: &Project,
    sources: &Sources,
    options: &BenchOptions,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<BenchResult, Failure> {
    let ended = timed(project, sources, options, progress);
    abort_on_error(&options.devices.processes, ended).map_err(|failure| with_lines(failure, project, sources))
}

fn timed(
    project: &Project,
    sources: &Sources,
    options: &BenchOptions,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<BenchResult, Failure> {
    let processes = &*options.devices.processes;
    let (cluster, program, attention) =
        agree_on_result(processes, "the program", loaded(project, sources, options))?;
    let mut notes = cluster.notes()?;
    notes.extend(slow_attention(&cluster, &program, attention)?);
    check_same_configuration(processes, &common(&program.plan))?;
    let provider = inputs(&program, options.seed);
    let mut trace = match &options.trace {
        Some(t) => Some(Trace::start(t, &cluster, program.id, 1, processes)?),
        None => None,
    };
    // A training reads ahead, so this times the step alone.
    cluster.hold_inputs(program.id, &provider)?;
    let (mut times, mut launching, mut graph) = (Vec::new(), Vec::new(), false);
    let mut cpu = process_cpu_time();
    for n in 0..options.warmup + options.steps {
        if n == options.warmup {
            cpu = process_cpu_time();
        }
        let t = Instant::now();
        let report = cluster.run_held(program.id, n as u64 + 1)?;
        if n >= options.warmup {
            times.push(t.elapsed().as_secs_f64() * 1e3);
            launching.extend(report.launching.iter().max().map(|t| t.as_secs_f64() * 1e3));
        }
        graph = report.graph;
        notes.extend(report.notes);
        if let Some(t) = trace.take_if(|t| t.is_over(n as u64 + 1)) {
            t.finish(&cluster, &program.plan, processes)?;
        }
        progress(n + 1, options.warmup + options.steps);
    }
    if let Some(t) = trace {
        t.finish(&cluster, &program.plan, processes)?;
    }
    let cpu = (process_cpu_time() - cpu).as_secs_f64() * 1e3 / options.steps.max(1) as f64;
    cluster.release_inputs(program.id)?;
    let next = (options.warmup + options.steps) as u64 + 1;
    let kernels = kernels(&cluster, &program, (next, options.by), &provider)?;
    let memory = peak_memory(&cluster, &program, next + 1, &provider)?;
    cluster.shutdown();
    let [min, median, p90] = quantiles(&mut times, [0.0, 0.5, 0.9]);
    let [host_ms] = quantiles(&mut launching, [0.5]).map(|ms| memory.map(|_| ms));
    let summary = &program.plan.summary;
    let (flops, of_model) = operations(project, &program);
    Ok(BenchResult {
        median_ms: median,
        min_ms: min,
        p90_ms: p90,
        cpu_ms_per_step: cpu,
        samples: times.len(),
        peak_rss_bytes: peak_resident_bytes(),
        tflops: flops / median / 1e9,
        model_tflops: of_model / median / 1e9,
        plan_peak_bytes: summary.peak_bytes,
        device_plan_bytes: memory.map(|m| m.planned),
        device_peak_bytes: memory.map(|m| m.peak),
        device_reserved_bytes: memory.map(|m| m.reserved),
        devices: program.needs.len(),
        host_ms,
        graph,
        memory_bytes: memory.map(|_| kernels.iter().map(|kernel| kernel.bytes).sum()),
        kernels,
        notes,
    })
}

/// The attention of a program that is computed by plain operations, and why.
fn slow_attention(
    cluster: &Cluster,
    program: &LoadedProgram,
    mut all: Vec<AttentionReport>,
) -> Result<Vec<String>, Failure> {
    note_no_kernels(&mut all, &program.plan, &cluster.attention_without_kernel(program.id)?);
    let lines = attention_lines(all.iter().filter(|a| !a.is_fast()));
    Ok(lines.into_iter().map(|line| format!("attention {line}")).collect())
}

/// Random inputs of each rank.
pub(crate) fn inputs(program: &LoadedProgram, seed: u64) -> Provider {
    let plan = &program.plan;
    let ranges: Vec<Option<usize>> = plan.inputs.iter().map(|i| i.range.map(|r| plan.dims.size(r))).collect();
    let names: Vec<String> = plan.inputs.iter().map(|i| i.name.clone()).collect();
    let high = |name: &str| names.iter().position(|n| n == name).and_then(|i| ranges[i]);
    let of = |leaves: &Vec<_>| leaves.iter().map(|l| random(l, seed, high(&l.name))).collect();
    let made: Vec<Vec<HostTensor>> = program.needs.iter().map(of).collect();
    let first = program.first;
    Arc::new(move |rank, _| Ok(made[rank - first].clone()))
}

/// The operations of a step: of all devices together, and of the model alone.
fn operations(project: &Project, program: &LoadedProgram) -> (f64, f64) {
    let all = program.plan.summary.flops as f64 * program.plan.mesh.devices() as f64;
    (all, training_step(&project.program).map_or(0, |step| model_flops(&step)) as f64)
}

/// Some quantiles of times; no numbers where there are none.
fn quantiles<const N: usize>(times: &mut [f64], of: [f64; N]) -> [f64; N] {
    times.sort_by(f64::total_cmp);
    let last = times.len().saturating_sub(1);
    of.map(|q| times.get(((q * times.len() as f64) as usize).min(last)).copied().unwrap_or(f64::NAN))
}

/// Whether devices report kernels, as GPUs do; threads do not.
fn tells(cluster: &Cluster) -> Result<bool, Failure> {
    Ok(cluster.memory()?.iter().any(Option::is_some))
}

/// Kernels of one more step: watching takes time, so the step is not a timed one.
fn kernels(
    cluster: &Cluster,
    program: &LoadedProgram,
    (step, by): (u64, KernelsBy),
    provider: &Provider,
) -> Result<Vec<KernelUse>, Failure> {
    if !tells(cluster)? {
        return Ok(vec![]);
    }
    let watch = cluster.watch_kernels(by);
    cluster.run(program.id, step, provider)?;
    // Waits for what the devices still have to do.
    cluster.memory()?;
    Ok(watch.end())
}

/// Memory of the device with the highest peak in one more step, which is watched: that takes time, so the step is not a
/// timed one.
fn peak_memory(
    cluster: &Cluster,
    program: &LoadedProgram,
    step: u64,
    provider: &Provider,
) -> Result<Option<Memory>, Failure> {
    if !tells(cluster)? {
        return Ok(None);
    }
    cluster.watch_memory(true)?;
    cluster.run(program.id, step, provider)?;
    Ok(cluster.memory()?.into_iter().flatten().max_by_key(|m| m.peak))
}

/// The devices with the training step loaded, and first values set.
pub(crate) fn loaded(
    project: &Project,
    sources: &Sources,
    options: &BenchOptions,
) -> Result<(Cluster, LoadedProgram, Vec<AttentionReport>), Failure> {
    let Some(step) = training_step(&project.program) else {
        return Err(Diagnostic::error(
            codes::E0516,
            "there is no `train` block, so no training step to time",
        )
        .help("add a `train` block to the model file")
        .into());
    };
    let compiled = compiled(project, &step, sources)?;
    let attention = attention(&compiled.spmd, &compiled.plan, &|span| line_of(sources, span));
    let mut cluster = start(project, options.cores, &options.devices)?;
    let program = load(&mut cluster, compiled.plan, Some((project, sources)))?;
    cluster.init_state(program.id, options.seed)?;
    Ok((cluster, program, attention))
}

/// Random values for one input of one device: positions for indices, bytes, truth values, or floats in 0..1.
fn random(leaf: &LocalInput, seed: u64, range: Option<usize>) -> HostTensor {
    use meshwright_plan::DType;
    let shape: Vec<usize> = leaf.ranges.iter().map(|r| r.len()).collect();
    let high = match (leaf.dtype, range) {
        (_, Some(n)) => n as f64,
        (DType::U8, _) => 256.0,
        (DType::Bool, _) => 2.0,
        (DType::I32, _) => 100.0,
        _ => 1.0,
    };
    let key = Key::new(seed, &leaf.name);
    let whole = leaf.dtype.is_float();
    let n: usize = shape.iter().product();
    let values =
        (0..n as u64).map(|i| uniform01(key, i) * high).map(|v| if whole { v } else { v.floor() }).collect();
    HostTensor { shape, data: HostData::from_f64(leaf.dtype, values) }
}
