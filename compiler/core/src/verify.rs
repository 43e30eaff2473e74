//! Invariants of an SPMD program; all violations at once. It knows roles and reshard steps, not the pass that made
//! them.
//!
//! 1. An axis occurs once in a placement; split dims are the value's; only sums travel through ops.
//! 2. An op's operand has exactly the splits and windows that its loops give its dims; loops use an axis once and no whole dim.
//! 3. Axes over which operands are partial are in no loop, and the op is linear there; the result's placement, derived
//!    again, is equal.
//! 4. A move applies to its operand, and the result's placement, derived again, is equal.
//! 5. Every version is made before it is used; every collective has a cause.
//! 6. What the step gives is its outputs' values, finished; scalars are whole, next values are placed as their leaves.
//! 7. What goes from one device to all is what this device alone has.
//! 8. Only gradients that are reduced in `bf16` are stored so, until something computes with them.

use crate::partition::{
    CopyId, Instr, Reshard, Roots, Spmd, gradient_terms, keeps_storage, operand_placement, sums,
};
use crate::step::step_graph::{OutputKind, StepGraph};
use meshwright_ops::{Boundary, Crossing, Graph, Id, Kind, RepeatId, Role};
use meshwright_plan::{Axis, Collective, Dim, Monoid, PartialAxes, Placement, Splits};
use meshwright_sorted::{SortedMap, SortedSet};
use std::cmp::Reverse;

/// Every violation, in words; empty for a sound program.
pub fn verify(spmd: &Spmd) -> Vec<String> {
    let mut all = Vec::new();
    let mut made: SortedSet<CopyId> = SortedSet::new();
    let mut roots = Roots::default();
    let terms = spmd.copies.iter().any(|c| c.in_bf16).then(|| gradient_terms(&spmd.step));
    let term = |id: Id| terms.as_ref().is_some_and(|terms| terms[id]);
    for (i, instr) in spmd.instrs.iter().enumerate() {
        let out = spmd.copy(instr.out());
        let mut found = Vec::new();
        let v = &mut found;
        for r in instr.reads() {
            if !made.contains(&r) {
                v.push(format!("reads version {} before it is made", r.0));
            }
        }
        legal(spmd, &out.placement, &spmd.step.graph.ty(out.value).dims, v);
        match instr {
            Instr::Input { .. } => {
                if !out.placement.partial.is_empty() {
                    v.push("a leaf is partial".into());
                }
            }
            Instr::Reshard { kind, from, cause, .. } => {
                let from = spmd.copy(*from);
                if from.value != out.value || kind.apply(&from.placement).as_ref() != Some(&out.placement) {
                    v.push(format!("{kind:?} does not lead to {:?}", out.placement));
                }
                if kind.collective().is_some() && cause.because.is_empty() {
                    v.push(format!("{kind:?} has no cause"));
                }
                if let Reshard::Collective(Collective::AllReduce { axes, .. }) = kind
                    && axes.is_empty()
                {
                    v.push("an all-reduce over no axes".into());
                }
            }
            Instr::Op { inputs, loops, .. } => op(spmd, instr.out(), inputs, loops, v),
        }
        rooted(spmd, instr, &mut roots, v);
        stored(spmd, instr, &term, v);
        if !made.insert(instr.out()) {
            v.push("is made twice".into());
        }
        let at = |f: String| format!("instruction {i}, {}: {f}", spmd.step.graph.describe(out.value));
        all.extend(found.into_iter().map(at));
    }
    loops(spmd, &mut all);
    let mut leaves: SortedMap<Id, Vec<&Placement>> = SortedMap::new();
    for instr in &spmd.instrs {
        if let Instr::Input { out } = instr {
            let leaf = spmd.copy(*out);
            leaves.entry(leaf.value).or_default().push(&leaf.placement);
        }
    }
    for (goal, version) in spmd.step.outputs.iter().zip(&spmd.outputs) {
        let given = spmd.copy(*version);
        let p = &given.placement;
        if given.value != goal.id {
            all.push(format!("`{}` is given by another value", goal.name));
        }
        if !made.contains(version) || !p.partial.is_empty() || !p.windows.is_empty() || given.in_bf16 {
            all.push(format!("`{}` is not finished", goal.name));
        }
        if goal.kind == OutputKind::Scalar && !p.splits.is_empty() {
            all.push(format!("`{}` is not whole", goal.name));
        }
        if let OutputKind::Next(of) = goal.kind
            && leaves.get(&of).into_iter().flatten().any(|held| *held != p)
        {
            all.push(format!("the next value of `{}` is not placed as it is", goal.name));
        }
    }
    all
}

