//! Tiles of matrices in shared memory, and fragments of them in registers.
//!
//! A tile is rows of vectors of 8 elements (16 bytes), with one vector between two rows, so that the eight rows that one
//! `ldmatrix` reads at a time lie in different banks. Products are `mma.sync` of 16 x 8 x 16. Which elements a lane holds is that
//! of PTX: lane `4 g + t` has of an accumulator the columns `2 t` and `2 t + 1` of row `g`, then of row `g + 8`.

use cubecl::cmma::{MatrixIdent, MmaDefinition};
use cubecl::prelude::*;

/// Threads of a warp; warps of a block, and its threads.
pub(crate) const PLANE: usize = 32;
pub(crate) const PLANES: usize = 4;
pub(crate) const UNITS: usize = PLANES * PLANE;
/// Elements of a vector.
pub(crate) const VECTOR: usize = 8;
/// Rows that a warp computes at a time.
pub(crate) const ROWS: usize = 16;

/// Two elements that lie side by side.
pub(crate) type Two = Const<2>;

/// Vectors from one row of a tile of that width to the next.
pub(crate) const fn pitch(width: usize) -> usize {
    width / VECTOR + 1
}

/// Vectors that each thread copies of a tile.
pub(crate) const fn vectors_each(rows: usize, width: usize) -> usize {
    (rows * width / VECTOR).div_ceil(UNITS)
}

/// A new tile.
#[cube]
pub(crate) fn new_tile<E: Float, N: Size>(
    #[comptime] rows: usize,
    #[comptime] width: usize,
) -> Shared<[Vector<E, N>]> {
    Shared::<[Vector<E, N>]>::new_aligned_slice(comptime!(rows * pitch(width)), 16usize)
}

/// Stores loaded elements in a tile.
#[cube]
pub(crate) fn store_tile<E: Float, N: Size>(
    fetched: &Array<Vector<E, N>>,
    tile: &mut Shared<[Vector<E, N>]>,
    #[comptime] rows: usize,
    #[comptime] width: usize,
) {
    let vectors = comptime!((width / VECTOR) as u32);
    let all = comptime!((rows * width / VECTOR) as u32);
    let each = comptime!(vectors_each(rows, width));
    #[unroll]
    for i in 0..each {
        let at = UNIT_POS + comptime!((i * UNITS) as u32);
        if comptime!((i + 1) * UNITS <= rows * width / VECTOR) || at < all {
            let place = at / vectors * comptime!(pitch(width) as u32) + at % vectors;
            tile[place as usize] = fetched[i];
        }
    }
}

/// The left factor of a product: 16 rows of a tile from `row` on, and 16 columns. The tile begins at the vector `start`.
#[cube]
pub(crate) fn left<E: Float, N: Size>(
    tile: &Shared<[Vector<E, N>]>,
    start: u32,
    row: u32,
    #[comptime] column: usize,
    #[comptime] width: usize,
) -> Array<Vector<E, Two>> {
    let lane = UNIT_POS % 32;
    let at =
        (row + lane % 16) * comptime!(pitch(width) as u32) + lane / 16 + comptime!((column / VECTOR) as u32);
    let at = (start + at) as usize;
    let definition = MmaDefinition::<E, E, f32>::new(16usize, 8usize, 16usize);
    definition.load_matrix::<Vector<E, N>, Two>(&tile[at..at + 1], MatrixIdent::A, 4usize, false)
}

/// As above, for a tile that holds the columns of the factor as rows of extent `width`: 16 columns from `column` on.
#[cube]
pub(crate) fn left_by_columns<E: Float, N: Size>(
    tile: &Shared<[Vector<E, N>]>,
    start: u32,
    row: u32,
    #[comptime] column: usize,
    #[comptime] width: usize,
) -> Array<Vector<E, Two>> {
    let lane = UNIT_POS % 32;
    let at = (lane % 8 + lane / 16 * 8 + comptime!(column as u32)) * comptime!(pitch(width) as u32)
        + lane / 8 % 2
        + row / comptime!(VECTOR as u32);
    let at = (start + at) as usize;
    let definition = MmaDefinition::<E, E, f32>::new(16usize, 8usize, 16usize);
    definition.load_matrix::<Vector<E, N>, Two>(&tile[at..at + 1], MatrixIdent::A, 4usize, true)
}

/// Two right factors whose columns are rows of `tile`: 16 rows of the tile from `row` on, and 16 of its columns.
#[cube]
pub(crate) fn right_by_rows<E: Float, N: Size>(
    tile: &Shared<[Vector<E, N>]>,
    start: u32,
    #[comptime] row: usize,
    #[comptime] column: usize,
    #[comptime] width: usize,
) -> Array<Vector<E, Two>> {
    let lane = UNIT_POS % 32;
    let at = (lane % 8 + lane / 16 * 8 + comptime!(row as u32)) * comptime!(pitch(width) as u32)
        + lane / 8 % 2
        + comptime!((column / VECTOR) as u32);
    let at = (start + at) as usize;
    let definition = MmaDefinition::<E, E, f32>::new(16usize, 8usize, 16usize);
    definition.load_matrix::<Vector<E, N>, Two>(&tile[at..at + 1], MatrixIdent::B, 4usize, false)
}

/// Two right factors as they lie in `tile`: 16 rows from `row` on, and 16 columns.
#[cube]
pub(crate) fn right<E: Float, N: Size>(
    tile: &Shared<[Vector<E, N>]>,
    start: u32,
    #[comptime] row: usize,
    #[comptime] column: usize,
    #[comptime] width: usize,
) -> Array<Vector<E, Two>> {
    let lane = UNIT_POS % 32;
    let at = (lane % 16 + comptime!(row as u32)) * comptime!(pitch(width) as u32)
        + lane / 16
        + comptime!((column / VECTOR) as u32);
    let at = (start + at) as usize;
    let definition = MmaDefinition::<E, E, f32>::new(16usize, 8usize, 16usize);
    definition.load_matrix::<Vector<E, N>, Two>(&tile[at..at + 1], MatrixIdent::B, 4usize, true)
}

/// Adds the product of a left factor and two right ones to the accumulators of the columns `8 n..8 n + 16`.
#[cube]
pub(crate) fn multiply<E: Float>(
    left: &Array<Vector<E, Two>>,
    two: &Array<Vector<E, Two>>,
    sums: &mut Array<Vector<f32, Two>>,
    #[comptime] n: usize,
) {
    let definition = MmaDefinition::<E, E, f32>::new(16usize, 8usize, 16usize);
    #[unroll]
    for i in 0..2usize {
        let mut factor = Array::<Vector<E, Two>>::new(2usize);
        factor[0] = two[2 * i];
        factor[1] = two[2 * i + 1];
        let mut sum = Array::<Vector<f32, Two>>::new(2usize);
        sum[0] = sums[2 * (n + i)];
        sum[1] = sums[2 * (n + i) + 1];
        definition.execute_inplace(left, &factor, &mut sum);
        sums[2 * (n + i)] = sum[0];
        sums[2 * (n + i) + 1] = sum[1];
    }
}

/// The sum or the greatest of the four lanes that have a row in common.
#[cube]
pub(crate) fn row_sum(x: f32) -> f32 {
    let x = x + plane_shuffle_xor(x, 1u32);
    x + plane_shuffle_xor(x, 2u32)
}

/// See [`row_sum`].
#[cube]
pub(crate) fn row_max(x: f32) -> f32 {
    let x = max(x, plane_shuffle_xor(x, 1u32));
    max(x, plane_shuffle_xor(x, 2u32))
}
