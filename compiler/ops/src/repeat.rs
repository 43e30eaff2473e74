//! Loops in a graph: which values belong to the body of one, and what crosses its boundary.
//!
//! A body runs once for each position of a dim, in ascending order or, in a backward pass, in descending order. All values of a
//! graph are in one list; [`crate::Node::scope`] says to which body a value belongs. A body reads values around it as they
//! are; everything else crosses the boundary by a [`Boundary`] op.

use crate::{Graph, Id, Kind};
use meshwright_plan::{ArenaId, Dim};

/// A loop, by position in [`Graph::repeats`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RepeatId(pub u32);

impl ArenaId for RepeatId {
    fn at(position: usize) -> Self {
        RepeatId(position as u32)
    }

    fn position(self) -> usize {
        self.0 as usize
    }
}

/// A loop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repeat {
    /// Its body runs once for each position of this dim.
    pub dim: Dim,
    /// From the last position to the first.
    pub reverse: bool,
    /// The loop in whose body it stands.
    pub parent: Option<RepeatId>,
    /// What goes from one iteration to the next: the value in the body, and what that is in the next iteration.
    pub carries: Vec<(Id, Id)>,
}

/// What crosses the boundary of a loop, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Boundary {
    /// The loop.
    pub of: RepeatId,
    /// Its dim.
    pub dim: Dim,
    /// How.
    pub how: Crossing,
}

/// How a value crosses the boundary of a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Crossing {
    /// Into the body: its operand in the first iteration, then what the previous iteration has made of it. With its position
    /// among the carries of the loop.
    Carry(u32),
    /// Into the body: the element of its operand at the position of the iteration.
    Slice,
    /// Out of the body: what the last iteration has made of a carry; its operand is the carry's next value.
    Final,
    /// Out of the body: its operand in all iterations, in order of their positions.
    Stack,
    /// Out of the body: the sum of its operand over all iterations.
    Accumulate,
}

impl Crossing {
    /// Whether it leads out of the body.
    pub fn leaves(self) -> bool {
        matches!(self, Crossing::Final | Crossing::Stack | Crossing::Accumulate)
    }
}

impl Graph {
    /// A new loop in the scope of the cursor, of which nothing is known yet but its dim.
    pub fn repeat(&mut self, dim: Dim, reverse: bool) -> RepeatId {
        let parent = self.scope;
        self.repeats.push(Repeat { dim, reverse, parent, carries: Vec::new() })
    }

    /// Adds a value that crosses the boundary of a loop, in the scope where it is. A carry is added with itself as its next
    /// value.
    pub fn cross(&mut self, of: RepeatId, how: Crossing, x: Id) -> Id {
        let Repeat { dim, parent, .. } = self.repeats[of];
        let scope = std::mem::replace(&mut self.scope, if how.leaves() { parent } else { Some(of) });
        let id = self.op(Boundary { of, dim, how }, &[x]);
        self.scope = scope;
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
        if let Kind::Boundary(b) = self.node(id).op.kind() { Some(b) } else { None }
    }

    /// What a value depends on: its operands; for a carry, what the previous iteration has made of it, and for the last value of a
    /// carry, that carry.
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
