//! The work of a Plan on one device, from the launches of its device plan.

use crate::visible_scores::{balanced, visible};
use crate::work::{
    DeviceWork, KernelPurpose, KernelWork, Loop, Matmul, ScalarFamily, Scores, Transfer, WorkItem,
};
use meshwright_device::copies::{LaunchCopies, copies};
use meshwright_device::costs::is_view;
use meshwright_device::kernels::Kernel;
use meshwright_device::kernels::call::CallWork;
use meshwright_device::launch::{DevicePlan, Launch, LaunchKind, LoopLaunch};
use meshwright_device::slot::LaunchId;
use meshwright_device::target::TargetKind;
use meshwright_plan::KernelFamily;
use meshwright_plan::expr::{BinaryFn, FunctionCost, Scalar};
use meshwright_plan::{
    Arithmetic, AttentionPart, AttentionSpec, DType, Dim, Expr, Operand, Part, Phase, Plan, Prim, Step,
};
use meshwright_sorted::SortedMap;

/// The work of the device of a device plan.
pub fn program(plan: &Plan, device: &DevicePlan) -> DeviceWork {
    work_of(plan, device, &device.body)
}

/// The work of some launches.
pub(crate) fn work_of(plan: &Plan, device: &DevicePlan, ids: &[LaunchId]) -> DeviceWork {
    DeviceWork { body: Reader { plan, device, copies: copies(device) }.items(ids) }
}

struct Reader<'a> {
    plan: &'a Plan,
    device: &'a DevicePlan,
    copies: SortedMap<LaunchId, LaunchCopies>,
}

impl Reader<'_> {
    fn items(&self, ids: &[LaunchId]) -> Vec<WorkItem> {
        ids.iter().flat_map(|id| self.launch(*id)).collect()
    }

    fn launch(&self, id: LaunchId) -> Vec<WorkItem> {
        let launch = &self.device.launches[id];
        match &launch.kind {
            LaunchKind::Free => vec![],
            LaunchKind::Kernel(kernel) if kernel.moves_nothing() => vec![],
            // Where results have places of their own, a position of a stack is written where it lies.
            LaunchKind::Kernel(Kernel::IterationUpdate(_)) if self.device.target.has_arena() => vec![],
            LaunchKind::Kernel(kernel) => self.with_copies(id, self.work(launch, kernel.starts() as f64)),
            LaunchKind::Burn(burn) => {
                let kernels = burn.graph.operations.iter().filter(|o| !is_view(o)).count();
                let work = if kernels == 0 { vec![] } else { self.work(launch, kernels as f64) };
                self.with_copies(id, work)
            }
            LaunchKind::Collective(c) => {
                let mut items = self.packing(&c.pack);
                items.extend(self.transfer(launch.step, c.async_id));
                items.extend(self.packing(&c.unpack));
                items
            }
            LaunchKind::Wait { unpack, .. } => {
                let flight = self.plan.steps.get(launch.step).and_then(|s| s.async_id);
                flight.map(WorkItem::Wait).into_iter().chain(self.packing(unpack)).collect()
            }
            LaunchKind::Loop(of) => vec![WorkItem::Loop(self.repeat(launch, of))],
        }
    }

    fn packing(&self, ids: &[LaunchId]) -> Vec<WorkItem> {
        let mut items = self.items(ids);
        for item in &mut items {
            if let WorkItem::Work(work) = item {
                work.purpose = KernelPurpose::Packing;
            }
        }
        items
    }

    fn repeat(&self, launch: &Launch, of: &LoopLaunch) -> Loop {
        let lagged = |id: &LaunchId| {
            let step = self.device.launches[*id].step;
            let lag = self.plan.steps.get(step).map_or(0, |s| usize::from(s.lag));
            self.launch(*id).into_iter().map(move |item| (item, lag)).collect::<Vec<_>>()
        };
        Loop { step: launch.step, size: of.runs.len(), body: of.body.iter().flat_map(lagged).collect() }
    }

    fn transfer(&self, step: usize, flight: Option<u32>) -> Option<WorkItem> {
        let of = self.plan.steps.get(step)?;
        let collective = of.collective()?;
        let bytes = of.collective_bytes(self.plan).iter().map(|b| *b as f64).sum();
        let (kind, axes) = (collective.kind(), collective.axes().to_vec());
        Some(WorkItem::Start(Transfer { step, kind, axes, bytes, phase: of.phase, flight, pieces: None }))
    }

    /// The work of a launch after that of the copies that it makes.
    fn with_copies(&self, id: LaunchId, mut work: Vec<WorkItem>) -> Vec<WorkItem> {
        if let Some(made) = self.copies.get(&id) {
            let step = self.device.launches[id].step;
            let phase = self.plan.steps.get(step).map_or(Phase::Forward, |s| s.phase);
            let copies = KernelWork::memory(step, phase, 2.0 * made.bytes as f64, made.kernels as f64);
            work.insert(0, WorkItem::Work(Box::new(KernelWork { purpose: KernelPurpose::Copy, ..copies })));
        }
        work
    }

    fn work(&self, launch: &Launch, kernels: f64) -> Vec<WorkItem> {
        let traffic = launch.traffic(self.plan);
        let steps: Vec<&Step> = launch.steps.iter().filter_map(|s| self.plan.steps.get(*s)).collect();
        let at = launch.steps.last().copied().unwrap_or(launch.step);
        let phase = self.plan.steps.get(at).map_or(Phase::Forward, |s| s.phase);
        let mut work = KernelWork::memory(at, phase, (traffic.read + traffic.written) as f64, kernels);
        work.steps.clone_from(&launch.steps);
        let of = match &launch.kind {
            LaunchKind::Kernel(kernel) => kernel.work(),
            _ => CallWork::default(),
        };
        steps.iter().for_each(|step| add(&mut work, self.plan, step, of.by_elements));
        if self.device.target.kind == TargetKind::Cpu {
            work.operations *= steps.iter().map(|step| host_convolution(self.plan, step)).product::<f64>();
        }
        if let (LaunchKind::Kernel(_), Some(scores)) = (&launch.kind, &mut work.attention) {
            scores.in_kernels(kernels);
        }
        work.scalars[ScalarFamily::Random.position()] += of.draws as f64;
        work.products.iter_mut().for_each(|p| p.fp8 = of.in_8_bits);
        work.single.clone_from(&work.products);
        if of.joined {
            join(&mut work.products);
        }
        work.again = of.summed.map_or(0.0, |factor| summed(&work.products, factor));
        vec![WorkItem::Work(Box::new(work))]
    }
}

