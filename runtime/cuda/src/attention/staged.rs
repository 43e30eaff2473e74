//! Offsets of rows of tensors, and the operands of a tile's rows in shared memory.

#![expect(
    clippy::needless_range_loop,
    reason = "lists that are known when a kernel is compiled are counted, not iterated"
)]

use super::scores::{AttentionShape, Beside, Space, base, position};
use crate::kernel::ptx::{CopyShape, copy_ahead, shared_address};
use crate::kernel::tile::Two;
use cubecl::prelude::*;

/// Offsets of rows of a tensor, of queries or of keys, computed once: the loops over tiles read no metadata of tensors.
#[derive(CubeType)]
pub(super) struct RowSource {
    start: usize,
    /// Along each dim of the rows, or along the keys alone.
    strides: Sequence<usize>,
}

#[cube]
impl RowSource {
    pub(super) fn new<T: CubePrimitive>(
        tensor: &Tensor<T>,
        space: &Space,
        outer: u32,
        #[comptime] of_keys: bool,
        #[comptime] shape: AttentionShape,
    ) -> RowSource {
        let start = base(tensor, space, outer, comptime!(shape.clone()));
        let mut strides = Sequence::<usize>::new();
        #[unroll]
        for dim in comptime!(shape.dims_of(of_keys)) {
            strides.push(tensor.stride(dim));
        }
        RowSource { start, strides }
    }

    /// Offset of a row.
    pub(super) fn at(
        &self,
        space: &Space,
        row: u32,
        #[comptime] of_keys: bool,
        #[comptime] shape: AttentionShape,
    ) -> usize {
        let mut sum = self.start;
        if comptime!(of_keys) {
            sum += row as usize * *self.strides.index(0);
        } else {
            #[unroll]
            for i in 0..comptime!(shape.rows) {
                let at = position(space, 0u32, row, comptime!(shape.outer + i), comptime!(shape.clone()));
                sum += at as usize * *self.strides.index(i);
            }
        }
        sum
    }
}

/// Operands with an element for each key of an attention, or for each query, independent of the other: those of two
/// tiles, in shared memory.
#[derive(CubeType)]
pub(super) struct Staged {
    pairs: Shared<[Vector<f32, Two>]>,
    sources: Sequence<RowSource>,
}

/// Where the staged operands of an outer position are.
#[cube]
fn staged_sources(
    beside: &Beside,
    space: &Space,
    outer: u32,
    #[comptime] of_keys: bool,
    #[comptime] shape: AttentionShape,
) -> Sequence<RowSource> {
    let all = comptime!(shape.staged(of_keys));
    let mut sources = Sequence::<RowSource>::new();
    #[unroll]
    for i in 0..comptime!(all.len()) {
        let tensor = beside.tensors.index(comptime!(all[i]));
        let mut start = 0usize;
        #[unroll]
        for dim in 0..comptime!(shape.outer) {
            if comptime!(shape.beside[all[i]].dims[dim]) {
                let at = position(space, outer, 0u32, dim, comptime!(shape.clone()));
                start += at as usize * tensor.stride(dim);
            }
        }
        let mut strides = Sequence::<usize>::new();
        #[unroll]
        for dim in comptime!(shape.dims_of(of_keys)) {
            strides.push(tensor.stride(dim));
        }
        sources.push(RowSource { start, strides });
    }
    sources
}

/// Most rows of a tile that is staged.
const STAGED: usize = 64;

#[cube]
impl Staged {
    pub(super) fn new(
        beside: &Beside,
        space: &Space,
        outer: u32,
        #[comptime] of_keys: bool,
        #[comptime] shape: AttentionShape,
    ) -> Staged {
        let pairs = comptime!((shape.staged(of_keys).len() * STAGED).max(2));
        let sources = staged_sources(beside, space, outer, of_keys, shape);
        Staged { pairs: Shared::<[Vector<f32, Two>]>::new_aligned_slice(pairs, 16usize), sources }
    }

    /// Starts to copy the operands of the keys, or the queries, from `first` on. See `load::meet`.
    pub(super) fn load(
        &self,
        beside: &Beside,
        space: &Space,
        buffer: u32,
        first: u32,
        #[comptime] of_keys: bool,
        #[comptime] shape: AttentionShape,
    ) {
        self.load_from(&self.sources, beside, space, (buffer, first), of_keys, shape);
    }

    /// The same at an outer position of its own, as the first tile.
    pub(super) fn load_at(
        &self,
        beside: &Beside,
        space: &Space,
        at: (u32, u32),
        #[comptime] of_keys: bool,
        #[comptime] shape: AttentionShape,
    ) {
        let sources = staged_sources(beside, space, at.0, of_keys, comptime!(shape.clone()));
        self.load_from(&sources, beside, space, (0u32, at.1), of_keys, shape);
    }

    fn load_from(
        &self,
        sources: &Sequence<RowSource>,
        beside: &Beside,
        space: &Space,
        at: (u32, u32),
        #[comptime] of_keys: bool,
        #[comptime] shape: AttentionShape,
    ) {
        let (buffer, first) = at;
        let all = comptime!(shape.staged(of_keys));
        let many = if comptime!(of_keys) { space.keys } else { space.rows };
        // Rows beyond those of the tile may not be there.
        let rows = comptime!(if of_keys { shape.columns } else { STAGED });
        #[unroll]
        for i in 0..comptime!(all.len()) {
            if UNIT_POS < comptime!(rows as u32) {
                let row = first + UNIT_POS;
                let is_there = comptime!(shape.whole) || row < many;
                let row = select(is_there, row, 0u32);
                let from = sources.index(i).at(space, row, of_keys, comptime!(shape.clone()));
                let place =
                    (buffer * comptime!(all.len() as u32) + comptime!(i as u32)) * comptime!(STAGED as u32);
                let to = shared_address(&self.pairs[0..1]) + (place + UNIT_POS) * 4u32;
                let tensor = beside.tensors.index(comptime!(all[i]));
                copy_ahead(
                    &tensor[from..from + 1],
                    to,
                    select(is_there, 4u32, 0u32),
                    comptime!(CopyShape::of(4)),
                );
            }
        }
    }

    /// The elements of the `number`-th staged tensor for two adjacent rows, of which `row` is the first.
    pub(super) fn pair(
        &self,
        buffer: u32,
        row: u32,
        #[comptime] number: usize,
        #[comptime] many: usize,
    ) -> Vector<f32, Two> {
        let place = (buffer * comptime!(many as u32) + comptime!(number as u32)) * comptime!(STAGED as u32);
        self.pairs[((place + row) / 2u32) as usize]
    }

    /// The element of the tensor for one query.
    pub(super) fn of_row(
        &self,
        buffer: u32,
        row: u32,
        #[comptime] tensor: usize,
        #[comptime] shape: AttentionShape,
    ) -> f32 {
        let all = comptime!(shape.staged(false));
        let number = comptime!(all.iter().position(|i| *i == tensor).unwrap_or(0));
        let pair = self.pair(buffer, row, number, comptime!(all.len()));
        select(row & 1u32 == 0u32, pair.extract(0usize), pair.extract(1usize))
    }
}
