//! What a training step has to do under any layout: its kernels, its parameters and gradients, and along which dims each may be split.
//!
//! It is read off the step on one device, which is compiled once. So nothing is compiled for a bound that is made of it.

use meshwright_core::StepGraph;
use meshwright_core::step_graph::OutputKind;
use meshwright_cost::step::DeviceRates;
use meshwright_cost::work::{self as kernels, DeviceWork, WorkItem};
use meshwright_ops::{Class, Graph, Id, Kind, Loop, Role};
use meshwright_plan::{BufId, Dim, Phase, Plan};
use std::collections::{BTreeMap, BTreeSet};

/// A set of families of dims. Those beyond the last bit share it, which only makes more dims count as related.
pub type Families = u128;

/// All families.
pub const ALL: Families = Families::MAX;

/// The work of a step, summed over what may be split alike.
#[derive(Clone, Debug, Default)]
pub struct ModelWork {
    /// Least seconds of the kernels on one device that is as fast as each of the mesh, by phase and by the families of their dims.
    pub kernels: BTreeMap<(Phase, Families), f64>,
    /// Seconds of launches.
    pub launch: f64,
    /// Bytes of parameters and of states that training keeps for them, by families; the latter with `true`.
    pub held: BTreeMap<(bool, Families), f64>,
    /// Dims of loops along which products run.
    pub split: BTreeSet<Dim>,
    /// The family of each dim: dims that an op takes for one another, by renames, windows and the like.
    family: Vec<u32>,
}

impl ModelWork {
    /// Of a step as it is right before it is partitioned, its Plan for one device, and the work of that device. Of a step with fewer examples
    /// than the one that is asked for, `shrunk` has the dim that counts them, and the ratio.
    pub fn of(
        step: &StepGraph,
        plan: &Plan,
        program: &DeviceWork,
        rates: &DeviceRates,
        shrunk: Option<(Dim, f64)>,
    ) -> ModelWork {
        let g = &step.graph;
        let mut work = ModelWork { family: families(g), ..ModelWork::default() };
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
        work.kernels(&program.body, 1.0, &Scale { plan, rates, shrunk });
        work
    }

    fn kernels(&mut self, items: &[WorkItem], times: f64, scale: &Scale<'_>) {
        for item in items {
            match item {
                WorkItem::Work(work) => {
                    let operands = work.steps.iter().flat_map(|s| scale.plan.steps[*s].all());
                    let families = self.families(operands.flat_map(|o| o.dims.iter().copied()));
                    let least = scale.rates.least(&self.whole(work, families, scale));
                    *self.kernels.entry((work.phase, families)).or_default() += times * least.work;
                    self.launch += times * scale.rates.least(work).launch;
                }
                WorkItem::Loop(of) => {
                    for (item, _) in &of.body {
                        self.kernels(std::slice::from_ref(item), times * of.size as f64, scale);
                    }
                }
                WorkItem::Start(_) | WorkItem::Wait(_) => {}
            }
        }
    }

    /// Work for all examples: what runs along them grows, bytes of operands without them do not.
    fn whole(
        &self,
        work: &kernels::KernelWork,
        families: Families,
        scale: &Scale<'_>,
    ) -> kernels::KernelWork {
        let Some((dim, ratio)) = scale.shrunk else { return work.clone() };
        let examples = self.families([dim]);
        if families & examples == 0 {
            return work.clone();
        }
        let plan = scale.plan;
        let operands: BTreeMap<BufId, &[Dim]> = work
            .steps
            .iter()
            .flat_map(|s| plan.steps[*s].all())
            .map(|o| (o.buf, o.dims.as_slice()))
            .collect();
        let without =
            operands.into_iter().filter(|(_, dims)| self.families(dims.iter().copied()) & examples == 0);
        let fixed: usize = without.map(|(buf, _)| plan.buffer(buf).largest_bytes(&plan.mesh)).sum();
        let fixed = work.bytes.min(fixed as f64);
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
        out
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
pub(crate) fn splittable(g: &Graph, id: Id) -> Vec<Loop> {
    let node = g.node(id);
    let roles = node.op.roles(&g.input_types(id), &node.ty, &g.dims);
    roles.loops.into_iter().filter(|l| l.role != Role::NeedReplication).collect()
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
    let mut numbers = BTreeMap::new();
    for r in &roots {
        let next = numbers.len() as u32;
        numbers.entry(*r).or_insert(next);
    }
    roots.iter().map(|r| numbers[r]).collect()
}
