//! What a program does, as far as [bounds](crate::base_bound) of candidates that do at least as much are concerned.

use crate::shape::{ALL, Families, ShapedMatmul};
use crate::work::ModelWork;
use meshwright_cost::step::DeviceRates;
use meshwright_cost::work::{DeviceWork, KernelPurpose, KernelWork, Loop, Transfer, WorkItem};
use meshwright_plan::{Axis, CollectiveKind, Dim, Operand, Phase, Plan};
use meshwright_sorted::SortedMap;

/// Axes of a mesh, as bits.
pub(crate) type Axes = u32;

/// What a program does, as far as bounds are concerned.
#[derive(Clone, Debug)]
pub struct BaseWork {
    /// Without packing, without copies, and without collectives of gradients.
    pub(crate) run: DeviceWork,
    /// By the step of a kernel, the axes over which an operand is split.
    pub(crate) split: SortedMap<usize, Axes>,
    /// Seconds of kernels for each number of parts of the batch.
    pub(crate) compute: Vec<Compute>,
    /// Collectives with their bytes and how often they run; of the same kind over the same axes in a loop together.
    pub(crate) transfers: SortedMap<TransferKey, (f64, f64)>,
    /// How much longer a step takes that waits for the slowest of its devices.
    pub(crate) waits: f64,
}

/// Collectives of a phase, of one kind over equal axes, in one loop: that whose step is before this number, or none for 0.
pub(crate) type TransferKey = (Phase, CollectiveKind, Vec<Axis>, usize);

/// Seconds of kernels by phase and by the axes that divide them: of work, the same at the greatest rates, and of launches.
pub(crate) type Compute = SortedMap<(Phase, Axes), (f64, f64, f64)>;

/// Of a program with fewer examples than are asked for the dim that counts them, and the ratio.
type Shrunk = Option<(Dim, f64)>;

/// A kernel, and how often it runs.
struct BaseKernel<'p> {
    work: &'p KernelWork,
    times: f64,
    axes: Axes,
    /// Bytes that do not run along the examples, and its products by what they have of them; none where all is independent of
    /// them.
    examples: Option<(f64, Vec<ShapedMatmul>)>,
}

impl<'p> BaseKernel<'p> {
    fn of(
        plan: &Plan,
        of: &'p KernelWork,
        times: f64,
        (work, examples, shrunk): (&ModelWork, Families, Shrunk),
    ) -> BaseKernel<'p> {
        let operands = || of.steps.iter().flat_map(|s| plan.steps[*s].all());
        let axes = operands().flat_map(|o| plan.buffer(o.buf).extents.iter().flat_map(|e| &e.axes));
        let fixed = work.fixed(plan, of).filter(|_| of.phase != Phase::Update);
        let size = |d, local: u64| match shrunk {
            Some((dim, ratio)) if dim == d => (local as f64 * ratio).round() as u64,
            _ => local,
        };
        let shaped = || ShapedMatmul::all(plan, of, size, |d| work.families([d]) & examples);
        BaseKernel { work: of, times, axes: bits(axes), examples: fixed.map(|fixed| (fixed, shaped())) }
    }
}

impl BaseWork {
    /// Of a program and what its device does. `example` is the dim that counts examples; of a program with fewer of them than are
    /// asked for, `shrunk` has it, and the ratio. `waits` says how much longer a step takes that waits for the slowest of its
    /// devices.
    pub fn of(
        (plan, run): (&Plan, &DeviceWork),
        (work, example, shrunk): (&ModelWork, Option<Dim>, Shrunk),
        waits: f64,
    ) -> BaseWork {
        let examples = example.map_or(0, |d| work.families([d]));
        let along = |o: &Operand| work.families(o.dims.iter().copied()) & examples != 0;
        let mut out = BaseWork {
            run: DeviceWork { body: Vec::new() },
            split: SortedMap::new(),
            compute: Vec::new(),
            transfers: SortedMap::new(),
            waits,
        };
        let of_examples = |step: usize| plan.steps[step].all().any(along);
        let body = whole(&run.body, &|of| work.whole(plan, of, shrunk), &|step| match shrunk {
            Some((_, ratio)) if of_examples(step) => ratio,
            _ => 1.0,
        });
        let mut kernels: Vec<(&KernelWork, f64)> = Vec::new();
        out.walk(&body, (0, 1.0), &mut kernels);
        let of = |(of, times)| BaseKernel::of(plan, of, times, (work, examples, shrunk));
        let kernels: Vec<BaseKernel<'_>> = kernels.into_iter().map(of).collect();
        out.split = kernels.iter().map(|k| (k.work.step, k.axes)).collect();
        if let Some(rates) = &work.rates {
            out.compute = compute(&kernels, rates, work.shapes.parts());
        }
        out.run = DeviceWork { body: kept(&body, &of_examples) };
        out
    }

