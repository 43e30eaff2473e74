//! What a training step has to do under any layout: its kernels, its parameters and gradients, and along which dims each may be
//! split.
//!
//! It is read off the step on one device, which is compiled once. So nothing is compiled for a bound that is made of it.

use crate::shape::{ALL, Families, ShapeTable, ShapedMatmul};
use meshwright_core::StepGraph;
use meshwright_core::step::step_graph::OutputKind;
use meshwright_cost::step::DeviceRates;
use meshwright_cost::work::{DeviceWork, KernelPurpose, KernelWork, Loop, ScalarFamily, WorkItem};
use meshwright_ops::{Class, Graph, Id, Kind, Role};
use meshwright_plan::{BufId, Dim, KernelFamily, Phase, Plan, Prim};
use meshwright_sorted::{SortedMap, SortedSet};

/// Kernels on one device that is as fast as each of a mesh, summed over what may be split alike. Where there is one number for
/// each number of parts that the batch is taken in, it is that of all parts.
#[derive(Clone, Debug, Default)]
pub struct KernelSums {
    /// Least seconds of kernels without products, by phase and by the families of their dims, for each number of parts.
    pub plain: SortedMap<(Phase, Families), Vec<f64>>,
    /// The same of kernels of attention.
    pub attention: SortedMap<(Phase, Families), Vec<f64>>,
    /// Kernels with products.
    pub products: Vec<MatmulKernel>,
    /// Seconds of launches, for each number of parts.
    pub launch: Vec<f64>,
}

impl KernelSums {
    fn products(&mut self, kernel: MatmulKernel) {
        let alike = |k: &&mut MatmulKernel| MatmulKernel { times: kernel.times, ..(**k).clone() } == kernel;
        match self.products.iter_mut().find(alike) {
            Some(k) => k.times += kernel.times,
            None => self.products.push(kernel),
        }
    }
}

/// A kernel with matrix products.
#[derive(Clone, Debug, PartialEq)]
pub struct MatmulKernel {
    /// Its phase.
    pub phase: Phase,
    /// The families of its dims.
    pub families: Families,
    /// How often it runs.
    pub times: f64,
    /// Least seconds of what it moves, for each number of parts.
    pub moves: Vec<f64>,
    /// Least seconds of what it computes besides.
    pub computes: f64,
    /// The products, by their numbers.
    pub of: Vec<usize>,
}

/// The work of a step, summed over what may be split alike.
#[derive(Debug, Default)]
pub struct ModelWork {
    /// Sums of kernels, for each choice of loops that are computed again.
    pub kernels: Vec<KernelSums>,
    /// Of these, what the forward pass through the loop of layers runs.
    pub layers: KernelSums,
    /// Families of dims of attention that leave none of its kernels if they are split: other kernels, perhaps fewer, take their
    /// place.
    pub whole_heads: Families,
    /// Their products.
    pub shapes: ShapeTable,
    /// The rates that kernels are measured by.
    pub rates: Option<DeviceRates>,
    /// Bytes of parameters and of states that training keeps for them, by families; the latter with `true`.
    pub held: SortedMap<(bool, Families), f64>,
    /// Dims of loops along which products run.
    pub split: SortedSet<Dim>,
    /// The family of each dim: dims that an op takes for one another, by renames, windows and the like.
    family: Vec<u32>,
}

impl ModelWork {
    /// Of a step as it is right before it is partitioned, with the dim that counts examples, and the numbers of parts in which
    /// they may be taken.
    pub fn of(step: &StepGraph, rates: DeviceRates, (example, parts): (Option<Dim>, &[usize])) -> ModelWork {
        let g = &step.graph;
        let mut work = ModelWork { family: families(g), rates: Some(rates), ..ModelWork::default() };
        work.shapes = ShapeTable::new(example.map_or(0, |d| work.families([d])), parts);
        for id in g.ids() {
            let node = g.node(id);
            if node.op.model_flops(&g.input_types(id), &node.ty, &g.dims) > 0 {
                work.split.extend(splittable(g, id).iter().map(|l| l.dim));
            }
        }
        for (leaf, next) in step.outputs.iter().filter_map(|o| match o.kind {
            OutputKind::Next(leaf) => Some((leaf, o.id)),
            _ => None,
        }) {
            if leaf != next {
                let ty = g.ty(leaf);
                let bytes = (ty.elements(&g.dims) * ty.dtype.bytes()) as f64;
                let state = g.node(leaf).origin.class == Class::OptimizerState;
                let families = work.families(ty.dims.iter().copied());
                *work.held.entry((state, families)).or_default() += bytes;
            }
        }
        work
    }

