//! Making loops in a graph, and asking what stands in which.

use crate::{Boundary, Crossing, Graph, Id, Kind, Repeat, RepeatId};
use meshwright_plan::Dim;

impl Graph {
    /// A new loop in the scope of the cursor, of which nothing is known yet but its dim.
    pub fn repeat(&mut self, dim: Dim, reverse: bool) -> RepeatId {
        let parent = self.scope;
        self.repeats.push(Repeat { dim, reverse, from: 0, parent, carries: Vec::new() })
    }

    /// How often the body of a loop runs.
    pub fn iterations(&self, of: RepeatId) -> usize {
        self.dims.size(self.repeats[of].dim) - self.repeats[of].from
    }

    /// Adds a value that crosses the boundary of a loop, in the scope where it is, stored as what crosses it; a sum is stored in
    /// full. A carry is added with itself as its next value.
    pub fn cross(&mut self, of: RepeatId, how: Crossing, x: Id) -> Id {
        let Repeat { dim, parent, .. } = self.repeats[of];
        let scope = std::mem::replace(&mut self.scope, if how.leaves() { parent } else { Some(of) });
        let id = self.op(Boundary { of, dim, how }, &[x]);
        self.scope = scope;
        if how != Crossing::Accumulate {
            self.nodes[id].ty.dtype = self.ty(x).dtype;
        }
        id
    }

    /// Adds a carry that starts as `x`; [`Graph::carry_on`] gives it its next value.
    pub fn carry(&mut self, of: RepeatId, x: Id) -> Id {
        let number = self.repeats[of].carries.len() as u32;
        let id = self.cross(of, Crossing::Carry(number), x);
        self.repeats[of].carries.push((id, id));
        id
    }

    /// Gives a carry its value in the next iteration.
    pub fn carry_on(&mut self, of: RepeatId, carry: Id, next: Id) {
        for (c, n) in &mut self.repeats[of].carries {
            if *c == carry {
                *n = next;
            }
        }
    }

    /// How a value crosses a boundary, if it does.
    pub fn boundary(&self, id: Id) -> Option<Boundary> {
        if self.repeats.is_empty() {
            return None;
        }
        if let Kind::Boundary(b) = self.node(id).op.kind() { Some(b) } else { None }
    }

    /// What a value depends on: its operands; for a carry, what the previous iteration has made of it, and for the last value of
    /// a carry, that carry.
    pub fn depends_on(&self, id: Id) -> Vec<Id> {
        let mut all = self.node(id).inputs.clone();
        match self.boundary(id) {
            Some(Boundary { of, how: Crossing::Carry(k), .. }) => {
                all.push(self.repeats[of].carries[k as usize].1)
            }
            Some(Boundary { of, how: Crossing::Final, .. }) => {
                all.extend(self.repeats[of].carries.iter().find(|(_, next)| *next == all[0]).map(|c| c.0));
            }
            _ => {}
        }
        all
    }

    /// Whether a scope is another one, or in the body of a loop in it.
    pub fn within(&self, mut inner: Option<RepeatId>, outer: Option<RepeatId>) -> bool {
        while inner != outer {
            let Some(of) = inner else { return false };
            inner = self.repeats[of].parent;
        }
        true
    }
}