/// Invariants of a step graph, after each pass over it: operands are defined before their users, types inferred again
/// are equal (but for the order of dims, which has no meaning, and a range that is known from elsewhere), outputs
/// exist, and the next value of an input has its type. Every violation, in words.
pub fn verify_graph(step: &StepGraph) -> Vec<String> {
    let g = &step.graph;
    let mut v = Vec::new();
    let sorted = |dims: &[Dim]| {
        let mut dims = dims.to_vec();
        dims.sort();
        dims
    };
    for id in g.ids() {
        let n = g.node(id);
        let at = || format!("value {}, {}", id.0, g.describe(id));
        if let Some(x) = n.inputs.iter().find(|x| **x >= id) {
            v.push(format!("{}: reads value {} before it is defined", at(), x.0));
            continue;
        }
        crossing(g, id, &mut |fault| v.push(format!("{}: {fault}", at())));
        match g.infer(&*n.op, &n.inputs) {
            Err(e) => v.push(format!("{}: `{}` refuses its operands: {e}", at(), n.op.name())),
            Ok(ty) => {
                let range = ty.range.is_none() || ty.range == n.ty.range;
                // A value computed in `f32` may be stored as a half type.
                let stored = ty.dtype == n.ty.dtype || ty.dtype == n.ty.dtype.wide();
                if !stored || sorted(&ty.dims) != sorted(&n.ty.dims) || !range {
                    v.push(format!("{}: is {:?}, but `{}` gives {ty:?}", at(), n.ty, n.op.name()));
                }
            }
        }
    }
    bodies(g, &mut v);
    for goal in &step.outputs {
        let known = |id: Id| (id.0 as usize) < g.nodes.len();
        if !known(goal.id) {
            v.push(format!("goal `{}` is no value", goal.name));
        } else if let OutputKind::Next(leaf) = goal.kind {
            if !known(leaf) || !matches!(g.node(leaf).op.kind(), Kind::Input(_)) {
                v.push(format!("goal `{}` is next for what is no leaf", goal.name));
            } else if g.ty(leaf).dtype != g.ty(goal.id).dtype
                || sorted(&g.ty(leaf).dims) != sorted(&g.ty(goal.id).dims)
            {
                v.push(format!("goal `{}` has another type than its leaf", goal.name));
            }
        }
    }
    v
}

/// A value of a body is read in it alone, except for values that leave it; and a carry has one placement.
fn loops(spmd: &Spmd, v: &mut Vec<String>) {
    let graph = &spmd.step.graph;
    read_outside(spmd, v);
    for l in &spmd.loops {
        let placement = |c: CopyId| &spmd.copy(c).placement;
        for (c, (carry, next)) in l.carries.iter().zip(&graph.repeats[l.of].carries) {
            let mut start = placement(c.start).clone();
            if l.stages {
                start.partial.retain(|a, _| !l.axes.contains(a));
            }
            let alike = start == *placement(c.current) && placement(c.next) == placement(c.current);
            if !alike || !placement(c.current).partial.is_empty() {
                v.push(format!("{} is carried from one placement to another", graph.describe(*carry)));
            }
            if spmd.copy(c.current).value != *carry || spmd.copy(c.next).value != *next {
                v.push(format!("{} is carried on as another value", graph.describe(*carry)));
            }
        }
        if l.carries.len() != graph.repeats[l.of].carries.len() {
            v.push("a loop lacks carries".into());
        }
    }
}

