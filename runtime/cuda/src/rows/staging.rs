//! Long rows that are copied to shared memory while the row before them is computed.
//!
//! A block that keeps a long row has most registers of a multiprocessor, so no second block fits there, and memory would be
//! idle while it computes. Such blocks go from row to row instead. As soon as a thread has its elements of a row in
//! registers, it begins to copy those of the next row to shared memory, and reads no others there: no thread waits for another's
//! copies.

use super::shape::{COPIED, RowShape, RowSpace, RowState, Staging, WARP};
use crate::kernel::elements::{OperandSource, Operands, Tensors, place, position};
use crate::kernel::ptx::{CopyShape, copy_ahead, shared_address};
use cubecl::prelude::*;
use meshwright_device::kernels::rows::call::{MOST_THREADS, THREADS};
use meshwright_device::kernels::rows::passes::RowSource;
use meshwright_plan::DType;

/// Registers of a multiprocessor. Four warps at a time get theirs, and a thread a multiple of 8.
const REGISTERS: usize = 1 << 16;
const FOUR_WARPS: usize = 4 * WARP;
/// Registers of a thread beside the elements that it keeps: with fewer, some of these would be spilled.
const BESIDE_ELEMENTS: usize = 32;

/// The same kernel with a staged operand, and the number of its blocks, if each multiprocessor of a GPU has several rows. The
/// last argument is the number of multiprocessors, with the bytes of shared memory that a block may have.
pub(super) fn staged(
    shape: &RowShape,
    vectors: usize,
    rows: usize,
    (multiprocessors, shared): (Option<u32>, usize),
) -> Option<(RowShape, usize)> {
    let blocks = multiprocessors? as usize;
    let is_alone = shape.each > 0 && shape.columns == 0 && shape.threads > THREADS;
    let is_one = shape.pace.rank == shape.rows + 1;
    if !is_alone || !is_one || rows <= blocks || !shape.pace.width.is_multiple_of(COPIED) {
        return None;
    }
    let staging = Some(operand(shape)?);
    let room = |threads: usize| REGISTERS / threads / 8 * 8;
    let kept = |threads: usize| vectors.div_ceil(threads) * shape.pace.width * shape.held.max(1);
    let mut threads = (1..=MOST_THREADS / FOUR_WARPS).rev().map(|times| times * FOUR_WARPS);
    let threads = threads.find(|t| room(*t) >= kept(*t) + BESIDE_ELEMENTS)?;
    let each = vectors.div_ceil(threads);
    let even = each * threads == vectors;
    let shape = RowShape { staging, threads, each, even, beside: 1, ..shape.clone() };
    let bytes = shape.copies() * 16 + threads / WARP * size_of::<f32>();
    (threads > THREADS && bytes <= shared).then_some((shape, blocks))
}

/// A tensor that one pass reads, element by element: the first one.
fn operand(shape: &RowShape) -> Option<Staging> {
    let is_tensor = |(source, dtype): &(OperandSource, DType)| {
        matches!(source, OperandSource::Vector(_) | OperandSource::Output(_)) && *dtype == DType::F32
    };
    let operands = shape.operands.iter().enumerate().filter(|(_, operand)| is_tensor(operand));
    operands.map(|(operand, _)| operand).find_map(|operand| {
        let reads = |loads: &[RowSource]| loads.contains(&RowSource::Operand(operand));
        let passes = shape.passes.iter().enumerate();
        let mut read = passes.filter(|(_, p)| reads(&p.row.loads) || reads(&p.elements.loads));
        let ((pass, only), None) = (read.next()?, read.next()) else { return None };
        // All threads meet in a fold before the next row's copies begin.
        let folds = (0..shape.folds.len()).any(|k| only.folds(k));
        (folds && !reads(&only.row.loads)).then_some(Staging { operand, pass })
    })
}

/// Begins to copy a thread's elements of a row, if there is one: of the first number, for the thread of the second.
#[cube]
pub(super) fn stage_row<E: Float, N: Size>(
    operands: &Operands<E, N>,
    outs: &Tensors<E, N>,
    state: &RowState,
    space: &RowSpace,
    at: (usize, u32),
    #[comptime] shape: RowShape,
) {
    if at.0 < space.rows {
        match comptime!(shape.staged_source()) {
            Some(OperandSource::Vector(slot)) => {
                stage(operands.vectors.words.index(slot), state, space, at, shape);
            }
            Some(OperandSource::Output(slot)) => stage(outs.words.index(slot), state, space, at, shape),
            _ => {}
        }
    }
}

