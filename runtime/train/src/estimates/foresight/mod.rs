//! Published runs, and what the estimates say of them.

mod open_choices;

use crate::estimates::{EstimateOptions, estimated, machine};
use crate::failure::Failure;
use crate::project::{Project, ProjectOptions};
use meshwright_cost::collective::collective;
use meshwright_cost::dtype_rates::AssumedRate;
use meshwright_cost::engine::{EngineFacts, EngineKind};
use meshwright_cost::estimate::{Estimate, Fits};
use meshwright_cost::machine::Machine;
use meshwright_cost::pipe::Pipe;
use meshwright_diag::{Diagnostic, codes};
use meshwright_files::Checked;
use meshwright_plan::actions::PipelineSchedule;
use meshwright_plan::{Arithmetic, CollectiveKind};
use meshwright_sorted::SortedMap;
use open_choices::OpenChoice;
use serde::{Deserialize, Serialize};

/// Files of published runs that ship: name and text.
pub const SHIPPED_RUNS: [(&str, &str); 4] = [
    ("d5.toml", include_str!("../../../../../tests/foresight/runs/d5.toml")),
    ("d7.toml", include_str!("../../../../../tests/foresight/runs/d7.toml")),
    ("d9.toml", include_str!("../../../../../tests/foresight/runs/d9.toml")),
    ("d12.toml", include_str!("../../../../../tests/foresight/runs/d12.toml")),
];

/// A file of published runs.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunsFile {
    /// Version of the format: 1.
    pub version: u32,
    /// Facts about the systems that ran.
    #[serde(default)]
    pub engine: SortedMap<String, EngineFacts>,
    /// Training runs.
    #[serde(default)]
    pub run: Vec<PublishedRun>,
    /// Collectives.
    #[serde(default)]
    pub collective: Vec<PublishedCollective>,
}

/// A pipeline of a published run.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublishedPipe {
    /// Stages on different devices.
    pub stages: usize,
    /// `gpipe`, `1f1b` or `zb_h1`.
    #[serde(default = "one_forward_one_backward")]
    pub schedule: String,
    /// Stages of a device.
    #[serde(default = "one")]
    pub chunks: usize,
    /// With 1, embedding and logits count as a layer each.
    #[serde(default)]
    pub ends: usize,
}

fn one_forward_one_backward() -> String {
    "1f1b".into()
}

fn one() -> usize {
    1
}

/// A published run.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublishedRun {
    /// Its name.
    pub id: String,
    /// Where it is published.
    #[serde(default)]
    pub source: String,
    /// The model.
    pub model: String,
    /// A preset of the model.
    #[serde(default)]
    pub preset: Option<String>,
    /// Sizes of dims.
    #[serde(default)]
    pub dims: SortedMap<String, usize>,
    /// Values of consts.
    #[serde(default)]
    pub sets: SortedMap<String, f64>,
    /// The mesh, of one stage where there is a pipeline; without one a single device.
    #[serde(default)]
    pub mesh: Option<String>,
    /// Rules.
    #[serde(default)]
    pub layout: Option<String>,
    /// The pipeline.
    #[serde(default)]
    pub pipe: Option<PublishedPipe>,
    /// `bf16`, `f16`, `f32`, `f64`, `tf32`, or `fp8` for products in 8 bits.
    pub precision: String,
    /// The machine.
    pub machine: String,
    /// A name among the engines of the file, or `threads`, `mpi`, `cuda`.
    pub engine: String,
    /// Seconds of a step.
    #[serde(default)]
    pub seconds: Option<f64>,
    /// Tokens per second of a device, in place of `seconds`.
    #[serde(default)]
    pub tokens_per_second_per_device: Option<f64>,
    /// Memory of a device.
    #[serde(default)]
    pub memory_gib: Option<f64>,
    /// What the source does not state: `microbatches`, `recompute`, a key of the pipeline or of the engine. The fastest that fits
    /// is taken.
    #[serde(default)]
    pub open: Vec<String>,
}

