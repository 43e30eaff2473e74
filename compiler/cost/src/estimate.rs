//! The estimate of a Plan on a machine.

pub use crate::memory::Fits;

use crate::dtype_rates::AssumedRate;
use crate::engine::EngineKind;
use crate::foreign::translated;
use crate::kernels::program;
use crate::machine::{DeviceKind, Machine, UNCALIBRATED};
use crate::pipe::{Pipe, PipeEstimate, StageBytes};
use crate::project::Projection;
use crate::rates::Rates;
use crate::stages::StagesWork;
use crate::timeline::{Spent, TimelineEvent, events, spent};
use crate::work::{DeviceWork, Transfer, WorkItem};
use meshwright_device::{CompileError, DevicePlan, compile_launches};
use meshwright_plan::KernelFamily;
use meshwright_plan::{Axis, Plan, StoredElements};
use meshwright_sorted::SortedMap;
use serde::Serialize;
use std::sync::Arc;

/// What an estimate needs besides the Plan.
#[derive(Clone, Debug)]
pub struct EstimateQuestion<'a> {
    /// The machine.
    pub machine: &'a Machine,
    /// What executes the Plan.
    pub engine: EngineKind,
    /// Operations of the model in a step, of all devices together.
    pub model_flops: f64,
    /// Examples of a step.
    pub examples: usize,
    /// Tokens of a step, where the model has any.
    pub tokens: Option<usize>,
    /// A pipeline over the loop of layers.
    pub pipe: Option<Pipe>,
    /// The relative rate of the slowest device: 1 where all are alike.
    pub slowest: f64,
}

/// Time and memory of a step.
#[derive(Clone, Debug, Serialize)]
pub struct Estimate {
    /// Number of devices, all stages of a pipeline together.
    pub devices: usize,
    /// Seconds of a step.
    pub seconds: f64,
    /// Relative error of `seconds`.
    pub error: f64,
    /// What `seconds` is spent on.
    pub breakdown: Breakdown,
    /// Seconds of collectives during which kernels run, by axes.
    pub hidden: SortedMap<String, f64>,
    /// Memory of the fullest device.
    pub memory: Memory,
    /// Operations of the model in a step, of all devices together.
    pub model_flops: f64,
    /// Model FLOPs utilization: `model_flops / (seconds devices peak)`; none where the machine has no peak for the dtype.
    pub mfu: Option<f64>,
    /// Tera operations of the model per second on each device.
    pub tflops_per_device: f64,
    /// Examples per second, of all devices together.
    pub examples_per_second: f64,
    /// Tokens per second, of all devices together; none for a model without tokens.
    pub tokens_per_second: Option<f64>,
    /// The same of a device.
    pub tokens_per_second_per_device: Option<f64>,
    /// Kernels that a device launches in a step.
    pub kernels: u64,
    /// Bytes that they read and write.
    pub bytes: u64,
    /// The pipeline.
    pub pipe: Option<PipeEstimate>,
    /// Rates of products that the machine file lacks, and what was taken for them.
    pub assumed_rates: Vec<AssumedRate>,
    /// Collectives, those with the same step in the Plan together.
    pub collectives: Vec<CollectiveEstimate>,
}

/// Seconds of a step by what they are spent on; the sum is the step.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Breakdown {
    /// Matrix products and convolutions.
    pub matmul: f64,
    /// Attention.
    pub attention: f64,
    /// What reads and writes memory.
    pub memory_bound: f64,
    /// The optimizer.
    pub update: f64,
    /// From one kernel to the next.
    pub launch: f64,
    /// Waiting for collectives, by axes.
    pub exposed: SortedMap<String, f64>,
    /// Seconds that kernels lose to collectives that run at the same time.
    pub contention: f64,
    /// Stages of a pipeline that wait for others.
    pub bubble: f64,
    /// Waiting for the slowest device.
    pub straggler: f64,
}

impl Breakdown {
    /// Seconds that kernels wait for collectives, over all axes.
    pub fn exposed_seconds(&self) -> f64 {
        total(self.exposed.values())
    }

    /// The seconds of each part by name, with the family of work whose error it has; all waiting for collectives together.
    pub fn parts(&self) -> [(&'static str, f64, &'static str); 9] {
        [
            ("matmul", self.matmul, "matmul"),
            ("attention", self.attention, "attention"),
            ("memory_bound", self.memory_bound, "memory_bound"),
            ("update", self.update, "memory_bound"),
            ("launch", self.launch, "launch"),
            ("exposed", self.exposed_seconds(), "collective"),
            ("contention", self.contention, "collective"),
            ("bubble", self.bubble, "bubble"),
            ("straggler", self.straggler, "bubble"),
        ]
    }

