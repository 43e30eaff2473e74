//! Normal form of a step graph before it is partitioned: dead code, constants, common subexpressions, merged adds, and
//! composite ops expanded where a dim that they need whole is split.
//!
//! Each pass takes a step graph and returns an equal one. Values keep the origin of what they replace.

use crate::step::step_graph::StepGraph;
use meshwright_ops::{
    Add, Boundary, Class, Computes, Const, Contract, Crossing, Expand, ExpandWhen, Graph, Id, Kind, Node, Op,
    RepeatId,
};
use meshwright_plan::{DType, Dim, IdVec};
use std::collections::HashMap;
use std::sync::Arc;

/// Rebuilds a graph value by value: `make` is given the new graph, the old node with operands renumbered, and its old id.
pub(crate) fn rebuild(step: &StepGraph, make: impl FnMut(&mut Graph, Node, Id) -> Id) -> StepGraph {
    rebuild_in(step, step.graph.ids(), make)
}

/// [`rebuild`] in another order, in which operands come before their users too.
pub(crate) fn rebuild_in(
    step: &StepGraph,
    order: impl Iterator<Item = Id>,
    mut make: impl FnMut(&mut Graph, Node, Id) -> Id,
) -> StepGraph {
    let mut g = Graph::new(step.graph.dims.clone());
    g.repeats = step.graph.repeats.clone();
    g.nodes.reserve(step.graph.nodes.len());
    let mut new: IdVec<Id, Id> = step.graph.nodes.table(Id(0));
    for id in order {
        let mut node = step.graph.node(id).clone();
        for i in &mut node.inputs {
            *i = new[*i];
        }
        (g.cursor, g.scope) = (node.origin.clone(), node.scope);
        new[id] = make(&mut g, node, id);
    }
    renumber_carries(&mut g, &new);
    let mut out = step.with_graph(g);
    for goal in &mut out.outputs {
        goal.id = new[goal.id];
        if let crate::step::step_graph::OutputKind::Next(leaf) = &mut goal.kind {
            *leaf = new[*leaf];
        }
    }
    out
}

/// Renumbers the carries of the loops of a rebuilt graph, without the removed ones.
fn renumber_carries(g: &mut Graph, new: &IdVec<Id, Id>) {
    for of in g.repeats.ids() {
        let all = std::mem::take(&mut g.repeats[of].carries);
        let here = |(k, (carry, _)): &(usize, (Id, Id))| {
            let how = Crossing::Carry(*k as u32);
            // An empty graph has no place for a value.
            !g.nodes.is_empty() && g.boundary(new[*carry]).is_some_and(|b| b.of == of && b.how == how)
        };
        let kept: Vec<(Id, Id)> =
            all.into_iter().enumerate().filter(here).map(|(_, (c, n))| (new[c], new[n])).collect();
        let dim = g.repeats[of].dim;
        for (k, (carry, _)) in kept.iter().enumerate() {
            g.nodes[*carry].op = Arc::new(Boundary { of, dim, how: Crossing::Carry(k as u32) });
        }
        g.repeats[of].carries = kept;
    }
}

/// Drops what no goal needs. Parameters and moments that are updated are needed.
pub fn dead_code(step: &StepGraph) -> StepGraph {
    let mut live = step.graph.nodes.table(false);
    for goal in &step.outputs {
        live[goal.id] = true;
        if let crate::step::step_graph::OutputKind::Next(leaf) = goal.kind {
            live[leaf] = true;
        }
    }
    let mut todo: Vec<Id> = step.graph.ids().filter(|id| live[*id]).collect();
    while let Some(id) = todo.pop() {
        for i in step.graph.depends_on(id) {
            if !std::mem::replace(&mut live[i], true) {
                todo.push(i);
            }
        }
    }
    // Dead values map to a place that nothing reads.
    rebuild(step, |g, node, id| if live[id] { g.push(node) } else { Id(0) })
}