    fn walk<'p>(
        &mut self,
        items: &'p [WorkItem],
        (within, times): (usize, f64),
        kernels: &mut Vec<(&'p KernelWork, f64)>,
    ) {
        for item in items {
            match item {
                WorkItem::Work(work) if work.purpose != KernelPurpose::Step => {}
                WorkItem::Work(work) => kernels.push((work, times)),
                WorkItem::Start(Transfer { phase, kind, axes, bytes, .. }) => {
                    let key = (*phase, *kind, axes.clone(), within);
                    self.transfers.entry(key).or_insert((0.0, times)).0 += bytes;
                }
                WorkItem::Wait(_) => {}
                WorkItem::Loop(of) => {
                    for (item, _) in &of.body {
                        self.walk(std::slice::from_ref(item), (of.step + 1, times * of.size as f64), kernels);
                    }
                }
            }
        }
    }
}

/// Axes as bits.
pub(crate) fn bits<'a>(axes: impl IntoIterator<Item = &'a Axis>) -> Axes {
    axes.into_iter().fold(0, |all, a| all | 1 << a.0)
}

/// The items for all examples, given what becomes of a kernel, and by how much the bytes of a collective grow.
fn whole(
    items: &[WorkItem],
    kernel: &dyn Fn(&KernelWork) -> KernelWork,
    grows: &dyn Fn(usize) -> f64,
) -> Vec<WorkItem> {
    let of = |item: &WorkItem| match item {
        WorkItem::Work(work) => WorkItem::Work(Box::new(kernel(work))),
        WorkItem::Start(t) => WorkItem::Start(Transfer { bytes: t.bytes * grows(t.step), ..t.clone() }),
        WorkItem::Loop(of) => {
            let body = of.body.iter().flat_map(|(item, lag)| {
                whole(std::slice::from_ref(item), kernel, grows).into_iter().map(move |item| (item, *lag))
            });
            WorkItem::Loop(Loop { body: body.collect(), ..of.clone() })
        }
        WorkItem::Wait(flight) => WorkItem::Wait(*flight),
    };
    items.iter().map(of).collect()
}

/// A program without packing and copies, and without collectives other than those of what runs along examples.
fn kept(items: &[WorkItem], of_examples: &dyn Fn(usize) -> bool) -> Vec<WorkItem> {
    let keep = |item: &WorkItem| match item {
        WorkItem::Work(work) if work.purpose != KernelPurpose::Step => None,
        WorkItem::Start(t) if !of_examples(t.step) => None,
        WorkItem::Work(work) => {
            let light = KernelWork { steps: Vec::new(), single: Vec::new(), ..(**work).clone() };
            Some(WorkItem::Work(Box::new(light)))
        }
        WorkItem::Loop(of) => {
            let body = of.body.iter().flat_map(|(item, lag)| {
                kept(std::slice::from_ref(item), of_examples).into_iter().map(move |item| (item, *lag))
            });
            Some(WorkItem::Loop(Loop { body: body.collect(), ..of.clone() }))
        }
        item => Some(item.clone()),
    };
    items.iter().filter_map(keep).collect()
}

/// Seconds of kernels for each of some numbers of parts of the batch.
fn compute(
    kernels: &[BaseKernel<'_>],
    rates: &DeviceRates,
    parts: impl Iterator<Item = usize>,
) -> Vec<Compute> {
    let mut all: Vec<(usize, Compute)> = parts.map(|parts| (parts, Compute::new())).collect();
    for k in kernels {
        let (whole, least) = (rates.seconds(k.work), rates.least(k.work).work);
        let rest = || {
            let products = k.examples.as_ref().is_some_and(|e| e.1.is_empty());
            let products = if products { k.work.products.clone() } else { Vec::new() };
            rates.seconds(&KernelWork { bytes: 0.0, products, ..k.work.clone() }).work
        };
        // Apart from products and memory, the work of a part is a part of the work.
        let rest = if k.examples.is_some() { rest() } else { 0.0 };
        for (parts, of) in &mut all {
            let (times, part) = (*parts as f64, 1.0 / *parts as f64);
            let (work, least, launch) = match &k.examples {
                Some((fixed, products)) if *parts > 1 => {
                    let bytes = fixed + (k.work.bytes - fixed) * part;
                    let moves = KernelWork::memory(k.work.step, k.work.phase, bytes, k.work.kernels);
                    let own = |p: &ShapedMatmul| p.least(rates, &[], (*parts as u64, p.along(ALL)));
                    let computed = products.iter().map(own).sum::<f64>() + rest * part;
                    let seconds = rates.seconds(&moves).work.max(computed);
                    (times * seconds, least, times * whole.launch)
                }
                _ => (whole.work, least, whole.launch),
            };
            let sum = of.entry((k.work.phase, k.axes)).or_default();
            sum.0 += k.times * work;
            sum.1 += k.times * least.min(work);
            sum.2 += k.times * launch;
        }
    }
    all.into_iter().map(|of| of.1).collect()
}