/// Makes equal products one of as many batches.
fn join(products: &mut Vec<Matmul>) {
    if let [first, rest @ ..] = &products[..]
        && rest.iter().all(|p| p == first)
    {
        *products = vec![Matmul { batch: first.batch * products.len() as u64, ..*first }];
    }
}

/// Bytes of the factor that a product gives the sums of: the library sums it when the product has ended.
fn summed(products: &[Matmul], factor: usize) -> f64 {
    let [p] = products else { return 0.0 };
    let of = if factor == 1 { p.n } else { p.m };
    let bytes = if p.arithmetic == Arithmetic::F32 || p.arithmetic == Arithmetic::TF32 { 4 } else { 2 };
    (of * p.k * p.batch * bytes) as f64
}

/// Adds what a step computes to the work of its kernel.
fn add(work: &mut KernelWork, plan: &Plan, step: &Step, folds: bool) {
    let family = if folds { KernelFamily::Memory } else { step.prim.spec().family };
    if family < work.family {
        work.family = family;
    }
    match &step.prim {
        Prim::Contract if folds => {
            let read: f64 = step.reads.iter().map(|o| elements(plan, o)).fold(0.0, f64::max);
            work.scalars[ScalarFamily::Function(FunctionCost::Simple).position()] += 2.0 * read;
        }
        Prim::Contract => work.products.extend(product(plan, step)),
        Prim::Attention { spec, parts } => work.attention = scores(plan, step, spec, parts),
        Prim::Map { expr, .. } => {
            let elements = step.writes.first().map_or(0.0, |o| elements(plan, o));
            count(expr, elements, &mut work.scalars);
        }
        Prim::Random { .. } => {
            let drawn = step.writes.first().map_or(0.0, |o| elements(plan, o));
            work.scalars[ScalarFamily::Random.position()] += drawn;
        }
        Prim::Softmax { .. }
        | Prim::LogSumExp { .. }
        | Prim::CrossEntropy { .. }
        | Prim::CrossEntropyGrad { .. } => {
            let read = step.reads.first().map_or(0.0, |o| elements(plan, o));
            work.scalars[ScalarFamily::Function(FunctionCost::Exponential).position()] += read;
            work.scalars[ScalarFamily::Function(FunctionCost::Simple).position()] += 3.0 * read;
        }
        Prim::Reduce { .. } | Prim::ScaledSquares => {
            let read = step.reads.first().map_or(0.0, |o| elements(plan, o));
            work.scalars[ScalarFamily::Function(FunctionCost::Simple).position()] += read;
        }
        _ if family != KernelFamily::Memory => {
            let moved: f64 = step.all().map(|o| elements(plan, o)).fold(0.0, f64::max);
            work.operations += (step.flops(plan) as f64).max(moved);
        }
        _ => {}
    }
}