/// Replaces composite ops: short forms always, then the others (of which short forms are made too) if `split` says that
/// a dim which they need whole is split.
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
        if let Kind::Boundary(b) = node.op.kind()
            && b.how.leaves()
            && let Some(x) = invariant(g, node.inputs[0], &node, b)
        {
            return unchanged(g, Node { inputs: vec![x], ..node }, b);
        }
        if node.op.as_any().is::<Expand>() && same_type(g, &node) {
            return node.inputs[0];
        }
        g.push(node)
    })
}

/// Whether a value is stored as its operand is, but for the order of dims.
fn same_type(g: &Graph, node: &Node) -> bool {
    let of = g.ty(node.inputs[0]);
    of.dtype == node.ty.dtype && of.dims.len() == node.ty.dims.len()
}

/// What leaves a loop by `exit` if it is the same in all iterations: a value from around the loop, or a sum of such values. The
/// sum, which is what a carried sum leaves of the value that it was added to, is made again behind the loop.
fn invariant(g: &mut Graph, x: Id, exit: &Node, b: Boundary) -> Option<Id> {
    let around = |x: Id| !g.within(g.node(x).scope, Some(b.of));
    if around(x) {
        return Some(x);
    }
    let sum = g.node(x);
    let again = b.how == Crossing::Accumulate
        && sum.op.kind() == Kind::Add
        && sum.scope == Some(b.of)
        && sum.inputs.iter().copied().all(around);
    again.then(|| g.push(Node { scope: exit.scope, ..g.node(x).clone() }))
}

/// The exit from a loop of a value from around it, which is the same in all iterations.
fn unchanged(g: &mut Graph, node: Node, b: Boundary) -> Id {
    let x = node.inputs[0];
    match b.how {
        Crossing::Stack => {
            let all = g.push(Node { op: Arc::new(Expand { dims: node.ty.dims.clone() }), ..node.clone() });
            let from = g.repeats[b.of].from;
            if from == 0 {
                return all;
            }
            // Without iterations the loop stacks 0.
            let (position, first) = (g.index(b.dim), g.constant(from as f64, DType::I32));
            let runs = g.binary(">=", position, first);
            g.masked(runs, all)
        }
        Crossing::Accumulate => {
            let times = g.op(Const::new(g.iterations(b.of) as f64, node.ty.dtype.wide()), &[]);
            let op = Arc::new(Contract { out: node.ty.dims.clone() });
            g.push(Node { op, inputs: vec![x, times], ..node })
        }
        _ => x,
    }
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

/// Key of a computation: op, operands, dtype, class, path, the loop of its body.
type Computation = (Arc<dyn Op>, Vec<Id>, DType, Class, Arc<str>, Option<RepeatId>);

/// Merges equal computations. With `paths`, only those of one path: a layout that has rules for paths may place equal
/// computations differently.
pub fn common_subexpressions(step: &StepGraph, paths: bool) -> StepGraph {
    // Only asked for what is in it, never for its order.
    let mut seen: HashMap<Computation, Id> = HashMap::with_capacity(step.graph.nodes.len());
    let no_path: Arc<str> = "".into();
    rebuild(step, |g, node, _| {
        // A gradient is where rules for gradients apply. Program inputs that are equal are one.
        if matches!(node.op.kind(), Kind::Gradient) {
            return g.push(node);
        }
        let path = if paths && !node.ty.dims.is_empty() { node.origin.path.clone() } else { no_path.clone() };
        let key = (node.op.clone(), node.inputs.clone(), node.ty.dtype, node.origin.class, path, node.scope);
        if let Some(id) = seen.get(&key) {
            return *id;
        }
        let id = g.push(node);
        seen.insert(key, id);
        id
    })
}

/// The terms of an add, in order, with those in `taken` replaced by their own terms.
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
    for (_, next) in step.graph.repeats.iter().flat_map(|r| &r.carries) {
        uses[*next] += 2;
    }
    // Adds that are taken up by the one add that uses them.
    let mut taken = step.graph.nodes.table(false);
    for id in step.graph.ids() {
        let node = step.graph.node(id);
        for i in node.inputs.iter().filter(|_| matches!(node.op.kind(), Kind::Add)) {
            let part = step.graph.node(*i);
            taken[*i] = matches!(part.op.kind(), Kind::Add)
                && uses[*i] == 1
                && part.origin.class == node.origin.class
                && part.scope == node.scope;
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
