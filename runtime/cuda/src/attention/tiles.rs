//! Matmuls of tiles of queries, keys and their operands in shared memory. Those of `f32` are in `exact` and `rounded`.

use super::layout::{Multiply, TileShape, place, scratch_tile};
use super::{exact, rounded};
use crate::kernel::program::tf32;
use crate::kernel::ptx::{
    Left, WarpgroupMatmul, arrived, begin_product, shared_address, store_matrices, store_two,
};
use crate::kernel::tile::{self, ROWS, Two, VECTOR, multiply};
use cubecl::prelude::*;

/// The descriptor of the tile that begins at that vector.
#[cube]
fn descriptor<E: Float, N: Size>(
    tiles: &Shared<[Vector<E, N>]>,
    at: u32,
    #[comptime] shape: TileShape,
) -> u64 {
    let at = at as usize;
    u64::cast_from(shared_address(&tiles[at..at + 1]) / 16u32) | comptime!(shape.described())
}

/// Registers of accumulators, one by one.
#[cube]
fn singly(sums: &mut Array<Vector<f32, Two>>, #[comptime] many: usize) -> Sequence<f32> {
    let mut all = Sequence::<f32>::new();
    #[unroll]
    for i in 0..many {
        all.push(sums[i].extract(0usize));
        all.push(sums[i].extract(1usize));
    }
    all
}

/// Puts them back.
#[cube]
fn put_back(all: &Sequence<f32>, sums: &mut Array<Vector<f32, Two>>, #[comptime] many: usize) {
    #[unroll]
    for i in 0..many {
        let mut two = Vector::<f32, Two>::zeroed();
        two.insert(0usize, *all.index(comptime!(2 * i)));
        two.insert(1usize, *all.index(comptime!(2 * i + 1)));
        sums[i] = two;
    }
}

/// Waits until the sums of products that warps compute together are there: of all but the `later` last that were begun.
#[cube]
pub(super) fn finish(
    sums: &mut Array<Vector<f32, Two>>,
    #[comptime] columns: usize,
    #[comptime] later: usize,
    #[comptime] grouped: bool,
) {
    if comptime!(grouped) {
        let many = comptime!(columns / 4);
        let all = arrived(singly(sums, many), later);
        put_back(&all, sums, many);
    }
}

/// Starts the matmul of rows of a tile, 16 for a warp, and rows of another, which are its columns, from `from` on. See
/// [`finish`].
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
    if comptime!(left.by.is_grouped()) {
        let product = comptime!(WarpgroupMatmul {
            columns,
            left: Left::Shared { at: left.steps_over_columns(), by_columns: false },
            right_at: right.steps_over_columns(),
            right_by_rows: false,
            adds: false,
        });
        let others_at = others_at + comptime!((from * right.block() / VECTOR) as u32);
        let (a, b) = (descriptor(rows, rows_at, left), descriptor(others, others_at, right));
        let none = Sequence::<Vector<E, Two>>::new();
        let all = begin_product::<E>(Sequence::<f32>::new(), none, a, b, product);
        put_back(&all, sums, comptime!(columns / 4));
    } else if comptime!(left.by.is_exact()) {
        exact::products::<E, N>(rows, rows_at, others, others_at, sums, left, right, from, columns);
    } else if comptime!(left.by.is_rounded()) {
        rounded::products::<E, N>(rows, rows_at, others, others_at, sums, left, right, from, columns);
    } else {
        let width = comptime!(left.width);
        let plane_row = UNIT_POS / 32 * comptime!(ROWS as u32);
        #[unroll]
        for k in 0..comptime!(width / 16) {
            let factor = tile::left::<E, N>(rows, rows_at, plane_row, comptime!(16 * k), width);
            #[unroll]
            for n in 0..comptime!(columns / 16) {
                let row = comptime!(from + 16 * n);
                let two = tile::right_by_rows::<E, N>(others, others_at, row, comptime!(16 * k), width);
                multiply::<E>(&factor, &two, sums, comptime!(2 * n));
            }
        }
    }
}

/// Writes factors of a thread's two rows into a tile for [`accumulate_columns`], from a column on, in the columns of these
/// accumulators.
#[cube]
pub(super) fn store<E: Float, N: Size>(
    factors: &Sequence<Vector<E, Two>>,
    tile: &Shared<[Vector<E, N>]>,
    #[comptime] start: usize,
    #[comptime] columns: usize,
    #[comptime] shape: TileShape,
) {
    if comptime!(shape.by.is_exact()) {
        exact::store_columns::<E, N>(factors, tile, start, columns, shape);
    } else if comptime!(shape.by.is_rounded()) {
        rounded::store::<E, N>(factors, tile, start, columns, shape);
    } else {
        store_halves::<E, N>(factors, tile, start, columns, shape);
    }
}

#[cube]
fn store_halves<E: Float, N: Size>(
    halves: &Sequence<Vector<E, Two>>,
    tile: &Shared<[Vector<E, N>]>,
    #[comptime] start: usize,
    #[comptime] columns: usize,
    #[comptime] shape: TileShape,
) {
    let to = shared_address(&tile[0..1]);
    let (plane_row, lane) = (UNIT_POS / 32 * comptime!(ROWS as u32), UNIT_POS % 32);
    #[unroll]
    for pair in 0..comptime!(columns / 16) {
        let first = comptime!((start / VECTOR + 2 * pair) as u32);
        if comptime!(shape.by.is_grouped()) {
            let at = place(plane_row + lane % 16, first + lane / 16, shape);
            let mut four = Sequence::<Vector<E, Two>>::new();
            #[unroll]
            for i in 0..4usize {
                four.push(*halves.index(comptime!(4 * pair + i)));
            }
            store_matrices(four, to + at * 16u32);
        } else {
            #[unroll]
            for i in 0..4usize {
                let row = plane_row + lane / 4 + comptime!((i % 2 * 8) as u32);
                let at = place(row, first + comptime!((i / 2) as u32), shape) * 16u32 + lane % 4 * 4u32;
                store_two(*halves.index(comptime!(4 * pair + i)), to + at);
            }
        }
    }
}

