//! Normal form of a step graph before it is partitioned: dead code, constants, common subexpressions, merged adds, and
//! composite ops expanded where a dim that they need whole is split.
//!
//! Each pass takes a step graph and returns an equal one. Values keep the origin of what they replace.

use crate::step_graph::StepGraph;
use meshwright_ops::{Add, Class, Computes, Const, Contract, ExpandWhen, Graph, Id, Kind, Node, Op};
use meshwright_plan::{DType, Dim, IdVec};
use std::collections::HashMap;
use std::sync::Arc;

/// Rebuilds a graph value by value: `make` is given the new graph, the old node with operands renumbered, and its old id.
pub(crate) fn rebuild(step: &StepGraph, mut make: impl FnMut(&mut Graph, Node, Id) -> Id) -> StepGraph {
    let mut g = Graph::new(step.graph.dims.clone());
    let mut new: IdVec<Id, Id> = IdVec::new();
    for id in step.graph.ids() {
        let mut node = step.graph.node(id).clone();
        for i in &mut node.inputs {
            *i = new[*i];
        }
        g.cursor = node.origin.clone();
        new.push(make(&mut g, node, id));
    }
    let mut out = step.with_graph(g);
    for goal in &mut out.outputs {
        goal.id = new[goal.id];
        if let crate::step_graph::OutputKind::Next(leaf) = &mut goal.kind {
            *leaf = new[*leaf];
        }
    }
    out
}

/// Drops what no goal needs. Parameters and moments that are updated are needed.
pub fn dead_code(step: &StepGraph) -> StepGraph {
    let mut live = step.graph.nodes.table(false);
    for goal in &step.outputs {
        live[goal.id] = true;
        if let crate::step_graph::OutputKind::Next(leaf) = goal.kind {
            live[leaf] = true;
        }
    }
    for id in step.graph.ids().rev() {
        if live[id] {
            for i in &step.graph.node(id).inputs {
                live[*i] = true;
            }
        }
    }
    // Dead values map to a place that nothing reads.
    rebuild(step, |g, node, id| if live[id] { g.push(node) } else { Id(0) })
}

/// Replaces composite ops: always those that are only short forms, then the others (those that short forms are made of too)
/// where `split` says that a dim they need whole is split.
pub fn expand(step: &StepGraph, split: &dyn Fn(&Graph, Id, &[Dim]) -> bool) -> StepGraph {
    let step = expand_where(step, &|_, _, when| matches!(when, ExpandWhen::Always));
    expand_where(&step, &|g, id, when| matches!(when, ExpandWhen::Split(dims) if split(g, id, &dims)))
}

fn expand_where(step: &StepGraph, wanted: &dyn Fn(&Graph, Id, ExpandWhen) -> bool) -> StepGraph {
    rebuild(step, |g, node, id| {
        let wanted = wanted(&step.graph, id, node.op.expand_when());
        let expanded = if wanted { node.op.expand(g, &node.inputs) } else { None };
        let stored = node.ty.dtype;
        let new = expanded.unwrap_or_else(|| g.push(node));
        if g.ty(new).dtype != stored {
            g.nodes[new].ty.dtype = stored;
        }
        new
    })
}

/// Computes what is known: scalars of constants, factors of 1, several constant factors of one product.
pub fn constants(step: &StepGraph) -> StepGraph {
    rebuild(step, |g, node, _| {
        let known: Vec<Option<f64>> = node.inputs.iter().map(|i| g.constant_value(*i)).collect();
        let scalar = node.ty.dims.is_empty() && (node.ty.dtype.is_float() || node.ty.dtype.is_int());
        if scalar
            && !known.is_empty()
            && let Some(x) = known.iter().copied().collect::<Option<Vec<f64>>>()
            && let Some(value) = node.folded(&x)
        {
            return g.op(Const::new(value, node.ty.dtype), &[]);
        }
        if node.op.kind() == Kind::Compute(Computes::Contraction) && known.iter().any(Option::is_some) {
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

/// What tells computations apart: op, operands, dtype, class, path.
type Computation = (Arc<dyn Op>, Vec<Id>, DType, Class, Arc<str>);

/// Merges equal computations. With `paths`, only those of one path: a layout that has rules for paths may place equal
/// computations differently.
pub fn common_subexpressions(step: &StepGraph, paths: bool) -> StepGraph {
    // Only asked for what is in it, never for its order.
    let mut seen: HashMap<Computation, Id> = HashMap::new();
    rebuild(step, |g, node, _| {
        // A gradient is where rules for gradients apply. Program inputs that are equal are one.
        if matches!(node.op.kind(), Kind::Gradient) {
            return g.push(node);
        }
        let path = if paths && !node.ty.dims.is_empty() { node.origin.path.clone() } else { "".into() };
        let key = (node.op.clone(), node.inputs.clone(), node.ty.dtype, node.origin.class, path);
        if let Some(id) = seen.get(&key) {
            return *id;
        }
        let id = g.push(node);
        seen.insert(key, id);
        id
    })
}

/// What an add adds up, in order, where those in `taken` are replaced by what they add up.
fn operands(g: &Graph, add: Id, taken: &IdVec<Id, bool>) -> Vec<Id> {
    let (mut out, mut todo) = (Vec::new(), vec![add]);
    while let Some(id) = todo.pop() {
        if id == add || taken[id] {
            todo.extend(g.node(id).inputs.iter().rev());
        } else {
            out.push(id);
        }
    }
    out
}

/// Merges an add that is used once into the add of the same class that uses it, so that partial sums meet in one
/// place: `x + (attn + ffn)` needs one all-reduce.
pub fn merge_adds(step: &StepGraph) -> StepGraph {
    let mut uses = step.graph.nodes.table(0usize);
    for id in step.graph.ids() {
        for i in &step.graph.node(id).inputs {
            uses[*i] += 1;
        }
    }
    for goal in &step.outputs {
        uses[goal.id] += 2;
    }
    // Adds that are taken up by the one add that uses them.
    let mut taken = step.graph.nodes.table(false);
    for id in step.graph.ids() {
        let node = step.graph.node(id);
        for i in node.inputs.iter().filter(|_| matches!(node.op.kind(), Kind::Add)) {
            let part = step.graph.node(*i);
            taken[*i] = matches!(part.op.kind(), Kind::Add)
                && uses[*i] == 1
                && part.origin.class == node.origin.class;
        }
    }
    let mut new: IdVec<Id, Id> = IdVec::new();
    let merged = rebuild(step, |g, node, id| {
        let add = matches!(node.op.kind(), Kind::Add);
        let place = match (add, taken[id]) {
            // Nothing reads it any more.
            (true, true) => Id(0),
            (true, false) => {
                let inputs = operands(&step.graph, id, &taken).into_iter().map(|i| new[i]).collect();
                g.push(Node { op: Arc::new(Add), inputs, ..node })
            }
            (false, _) => g.push(node),
        };
        new.push(place);
        place
    });
    dead_code(&merged)
}
