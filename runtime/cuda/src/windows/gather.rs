//! Loads of both factors of a convolution, as a matmul: from memory to registers, and from there to tiles in shared memory. A
//! tile has rows of vectors of 8 elements, along the reduction dim or across it.

use super::window_map::{Covered, WindowMap, WindowMapShape, covered};
use crate::kernel::space::{DimWalk, place, positions};
use crate::kernel::tile::{UNITS, VECTOR, pitch};
use cubecl::prelude::*;

/// Layout of a factor's loads into tiles.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct FactorShape {
    /// Rows of a tile, and the elements of each, which are summed.
    pub(super) rows: usize,
    pub(super) steps: usize,
    /// Whether vectors go along the reduction dim.
    pub(super) along_steps: bool,
    /// Elements that are read at once, along the vectors.
    pub(super) width: usize,
    /// The sliding dims.
    pub(super) slides: Vec<WindowMapShape>,
}

impl FactorShape {
    const fn vectors(&self) -> usize {
        self.rows * self.steps / VECTOR
    }

    /// Vectors that each thread has.
    const fn each(&self) -> usize {
        self.vectors().div_ceil(UNITS)
    }

    /// Vectors in shared memory, from one row of them to the next and in all.
    pub(super) const fn pitch(&self) -> usize {
        pitch(if self.along_steps { self.steps } else { self.rows })
    }

    const fn len(&self) -> usize {
        self.pitch() * if self.along_steps { self.rows } else { self.steps }
    }
}

/// A factor: dims of the result and dims that are summed, how far the next position is along each (0 where it slides) and along
/// each dim of the groups, and how it slides.
#[derive(CubeType, CubeLaunch)]
pub(super) struct FactorSpace {
    pub(super) rows: DimWalk,
    pub(super) steps: DimWalk,
    pub(super) by_row: Sequence<usize>,
    pub(super) by_step: Sequence<usize>,
    by_group: Sequence<usize>,
    pub(super) slides: Sequence<WindowMap>,
}

/// A block's part of a factor: its first row, the end of its steps, and the offset of its group.
#[derive(CubeType, Clone, Copy)]
pub(super) struct FactorBlock {
    pub(super) row: u32,
    pub(super) end: u32,
    pub(super) first: usize,
}

#[cube]
impl FactorBlock {
    /// The part of that group.
    pub(super) fn new(space: &FactorSpace, group: &Sequence<u32>, row: u32, end: u32) -> FactorBlock {
        FactorBlock { row, end, first: place(group, &space.by_group) }
    }
}

/// A thread's `i`-th vector of a tile: its first row, its first step, and its place.
#[cube]
fn vector_of(#[comptime] i: usize, #[comptime] shape: FactorShape) -> (u32, u32, usize) {
    let at = UNIT_POS + comptime!((i * UNITS) as u32);
    let pitch = comptime!(shape.pitch() as u32);
    if comptime!(shape.along_steps) {
        let vectors = comptime!((shape.steps / VECTOR) as u32);
        let (row, vector) = (at / vectors, at % vectors);
        (row, vector * comptime!(VECTOR as u32), (row * pitch + vector) as usize)
    } else {
        let vectors = comptime!((shape.rows / VECTOR) as u32);
        let (step, vector) = (at / vectors, at % vectors);
        (vector * comptime!(VECTOR as u32), step, (step * pitch + vector) as usize)
    }
}

/// Whether a thread has an `i`-th vector.
#[cube]
fn has(#[comptime] i: usize, #[comptime] shape: FactorShape) -> bool {
    let mut has = true.runtime();
    if comptime!((i + 1) * UNITS > shape.vectors()) {
        has = UNIT_POS + comptime!((i * UNITS) as u32) < comptime!(shape.vectors() as u32);
    }
    has
}

/// Offset of an element of the factor, if it exists.
#[cube]
pub(super) fn element(
    space: &FactorSpace,
    block: &FactorBlock,
    row: u32,
    step: u32,
    #[comptime] slides: Vec<WindowMapShape>,
) -> Covered {
    let (row, step) = (positions(&space.rows, row), positions(&space.steps, step));
    let mut element = covered(&row, &step, &space.slides, slides);
    element.place += block.first + place(&row, &space.by_row) + place(&step, &space.by_step);
    element
}

/// Loads this thread's part of a tile, from a step on; missing elements are 0.
#[cube]
pub(super) fn fetch<T: Numeric, W: Size, S: Float, N: Size>(
    tensor: &Tensor<Vector<T, W>>,
    space: &FactorSpace,
    block: &FactorBlock,
    from: u32,
    #[comptime] shape: FactorShape,
) -> Array<Vector<S, N>> {
    let each = comptime!(shape.each());
    let width = comptime!(shape.width);
    let mut fetched = Array::<Vector<S, N>>::new(each);
    #[unroll]
    for i in 0..each {
        let (first, first_step, _) = vector_of(i, comptime!(shape.clone()));
        let is_own = has(i, comptime!(shape.clone()));
        let mut vector = Vector::<S, N>::new(S::from_int(0));
        #[unroll]
        for piece in 0..comptime!(VECTOR / width) {
            let beside = comptime!((piece * width) as u32);
            let row = block.row + first + comptime!(if shape.along_steps { 0 } else { beside });
            let step = from + first_step + comptime!(if shape.along_steps { beside } else { 0 });
            if is_own && row < space.rows.len && step < block.end {
                let found = element(space, block, row, step, comptime!(shape.slides.clone()));
                if found.is_there {
                    let read = tensor[found.place / width];
                    #[unroll]
                    for lane in 0..width {
                        vector.insert(comptime!(piece * width + lane), S::cast_from(read.extract(lane)));
                    }
                }
            }
        }
        fetched[i] = vector;
    }
    fetched
}

/// Stores loaded elements in a tile.
#[cube]
pub(super) fn fill_tile<S: Float, N: Size>(
    fetched: &Array<Vector<S, N>>,
    tile: &mut Shared<[Vector<S, N>]>,
    #[comptime] shape: FactorShape,
) {
    let each = comptime!(shape.each());
    #[unroll]
    for i in 0..each {
        let (_, _, place) = vector_of(i, comptime!(shape.clone()));
        if has(i, comptime!(shape.clone())) {
            tile[place] = fetched[i];
        }
    }
}

/// A new tile.
#[cube]
pub(super) fn new_tile<S: Float, N: Size>(
    #[comptime] shape: FactorShape,
    #[comptime] bytes: usize,
) -> Shared<[Vector<S, N>]> {
    Shared::<[Vector<S, N>]>::new_aligned_slice(comptime!(shape.len()), bytes)
}
