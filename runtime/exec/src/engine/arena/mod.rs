//! The arena: one stretch of a device's memory in which the kernels of a program put what they make, each result at a place that is known
//! before the program runs (ADR 49).
//!
//! A program is walked as it runs, loops and all, with tensors that only say how long somebody holds them ([`walk`]). What is made and given up
//! in a run gets a place by these times ([`packing`]). What outlives a run, and what operations of Burn make, has memory of its own.

mod packing;
mod views;
mod walk;

use super::builder::Piece;
use crate::backend::Backend;
use meshwright_plan::{BufId, Dim, Plan};
use packing::{Needed, most, pack};
use std::collections::{BTreeMap, BTreeSet};

/// Where the results of a program's kernels are.
#[cfg_attr(
    not(any(test, feature = "cuda", feature = "cubecl-cpu")),
    expect(dead_code, reason = "processors have none")
)]
#[derive(Debug, Default)]
pub(crate) struct Arena {
    pub(crate) bytes: u64,
    /// For each result, in the order of a run.
    pub(crate) spots: Vec<Spot>,
    /// The step at which most is needed at once.
    pub(crate) fullest: usize,
}

/// The memory of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spot {
    /// So many bytes of the arena from one on.
    At { start: u64, bytes: u64 },
    /// That of the operand, which is in the arena.
    Operand,
    /// Its own.
    Own,
}

/// How an operation comes by the memory of its results.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ResultMemory {
    /// It takes what it is given: for each result the operands that it can be written over, where they end. `gaps` says whether there may be some
    /// between long rows.
    Given { over: Vec<Vec<usize>>, gaps: bool },
    /// That of its operand, row by row.
    Operand,
    /// That of its first operand where that ends; the second is put there, at the position of a loop over that dim.
    Update(Dim),
    /// It asks the backend.
    Own,
    /// It asks the backend, or gives what it reads in another form.
    Unknown,
}

/// Bytes that rows begin at a multiple of, where they are long: products of matrices are several times as fast with rows that begin at multiples of
/// 16 bytes, which those of a vocabulary of 50257 in `bf16` do not if they follow each other.
const ROW_BYTES: usize = 128;
/// Rows that are long, in bytes, so that gaps are a small part of them.
const LONG_ROW: usize = 1024;
/// What rows of others begin at a multiple of already.
const ALIGNED_ROW: usize = 16;

/// Elements from one row to the next, of a result whose rows may have gaps between them.
pub(crate) fn row_pitch(shape: &[usize], element: usize) -> usize {
    let Some(row) = shape.last().copied() else { return 1 };
    let bytes = row * element;
    match shape.len() > 1 && bytes >= LONG_ROW && !bytes.is_multiple_of(ALIGNED_ROW) {
        true => bytes.next_multiple_of(ROW_BYTES) / element,
        false => row,
    }
}

/// Bytes of a result, with gaps between rows or without.
pub(crate) fn result_bytes(shape: &[usize], element: usize, gaps: bool) -> u64 {
    let elements: usize = shape.iter().product();
    let row = shape.last().copied().unwrap_or(1);
    let pitch = if gaps { row_pitch(shape, element) } else { row };
    (elements / row.max(1) * pitch * element) as u64
}

impl Arena {
    /// Of a program: its pieces, and the buffers that are alive at its end.
    pub(crate) fn of<B: Backend>(
        backend: &B,
        plan: &Plan,
        program: (&[Piece], &BTreeSet<BufId>),
        kernels: &[B::Kernel],
    ) -> Arena {
        let walked = walk::walk(backend, plan, program, kernels);
        let mut all = Layout { made: walked.made, ..Layout::default() };
        for number in 0..all.made.len() {
            all.needs(number);
        }
        let (starts, bytes) = pack(&all.needed);
        let (_, moment) = most(&all.needed);
        let spots = walked.results.iter().map(|result| all.spot(result, &starts)).collect();
        let fullest = walked.steps.get(moment as usize).copied().unwrap_or(0);
        Arena { bytes, spots, fullest }
    }
}

/// Memory that was asked for.
enum Asked {
    /// Of what is made there.
    New { number: usize },
    /// Of what is written over something that was made, or of what no kernel has made.
    Over { number: Option<usize> },
}

/// What is known of what was made.
#[derive(Clone, Copy)]
struct Lifetime {
    bytes: u64,
    from: u32,
    /// The last moment at which somebody holds it; none where it outlives the run.
    to: Option<u32>,
    /// When it was read last.
    read: u32,
    /// What it is put into in the end, and from which byte on, where it can be made there.
    part_of: Option<(usize, u64)>,
}

/// Which of what is made needs a place of its own.
#[derive(Default)]
struct Layout {
    made: Vec<Lifetime>,
    needed: Vec<Needed>,
    /// By number, that of what is needed.
    places: BTreeMap<usize, usize>,
}

impl Layout {
    /// What something is a part of in the end, and from which byte on; none where it outlives the run, and so has no place.
    fn root(&self, number: usize) -> Option<(usize, u64)> {
        match self.made[number].part_of.and_then(|(whole, at)| Some((self.root(whole)?, at))) {
            Some(((root, start), at)) => Some((root, start + at)),
            None => self.made[number].to.map(|_| (number, 0)),
        }
    }

    fn needs(&mut self, number: usize) {
        let Lifetime { bytes, from, to: Some(to), .. } = self.made[number] else { return };
        if self.root(number) == Some((number, 0)) {
            self.places.insert(number, self.needed.len());
            self.needed.push(Needed { from, to, bytes });
        }
    }

    fn spot(&self, asked: &Asked, starts: &[u64]) -> Spot {
        match asked {
            Asked::New { number } => {
                let place = |(root, at): (usize, u64)| Some(starts[*self.places.get(&root)?] + at);
                let at = |start| Spot::At { start, bytes: self.made[*number].bytes };
                self.root(*number).and_then(place).map_or(Spot::Own, at)
            }
            Asked::Over { number: Some(number) } if self.root(*number).is_some() => Spot::Operand,
            Asked::Over { .. } => Spot::Own,
        }
    }
}