    /// Adds what the step's Plan for one device runs, with the next choice of what is computed again. Of a step with fewer
    /// examples than the one that is asked for, `shrunk` has the dim that counts them, and the ratio. `layers` is the dim of the
    /// loop that a pipeline cuts.
    pub fn add(
        &mut self,
        plan: &Plan,
        program: &DeviceWork,
        (shrunk, layers): (Option<(Dim, f64)>, Option<Dim>),
    ) {
        let none = || KernelSums { launch: vec![0.0; self.shapes.parts().count()], ..KernelSums::default() };
        let (mut sums, mut of_layers) = (none(), none());
        for step in &plan.steps {
            if let Prim::Attention { spec, .. } = &step.prim {
                self.whole_heads |= self.families(spec.width.iter().chain(&spec.values).copied());
            }
        }
        if let Some(rates) = self.rates.clone() {
            let scale = Scale { plan, rates: &rates, shrunk };
            self.sum(&program.body, 1.0, &scale, &mut sums);
            let is = |of: &&Loop| matches!(plan.steps[of.step].prim, Prim::Repeat { dim, .. } if Some(dim) == layers);
            let loops =
                program.body.iter().filter_map(|i| if let WorkItem::Loop(of) = i { Some(of) } else { None });
            if let (true, Some(forward)) = (self.kernels.is_empty(), loops.into_iter().find(is)) {
                self.sum(&[WorkItem::Loop(forward.clone())], 1.0, &scale, &mut of_layers);
                self.layers = of_layers;
            }
        }
        self.kernels.push(sums);
    }

    fn sum(&mut self, items: &[WorkItem], times: f64, scale: &Scale<'_>, sums: &mut KernelSums) {
        for item in items {
            match item {
                WorkItem::Work(work) if work.purpose != KernelPurpose::Step => {}
                WorkItem::Work(work) => {
                    let operands = work.steps.iter().flat_map(|s| scale.plan.steps[*s].all());
                    let families = self.families(operands.flat_map(|o| o.dims.iter().copied()));
                    let launch = scale.rates.least(work).launch;
                    let whole = self.whole(scale.plan, work, scale.shrunk);
                    // Of a kernel along the examples each part has its own, which reads again what has none.
                    let fixed = self.fixed(scale.plan, work).filter(|_| work.phase != Phase::Update);
                    let own = |parts: usize| fixed.map_or(1.0, |_| parts as f64);
                    let each: Vec<(f64, f64)> =
                        self.shapes.parts().map(own).map(|n| (n, (n - 1.0) * fixed.unwrap_or(0.0))).collect();
                    sums.launch.iter_mut().zip(&each).for_each(|(l, (n, _))| *l += times * n * launch);
                    let moving = |of: &KernelWork| -> Vec<f64> {
                        let more =
                            |(_, more): &(f64, f64)| KernelWork { bytes: of.bytes + more, ..of.clone() };
                        each.iter().map(|e| scale.rates.least(&more(e)).work).collect()
                    };
                    match self.product(&whole, families, times, scale, &moving) {
                        Some(product) => sums.products(product),
                        None => {
                            let attends = work.family == KernelFamily::Attention;
                            let of = if attends { &mut sums.attention } else { &mut sums.plain };
                            let of =
                                of.entry((work.phase, families)).or_insert_with(|| vec![0.0; each.len()]);
                            of.iter_mut().zip(moving(&whole)).for_each(|(sum, s)| *sum += times * s);
                        }
                    }
                }
                WorkItem::Loop(of) => {
                    for (item, _) in &of.body {
                        self.sum(std::slice::from_ref(item), times * of.size as f64, scale, sums);
                    }
                }
                WorkItem::Start(_) | WorkItem::Wait(_) => {}
            }
        }
    }

    /// A kernel whose products are known by their dims.
    fn product(
        &mut self,
        work: &KernelWork,
        families: Families,
        times: f64,
        scale: &Scale<'_>,
        moving: &dyn Fn(&KernelWork) -> Vec<f64>,
    ) -> Option<MatmulKernel> {
        if work.family != KernelFamily::Matmul || work.products.is_empty() {
            return None;
        }
        let size = |d: Dim, local: u64| match scale.shrunk {
            Some((dim, ratio)) if dim == d => (local as f64 * ratio).round() as u64,
            _ => local,
        };
        let of = ShapedMatmul::all(scale.plan, work, size, |d| self.families([d]));
        if of.len() != work.products.len() {
            return None;
        }
        let (moves, computes) = without_products(work);
        let (moves, computes) = (moving(&moves), scale.rates.least(&computes).work);
        let of = of.into_iter().map(|p| self.shapes.number(p)).collect();
        Some(MatmulKernel { phase: work.phase, families, times, moves, computes, of })
    }

