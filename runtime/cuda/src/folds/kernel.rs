//! The kernel: threads that share a result each fold some of its elements, and then combine their partial results in a
//! tree. Several folds are one launch, with contiguous blocks for each: so the norms of all gradients take few
//! launches.
#![expect(
    clippy::needless_range_loop,
    reason = "lists that are known when a kernel is compiled are counted, not iterated"
)]

use crate::kernel::drawn::Draw;
use crate::kernel::elements::{
    OperandSource, Operands, Pace, Singles, Tensors, element, element_at, load, position,
};
use crate::kernel::program::{ScalarProgram, evaluate};
use cubecl::prelude::*;
use cubecl::std::FastDivmod;
use meshwright_device::kernels::fold_blocks::THREADS;
use meshwright_plan::{DType, Monoid};

/// The compile-time parameters of a kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct FoldShape {
    pub(super) program: ScalarProgram,
    pub(super) monoid: Monoid,
    pub(super) operands: Vec<(OperandSource, DType)>,
    pub(super) output: DType,
    /// Number of dims of the result, and of folded dims.
    pub(super) kept: usize,
    pub(super) pace: Pace,
    /// Threads of a block along results, and along folded elements.
    pub(super) results: usize,
    pub(super) folded: usize,
}

impl FoldShape {
    /// Whether the elements of a vector are folded too.
    pub(super) const fn by_rows(&self) -> bool {
        self.pace.along >= self.kept
    }

    /// Results that a thread has.
    pub(super) const fn lanes(&self) -> usize {
        if self.by_rows() { 1 } else { self.pace.width }
    }
}

/// Sizes of the dims, in vectors of the one along which there are vectors; how many results, or vectors of results, there are;
/// how many elements, or vectors of elements, each is folded from, and how many of these are in a chunk; the first block, how
/// many there are along the results, and how many in all.
#[derive(CubeType, CubeLaunch)]
pub(super) struct FoldSpace {
    sizes: Sequence<FastDivmod<usize>>,
    results: usize,
    steps: usize,
    each: usize,
    first: u32,
    beside: u32,
    blocks: u32,
}

#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn fold_elements<E: Float, O: Float, N: Size, M: Size>(
    words: Sequence<OwnedTensor<Vector<f32, N>>>,
    halves: Sequence<OwnedTensor<Vector<E, N>>>,
    bytes: Sequence<OwnedTensor<Vector<u8, N>>>,
    single_words: Sequence<OwnedTensor<f32>>,
    single_halves: Sequence<OwnedTensor<E>>,
    single_bytes: Sequence<OwnedTensor<u8>>,
    mut outs: Sequence<OwnedTensor<Vector<O, M>>>,
    spaces: Sequence<FoldSpace>,
    #[comptime] shapes: Vec<FoldShape>,
    #[define(E)] _half: ElemType,
    #[define(O)] _result: ElemType,
) {
    let vectors = Tensors::<E, N> { words, halves, bytes };
    let singles = Singles::<E> { words: single_words, halves: single_halves, bytes: single_bytes };
    let (draws, step) = (Sequence::<Draw>::new(), Sequence::<OwnedTensor<u32>>::new());
    let operands = Operands::<E, N> { vectors, singles, draws, step };
    let mut shared = Shared::<[f32]>::new_slice(comptime!(THREADS * shapes[0].lanes()));
    #[unroll]
    for i in 0..comptime!(shapes.len()) {
        let space = spaces.index(i);
        if CUBE_POS_X >= space.first && CUBE_POS_X < space.first + space.blocks {
            let block = CUBE_POS_X - space.first;
            fold_one(&operands, outs.index_mut(i), &mut shared, space, block, comptime!(shapes[i].clone()));
        }
    }
}

