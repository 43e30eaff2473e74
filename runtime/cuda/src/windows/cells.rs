//! Loads of the factors of a matmul in registers: from memory to registers, and from there to tiles of vectors of four rows. The
//! offset of an element is the sum of an offset of its row and an offset of its step. A thread has the same four rows throughout,
//! and computes their offsets once. Offsets of steps are in a table that the block shares; each thread computes one entry at a
//! time.
#![expect(
    clippy::needless_range_loop,
    reason = "lists that are known when a kernel is compiled are counted, not iterated"
)]

use super::gather::{FactorBlock, FactorSpace};
use super::window_map::{Covered, WindowMapShape, along};
use crate::kernel::space::{place, positions};
use crate::kernel::tile::UNITS;
use cubecl::prelude::*;

/// Rows of a thread, which are a vector of a tile for each step.
pub(super) const CELL: usize = 4;
/// Steps that a table is of.
pub(super) const TABLE: usize = UNITS;
/// Position of rows and steps beyond the last one along a sliding dim: so far before its first element that no step, or
/// row, leads back to one. See [`meshwright_device::kernels::windows::NEAR`].
const NOWHERE: i32 = -(1 << 30);

/// Layout of a factor's loads into cells.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct CellShape {
    /// Rows and steps of a tile.
    pub(super) rows: usize,
    pub(super) steps: usize,
    /// Whether vectors go along the reduction dim; and their width.
    pub(super) along_steps: bool,
    pub(super) width: usize,
    /// Rows of a vector that lie side by side. The others are far apart, so that threads next to each other read rows next to
    /// each other.
    pub(super) beside: usize,
    pub(super) slides: Vec<WindowMapShape>,
}

impl CellShape {
    /// Vectors of each step.
    pub(super) const fn vectors(&self) -> usize {
        self.rows / CELL
    }

    /// Steps of a thread.
    pub(super) fn own_steps(&self) -> usize {
        (self.len() / UNITS).max(1)
    }

    /// Vectors of a tile.
    pub(super) const fn len(&self) -> usize {
        self.vectors() * self.steps
    }

    /// Threads that have any.
    fn units(&self) -> usize {
        self.len() / self.own_steps()
    }

    /// Rows that are read one by one, or several at once.
    fn pieces(&self) -> usize {
        if self.along_steps { CELL } else { CELL / self.width }
    }

    /// The row of a tile that is the `i`-th of the first vector; the next vector's is further by the width of a vector.
    pub(super) fn row(&self, i: usize) -> usize {
        i / self.beside * self.vectors() * self.beside + i % self.beside
    }

    /// Steps that are read at once.
    fn steps_at_once(&self) -> usize {
        if self.along_steps { self.width } else { 1 }
    }
}

/// A row's part of an offset: a sum of strides, and the position along each sliding dim.
#[derive(CubeType)]
pub(super) struct RowParts {
    places: Sequence<usize>,
    slid: Sequence<i32>,
    are_there: Sequence<bool>,
}

/// A step's part of an offset.
#[derive(CubeType)]
pub(super) struct StepParts {
    places: Shared<[usize]>,
    slid: Shared<[i32]>,
}

/// The parts of a thread's rows.
#[cube]
pub(super) fn parts_of_rows(
    space: &FactorSpace,
    block: &FactorBlock,
    #[comptime] shape: CellShape,
) -> RowParts {
    let (pieces, many) = comptime!((shape.pieces(), shape.slides.len()));
    let mut places = Sequence::<usize>::new();
    let mut slid = Sequence::<i32>::new();
    let mut are_there = Sequence::<bool>::new();
    let first = block.row + UNIT_POS % comptime!(shape.vectors() as u32) * comptime!(shape.beside as u32);
    #[unroll]
    for piece in 0..pieces {
        let row = first + comptime!(shape.row(piece * CELL / pieces) as u32);
        let is_there = row < space.rows.len;
        are_there.push(is_there);
        let row = positions(&space.rows, row);
        let mut sum = block.first + place(&row, &space.by_row);
        #[unroll]
        for i in 0..many {
            let slide = space.slides.index(i);
            let at = *row.index(comptime!(shape.slides[i].row)) as i32 * slide.by_row + slide.from;
            slid.push(select(is_there, at, NOWHERE));
            if comptime!(shape.slides[i].divisor == 1) {
                sum += at as usize * slide.stride;
            }
        }
        places.push(sum);
    }
    RowParts { places, slid, are_there }
}

#[cube]
pub(super) fn new_parts_of_steps(#[comptime] shape: CellShape) -> StepParts {
    StepParts {
        places: Shared::<[usize]>::new_slice(TABLE),
        slid: Shared::<[i32]>::new_slice(comptime!((shape.slides.len() * TABLE).max(1))),
    }
}

