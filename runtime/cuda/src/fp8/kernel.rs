//! The kernel: a block computes a square tile of the matrix, and writes it by rows, by columns, or both. A thread has a small
//! square of it: the codes of a row, or of a column, are one word. Those of columns pass through shared memory, so that the words
//! that a warp writes lie side by side either way.
#![expect(
    clippy::needless_range_loop,
    reason = "lists that are known when a kernel is compiled are counted, not iterated"
)]

use crate::kernel::drawn::Draw;
use crate::kernel::elements::{OperandSource, Operands, Pace, Singles, Tensors, element_at, load, position};
use crate::kernel::program::{ScalarProgram, evaluate};
use crate::kernel::ptx::{permuted, two_codes};
use cubecl::prelude::*;
use cubecl::std::FastDivmod;
use meshwright_plan::{DType, Fp8};

/// Rows and columns of a thread's part of a tile.
const SIDE: usize = 4;
/// Parts along the rows of a tile, and along its columns.
const PARTS: usize = 16;
/// Rows and columns of a tile.
pub(super) const TILE: usize = SIDE * PARTS;
/// Threads of a block.
pub(super) const THREADS: usize = PARTS * PARTS;
/// Words from one column of a tile in shared memory to the next: those of a row lie in different banks.
const PITCH: usize = PARTS + 1;
/// Codes of a vector of results.
pub(super) const CODES: usize = SIDE;

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
    /// The first of its results.
    pub(super) result: usize,
}

/// Sizes of the dims (the last one in vectors), the global position of the first element along each if the value depends on
/// positions, and the rows and columns of the matrix. Then its first block, and how many it has.
#[derive(CubeType, CubeLaunch)]
pub(super) struct FactorSpace {
    sizes: Sequence<FastDivmod<usize>>,
    starts: Sequence<u32>,
    rows: u32,
    columns: u32,
    first: u32,
    blocks: u32,
}

#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn round_factors<E: Float, N: Size, M: Size>(
    words: Sequence<OwnedTensor<Vector<f32, N>>>,
    halves: Sequence<OwnedTensor<Vector<E, N>>>,
    bytes: Sequence<OwnedTensor<Vector<u8, N>>>,
    single_words: Sequence<OwnedTensor<f32>>,
    single_halves: Sequence<OwnedTensor<E>>,
    single_bytes: Sequence<OwnedTensor<u8>>,
    mut outs: Sequence<OwnedTensor<Vector<u8, M>>>,
    spaces: Sequence<FactorSpace>,
    #[comptime] shapes: Vec<FactorShape>,
    #[define(E)] _half: ElemType,
) {
    let vectors = Tensors::<E, N> { words, halves, bytes };
    let singles = Singles::<E> { words: single_words, halves: single_halves, bytes: single_bytes };
    let (draws, step) = (Sequence::<Draw>::new(), Sequence::<OwnedTensor<u32>>::new());
    let operands = Operands::<E, N> { vectors, singles, draws, step };
    let mut tile = Shared::<[u32]>::new_slice(comptime!(TILE * PITCH));
    #[unroll]
    for i in 0..comptime!(shapes.len()) {
        let space = spaces.index(i);
        if CUBE_POS_X >= space.first && CUBE_POS_X < space.first + space.blocks {
            let block = CUBE_POS_X - space.first;
            round_tile(&operands, &mut outs, &mut tile, space, block, comptime!(shapes[i].clone()));
        }
    }
}

