//! What kernels know of scores: where operands lie, and what is read and drawn beside the product of query and key.
//!
//! The dims of the scores are the outer ones, whose every position is an attention of its own; those of the rows, the queries of one; and
//! that of the keys. All tensors are walked by strides along these, which are 0 where they lack a dim, and along a dim of their own.

use super::super::drawn::Draw;
use super::super::program::ScalarProgram;
use super::tiles::TileShape;
use cubecl::prelude::*;
pub(super) use meshwright_device::kernels::attention::DECIDED;
use meshwright_plan::AttentionPart;

/// What a kernel is compiled for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct AttentionShape {
    /// How many outer dims and dims of rows there are.
    pub(super) outer: usize,
    pub(super) rows: usize,
    /// Elements of a query, and of a value; 0 where values are not read.
    pub(super) width: usize,
    pub(super) values: usize,
    /// Keys, or queries, that are looked at a time.
    pub(super) columns: usize,
    pub(super) score: ScalarProgram,
    /// Of gradients.
    pub(super) slope: Option<ScalarProgram>,
    /// None where all factors of weights are 1.
    pub(super) weight: Option<ScalarProgram>,
    /// The tensors beside the product: extra operands, then these where they are given.
    pub(super) beside: Vec<BesideShape>,
    pub(super) extras: usize,
    pub(super) max: Option<usize>,
    pub(super) scale: Option<usize>,
    pub(super) delta: Option<usize>,
    pub(super) draws: Vec<DrawnShape>,
    /// Whether what is drawn is in memory, but for tiles that positions decide.
    pub(super) ahead: bool,
    /// Whether positions alone decide tiles.
    pub(super) decides: bool,
    /// Whether tiles hold neither queries nor keys beyond the last.
    pub(super) whole: bool,
    /// Whether four planes multiply together.
    pub(super) grouped: bool,
    /// What is to be written.
    pub(super) parts: Vec<AttentionPart>,
}

/// How many elements of what is drawn share a counter, and whether eight keys that follow each other do from each eighth on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct DrawnShape {
    pub(super) many: usize,
    pub(super) in_groups: bool,
}

/// How a tensor beside the products lies.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct BesideShape {
    /// Which dims of the scores it has. The others are not walked, so what queries of one attention have in common is read once.
    pub(super) dims: Vec<bool>,
    /// Whether keys lie next to each other.
    pub(super) dense: bool,
}

impl AttentionShape {
    /// Which dim the keys are.
    pub(super) const fn key(&self) -> usize {
        self.outer + self.rows
    }

    /// The dims of the rows, or that of the keys.
    pub(super) const fn dims_of(&self, of_keys: bool) -> std::ops::Range<usize> {
        if of_keys { self.key()..self.key() + 1 } else { self.outer..self.key() }
    }

    /// A tile of so many rows and columns.
    pub(super) const fn tile(&self, rows: usize, width: usize) -> TileShape {
        TileShape { rows, width, grouped: self.grouped }
    }

    /// The tensors beside the products that have keys alone, or queries alone, beside the outer dims.
    pub(super) fn staged(&self, of_keys: bool) -> Vec<usize> {
        let is = |of: &BesideShape, i: usize| {
            let (has_keys, rows) = (of.dims[self.key()], &of.dims[self.outer..self.key()]);
            if of_keys { i < self.extras && has_keys && !rows.contains(&true) } else { !has_keys }
        };
        (0..self.beside.len()).filter(|i| is(&self.beside[*i], *i)).collect()
    }

    /// Whether a part is to be written.
    pub(super) fn gives(&self, part: AttentionPart) -> bool {
        self.parts.contains(&part)
    }
}

/// The dims of the scores.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Space {
    /// Size of each dim, and how many of what the dims are together lie between two positions of it.
    pub(super) sizes: Sequence<u32>,
    pub(super) divisors: Sequence<u32>,
    /// The global position of the first along each dim.
    pub(super) starts: Sequence<u32>,
    /// Positions of the rows' dims together, and of keys.
    pub(super) rows: u32,
    pub(super) keys: u32,
    /// The number that a tile's scores are which positions decide.
    pub(super) decided: f32,
}

/// What is read and drawn beside products.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Beside {
    pub(super) tensors: Sequence<OwnedTensor<f32>>,
    pub(super) draws: Sequence<Draw>,
    /// The number of the step.
    pub(super) step: OwnedTensor<u32>,
}

/// A query: its positions, and where what belongs to it begins.
#[derive(CubeType)]
pub(super) struct QueryLine {
    pub(super) at: Sequence<u32>,
    pub(super) offsets: Sequence<usize>,
    pub(super) counts: Sequence<u64>,
    /// What is read beside products that is the same for all keys; 0 in the place of what is not.
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

/// Where an outer position of a tensor begins.
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

/// How far a row of queries is from there.
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

/// A query by its number, without what it has for all keys.
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
            count += u64::cast_from(*at.index(dim)) * *draw.strides.index(dim);
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

/// The two queries that a unit has where queries are rows.
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

/// The element of a tensor beside the products that a query has for all keys.
#[cube]
pub(super) fn of_query(line: &QueryLine, #[comptime] which: usize) -> f32 {
    *line.known.index(which)
}
