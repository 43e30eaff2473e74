//! A loss over a large product is computed for a part of its rows at a time.
//!
//! Before: the logits of all rows, their loss, and their gradient, from which the gradients of both factors are computed. After:
//! each iteration of a loop computes these for a part of the rows, stores results with rows at its position, and adds sums over
//! rows to those of the parts before, in `f32` for half types. So the logits of all rows are never live at once. The pass finds a
//! chain of steps by their operands: it starts with products, ends with products, sums and losses, and has no collective.

mod parts_loop;

use super::lifetimes::{ends, measured};
use super::map_fusion::fuse;
use super::stretches::stretches;
use meshwright_plan::expr::Scalar;
use meshwright_plan::{BufId, Dim, Extent, Monoid, Operand, Plan, Prim, Step};
use meshwright_sorted::{SortedMap, SortedSet};
use parts_loop::Cutter;

/// Conditions under which losses are computed in parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LossParts {
    /// Least bytes of logits on the device with the largest shards; their gradient has as many.
    pub bytes: u64,
    /// Fewest rows of a part on a device: each part reads and writes the sums over rows once more, which must cost little
    /// compared with its products.
    pub rows: usize,
    /// Most parts.
    pub parts: usize,
}

impl Default for LossParts {
    fn default() -> Self {
        LossParts { bytes: 128 << 20, rows: 4096, parts: 8 }
    }
}

/// Computes losses in parts of their rows where the Plan's peak falls by it. Where no collective is, nothing comes between this
/// pass and fusion: a Plan that was fused for its peak stays so.
pub fn in_parts(mut plan: Plan, when: LossParts) -> Plan {
    let is_large = |o: &Operand| plan.buffer(o.buf).largest_bytes(&plan.mesh) as u64 >= when.bytes;
    let of_loss = |s: &&Step| matches!(s.prim, Prim::CrossEntropy { .. }) && s.reads.iter().any(is_large);
    let losses: Vec<BufId> = plan.steps.iter().filter(of_loss).map(|s| s.writes[0].buf).collect();
    let mut fused = None;
    for loss in losses {
        // A loss of the same logits is in a loop already.
        let at = plan.steps.iter().position(|s| s.writes_buf(loss));
        let Some(cut) = at.and_then(|at| Chain::at(&plan, at)?.cut(&plan, when)) else { continue };
        let whole = fused.get_or_insert_with(|| fuse(plan.clone()));
        let fused_cut = fuse(cut.clone());
        if peak(&fused_cut) < peak(whole) {
            (plan, *whole) = (cut, fused_cut);
        }
    }
    let communicates = plan.steps.iter().any(|s| s.collective().is_some());
    fused.filter(|_| !communicates).unwrap_or(plan)
}

/// The most bytes at once of a fused Plan, as far as it is known before the passes that follow.
fn peak(fused: &Plan) -> u64 {
    measured(fused, &ends(fused)).peak_bytes
}

/// The producers and consumers of logits and of all values with their dims.
struct Chain {
    steps: SortedSet<usize>,
    logits: Operand,
    class: Dim,
    /// Operands of other steps, outputs, and next values.
    leaves: SortedSet<BufId>,
}