/// Values read outside of the body of their loop, without leaving it.
fn read_outside(spmd: &Spmd, v: &mut Vec<String>) {
    // The loops around each instruction: the innermost one, and the one around each.
    let mut innermost: Vec<Option<usize>> = vec![None; spmd.instrs.len()];
    let mut around = vec![None; spmd.loops.len()];
    let mut order: Vec<usize> = (0..spmd.loops.len()).collect();
    order.sort_by_key(|k| Reverse(spmd.loops[*k].body.len()));
    for k in order {
        let body = spmd.loops[k].body.clone();
        around[k] = innermost.get(body.start).copied().flatten();
        innermost[body].fill(Some(k));
    }
    let made: SortedMap<CopyId, usize> = spmd.instrs.iter().enumerate().map(|(i, x)| (x.out(), i)).collect();
    for (i, instr) in spmd.instrs.iter().enumerate() {
        let leaves = spmd.step.graph.boundary(spmd.copy(instr.out()).value).map(|b| b.of);
        for at in instr.reads().iter().filter_map(|r| made.get(r)) {
            let mut inside = innermost[*at];
            while let Some(k) = inside.filter(|k| !spmd.loops[*k].body.contains(&i)) {
                if leaves != Some(spmd.loops[k].of) {
                    v.push(format!("instruction {i} reads what is made in the body of a loop"));
                }
                inside = around[k];
            }
        }
    }
}

/// Only the ops of a boundary read what is in another scope than theirs, but for what is around them.
fn crossing(g: &Graph, id: Id, fault: &mut dyn FnMut(String)) {
    let n = g.node(id);
    let Some(b) = g.boundary(id) else {
        for x in n.inputs.iter().filter(|x| !g.within(n.scope, g.node(**x).scope)) {
            fault(format!("reads value {} of the body of a loop", x.0));
        }
        return;
    };
    let parent = g.repeats[b.of].parent;
    let (mine, reads) = if b.how.leaves() { (parent, Some(b.of)) } else { (Some(b.of), parent) };
    if n.scope != mine || n.inputs.iter().any(|x| !g.within(reads, g.node(*x).scope)) {
        fault("crosses another boundary than that of its loop".into());
    }
    let from = g.ty(n.inputs[0]).dtype;
    if b.how != Crossing::Accumulate && n.ty.dtype != from {
        fault(format!("is stored in {}, and in {from} on the other side of a loop's boundary", n.ty.dtype));
    }
    let Crossing::Carry(k) = b.how else { return };
    match g.repeats[b.of].carries.get(k as usize) {
        Some((carry, next)) if *carry == id => {
            let (old, new) = (g.ty(id), g.ty(*next));
            let alike = old.dims.len() == new.dims.len() && old.dims.iter().all(|d| new.has(*d));
            if !alike || old.dtype != new.dtype {
                fault(format!("is carried on as {new:?}"));
            }
            if !g.within(Some(b.of), g.node(*next).scope) {
                fault(format!("is carried on as value {} of another loop", next.0));
            }
        }
        _ => fault("is no carry of its loop".into()),
    }
}

/// The values of a body are consecutive, and none has the dim of its loop.
fn bodies(g: &Graph, v: &mut Vec<String>) {
    let mut closed: SortedSet<RepeatId> = SortedSet::new();
    let mut before = None;
    for id in g.ids() {
        let scope = g.node(id).scope;
        let mut left = before;
        while let Some(of) = left.filter(|_| !g.within(scope, left)) {
            closed.insert(of);
            left = g.repeats[of].parent;
        }
        let mut inner = scope;
        while let Some(of) = inner {
            if closed.contains(&of) {
                v.push(format!("value {}, {}: its loop has ended", id.0, g.describe(id)));
            }
            if g.ty(id).has(g.repeats[of].dim) {
                v.push(format!("value {}, {}: has the dim of its loop", id.0, g.describe(id)));
            }
            inner = g.repeats[of].parent;
        }
        before = scope;
    }
}

fn legal(spmd: &Spmd, p: &Placement, dims: &[Dim], v: &mut Vec<String>) {
    let mut seen = SortedSet::new();
    for a in p.split_axes().chain(p.partial.keys().copied()) {
        if !seen.insert(a) {
            v.push(format!("the axis `{}` occurs twice in its placement", spmd.mesh.name(a)));
        }
    }
    for d in p.windows.keys().filter(|d| p.axes(**d).is_empty()) {
        v.push(format!("has a window on `{}`, which is not split", spmd.step.graph.dims.name(*d)));
    }
    for d in p.splits.keys().filter(|d| !dims.contains(d)) {
        v.push(format!("is split along `{}`, which it lacks", spmd.step.graph.dims.name(*d)));
    }
}

