//! Rows of queries, keys and values, from memory to tiles, and from accumulators to memory.

use super::super::tile::{PLANES, ROWS, Two, UNITS, VECTOR, store_tile, vectors_each, write};
use super::scores::{AttentionShape, Space, base, row_offset};
use cubecl::prelude::*;
use meshwright_plan::AttentionPart;

/// Queries of a cube, or keys.
pub(super) const QUERIES: usize = PLANES * ROWS;

/// What of the rows from `first` on this unit is to put into a tile: of keys, or else of queries. Beyond the last row are zeros.
#[cube]
fn fetch<E: Float, N: Size>(
    source: &Tensor<Vector<E, N>>,
    base: usize,
    first: u32,
    space: &Space,
    #[comptime] shape: AttentionShape,
    #[comptime] of_keys: bool,
    #[comptime] rows: usize,
    #[comptime] width: usize,
) -> Array<Vector<E, N>> {
    let each = comptime!(vectors_each(rows, width));
    let vectors = comptime!((width / VECTOR) as u32);
    let mut fetched = Array::<Vector<E, N>>::new(each);
    #[unroll]
    for i in 0..each {
        let at = UNIT_POS + comptime!((i * UNITS) as u32);
        let row = at / vectors;
        let place = (at % vectors) as usize;
        let mut is_there = true;
        if comptime!((i + 1) * UNITS > rows * width / VECTOR) {
            is_there = row < comptime!(rows as u32);
        }
        if comptime!(!shape.whole) {
            is_there = is_there && first + row < select(comptime!(of_keys).runtime(), space.keys, space.rows);
        }
        if is_there {
            let offset = if comptime!(of_keys) {
                (first + row) as usize * source.stride(comptime!(shape.key()))
            } else {
                row_offset(source, space, first + row, comptime!(shape.clone()))
            };
            fetched[i] = source[(base + offset) / VECTOR + place];
        }
    }
    fetched
}

/// Fills tiles with `rows` rows of keys and values, or else of queries and their cotangents, from `first` on, when all units are done with
/// what was there; the second only where it has a width. All see them afterwards. `at` is the outer position, and the first row.
#[cube]
pub(super) fn load<E: Float, N: Size>(
    source: &Tensor<Vector<E, N>>,
    second: &Tensor<Vector<E, N>>,
    tile: &mut Shared<[Vector<E, N>]>,
    second_tile: &mut Shared<[Vector<E, N>]>,
    at: (u32, u32),
    space: &Space,
    #[comptime] shape: AttentionShape,
    #[comptime] of_keys: bool,
    #[comptime] rows: usize,
    #[comptime] second_width: usize,
) {
    let width = comptime!(shape.width);
    let start = base(source, space, at.0, comptime!(shape.clone()));
    let fetched = fetch(source, start, at.1, space, comptime!(shape.clone()), of_keys, rows, width);
    if comptime!(second_width > 0) {
        let start = base(second, space, at.0, comptime!(shape.clone()));
        let other = fetch(second, start, at.1, space, shape, of_keys, rows, second_width);
        sync_cube();
        store_tile(&other, second_tile, rows, second_width);
    } else {
        sync_cube();
    }
    store_tile(&fetched, tile, rows, width);
    sync_cube();
}

/// The outer position of the cube, and its first row of so many.
#[cube]
pub(super) fn place_of_cube(rows: u32) -> (u32, u32) {
    let tiles = rows.div_ceil(comptime!(QUERIES as u32));
    (CUBE_POS_X / tiles, CUBE_POS_X % tiles * comptime!(QUERIES as u32))
}

/// Writes accumulators of two queries, of which `row` is the first.
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
            write(out, sums, start + offset, half, width);
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
                write(out, sums, start + key as usize * along, half, width);
            }
        }
    }
}
