//! The kernel: a block computes a square tile of the matrix, and writes it by rows, by columns, or both. The transposed tile
//! passes through shared memory, so that the elements that a warp writes lie side by side either way.

use crate::kernel::drawn::Draw;
use crate::kernel::elements::{OperandSource, Operands, Pace, Singles, Tensors, element_at, load, position};
use crate::kernel::program::{ScalarProgram, evaluate};
use cubecl::prelude::*;
use cubecl::std::FastDivmod;
use meshwright_plan::{DType, Fp8};

/// Rows and columns of a tile: those of a row are one sector of 32 bytes.
pub(super) const TILE: usize = 32;
/// Rows of a tile that a block computes at once.
const AT_ONCE: usize = 8;
/// Threads of a block.
pub(super) const THREADS: usize = TILE * AT_ONCE;
/// Elements from one row of a tile in shared memory to the next: the elements of a column lie in different banks.
const PITCH: usize = TILE + 1;

/// The compile-time parameters.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct FactorShape {
    pub(super) program: ScalarProgram,
    /// Source and type of each operand.
    pub(super) operands: Vec<(OperandSource, DType)>,
    pub(super) pace: Pace,
    pub(super) format: Fp8,
    /// Whether the matrix is written by rows, and by columns.
    pub(super) plain: bool,
    pub(super) turned: bool,
}

/// Sizes of the dims, the global position of the first element along each if the value depends on positions, and the rows and
/// columns of the matrix.
#[derive(CubeType, CubeLaunch)]
pub(super) struct FactorSpace {
    sizes: Sequence<FastDivmod<usize>>,
    starts: Sequence<u32>,
    rows: u32,
    columns: u32,
}

#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn round_factor<E: Float, N: Size>(
    words: Sequence<OwnedTensor<f32>>,
    halves: Sequence<OwnedTensor<E>>,
    bytes: Sequence<OwnedTensor<u8>>,
    mut outs: Sequence<OwnedTensor<u8>>,
    space: FactorSpace,
    #[comptime] shape: FactorShape,
    #[define(E)] _half: ElemType,
) {
    let vectors = Tensors::<E, N> { words: Sequence::new(), halves: Sequence::new(), bytes: Sequence::new() };
    let singles = Singles::<E> { words, halves, bytes };
    let (draws, step) = (Sequence::<Draw>::new(), Sequence::<OwnedTensor<u32>>::new());
    let operands = Operands::<E, N> { vectors, singles, draws, step };
    let mut tile = Shared::<[u32]>::new_slice(comptime!(TILE * PITCH));
    let across = space.columns.div_ceil(comptime!(TILE as u32));
    let first_row = CUBE_POS_X / across * comptime!(TILE as u32);
    let first_column = CUBE_POS_X % across * comptime!(TILE as u32);
    let (x, y) = (UNIT_POS % comptime!(TILE as u32), UNIT_POS / comptime!(TILE as u32));
    #[unroll]
    for pass in 0..comptime!(TILE / AT_ONCE) {
        let down = y + comptime!((pass * AT_ONCE) as u32);
        let (row, column) = (first_row + down, first_column + x);
        if row < space.rows && column < space.columns {
            let place = row as usize * space.columns as usize + column as usize;
            let found =
                code(value(&operands, &space, place, comptime!(shape.clone())), comptime!(shape.format));
            if comptime!(shape.plain) {
                outs.index_mut(0usize)[place] = u8::cast_from(found);
            }
            if comptime!(shape.turned) {
                tile[(down * comptime!(PITCH as u32) + x) as usize] = found;
            }
        }
    }
    if comptime!(shape.turned) {
        sync_cube();
        let which = comptime!(if shape.plain { 1usize } else { 0usize });
        #[unroll]
        for pass in 0..comptime!(TILE / AT_ONCE) {
            let down = y + comptime!((pass * AT_ONCE) as u32);
            let (row, column) = (first_row + x, first_column + down);
            if row < space.rows && column < space.columns {
                let place = column as usize * space.rows as usize + row as usize;
                let found = tile[(x * comptime!(PITCH as u32) + down) as usize];
                outs.index_mut(which)[place] = u8::cast_from(found);
            }
        }
    }
}

/// The scaled and rounded value of an element, by its number in the order of the dims.
#[cube]
fn value<E: Float, N: Size>(
    operands: &Operands<E, N>,
    space: &FactorSpace,
    number: usize,
    #[comptime] shape: FactorShape,
) -> f32 {
    let pace = comptime!(shape.pace);
    let at = position(&space.sizes, 0usize, number, 0usize, pace);
    let none = Tensors::<E, N> { words: Sequence::new(), halves: Sequence::new(), bytes: Sequence::new() };
    let loaded = load(operands, &none, &at, comptime!(shape.operands.clone()), pace);
    let many = comptime!(shape.operands.len());
    let element = element_at(&loaded, &at, &space.starts, 0usize, many, pace);
    evaluate(&element, comptime!(shape.program.clone()))
}

/// As [`Fp8::code`]: of a number of the format, or NaN.
#[cube]
fn code(x: f32, #[comptime] format: Fp8) -> u32 {
    let (bits, size) = (u32::reinterpret(x), x.abs());
    let shift = comptime!(f32::MANTISSA_DIGITS - 1 - format.digits());
    let below = comptime!((127 - format.bias()) << format.digits());
    let normal = ((bits & 0x7fff_ffffu32) >> shift) - below;
    // The least numbers are as far apart as their codes.
    let small = u32::cast_from(size * comptime!(format.codes_of_one()));
    let found = select(size < comptime!(format.least_normal()), small, normal);
    let found = select(x.is_nan(), 0x7fu32, found);
    found | ((bits >> 31u32) << 7u32)
}