impl Chain {
    /// The chain of the loss at a step; none where something else reads the logits.
    fn at(plan: &Plan, loss: usize) -> Option<Chain> {
        let Prim::CrossEntropy { dim: class } = plan.steps[loss].prim else { return None };
        let logits = plan.steps[loss].reads.first()?.clone();
        let stretch = stretches(&plan.steps);
        let is_large = |o: &Operand| logits.dims.iter().all(|d| o.dims.contains(d));
        let kept: SortedSet<BufId> = (plan.outputs.iter().map(|o| o.buf))
            .chain(plan.program_inputs.iter().flat_map(|l| l.next.into_iter().chain([l.buf])))
            .collect();
        let (mut steps, mut large) = (SortedSet::new(), SortedMap::from([(logits.buf, logits.dims.clone())]));
        let mut open = vec![logits.buf];
        while let Some(buf) = open.pop() {
            let users = plan.steps.iter().enumerate().filter(|(_, s)| s.reads_buf(buf) || s.writes_buf(buf));
            let mut made = false;
            for (at, step) in users {
                made |= step.writes_buf(buf);
                if stretch[at] != stretch[loss] || !belongs(step, class) {
                    return None;
                }
                steps.insert(at);
                for o in step.all().filter(|o| is_large(o)) {
                    let known = large.entry(o.buf).or_insert_with(|| {
                        open.push(o.buf);
                        o.dims.clone()
                    });
                    // Read under another name of a dim, a part would have other elements.
                    if *known != o.dims {
                        return None;
                    }
                }
            }
            if !made || kept.contains(&buf) {
                return None;
            }
        }
        let outside = plan.steps.iter().enumerate().filter(|(at, _)| !steps.contains(at));
        let leaves = outside.flat_map(|(_, s)| &s.reads).map(|o| o.buf).chain(kept).collect();
        Some(Chain { steps, logits, class, leaves })
    }

    /// The Plan with the chain in parts.
    fn cut(&self, plan: &Plan, when: LossParts) -> Option<Plan> {
        let extents = &plan.buffer(self.logits.buf).extents;
        let rows = || self.logits.dims.iter().zip(extents).filter(|(d, _)| **d != self.class);
        let count: usize = rows().map(|(_, e)| e.largest(&plan.mesh)).product();
        let most = when.parts.min(count / when.rows.max(1));
        let parts = |extent: &Extent| {
            let devices: usize = extent.axes.iter().map(|a| plan.mesh.size(*a)).product();
            (2..=most).rev().find(|k| extent.size > 0 && extent.size.is_multiple_of(k * devices))
        };
        let along = rows().filter(|(d, e)| self.may_cut(plan, **d, e));
        // Of equally many parts those of the outermost dim: their elements are contiguous.
        let all = along.filter_map(|(d, e)| Some((*d, e.clone(), parts(e)?))).rev();
        let (dim, extent, parts) = all.max_by_key(|(.., parts)| *parts)?;
        Cutter::new(plan.clone(), dim, &extent, parts).cut(&self.steps, &self.leaves)
    }

    /// True if rows along a dim can be computed apart: all operands are split alike, none depends on the position, and results
    /// without the dim are sums.
    fn may_cut(&self, plan: &Plan, dim: Dim, extent: &Extent) -> bool {
        let has = |o: &Operand| o.dims.contains(&dim);
        let alike = |o: &Operand| {
            let held = &plan.buffer(o.buf).extents;
            o.dims.iter().zip(held).all(|(d, e)| *d != dim || e == extent)
        };
        let own: SortedMap<BufId, &Operand> =
            self.steps.iter().flat_map(|s| &plan.steps[*s].writes).map(|o| (o.buf, o)).collect();
        extent.window.is_none()
            && self.steps.iter().map(|s| &plan.steps[*s]).all(|step| {
                let counts = match &step.prim {
                    Prim::Map { expr, .. } => expr.nodes.iter().any(|n| match n.scalar {
                        Scalar::Index(k) => step.writes[0].dims[usize::from(k)] == dim,
                        _ => false,
                    }),
                    _ => false,
                };
                let sums = matches!(step.prim, Prim::Contract | Prim::Reduce { monoid: Monoid::Sum });
                let fits = |o: &Operand| has(o) || sums && plan.buffer(o.buf).dtype.is_float();
                // Only the last part completes a sum.
                let known = |o: &Operand| own.get(&o.buf).is_none_or(|made| has(o) && *made == o);
                !counts
                    && step.reads.iter().all(known)
                    && step.all().all(alike)
                    && step.writes.iter().all(fits)
            })
    }
}

/// True for steps that a chain may have.
fn belongs(step: &Step, class: Dim) -> bool {
    match step.prim {
        Prim::Map { .. } | Prim::Contract | Prim::Reduce { monoid: Monoid::Sum } => true,
        Prim::CrossEntropy { dim } | Prim::CrossEntropyGrad { dim } => dim == class,
        _ => false,
    }
}
