//! The numbers of a device, so that its kernels take the times that were measured: what [`DeviceRates`] computes, backwards.

use super::probes::ProbeKind;
use crate::estimates::measured_step::{MeasuredStep, quartiles};
use meshwright_cost::kernels::program;
use meshwright_cost::machine::{AttentionRates, DeviceKind, LEAST_ELEMENT_SECONDS, Machine, MatrixRates};
use meshwright_cost::step::{DeviceRates, products_of};
use meshwright_cost::work::{KernelPurpose, KernelWork, ScalarFamily, Scores, WorkItem};
use meshwright_device::{CompileError, compile_launches, target::Target};
use meshwright_plan::expr::FunctionCost;
use meshwright_plan::{Arithmetic, KernelFamily, Phase, Plan};

/// Kernels that follow each other, and the seconds that they were seen to take.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) work: KernelWork,
    pub(super) seconds: f64,
}

/// The kernels of a program outside of loops.
///
/// # Errors
/// If a device plan is missing.
pub(super) fn samples(
    plan: &Plan,
    measured: &MeasuredStep,
    target: Target,
) -> Result<Vec<Sample>, CompileError> {
    let work = program(plan, &compile_launches(plan, 0, target)?);
    let of = |item: WorkItem| match item {
        WorkItem::Work(work) => {
            let seconds = work.all_steps().iter().filter_map(|s| measured.undelayed.1.get(s)).sum();
            (seconds > 0.0 && work.purpose == KernelPurpose::Step).then_some(Sample { work: *work, seconds })
        }
        _ => None,
    };
    Ok(work.body.into_iter().filter_map(of).collect())
}

/// Most bytes of a kernel that does nothing but begin and end.
const NOTHING: f64 = 512.0;

/// Least bytes of a kernel that tells of memory.
const SOMETHING: f64 = 32_768.0;

/// The least part of a kernel's time after its launch that shows the speed of memory.
const TELLS: f64 = 0.5;

/// A kernel takes so much longer than its memory, if it tells of what it computes.
const COMPUTES: f64 = 1.3;

/// How often the seconds of functions are found from those of the others.
const ROUNDS: usize = 4;

/// Sets the numbers of one device by the samples of probes: a core, or a GPU. Without samples of a kind its numbers stay.
/// `attention` is the kernel of attention that was measured.
pub(super) fn fit(machine: &mut Machine, of: &[(ProbeKind, Vec<Sample>)], attention: &str) {
    // What a training keeps of the greatest rates is known by plans.
    (machine.device.sustained, machine.device.attention_sustained) = (1.0, 1.0);
    // Probes have a core for each device.
    machine.device.threads = 0.0;
    let kind = |wanted: ProbeKind| -> Vec<&Sample> {
        of.iter().filter(|(kind, _)| *kind == wanted).flat_map(|(_, s)| s).collect()
    };
    memory(machine, &kind(ProbeKind::Stream));
    // The probe of one function has others too.
    for family in (0..ROUNDS).flat_map(|_| ScalarFamily::ALL) {
        functions(machine, family, &kind(ProbeKind::Function(family.name())));
    }
    products(machine, &of.iter().flat_map(|(_, s)| s).collect::<Vec<_>>());
    families(machine, &kind(ProbeKind::Family));
    attention_rates(machine, &kind(ProbeKind::Attention), attention);
}

fn median(of: impl IntoIterator<Item = f64>) -> Option<f64> {
    quartiles(of.into_iter().collect()).map(|q| q[1])
}

/// Seconds of a sample without its launch.
fn working(machine: &Machine, s: &Sample) -> f64 {
    (s.seconds - s.work.kernels * machine.device.kernel).max(s.seconds * 1e-3)
}