/// A published time of a collective.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublishedCollective {
    /// `all_reduce` and so on.
    pub op: String,
    /// Bytes of a device's buffer.
    pub bytes: f64,
    /// Consecutive devices.
    pub devices: usize,
    /// The machine.
    pub machine: String,
    /// Seconds.
    pub seconds: f64,
    /// Where it is published.
    #[serde(default)]
    pub source: String,
}

/// A published time beside the estimated one.
#[derive(Clone, Debug, Serialize)]
pub struct ForesightRow {
    /// The run, or the collective.
    pub id: String,
    /// Published seconds.
    pub seconds: f64,
    /// Estimated seconds.
    pub estimated: f64,
    /// `estimated / seconds - 1`.
    pub error: f64,
    /// Operations of the model per second and device; 0 of a collective.
    pub flops_per_device: f64,
    /// Published GiB of a device.
    pub memory_gib: Option<f64>,
    /// Estimated GiB of a device; none of a collective.
    pub estimated_gib: Option<f64>,
    /// Whether the estimate says that this run, which exists, does not fit.
    pub refused: bool,
    /// Rates of products that the machine file lacks, and what was taken for them.
    pub assumed_rates: Vec<AssumedRate>,
    /// What was chosen of what the source does not state.
    pub chosen: Vec<String>,
}

/// The least and the greatest number that a run may have published, in seconds, bytes, GiB or tokens a second.
const PUBLISHED: (f64, f64) = (1e-9, 1e18);

fn wrong(message: impl Into<String>) -> Box<Diagnostic> {
    Box::new(Diagnostic::error(codes::E0531, message))
}

/// Reads a file of runs.
///
/// # Errors
/// Where it has mistakes.
pub fn read_runs(path: &str, text: &str) -> Checked<RunsFile> {
    let file: RunsFile =
        toml::from_str(text).map_err(|e| wrong(format!("{path}: {}", e.to_string().trim_end())))?;
    if file.version != 1 {
        return Err(wrong(format!(
            "{path}: version {} of runs files is not known; this program reads 1",
            file.version
        )));
    }
    for run in &file.run {
        let numbers = [
            ("seconds", run.seconds),
            ("tokens_per_second_per_device", run.tokens_per_second_per_device),
            ("memory_gib", run.memory_gib),
        ];
        in_range(&numbers).map_err(|e| wrong(format!("{path}: run `{}`: {e}", run.id)))?;
    }
    for c in &file.collective {
        in_range(&[
            ("seconds", Some(c.seconds)),
            ("bytes", Some(c.bytes)),
            ("devices", Some(c.devices as f64)),
        ])
        .map_err(|e| wrong(format!("{path}: {} on {}: {e}", c.op, c.machine)))?;
    }
    Ok(file)
}

/// Errors are relative to published numbers, so these are no zeros, nor so near to them that a ratio overflows.
fn in_range(numbers: &[(&str, Option<f64>)]) -> Result<(), String> {
    let (least, most) = PUBLISHED;
    let outside = |(_, v): &&(&str, Option<f64>)| v.is_some_and(|v| !(least..=most).contains(&v));
    numbers.iter().find(outside).map_or(Ok(()), |(name, v)| {
        let v = v.unwrap_or_default();
        Err(format!("`{name}` is {v:e}; a published number is between {least:e} and {most:e}"))
    })
}

