//! The kernel: the threads of a row process it in passes. In each they fold their elements, and then exchange partial
//! results, so that all have the result.
#![expect(
    clippy::needless_range_loop,
    reason = "lists that are known when a kernel is compiled are counted, not iterated"
)]

use super::columns::store_columns;
use super::shape::{RowShape, RowSpace, RowState, WARP};
use super::staging::{stage_row, staged_lanes};
use crate::folds::{folded, identity};
use crate::kernel::drawn::Draw;
use crate::kernel::elements::{Operands, Pace, Singles, Tensors, element_at, load_one, position, store_in};
use crate::kernel::program::evaluate_all;
use crate::kernel::ptx::{anew, wait_for_copies};
use cubecl::prelude::*;
use meshwright_device::kernels::rows::passes::{RowPart, RowSource, RowTarget};
use meshwright_plan::{DType, Monoid};

/// Elements of a row that a thread takes at a time where it keeps nothing of them, in up to four vectors.
const AT_ONCE: usize = 16;

#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn along_rows<E: Float, N: Size, M: Size>(
    words: Sequence<OwnedTensor<Vector<f32, N>>>,
    halves: Sequence<OwnedTensor<Vector<E, N>>>,
    bytes: Sequence<OwnedTensor<Vector<u8, N>>>,
    single_words: Sequence<OwnedTensor<f32>>,
    single_halves: Sequence<OwnedTensor<E>>,
    single_bytes: Sequence<OwnedTensor<u8>>,
    out_words: Sequence<OwnedTensor<Vector<f32, N>>>,
    out_halves: Sequence<OwnedTensor<Vector<E, N>>>,
    out_bytes: Sequence<OwnedTensor<Vector<u8, N>>>,
    row_words: Sequence<OwnedTensor<Vector<f32, M>>>,
    row_halves: Sequence<OwnedTensor<Vector<E, M>>>,
    row_bytes: Sequence<OwnedTensor<Vector<u8, M>>>,
    mut sums: Sequence<OwnedTensor<Vector<f32, N>>>,
    draws: Sequence<Draw>,
    step: Sequence<OwnedTensor<u32>>,
    space: RowSpace,
    #[comptime] shape: RowShape,
    #[define(E)] _half: ElemType,
) {
    let vectors = Tensors::<E, N> { words, halves, bytes };
    let singles = Singles::<E> { words: single_words, halves: single_halves, bytes: single_bytes };
    let operands = Operands::<E, N> { vectors, singles, draws, step };
    let mut outs = Tensors::<E, N> { words: out_words, halves: out_halves, bytes: out_bytes };
    let mut of_rows = Tensors::<E, M> { words: row_words, halves: row_halves, bytes: row_bytes };
    let mut shared = Shared::<[f32]>::new_slice(comptime!((shape.threads * shape.beside / WARP).max(1)));
    let mut state = RowState::new(comptime!(shape.clone()));
    let own = UNIT_POS % comptime!(shape.threads as u32);
    let row =
        (CUBE_POS_X * comptime!(shape.beside as u32) + UNIT_POS / comptime!(shape.threads as u32)) as usize;
    if comptime!(shape.columns == 0 && shape.staging.is_none()) {
        whole_row(
            &operands,
            &mut outs,
            &mut of_rows,
            &mut state,
            &mut shared,
            &space,
            (row, space.rows),
            own,
            comptime!(shape.clone()),
        );
    } else {
        if comptime!(shape.staging.is_some()) {
            stage_row(&operands, &outs, &state, &space, (row, own), comptime!(shape.clone()));
        }
        #[unroll]
        for i in 0..comptime!(shape.summed()) {
            state.columns[i] = 0.0f32;
        }
        // The threads of a block stay together.
        let apart = (CUBE_COUNT_X * comptime!(shape.beside as u32)) as usize;
        let mut ahead = 0usize;
        let first = (CUBE_POS_X * comptime!(shape.beside as u32)) as usize;
        while first + ahead < space.rows {
            whole_row(
                &operands,
                &mut outs,
                &mut of_rows,
                &mut state,
                &mut shared,
                &space,
                (row + ahead, row + ahead + apart),
                own,
                comptime!(shape.clone()),
            );
            ahead += apart;
        }
        #[unroll]
        for k in 0..comptime!(shape.columns) {
            store_columns(sums.index_mut(k), &mut state, &space, own, k, comptime!(shape.clone()));
        }
    }
}