/// A kernel's own time, and the rates of memory by bytes.
fn memory(machine: &mut Machine, samples: &[&Sample]) {
    let small = samples.iter().filter(|s| s.work.bytes <= NOTHING && s.work.family == KernelFamily::Memory);
    if let Some(kernel) = median(small.map(|s| s.seconds / s.work.kernels)) {
        machine.device.kernel = kernel;
    }
    // An update is nothing but memory: two vectors are read, one is written.
    let updates = samples.iter().filter(|s| s.work.phase == Phase::Update && s.work.bytes >= SOMETHING);
    // A kernel of a GPU that takes little longer than one without work tells nothing of memory.
    let tells =
        |s: &&&Sample| machine.device.kind == DeviceKind::Cpu || working(machine, s) > TELLS * s.seconds;
    let rate = |s: &&Sample| (s.work.bytes, s.work.bytes / working(machine, s));
    let mut rates: Vec<(f64, f64)> = updates.filter(tells).map(rate).collect();
    rates.sort_by(|a, b| a.0.total_cmp(&b.0));
    rates.dedup_by(|a, b| a.0 == b.0);
    if !rates.is_empty() {
        machine.device.stream.rates = rates;
    }
}

/// All cores together get so much less than each alone, where they share what limits them.
const SHARED: f64 = 0.9;

/// Bytes per second of all cores, by vectors that as many devices as there are cores read at the same time; none where each has
/// its own rate then too. Estimates take it for a limit of what lies in caches as well, so one below their rates is not written
/// either.
pub(super) fn total(machine: &mut Machine, cores: usize, samples: &[Sample]) {
    let updates = samples.iter().filter(|s| s.work.phase == Phase::Update && s.work.bytes >= SOMETHING);
    let all = median(updates.map(|s| cores as f64 * s.work.bytes / working(machine, s)));
    let alone = machine.device.stream.rates.last().map_or(0.0, |r| r.1 * cores as f64);
    let greatest = machine.device.stream.rates.iter().map(|r| r.1).fold(0.0, f64::max);
    machine.device.stream.total = all.filter(|all| *all < SHARED * alone && *all > greatest);
}

/// Seconds of a function for an element, less those of other functions in the kernel: by the kernel that has most of it.
fn functions(machine: &mut Machine, family: ScalarFamily, samples: &[&Sample]) {
    let count = |s: &Sample| s.work.scalars[family.position()];
    let Some(most) = samples.iter().max_by(|a, b| count(a).total_cmp(&count(b))) else { return };
    let known = |f: ScalarFamily| machine.device.scalar.get(f.name()).copied().unwrap_or(0.0);
    let others = ScalarFamily::ALL.into_iter().filter(|f| *f != family);
    let beside: f64 = others.map(|f| most.work.scalars[f.position()] * known(f)).sum();
    // What costs more than a simple function does not cost less.
    let simple = ScalarFamily::Function(FunctionCost::Simple);
    let least = if family == simple { LEAST_ELEMENT_SECONDS } else { known(simple) };
    if count(most) > 0.0 && computes(machine, most) {
        let seconds = ((working(machine, most) - beside) / count(most)).max(least);
        machine.device.scalar.insert(family.name().into(), seconds);
    }
}

/// True of a kernel that takes longer than its memory.
fn computes(machine: &Machine, s: &Sample) -> bool {
    let bytes = KernelWork { kernels: 1.0, ..KernelWork::memory(0, s.work.phase, s.work.bytes, 1.0) };
    working(machine, s) > COMPUTES * DeviceRates::new(machine, 1, &[]).seconds(&bytes).work
}