/// Works out the parts of the steps from one on, until the end.
#[cube]
pub(super) fn fill_parts_of_steps(
    parts: &mut StepParts,
    space: &FactorSpace,
    until: (u32, u32),
    #[comptime] shape: CellShape,
) {
    let (from, end) = until;
    let is_there = from + UNIT_POS < end;
    let step = positions(&space.steps, from + UNIT_POS);
    let mut sum = place(&step, &space.by_step);
    #[unroll]
    for i in 0..comptime!(shape.slides.len()) {
        let slide = space.slides.index(i);
        let at = *step.index(comptime!(shape.slides[i].step)) as i32 * slide.by_step;
        parts.slid[UNIT_POS as usize + comptime!(i * TABLE)] = select(is_there, at, NOWHERE);
        if comptime!(shape.slides[i].divisor == 1) {
            sum += at as usize * slide.stride;
        }
    }
    parts.places[UNIT_POS as usize] = sum;
}

/// Loads this thread's elements of a tile: from a step on, by its index in the table, until the end; missing elements
/// are 0.
#[cube]
pub(super) fn fetch_cells<T: Numeric, W: Size, S: Float, N: Size>(
    tensor: &Tensor<Vector<T, W>>,
    space: &FactorSpace,
    rows: &RowParts,
    steps: &StepParts,
    at: (u32, u32, u32),
    #[comptime] shape: CellShape,
) -> Array<Vector<S, N>> {
    let (from, in_table, end) = at;
    let (pieces, at_once) = comptime!((shape.pieces(), shape.steps_at_once()));
    let width = comptime!(shape.width);
    let mut cells = Array::<Vector<S, N>>::new(comptime!(shape.own_steps()));
    #[unroll]
    for i in 0..comptime!(shape.own_steps()) {
        cells[i] = Vector::<S, N>::new(S::from_int(0));
    }
    if comptime!(shape.units() == UNITS) || UNIT_POS < comptime!(shape.units() as u32) {
        let first = UNIT_POS / comptime!(shape.vectors() as u32) * comptime!(shape.own_steps() as u32);
        #[unroll]
        for turn in 0..comptime!(shape.own_steps() / at_once) {
            let step = first + comptime!((turn * at_once) as u32);
            let by_step = at_step(steps, in_table + step, comptime!(shape.slides.len()));
            #[unroll]
            for piece in 0..pieces {
                let mut found = element(space, rows, &by_step, piece, comptime!(shape.slides.clone()));
                if comptime!(shape.slides.is_empty()) {
                    found.is_there = *rows.are_there.index(piece) && from + step < end;
                }
                if found.is_there {
                    let read = tensor[found.place / width];
                    #[unroll]
                    for lane in 0..width {
                        let (cell, row) = comptime!(if shape.along_steps {
                            (turn * at_once + lane, piece)
                        } else {
                            (turn, piece * width + lane)
                        });
                        let mut vector = cells[cell];
                        vector.insert(row, S::cast_from(read.extract(lane)));
                        cells[cell] = vector;
                    }
                }
            }
        }
    }
    cells
}

/// A step's entry in the table.
#[derive(CubeType)]
struct StepPart {
    place: usize,
    slid: Sequence<i32>,
}

#[cube]
fn at_step(steps: &StepParts, in_table: u32, #[comptime] many: usize) -> StepPart {
    let mut slid = Sequence::<i32>::new();
    #[unroll]
    for i in 0..many {
        slid.push(steps.slid[in_table as usize + comptime!(i * TABLE)]);
    }
    StepPart { place: steps.places[in_table as usize], slid }
}

/// Offset of an element, and whether it is within the sliding dims.
#[cube]
fn element(
    space: &FactorSpace,
    rows: &RowParts,
    step: &StepPart,
    #[comptime] piece: usize,
    #[comptime] slides: Vec<WindowMapShape>,
) -> Covered {
    let many = comptime!(slides.len());
    let mut sum = *rows.places.index(piece) + step.place;
    let mut is_there = true.runtime();
    #[unroll]
    for i in 0..many {
        let slide = space.slides.index(i);
        let at = *rows.slid.index(comptime!(piece * many + i)) + *step.slid.index(i);
        if comptime!(slides[i].divisor == 1) {
            // A negative number is greater than any that is not.
            is_there = is_there && (at as u32) < slide.len as u32;
        } else {
            let found = along(at, slide, comptime!(slides[i].divisor));
            is_there = is_there && found.is_there;
            sum += found.place;
        }
    }
    Covered { is_there, place: sum }
}

/// Stores loaded elements in a tile that begins there.
#[cube]
pub(super) fn fill_cells<S: Float, N: Size>(
    cells: &Array<Vector<S, N>>,
    tile: &mut Shared<[Vector<S, N>]>,
    begin: usize,
    #[comptime] shape: CellShape,
) {
    let vectors = comptime!(shape.vectors() as u32);
    let own = comptime!(shape.own_steps());
    if comptime!(shape.units() == UNITS) || UNIT_POS < comptime!(shape.units() as u32) {
        let first = UNIT_POS / vectors * comptime!((own * shape.vectors()) as u32) + UNIT_POS % vectors;
        #[unroll]
        for i in 0..own {
            tile[begin + first as usize + comptime!(i * shape.vectors())] = cells[i];
        }
    }
}