/// All passes of a row, the first of two; the second is the next one of the block.
#[cube]
fn whole_row<E: Float, N: Size, M: Size>(
    operands: &Operands<E, N>,
    outs: &mut Tensors<E, N>,
    of_rows: &mut Tensors<E, M>,
    state: &mut RowState,
    shared: &mut Shared<[f32]>,
    space: &RowSpace,
    at: (usize, usize),
    own: u32,
    #[comptime] shape: RowShape,
) {
    let (row, next) = at;
    #[unroll]
    for k in 0..comptime!(shape.folds.len()) {
        state.sums[k] = comptime!(identity(shape.folds[k])).runtime();
    }
    #[unroll]
    for p in 0..comptime!(shape.passes.len()) {
        let staged = comptime!(shape.staging.is_some_and(|staging| staging.pass == p));
        // Places of elements and what is compared with them: there are no registers for those beside a long row.
        let own = if comptime!(shape.staging.is_some()) { anew(own) } else { own };
        if comptime!(staged) {
            wait_for_copies();
        }
        if row < space.rows {
            if comptime!(!shape.passes[p].row.targets.is_empty()) {
                of_row(operands, &*outs, of_rows, state, space, row, own, p, comptime!(shape.clone()));
            }
            if comptime!(!shape.passes[p].elements.targets.is_empty()) {
                of_elements(operands, outs, state, space, row, own as usize, p, comptime!(shape.clone()));
            }
        }
        #[unroll]
        for k in 0..comptime!(shape.folds.len()) {
            if comptime!(shape.passes[p].folds(k)) {
                let monoid = comptime!(shape.folds[k]);
                state.totals[k] = total(state.sums[k], shared, comptime!(shape.threads), monoid);
            }
        }
        if comptime!(staged) {
            stage_row(operands, &*outs, &*state, space, (next, own), comptime!(shape.clone()));
        }
    }
}

/// Values that are the same for all elements of a row, which each thread computes, and one of them writes.
#[cube]
fn of_row<E: Float, N: Size, M: Size>(
    operands: &Operands<E, N>,
    outs: &Tensors<E, N>,
    of_rows: &mut Tensors<E, M>,
    state: &mut RowState,
    space: &RowSpace,
    row: usize,
    own: u32,
    #[comptime] pass: usize,
    #[comptime] shape: RowShape,
) {
    let at = position(&space.sizes, row, 0usize, comptime!(shape.rows), comptime!(shape.pace));
    let pace = comptime!(Pace { width: 1, ..shape.pace });
    let part = comptime!(shape.passes[pass].row.clone());
    let read = loaded(
        operands,
        outs,
        &*state,
        &at,
        0usize,
        comptime!(part.loads.clone()),
        pace,
        comptime!(shape.clone()),
    );
    let computed = computed(&read, space, &at, comptime!(part.clone()), pace);
    #[unroll]
    for i in 0..comptime!(part.targets.len()) {
        match comptime!(part.targets[i]) {
            RowTarget::Value(k) => {
                state.values[k] = *computed.index(0usize).index(i);
            }
            RowTarget::Result(k) => {
                store_first(of_rows, &computed, &at, own, i, comptime!(shape.results[k]), pace);
            }
            _ => {}
        }
    }
}

/// Writes a value of the row, if the thread is the first of it.
#[cube]
fn store_first<E: Float, M: Size>(
    of_rows: &mut Tensors<E, M>,
    computed: &Sequence<Sequence<f32>>,
    at: &Sequence<usize>,
    own: u32,
    #[comptime] which: usize,
    #[comptime] to: (usize, DType),
    #[comptime] pace: Pace,
) {
    if own == 0u32 {
        store_in(of_rows, computed, at, which, to, pace);
    }
}

