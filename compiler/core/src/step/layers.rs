//! Which products are those of layers: in a program of `fp8` their factors have 8 bits, and so have those of their gradients.
//!
//! Before: the graph of a program. After: the same, in which products of layers are marked, so that what differentiates them
//! marks their gradients. A product is one of a layer if it multiplies an activation by a parameter, or by what is made of
//! parameters alone, and what it gives is stored in the half type. So these are not, and stay in `bf16`:
//!
//! - the first layer, which multiplies a parameter by data, or looks it up;
//! - the last one, whose result a loss takes in full; likewise the scores by which experts are chosen;
//! - the scores and the values of attention, which multiply activations by each other;
//! - convolutions, which have no units of 8 bits.

use crate::program::Program;
use crate::step::precision::{PrecisionClass, choices};
use crate::step::rounding::precision;
use crate::step::step_graph::{OutputKind, StepGraph, StepOutput};
use meshwright_ops::{Computes, Graph, Id, Kind, Precision};
use meshwright_plan::{Arithmetic, DType};

/// Marks the products of the layers of a program of `fp8`.
pub(crate) fn mark(program: &mut Program) {
    if program.float != Arithmetic::FP8 {
        return;
    }
    let decls = program.losses.iter().chain(&program.metrics).chain(&program.outputs);
    let given = decls.map(|d| (d.name.clone(), d.id, OutputKind::Output));
    let kept = program.states.iter().filter_map(|s| Some((s.path.clone(), s.next?, OutputKind::Next(s.id))));
    let step = StepGraph {
        model: program.model.clone(),
        program: "layers",
        float: program.float,
        scale_history: None,
        graph: program.graph.clone(),
        inputs: Vec::new(),
        outputs: given.chain(kept).map(|(name, id, kind)| StepOutput { name, id, kind }).collect(),
    };
    for id in products(&step) {
        program.graph.nodes[id].origin.layer = true;
    }
}

fn products(step: &StepGraph) -> Vec<Id> {
    let g = &step.graph;
    let (classes, choices) = choices(step, DType::BF16);
    let of_layer = |id: &Id| {
        let mut factors = factors(g, *id).map(|x| classes[x]);
        let two = [factors.next(), factors.next()];
        let (weight, activation) = (Some(PrecisionClass::Weight), Some(PrecisionClass::Narrow));
        let fits = two == [weight, activation] || two == [activation, weight];
        fits && factors.next().is_none() && choices[*id].narrow
    };
    let multiplies = |id: &Id| {
        let contracts = g.node(*id).op.kind() == Kind::Compute(Computes::Contraction);
        contracts && precision(g, *id) == Precision::Products
    };
    g.ids().filter(multiplies).filter(of_layer).collect()
}

/// The factors of a product, without numbers that scale it.
fn factors(g: &Graph, id: Id) -> impl Iterator<Item = Id> + '_ {
    g.node(id).inputs.iter().copied().filter(|x| !g.ty(*x).dims.is_empty())
}
