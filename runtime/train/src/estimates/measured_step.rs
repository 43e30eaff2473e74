//! Measured times of a step of training next to the estimates: by kind of work, and by collective.

use meshwright_cost::dtype_rates::AssumedRate;
use meshwright_cost::estimate::{EstimateError, EstimateQuestion, estimate, timeline};
use meshwright_cost::kernels::program;
use meshwright_cost::work::{KernelPurpose, KernelWork, WorkItem};
use meshwright_device::compile_launches;
use meshwright_exec::{Record, What};
use meshwright_plan::{KernelFamily, Phase, Plan, Prim};
use meshwright_sorted::SortedMap;
use serde::Serialize;

/// A training step as one device was seen to run it: medians over several.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MeasuredStep {
    /// Seconds of the whole.
    pub seconds: f64,
    /// What lies between the quartiles of these, relative to the median.
    pub spread: f64,
    /// How many were seen.
    pub steps: usize,
    /// Seconds by step of the Plan, over all iterations of loops.
    pub by_step: SortedMap<usize, f64>,
    /// The lower quartiles of both: times that nothing else at work has delayed.
    pub undelayed: (f64, SortedMap<usize, f64>),
}

impl MeasuredStep {
    /// Of the records of a device; none where no training step is whole.
    pub fn of(records: &[Record]) -> Option<MeasuredStep> {
        let mut whole: SortedMap<u64, f64> = SortedMap::new();
        let mut parts: SortedMap<usize, SortedMap<u64, f64>> = SortedMap::new();
        for r in records {
            let seconds = r.end.saturating_sub(r.begin) as f64 / 1e9;
            match r.what {
                What::Step => drop(whole.insert(r.step_number, seconds)),
                _ => *parts.entry(r.at as usize).or_default().entry(r.step_number).or_default() += seconds,
            }
        }
        let [low, seconds, high] = quartiles(whole.values().copied().collect())?;
        let of = |(at, by): (usize, SortedMap<u64, f64>)| {
            let seen = by.into_iter().filter(|(n, _)| whole.contains_key(n)).map(|p| p.1);
            Some((at, quartiles(seen.collect())?))
        };
        let parts = parts.into_iter().filter_map(of).collect();
        Some(MeasuredStep::new([low, seconds, high], whole.len(), parts))
    }

    /// A measured step, from the quartiles of `steps` whole steps and those of their parts.
    fn new([low, seconds, high]: [f64; 3], steps: usize, parts: Vec<(usize, [f64; 3])>) -> MeasuredStep {
        MeasuredStep {
            seconds,
            spread: (high - low) / seconds,
            steps,
            by_step: parts.iter().map(|(at, q)| (*at, q[1])).collect(),
            undelayed: (low, parts.iter().map(|(at, q)| (*at, q[0])).collect()),
        }
    }
}

impl MeasuredStep {
    /// Of the seconds of whole steps, and those of their kernels by step of the Plan; none without a step.
    pub(crate) fn of_kernels(steps: &[f64], by_step: &SortedMap<usize, Vec<f64>>) -> Option<MeasuredStep> {
        let of = |(at, all): (&usize, &Vec<f64>)| Some((*at, quartiles(all.clone())?));
        let parts = by_step.iter().filter_map(of).collect();
        Some(MeasuredStep::new(quartiles(steps.to_vec())?, steps.len(), parts))
    }
}

/// The quartiles and the median between them.
pub(crate) fn quartiles(mut of: Vec<f64>) -> Option<[f64; 3]> {
    of.sort_by(f64::total_cmp);
    let at =
        |share: f64| of.get(((of.len() as f64 * share) as usize).min(of.len().saturating_sub(1))).copied();
    Some([at(0.25)?, at(0.5)?, at(0.75)?])
}

/// A kind of work that is compared. Names are those of the `breakdown` of an estimate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StepPart {
    /// Matrix products and convolutions.
    Matmul,
    /// Attention.
    Attention,
    /// What reads and writes memory.
    MemoryBound,
    /// The optimizer.
    Update,
    /// Collectives: what kernels wait for, and the packing of what is sent.
    Collective,
}

impl StepPart {
    /// The key of its error in a machine file.
    pub fn error_family(self) -> &'static str {
        match self {
            StepPart::Matmul => "matmul",
            StepPart::Attention => "attention",
            StepPart::MemoryBound | StepPart::Update => "memory_bound",
            StepPart::Collective => "collective",
        }
    }

    fn of(work: &KernelWork) -> StepPart {
        match (work.purpose, work.phase, work.family) {
            (KernelPurpose::Packing, ..) => StepPart::Collective,
            (_, Phase::Update, _) => StepPart::Update,
            (.., KernelFamily::Matmul | KernelFamily::Convolve) => StepPart::Matmul,
            (.., KernelFamily::Attention) => StepPart::Attention,
            _ => StepPart::MemoryBound,
        }
    }
}

/// Seconds of a kind of work. The estimated ones have the launches of its kernels.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ComparedPart {
    /// The kind.
    pub part: StepPart,
    /// Estimated seconds.
    pub estimated: f64,
    /// Measured seconds.
    pub measured: f64,
}

/// Seconds that kernels wait for a collective, with its packing.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComparedCollective {
    /// `all_reduce` and so on.
    pub op: String,
    /// Axes of its group.
    pub axes: Vec<String>,
    /// Bytes of a device's buffer each time.
    pub bytes: u64,
    /// Times that it runs in a step.
    pub times: u64,
    /// Path of the value.
    pub value: String,
    /// Its line in the model.
    pub line: u32,
    /// Estimated seconds.
    pub estimated: f64,
    /// Measured seconds.
    pub measured: f64,
}