/// A thread's work on its elements of a row in a pass.
#[cube]
fn of_elements<E: Float, N: Size>(
    operands: &Operands<E, N>,
    outs: &mut Tensors<E, N>,
    state: &mut RowState,
    space: &RowSpace,
    row: usize,
    own: usize,
    #[comptime] pass: usize,
    #[comptime] shape: RowShape,
) {
    let threads = comptime!(shape.threads);
    if comptime!(shape.each > 0) {
        let whole = comptime!(if shape.even { shape.each } else { shape.each - 1 });
        #[unroll]
        for group in 0..comptime!(whole.div_ceil(shape.ahead)) {
            let first = comptime!(group * shape.ahead);
            let many = comptime!(shape.ahead.min(whole - first));
            let from = own + comptime!(first * threads);
            of_vectors(operands, outs, state, space, row, from, first, many, pass, comptime!(shape.clone()));
        }
        // Only the last of them may be beyond the row.
        if comptime!(!shape.even) {
            let from = own + comptime!(whole * threads);
            if from < space.vectors {
                of_vectors(
                    operands,
                    outs,
                    state,
                    space,
                    row,
                    from,
                    whole,
                    1usize,
                    pass,
                    comptime!(shape.clone()),
                );
            }
        }
    } else {
        let mut vector = own;
        let many = comptime!((AT_ONCE / shape.pace.width).clamp(1, 4));
        while vector + comptime!((many - 1) * threads) < space.vectors {
            of_vectors(
                operands,
                outs,
                state,
                space,
                row,
                vector,
                0usize,
                many,
                pass,
                comptime!(shape.clone()),
            );
            vector += comptime!(many * threads);
        }
        while vector < space.vectors {
            of_vectors(
                operands,
                outs,
                state,
                space,
                row,
                vector,
                0usize,
                1usize,
                pass,
                comptime!(shape.clone()),
            );
            vector += threads;
        }
    }
}

/// Vectors of a row, the first of which has this place among the thread's kept vectors: all are loaded before one is
/// used.
#[cube]
fn of_vectors<E: Float, N: Size>(
    operands: &Operands<E, N>,
    outs: &mut Tensors<E, N>,
    state: &mut RowState,
    space: &RowSpace,
    row: usize,
    from: usize,
    #[comptime] first: usize,
    #[comptime] many: usize,
    #[comptime] pass: usize,
    #[comptime] shape: RowShape,
) {
    let pace = comptime!(shape.pace);
    let loads = comptime!(shape.passes[pass].elements.loads.clone());
    let mut all = Sequence::<Sequence<usize>>::new();
    let mut read = Sequence::<Sequence<Sequence<f32>>>::new();
    #[unroll]
    for i in 0..many {
        let vector = from + comptime!(i * shape.threads);
        let at = position(&space.sizes, row, vector, comptime!(shape.rows), pace);
        let place = comptime!(if shape.each > 0 { first + i } else { 0 });
        read.push(loaded(
            operands,
            &*outs,
            &*state,
            &at,
            place,
            comptime!(loads.clone()),
            pace,
            comptime!(shape.clone()),
        ));
        all.push(at);
    }
    #[unroll]
    for i in 0..many {
        let place = comptime!(if shape.each > 0 { first + i } else { 0 });
        of_vector(outs, state, space, read.index(i), all.index(i), place, pass, comptime!(shape.clone()));
    }
}

/// A vector of a row, whose values the thread keeps in this place.
#[cube]
fn of_vector<E: Float, N: Size>(
    outs: &mut Tensors<E, N>,
    state: &mut RowState,
    space: &RowSpace,
    read: &Sequence<Sequence<f32>>,
    at: &Sequence<usize>,
    #[comptime] place: usize,
    #[comptime] pass: usize,
    #[comptime] shape: RowShape,
) {
    let pace = comptime!(shape.pace);
    let part = comptime!(shape.passes[pass].elements.clone());
    let computed = computed(read, space, at, comptime!(part.clone()), pace);
    #[unroll]
    for i in 0..comptime!(part.targets.len()) {
        match comptime!(part.targets[i]) {
            RowTarget::Hold(k) =>
            {
                #[unroll]
                for lane in 0..comptime!(pace.width) {
                    let to = comptime!(shape.held_at(k, place, lane));
                    state.held[to] = *computed.index(lane).index(i);
                }
            }
            RowTarget::Fold(k) => {
                let monoid = comptime!(shape.folds[k]);
                #[unroll]
                for lane in 0..comptime!(pace.width) {
                    let mut value = *computed.index(lane).index(i);
                    if comptime!(shape.may_reach(place) && lane > 0) {
                        let beyond = *at.index(comptime!(pace.along)) + lane >= space.inner;
                        value = select(beyond, comptime!(identity(monoid)).runtime(), value);
                    }
                    state.sums[k] = folded(state.sums[k], value, monoid);
                }
            }
            RowTarget::Result(k) => {
                store_in(outs, &computed, at, i, comptime!(shape.results[k]), pace);
            }
            RowTarget::Column(k) =>
            {
                #[unroll]
                for lane in 0..comptime!(pace.width) {
                    let to = comptime!(shape.held_at(k, place, lane));
                    state.columns[to] += *computed.index(lane).index(i);
                }
            }
            RowTarget::Value(_) => {}
        }
    }
}

