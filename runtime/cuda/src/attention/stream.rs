//! Pairs of tiles in shared memory, of keys and values or of queries and their cotangents, double-buffered.

#![expect(clippy::type_complexity, reason = "kernels have no aliases of types")]

use super::decide::next_wanted;
use super::draws::load_bits;
use super::layout::{TileShape, new_tiles, scratch_tile};
use super::load::load;
use super::scores::{AttentionShape, Beside, Space};
use super::staged::{RowSource, Staged};
use super::tiles::{finish, products};
use crate::kernel::tile::Two;
use cubecl::prelude::*;

/// Shape of a pair: rows of each, and number of buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct PairShape {
    pub(super) rows: usize,
    pub(super) many: usize,
    /// Keys and values, or else queries and cotangents.
    pub(super) of_keys: bool,
}

impl PairShape {
    /// Tiles as wide as queries and keys, and as wide as values; of no width where values are not read.
    pub(super) fn tiles(self, shape: &AttentionShape) -> (TileShape, TileShape) {
        (shape.tile(self.rows, shape.width), shape.tile(self.rows, shape.values_of(self.of_keys)))
    }
}

/// Tiles of two tensors.
#[derive(CubeType)]
pub(super) struct Pair<E: Float, N: Size> {
    pub(super) first: Shared<[Vector<E, N>]>,
    pub(super) second: Shared<[Vector<E, N>]>,
    of_first: RowSource,
    of_second: RowSource,
}

#[cube]
impl<E: Float, N: Size> Pair<E, N> {
    pub(super) fn new(
        first: &Tensor<Vector<E, N>>,
        second: &Tensor<Vector<E, N>>,
        space: &Space,
        outer: u32,
        #[comptime] of: PairShape,
        #[comptime] shape: AttentionShape,
    ) -> Pair<E, N> {
        let (wide, other) = comptime!(of.tiles(&shape));
        let of_first = RowSource::new(first, space, outer, comptime!(of.of_keys), comptime!(shape.clone()));
        let of_second = RowSource::new(second, space, outer, comptime!(of.of_keys), shape);
        let first = new_tiles::<E, N>(wide, comptime!(of.many));
        let second = new_tiles::<E, N>(other, comptime!(of.many));
        Pair::<E, N> { first, second, of_first, of_second }
    }

    /// Begins to copy the rows from `row` on, to the `buffer`-th of the tiles. See `load::meet`.
    pub(super) fn load(
        &self,
        tensors: (&Tensor<Vector<E, N>>, &Tensor<Vector<E, N>>),
        space: &Space,
        at: (u32, u32),
        #[comptime] of: PairShape,
        #[comptime] shape: AttentionShape,
    ) {
        self.load_from(tensors, (&self.of_first, &self.of_second), space, at, of, shape);
    }

    /// The same at an outer position of its own, to the first of the tiles.
    pub(super) fn load_at(
        &self,
        tensors: (&Tensor<Vector<E, N>>, &Tensor<Vector<E, N>>),
        space: &Space,
        at: (u32, u32),
        #[comptime] of: PairShape,
        #[comptime] shape: AttentionShape,
    ) {
        let (outer, row) = at;
        let of_first =
            RowSource::new(tensors.0, space, outer, comptime!(of.of_keys), comptime!(shape.clone()));
        let of_second =
            RowSource::new(tensors.1, space, outer, comptime!(of.of_keys), comptime!(shape.clone()));
        self.load_from(tensors, (&of_first, &of_second), space, (0u32, row), of, shape);
    }

    fn load_from(
        &self,
        tensors: (&Tensor<Vector<E, N>>, &Tensor<Vector<E, N>>),
        sources: (&RowSource, &RowSource),
        space: &Space,
        at: (u32, u32),
        #[comptime] of: PairShape,
        #[comptime] shape: AttentionShape,
    ) {
        let ((wide, other), of_keys) = comptime!((of.tiles(&shape), of.of_keys));
        let (buffer, row) = at;
        let own = comptime!(shape.clone());
        load(tensors.0, sources.0, &self.first, buffer, row, space, own, wide, of_keys);
        load(tensors.1, sources.1, &self.second, buffer, row, space, shape, other, of_keys);
    }
}

/// A pair with two buffers, with the operands of its rows, and the random words of the next tile.
#[derive(CubeType)]
pub(super) struct Stream<E: Float, N: Size> {
    pub(super) pair: Pair<E, N>,
    /// Left factors of products with a tile of keys, where threads multiply alone.
    pub(super) scratch: Shared<[Vector<E, N>]>,
    pub(super) staged: Staged,
    pub(super) bits: Array<u32>,
}