    /// The sum.
    pub fn sum(&self) -> f64 {
        self.parts().iter().map(|p| p.1).sum()
    }
}

/// Bytes of the fullest device.
#[derive(Clone, Debug, Serialize)]
pub struct Memory {
    /// Greatest sum of the buffers of the Plan that are alive at once, in the form in which the device stores them.
    pub peak_bytes: u64,
    /// The same with what a device reserves.
    pub device_bytes: u64,
    /// The verdict.
    pub fits: Fits,
    /// Parameters at the peak.
    pub parameters: u64,
    /// States of the optimizer at the peak.
    pub optimizer_state: u64,
    /// What is made of parameters alone, such as gathered shards, at the peak.
    pub working_copies: u64,
    /// Gradients at the peak.
    pub gradients: u64,
    /// What the forward pass keeps for the backward pass, at the peak.
    pub residuals: u64,
    /// Copies of what others hold, other than parameters, at the peak.
    pub communication: u64,
    /// All else at the peak.
    pub workspace: u64,
}

/// A collective of the Plan.
#[derive(Clone, Debug, Serialize)]
pub struct CollectiveEstimate {
    /// `all_reduce` and so on.
    pub op: String,
    /// Axes of its group, by name.
    pub axes: Vec<String>,
    /// Bytes of a device's buffer each time.
    pub bytes: u64,
    /// Times that it runs in a step.
    pub times: u64,
    /// Devices of a group.
    pub members: usize,
    /// Nodes of a group.
    pub nodes: usize,
    /// The line of the machine file.
    pub algorithm: String,
    /// Seconds of all times together.
    pub seconds: f64,
    /// Those of them that kernels wait for.
    pub exposed_seconds: f64,
    /// Path of the value.
    pub value: String,
    /// Its line in the model.
    pub line: u32,
    /// Line of the layout rule that asks for it, if one does.
    pub rule: Option<u32>,
    /// Step of the Plan.
    pub step: usize,
}

/// The reason for a missing estimate.
#[derive(Debug, thiserror::Error)]
pub enum EstimateError {
    /// A device plan cannot be compiled.
    #[error(transparent)]
    Device(#[from] CompileError),
    /// A pipeline does not fit the Plan.
    #[error("{0}")]
    Pipe(String),
    /// More operations than the peak: the machine file is wrong.
    #[error(
        "the estimate is faster than the peak of {machine}: {percent:.0} % of {peak:.3e} operations per second; its `peak`, or one of its rates of products and attention, is wrong"
    )]
    AbovePeak {
        /// The machine.
        machine: String,
        /// MFU in percent.
        percent: f64,
        /// The peak.
        peak: f64,
    },
}

/// Estimates a training step.
///
/// # Errors
/// Where a device plan cannot be compiled, or a pipeline does not fit.
pub fn estimate(plan: &Plan, asked: &EstimateQuestion<'_>) -> Result<Estimate, EstimateError> {
    estimate_of(plan, asked).map(|e| e.0)
}

/// [`estimate`], with the work that it is of.
///
/// # Errors
/// Where a device plan cannot be compiled, or a pipeline does not fit.
pub fn estimate_of(
    plan: &Plan,
    asked: &EstimateQuestion<'_>,
) -> Result<(Estimate, DeviceWork), EstimateError> {
    let device = PlanOnDevice::of(plan, asked)?;
    let estimate = device.estimate(asked, asked.pipe.as_ref())?;
    Ok((estimate, Arc::unwrap_or_clone(device.run)))
}

/// [`estimate`] for each of some pipelines. A Plan with stages has their number of them, and the passes of their schedules: what
/// differs is the order of passes, and how many stages a device has. Of a Plan without stages they are projected.
///
/// # Errors
/// Those of [`estimate`].
pub fn estimate_pipes(
    plan: &Plan,
    asked: &EstimateQuestion<'_>,
    pipes: &[Pipe],
) -> Result<Vec<Estimate>, EstimateError> {
    let device = PlanOnDevice::of(plan, asked)?;
    let each = |pipe: &Pipe| {
        let Some(own) = &device.stages else { return device.estimate(asked, Some(pipe)) };
        let plan = plan.in_chunks(pipe.schedule, pipe.chunks);
        let plan = plan.ok_or_else(|| EstimateError::Pipe("the Plan has no stages".into()))?;
        let (run, stages) = (device.run.clone(), own.in_chunks(&plan));
        PlanOnDevice { plan: &plan, device: device.device.clone(), run, stages }.estimate(asked, None)
    };
    pipes.iter().map(each).collect()
}

