//! Values in 8 bits as what they are made of: their greatest magnitude, its scale, and the rounding.
//!
//! It runs when a step is in parts, behind `microbatches`: the greatest magnitude is that of the examples of a part, since no
//! part may wait for another. All copies of a factor share its scale (`factor_scales`). What follows sees a reduction like any
//! other: over a dim that is split, it ends with an all-reduce, so that the scale is that of the whole value under every layout.

use super::linear::linearized;
use super::normalize::rebuild;
use crate::step::factor_scales::FactorNumbers;
use crate::step::step_graph::StepGraph;
use meshwright_ops::{Class, Graph, Id, Origin, Quantized, RECIP};
use meshwright_plan::Dim;

/// Whether a step has such a value.
pub(crate) fn has_any(step: &StepGraph) -> bool {
    step.graph.nodes.iter().any(|n| n.op.as_any().is::<Quantized>())
}

/// Spells out what is rounded to 8 bits.
pub(crate) fn spelled_out(step: &StepGraph) -> StepGraph {
    let mut numbers = FactorNumbers::new();
    linearized(rebuild(step, |g, node, _| {
        let Some(op) = node.op.as_any().downcast_ref::<Quantized>().copied() else { return g.push(node) };
        let x = node.inputs[0];
        if g.dims.elements(&g.ty(x).dims) == 0 {
            return x;
        }
        let numbers = numbers.of(g, x, op.format, |g, x, along| own(g, op, x, along));
        op.rounded(g, x, numbers)
    }))
}

/// The scale of a value by its own greatest magnitude, and its inverse: of each position along some dims.
fn own(g: &mut Graph, op: Quantized, x: Id, along: &[Dim]) -> [Id; 2] {
    let name = format!("{}({})", op.format.name(), g.path(x)).into();
    g.cursor = Origin { name, layer: true, ..g.node(x).origin.clone() };
    let sizes = Quantized::sizes(g, x);
    let dims: Vec<Dim> = g.ty(x).dims.iter().copied().filter(|d| !along.contains(d)).collect();
    // Rules for parameters split these, not their scales.
    g.cursor.class = Class::Value;
    let scale = op.scale(g, sizes, &dims);
    [scale, g.unary(&RECIP, scale)]
}