/// Whether what goes to all comes from the device that alone has it.
fn rooted(spmd: &Spmd, instr: &Instr, roots: &mut Roots, v: &mut Vec<String>) {
    let partial = |copy: CopyId| &spmd.copy(copy).placement.partial;
    let out = instr.out();
    match instr {
        Instr::Input { .. } => {}
        Instr::Op { inputs, .. } => {
            let operands = inputs.iter().map(|x| (*x, partial(*x)));
            let operands: Vec<_> = operands.filter(|(_, partial)| !partial.is_empty()).collect();
            let of = |of| spmd.loops.iter().find(|l| l.of == of).map_or(vec![], |l| l.axes.clone());
            let g = &spmd.step.graph;
            roots.made((g, &spmd.mesh), &of, (spmd.copy(out).value, partial(out), out), &operands);
        }
        Instr::Reshard { kind, from, .. } => {
            if let Reshard::Collective(Collective::Broadcast { axes, root }) = kind
                && !(roots.of(*from) == Some(*root) && partial(*from).keys().eq(axes))
            {
                v.push(format!("device {root} is not the only one that has it"));
            }
            roots.moved(*from, partial(out), out);
        }
    }
}

/// Whether a copy is stored in `bf16` where, and only where, that is due.
fn stored(spmd: &Spmd, instr: &Instr, term: &dyn Fn(Id) -> bool, v: &mut Vec<String>) {
    let out = spmd.copy(instr.out());
    let from = instr.reads().first().is_some_and(|from| spmd.copy(*from).in_bf16);
    let sound = match instr {
        Instr::Input { .. } => !out.in_bf16,
        Instr::Op { .. } => out.in_bf16 == (from && keeps_storage(&spmd.step.graph, out.value)),
        Instr::Reshard { .. } if from || !out.in_bf16 => out.in_bf16 == from,
        Instr::Reshard { kind, .. } => sums(kind) && term(out.value),
    };
    if !sound {
        let dtype = spmd.dtype(instr.out());
        v.push(format!("is stored in {dtype} otherwise than how it is made says"));
    }
}

/// Whether a value is placed on one side of a loop's boundary as on the other.
fn crosses(spmd: &Spmd, (out, inputs): (CopyId, &[CopyId]), b: Boundary) -> bool {
    let version = spmd.copy(out);
    let sum = matches!(b.how, Crossing::Accumulate | Crossing::Stack);
    let of = spmd.loops.iter().find(|l| l.of == b.of);
    let axes = of.map_or(&[][..], |l| &l.axes);
    // In the body a device has its own positions, and of a sum its own part.
    let in_body = |p: &Placement, around: bool| {
        let mut p = p.clone();
        if around && p.splits.get(&b.dim).is_some_and(|split| split == axes) {
            p.splits.remove(&b.dim);
        }
        if around && (b.how == Crossing::Accumulate || of.is_some_and(|l| l.stages)) {
            p.partial.retain(|a, _| !axes.contains(a));
        }
        p
    };
    let placed = inputs.len() == 1
        && in_body(&spmd.copy(inputs[0]).placement, !b.how.leaves())
            == in_body(&version.placement, b.how.leaves());
    let whole = version.placement.axes(b.dim).is_empty() || b.how == Crossing::Stack && !axes.is_empty();
    placed && (sum || version.placement.partial.is_empty()) && whole
}