/// The part of a fold that is a block's.
#[cube]
fn fold_one<E: Float, O: Float, N: Size, M: Size>(
    operands: &Operands<E, N>,
    out: &mut OwnedTensor<Vector<O, M>>,
    shared: &mut Shared<[f32]>,
    space: &FoldSpace,
    block: u32,
    #[comptime] shape: FoldShape,
) {
    let lanes = comptime!(shape.lanes());
    let (beside, folded) = comptime!((shape.results as u32, shape.folded as u32));
    // Adjacent threads read adjacent elements.
    let by_rows = comptime!(shape.by_rows());
    let mut own = UNIT_POS / beside;
    let mut which = UNIT_POS % beside;
    if comptime!(by_rows) {
        own = UNIT_POS % folded;
        which = UNIT_POS / folded;
    }
    let chunk = (block / space.beside) as usize;
    let result = (block % space.beside * beside + which) as usize;
    let mut sums = Array::<f32>::new(lanes);
    #[unroll]
    for lane in 0..lanes {
        sums[lane] = comptime!(identity(shape.monoid)).runtime();
    }
    let end = min(chunk * space.each + space.each, space.steps);
    if result < space.results {
        let mut at = chunk * space.each + own as usize;
        while at < end {
            take(operands, &mut sums, result, at, space, comptime!(shape.clone()));
            at += comptime!(shape.folded);
        }
    }
    share(&mut sums, shared, own, which, lanes, comptime!(shape.clone()));
    if own == 0u32 && result < space.results {
        let dtype = comptime!(shape.output);
        let mut vector = Vector::<O, M>::new(element::<O>(sums[0], dtype));
        #[unroll]
        for lane in 1..lanes {
            vector.insert(lane, element::<O>(sums[lane], dtype));
        }
        out[chunk * space.results + result] = vector;
    }
}

/// The result of an empty fold.
pub(in super::super) const fn identity(monoid: Monoid) -> f32 {
    match monoid {
        Monoid::Max => f32::NEG_INFINITY,
        Monoid::Min => f32::INFINITY,
        _ => 0.0,
    }
}

#[cube]
pub(in super::super) fn folded(a: f32, b: f32, #[comptime] monoid: Monoid) -> f32 {
    match comptime!(monoid) {
        // No number where one is none.
        Monoid::Max => max_nan(a, b),
        Monoid::Min => min_nan(a, b),
        _ => a + b,
    }
}

/// Adds a vector of operands.
#[cube]
fn take<E: Float, N: Size>(
    operands: &Operands<E, N>,
    sums: &mut Array<f32>,
    result: usize,
    step: usize,
    space: &FoldSpace,
    #[comptime] shape: FoldShape,
) {
    let pace = comptime!(shape.pace);
    let at = position(&space.sizes, result, step, comptime!(shape.kept), pace);
    let outs = Tensors::<E, N> { words: Sequence::new(), halves: Sequence::new(), bytes: Sequence::new() };
    let loaded = load(operands, &outs, &at, comptime!(shape.operands.clone()), pace);
    let nowhere = Sequence::<u32>::new();
    #[unroll]
    for lane in 0..comptime!(pace.width) {
        let element = element_at(&loaded, &at, &nowhere, lane, comptime!(shape.operands.len()), pace);
        let value = evaluate(&element, comptime!(shape.program.clone()));
        let to = comptime!(if shape.by_rows() { 0 } else { lane });
        sums[to] = folded(sums[to], value, comptime!(shape.monoid));
    }
}

/// Combines the partial results of a result's threads; the first thread then has it.
#[cube]
fn share(
    sums: &mut Array<f32>,
    shared: &mut Shared<[f32]>,
    own: u32,
    which: u32,
    #[comptime] lanes: usize,
    #[comptime] shape: FoldShape,
) {
    let (beside, many) = comptime!((shape.results as u32, shape.folded));
    let place = (own * beside + which) * comptime!(lanes as u32);
    #[unroll]
    for lane in 0..lanes {
        shared[(place + comptime!(lane as u32)) as usize] = sums[lane];
    }
    #[unroll]
    for halving in 0..comptime!(many.ilog2()) {
        let half = comptime!((many >> (halving + 1)) as u32);
        sync_cube();
        if own < half {
            let other = place + half * beside * comptime!(lanes as u32);
            #[unroll]
            for lane in 0..lanes {
                let far = shared[(other + comptime!(lane as u32)) as usize];
                sums[lane] = folded(sums[lane], far, comptime!(shape.monoid));
                shared[(place + comptime!(lane as u32)) as usize] = sums[lane];
            }
        }
    }
}