/// The greatest rate of products by dtype, and how their shape decides the rest. The peak of a CPU, which is not known, is what
/// the fastest product reaches.
fn products(machine: &mut Machine, samples: &[&Sample]) {
    let products: Vec<&Sample> = samples.iter().copied().filter(|s| s.work.products.len() == 1).collect();
    let greatest = |arithmetic: Arithmetic| {
        let of = products.iter().filter(|s| s.work.products[0].arithmetic == arithmetic);
        let best = of.map(|s| s.work.products[0].flops() / working(machine, s)).fold(0.0, f64::max);
        (best > 0.0).then_some((arithmetic.name(), best))
    };
    let found: Vec<(&str, f64)> = [Arithmetic::F64, Arithmetic::F32, Arithmetic::TF32, Arithmetic::BF16]
        .into_iter()
        .filter_map(greatest)
        .collect();
    let above =
        |(name, best): &(&str, f64)| machine.device.matrix.get(*name).map(|m| (m.peak / best).max(1.0));
    // Of a GPU some peaks are known, and the others are assumed to be as far above their fastest products.
    let known = if machine.device.kind == DeviceKind::Gpu {
        found.iter().map(above).collect()
    } else {
        vec![None; found.len()]
    };
    let assumed = known.iter().flatten().copied().fold(1.0, f64::max);
    for ((name, best), known) in found.into_iter().zip(known) {
        let rates = MatrixRates { peak: best * known.unwrap_or(assumed), best, source: None };
        machine.device.matrix.insert(name.into(), rates);
    }
    if products.is_empty() {
        return;
    }
    let starts = match machine.device.kind {
        DeviceKind::Cpu => &[(1.0, 1.0)][..],
        DeviceKind::Gpu => &GPU_STARTS,
    };
    let from = |(issue, fill): &(f64, f64)| {
        let mut start = machine.clone();
        start.device.product.issue = *issue;
        start.device.product.fill *= *fill;
        climbed(start, &products)
    };
    let best = starts.iter().map(from).min_by(|a, b| a.1.total_cmp(&b.1));
    *machine = best.map_or_else(|| machine.clone(), |best| best.0);
}

/// Starts of the fit of a GPU's products, whose waves make steps in their times: the part of the peak inside a tile, and a factor
/// of what fills it.
const GPU_STARTS: [(f64, f64); 8] =
    [(0.5, 1.0), (0.6, 1.0), (0.7, 1.0), (0.8, 1.0), (0.9, 1.0), (1.0, 1.0), (0.7, 0.5), (0.9, 0.5)];

/// The machine with the numbers that are reached from one, each changed for itself until none gives products their times any
/// better, and what they are off by.
fn climbed(mut machine: Machine, products: &[&Sample]) -> (Machine, f64) {
    // The fastest product reaches a part of its tiles too, so the rate of whole tiles is greater.
    let mut best = error(&machine, products);
    for step in [1.5, 1.2, 1.05, 1.01] {
        let mut better = true;
        while better {
            better = false;
            for number in 0..machine.device.product.tiles.len() + 1 {
                for factor in [step, 1.0 / step] {
                    let mut other = machine.clone();
                    change(&mut other, number, factor);
                    let found = error(&other, products);
                    if found < best * (1.0 - 1e-6) {
                        (machine, best, better) = (other, found, true);
                    }
                }
            }
        }
    }
    (machine, best)
}

/// Changes one of the numbers that the shape of products is priced by: elements in which a tile is filled, or the rate of a tile.
/// The first tile stays the measure of the others: its own rate is that of a CPU's peak, or a part of the one that a GPU's data
/// sheet has.
fn change(machine: &mut Machine, number: usize, factor: f64) {
    let shape = &mut machine.device.product;
    match number.checked_sub(1) {
        None => shape.fill = (shape.fill * factor).clamp(1.0, 1e4),
        Some(0) if machine.device.kind == DeviceKind::Gpu => {
            shape.issue = (shape.issue * factor).clamp(0.05, 1.0);
        }
        Some(0) => machine.device.matrix.values_mut().for_each(|m| m.peak = (m.peak * factor).max(m.best)),
        Some(tile) => shape.tiles[tile].2 = (shape.tiles[tile].2 * factor).clamp(1e-4, 1.0),
    }
}

/// The mean of what samples are off by, as a logarithm.
fn error(machine: &Machine, samples: &[&Sample]) -> f64 {
    let rates = DeviceRates::new(machine, 1, &[]);
    let off = |s: &&Sample| {
        let of = rates.seconds(&s.work);
        ((of.work + of.launch) / s.seconds).ln().abs()
    };
    samples.iter().map(off).sum::<f64>() / samples.len().max(1) as f64
}

