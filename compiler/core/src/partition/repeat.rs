//! Loops: where what crosses their boundaries is placed.
//!
//! A carry stands where the rules put it and, where they are silent, as what it starts as; it is never partial. What leaves the
//! body stands as it does in the body, and so does a slice. A sum over all iterations may stay partial and is then reduced
//! once, behind the loop; all else is reduced in its iteration. Placed copies of values around a loop are made before it, and
//! copies of a body's values in the body.

use super::decision::Loops;
use super::facts::Facts;
use super::spmd::{CarriedCopy, CopyId, Instr, PlacedLoop};
use super::walk::Walk;
use meshwright_ops::{Boundary, Crossing, Graph, Id, RepeatId};
use meshwright_plan::{IdVec, Placement};
use std::collections::BTreeMap;

/// The instructions of a scope that is open.
#[derive(Default)]
pub(super) struct Frame {
    /// The loop; none for what is around all of them.
    pub(super) of: Option<RepeatId>,
    pub(super) instrs: Vec<Instr>,
    /// Loops in it, with places among its instructions.
    pub(super) loops: Vec<PlacedLoop>,
    /// By number of the carry what it starts as, and itself.
    carries: BTreeMap<u32, (CopyId, CopyId)>,
}

/// Scopes that are open, from what is around all loops to the innermost.
pub(super) struct Frames(Vec<Frame>);

impl Frames {
    pub(super) fn new() -> Frames {
        Frames(vec![Frame::default()])
    }

    /// The innermost.
    pub(super) fn last(&mut self) -> &mut Frame {
        let last = self.0.len() - 1;
        &mut self.0[last]
    }

    /// Adds an instruction that makes a copy of a value, to the scope of that value.
    pub(super) fn push(&mut self, graph: &Graph, value: Id, instr: Instr) {
        let scope = graph.node(value).scope;
        match self.0.iter_mut().find(|f| f.of == scope) {
            Some(frame) => frame.instrs.push(instr),
            None => panic!("internal error: {} is made outside of its loop", graph.describe(value)),
        }
    }

    /// All instructions and all loops, outer ones before those in them.
    pub(super) fn finish(self) -> (Vec<Instr>, Vec<PlacedLoop>) {
        let mut frames = self.0.into_iter();
        let Frame { instrs, mut loops, .. } = frames.next().unwrap_or_default();
        loops.sort_by_key(|l| (l.body.start, std::cmp::Reverse(l.body.end), l.of));
        (instrs, loops)
    }
}

/// What each loop gives, and which carries a value is next for.
pub(super) struct Crossings {
    /// By loop, what leaves it, in order.
    pub(super) outs: BTreeMap<RepeatId, Vec<Id>>,
    /// By value the carries.
    pub(super) carries_of: BTreeMap<Id, Vec<Id>>,
    pub(super) boundaries: IdVec<Id, Option<Boundary>>,
}

impl Crossings {
    pub(super) fn new(g: &Graph) -> Crossings {
        let boundaries: IdVec<Id, Option<Boundary>> = g.ids().map(|id| g.boundary(id)).collect();
        let mut outs: BTreeMap<RepeatId, Vec<Id>> = BTreeMap::new();
        for id in g.ids() {
            if let Some(b) = boundaries[id].filter(|b| b.how.leaves()) {
                outs.entry(b.of).or_default().push(id);
            }
        }
        let mut carries_of: BTreeMap<Id, Vec<Id>> = BTreeMap::new();
        for (carry, next) in g.repeats.iter().flat_map(|r| &r.carries) {
            carries_of.entry(*next).or_default().push(*carry);
        }
        Crossings { outs, carries_of, boundaries }
    }
}

impl Facts<'_> {
    /// How a value crosses the boundary of a loop.
    pub(super) fn boundary(&self, id: Id) -> Option<Boundary> {
        self.crossings.boundaries[id]
    }

    /// The carries that a value is next for.
    pub(super) fn carries_of(&self, id: Id) -> &[Id] {
        self.crossings.carries_of.get(&id).map_or(&[], Vec::as_slice)
    }

    /// What is asked of a value that crosses a boundary: of a carry what the rules say, of all else what its users ask for.
    pub(super) fn demand_across(&self, b: Boundary, crossing: Id, v: Id) -> Option<Placement> {
        if let Crossing::Carry(_) = b.how {
            return Some(self.target(crossing));
        }
        let mut all = self.users(crossing).iter().map(|u| self.demand(*u, crossing));
        let first = all.next()?;
        let dims = &self.graph().ty(v).dims;
        let known = |p: Placement| {
            Placement::split(p.splits.into_iter().filter(|(d, _)| *d != b.dim && dims.contains(d)))
        };
        all.all(|p| p == first).then(|| known(first))
    }
}

