//! Loops: where what crosses their boundaries is placed.
//!
//! A carry stands where the rules put it and, where they are silent, as what it starts as; it is never partial. What leaves the
//! body stands as it does in the body, and so does a slice. A sum over all iterations may stay partial and is then reduced
//! once, behind the loop; all else is reduced in its iteration. Placed copies of values around a loop are made before it, and
//! copies of a body's values in the body.

use super::decision::Loops;
use super::frames::Frame;
use super::propagation::Walk;
use super::spmd::{CarriedCopy, CopyId, PlacedLoop};
use super::step_facts::Facts;
use crate::layout::assign;
use meshwright_ops::{Boundary, Class, Crossing, Id, Kind, RepeatId};
use meshwright_plan::{Axis, Dim, Phase, Placement};
use meshwright_sorted::SortedMap;

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
        let asked = all.all(|p| p == first).then(|| known(first))?;
        // Values that leave a body are asked for there, those that enter it around it.
        Some(if b.how.leaves() { asked } else { self.around(b, asked) })
    }
}

impl Facts<'_> {
    /// Of a parameter whose copies are kept, where that of all iterations stands, and a reader of its slices: as these ask, so
    /// that no iteration gathers.
    fn whole_where_kept(&self, slice: Id, b: Boundary) -> Option<(Placement, Id)> {
        let x = self.node(slice).inputs[0];
        if !self.kept(x) || self.node(slice).origin.phase == Phase::Update {
            return None;
        }
        let mut asked = SortedMap::new();
        self.asked_of_kept(slice, &mut asked);
        let ((first, reader), ty) = (asked.pop_first()?, self.graph().ty(x));
        if !asked.is_empty() {
            // Readers that differ take what they need of what the rules for values say.
            let path = &self.node(x).origin.path;
            let said = assign(&self.rules, Class::Value, path, &ty.dims, &self.graph().dims);
            return Some((said.placement(), reader));
        }
        let here = |(d, _): &(Dim, Vec<Axis>)| *d != b.dim && ty.has(*d);
        Some((Placement::split(first.splits.into_iter().filter(here)), reader))
    }

    /// Placements that are asked of a kept value, seen through what is made of it alone, each with its first reader.
    fn asked_of_kept(&self, x: Id, asked: &mut SortedMap<Placement, Id>) {
        for user in self.users(x) {
            if self.kept(*user) && matches!(self.kind(*user), Kind::Compute(_) | Kind::Boundary(_)) {
                self.asked_of_kept(*user, asked);
            } else {
                asked.entry(self.demand(*user, x)).or_insert(*user);
            }
        }
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
                // What a rule says of stored parameters ends where an iteration makes something else of them.
                let ends = self.facts.param_like(x) && !self.facts.param_like(id);
                for (dim, axes) in now.splits.clone().into_iter().filter(|_| !ends) {
                    if p.axes(dim).is_empty() && !axes.iter().any(|a| p.uses(*a)) {
                        p.splits.insert(dim, axes);
                    }
                }
                // Of a sum that the first stage alone has, it takes its own part.
                let mut from = p.clone();
                if self.facts.has_stages(b.of) {
                    let axes = self.facts.loop_axes(b.of);
                    from.partial = now.partial.into_iter().filter(|(a, _)| axes.contains(a)).collect();
                }
                let start = self.convert(x, &from, Some(id));
                let current = self.crossed(id, start, p);
                self.state.frames.last().carries.insert(k, (start, current));
            }
            Crossing::Slice => {
                let kept = self.facts.whole_where_kept(id, b);
                let (mut p, reader) = kept.unwrap_or_else(|| (now.without_windows(), id));
                p.splits.remove(&b.dim);
                let all = self.convert(x, &self.facts.around(b, p.clone()), Some(reader));
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

    /// Where a value is stacked: as it is, or as its users behind the loop ask for it, if the body has moved it there anyway and
    /// that takes no more memory. So what an all-to-all brought to its experts does not go that way again in the backward loop.
    fn moved_already(&self, x: Id, (out, b): (Id, Boundary), now: Placement) -> Placement {
        let facts = self.facts;
        let asked = facts.demand_across(b, out, x).filter(|p| p.partial.is_empty() && now.partial.is_empty());
        let made = |p: &Placement| self.state.usable(facts, x, p, facts.node(x).origin.phase).is_some();
        match asked {
            Some(p) if made(&p) && facts.bytes(x, &p) <= facts.bytes(x, &now) => p,
            _ => now,
        }
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
            if let Some(b) = facts.boundary(*out).filter(|b| b.how == Crossing::Stack) {
                p = self.moved_already(x, (*out, b), p);
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
            let p = match facts.boundary(out) {
                Some(b) => facts.around(b, p),
                None => p,
            };
            if let Some(b) = facts.boundary(out).filter(|b| b.how == Crossing::Accumulate) {
                for a in facts.loop_axes(of) {
                    self.state.summed.entry((out, *a)).or_default().push(b.dim);
                }
            }
            outs.push((from, self.crossed(out, from, p)));
        }
        let (axes, stages) = (facts.loop_axes(of).to_vec(), facts.has_stages(of));
        self.state.frames.last().loops.push(PlacedLoop { of, body, carries, outs, axes, stages });
    }
}