/// A Plan with its device plan, and what this does; of a Plan whose layers are stages also what the devices of each stage do.
/// Estimates of machines with the same engine of this project share it; what a foreign engine runs depends on its machine.
pub struct PlanOnDevice<'a> {
    plan: &'a Plan,
    device: Arc<DevicePlan>,
    run: Arc<DeviceWork>,
    stages: Option<StagesWork<'a>>,
}

impl<'a> PlanOnDevice<'a> {
    /// Compiles a Plan for the devices of an engine.
    ///
    /// # Errors
    /// Where a device plan cannot be compiled.
    pub fn of(plan: &'a Plan, asked: &EstimateQuestion<'_>) -> Result<PlanOnDevice<'a>, CompileError> {
        let rates = Rates::new(asked.machine, &asked.engine, &plan.mesh);
        let (device, run) = work(plan, asked, &rates)?;
        let stages = StagesWork::of(plan, &device)?;
        Ok(PlanOnDevice { plan, device: Arc::new(device), run: Arc::new(run), stages })
    }

    /// What a step costs on a machine of that engine, with `pipe` in a pipeline over the loop of layers.
    ///
    /// # Errors
    /// Those of [`estimate`].
    pub fn estimate(
        &self,
        asked: &EstimateQuestion<'_>,
        pipe: Option<&Pipe>,
    ) -> Result<Estimate, EstimateError> {
        let PlanOnDevice { plan, device, run, stages: own } = self;
        let stages = pipe.map_or(1, |p| p.stages);
        let rates = &Rates::new(asked.machine, &asked.engine, &plan.mesh).of_stage(&asked.engine, stages);
        let (spent, pipe, held) = match (pipe, own) {
            (None, None) => (spent(run, rates), None, None),
            (None, Some(own)) if matches!(asked.engine, EngineKind::Foreign(_)) => {
                let what = own.described();
                return Err(EstimateError::Pipe(format!(
                    "the layout has {what}, which only this project's engine runs: leave that rule out, and ask for a pipeline of another engine"
                )));
            }
            (None, Some(own)) => {
                let (spent, pipe) = own.spent(rates).map_err(EstimateError::Pipe)?;
                (spent, Some(pipe), None)
            }
            (Some(_), Some(own)) => {
                let what = own.described();
                return Err(EstimateError::Pipe(format!(
                    "the layout has {what} already: ask for a pipeline, or let the layout say it"
                )));
            }
            (Some(pipe), None) => {
                let projection =
                    Projection::of(plan, run, rates, &asked.engine, pipe).map_err(EstimateError::Pipe)?;
                let (spent, of) = projection.played().map_err(EstimateError::Pipe)?;
                (spent, Some(of), Some(projection.held(plan)))
            }
        };
        let projected = held.is_some();
        let bubble = pipe.as_ref().map_or(0.0, |p| p.bubble);
        let devices = plan.mesh.devices() * stages;
        let busy = spent.seconds() + bubble;
        let seconds = busy * stragglers(plan, asked);
        let breakdown = breakdown(plan, &spent, bubble, seconds - busy);
        let peak = rates.device().peak(plan.float);
        let flops = asked.model_flops;
        let mfu = peak.filter(|_| seconds > 0.0).map(|p| flops / (seconds * devices as f64 * p));
        if let (Some(mfu), Some(peak)) = (mfu.filter(|m| *m > 1.0), peak) {
            let machine = asked.machine.name.clone();
            return Err(EstimateError::AbovePeak { machine, percent: 100.0 * mfu, peak });
        }
        let tokens = asked.tokens.map(|t| t as f64 / seconds);
        Ok(Estimate {
            devices,
            seconds,
            error: error(asked.machine, &asked.engine, &breakdown),
            hidden: named(plan, &spent.hidden, NOTHING),
            memory: match held {
                Some(held) => held_memory(&held, asked.machine),
                None => memory(plan, &device.stored, asked.machine),
            }
            .of_others(matches!(asked.engine, EngineKind::Foreign(_)) || projected),
            model_flops: asked.model_flops,
            mfu,
            tflops_per_device: flops / seconds / devices as f64 / 1e12,
            examples_per_second: asked.examples as f64 / seconds,
            tokens_per_second: tokens,
            tokens_per_second_per_device: tokens.map(|t| t / devices as f64),
            kernels: spent.moved.0.round() as u64,
            bytes: spent.moved.1.round() as u64,
            pipe,
            assumed_rates: {
                let items = run.body.iter().chain(own.iter().flat_map(StagesWork::items).flatten());
                rates.device().assumed(items.flat_map(WorkItem::kernels))
            },
            collectives: collectives(plan, (run, own.as_ref()), &spent, rates),
            breakdown,
        })
    }
}