/// Two numbers of each register of accumulators as left factors of a next product: rounded, if their products are of such.
#[cube]
pub(super) fn factors<E: Float>(
    sums: &Array<Vector<f32, Two>>,
    #[comptime] columns: usize,
    #[comptime] by: Multiply,
) -> Sequence<Vector<E, Two>> {
    let mut all = Sequence::<Vector<E, Two>>::new();
    #[unroll]
    for i in 0..comptime!(columns / 4) {
        if comptime!(by.is_rounded()) {
            let mut two = Vector::<f32, Two>::zeroed();
            two.insert(0usize, tf32(sums[i].extract(0usize)));
            two.insert(1usize, tf32(sums[i].extract(1usize)));
            all.push(Vector::<E, Two>::cast_from(two));
        } else {
            all.push(Vector::<E, Two>::cast_from(sums[i]));
        }
    }
    all
}

/// Begins to add to `sums` the product of `factors`, which are accumulators of as many columns as the tile has rows, and the
/// tile. Threads that multiply alone exchange factors by `scratch`; see [`scratch_tile`].
#[cube]
pub(super) fn accumulate<E: Float, N: Size>(
    factors: &Sequence<Vector<E, Two>>,
    scratch: &Shared<[Vector<E, N>]>,
    tiles: &Shared<[Vector<E, N>]>,
    at: u32,
    sums: &mut Array<Vector<f32, Two>>,
    #[comptime] shape: TileShape,
) {
    if comptime!(shape.by.is_grouped()) {
        let product = comptime!(WarpgroupMatmul {
            columns: shape.width,
            left: Left::Registers,
            right_at: shape.steps_over_rows(),
            right_by_rows: true,
            adds: true,
        });
        let many = comptime!(shape.width / 4);
        let right = descriptor(tiles, at, shape);
        let all = begin_product::<E>(singly(sums, many), factors.clone(), 0u64, right, product);
        put_back(&all, sums, many);
    } else if comptime!(shape.by.is_exact()) {
        let left = comptime!(scratch_tile(shape.rows, shape.by));
        exact::exchange::<E, N>(factors, scratch, left);
        exact::accumulate::<E, N>(scratch, tiles, at, sums, left, shape);
    } else if comptime!(shape.by.is_rounded()) {
        rounded::accumulate::<E, N>(factors, tiles, at, sums, shape);
    } else {
        #[unroll]
        for k in 0..comptime!(shape.rows / 16) {
            let mut factor = Array::<Vector<E, Two>>::new(4usize);
            #[unroll]
            for i in 0..4usize {
                factor[i] = *factors.index(comptime!(4 * k + i));
            }
            #[unroll]
            for n in 0..comptime!(shape.width / 16) {
                let two = tile::right::<E, N>(
                    tiles,
                    at,
                    comptime!(16 * k),
                    comptime!(16 * n),
                    comptime!(shape.width),
                );
                multiply::<E>(&factor, &two, sums, comptime!(2 * n));
            }
        }
    }
}

/// Begins to add to `sums` the product of a tile whose columns are the rows, 16 for a warp, and another tile of as many rows.
#[cube]
pub(super) fn accumulate_columns<E: Float, N: Size>(
    columns: &Shared<[Vector<E, N>]>,
    tiles: &Shared<[Vector<E, N>]>,
    at: u32,
    sums: &mut Array<Vector<f32, Two>>,
    #[comptime] left: TileShape,
    #[comptime] shape: TileShape,
) {
    if comptime!(shape.by.is_grouped()) {
        let product = comptime!(WarpgroupMatmul {
            columns: shape.width,
            left: Left::Shared { at: left.steps_over_rows(), by_columns: true },
            right_at: shape.steps_over_rows(),
            right_by_rows: true,
            adds: true,
        });
        let many = comptime!(shape.width / 4);
        let (a, b) = (descriptor(columns, 0u32, left), descriptor(tiles, at, shape));
        let none = Sequence::<Vector<E, Two>>::new();
        let all = begin_product::<E>(singly(sums, many), none, a, b, product);
        put_back(&all, sums, many);
    } else if comptime!(shape.by.is_exact()) {
        exact::accumulate::<E, N>(columns, tiles, at, sums, left, shape);
    } else if comptime!(shape.by.is_rounded()) {
        rounded::accumulate_columns::<E, N>(columns, tiles, at, sums, left, shape);
    } else {
        let plane_row = UNIT_POS / 32 * comptime!(ROWS as u32);
        #[unroll]
        for k in 0..comptime!(shape.rows / 16) {
            let factor = tile::left_by_columns::<E, N>(
                columns,
                0u32,
                plane_row,
                comptime!(16 * k),
                comptime!(left.width),
            );
            #[unroll]
            for n in 0..comptime!(shape.width / 16) {
                let two = tile::right::<E, N>(
                    tiles,
                    at,
                    comptime!(16 * k),
                    comptime!(16 * n),
                    comptime!(shape.width),
                );
                multiply::<E>(&factor, &two, sums, comptime!(2 * n));
            }
        }
    }
}
