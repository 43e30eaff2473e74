//! Loops in a graph: which values belong to the body of one, and what crosses its boundary.
//!
//! A body runs once for each position of a dim, in ascending order or, in a backward pass, in descending order. All values of a
//! graph are in one list; [`crate::Node::scope`] says to which body a value belongs. A body reads values around it as they
//! are; everything else crosses the boundary by a [`Boundary`] op.

use meshwright_plan::{ArenaId, Dim};

/// A loop, by position in [`crate::Graph::repeats`].
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
