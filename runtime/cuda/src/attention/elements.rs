//! Operands of a score: the values that expressions read at a query and a key.

use super::layout::Multiply;
use super::scores::{AttentionShape, Beside, QueryLine, Space, bare_line};
use super::staged::Staged;
use crate::kernel::exp2;
use crate::kernel::program::{ScalarInputs, evaluate, truth};
use cubecl::prelude::*;

/// A query of a tile with staged operands: its index in the tile, and the tile's first query.
#[cube]
pub(super) fn staged_line(
    beside: &Beside,
    space: &Space,
    staged: &Staged,
    at: (u32, u32, u32),
    row: u32,
    #[comptime] shape: AttentionShape,
) -> QueryLine {
    let (outer, first, buffer) = at;
    let mut line = bare_line(beside, space, outer, first + row, comptime!(shape.clone()));
    #[unroll]
    for i in 0..comptime!(shape.beside.len()) {
        if comptime!(shape.beside[i].dims[shape.key()]) {
            line.known.push(0.0f32);
        } else {
            line.known.push(staged.of_row(buffer, row, i, comptime!(shape.clone())));
        }
    }
    line
}

/// A tile of keys: its first one, the place of its staged operands, and for each draw the truth values of this thread's
/// scores as bits.
#[derive(CubeType)]
pub(super) struct KeyTile {
    pub(super) first: u32,
    pub(super) buffer: u32,
    pub(super) drawn: Sequence<u32>,
}

/// One of a thread's scores: each 16 keys are a pair of accumulator tiles, each with two keys of two queries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Which {
    pub(super) pair: usize,
    pub(super) tile: usize,
    pub(super) half: usize,
    pub(super) key: usize,
}

impl Which {
    /// Its bit among the drawn ones.
    const fn bit(self) -> usize {
        8 * self.pair + 4 * self.tile + 2 * self.half + self.key
    }

    /// Distance of its key from the thread's first.
    const fn offset(self) -> usize {
        16 * self.pair + 8 * self.tile + self.key
    }
}

/// The key of a score, in its tile.
#[cube]
pub(super) fn key_in_tile(#[comptime] which: Which) -> u32 {
    UNIT_POS % 4 * 2u32 + comptime!(which.offset() as u32)
}

/// The operands of an expression at a query and a key.
#[cube]
pub(super) fn element(
    beside: &Beside,
    space: &Space,
    line: &QueryLine,
    staged: &Staged,
    tile: &KeyTile,
    product: f32,
    #[comptime] which: Which,
    #[comptime] shape: AttentionShape,
) -> ScalarInputs {
    let mut key = tile.first + key_in_tile(which);
    if comptime!(!shape.whole) {
        key = min(key, space.keys - 1u32);
    }
    let along = comptime!(shape.key());
    let mut loads = Sequence::<f32>::new();
    loads.push(product);
    #[unroll]
    for i in 0..comptime!(shape.extras) {
        if let Some(number) = comptime!(shape.staged(true).iter().position(|of| *of == i)) {
            let first = key_in_tile(comptime!(Which { key: 0, ..which }));
            let pair = staged.pair(tile.buffer, first, number, comptime!(shape.staged(true).len()));
            loads.push(pair.extract(comptime!(which.key)));
        } else if comptime!(!shape.beside[i].dims[along]) {
            loads.push(*line.known.index(i));
        } else {
            let tensor = beside.tensors.index(i);
            let mut at = *line.offsets.index(i);
            if comptime!(shape.beside[i].dense) {
                at += key as usize;
            } else {
                at += key as usize * tensor.stride(along);
            }
            loads.push(tensor[at]);
        }
    }
    #[unroll]
    for i in 0..comptime!(shape.draws.len()) {
        loads.push(truth(*tile.drawn.index(i) & comptime!(1u32 << which.bit()) != 0u32));
    }
    let mut at = Sequence::<u32>::new();
    #[unroll]
    for dim in 0..comptime!(shape.key()) {
        at.push(*line.at.index(dim) + *space.starts.index(dim));
    }
    at.push(key + *space.starts.index(along));
    ScalarInputs { loads, at }
}

/// The score at a query and a key, and minus infinity beyond the keys and the queries.
#[cube]
pub(super) fn score(
    element: &ScalarInputs,
    space: &Space,
    row: u32,
    key: u32,
    #[comptime] shape: AttentionShape,
) -> f32 {
    let mut score = evaluate(element, comptime!(shape.score.clone()));
    if comptime!(!shape.whole) {
        let is_within = row < space.rows && key < space.keys;
        score = select(is_within, score, comptime!(f32::NEG_INFINITY).runtime());
    }
    score
}

/// `e` to the power of a score that is relative to the greatest: of two instructions where weights are rounded to a half type
/// anyway.
#[cube]
pub(super) fn exponential(x: f32, #[comptime] by: Multiply) -> f32 {
    if comptime!(by.is_wide()) { x.exp() } else { exp2::exp(x) }
}
