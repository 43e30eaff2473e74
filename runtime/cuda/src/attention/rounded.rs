//! Matmuls of `f32` tiles in shared memory that hold numbers of TF32, by tensor cores (`mma.sync` of 16 x 8 x 8).
//!
//! A fragment's words are read one by one: `ldmatrix` transposes halves only. Lane `4 g + t` reads at row `g` and column `t`
//! where rows of a tile are rows of the left factor, or columns of the right one. A row takes four words more than its elements,
//! whose number 16 divides, so the 32 words lie in 32 banks. Where rows of a tile are what is summed, slot `t` of the factors is
//! row `2 t`, and slot `t + 4` row `2 t + 1`: the order of a sum's terms is free. So words of one read lie in 32 banks again,
//! and accumulators, which have columns `2 t` and `2 t + 1`, are left factors as they are: no thread needs those of another.
//! Words that are stored for the gradients of keys and values meet in banks by twos.

use super::layout::TileShape;
use crate::kernel::ptx::{load_word, multiply_tf32, shared_address, store_one};
use crate::kernel::tile::{ROWS, Two};
use cubecl::prelude::*;

/// The first of a thread's two rows.
#[cube]
fn own_row() -> u32 {
    UNIT_POS / 32 * comptime!(ROWS as u32) + UNIT_POS % 32 / 4
}

/// Bytes from one row of a tile to the next.
fn row_bytes(shape: TileShape) -> usize {
    16 * shape.pitch()
}

/// Adds to the accumulators of the columns `8 n..8 n + 8` the product of a left factor and the right one of two words.
#[cube]
fn add(
    left: &Sequence<u32>,
    first: u32,
    second: u32,
    sums: &mut Array<Vector<f32, Two>>,
    #[comptime] n: usize,
) {
    let mut factors = Sequence::<u32>::new();
    #[unroll]
    for i in 0..4usize {
        factors.push(*left.index(i));
    }
    factors.push(first);
    factors.push(second);
    let mut before = Sequence::<f32>::new();
    #[unroll]
    for i in 0..2usize {
        before.push(sums[comptime!(2 * n + i)].extract(0usize));
        before.push(sums[comptime!(2 * n + i)].extract(1usize));
    }
    let after = multiply_tf32(factors, before);
    #[unroll]
    for i in 0..2usize {
        let mut two = Vector::<f32, Two>::zeroed();
        two.insert(0usize, *after.index(comptime!(2 * i)));
        two.insert(1usize, *after.index(comptime!(2 * i + 1)));
        sums[comptime!(2 * n + i)] = two;
    }
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
    let (pitch, apart) = comptime!((row_bytes(left), row_bytes(right)));
    let (group, lane) = (UNIT_POS % 32 / 4, UNIT_POS % 4);
    let own =
        shared_address(&rows[0..1]) + rows_at * 16u32 + own_row() * comptime!(pitch as u32) + lane * 4u32;
    let other = shared_address(&others[0..1])
        + others_at * 16u32
        + (group + comptime!(from as u32)) * comptime!(apart as u32)
        + lane * 4u32;
    #[unroll]
    for k in 0..comptime!(left.width / 8) {
        let mut factor = Sequence::<u32>::new();
        #[unroll]
        for i in 0..4usize {
            factor.push(load_word(own, comptime!(32 * k + i % 2 * 8 * pitch + i / 2 * 16)));
        }
        #[unroll]
        for n in 0..comptime!(columns / 8) {
            let first = load_word(other, comptime!(8 * n * apart + 32 * k));
            let second = load_word(other, comptime!(8 * n * apart + 32 * k + 16));
            add(&factor, first, second, sums, n);
        }
    }
}