/// Bytes of a row of channels in a convolution of the host, whose last row is filled up (`runtime/cpu/src/kernels/convolve`).
const CHANNEL_ROW: usize = 64;
/// Most positions of a tile there, and how many more a tile takes the time of: with few, sums wait for those before them.
/// Measured with 7 and 14 positions on vectors of 64 bytes.
const TILE: (usize, f64) = (16, 3.0);

/// By how much a convolution of the host takes longer than whole rows of channels in whole tiles would: of few channels it
/// computes as much as of a whole row of them. 1 for other steps.
fn host_convolution(plan: &Plan, step: &Step) -> f64 {
    let Prim::Convolve { windows, computes } = &step.prim else { return 1.0 };
    let Ok(([a, b], [out])) = step.operands::<2, 1>() else { return 1.0 };
    let [input, kernel, result] = computes.arrange([a, b], out);
    let (has, lacks) = if *computes == Part::Input { (input, result) } else { (result, input) };
    let slides = |d: &Dim| windows.iter().any(|w| [w.wide, w.narrow, w.tap].contains(d));
    let channels =
        kernel.dims.iter().filter(|d| has.dims.contains(d) && !lacks.dims.contains(d) && !slides(d));
    let channels = channels.map(|d| extent(plan, has, *d) as usize).product::<usize>().max(1);
    let row = CHANNEL_ROW / plan.buffer(out.buf).dtype.bytes().max(1);
    let filled = channels.next_multiple_of(row.max(1)) as f64 / channels as f64;
    let along = windows.last().map(|w| if *computes == Part::Input { w.wide } else { w.narrow });
    let waits = match along {
        // The sums of a kernel's gradient are over the positions.
        Some(dim) if *computes != Part::Kernel => {
            let each = (extent(plan, out, dim) as usize).clamp(1, TILE.0) as f64;
            (1.0 + TILE.1 / each) / (1.0 + TILE.1 / TILE.0 as f64)
        }
        _ => 1.0,
    };
    filled * waits
}

fn elements(plan: &Plan, o: &Operand) -> f64 {
    plan.buffer(o.buf).largest(&plan.mesh) as f64
}

/// Positions of a dim on the device with the largest shards.
fn local(plan: &Plan, step: &Step, dim: Dim) -> u64 {
    step.all().find(|o| o.dims.contains(&dim)).map_or(1, |o| extent(plan, o, dim))
}

/// The same of an operand's dim; 1 where it has no such dim.
fn extent(plan: &Plan, of: &Operand, dim: Dim) -> u64 {
    let at = of.dims.iter().position(|d| *d == dim);
    at.map_or(1, |at| plan.buffer(of.buf).extents[at].largest(&plan.mesh) as u64)
}