/// All that runs on the device of rank 0 in a step, without a pipeline. No turn of a loop is left out.
///
/// # Errors
/// Where a device plan cannot be compiled.
pub fn timeline(plan: &Plan, asked: &EstimateQuestion<'_>) -> Result<Vec<TimelineEvent>, EstimateError> {
    let rates = Rates::new(asked.machine, &asked.engine, &plan.mesh);
    let (device, run) = work(plan, asked, &rates)?;
    match StagesWork::of(plan, &device)? {
        Some(stages) => stages.events(&rates).map_err(EstimateError::Pipe),
        None => Ok(events(&run, &rates).1),
    }
}

/// The device plan of rank 0, and its work as the engine runs it.
fn work(
    plan: &Plan,
    asked: &EstimateQuestion<'_>,
    rates: &Rates<'_>,
) -> Result<(DevicePlan, DeviceWork), CompileError> {
    let device = compile_launches(plan, 0, asked.engine.target_on(asked.machine))?;
    let own = program(plan, &device);
    let run = match &asked.engine {
        EngineKind::Foreign(facts) => translated(plan, &own, facts, rates),
        _ => own,
    };
    Ok((device, run))
}

/// Relative time of a step in which all wait for the slowest device: a part for each doubling of the replicas beyond a node, and
/// a device that is slow.
fn stragglers(plan: &Plan, asked: &EstimateQuestion<'_>) -> f64 {
    let d = &asked.machine.device;
    let node = asked.machine.tier.first().map_or(1, |t| t.size.max(1)) as f64;
    let example = plan.inputs.first().and_then(|i| i.dims.first());
    let split = plan.program_inputs.iter().find_map(|i| {
        let at = i.dims.iter().position(|d| Some(d) == example)?;
        Some(plan.buffer(i.buf).extents[at].axes.clone())
    });
    let replicas: usize = split.unwrap_or_default().iter().map(|a| plan.mesh.size(*a)).product();
    let doublings = match d.kind {
        DeviceKind::Gpu => (replicas as f64 / node).log2().max(0.0),
        DeviceKind::Cpu => 0.0,
    };
    (1.0 + d.straggle * doublings) / asked.slowest
}

fn names(plan: &Plan, axes: &[Axis]) -> Vec<String> {
    axes.iter().map(|a| plan.mesh.name(*a).to_string()).collect()
}

/// Seconds that are none: a collective that is waited for whole leaves the rounding of a difference.
const NOTHING: f64 = 1e-9;

fn named(plan: &Plan, by: &SortedMap<Vec<Axis>, f64>, above: f64) -> SortedMap<String, f64> {
    by.iter().filter(|(_, s)| **s > above).map(|(axes, s)| (names(plan, axes).join(","), *s)).collect()
}

/// The sum of some seconds. That of none is 0, where `sum` of floats has -0, which JSON shows.
fn total<'a>(all: impl Iterator<Item = &'a f64>) -> f64 {
    all.fold(0.0, |sum, seconds| sum + seconds)
}

fn breakdown(plan: &Plan, spent: &Spent, bubble: f64, straggler: f64) -> Breakdown {
    let products = |f: &KernelFamily| matches!(f, KernelFamily::Matmul | KernelFamily::Convolve);
    let attends = |f: &KernelFamily| matches!(f, KernelFamily::Attention);
    let of = |wanted: &dyn Fn(&KernelFamily) -> bool| {
        total(spent.families.iter().filter(|(family, _)| wanted(family)).map(|f| f.1))
    };
    Breakdown {
        matmul: of(&products),
        attention: of(&attends),
        memory_bound: of(&|f| !products(f) && !attends(f)),
        update: spent.update,
        launch: spent.launch,
        exposed: named(plan, &spent.exposed, 0.0),
        contention: spent.contention,
        bubble,
        straggler,
    }
}

/// Relative error of the time of a family of work. Nothing has measured the collectives of another engine than the one that was
/// calibrated.
pub fn family_error(machine: &Machine, engine: &EngineKind, family: &str) -> f64 {
    let measured = machine.calibration.as_ref().and_then(|c| c.engine.as_deref());
    let other = measured.is_some_and(|measured| measured != engine.name());
    match machine.error(family) {
        error if other && family == "collective" => error.max(UNCALIBRATED),
        error => error,
    }
}