/// An estimate and the measured times.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// Training steps that were measured.
    pub steps: usize,
    /// Estimated seconds of one.
    pub estimated: f64,
    /// Relative error that the estimate says it has.
    pub band: f64,
    /// The median of the measured seconds.
    pub measured: f64,
    /// Rates of products that the machine file lacks, and what was taken for them.
    pub assumed_rates: Vec<AssumedRate>,
    /// By kind of work; empty where only whole steps were measured.
    pub parts: Vec<ComparedPart>,
    /// By collective.
    pub collectives: Vec<ComparedCollective>,
}

/// Compares a step that was measured with the estimate of its Plan.
///
/// # Errors
/// If an estimate is missing.
pub fn compared(
    plan: &Plan,
    asked: &EstimateQuestion<'_>,
    measured: &MeasuredStep,
) -> Result<Compared, EstimateError> {
    let whole = estimate(plan, asked)?;
    let work = program(plan, &compile_launches(plan, 0, asked.engine.target_on(asked.machine))?);
    let mut known = SortedMap::new();
    parts_of(&work.body, &mut known);
    let start = |step: usize| start_of(plan, step);
    let part = |step: usize| match start(step) {
        Some(_) => StepPart::Collective,
        None => known.get(&step).copied().unwrap_or(StepPart::MemoryBound),
    };
    let mut parts: SortedMap<StepPart, [f64; 2]> = SortedMap::new();
    let mut waits: SortedMap<usize, [f64; 2]> = SortedMap::new();
    let kernels = timeline(plan, asked)?.into_iter().filter(|e| !e.communicates);
    let estimated = kernels.map(|e| (e.step, e.end - e.start, 0));
    let exposed = whole.collectives.iter().map(|c| (c.step, c.exposed_seconds, 0));
    let seen = measured.by_step.iter().map(|(step, seconds)| (*step, *seconds, 1));
    for (step, seconds, side) in estimated.chain(exposed).chain(seen) {
        parts.entry(part(step)).or_default()[side] += seconds;
        if let Some(start) = start(step) {
            waits.entry(start).or_default()[side] += seconds;
        }
    }
    let row =
        |(part, [estimated, measured]): (StepPart, [f64; 2])| ComparedPart { part, estimated, measured };
    let collectives = whole.collectives.iter().map(|c| {
        let [estimated, measured] = waits.get(&c.step).copied().unwrap_or_default();
        ComparedCollective {
            op: c.op.clone(),
            axes: c.axes.clone(),
            bytes: c.bytes,
            times: c.times,
            value: c.value.clone(),
            line: c.line,
            estimated,
            measured,
        }
    });
    Ok(Compared {
        steps: measured.steps,
        estimated: whole.seconds,
        band: whole.error,
        measured: measured.seconds,
        parts: parts.into_iter().map(row).collect(),
        collectives: collectives.collect(),
        assumed_rates: whole.assumed_rates,
    })
}

/// The collective that a step starts or waits for.
fn start_of(plan: &Plan, step: usize) -> Option<usize> {
    let of = plan.steps.get(step)?;
    match of.prim {
        Prim::Collective(_) => Some(step),
        Prim::Wait => plan.steps.iter().position(|s| s.collective().is_some() && s.async_id == of.async_id),
        _ => None,
    }
}

fn parts_of(items: &[WorkItem], known: &mut SortedMap<usize, StepPart>) {
    for item in items {
        match item {
            WorkItem::Work(work) => {
                let part = StepPart::of(work);
                known.extend(work.all_steps().into_iter().map(|step| (step, part)));
            }
            WorkItem::Loop(of) => of.body.iter().for_each(|(i, _)| parts_of(std::slice::from_ref(i), known)),
            WorkItem::Start(_) | WorkItem::Wait(_) => {}
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn medians_are_of_whole_steps_and_sums_of_iterations() {
        let record = |what, at, step_number, length: u64| Record {
            what,
            begin: 1_000,
            end: 1_000 + length,
            step_number,
            sequence: 0,
            at,
        };
        let mut records = vec![];
        for (n, whole) in [(1, 90), (2, 100), (3, 500)] {
            records.extend([
                record(What::Compute, 4, n, 10),
                record(What::Compute, 4, n, n * 10),
                record(What::Wait, 5, n, 7),
                record(What::Step, 0, n, whole),
            ]);
        }
        // A step that has not ended counts for nothing.
        records.push(record(What::Compute, 4, 4, 9_000));
        let found = MeasuredStep::of(&records).unwrap();
        let nanoseconds = |s: f64| (s * 1e9).round();
        assert_eq!((nanoseconds(found.seconds), found.steps), (100.0, 3));
        let by_step: Vec<_> = found.by_step.iter().map(|(at, s)| (*at, nanoseconds(*s))).collect();
        assert_eq!(by_step, [(4, 30.0), (5, 7.0)]);
        let (low, parts) = &found.undelayed;
        assert_eq!((nanoseconds(*low), nanoseconds(parts[&4])), (90.0, 20.0));
        assert!((found.spread - 4.1).abs() < 1e-9, "{}", found.spread);
        assert_eq!(MeasuredStep::of(&records[..3]), None);
    }
}
