//! Convolutions as products of matrices in registers: each thread has eight rows and eight columns of the result.

use super::cells::{
    CELL, CellShape, TABLE, fetch_cells, fill_cells, fill_parts_of_steps, new_parts_of_steps, parts_of_rows,
};
use super::kernel::{ConvolveSpace, CubeBlock, block_of_cube, write};
use crate::kernel::tile::UNITS;
use cubecl::prelude::*;

/// Rows and columns of a thread: two vectors of each, half a tile apart, so that adjacent threads read adjacent
/// vectors.
const OWN: usize = 2 * CELL;
/// Steps that are written out.
const UNROLLED: usize = 4;

/// The compile-time parameters of a kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct RegistersShape {
    pub(super) windowed: CellShape,
    /// Its rows are columns of the result.
    pub(super) other: CellShape,
    /// Elements of the result that are written at once.
    pub(super) width: usize,
}

impl RegistersShape {
    /// Threads of a part. Each part of a block has the whole tile of the result, and its share of the steps.
    fn units(&self) -> usize {
        self.windowed.rows * self.other.rows / (OWN * OWN)
    }

    fn parts(&self) -> usize {
        UNITS / self.units()
    }

    /// Vectors of the shared memory that has two tiles of windows, and in the end sums of a part.
    fn vectors(&self) -> usize {
        let sums = if self.parts() > 1 { self.units() * OWN * 2 } else { 0 };
        (2 * self.windowed.len()).max(sums)
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn convolve_in_registers<
    T: Float,
    U: Float,
    O: Float,
    S: Float,
    A: Size,
    B: Size,
    N: Size,
    M: Size,
>(
    windowed: &Tensor<Vector<T, A>>,
    other: &Tensor<Vector<U, B>>,
    out: &mut Tensor<Vector<O, M>>,
    space: ConvolveSpace,
    #[comptime] shape: RegistersShape,
    #[comptime] bytes: usize,
    #[define(T)] _windowed_type: ElemType,
    #[define(U)] _other_type: ElemType,
    #[define(O)] _result_type: ElemType,
    #[define(S)] _sum_type: ElemType,
) {
    let (left, right) = comptime!((shape.windowed.clone(), shape.other.clone()));
    let block = block_of_cube(&space, comptime!([left.rows, right.rows]));
    let end = block.other.end;
    let mut left_tile = Shared::<[Vector<S, N>]>::new_aligned_slice(comptime!(shape.vectors()), bytes);
    let mut right_tile = Shared::<[Vector<S, N>]>::new_aligned_slice(comptime!(2 * right.len()), bytes);
    let mut left_steps = new_parts_of_steps(comptime!(left.clone()));
    let mut right_steps = new_parts_of_steps(comptime!(right.clone()));
    let left_rows = parts_of_rows(&space.windowed, &block.windowed, comptime!(left.clone()));
    let right_rows = parts_of_rows(&space.other, &block.other, comptime!(right.clone()));
    let mut sums = Array::<Vector<S, N>>::new(comptime!(OWN * 2));
    #[unroll]
    for i in 0..comptime!(OWN * 2) {
        sums[i] = Vector::<S, N>::new(S::from_int(0));
    }
    // Tiles of the next steps are loaded while these are multiplied, and then stored next to them.
    let steps = comptime!(left.steps as u32);
    let mut from = block.from;
    let mut side = 0usize;
    while from < end + steps {
        let in_table = (from - block.from) % comptime!(TABLE as u32);
        if in_table == 0u32 {
            let until = (from, end);
            fill_parts_of_steps(&mut left_steps, &space.windowed, until, comptime!(left.clone()));
            fill_parts_of_steps(&mut right_steps, &space.other, until, comptime!(right.clone()));
            sync_cube();
        }
        let at = (from, in_table, end);
        let left_cells = fetch_cells::<T, A, S, N>(
            windowed,
            &space.windowed,
            &left_rows,
            &left_steps,
            at,
            comptime!(left.clone()),
        );
        let right_cells = fetch_cells::<U, B, S, N>(
            other,
            &space.other,
            &right_rows,
            &right_steps,
            at,
            comptime!(right.clone()),
        );
        if from > block.from {
            multiply_cells(&left_tile, &right_tile, &mut sums, 1usize - side, comptime!(shape.clone()));
        }
        fill_cells(&left_cells, &mut left_tile, side * comptime!(left.len()), comptime!(left.clone()));
        fill_cells(&right_cells, &mut right_tile, side * comptime!(right.len()), comptime!(right.clone()));
        sync_cube();
        from += steps;
        side = 1usize - side;
    }
    add_parts(&mut sums, &mut left_tile, comptime!(shape.clone()));
    write_sums::<S, N, O, M>(out, &sums, &space, &block, shape);
}

/// Writes a thread's sum, if it has the sums of all that share its rows and columns.
#[cube]
fn write_sums<S: Float, N: Size, O: Float, M: Size>(
    out: &mut Tensor<Vector<O, M>>,
    sums: &Array<Vector<S, N>>,
    space: &ConvolveSpace,
    block: &CubeBlock,
    #[comptime] shape: RegistersShape,
) {
    let (left, right) = comptime!((shape.windowed.clone(), shape.other.clone()));
    let own = own_block(comptime!(shape.clone()));
    if own.part == 0u32 {
        #[unroll]
        for i in 0..comptime!(OWN * 2) {
            let (row, half) = comptime!((i / 2, i % 2));
            let vector = own.row + comptime!((row / CELL * left.vectors() / 2) as u32);
            let row = vector * comptime!(left.beside as u32) + comptime!(left.row(row % CELL) as u32);
            let column = own.column * comptime!(CELL as u32) + comptime!((half * (right.rows / 2)) as u32);
            write::<S, N, O, M>(out, sums[i], space, block, row, column, CELL, comptime!(shape.width));
        }
    }
}

/// A thread's part: of the steps, and its first vectors of rows and of columns.
#[derive(CubeType, Clone, Copy)]
struct OwnBlock {
    part: u32,
    row: u32,
    column: u32,
}

#[cube]
fn own_block(#[comptime] shape: RegistersShape) -> OwnBlock {
    let units = comptime!(shape.units() as u32);
    let across = comptime!((shape.other.rows / OWN) as u32);
    let within = UNIT_POS % units;
    OwnBlock { part: UNIT_POS / units, row: within / across, column: within % across }
}

/// Adds the products of the tiles of a side.
#[cube]
fn multiply_cells<S: Float, N: Size>(
    left_tile: &Shared<[Vector<S, N>]>,
    right_tile: &Shared<[Vector<S, N>]>,
    sums: &mut Array<Vector<S, N>>,
    side: usize,
    #[comptime] shape: RegistersShape,
) {
    let (left, right) = comptime!((shape.windowed.clone(), shape.other.clone()));
    let (lefts, rights) = comptime!((left.vectors(), right.vectors()));
    let steps = comptime!(left.steps / shape.parts());
    let unrolled = comptime!(UNROLLED.min(steps));
    let own = own_block(comptime!(shape.clone()));
    let first = own.part as usize * steps;
    let mut row = side * comptime!(left.len()) + first * lefts + own.row as usize;
    let mut column = side * comptime!(right.len()) + first * rights + own.column as usize;
    for _ in 0..comptime!((steps / unrolled) as u32) {
        #[unroll]
        for step in 0..unrolled {
            let columns = (
                right_tile[column + comptime!(step * rights)],
                right_tile[column + comptime!(step * rights + rights / 2)],
            );
            #[unroll]
            for half in 0..2usize {
                let rows = left_tile[row + comptime!(step * lefts + half * lefts / 2)];
                #[unroll]
                for i in 0..CELL {
                    let x = Vector::<S, N>::new(rows.extract(i));
                    let at = comptime!(2 * (half * CELL + i));
                    sums[at] = fma(x, columns.0, sums[at]);
                    sums[comptime!(at + 1)] = fma(x, columns.1, sums[comptime!(at + 1)]);
                }
            }
        }
        row += comptime!(unrolled * lefts);
        column += comptime!(unrolled * rights);
    }
}

/// Adds the sums of all parts to those of the first, one after the other.
#[cube]
fn add_parts<S: Float, N: Size>(
    sums: &mut Array<Vector<S, N>>,
    shared: &mut Shared<[Vector<S, N>]>,
    #[comptime] shape: RegistersShape,
) {
    let units = comptime!(shape.units());
    let at = UNIT_POS as usize % units;
    #[unroll]
    for part in 1..comptime!(shape.parts()) {
        if UNIT_POS / comptime!(units as u32) == comptime!(part as u32) {
            #[unroll]
            for i in 0..comptime!(OWN * 2) {
                shared[at + comptime!(i * units)] = sums[i];
            }
        }
        sync_cube();
        if UNIT_POS < comptime!(units as u32) {
            #[unroll]
            for i in 0..comptime!(OWN * 2) {
                sums[i] += shared[at + comptime!(i * units)];
            }
        }
        sync_cube();
    }
}