/// Loads of a part, by operand and then by element of the vector.
#[cube]
fn loaded<E: Float, N: Size>(
    operands: &Operands<E, N>,
    outs: &Tensors<E, N>,
    state: &RowState,
    at: &Sequence<usize>,
    #[comptime] place: usize,
    #[comptime] loads: Vec<RowSource>,
    #[comptime] pace: Pace,
    #[comptime] shape: RowShape,
) -> Sequence<Sequence<f32>> {
    let mut loaded = Sequence::<Sequence<f32>>::new();
    #[unroll]
    for i in 0..comptime!(loads.len()) {
        let lanes = match comptime!(loads[i]) {
            RowSource::Operand(k) => {
                if comptime!(shape.is_staged(k)) {
                    staged_lanes(state, place, comptime!(shape.clone()))
                } else {
                    load_one(operands, outs, at, comptime!(shape.operands[k]), pace)
                }
            }
            RowSource::Held(k) => held(state, k, place, comptime!(shape.clone())),
            RowSource::Value(k) => repeated(state.values[k], pace),
            RowSource::Fold(k) => repeated(state.totals[k], pace),
        };
        loaded.push(lanes);
    }
    loaded
}

/// The values of a part, by element of the vector.
#[cube]
fn computed(
    loaded: &Sequence<Sequence<f32>>,
    space: &RowSpace,
    at: &Sequence<usize>,
    #[comptime] part: RowPart,
    #[comptime] pace: Pace,
) -> Sequence<Sequence<f32>> {
    let mut values = Sequence::<Sequence<f32>>::new();
    #[unroll]
    for lane in 0..comptime!(pace.width) {
        let element = element_at(loaded, at, &space.starts, lane, comptime!(part.loads.len()), pace);
        values.push(evaluate_all(&element, comptime!(part.program.clone())));
    }
    values
}

#[cube]
fn held(
    state: &RowState,
    #[comptime] value: usize,
    #[comptime] place: usize,
    #[comptime] shape: RowShape,
) -> Sequence<f32> {
    let mut lanes = Sequence::<f32>::new();
    #[unroll]
    for lane in 0..comptime!(shape.pace.width) {
        lanes.push(state.held[comptime!(shape.held_at(value, place, lane))]);
    }
    lanes
}

#[cube]
fn repeated(value: f32, #[comptime] pace: Pace) -> Sequence<f32> {
    let mut lanes = Sequence::<f32>::new();
    #[unroll]
    for _ in 0..comptime!(pace.width) {
        lanes.push(value);
    }
    lanes
}

/// The fold of the partial results of a row's threads.
#[cube]
fn total(
    sum: f32,
    shared: &mut Shared<[f32]>,
    #[comptime] threads: usize,
    #[comptime] monoid: Monoid,
) -> f32 {
    let mut all = sum;
    if comptime!(threads > 1) {
        // The first thread of a row may be behind: it writes values of the row.
        sync_plane();
    }
    #[unroll]
    for step in 0..comptime!(threads.min(WARP).ilog2()) {
        let other = plane_shuffle_xor(all, comptime!(1u32 << step));
        all = folded(all, other, monoid);
    }
    if comptime!(threads > WARP) {
        let warps = comptime!((threads / WARP) as u32);
        // All threads have read the earlier values.
        sync_cube();
        let warp = UNIT_POS / comptime!(WARP as u32);
        if UNIT_POS & comptime!(WARP as u32 - 1) == 0u32 {
            shared[warp as usize] = all;
        }
        sync_cube();
        let first = warp / warps * warps;
        all = shared[first as usize];
        #[unroll]
        for i in 1..warps {
            all = folded(all, shared[(first + i) as usize], monoid);
        }
    }
    all
}
