//! Scores in kernels: strides of operands, and the extra operands and random values of a score.
//!
//! The dims of the scores are the outer ones, each position of which is an attention of its own; the rows, which are
//! the queries of one; and the keys. All tensors have strides along these, 0 for a missing dim, and along a dim of
//! their own.

use super::layout::{Multiply, TileShape};
use crate::kernel::drawn::Draw;
use crate::kernel::program::ScalarProgram;
use cubecl::prelude::*;
pub(super) use meshwright_device::kernels::attention::DECIDED;
use meshwright_plan::AttentionPart;

/// The compile-time parameters of a kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct AttentionShape {
    /// Number of outer dims and dims of rows.
    pub(super) outer: usize,
    pub(super) rows: usize,
    /// Elements of a query, and of a value; 0 where values are not read.
    pub(super) width: usize,
    pub(super) values: usize,
    /// Keys, or queries, that are looked at a time.
    pub(super) columns: usize,
    pub(super) score: ScalarProgram,
    /// For gradients: by the product of query and key, or by the bias.
    pub(super) slope: Option<ScalarProgram>,
    /// For the gradient of the bias, whether it lacks each outer dim.
    pub(super) summed: Vec<bool>,
    /// None where all factors of weights are 1.
    pub(super) weight: Option<ScalarProgram>,
    /// Operands of the scores besides queries and keys: extra operands, then these if there are any.
    pub(super) beside: Vec<BesideShape>,
    pub(super) extras: usize,
    pub(super) max: Option<usize>,
    pub(super) scale: Option<usize>,
    pub(super) delta: Option<usize>,
    /// The maximum, the sum and the values of other keys are this operand and the two after it.
    pub(super) before: Option<usize>,
    pub(super) draws: Vec<DrawnShape>,
    /// Whether something is drawn along a dim whose positions are in zigzag order.
    pub(super) ordered: Vec<bool>,
    /// Random values are in memory, except for decided tiles.
    pub(super) ahead: bool,
    /// Some tiles are decided by positions alone.
    pub(super) decides: bool,
    /// No tile reaches beyond the last query or key.
    pub(super) whole: bool,
    pub(super) by: Multiply,
    /// Buffers of queries and cotangents for the gradients of keys and values.
    pub(super) buffers: usize,
    /// The parts to write.
    pub(super) parts: Vec<AttentionPart>,
}

/// Number of random elements that share a counter, and whether each aligned group of eight keys does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct DrawnShape {
    pub(super) many: usize,
    pub(super) in_groups: bool,
}

/// Layout of an operand of the scores.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct BesideShape {
    /// The dims of the scores that it has. The others are not walked, so a value that all queries share is read once.
    pub(super) dims: Vec<bool>,
    /// Whether keys are contiguous.
    pub(super) dense: bool,
}

impl AttentionShape {
    /// Index of the key dim.
    pub(super) const fn key(&self) -> usize {
        self.outer + self.rows
    }

    /// The dims of the rows, or that of the keys.
    pub(super) const fn dims_of(&self, of_keys: bool) -> std::ops::Range<usize> {
        if of_keys { self.key()..self.key() + 1 } else { self.outer..self.key() }
    }

    /// A tile of these rows and columns.
    pub(super) const fn tile(&self, rows: usize, width: usize) -> TileShape {
        TileShape { rows, width, by: self.by }
    }

    /// The operands of the scores that have only keys, or only queries, besides the outer dims.
    pub(super) fn staged(&self, of_keys: bool) -> Vec<usize> {
        let is = |of: &BesideShape, i: usize| {
            let (has_keys, rows) = (of.dims[self.key()], &of.dims[self.outer..self.key()]);
            if of_keys { i < self.extras && has_keys && !rows.contains(&true) } else { !has_keys }
        };
        (0..self.beside.len()).filter(|i| is(&self.beside[*i], *i)).collect()
    }

    /// Width of the values that are read with keys, or of their cotangents, which are read with queries. The gradient of values
    /// alone needs weights and cotangents, but no values.
    pub(super) fn values_of(&self, of_keys: bool) -> usize {
        let alone = self.slope.is_none() && self.gives(AttentionPart::Value);
        if of_keys && alone { 0 } else { self.values }
    }

    /// Whether a part is written.
    pub(super) fn gives(&self, part: AttentionPart) -> bool {
        self.parts.contains(&part)
    }
}

/// The dims of the scores.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Space {
    /// Size of each dim, and its stride in the space of all dims.
    pub(super) sizes: Sequence<u32>,
    pub(super) divisors: Sequence<u32>,
    /// The global position of the first along each dim.
    pub(super) starts: Sequence<u32>,
    /// Of dims in zigzag order, if something is drawn along any: the length of a range, and how many there are.
    pub(super) lengths: Sequence<u32>,
    pub(super) ranges: Sequence<u32>,
    /// Positions of the rows' dims together, and of keys.
    pub(super) rows: u32,
    pub(super) keys: u32,
    /// The number that a tile's scores are which positions decide.
    pub(super) decided: f32,
}

/// Extra operands and random values of scores.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Beside {
    pub(super) tensors: Sequence<OwnedTensor<f32>>,
    pub(super) draws: Sequence<Draw>,
    /// The number of the step.
    pub(super) step: OwnedTensor<u32>,
}

/// A query: its positions, and the offsets of its operands.
#[derive(CubeType)]
pub(super) struct QueryLine {
    pub(super) at: Sequence<u32>,
    pub(super) offsets: Sequence<usize>,
    pub(super) counts: Sequence<u64>,
    /// Operands that are the same for all keys; 0 for others.
    pub(super) known: Sequence<f32>,
}