    /// Work for all examples of a kernel of a step with fewer, as [`ModelWork::add`] has it: what runs along them grows, bytes of
    /// operands without them do not.
    pub(crate) fn whole(&self, plan: &Plan, work: &KernelWork, shrunk: Option<(Dim, f64)>) -> KernelWork {
        let Some((ratio, fixed)) = shrunk.and_then(|(_, ratio)| Some((ratio, self.fixed(plan, work)?)))
        else {
            return work.clone();
        };
        let mut out = work.clone();
        out.bytes = fixed + (work.bytes - fixed) * ratio;
        // The number of products and of matrices of scores changes no rate.
        for p in &mut out.products {
            p.batch = (p.batch as f64 * ratio).round() as u64;
        }
        if let Some(s) = &mut out.attention {
            s.matrices *= ratio;
        }
        out.scalars.iter_mut().for_each(|s| *s *= ratio);
        out.operations *= ratio;
        out.again *= ratio;
        out
    }

    /// Bytes of a kernel that do not run along the examples; none where all of it is independent of them.
    pub(crate) fn fixed(&self, plan: &Plan, work: &KernelWork) -> Option<f64> {
        let examples = self.shapes.examples();
        let operands: SortedMap<BufId, &[Dim]> = work
            .steps
            .iter()
            .flat_map(|s| plan.steps[*s].all())
            .map(|o| (o.buf, o.dims.as_slice()))
            .collect();
        let along = |dims: &[Dim]| self.families(dims.iter().copied()) & examples != 0;
        let without = || operands.iter().filter(|(_, dims)| !along(dims));
        let fixed: usize = without().map(|(buf, _)| plan.buffer(*buf).largest_bytes(&plan.mesh)).sum();
        (without().count() < operands.len()).then(|| work.bytes.min(fixed as f64))
    }

    /// The families of some dims.
    pub fn families(&self, dims: impl IntoIterator<Item = Dim>) -> Families {
        let bit = |d: Dim| self.family.get(d.0 as usize).map_or(ALL, |f| 1 << f.min(&(Families::BITS - 1)));
        dims.into_iter().fold(0, |all, d| all | bit(d))
    }
}
/// What kernels are measured by.
struct Scale<'a> {
    plan: &'a Plan,
    rates: &'a DeviceRates,
    shrunk: Option<(Dim, f64)>,
}

/// The loops of an op that may be split.
pub(crate) fn splittable(g: &Graph, id: Id) -> Vec<meshwright_ops::Loop> {
    let node = g.node(id);
    let roles = node.op.roles(&g.input_types(id), &node.ty, &g.dims);
    roles.loops.into_iter().filter(|l| l.role != Role::NeedReplication).collect()
}

/// What a kernel moves, and what it computes besides its products.
fn without_products(work: &KernelWork) -> (KernelWork, KernelWork) {
    let none = KernelWork { products: Vec::new(), ..work.clone() };
    let scalars = [0.0; ScalarFamily::ALL.len()];
    (KernelWork { family: KernelFamily::Memory, scalars, ..none.clone() }, KernelWork { bytes: 0.0, ..none })
}

/// The family of each dim, numbered from 0.
fn families(g: &Graph) -> Vec<u32> {
    fn root(of: &mut [usize], mut d: usize) -> usize {
        while of[d] != d {
            of[d] = of[of[d]];
            d = of[d];
        }
        d
    }
    let mut of: Vec<usize> = (0..g.dims.iter().count()).collect();
    for id in g.ids() {
        let mut pairs: Vec<(Dim, Dim)> = Vec::new();
        if let Kind::Rename { from, to } = g.node(id).op.kind() {
            pairs.push((from, to));
        }
        for l in splittable(g, id) {
            pairs.extend(l.on.iter().flatten().map(|on| (l.dim, *on)));
        }
        for (a, b) in pairs {
            let (a, b) = (root(&mut of, a.0 as usize), root(&mut of, b.0 as usize));
            of[a.max(b)] = a.min(b);
        }
    }
    let roots: Vec<usize> = (0..of.len()).map(|d| root(&mut of, d)).collect();
    let mut numbers = SortedMap::new();
    for r in &roots {
        let next = numbers.len() as u32;
        numbers.entry(*r).or_insert(next);
    }
    roots.iter().map(|r| numbers[r]).collect()
}