fn op(spmd: &Spmd, out: CopyId, inputs: &[CopyId], loops: &Splits, v: &mut Vec<String>) {
    let graph = &spmd.step.graph;
    let version = spmd.copy(out);
    let node = graph.node(version.value);
    if let Kind::Boundary(b) = node.op.kind() {
        if !crosses(spmd, (out, inputs), b) {
            let place = |copy: CopyId| spmd.copy(copy).placement.describe(&graph.dims, &spmd.mesh);
            let from: Vec<String> = inputs.iter().map(|x| place(*x)).collect();
            let (from, to) = (from.join(", "), place(out));
            v.push(format!("is placed otherwise on the other side of a loop's boundary: {from}, then {to}"));
        }
        return;
    }
    if let Kind::Rename { from, to } = node.op.kind() {
        if inputs.len() != 1 || spmd.copy(inputs[0]).placement.rename(from, to) != version.placement {
            v.push("a rename moves something".into());
        }
        return;
    }
    if inputs.len() != node.inputs.len()
        || inputs.iter().zip(&node.inputs).any(|(i, n)| spmd.copy(*i).value != *n)
    {
        v.push("does not read its operands".into());
        return;
    }
    let roles = node.op.roles(&graph.input_types(version.value), &node.ty, &graph.dims);
    let used: Vec<Axis> = loops.values().flatten().copied().collect();
    if used.iter().collect::<SortedSet<_>>().len() != used.len() {
        v.push("an axis splits two loops".into());
    }
    if roles.loops.iter().any(|l| l.role == Role::NeedReplication && loops.contains_key(&l.dim)) {
        v.push("a dim that must be whole is split".into());
    }
    let mut partial = PartialAxes::new();
    for l in &roles.loops {
        if let Role::Reduction(m) = l.role {
            partial.extend(loops.get(&l.dim).into_iter().flatten().map(|a| (*a, m)));
        }
    }
    let mut open: SortedMap<Axis, SortedSet<usize>> = SortedMap::new();
    for (slot, input) in inputs.iter().enumerate() {
        let p = &spmd.copy(*input).placement;
        let want = operand_placement(&roles, slot, loops, &graph.dims, &spmd.mesh);
        if (&p.splits, &p.windows) != (&want.splits, &want.windows) {
            v.push(format!("operand {slot} is not placed as the loops need it"));
        }
        for (a, m) in &p.partial {
            open.entry(*a).or_default().insert(slot);
            if *m != Monoid::Sum || used.contains(a) {
                v.push(format!("operand {slot} is partial over `{}`", spmd.mesh.name(*a)));
            }
        }
    }
    for (a, slots) in open {
        if !roles.linear_in(&slots, inputs.len()) {
            v.push(format!("is not linear in its operands that are partial over `{}`", spmd.mesh.name(a)));
        }
        partial.insert(a, Monoid::Sum);
    }
    let mut want =
        Placement::split(loops.iter().filter(|(d, _)| node.ty.has(**d)).map(|(d, a)| (*d, a.clone())));
    want.partial = partial;
    if matches!(node.op.kind(), Kind::Rematerializable(_)) {
        // A value that can be rematerialized has any range.
        want.windows = version.placement.windows.clone();
    }
    if want != version.placement {
        v.push("the result is placed otherwise than its loops give".into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::step_graph::StepOutput;
    use meshwright_ops::{Graph, InputOp, InputOpKind, NEG, Type};
    use meshwright_plan::Arithmetic;
    use meshwright_plan::{DType, Dims};

    /// A step that gives the negative of an input.
    fn step() -> StepGraph {
        let mut g = Graph::new(Dims::default());
        let d = g.dims.add("d", 3);
        let ty = Type::new(DType::F32, [d]);
        let x = g.op(InputOp { input: InputOpKind::Input { name: "x".into() }, ty }, &[]);
        let id = g.unary(&NEG, x);
        let outputs = vec![StepOutput { name: "y".into(), id, kind: OutputKind::Output }];
        StepGraph {
            model: "m".into(),
            program: "predict",
            float: Arithmetic::F32,
            scale_history: None,
            graph: g,
            inputs: vec![],
            outputs,
        }
    }

    #[test]
    fn a_broken_graph_is_found() {
        type Break = fn(&mut StepGraph);
        assert_eq!(verify_graph(&step()), Vec::<String>::new());
        let broken: [(Break, &str); 4] = [
            (|s| s.graph.nodes[Id(1)].inputs[0] = Id(1), "before it is defined"),
            (|s| s.graph.nodes[Id(1)].ty.dtype = DType::F64, "gives"),
            (|s| s.graph.nodes[Id(0)].ty.dtype = DType::Bool, "refuses its operands"),
            (|s| s.outputs[0].id = Id(2), "is no value"),
        ];
        for (break_it, text) in broken {
            let mut s = step();
            break_it(&mut s);
            assert!(verify_graph(&s).iter().any(|v| v.contains(text)), "{text}: {:?}", verify_graph(&s));
        }
    }
}