/// The position along an outer dim or one of the rows.
#[cube]
pub(super) fn position(
    space: &Space,
    outer: u32,
    row: u32,
    #[comptime] dim: usize,
    #[comptime] shape: AttentionShape,
) -> u32 {
    let of_rows = comptime!(dim >= shape.outer);
    let first = comptime!(if of_rows { shape.outer } else { 0 });
    let last = comptime!(if of_rows { shape.key() - 1 } else { shape.outer - 1 });
    let mut at = outer;
    if comptime!(of_rows) {
        at = row;
    }
    if comptime!(dim < last) {
        at /= *space.divisors.index(dim);
    }
    if comptime!(dim > first) {
        at %= *space.sizes.index(dim);
    }
    at
}

/// Offset of an outer position of a tensor.
#[cube]
pub(super) fn base<T: CubePrimitive>(
    tensor: &Tensor<T>,
    space: &Space,
    outer: u32,
    #[comptime] shape: AttentionShape,
) -> usize {
    let mut sum = 0usize;
    #[unroll]
    for dim in 0..comptime!(shape.outer) {
        let at = position(space, outer, 0u32, dim, comptime!(shape.clone()));
        sum += at as usize * tensor.stride(dim);
    }
    sum
}

/// Offset of a row of queries from there.
#[cube]
pub(super) fn row_offset<T: CubePrimitive>(
    tensor: &Tensor<T>,
    space: &Space,
    row: u32,
    #[comptime] shape: AttentionShape,
) -> usize {
    let mut sum = 0usize;
    #[unroll]
    for dim in comptime!(shape.outer)..comptime!(shape.key()) {
        let at = position(space, 0u32, row, dim, comptime!(shape.clone()));
        sum += at as usize * tensor.stride(dim);
    }
    sum
}

/// How far along a dim of the scores what is drawn for a place of the device's block is from where the counts begin. See
/// [`meshwright_plan::Zigzag`].
#[cube]
pub(super) fn drawn_at(
    space: &Space,
    place: u32,
    #[comptime] dim: usize,
    #[comptime] shape: AttentionShape,
) -> u32 {
    let mut at = place;
    if comptime!(shape.ordered[dim]) {
        let (length, place) = (*space.lengths.index(dim), *space.starts.index(dim) + place);
        let (range, within) = (place / length, place % length);
        let from_the_end = *space.ranges.index(dim) - 1u32 - range / 2u32;
        at = select(range & 1 == 0u32, range / 2u32, from_the_end) * length + within;
    }
    at
}

/// A query by its index, without the operands that are the same for all keys.
#[cube]
pub(super) fn bare_line(
    beside: &Beside,
    space: &Space,
    outer: u32,
    row: u32,
    #[comptime] shape: AttentionShape,
) -> QueryLine {
    let mut row = row;
    if comptime!(!shape.whole) {
        row = min(row, space.rows - 1u32);
    }
    let mut at = Sequence::<u32>::new();
    #[unroll]
    for dim in 0..comptime!(shape.key()) {
        at.push(position(space, outer, row, dim, comptime!(shape.clone())));
    }
    let mut offsets = Sequence::<usize>::new();
    let tensors = comptime!(beside.tensors.len());
    #[unroll]
    for i in 0..tensors {
        let tensor = beside.tensors.index(i);
        let mut sum = 0usize;
        #[unroll]
        for dim in 0..comptime!(shape.key()) {
            if comptime!(shape.beside[i].dims[dim]) {
                sum += *at.index(dim) as usize * tensor.stride(dim);
            }
        }
        offsets.push(sum);
    }
    let mut counts = Sequence::<u64>::new();
    let draws = comptime!(beside.draws.len());
    #[unroll]
    for i in 0..draws {
        let draw = beside.draws.index(i);
        let mut count = draw.first;
        #[unroll]
        for dim in 0..comptime!(shape.key()) {
            let position = drawn_at(space, *at.index(dim), dim, comptime!(shape.clone()));
            count += u64::cast_from(position) * *draw.strides.index(dim);
        }
        counts.push(count);
    }
    QueryLine { at, offsets, counts, known: Sequence::<f32>::new() }
}

/// A query by its number.
#[cube]
pub(super) fn line(
    beside: &Beside,
    space: &Space,
    outer: u32,
    row: u32,
    #[comptime] shape: AttentionShape,
) -> QueryLine {
    let mut line = bare_line(beside, space, outer, row, comptime!(shape.clone()));
    #[unroll]
    for i in 0..comptime!(shape.beside.len()) {
        if comptime!(shape.beside[i].dims[shape.key()]) {
            line.known.push(0.0f32);
        } else {
            line.known.push(beside.tensors.index(i)[*line.offsets.index(i)]);
        }
    }
    line
}

/// The two queries that a thread has where queries are rows.
#[cube]
pub(super) fn two_lines(
    beside: &Beside,
    space: &Space,
    outer: u32,
    row: u32,
    #[comptime] shape: AttentionShape,
) -> Sequence<QueryLine> {
    let mut lines = Sequence::<QueryLine>::new();
    lines.push(line(beside, space, outer, row, comptime!(shape.clone())));
    lines.push(line(beside, space, outer, row + 8u32, comptime!(shape.clone())));
    lines
}

/// The element of an operand that a query has for all keys.
#[cube]
pub(super) fn of_query(line: &QueryLine, #[comptime] which: usize) -> f32 {
    *line.known.index(which)
}
