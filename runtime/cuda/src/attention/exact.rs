//! Matmuls of `f32` tiles in shared memory: each thread multiplies by fused multiply-adds in registers, and nothing is rounded
//! before.
//!
//! Scores are in the layout of accumulators of tensor cores, so that all between the matmuls is the same code: lane `4 g + t`
//! of a warp has the columns `8 n + 2 t` and `8 n + 2 t + 1` of the rows `g` and `g + 8`. Of sums that are as wide as queries
//! or values it has the columns from `16 m + 4 t` to `16 m + 4 t + 3`, which are one vector of a tile (`layout::column`).

use super::layout::{TileShape, place};
use crate::kernel::ptx::{shared_address, store_one};
use crate::kernel::tile::{ROWS, Two};
use cubecl::prelude::*;

/// The first of a thread's two rows.
#[cube]
fn own_row() -> u32 {
    UNIT_POS / 32 * comptime!(ROWS as u32) + UNIT_POS % 32 / 4
}

/// Adds the product of two vectors.
#[cube]
fn dot<E: Float, N: Size>(a: Vector<E, N>, b: Vector<E, N>, sum: f32) -> f32 {
    let mut sum = sum;
    #[unroll]
    for i in 0..4usize {
        sum = fma(f32::cast_from(a.extract(i)), f32::cast_from(b.extract(i)), sum);
    }
    sum
}

/// Adds to scores the matmul of rows of a tile, and rows of another, which are its columns, from `from` on.
#[cube]
pub(super) fn products<E: Float, N: Size>(
    rows: &Shared<[Vector<E, N>]>,
    rows_at: u32,
    others: &Shared<[Vector<E, N>]>,
    others_at: u32,
    sums: &mut Array<Vector<f32, Two>>,
    #[comptime] left: TileShape,
    #[comptime] right: TileShape,
    #[comptime] from: usize,
    #[comptime] columns: usize,
) {
    let (pitch, apart) = comptime!((left.pitch() as u32, right.pitch() as u32));
    let first_row = rows_at + own_row() * pitch;
    let first_column = others_at + (UNIT_POS % 4 * 2u32 + comptime!(from as u32)) * apart;
    for k in 0..comptime!(left.in_row() as u32) {
        let first = rows[(first_row + k) as usize];
        let second = rows[(first_row + comptime!(8 * pitch) + k) as usize];
        #[unroll]
        for n in 0..comptime!(columns / 8) {
            let even = others[(first_column + comptime!((8 * n) as u32 * apart) + k) as usize];
            let odd = others[(first_column + comptime!((8 * n + 1) as u32 * apart) + k) as usize];
            #[unroll]
            for half in 0..2usize {
                let own = if comptime!(half == 0) { first } else { second };
                let before = sums[comptime!(2 * n + half)];
                let mut after = Vector::<f32, Two>::zeroed();
                after.insert(0usize, dot::<E, N>(own, even, before.extract(0usize)));
                after.insert(1usize, dot::<E, N>(own, odd, before.extract(1usize)));
                sums[comptime!(2 * n + half)] = after;
            }
        }
    }
}

/// Writes factors of a thread's two rows into the tile of its warp's rows, and waits for the other threads of the warp.
#[cube]
pub(super) fn exchange<E: Float, N: Size>(
    factors: &Sequence<Vector<E, Two>>,
    scratch: &Shared<[Vector<E, N>]>,
    #[comptime] shape: TileShape,
) {
    // They have read what the last product had there.
    sync_plane();
    let to = shared_address(&scratch[0..1]);
    #[unroll]
    for i in 0..comptime!(shape.width / 4) {
        let row = own_row() + comptime!((i % 2 * 8) as u32);
        let two = *factors.index(i);
        #[unroll]
        for c in 0..2usize {
            let column = UNIT_POS % 4 * 2u32 + comptime!((i / 2 * 8 + c) as u32);
            let number = f32::cast_from(two.extract(c));
            store_one(number, to + address(row, column, shape));
        }
    }
    sync_plane();
}

/// Writes factors of a thread's two rows into a tile whose rows are their columns, from `start` on.
#[cube]
pub(super) fn store_columns<E: Float, N: Size>(
    factors: &Sequence<Vector<E, Two>>,
    tile: &Shared<[Vector<E, N>]>,
    #[comptime] start: usize,
    #[comptime] columns: usize,
    #[comptime] shape: TileShape,
) {
    let to = shared_address(&tile[0..1]);
    #[unroll]
    for i in 0..comptime!(columns / 4) {
        let column = own_row() + comptime!((i % 2 * 8) as u32);
        let two = *factors.index(i);
        #[unroll]
        for c in 0..2usize {
            let row = UNIT_POS % 4 * 2u32 + comptime!((start + i / 2 * 8 + c) as u32);
            let number = f32::cast_from(two.extract(c));
            store_one(number, to + address(row, column, shape));
        }
    }
}

/// Offset of an element of a tile in bytes.
#[cube]
fn address(row: u32, column: u32, #[comptime] shape: TileShape) -> u32 {
    place(row, column / 4u32, shape) * 16u32 + column % 4u32 * 4u32
}

/// Adds to `sums` the product of rows of a tile, and another tile of as many rows as the first has columns.
#[cube]
pub(super) fn accumulate<E: Float, N: Size>(
    factors: &Shared<[Vector<E, N>]>,
    tiles: &Shared<[Vector<E, N>]>,
    at: u32,
    sums: &mut Array<Vector<f32, Two>>,
    #[comptime] left: TileShape,
    #[comptime] shape: TileShape,
) {
    let (pitch, apart) = comptime!((left.pitch() as u32, shape.pitch() as u32));
    let (first_row, lane) = (own_row() * pitch, UNIT_POS % 4);
    for k in 0..comptime!(left.in_row() as u32) {
        let first = factors[(first_row + k) as usize];
        let second = factors[(first_row + comptime!(8 * pitch) + k) as usize];
        #[unroll]
        for i in 0..4usize {
            let (a, b) = (f32::cast_from(first.extract(i)), f32::cast_from(second.extract(i)));
            let other_row = at + (k * 4u32 + comptime!(i as u32)) * apart + lane;
            #[unroll]
            for m in 0..comptime!(shape.width / 16) {
                let other = tiles[(other_row + comptime!((4 * m) as u32)) as usize];
                #[unroll]
                for c in 0..2usize {
                    let even = f32::cast_from(other.extract(comptime!(2 * c)));
                    let odd = f32::cast_from(other.extract(comptime!(2 * c + 1)));
                    #[unroll]
                    for half in 0..2usize {
                        let own = if comptime!(half == 0) { a } else { b };
                        let before = sums[comptime!(4 * m + 2 * c + half)];
                        let mut after = Vector::<f32, Two>::zeroed();
                        after.insert(0usize, fma(own, even, before.extract(0usize)));
                        after.insert(1usize, fma(own, odd, before.extract(1usize)));
                        sums[comptime!(4 * m + 2 * c + half)] = after;
                    }
                }
            }
        }
    }
}
