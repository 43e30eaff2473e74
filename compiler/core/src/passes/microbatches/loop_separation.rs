//! Loops that compute functions of parameters and values of examples are taken apart, so that only the latter go into the loop
//! over the parts of a batch.
//!
//! Before: a loop of layers carries an activation and `c = tanh(c * (1 + p))` of parameters, and the loss reads both; so does
//! its gradient. After: what is the same in all parts and read outside of them comes from a copy of the loop in front of the
//! parts, of these values alone. A consumer of a sum over examples that is not a sum itself (the next value of a carry, an
//! addition of something that is the same in all parts), is computed in a copy behind the parts, which reads the sums of
//! all iterations.

use super::parts::{BatchPart, adds_up, known};
use crate::passes::normalize::dead_code;
use crate::step::step_graph::{OutputKind, StepGraph};
use meshwright_ops::{Boundary, Crossing, Graph, Id, Repeat, RepeatId};
use meshwright_plan::{Dim, IdVec};
use meshwright_sorted::{SortedMap, SortedSet};
use std::sync::Arc;

/// Which copy of a loop something stands in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Copy {
    /// The loop itself; also all that stands in no loop.
    Parts,
    /// That of what is the same in all parts and made without their sums, where something outside reads it.
    Ahead,
    /// That of what reads sums over all parts.
    Behind,
}

/// Takes such loops apart. A step without them, or with one whose examples read such a sum, stays as it is.
pub(super) fn separated(step: &StepGraph, example: Dim) -> StepGraph {
    let g = &step.graph;
    if g.repeats.is_empty() {
        return step.clone();
    }
    let parts = known(g, example);
    let Some(behind) = behind(g, &parts) else { return step.clone() };
    let copied = Copied::of(step, &parts, behind);
    if copied.ahead.is_empty() && copied.behind.is_empty() {
        return step.clone();
    }
    let new = Graph::new(g.dims.clone());
    let mut r =
        Separation { g, parts: &parts, copied: &copied, new, now: SortedMap::new(), loops: SortedMap::new() };
    g.ids().for_each(|id| r.value(id));
    r.carries();
    let leaf = |r: &Separation<'_>, id: Id| r.now[&(id, Copy::Parts)];
    let mut goals = step.outputs.clone();
    for goal in &mut goals {
        goal.id = r.read(goal.id, None, Copy::Parts);
        if let OutputKind::Next(of) = &mut goal.kind {
            *of = leaf(&r, *of);
        }
    }
    let mut out = step.with_graph(r.new);
    out.outputs = goals;
    dead_code(&out)
}

/// The outermost loop to which a value belongs, also where it leaves it.
fn nest(g: &Graph, id: Id) -> Option<RepeatId> {
    let mut of = g.node(id).scope.or_else(|| g.boundary(id).map(|b| b.of))?;
    while let Some(parent) = g.repeats[of].parent {
        of = parent;
    }
    Some(of)
}

/// The values of loops that are computed of finished sums; `None` where examples would read them.
fn behind(g: &Graph, parts: &IdVec<Id, BatchPart>) -> Option<IdVec<Id, bool>> {
    let mut all = g.nodes.table(false);
    loop {
        let mut changed = false;
        for id in g.ids().filter(|id| parts[*id] == BatchPart::Sum && nest(g, *id).is_some()) {
            let boundary = g.boundary(id);
            let examples = g.node(id).inputs.iter().any(|x| parts[*x] == BatchPart::Examples);
            let now = boundary.is_some_and(|b| matches!(b.how, Crossing::Carry(_)))
                || g.depends_on(id).iter().any(|x| all[*x] && nest(g, *x) == nest(g, id))
                || (boundary.is_none() && !examples && !adds_up(g, id, parts));
            changed |= now && !std::mem::replace(&mut all[id], true);
        }
        if !changed {
            break;
        }
    }
    let reads = |id: Id, of: &dyn Fn(Id) -> bool| {
        g.depends_on(id).into_iter().any(|x| nest(g, x) == nest(g, id) && of(x))
    };
    let mixed = |id: Id| match parts[id] {
        BatchPart::Examples => reads(id, &|x| all[x]),
        _ => all[id] && reads(id, &|x| parts[x] == BatchPart::Examples),
    };
    let none = !g.ids().any(mixed);
    none.then_some(all)
}

/// Whether values are made of sums over all parts.
fn late(g: &Graph, parts: &IdVec<Id, BatchPart>) -> IdVec<Id, bool> {
    let mut all = g.nodes.table(false);
    loop {
        let mut changed = false;
        for id in g.ids() {
            let finished = |x: Id| parts[x] == BatchPart::Sum && g.node(x).scope.is_none();
            let now = g.depends_on(id).into_iter().any(|x| all[x] || finished(x));
            changed |= now && !std::mem::replace(&mut all[id], true);
        }
        // A carry depends on what comes after it.
        if !changed {
            return all;
        }
    }
}

/// The values and loops to copy.
struct Copied {
    /// The values that are computed behind the parts.
    values: IdVec<Id, bool>,
    late: IdVec<Id, bool>,
    /// The outermost loops that have a copy in front of the parts.
    ahead: SortedSet<RepeatId>,
    /// Loops with a copy behind them.
    behind: SortedSet<RepeatId>,
}