/// The rows of a file. `changes` are made to every machine.
///
/// # Errors
/// Where a run does not compile; the error names it.
pub fn rows(path: &str, file: &RunsFile, changes: &[String]) -> Checked<Vec<ForesightRow>> {
    let mut machines: SortedMap<String, Machine> = SortedMap::new();
    let mut of = |name: &str| -> Checked<Machine> {
        if let Some(known) = machines.get(name) {
            return Ok(known.clone());
        }
        let read = machine(name, changes)?;
        machines.insert(name.to_string(), read.clone());
        Ok(read)
    };
    let mut rows = vec![];
    for run in &file.run {
        let machine = of(&run.machine)?;
        rows.push(row(file, run, machine).map_err(|e| wrong(format!("{path}: run `{}`: {e}", run.id)))?);
    }
    for c in &file.collective {
        rows.push(collective_row(c, &of(&c.machine)?).map_err(|e| wrong(format!("{path}: {e}")))?);
    }
    Ok(rows)
}

fn collective_row(c: &PublishedCollective, machine: &Machine) -> Result<ForesightRow, String> {
    let kind = CollectiveKind::ALL
        .into_iter()
        .find(|k| k.name() == c.op)
        .ok_or_else(|| format!("`{}` is no collective", c.op))?;
    let ranks: Vec<usize> = (0..c.devices).collect();
    let estimated = collective(machine, kind, c.bytes, &ranks).seconds;
    Ok(ForesightRow {
        id: format!("{} of {} bytes, {} devices of {}", c.op, c.bytes, c.devices, c.machine),
        seconds: c.seconds,
        estimated,
        error: estimated / c.seconds - 1.0,
        flops_per_device: 0.0,
        memory_gib: None,
        estimated_gib: None,
        refused: false,
        assumed_rates: vec![],
        chosen: vec![],
    })
}

fn does_not_fit(e: &Estimate) -> bool {
    matches!(e.memory.fits, Fits::No { .. })
}

fn row(file: &RunsFile, run: &PublishedRun, machine: Machine) -> Result<ForesightRow, String> {
    let mut best: Option<(Estimate, OpenChoice)> = None;
    let mut failed = String::new();
    for choice in OpenChoice::all(&run.open, (&run.engine, run.pipe.is_some()), &machine)? {
        match one_estimate(file, run, &machine, &choice) {
            Ok(e) => {
                let better = best.as_ref().is_none_or(|(b, _)| {
                    let key = |e: &Estimate| (does_not_fit(e), e.seconds);
                    key(&e).partial_cmp(&key(b)).is_some_and(std::cmp::Ordering::is_lt)
                });
                if better {
                    best = Some((e, choice));
                }
            }
            Err(why) => failed = why,
        }
    }
    let (e, chosen) = best.ok_or(failed)?;
    let seconds = match (run.seconds, run.tokens_per_second_per_device) {
        (Some(s), _) => s,
        (None, Some(rate)) => {
            let each = e.tokens_per_second_per_device.ok_or("the model has no tokens")?;
            each * e.seconds / rate
        }
        (None, None) => return Err("give `seconds` or `tokens_per_second_per_device`".into()),
    };
    Ok(ForesightRow {
        id: run.id.clone(),
        seconds,
        estimated: e.seconds,
        error: e.seconds / seconds - 1.0,
        flops_per_device: e.tflops_per_device * 1e12,
        memory_gib: run.memory_gib,
        estimated_gib: Some(e.memory.device_bytes as f64 / f64::from(1 << 30)),
        refused: does_not_fit(&e),
        assumed_rates: e.assumed_rates,
        chosen: chosen.said(),
    })
}