#[cube]
fn stage<N: Size>(
    source: &OwnedTensor<Vector<f32, N>>,
    state: &RowState,
    space: &RowSpace,
    at: (usize, u32),
    #[comptime] shape: RowShape,
) {
    let (threads, parts, pace) = comptime!((shape.threads, shape.pace.width / COPIED, shape.pace));
    let (row, own) = at;
    let to = shared_address(&state.staged[0..1]) + own * 16u32;
    let start = position(&space.sizes, row, 0usize, comptime!(shape.rows), pace);
    let from = place(source, &start, comptime!(pace.rank)) / comptime!(pace.width) + own as usize;
    #[unroll]
    for i in 0..comptime!(shape.each) {
        if comptime!(shape.even || i + 1 < shape.each)
            || own as usize + comptime!(i * threads) < space.vectors
        {
            #[unroll]
            for part in 0..parts {
                let copy = comptime!(CopyShape {
                    size: 16,
                    from: (i * threads * parts + part) * 16,
                    to: (i * parts + part) * threads * 16,
                });
                copy_ahead(&source[from..from + 1], to, 16u32, copy);
            }
        }
    }
}

/// The elements of a vector of the row in shared memory, by the vector's place among the thread's.
#[cube]
pub(super) fn staged_lanes(
    state: &RowState,
    #[comptime] place: usize,
    #[comptime] shape: RowShape,
) -> Sequence<f32> {
    let parts = comptime!(shape.pace.width / COPIED);
    let mut lanes = Sequence::<f32>::new();
    #[unroll]
    for part in 0..parts {
        let vector = state.staged[UNIT_POS as usize + comptime!((place * parts + part) * shape.threads)];
        #[unroll]
        for lane in 0..COPIED {
            lanes.push(vector.extract(lane));
        }
    }
    lanes
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::kernel::elements::Pace;
    use meshwright_device::kernels::rows::passes::{RowPart, RowPass, RowTarget};
    use meshwright_device::kernels::scalar::ScalarProgram;
    use meshwright_plan::Monoid;

    /// A kernel that folds the elements of its operand: `each` vectors of 4 for a thread.
    fn shape(each: usize, threads: usize) -> RowShape {
        let loads = vec![RowSource::Operand(0)];
        let none = RowPart { program: ScalarProgram::default(), loads: vec![], targets: vec![] };
        let elements = RowPart { loads, targets: vec![RowTarget::Fold(0)], ..none.clone() };
        RowShape {
            passes: vec![RowPass { row: none, elements }],
            folds: vec![Monoid::Max],
            operands: vec![(OperandSource::Vector(0), DType::F32)],
            results: vec![],
            held: 1,
            values: 0,
            columns: 0,
            rows: 1,
            pace: Pace { rank: 2, along: 1, width: 4 },
            threads,
            beside: 1,
            each,
            even: true,
            ahead: 4,
            reaches: false,
            staging: None,
        }
    }

    /// Multiprocessors, and bytes of shared memory for a block.
    const H200: (Option<u32>, usize) = (Some(132), 227 << 10);

    #[test]
    fn a_long_row_is_staged_where_a_multiprocessor_has_several() {
        let of = |each: usize, threads: usize, rows: usize, on| {
            staged(&shape(each, threads), each * threads, rows, on)
        };
        let (made, blocks) = of(16, 512, 4096, H200).unwrap();
        assert_eq!((made.staging, blocks), (Some(Staging { operand: 0, pass: 0 }), 132));
        assert_eq!((made.threads, made.each, made.even), (512, 16, true));
        assert!(of(16, 512, 132, H200).is_none(), "one row each");
        assert!(of(8, THREADS, 4096, H200).is_none(), "blocks fit beside each other");
        assert!(of(25, 512, 4096, (Some(108), 163 << 10)).is_none(), "an A100 has too little memory");
        let halves = RowShape { operands: vec![(OperandSource::Vector(0), DType::BF16)], ..shape(16, 512) };
        assert!(staged(&halves, 16 * 512, 4096, H200).is_none(), "halves");
        let mut twice = shape(16, 512);
        twice.passes.push(twice.passes[0].clone());
        assert!(staged(&twice, 16 * 512, 4096, H200).is_none(), "a second pass reads it");
    }

    /// The vocabulary of GPT: of 512 threads each would have 128 registers, 100 of them for elements.
    #[test]
    fn fewer_threads_have_more_registers() {
        let (made, _) = staged(&shape(25, 512), 50_257usize.div_ceil(4), 4096, H200).unwrap();
        assert_eq!((made.threads, made.each, made.even), (384, 33, false));
    }
}