/// Operations per second of other kernels.
fn families(machine: &mut Machine, samples: &[&Sample]) {
    use KernelFamily::{Convolve, Lookup, Pool, Scan, TableSum};
    for family in [Convolve, Pool, Lookup, TableSum, Scan] {
        let of = samples.iter().filter(|s| s.work.family == family && s.work.operations > 0.0);
        let rate =
            median(of.filter(|s| computes(machine, s)).map(|s| s.work.operations / working(machine, s)));
        // What memory limits has no rate of its own.
        match rate {
            Some(rate) => drop(machine.device.families.insert(family.name().into(), rate)),
            None if samples.iter().any(|s| s.work.family == family) => {
                machine.device.families.remove(family.name());
            }
            None => {}
        }
    }
}

/// Operations per second of a kernel of attention.
fn attention_rate(machine: &Machine, s: &Sample, of: &Scores) -> f64 {
    let pairs = of.matrices * of.queries * of.keys * of.visible;
    products_of(machine.device.kind, of) * pairs * (of.width + of.values) / working(machine, s)
}

/// The greatest rate of attention and the keys with half of it, for the widest keys without dropout; then how much slower it is
/// with narrower ones, and with dropout.
fn attention_rates(machine: &mut Machine, samples: &[&Sample], name: &str) {
    let all: Vec<(Scores, f64)> = samples
        .iter()
        .filter_map(|s| s.work.attention.map(|of| (of, attention_rate(machine, s, &of))))
        .collect();
    let Some(widest) = all.iter().map(|(of, _)| of.width).max_by(f64::total_cmp) else { return };
    let curve = |backward: bool| {
        let plain = all.iter().filter(|(of, _)| of.backward == backward && !of.dropout && of.width == widest);
        saturation(&plain.map(|(of, rate)| (of.keys, *rate)).collect::<Vec<_>>())
    };
    let Some((forward, backward)) = curve(false).zip(curve(true)) else { return };
    // The part of the rate of the curve that is reached.
    let reached = |(of, rate): &(Scores, f64)| {
        let (top, half) = if of.backward { backward } else { forward };
        rate / (top * of.keys / (of.keys + half))
    };
    let mut widths: Vec<f64> = all.iter().filter(|(of, _)| !of.dropout).map(|(of, _)| of.width).collect();
    widths.sort_by(f64::total_cmp);
    widths.dedup();
    let narrow = |width: f64| {
        let of = all.iter().filter(|(of, _)| of.width == width && !of.dropout);
        Some((width, if width == widest { 1.0 } else { median(of.map(reached))?.min(1.0) }))
    };
    let dropout = all.iter().filter(|(of, _)| of.dropout && of.width == widest);
    let dropout = median(dropout.map(|one| 1.0 / reached(one)));
    let known = machine.device.attention.get(name).map_or(1.0, |a| a.dropout);
    let rates = AttentionRates {
        forward,
        backward,
        widths: widths.into_iter().filter_map(narrow).collect(),
        dropout: dropout.unwrap_or(known).max(1.0),
        source: None,
    };
    machine.device.attention.insert(name.into(), rates);
}

/// `top` and `half` of `rate = top * keys / (keys + half)`, by least squares of `keys / rate = (keys + half) / top`, each point
/// weighted by its own size.
fn saturation(points: &[(f64, f64)]) -> Option<(f64, f64)> {
    let line = straight(points.iter().map(|(keys, rate)| (*keys, keys / rate)))?;
    let (slope, start) = line;
    if slope > 0.0 { Some((1.0 / slope, (start / slope).max(0.0))) } else { None }
}

/// Slope and start of the line through points whose relative distances count; the start is not below 0. None through fewer than
/// two.
pub(super) fn straight(points: impl Iterator<Item = (f64, f64)>) -> Option<(f64, f64)> {
    let (mut n, mut w, mut x, mut y, mut xx, mut xy) = (0, 0.0, 0.0, 0.0, 0.0, 0.0);
    for (px, py) in points {
        let weight = 1.0 / (py * py);
        n += 1;
        w += weight;
        x += weight * px;
        y += weight * py;
        xx += weight * px * px;
        xy += weight * px * py;
    }
    let spread = w * xx - x * x;
    if n < 2 || spread <= 0.0 {
        return None;
    }
    let slope = (w * xy - x * y) / spread;
    let start = (y - slope * x) / w;
    if start >= 0.0 { Some((slope, start)) } else { Some((xy / xx, 0.0)) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests;