fn one_estimate(
    file: &RunsFile,
    run: &PublishedRun,
    machine: &Machine,
    choice: &OpenChoice,
) -> Result<Estimate, String> {
    let mut precision = match run.precision.as_str() {
        "fp16" => Arithmetic::F16,
        name => Arithmetic::named(name).ok_or_else(|| format!("`{name}` is no precision"))?,
    };
    let engine = match run.engine.as_str() {
        "threads" => EngineKind::Threads,
        "mpi" => EngineKind::Mpi,
        "cuda" => EngineKind::Cuda,
        name => {
            let stated = file.engine.get(name).ok_or_else(|| format!("no `[engine.{name}]`"))?;
            let mut facts = choice.facts(stated)?;
            if precision == Arithmetic::FP8 {
                // How another system scales is among its facts: the program itself is one of `bf16`.
                (precision, facts.dtype) = (Arithmetic::BF16, "fp8".into());
            }
            EngineKind::Foreign(Box::new(facts))
        }
    };
    let layout: Vec<String> = run.layout.iter().chain(choice.rules()).cloned().collect();
    let options = ProjectOptions {
        model: run.model.clone(),
        layout: Some(layout.join("; ")).filter(|l| !l.trim().is_empty()),
        mesh: run.mesh.clone().filter(|m| !m.is_empty()),
        dims: run.dims.iter().map(|(k, v)| (k.clone(), *v)).collect(),
        sets: run.sets.iter().map(|(k, v)| (k.clone(), *v)).collect(),
        preset: run.preset.clone(),
        precision: Some(precision),
        whole_losses: matches!(engine, EngineKind::Foreign(_)),
        ..ProjectOptions::default()
    };
    let pipe = match &run.pipe {
        None => None,
        Some(stated) => {
            let p = choice.pipe(stated)?;
            let schedule = PipelineSchedule::named(&p.schedule)
                .ok_or_else(|| format!("`{}` is no schedule", p.schedule))?;
            Some(Pipe { stages: p.stages, schedule, chunks: p.chunks, ends: p.ends > 0 })
        }
    };
    let loaded = Project::load(&options);
    let texts = |found: &[Diagnostic]| found.iter().map(|d| d.message.clone()).collect::<Vec<_>>().join("; ");
    let project = loaded.project.ok_or_else(|| texts(&loaded.diagnostics))?;
    let asked = EstimateOptions { machine: machine.clone(), engine, pipe, slowest: 1.0 };
    estimated(&project, &loaded.sources, &asked).map_err(|e| match e {
        Failure::Diagnostics(found) => texts(&found),
        other => format!("{other:?}"),
    })
}

/// Errors of rows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ForesightSummary {
    /// Number of rows.
    pub rows: usize,
    /// Mean of the relative errors without their signs.
    pub mean: f64,
    /// The greatest of them.
    pub max: f64,
    /// Mean of the relative errors.
    pub bias: f64,
    /// Runs that exist and are said not to fit.
    pub refused: usize,
    /// Kendall's tau-b of operations per second and device, published and estimated; none for fewer than two runs.
    pub tau: Option<f64>,
}

/// The errors of rows.
pub fn summary(rows: &[ForesightRow]) -> ForesightSummary {
    let n = rows.len().max(1) as f64;
    let runs: Vec<(f64, f64)> = rows
        .iter()
        .filter(|r| r.flops_per_device > 0.0)
        .map(|r| (r.flops_per_device * r.estimated / r.seconds, r.flops_per_device))
        .collect();
    ForesightSummary {
        rows: rows.len(),
        mean: rows.iter().map(|r| r.error.abs()).sum::<f64>() / n,
        max: rows.iter().map(|r| r.error.abs()).fold(0.0, f64::max),
        bias: rows.iter().map(|r| r.error).sum::<f64>() / n,
        refused: rows.iter().filter(|r| r.refused).count(),
        tau: kendall(&runs),
    }
}

/// Kendall's rank correlation, tau-b (Kendall 1945); none where either value is the same in all pairs.
pub fn kendall(pairs: &[(f64, f64)]) -> Option<f64> {
    let (mut both, mut first, mut second) = (0.0, 0.0f64, 0.0f64);
    for (i, a) in pairs.iter().enumerate() {
        for b in &pairs[i + 1..] {
            let (x, y) = (sign(a.0 - b.0), sign(a.1 - b.1));
            both += x * y;
            first += x * x;
            second += y * y;
        }
    }
    let scale = (first * second).sqrt();
    (scale > 0.0).then(|| both / scale)
}

fn sign(x: f64) -> f64 {
    if x == 0.0 { 0.0 } else { x.signum() }
}
