//! What a program is made of.

use super::graph::Segment;
use super::turns::{self, Carried, Turn};
use crate::collective::Prepared;
use crate::collective::calls::TransportCall;
use meshwright_plan::Dim;

/// Part of a program.
pub(crate) enum Piece {
    /// Operations, of any number of steps.
    Segment(Segment),
    /// A collective, from start to end, or its start.
    Collective(Box<CollectivePiece>),
    /// The end of the collective that the piece `start` started.
    Wait {
        start: usize,
        /// The step that waits.
        step: usize,
        unpack: Segment,
    },
    /// A loop.
    Repeat(Box<RepeatPiece>),
}

impl Piece {
    /// The step of the Plan that it belongs to, or its first one.
    pub(crate) fn step(&self) -> usize {
        match self {
            Piece::Segment(segment) => segment.steps.first().copied().unwrap_or(0),
            Piece::Collective(collective) => collective.step,
            Piece::Wait { step, .. } => *step,
            Piece::Repeat(repeat) => repeat.step,
        }
    }
}

/// A loop between segments.
pub(crate) struct RepeatPiece {
    /// The step of the Plan at which it begins.
    pub(crate) step: usize,
    pub(crate) dim: Dim,
    pub(crate) reverse: bool,
    pub(crate) carries: Vec<Carried>,
    pub(crate) body: Vec<Piece>,
    pub(crate) turns: Vec<Turn>,
}

impl RepeatPiece {
    /// `lags` says for each piece of the body in how many turns after the first ones it runs, `size` how many positions the dim has.
    pub(crate) fn new(
        step: usize,
        (dim, size, reverse): (Dim, usize, bool),
        carries: Vec<Carried>,
        (body, lags): (Vec<Piece>, &[usize]),
    ) -> RepeatPiece {
        let turns = turns::turns(size, reverse, &carries, lags);
        RepeatPiece { step, dim, reverse, carries, body, turns }
    }
}

/// A collective between segments.
pub(crate) struct CollectivePiece {
    /// Its group and name.
    pub(crate) prepared: Prepared,
    /// The step of the Plan.
    pub(crate) step: usize,
    /// Set where it only starts.
    pub(crate) async_id: Option<u32>,
    pub(crate) pack: Segment,
    pub(crate) calls: Vec<TransportCall>,
    /// Empty where it only starts.
    pub(crate) unpack: Segment,
}
