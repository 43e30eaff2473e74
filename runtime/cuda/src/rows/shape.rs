//! Parameters of the kernel, and the state of a thread.

use crate::kernel::elements::{OperandSource, Pace};
use cubecl::prelude::*;
use cubecl::std::FastDivmod;
use meshwright_device::kernels::rows::passes::RowPass;
use meshwright_plan::{DType, Monoid};

/// Threads that can tell each other numbers without memory.
pub(super) const WARP: usize = 32;
/// Elements of a copy: 16 bytes.
pub(super) const COPIED: usize = 4;
/// The size of such a vector.
pub(super) type Four = Const<COPIED>;

/// An operand whose rows are staged in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Staging {
    /// Its number.
    pub(super) operand: usize,
    /// The only pass that reads it.
    pub(super) pass: usize,
}

/// The compile-time parameters of a kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct RowShape {
    pub(super) passes: Vec<RowPass>,
    pub(super) folds: Vec<Monoid>,
    pub(super) operands: Vec<(OperandSource, DType)>,
    /// The slot and the type of each result.
    pub(super) results: Vec<(usize, DType)>,
    /// Values kept of an element, and of a row, and sums over all rows.
    pub(super) held: usize,
    pub(super) values: usize,
    pub(super) columns: usize,
    /// Number of dims of the rows, and of dims along a row.
    pub(super) rows: usize,
    pub(super) pace: Pace,
    /// Threads for a row, and rows of a block.
    pub(super) threads: usize,
    pub(super) beside: usize,
    /// Vectors of a row that a thread keeps, or 0 if it keeps none; and whether all threads have as many.
    pub(super) each: usize,
    pub(super) even: bool,
    /// Vectors that a thread loads before it computes with the first of them, so that the loads overlap.
    pub(super) ahead: usize,
    /// Whether the last vector of a row reaches beyond it.
    pub(super) reaches: bool,
    /// The operand that is copied ahead, if a block goes from row to row with one.
    pub(super) staging: Option<Staging>,
}

/// Sizes of the dims (the last one in vectors), and the global position of the first element along each if a pass reads
/// positions. Then the numbers of rows, of vectors in a row, and of elements along the last dim.
#[derive(CubeType, CubeLaunch)]
pub(super) struct RowSpace {
    pub(super) sizes: Sequence<FastDivmod<usize>>,
    pub(super) starts: Sequence<u32>,
    pub(super) rows: usize,
    pub(super) vectors: usize,
    pub(super) inner: usize,
}

/// State of a thread: kept values of its elements, values of its row, results of folds and its own partial result; and
/// for the places of its elements the sums over its rows. And elements of a row that are copied ahead, in shared memory.
#[derive(CubeType)]
pub(super) struct RowState {
    pub(super) columns: Array<f32>,
    pub(super) held: Array<f32>,
    pub(super) values: Array<f32>,
    pub(super) totals: Array<f32>,
    pub(super) sums: Array<f32>,
    pub(super) staged: Shared<[Vector<f32, Four>]>,
}

#[cube]
impl RowState {
    pub(super) fn new(#[comptime] shape: RowShape) -> RowState {
        let folds = comptime!(shape.folds.len().max(1));
        RowState {
            columns: Array::<f32>::new(comptime!(shape.summed().max(1))),
            held: Array::<f32>::new(comptime!((shape.held * shape.each * shape.pace.width).max(1))),
            values: Array::<f32>::new(comptime!(shape.values.max(1))),
            totals: Array::<f32>::new(folds),
            sums: Array::<f32>::new(folds),
            staged: Shared::<[Vector<f32, Four>]>::new_aligned_slice(
                comptime!(shape.copies().max(1)),
                16usize,
            ),
        }
    }
}

impl RowShape {
    /// Number of a thread's sums over all rows.
    pub(super) const fn summed(&self) -> usize {
        self.columns * self.each * self.pace.width
    }

    /// Whether the thread's vector in this place may reach beyond the row: the last one does, or if a row has rows of
    /// its own, the last one of each.
    pub(super) const fn may_reach(&self, place: usize) -> bool {
        let ends_once = self.pace.rank == self.rows + 1;
        self.reaches && !(ends_once && self.each > 0 && place + 1 < self.each)
    }

    /// Index of a kept value of an element.
    pub(super) const fn held_at(&self, value: usize, vector: usize, lane: usize) -> usize {
        (value * self.each + vector) * self.pace.width + lane
    }

    /// Copies of a row's elements, of 16 bytes each; 0 if none is staged.
    pub(super) const fn copies(&self) -> usize {
        if self.staging.is_some() { self.each * self.threads * self.pace.width / COPIED } else { 0 }
    }

    pub(super) fn staged_source(&self) -> Option<OperandSource> {
        self.staging.map(|staging| self.operands[staging.operand].0)
    }

    /// True if an operand's elements are read from shared memory.
    pub(super) fn is_staged(&self, operand: usize) -> bool {
        self.staging.is_some_and(|staging| staging.operand == operand)
    }
}
