//! Operations of a model: what a training step computes by its equations, whatever the layout makes of them.

use crate::passes::normalize;
use crate::step::step_graph::StepGraph;
use meshwright_ops::Id;
use meshwright_plan::Phase;

/// Floating-point operations of a step's forward and backward pass on all devices together: those of matrix products,
/// convolutions and attention, two for each multiplication and addition, attention to all keys whether hidden or not. Indexing is
/// not counted, as where tokens go to experts. What the optimizer does is not counted, nor what is computed again; so neither a
/// layout nor its `recompute` and `microbatches` change it. It is the numerator of model FLOPs utilization (Chowdhery et al.
/// 2022, appendix B).
pub fn model_flops(step: &StepGraph) -> u64 {
    model_flops_wide(step) as u64
}

/// The same where a step may have more operations than 64 bits count, as those of very large batches.
pub fn model_flops_wide(step: &StepGraph) -> f64 {
    // Short forms become what they stand for; no layout is known that would make more of it.
    let step = normalize::dead_code(&normalize::expand(step, &|_, _, _| false));
    let g = &step.graph;
    let counted = |id: &Id| g.node(*id).origin.phase != Phase::Update;
    let each = g.ids().filter(counted).map(|id| {
        let node = g.node(id);
        let mut flops = u128::from(node.op.model_flops(&g.input_types(id), &node.ty, &g.dims));
        let mut scope = node.scope;
        while let Some(of) = scope.filter(|_| flops > 0) {
            flops = flops.saturating_mul(g.iterations(of) as u128);
            scope = g.repeats[of].parent;
        }
        flops
    });
    each.fold(0, u128::saturating_add) as f64
}