#[cube]
impl<E: Float, N: Size> Stream<E, N> {
    pub(super) fn new(
        first: &Tensor<Vector<E, N>>,
        second: &Tensor<Vector<E, N>>,
        beside: &Beside,
        space: &Space,
        outer: u32,
        #[comptime] of: PairShape,
        #[comptime] shape: AttentionShape,
    ) -> Stream<E, N> {
        let pair = Pair::<E, N>::new(first, second, space, outer, of, comptime!(shape.clone()));
        let staged = Staged::new(beside, space, outer, comptime!(of.of_keys), comptime!(shape.clone()));
        let bits = Array::<u32>::new(comptime!(shape.draws.len().max(1)));
        let scratch = comptime!(scratch_tile(if of.of_keys { of.rows } else { 0 }, shape.by));
        let scratch = new_tiles::<E, N>(scratch, 1usize);
        Stream::<E, N> { pair, scratch, staged, bits }
    }

    /// Begins to copy a tile; `at` is the outer position, the first query and key that are looked at then, and the buffer.
    pub(super) fn fetch(
        &mut self,
        tensors: (&Tensor<Vector<E, N>>, &Tensor<Vector<E, N>>, &Tensor<u32>),
        beside: &Beside,
        space: &Space,
        at: (u32, u32, u32, u32),
        #[comptime] of: PairShape,
        #[comptime] shape: AttentionShape,
    ) {
        let (outer, query, key, buffer) = at;
        let row = if comptime!(of.of_keys) { key } else { query };
        self.pair.load((tensors.0, tensors.1), space, (buffer, row), of, comptime!(shape.clone()));
        self.staged.load(beside, space, buffer, row, comptime!(of.of_keys), comptime!(shape.clone()));
        load_bits(space, tensors.2, (outer, query, key), &mut self.bits, shape);
    }

    /// Begins to copy the next tile of queries that `wants` says, if there is one; `from` is the outer position, the first key,
    /// the first tile that counts and the buffer. Gives its index, which is the number of tiles where none is left, and whether
    /// positions decide it.
    pub(super) fn fetch_wanted(
        &mut self,
        tensors: (&Tensor<Vector<E, N>>, &Tensor<Vector<E, N>>, &Tensor<u32>, &Tensor<u32>),
        scores: (&Beside, &Space),
        from: (u32, u32, u32, u32),
        wants: (bool, bool),
        #[comptime] of: PairShape,
        #[comptime] shape: AttentionShape,
    ) -> (u32, bool) {
        let ((beside, space), (outer, key, first, buffer)) = (scores, from);
        let (rows, own) = comptime!((of.rows as u32, shape.clone()));
        let many = space.rows.div_ceil(rows);
        let (tile, is_decided) = next_wanted(tensors.3, space, key, first, many, wants, false, own);
        if tile < many {
            let at = (outer, tile * rows, key, buffer);
            self.fetch((tensors.0, tensors.1, tensors.2), beside, space, at, of, shape);
        }
        (tile, is_decided)
    }
}

/// Matmuls of queries and keys, and of cotangents and values, of the same positions, and the values that replace them. Where
/// values are not read, the second are zeros.
#[derive(CubeType)]
pub(super) struct Both {
    pub(super) scores: Array<Vector<f32, Two>>,
    pub(super) by_weights: Array<Vector<f32, Two>>,
}

#[cube]
impl Both {
    /// Begins the products of the rows of one pair and `columns` rows of another from `start` on.
    pub(super) fn begin<E: Float, N: Size>(
        rows: (&Pair<E, N>, u32),
        others: (&Pair<E, N>, u32),
        #[comptime] of: (PairShape, PairShape),
        #[comptime] start: usize,
        #[comptime] columns: usize,
        #[comptime] shape: AttentionShape,
    ) -> Both {
        let ((wide, other), (wide_of, other_of)) = comptime!((of.0.tiles(&shape), of.1.tiles(&shape)));
        let mut scores = Array::<Vector<f32, Two>>::new(comptime!(columns / 4));
        let mut by_weights = Array::<Vector<f32, Two>>::new(comptime!(columns / 4));
        let at = rows.1 * comptime!(wide.size() as u32);
        let others_at = others.1 * comptime!(wide_of.size() as u32);
        let (left, right) = (&rows.0.first, &others.0.first);
        products::<E, N>(left, at, right, others_at, &mut scores, wide, wide_of, start, columns);
        if comptime!(other_of.width > 0) {
            let at = rows.1 * comptime!(other.size() as u32);
            let others_at = others.1 * comptime!(other_of.size() as u32);
            let (left, right) = (&rows.0.second, &others.0.second);
            products::<E, N>(left, at, right, others_at, &mut by_weights, other, other_of, start, columns);
        }
        Both { scores, by_weights }
    }

    /// Waits for them.
    pub(super) fn finish(&mut self, #[comptime] columns: usize, #[comptime] grouped: bool) {
        finish(&mut self.scores, columns, 0usize, grouped);
        finish(&mut self.by_weights, columns, 0usize, grouped);
    }
}