/// Relative error of a step: those of the families, each by its part of the time.
fn error(machine: &Machine, engine: &EngineKind, breakdown: &Breakdown) -> f64 {
    let sum = breakdown.sum();
    if sum <= 0.0 || machine.calibration.is_none() && machine.errors.is_empty() {
        return machine.calibration.as_ref().map_or(UNCALIBRATED, |c| c.mean_error);
    }
    let weighted = |(_, seconds, family)| seconds / sum * family_error(machine, engine, family);
    breakdown.parts().into_iter().map(weighted).sum()
}

impl Memory {
    /// Of an engine or a schedule that is not the Plan's own, nothing says for certain that it does not fit.
    fn of_others(mut self, others: bool) -> Memory {
        if let (true, Fits::No { .. }) = (others, self.fits) {
            self.fits = Fits::Tight { free: 0 };
        }
        self
    }
}

/// Bytes by use at the peak.
fn memory(plan: &Plan, stored: &StoredElements, machine: &Machine) -> Memory {
    let held = plan.peak_memory(stored);
    let peak = held.peak_bytes;
    Memory {
        peak_bytes: peak,
        device_bytes: peak + machine.device.reserve as u64,
        fits: Fits::of(peak, machine),
        parameters: held.parameter_bytes,
        optimizer_state: held.optimizer_state_bytes,
        working_copies: held.working_copy_bytes,
        gradients: held.gradient_bytes,
        residuals: held.residual_bytes,
        communication: held.communication_bytes,
        workspace: held.workspace_bytes,
    }
}

fn held_memory(held: &StageBytes, machine: &Machine) -> Memory {
    let parts = [held.parameters, held.optimizer_state, held.gradients, held.residuals, held.workspace];
    let peak = parts.iter().sum::<f64>() as u64;
    Memory {
        peak_bytes: peak,
        device_bytes: peak + machine.device.reserve as u64,
        fits: Fits::of(peak, machine),
        parameters: held.parameters as u64,
        optimizer_state: held.optimizer_state as u64,
        working_copies: 0,
        gradients: held.gradients as u64,
        residuals: held.residuals as u64,
        communication: 0,
        workspace: held.workspace as u64,
    }
}

fn collectives(
    plan: &Plan,
    (run, stages): (&DeviceWork, Option<&StagesWork<'_>>),
    spent: &Spent,
    rates: &Rates<'_>,
) -> Vec<CollectiveEstimate> {
    let mut all: SortedMap<usize, &Transfer> = SortedMap::new();
    transfers(&run.body, &mut all);
    stages.into_iter().flat_map(StagesWork::items).for_each(|items| transfers(items, &mut all));
    let of = |(step, transfer): (&usize, &&Transfer)| {
        let (times, seconds, exposed) = spent.collectives.get(step).copied()?;
        let time = rates.collective(transfer);
        let origin = plan.steps[*step].origin.first();
        Some(CollectiveEstimate {
            op: transfer.kind.name().into(),
            axes: names(plan, &transfer.axes),
            bytes: transfer.bytes as u64,
            times: times.round() as u64,
            members: time.members,
            nodes: time.nodes,
            algorithm: time.algorithm,
            seconds,
            exposed_seconds: exposed,
            value: origin.map_or_else(String::new, |o| o.path.to_string()),
            line: origin.map_or(0, |o| o.line),
            rule: origin.and_then(|o| o.rule),
            step: *step,
        })
    };
    all.iter().filter_map(of).collect()
}

fn transfers<'p>(items: &'p [WorkItem], all: &mut SortedMap<usize, &'p Transfer>) {
    for item in items {
        match item {
            WorkItem::Start(t) => {
                all.insert(t.step, t);
            }
            WorkItem::Loop(of) => of.body.iter().for_each(|(i, _)| transfers(std::slice::from_ref(i), all)),
            WorkItem::Work(_) | WorkItem::Wait(_) => {}
        }
    }
}

/// The part of the time that makes progress between failures, with the best interval between checkpoints (Young 1974, Daly 2006).
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Goodput {
    /// Part of the time, in 0..=1.
    pub share: f64,
    /// Seconds between checkpoints.
    pub interval: f64,
    /// Seconds between failures of any device.
    pub between: f64,
}

impl Goodput {
    /// Of a number of devices; none where the machine file says nothing of failures.
    pub fn of(machine: &Machine, devices: usize) -> Option<Goodput> {
        let f = machine.failures.as_ref()?;
        let between = f.hours * 3600.0 / devices as f64;
        let interval = (2.0 * f.checkpoint * between).sqrt();
        let lost = f.checkpoint / interval + interval / (2.0 * between) + f.restart / between;
        Some(Goodput { share: (1.0 - lost).max(0.0), interval, between })
    }
}
