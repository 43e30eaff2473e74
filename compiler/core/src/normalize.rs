//! Normal form of a step graph before it is partitioned: dead code, constants, common subexpressions, merged adds, and
//! composite ops expanded where a dim that they need whole is split.
//!
//! Each pass takes a step graph and returns an equal one. Values keep the origin of what they replace.

use crate::step_graph::StepGraph;
use meshwright_ops::{Add, Const, Contract, ExpandWhen, F64Tensor, Graph, Id, Kind, Node};
use meshwright_plan::{DType, Dim};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Rebuilds a graph value by value: `make` is given the new graph, the old node with operands renumbered, and its old id.
pub(crate) fn rebuild(step: &StepGraph, mut make: impl FnMut(&mut Graph, Node, Id) -> Id) -> StepGraph {
    let mut g = Graph::new(step.graph.dims.clone());
    let mut new: Vec<Id> = Vec::with_capacity(step.graph.nodes.len());
    for id in step.graph.ids() {
        let mut node = step.graph.node(id).clone();
        for i in &mut node.inputs {
            *i = new[i.0 as usize];
        }
        g.cursor = node.origin.clone();
        new.push(make(&mut g, node, id));
    }
    let mut out = StepGraph { graph: g, ..step.clone() };
    for goal in &mut out.outputs {
        goal.id = new[goal.id.0 as usize];
        if let crate::step_graph::OutputKind::Next(leaf) = &mut goal.kind {
            *leaf = new[leaf.0 as usize];
        }
    }
    out
}

/// Drops what no goal needs. Parameters and moments that are updated are needed.
pub fn dead_code(step: &StepGraph) -> StepGraph {
    let mut live = vec![false; step.graph.nodes.len()];
    for goal in &step.outputs {
        live[goal.id.0 as usize] = true;
        if let crate::step_graph::OutputKind::Next(leaf) = goal.kind {
            live[leaf.0 as usize] = true;
        }
    }
    for id in step.graph.ids().collect::<Vec<_>>().into_iter().rev() {
        if live[id.0 as usize] {
            for i in &step.graph.node(id).inputs {
                live[i.0 as usize] = true;
            }
        }
    }
    // Dead values map to a place that nothing reads.
    rebuild(step, |g, node, id| if live[id.0 as usize] { g.push(node) } else { Id(0) })
}

/// Replaces composite ops: always those that are only short forms, the others where `split` says that a dim they need
/// whole is split.
pub fn expand(step: &StepGraph, split: &dyn Fn(&Graph, Id, &[Dim]) -> bool) -> StepGraph {
    rebuild(step, |g, node, id| {
        let wanted = match node.op.expand_when() {
            ExpandWhen::Never => false,
            ExpandWhen::Always => true,
            ExpandWhen::Split(dims) => split(&step.graph, id, &dims),
        };
        let expanded = if wanted { node.op.expand(g, &node.inputs) } else { None };
        let stored = node.ty.dtype;
        let new = expanded.unwrap_or_else(|| g.push(node));
        if g.ty(new).dtype != stored {
            g.nodes[new.0 as usize].ty.dtype = stored;
        }
        new
    })
}

/// Computes what is known: scalars of constants, factors of 1, several constant factors of one product.
pub fn constants(step: &StepGraph) -> StepGraph {
    rebuild(step, |g, node, _| {
        let known: Vec<Option<f64>> = node.inputs.iter().map(|i| constant(g, *i)).collect();
        let scalar = node.ty.dims.is_empty() && (node.ty.dtype.is_float() || node.ty.dtype.is_int());
        if scalar
            && !known.is_empty()
            && known.iter().all(Option::is_some)
            && node.op.expand_when() == ExpandWhen::Never
        {
            let x: Vec<F64Tensor> = known.iter().flatten().map(|v| F64Tensor::scalar(*v)).collect();
            let value = node.op.oracle(&x.iter().collect::<Vec<_>>(), &node.ty, &g.dims).data[0];
            return g.op(Const::new(value, node.ty.dtype), &[]);
        }
        if node.op.name() == "contract" && known.iter().any(Option::is_some) {
            return product(g, node, &known);
        }
        g.push(node)
    })
}

/// A product with its constant factors made one, and that left out where it is 1.
fn product(g: &mut Graph, node: Node, known: &[Option<f64>]) -> Id {
    let factor: f64 = known.iter().flatten().product();
    let mut rest: Vec<Id> =
        node.inputs.iter().zip(known).filter(|(_, k)| k.is_none()).map(|(i, _)| *i).collect();
    let same = |x: Id| g.ty(x).dtype == node.ty.dtype && g.ty(x).dims.len() == node.ty.dims.len();
    if factor == 1.0 && rest.len() == 1 && same(rest[0]) {
        return rest[0];
    }
    if factor != 1.0 || rest.is_empty() {
        rest.push(g.op(Const::new(factor, node.ty.dtype.wide()), &[]));
    }
    g.push(Node { op: Arc::new(Contract { out: node.ty.dims.clone() }), inputs: rest, ..node })
}

fn constant(g: &Graph, id: Id) -> Option<f64> {
    let n = g.node(id);
    let is_const = n.op.name() == "const" && n.ty.dims.is_empty();
    is_const.then(|| n.op.oracle(&[], &n.ty, &g.dims).data[0])
}

/// What tells computations apart: op and type in words, operands, dtype, phase, path.
type Computation = (String, Vec<Id>, DType, u8, Arc<str>);

/// Merges equal computations. With `paths`, only those of one path: a layout that has rules for paths may place equal
/// computations differently.
pub fn common_subexpressions(step: &StepGraph, paths: bool) -> StepGraph {
    let mut seen: BTreeMap<Computation, Id> = BTreeMap::new();
    rebuild(step, |g, node, _| {
        // A gradient is where rules for gradients speak. Leaves that are equal are one: their text names what they are.
        if matches!(node.op.kind(), Kind::Gradient) {
            return g.push(node);
        }
        let path = if paths && !node.ty.dims.is_empty() { node.origin.path.clone() } else { "".into() };
        let key =
            (format!("{:?}", node.op), node.inputs.clone(), node.ty.dtype, node.origin.class as u8, path);
        if let Some(id) = seen.get(&key) {
            return *id;
        }
        let id = g.push(node);
        seen.insert(key, id);
        id
    })
}

/// Merges an add that is used once into the add of the same class that uses it, so that unfinished sums meet in one
/// place: `x + (attn + ffn)` needs one all-reduce.
pub fn merge_adds(step: &StepGraph) -> StepGraph {
    let mut uses = vec![0usize; step.graph.nodes.len()];
    for id in step.graph.ids() {
        for i in &step.graph.node(id).inputs {
            uses[i.0 as usize] += 1;
        }
    }
    for goal in &step.outputs {
        uses[goal.id.0 as usize] += 2;
    }
    // New ids of adds that have one use, with their new operands.
    let mut single: BTreeMap<Id, Vec<Id>> = BTreeMap::new();
    let merged = rebuild(step, |g, node, id| {
        if !matches!(node.op.kind(), Kind::Add) {
            return g.push(node);
        }
        let mut inputs = Vec::new();
        for i in &node.inputs {
            match single.get(i) {
                Some(parts) if g.node(*i).origin.class == node.origin.class => {
                    inputs.extend_from_slice(parts)
                }
                _ => inputs.push(*i),
            }
        }
        let new = g.push(Node { op: Arc::new(Add), inputs: inputs.clone(), ..node });
        if uses[id.0 as usize] == 1 {
            single.insert(new, inputs);
        }
        new
    });
    dead_code(&merged)
}
