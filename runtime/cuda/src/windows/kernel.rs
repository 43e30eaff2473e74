//! Convolutions as matmuls, one factor of which is never in memory: its tiles are gathered from the elements under the
//! windows. Here on tensor cores.

use super::gather::{FactorBlock, FactorShape, FactorSpace, fetch, fill_tile, new_tile};
use crate::kernel::space::{DimWalk, place, positions};
use crate::kernel::tile::{self, PLANES, ROWS, Two, multiply};
use cubecl::prelude::*;

/// The compile-time parameters of a kernel for tensor cores.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ConvolveShape {
    pub(super) windowed: FactorShape,
    /// Its rows are columns of the result.
    pub(super) other: FactorShape,
    /// Elements of the result that are written at once.
    pub(super) width: usize,
}

/// The two factors, and strides of the result along the dims of each, and along those of the groups, each of which is a
/// matmul of its own.
#[derive(CubeType, CubeLaunch)]
pub(super) struct ConvolveSpace {
    pub(super) windowed: FactorSpace,
    pub(super) other: FactorSpace,
    groups: DimWalk,
    out_by_row: Sequence<usize>,
    out_by_column: Sequence<usize>,
    out_by_group: Sequence<usize>,
    row_tiles: u32,
    column_tiles: u32,
    /// Steps of a chunk, and how far its result is from that of the one before.
    each: u32,
    apart: usize,
}

/// A block's part of the result: its offsets in factors and result.
#[derive(CubeType)]
pub(super) struct CubeBlock {
    pub(super) windowed: FactorBlock,
    pub(super) other: FactorBlock,
    pub(super) from: u32,
    out: usize,
}

#[cube]
pub(super) fn block_of_cube(space: &ConvolveSpace, #[comptime] tile: [usize; 2]) -> CubeBlock {
    let column_tile = CUBE_POS_X % space.column_tiles;
    let rest = CUBE_POS_X / space.column_tiles;
    let row_tile = rest % space.row_tiles;
    let rest = rest / space.row_tiles;
    let group = positions(&space.groups, rest % space.groups.len);
    let chunk = rest / space.groups.len;
    let (row, column) = (row_tile * comptime!(tile[0] as u32), column_tile * comptime!(tile[1] as u32));
    let end = min(chunk * space.each + space.each, space.windowed.steps.len);
    CubeBlock {
        windowed: FactorBlock::new(&space.windowed, &group, row, end),
        other: FactorBlock::new(&space.other, &group, column, end),
        from: chunk * space.each,
        out: place(&group, &space.out_by_group) + chunk as usize * space.apart,
    }
}

/// Writes elements of a row, from the column on that belongs to the first of them.
#[cube]
pub(super) fn write<S: Float, V: Size, O: Float, M: Size>(
    out: &mut Tensor<Vector<O, M>>,
    values: Vector<S, V>,
    space: &ConvolveSpace,
    block: &CubeBlock,
    row: u32,
    column: u32,
    #[comptime] many: usize,
    #[comptime] width: usize,
) {
    let (row, column) = (block.windowed.row + row, block.other.row + column);
    if row < space.windowed.rows.len {
        let at = block.out + place(&positions(&space.windowed.rows, row), &space.out_by_row);
        #[unroll]
        for piece in 0..comptime!(many / width) {
            let column = column + comptime!((piece * width) as u32);
            if column < space.other.rows.len {
                let at = at + place(&positions(&space.other.rows, column), &space.out_by_column);
                let mut vector = Vector::<O, M>::new(O::from_int(0));
                #[unroll]
                for lane in 0..width {
                    vector.insert(lane, O::cast_from(values.extract(comptime!(piece * width + lane))));
                }
                out[at / width] = vector;
            }
        }
    }
}