impl Walk<'_> {
    /// Ends the loops around which a value is made that the walk comes to, and begins those in which it is.
    pub(super) fn enter(&mut self, scope: Option<RepeatId>) {
        let g = self.facts.graph();
        while let Some(of) = self.state.frames.last().of.filter(|of| !g.within(scope, Some(*of))) {
            self.close(of);
        }
        let mut begin = Vec::new();
        let mut inner = scope;
        while inner != self.state.frames.last().of {
            let Some(of) = inner else { break };
            begin.push(of);
            inner = g.repeats[of].parent;
        }
        for of in begin.into_iter().rev() {
            self.state.frames.0.push(Frame { of: Some(of), ..Frame::default() });
        }
    }

    /// Places what crosses a boundary; what leaves a loop was placed when the loop ended.
    pub(super) fn cross(&mut self, id: Id, b: Boundary) {
        let x = self.facts.node(id).inputs[0];
        let now = self.state.current(x);
        match b.how {
            Crossing::Carry(k) => {
                self.note_target(id);
                let mut p = self.facts.target(id);
                for (dim, axes) in now.splits {
                    if p.axes(dim).is_empty() && !axes.iter().any(|a| p.uses(*a)) {
                        p.splits.insert(dim, axes);
                    }
                }
                let start = self.convert(x, &p, Some(id));
                let current = self.crossed(id, start, p);
                self.state.frames.last().carries.insert(k, (start, current));
            }
            Crossing::Slice => {
                let mut p = now.without_windows();
                p.splits.remove(&b.dim);
                let all = self.convert(x, &p, Some(id));
                self.crossed(id, all, p);
            }
            _ => {}
        }
    }

    /// The copy of a value on the other side of a boundary, placed as on this side.
    fn crossed(&mut self, id: Id, from: CopyId, p: Placement) -> CopyId {
        let loops: Loops = p.splits.clone();
        let finished = p.partial.is_empty();
        self.emit(id, vec![from], loops, p.clone());
        if finished {
            self.state.settled[id] = Some(p.clone());
        }
        self.state.have(self.facts, id, &p)
    }

    /// Ends a loop: brings what is next for its carries, and what leaves it, where they must be.
    fn close(&mut self, of: RepeatId) {
        let facts = self.facts;
        let mut carries = Vec::new();
        for (k, (carry, next)) in facts.graph().repeats[of].carries.iter().enumerate() {
            let Some((start, current)) = self.state.frames.last().carries.get(&(k as u32)).copied() else {
                panic!("internal error: {} was not placed", facts.graph().describe(*carry))
            };
            self.settle(*next);
            let p = self.state.current(*carry);
            let next = self.convert(*next, &p, Some(*carry));
            carries.push(CarriedCopy { start, current, next });
        }
        let mut leaving = Vec::new();
        for out in facts.crossings.outs.get(&of).into_iter().flatten() {
            let x = facts.node(*out).inputs[0];
            self.settle(x);
            let mut p = self.state.current(x).without_windows();
            if let Some(Boundary { how: Crossing::Final, .. }) = facts.boundary(*out)
                && let Some(carry) = facts.carries_of(x).first()
            {
                p = self.state.current(*carry);
            }
            let from = self.convert(x, &p, Some(*out));
            leaving.push((*out, x, from, p));
        }
        let Some(Frame { instrs, loops, .. }) = self.state.frames.0.pop() else { return };
        let around = self.state.frames.last();
        let begin = around.instrs.len();
        let body = begin..begin + instrs.len();
        around.instrs.extend(instrs);
        around.loops.extend(
            loops.into_iter().map(|l| PlacedLoop { body: l.body.start + begin..l.body.end + begin, ..l }),
        );
        let mut outs = Vec::new();
        for (out, x, from, p) in leaving {
            for a in p.partial.keys() {
                let dims = self.state.summed.get(&(x, *a)).cloned().unwrap_or_default();
                self.state.summed.insert((out, *a), dims);
            }
            outs.push((from, self.crossed(out, from, p)));
        }
        self.state.frames.last().loops.push(PlacedLoop { of, body, carries, outs });
    }
}