/// A tile of a factor.
#[cube]
fn round_tile<E: Float, N: Size, M: Size>(
    operands: &Operands<E, N>,
    outs: &mut Sequence<OwnedTensor<Vector<u8, M>>>,
    tile: &mut Shared<[u32]>,
    space: &FactorSpace,
    block: u32,
    #[comptime] shape: FactorShape,
) {
    let across = space.columns.div_ceil(comptime!(TILE as u32));
    let first_row = block / across * comptime!(TILE as u32);
    let first_column = block % across * comptime!(TILE as u32);
    let (x, y) = (UNIT_POS % comptime!(PARTS as u32), UNIT_POS / comptime!(PARTS as u32));
    // Rows and columns of the matrix are multiples of a part's.
    let (row, column) = (first_row + y * comptime!(SIDE as u32), first_column + x * comptime!(SIDE as u32));
    if row < space.rows && column < space.columns {
        let mut rows = Array::<u32>::new(SIDE);
        #[unroll]
        for i in 0..SIDE {
            let place = (row + comptime!(i as u32)) as usize * space.columns as usize + column as usize;
            rows[i] = codes(operands, space, place, comptime!(shape.clone()));
            if comptime!(shape.plain) {
                outs.index_mut(comptime!(shape.result))[place / CODES] = bytes_of::<M>(rows[i]);
            }
        }
        if comptime!(shape.turned) {
            let columns = transposed(&rows);
            #[unroll]
            for k in 0..SIDE {
                let down = x * comptime!(SIDE as u32) + comptime!(k as u32);
                tile[(down * comptime!(PITCH as u32) + y) as usize] = *columns.index(k);
            }
        }
    }
    if comptime!(shape.turned) {
        sync_cube();
        let which = comptime!(shape.result + usize::from(shape.plain));
        let row = first_row + x * comptime!(SIDE as u32);
        #[unroll]
        for pass in 0..SIDE {
            let down = y + comptime!((pass * PARTS) as u32);
            let column = first_column + down;
            if row < space.rows && column < space.columns {
                let place = column as usize * space.rows as usize + row as usize;
                let word = tile[(down * comptime!(PITCH as u32) + x) as usize];
                outs.index_mut(which)[place / CODES] = bytes_of::<M>(word);
            }
        }
    }
}

/// The codes of a part's row, the first element of which has this number in the order of the dims: the first in the lowest byte.
#[cube]
fn codes<E: Float, N: Size>(
    operands: &Operands<E, N>,
    space: &FactorSpace,
    first: usize,
    #[comptime] shape: FactorShape,
) -> u32 {
    let pace = comptime!(shape.pace);
    let many = comptime!(shape.operands.len());
    let mut values = Sequence::<f32>::new();
    #[unroll]
    for vector in 0..comptime!(SIDE / pace.width) {
        let number = first / comptime!(pace.width) + vector;
        let at = position(&space.sizes, 0usize, number, 0usize, pace);
        let none =
            Tensors::<E, N> { words: Sequence::new(), halves: Sequence::new(), bytes: Sequence::new() };
        let loaded = load(operands, &none, &at, comptime!(shape.operands.clone()), pace);
        #[unroll]
        for lane in 0..comptime!(pace.width) {
            let element = element_at(&loaded, &at, &space.starts, lane, many, pace);
            values.push(evaluate(&element, comptime!(shape.program.clone())));
        }
    }
    let format = comptime!(shape.format);
    let lower = two_codes(*values.index(0usize), *values.index(1usize), format);
    let upper = two_codes(*values.index(2usize), *values.index(3usize), format);
    u32::cast_from(lower) | (u32::cast_from(upper) << 16u32)
}

/// The columns of four rows of four bytes.
#[cube]
fn transposed(rows: &Array<u32>) -> Sequence<u32> {
    let mut columns = Sequence::<u32>::new();
    #[unroll]
    for half in 0..2usize {
        // Two bytes of each row, side by side with those of the next one.
        let pairs = comptime!(if half == 0 { 0x5140u32 } else { 0x7362u32 });
        let (upper, lower) = (permuted(rows[0], rows[1], pairs), permuted(rows[2], rows[3], pairs));
        columns.push(permuted(upper, lower, 0x5410u32));
        columns.push(permuted(upper, lower, 0x7632u32));
    }
    columns
}

/// The bytes of a word, from the lowest on.
#[cube]
fn bytes_of<M: Size>(word: u32) -> Vector<u8, M> {
    let mut all = Vector::<u8, M>::new(u8::cast_from(word & 0xffu32));
    #[unroll]
    for k in 1..CODES {
        all.insert(k, u8::cast_from((word >> comptime!(8 * k as u32)) & 0xffu32));
    }
    all
}