/// Adds to `sums` the product of a left factor and the rows `8 k..8 k + 8` of the tile that begins at `from`.
#[cube]
fn add_rows(
    factor: &Sequence<u32>,
    from: u32,
    sums: &mut Array<Vector<f32, Two>>,
    #[comptime] k: usize,
    #[comptime] shape: TileShape,
) {
    let apart = comptime!(row_bytes(shape));
    #[unroll]
    for m in 0..comptime!(shape.width / 8) {
        let first = load_word(from, comptime!(8 * k * apart + 32 * m));
        let second = load_word(from, comptime!((8 * k + 1) * apart + 32 * m));
        add(factor, first, second, sums, m);
    }
}

/// Where a thread begins to read a right factor whose rows are those of a tile.
#[cube]
fn right_of<E: Float, N: Size>(tiles: &Shared<[Vector<E, N>]>, at: u32, #[comptime] shape: TileShape) -> u32 {
    let (group, lane) = (UNIT_POS % 32 / 4, UNIT_POS % 4);
    shared_address(&tiles[0..1]) + at * 16u32 + lane * comptime!(2 * row_bytes(shape) as u32) + group * 4u32
}

/// Adds to `sums` the product of accumulators, of as many columns as the tile has rows, and the tile.
#[cube]
pub(super) fn accumulate<E: Float, N: Size>(
    factors: &Sequence<Vector<E, Two>>,
    tiles: &Shared<[Vector<E, N>]>,
    at: u32,
    sums: &mut Array<Vector<f32, Two>>,
    #[comptime] shape: TileShape,
) {
    let from = right_of::<E, N>(tiles, at, shape);
    #[unroll]
    for k in 0..comptime!(shape.rows / 8) {
        let mut factor = Sequence::<u32>::new();
        #[unroll]
        for i in 0..4usize {
            let two = *factors.index(comptime!(2 * k + i % 2));
            factor.push(u32::reinterpret(f32::cast_from(two.extract(comptime!(i / 2)))));
        }
        add_rows(&factor, from, sums, k, shape);
    }
}

/// Writes factors of a thread's two rows into a tile for [`accumulate_columns`], from the column `start` on.
#[cube]
pub(super) fn store<E: Float, N: Size>(
    factors: &Sequence<Vector<E, Two>>,
    tile: &Shared<[Vector<E, N>]>,
    #[comptime] start: usize,
    #[comptime] columns: usize,
    #[comptime] shape: TileShape,
) {
    let pitch = comptime!(row_bytes(shape));
    let to = shared_address(&tile[0..1]) + own_row() * comptime!(pitch as u32) + UNIT_POS % 4 * 8u32;
    #[unroll]
    for i in 0..comptime!(columns / 4) {
        let two = *factors.index(i);
        #[unroll]
        for c in 0..2usize {
            let at = comptime!((i % 2 * 8 * pitch + (start + i / 2 * 8 + c) * 4) as u32);
            store_one(f32::cast_from(two.extract(c)), to + at);
        }
    }
}

/// Adds to `sums` the product of a tile whose columns are the rows, 16 for a warp, and another tile of as many rows.
#[cube]
pub(super) fn accumulate_columns<E: Float, N: Size>(
    columns: &Shared<[Vector<E, N>]>,
    tiles: &Shared<[Vector<E, N>]>,
    at: u32,
    sums: &mut Array<Vector<f32, Two>>,
    #[comptime] left: TileShape,
    #[comptime] shape: TileShape,
) {
    let pitch = comptime!(row_bytes(left));
    let own = shared_address(&columns[0..1]) + UNIT_POS % 4 * comptime!(2 * pitch as u32) + own_row() * 4u32;
    let from = right_of::<E, N>(tiles, at, shape);
    #[unroll]
    for k in 0..comptime!(shape.rows / 8) {
        let mut factor = Sequence::<u32>::new();
        #[unroll]
        for i in 0..4usize {
            factor.push(load_word(own, comptime!((8 * k + i / 2) * pitch + i % 2 * 32)));
        }
        add_rows(&factor, from, sums, k, shape);
    }
}
