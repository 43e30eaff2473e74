//! Values in 8 bits as what they are made of: their greatest magnitude, its scale, and the rounding.
//!
//! It runs when a step is in parts, behind `microbatches`: the greatest magnitude is that of the examples of a part, since no
//! part may wait for another. What follows sees a reduction like any other: over a dim that is split, it ends with an all-reduce,
//! so that the scale is that of the whole value under every layout.

use super::normalize::rebuild;
use crate::step::step_graph::StepGraph;
use meshwright_ops::Quantized;

/// Whether a step has such a value.
pub(crate) fn has_any(step: &StepGraph) -> bool {
    step.graph.nodes.iter().any(|n| n.op.as_any().is::<Quantized>())
}

/// Spells out what is rounded to 8 bits.
pub(crate) fn spelled_out(step: &StepGraph) -> StepGraph {
    rebuild(step, |g, node, _| {
        let found = if node.op.as_any().is::<Quantized>() { node.op.expand(g, &node.inputs) } else { None };
        found.unwrap_or_else(|| g.push(node))
    })
}
