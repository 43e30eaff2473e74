//! Rows of queries, keys and values, from memory to tiles, and from accumulators to memory.

use super::layout::{Multiply, TileShape, column, place};
use super::scores::{AttentionShape, Space, base, row_offset};
use super::staged::RowSource;
use crate::kernel::ptx::{CopyShape, copy_ahead, shared_address, show_to_products, wait_for_copies};
use crate::kernel::tile::{PLANES, ROWS, Two, UNITS};
use cubecl::prelude::*;
use meshwright_plan::AttentionPart;

/// Queries of a block, or keys.
pub(super) const QUERIES: usize = PLANES * ROWS;

/// Begins to copy the rows from `first` on to a tile, the `buffer`-th of those in `tiles`: of keys, or else of queries. Beyond
/// the last row are zeros. See [`meet`].
#[cube]
pub(super) fn load<E: Float, N: Size>(
    source: &Tensor<Vector<E, N>>,
    rows: &RowSource,
    tiles: &Shared<[Vector<E, N>]>,
    buffer: u32,
    first: u32,
    space: &Space,
    #[comptime] shape: AttentionShape,
    #[comptime] tile: TileShape,
    #[comptime] of_keys: bool,
) {
    let (in_row, all) = comptime!((tile.in_row() as u32, (tile.rows * tile.in_row()) as u32));
    let to = shared_address(&tiles[0..1]) + buffer * comptime!((tile.size() * 16) as u32);
    let each = comptime!((tile.rows * tile.in_row()).div_ceil(UNITS));
    #[unroll]
    for i in 0..each {
        let which = UNIT_POS + comptime!((i * UNITS) as u32);
        let (row, vector) = (which / in_row, which % in_row);
        if comptime!((i + 1) * UNITS <= tile.rows * tile.in_row()) || which < all {
            let mut is_there = true;
            if comptime!(!shape.whole) {
                is_there = first + row < select(comptime!(of_keys).runtime(), space.keys, space.rows);
            }
            let from = rows.at(space, select(is_there, first + row, 0u32), of_keys, comptime!(shape.clone()));
            let from = from / comptime!(tile.by.vector()) + vector as usize;
            let bytes = select(is_there, 16u32, 0u32);
            copy_ahead(
                &source[from..from + 1],
                to + place(row, vector, tile) * 16u32,
                bytes,
                comptime!(CopyShape::of(16)),
            );
        }
    }
}

/// Waits until this thread's copies have arrived, and for the other threads. Then the copied tiles are visible to all,
/// and the earlier ones may be overwritten.
#[cube]
pub(super) fn meet(#[comptime] grouped: bool) {
    wait_for_copies();
    if comptime!(grouped) {
        show_to_products();
    }
    sync_cube();
}

/// The outer position of the block, and its first row; the last rows come first if they have most keys.
#[cube]
pub(super) fn place_of_cube(rows: u32, #[comptime] last_first: bool) -> (u32, u32) {
    let tiles = rows.div_ceil(comptime!(QUERIES as u32));
    let mut tile = CUBE_POS_X % tiles;
    if comptime!(last_first) {
        tile = tiles - 1u32 - tile;
    }
    (CUBE_POS_X / tiles, tile * comptime!(QUERIES as u32))
}

/// The first of the two rows of a tile that a thread has.
#[cube]
pub(super) fn row_of_unit() -> u32 {
    UNIT_POS / 32 * comptime!(ROWS as u32) + UNIT_POS % 32 / 4
}

/// Writes a thread's part of a row that begins `at`, of the first or the second of its two.
#[cube]
fn write<O: Float, M: Size>(
    out: &mut Tensor<Vector<O, M>>,
    sums: &Array<Vector<f32, Two>>,
    at: usize,
    #[comptime] half: usize,
    #[comptime] width: usize,
    #[comptime] by: Multiply,
) {
    #[unroll]
    for n in 0..comptime!(width / 8) {
        let place = (at + column(n, by) as usize) / 2;
        out[place] = Vector::<O, M>::cast_from(sums[2 * n + half]);
    }
}

/// Writes accumulators of two queries, the first of which is `row`.
#[cube]
pub(super) fn write_queries<O: Float, M: Size>(
    out: &mut Tensor<Vector<O, M>>,
    sums: &Array<Vector<f32, Two>>,
    space: &Space,
    at: (u32, u32),
    #[comptime] shape: AttentionShape,
    #[comptime] width: usize,
) {
    let start = base(&*out, space, at.0, comptime!(shape.clone()));
    #[unroll]
    for half in 0..2usize {
        let query = at.1 + comptime!(8 * half as u32);
        if comptime!(shape.whole) || query < space.rows {
            let offset = row_offset(&*out, space, query, comptime!(shape.clone()));
            write(out, sums, start + offset, half, width, comptime!(shape.by));
        }
    }
}

/// The same of keys, if the gradient is asked for.
#[cube]
pub(super) fn write_keys<O: Float, M: Size>(
    out: &mut Tensor<Vector<O, M>>,
    sums: &Array<Vector<f32, Two>>,
    space: &Space,
    at: (u32, u32),
    #[comptime] shape: AttentionShape,
    #[comptime] part: AttentionPart,
    #[comptime] width: usize,
) {
    if comptime!(shape.gives(part)) {
        let along = out.stride(comptime!(shape.key()));
        let start = base(&*out, space, at.0, comptime!(shape.clone()));
        #[unroll]
        for half in 0..2usize {
            let key = at.1 + comptime!(8 * half as u32);
            if comptime!(shape.whole) || key < space.keys {
                write(out, sums, start + key as usize * along, half, width, comptime!(shape.by));
            }
        }
    }
}
