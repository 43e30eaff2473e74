//! Tiles of queries, keys and values, from memory.

use super::scores::{Shape, Space, row_offset};
use super::tile::{UNITS, VECTOR, put, vectors_each};
use cubecl::prelude::*;

/// What of the rows from `first` on this unit is to put into a tile: of keys, or else of queries. Beyond the last row are zeros.
#[cube]
fn fetch<E: Float, N: Size>(
    source: &Tensor<Vector<E, N>>,
    base: usize,
    first: u32,
    space: &Space,
    #[comptime] shape: Shape,
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
        if comptime!(of_keys) {
            if row < comptime!(rows as u32) && first + row < space.keys {
                let offset = (first + row) as usize * source.stride(comptime!(shape.key()));
                fetched[i] = source[(base + offset) / VECTOR + place];
            }
        } else if row < comptime!(rows as u32) && first + row < space.rows {
            let offset = row_offset(source, space, first + row, comptime!(shape.clone()));
            fetched[i] = source[(base + offset) / VECTOR + place];
        }
    }
    fetched
}

/// Fills tiles with `rows` rows of keys and values, or else of queries and their cotangents, from `first` on, when all units are done with
/// what was there; the second only where it has a width. All see them afterwards.
#[cube]
pub(super) fn load<E: Float, N: Size>(
    source: &Tensor<Vector<E, N>>,
    second: &Tensor<Vector<E, N>>,
    tile: &mut Shared<[Vector<E, N>]>,
    second_tile: &mut Shared<[Vector<E, N>]>,
    base: usize,
    second_base: usize,
    first: u32,
    space: &Space,
    #[comptime] shape: Shape,
    #[comptime] of_keys: bool,
    #[comptime] rows: usize,
    #[comptime] second_width: usize,
) {
    let width = comptime!(shape.width);
    let fetched = fetch(source, base, first, space, comptime!(shape.clone()), of_keys, rows, width);
    if comptime!(second_width > 0) {
        let other = fetch(second, second_base, first, space, shape, of_keys, rows, second_width);
        sync_cube();
        put(&other, second_tile, rows, second_width);
    } else {
        sync_cube();
    }
    put(&fetched, tile, rows, width);
    sync_cube();
}