/// The matrix product of a contraction; none where one factor is a single row of numbers, so that memory alone decides.
fn product(plan: &Plan, step: &Step) -> Option<Matmul> {
    let ([a, b], [out]) = step.operands::<2, 1>().ok()?;
    let arithmetic = match plan.buffer(a.buf).dtype {
        DType::F32 if plan.float == Arithmetic::TF32 && step.phase != Phase::Update => Arithmetic::TF32,
        dtype => dtype.into(),
    };
    let mut of = Matmul { m: 1, n: 1, k: 1, batch: 1, arithmetic, fp8: false };
    let mut dims: Vec<Dim> = a.dims.iter().chain(&b.dims).copied().collect();
    dims.sort();
    dims.dedup();
    for dim in dims {
        let size = local(plan, step, dim);
        *match (a.dims.contains(&dim), b.dims.contains(&dim), out.dims.contains(&dim)) {
            (true, true, true) => &mut of.batch,
            (true, false, _) => &mut of.m,
            (false, _, _) => &mut of.n,
            (true, true, false) => &mut of.k,
        } *= size;
    }
    Some(of)
}

fn scores(plan: &Plan, step: &Step, spec: &AttentionSpec, parts: &[AttentionPart]) -> Option<Scores> {
    let query = step.reads.first()?;
    let all = |dims: &[Dim]| dims.iter().map(|d| local(plan, step, *d) as f64).product::<f64>();
    let keys = local(plan, step, spec.key) as f64;
    // Queries of one key: the dims of the scores that only the queries have.
    let key = step.reads.get(1)?;
    let own: Vec<Dim> =
        spec.space.iter().copied().filter(|d| query.dims.contains(d) && !key.dims.contains(d)).collect();
    let queries = all(&own);
    let products = parts.iter().map(|p| match p {
        AttentionPart::Max | AttentionPart::Values | AttentionPart::Result | AttentionPart::Value => 1.0,
        AttentionPart::Sum | AttentionPart::Bias => 0.0,
        AttentionPart::Query => 2.0,
        AttentionPart::Key => 1.0,
    });
    let backward = parts.iter().any(|p| p.is_gradient());
    Some(Scores {
        matrices: all(&spec.space) / keys / queries,
        queries,
        keys,
        width: all(&spec.width),
        values: all(&spec.values),
        visible: visible(plan, step, spec),
        balanced: balanced(plan, spec),
        products: products.sum::<f64>() + if backward { 1.0 } else { 0.0 },
        kernels: 1.0,
        functions: of_score(spec, backward),
        backward,
        dropout: !spec.draws.is_empty(),
        arithmetic: match plan.buffer(query.buf).dtype {
            DType::F32 if spec.rounds => Arithmetic::TF32,
            dtype => dtype.into(),
        },
    })
}

/// Functions of the weights of a softmax that is computed as keys come: the greatest score, what a score is below it, their sum,
/// what is rounded for the next product. Those of a gradient: what a weight is below the row's mean, times the weight, rounded.
const SOFTMAX: f64 = 4.0;

/// Functions for each score in a kernel.
fn of_score(spec: &AttentionSpec, backward: bool) -> [f64; ScalarFamily::ALL.len()] {
    let mut all = [0.0; ScalarFamily::ALL.len()];
    let bias = spec.bias.as_ref().map(|bias| &bias.slope);
    let slopes = [Some(&spec.slope), bias].map(|slope| slope.filter(|_| backward));
    let computed = [Some(&spec.score), spec.weight.as_ref()].into_iter().chain(slopes);
    computed.flatten().for_each(|of| count(&of.expr, 1.0, &mut all));
    all[ScalarFamily::Function(FunctionCost::Simple).position()] += SOFTMAX;
    all[ScalarFamily::Function(FunctionCost::Exponential).position()] += 1.0;
    all
}

/// Adds the functions of an expression, by family.
fn count(expr: &Expr, elements: f64, scalars: &mut [f64]) {
    for node in expr.nodes.iter().filter(|n| n.dtype != DType::Bool) {
        let cost = match node.scalar {
            Scalar::Unary(f, _) => f.cost(),
            Scalar::Binary(BinaryFn::Div | BinaryFn::FloorDiv | BinaryFn::Mod, ..) => FunctionCost::Divide,
            Scalar::Binary(BinaryFn::Pow, ..) => FunctionCost::Power,
            Scalar::Binary(..) | Scalar::Select(..) | Scalar::Cast(_) => FunctionCost::Simple,
            _ => continue,
        };
        scalars[ScalarFamily::Function(cost).position()] += elements;
    }
}