/// On tensor cores: each warp has some rows and all columns.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn convolve_on_tensor_cores<E: Float, O: Float, A: Size, B: Size, N: Size, M: Size>(
    windowed: &Tensor<Vector<E, A>>,
    other: &Tensor<Vector<E, B>>,
    out: &mut Tensor<Vector<O, M>>,
    space: ConvolveSpace,
    #[comptime] shape: ConvolveShape,
    #[define(E)] _half: ElemType,
    #[define(O)] _result_type: ElemType,
) {
    let block = block_of_cube(&space, comptime!([shape.windowed.rows, shape.other.rows]));
    let mut left_tile = new_tile::<E, N>(comptime!(shape.windowed.clone()), 16usize);
    let mut right_tile = new_tile::<E, N>(comptime!(shape.other.clone()), 16usize);
    let (rows, columns) = comptime!((shape.windowed.rows / PLANES, shape.other.rows));
    let plane_row = UNIT_POS / 32 * comptime!(rows as u32);
    // The accumulators of all columns, for each 16 rows.
    let mut sums = Sequence::<Array<Vector<f32, Two>>>::new();
    #[unroll]
    for _ in 0..comptime!(rows / ROWS) {
        let mut zeros = Array::<Vector<f32, Two>>::new(comptime!(columns / 4));
        #[unroll]
        for i in 0..comptime!(columns / 4) {
            zeros[i] = Vector::<f32, Two>::new(0.0f32);
        }
        sums.push(zeros);
    }
    // Tiles of the next steps are loaded while these are multiplied.
    let steps = comptime!(shape.windowed.steps as u32);
    let mut from = block.from;
    while from < block.other.end + steps {
        let left = fetch::<E, A, E, N>(
            windowed,
            &space.windowed,
            &block.windowed,
            from,
            comptime!(shape.windowed.clone()),
        );
        let right =
            fetch::<E, B, E, N>(other, &space.other, &block.other, from, comptime!(shape.other.clone()));
        if from > block.from {
            multiply_tiles::<E, N>(&left_tile, &right_tile, &mut sums, plane_row, comptime!(shape.clone()));
        }
        sync_cube();
        fill_tile(&left, &mut left_tile, comptime!(shape.windowed.clone()));
        fill_tile(&right, &mut right_tile, comptime!(shape.other.clone()));
        sync_cube();
        from += steps;
    }
    #[unroll]
    for r in 0..comptime!(rows / ROWS) {
        #[unroll]
        for half in 0..2usize {
            let row = plane_row + UNIT_POS % 32 / 4 + comptime!((r * ROWS + 8 * half) as u32);
            #[unroll]
            for n in 0..comptime!(columns / 8) {
                let column = UNIT_POS % 4 * 2 + comptime!((8 * n) as u32);
                let values = sums.index(r)[comptime!(2 * n + half)];
                write::<f32, Two, O, M>(
                    out,
                    values,
                    &space,
                    &block,
                    row,
                    column,
                    2usize,
                    comptime!(shape.width),
                );
            }
        }
    }
}

/// Adds the products of the tiles.
#[cube]
fn multiply_tiles<E: Float, N: Size>(
    left_tile: &Shared<[Vector<E, N>]>,
    right_tile: &Shared<[Vector<E, N>]>,
    sums: &mut Sequence<Array<Vector<f32, Two>>>,
    plane_row: u32,
    #[comptime] shape: ConvolveShape,
) {
    let (left, right) = comptime!((shape.windowed.clone(), shape.other.clone()));
    #[unroll]
    for k in 0..comptime!(left.steps / 16) {
        let mut factors = Sequence::<Array<Vector<E, Two>>>::new();
        #[unroll]
        for r in 0..comptime!(left.rows / PLANES / ROWS) {
            let row = plane_row + comptime!((r * ROWS) as u32);
            let factor = if comptime!(left.along_steps) {
                tile::left::<E, N>(left_tile, 0u32, row, comptime!(16 * k), comptime!(left.steps))
            } else {
                tile::left_by_columns::<E, N>(left_tile, 0u32, row, comptime!(16 * k), comptime!(left.rows))
            };
            factors.push(factor);
        }
        #[unroll]
        for n in 0..comptime!(right.rows / 16) {
            let two = if comptime!(right.along_steps) {
                tile::right_by_rows::<E, N>(
                    right_tile,
                    0u32,
                    comptime!(16 * n),
                    comptime!(16 * k),
                    comptime!(right.steps),
                )
            } else {
                tile::right::<E, N>(
                    right_tile,
                    0u32,
                    comptime!(16 * k),
                    comptime!(16 * n),
                    comptime!(right.rows),
                )
            };
            #[unroll]
            for r in 0..comptime!(left.rows / PLANES / ROWS) {
                multiply::<E>(factors.index(r), &two, sums.index_mut(r), comptime!(2 * n));
            }
        }
    }
}