impl Copied {
    fn of(step: &StepGraph, parts: &IdVec<Id, BatchPart>, values: IdVec<Id, bool>) -> Copied {
        let g = &step.graph;
        let parted: SortedSet<RepeatId> =
            g.ids().filter(|id| parts[*id] != BatchPart::Same).filter_map(|id| nest(g, id)).collect();
        let behind = g.ids().filter(|id| values[*id]).filter_map(|id| nest(g, id)).collect();
        let mut out = Copied { values, late: late(g, parts), ahead: SortedSet::new(), behind };
        let of_parted = |x: Id, from: Option<RepeatId>| {
            let of = nest(g, x).filter(|of| Some(*of) != from && parted.contains(of));
            of.filter(|_| parts[x] == BatchPart::Same)
        };
        for o in &step.outputs {
            out.read(o.id, of_parted(o.id, None));
        }
        loop {
            let before = out.ahead.len() + out.behind.len();
            for id in g.ids() {
                let from = nest(g, id);
                let outside = |of: RepeatId| {
                    !parted.contains(&of) || out.ahead.contains(&of) || out.behind.contains(&of)
                };
                let reader = match parts[id] {
                    BatchPart::Same => from.is_none_or(outside),
                    _ => out.values[id],
                };
                for x in g.depends_on(id).into_iter().filter(|_| reader) {
                    out.read(x, of_parted(x, from));
                }
            }
            if out.ahead.len() + out.behind.len() == before {
                return out;
            }
        }
    }

    /// A value that is the same in all parts leaves a loop, and is read outside of them.
    fn read(&mut self, x: Id, of: Option<RepeatId>) {
        let copies = if self.late[x] { &mut self.behind } else { &mut self.ahead };
        copies.extend(of);
    }

    /// In which copy a value that leaves the loop `of` is made, for those who read it outside.
    fn leaves(&self, x: Id, of: RepeatId, same: bool) -> Copy {
        match self.late[x] {
            _ if self.values[x] => Copy::Behind,
            true if same && self.behind.contains(&of) => Copy::Behind,
            false if same && self.ahead.contains(&of) => Copy::Ahead,
            _ => Copy::Parts,
        }
    }
}

struct Separation<'a> {
    g: &'a Graph,
    parts: &'a IdVec<Id, BatchPart>,
    copied: &'a Copied,
    new: Graph,
    /// Each value, in each copy. A sum that the copy behind the parts reads is there what that reads.
    now: SortedMap<(Id, Copy), Id>,
    loops: SortedMap<(RepeatId, Copy), RepeatId>,
}

impl Separation<'_> {
    fn value(&mut self, id: Id) {
        let Some(of) = nest(self.g, id) else { return self.copy(id, None, Copy::Parts) };
        let same = self.parts[id] == BatchPart::Same;
        if !self.copied.values[id] {
            self.copy(id, Some(of), Copy::Parts);
        }
        if same && !self.copied.late[id] && self.copied.ahead.contains(&of) {
            self.copy(id, Some(of), Copy::Ahead);
        }
        if (same || self.copied.values[id]) && self.copied.behind.contains(&of) {
            self.copy(id, Some(of), Copy::Behind);
        }
    }

    fn copy(&mut self, id: Id, of: Option<RepeatId>, copy: Copy) {
        let mut node = self.g.node(id).clone();
        node.inputs = node.inputs.iter().map(|x| self.read(*x, of, copy)).collect();
        node.scope = node.scope.map(|of| self.loop_of(of, copy));
        if let Some(b) = self.g.boundary(id) {
            node.op = Arc::new(Boundary { of: self.loop_of(b.of, copy), ..b });
        }
        let made = self.new.push(node);
        self.now.insert((id, copy), made);
    }

    /// An operand, as a copy of the loop `from` reads it.
    fn read(&mut self, x: Id, from: Option<RepeatId>, copy: Copy) -> Id {
        let of = nest(self.g, x);
        if of == from {
            return match self.now.get(&(x, copy)) {
                Some(known) => *known,
                None => self.summed(x),
            };
        }
        let from = of.map_or(Copy::Parts, |of| self.copied.leaves(x, of, self.parts[x] == BatchPart::Same));
        self.now[&(x, from)]
    }

    /// A sum over the examples of a part, made in each iteration, as the copy behind the parts has it: the element of those of
    /// all iterations.
    fn summed(&mut self, x: Id) -> Id {
        self.new.cursor = self.g.node(x).origin.clone();
        let (mut scope, mut around) = (self.g.node(x).scope, Vec::new());
        let mut now = self.now[&(x, Copy::Parts)];
        while let Some(of) = scope {
            let from = self.loop_of(of, Copy::Parts);
            now = self.new.cross(from, Crossing::Stack, now);
            around.push(of);
            scope = self.g.repeats[of].parent;
        }
        for of in around.into_iter().rev() {
            let to = self.loop_of(of, Copy::Behind);
            now = self.new.cross(to, Crossing::Slice, now);
        }
        self.now.insert((x, Copy::Behind), now);
        now
    }

    fn loop_of(&mut self, of: RepeatId, copy: Copy) -> RepeatId {
        if let Some(known) = self.loops.get(&(of, copy)) {
            return *known;
        }
        let Repeat { dim, reverse, from, parent, .. } = self.g.repeats[of];
        let parent = parent.map(|p| self.loop_of(p, copy));
        let made = self.new.repeats.push(Repeat { dim, reverse, from, parent, carries: Vec::new() });
        self.loops.insert((of, copy), made);
        made
    }

    /// Tells each copy of a loop what it carries.
    fn carries(&mut self) {
        for ((of, copy), made) in self.loops.clone() {
            let dim = self.g.repeats[of].dim;
            for (carry, next) in &self.g.repeats[of].carries {
                let Some(now) = self.now.get(&(*carry, copy)).copied() else { continue };
                let next = self.read(*next, nest(self.g, *carry), copy);
                let how = Crossing::Carry(self.new.repeats[made].carries.len() as u32);
                self.new.nodes[now].op = Arc::new(Boundary { of: made, dim, how });
                self.new.repeats[made].carries.push((now, next));
            }
        }
    }
}
