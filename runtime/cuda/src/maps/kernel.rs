//! The kernel: each thread computes a vector of elements that follow each other along the last dim.
//!
//! Several steps that do not depend on each other are one launch, one after the other in the order of threads: so the updates of
//! all small parameters take one.
#![expect(
    clippy::needless_range_loop,
    reason = "lists that are known when a kernel is compiled are counted, not iterated"
)]

use crate::kernel::drawn::Draw;
use crate::kernel::elements::{OperandSource, Operands, Pace, Singles, Tensors, element_at, load, store_in};
use crate::kernel::program::{ScalarProgram, evaluate_all};
use cubecl::prelude::*;
use cubecl::std::FastDivmod;
use meshwright_plan::DType;

/// The compile-time parameters of one step. Slots count the tensors of all steps.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct MapShape {
    pub(super) program: ScalarProgram,
    /// Source and type of each operand.
    pub(super) operands: Vec<(OperandSource, DType)>,
    /// The slot and the type of each result.
    pub(super) outputs: Vec<(usize, DType)>,
    pub(super) pace: Pace,
}

/// The dims of a step: sizes (the last one in vectors), and the global position of the first element along each if the step reads
/// positions. Then the number of its first thread, and its number of threads.
#[derive(CubeType, CubeLaunch)]
pub(super) struct MapSpace {
    sizes: Sequence<FastDivmod<usize>>,
    starts: Sequence<u32>,
    first: usize,
    vectors: usize,
}

#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn element_wise<E: Float, N: Size>(
    words: Sequence<OwnedTensor<Vector<f32, N>>>,
    halves: Sequence<OwnedTensor<Vector<E, N>>>,
    bytes: Sequence<OwnedTensor<Vector<u8, N>>>,
    single_words: Sequence<OwnedTensor<f32>>,
    single_halves: Sequence<OwnedTensor<E>>,
    single_bytes: Sequence<OwnedTensor<u8>>,
    out_words: Sequence<OwnedTensor<Vector<f32, N>>>,
    out_halves: Sequence<OwnedTensor<Vector<E, N>>>,
    out_bytes: Sequence<OwnedTensor<Vector<u8, N>>>,
    draws: Sequence<Draw>,
    step: Sequence<OwnedTensor<u32>>,
    spaces: Sequence<MapSpace>,
    #[comptime] shapes: Vec<MapShape>,
    #[define(E)] _half: ElemType,
) {
    let vectors = Tensors::<E, N> { words, halves, bytes };
    let singles = Singles::<E> { words: single_words, halves: single_halves, bytes: single_bytes };
    let operands = Operands::<E, N> { vectors, singles, draws, step };
    let mut outs = Tensors::<E, N> { words: out_words, halves: out_halves, bytes: out_bytes };
    #[unroll]
    for i in 0..comptime!(shapes.len()) {
        let space = spaces.index(i);
        if ABSOLUTE_POS >= space.first && ABSOLUTE_POS < space.first + space.vectors {
            compute(&operands, &mut outs, space, ABSOLUTE_POS - space.first, comptime!(shapes[i].clone()));
        }
    }
}

/// Computes a vector of a step.
#[cube]
fn compute<E: Float, N: Size>(
    operands: &Operands<E, N>,
    outs: &mut Tensors<E, N>,
    space: &MapSpace,
    vector: usize,
    #[comptime] shape: MapShape,
) {
    let pace = comptime!(shape.pace);
    let at = position(space, vector, pace);
    let loaded = load(operands, &*outs, &at, comptime!(shape.operands.clone()), pace);
    let mut values = Sequence::<Sequence<f32>>::new();
    #[unroll]
    for lane in 0..comptime!(pace.width) {
        let many = comptime!(shape.operands.len());
        let element = element_at(&loaded, &at, &space.starts, lane, many, pace);
        values.push(evaluate_all(&element, comptime!(shape.program.clone())));
    }
    #[unroll]
    for o in 0..comptime!(shape.outputs.len()) {
        store_in(outs, &values, &at, o, comptime!(shape.outputs[o]), pace);
    }
}

/// The position of a vector's first element along each dim.
#[cube]
fn position(space: &MapSpace, vector: usize, #[comptime] pace: Pace) -> Sequence<usize> {
    let mut rest = vector;
    let mut reversed = Sequence::<usize>::new();
    #[unroll]
    for i in 0..comptime!(pace.rank) {
        let dim = comptime!(pace.rank - 1 - i);
        let mut at = rest;
        if comptime!(dim > 0) {
            let (outer, inner) = space.sizes.index(dim).div_mod(rest);
            at = inner;
            rest = outer;
        }
        reversed.push(at * comptime!(if i == 0 { pace.width } else { 1 }));
    }
    reversed.reversed()
}
