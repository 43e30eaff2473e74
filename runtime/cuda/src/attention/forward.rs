//! The forward pass: of each query the greatest score, the sum of the exponentials relative to it, and the values summed by these
//! (FlashAttention-2, Dao 2023, arXiv 2307.08691, algorithm 1, but that the values are divided by the sum only where the
//! result is asked for). It begins with none, or with what other keys have given.

use super::decide::{any_needs, next_wanted, shift};
use super::draws::bits_of;
use super::elements::{KeyTile, Which, element, exponential, key_in_tile, score};
use super::layout::{column, new_tiles};
use super::load::{QUERIES, load, meet, place_of_cube, row_of_unit, write_queries};
use super::scores::{AttentionShape, Beside, QueryLine, Space, base, of_query, row_offset, two_lines};
use super::staged::{RowSource, Staged};
use super::stream::{PairShape, Stream};
use super::tiles::{accumulate, factors, finish, products};
use crate::kernel::program::evaluate;
use crate::kernel::tile::{Two, row_max, row_sum};
use cubecl::prelude::*;
use meshwright_plan::AttentionPart;

#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn attention_forward<E: Float, O: Float, N: Size, M: Size>(
    queries: &Tensor<Vector<E, N>>,
    keys: &Tensor<Vector<E, N>>,
    values: &Tensor<Vector<E, N>>,
    beside: Beside,
    space: Space,
    decided: &Tensor<u32>,
    bits: &Tensor<u32>,
    maxima: &mut Tensor<f32>,
    sums: &mut Tensor<f32>,
    out: &mut Tensor<Vector<O, M>>,
    #[comptime] shape: AttentionShape,
    #[define(E)] _half: ElemType,
    #[define(O)] _result: ElemType,
) {
    let (columns, grouped) = comptime!((shape.columns, shape.by.is_grouped()));
    let of = comptime!(PairShape { rows: columns, many: 2, of_keys: true });
    let (query_tile, (key_tile, _values)) = comptime!((shape.tile(QUERIES, shape.width), of.tiles(&shape)));
    let (outer, first_query) = place_of_cube(space.rows, true);
    let query_rows = new_tiles::<E, N>(query_tile, 1usize);
    let own = comptime!(shape.clone());
    let mut stream = Stream::<E, N>::new(keys, values, &beside, &space, outer, of, own);
    let source = RowSource::new(queries, &space, outer, false, comptime!(shape.clone()));
    let own = comptime!(shape.clone());
    load(queries, &source, &query_rows, 0u32, first_query, &space, own, query_tile, false);
    let row = first_query + row_of_unit();
    let mut softmax = Softmax::new(&beside, &space, outer, row, comptime!(shape.clone()));

    // Tiles that positions decide come last, and only where they have weight.
    let many = space.keys.div_ceil(comptime!(columns as u32));
    let mut buffer = 0u32;
    for pass in 0..comptime!(if shape.decides { 2u32 } else { 1u32 }) {
        let (wants, own) = ((pass == 1u32, pass == 0u32), comptime!(shape.clone()));
        let (mut tile, _said) = next_wanted(decided, &space, first_query, 0u32, many, wants, true, own);
        if comptime!(shape.decides) && pass == 1u32 {
            let needed = any_needs(softmax.greatest[0], softmax.greatest[1], row, &space);
            tile = select(needed, tile, many);
        }
        if tile < many {
            let at = (outer, first_query, tile * comptime!(columns as u32), buffer);
            stream.fetch((keys, values, bits), &beside, &space, at, of, comptime!(shape.clone()));
        }
        while tile < many {
            let first = tile * comptime!(columns as u32);
            meet(grouped);
            let mut weights = Array::<Vector<f32, Two>>::new(comptime!(columns / 4));
            let (others, at) = (&stream.pair.first, buffer * comptime!(key_tile.size() as u32));
            products::<E, N>(
                &query_rows,
                0u32,
                others,
                at,
                &mut weights,
                query_tile,
                key_tile,
                0usize,
                columns,
            );
            let own = comptime!(shape.clone());
            let drawn = bits_of(&beside, &space, &softmax.lines, &stream.bits, first, wants.0, own);
            // The next tile comes while this one is looked at.
            let (from, own) = (tile + 1u32, comptime!(shape.clone()));
            let (next, _said) = next_wanted(decided, &space, first_query, from, many, wants, true, own);
            tile = next;
            if tile < many {
                let at = (outer, first_query, tile * comptime!(columns as u32), 1u32 - buffer);
                stream.fetch((keys, values, bits), &beside, &space, at, of, comptime!(shape.clone()));
            }
            finish(&mut weights, columns, 0usize, grouped);
            let (looked_at, own) = (KeyTile { first, buffer, drawn }, comptime!(shape.clone()));
            softmax.look::<E, N>(&mut weights, &beside, &space, &stream, &looked_at, own);
            buffer = 1u32 - buffer;
        }
    }
    softmax.end::<O, M>((maxima, sums, out), &space, outer, shape);
}

/// Divides the sums of values by the sums of their weights.
#[cube]
fn divide(values: &mut Array<Vector<f32, Two>>, sums: &Array<f32>, #[comptime] width: usize) {
    #[unroll]
    for half in 0..2usize {
        let scale = 1.0f32 / sums[half];
        #[unroll]
        for n in 0..comptime!(width / 8) {
            values[2 * n + half] *= Vector::<f32, Two>::new(scale);
        }
    }
}

/// Two rows of scores in a thread.
#[derive(CubeType)]
struct Softmax {
    /// The first of them.
    row: u32,
    lines: Sequence<QueryLine>,
    /// The maximum so far.
    greatest: Array<f32>,
    /// The greatest of the tile that is looked at too.
    most: Array<f32>,
    /// Sums of the thread's weights, and of values.
    total: Array<f32>,
    result: Array<Vector<f32, Two>>,
}

#[cube]
impl Softmax {
    fn new(
        beside: &Beside,
        space: &Space,
        outer: u32,
        row: u32,
        #[comptime] shape: AttentionShape,
    ) -> Softmax {
        let lines = two_lines(beside, space, outer, row, comptime!(shape.clone()));
        let mut greatest = Array::<f32>::new(2usize);
        #[unroll]
        for half in 0..2usize {
            greatest[half] = comptime!(f32::NEG_INFINITY).runtime();
            if comptime!(shape.max.is_some()) {
                greatest[half] = of_query(lines.index(half), comptime!(shape.max.unwrap_or(0)));
            }
        }
        let (most, mut total) = (Array::<f32>::new(2usize), Array::<f32>::new(2usize));
        let mut result = Array::<Vector<f32, Two>>::new(comptime!(shape.values / 4));
        if let Some(first) = comptime!(shape.before) {
            #[unroll]
            for half in 0..2usize {
                let line = lines.index(half);
                greatest[half] = of_query(line, first);
                // Of the four threads that have a row, whose sums are added at the end, one has that of other keys.
                total[half] = select(UNIT_POS & 3 == 0u32, of_query(line, comptime!(first + 1)), 0.0f32);
                let start = *line.offsets.index(comptime!(first + 2));
                #[unroll]
                for n in 0..comptime!(shape.values / 8) {
                    let mut pair = Vector::<f32, Two>::zeroed();
                    #[unroll]
                    for c in 0..2usize {
                        let at = start + (column(n, comptime!(shape.by)) + comptime!(c as u32)) as usize;
                        pair.insert(c, beside.tensors.index(comptime!(first + 2))[at]);
                    }
                    result[2 * n + half] = pair;
                }
            }
        }
        Softmax { row, lines, greatest, most, total, result }
    }

    /// Makes weights of the products of a tile, and adds the values that these are of.
    fn look<E: Float, N: Size>(
        &mut self,
        weights: &mut Array<Vector<f32, Two>>,
        beside: &Beside,
        space: &Space,
        stream: &Stream<E, N>,
        tile: &KeyTile,
        #[comptime] shape: AttentionShape,
    ) {
        let own = comptime!(shape.clone());
        let by_scores = self.scores(weights, beside, space, &stream.staged, tile, own);
        self.weigh(weights, &by_scores, comptime!(shape.clone()));
        if comptime!(shape.values > 0) {
            let (values, weights) = (
                comptime!(shape.tile(shape.columns, shape.values)),
                factors::<E>(&*weights, comptime!(shape.columns), comptime!(shape.by)),
            );
            let at = tile.buffer * comptime!(values.size() as u32);
            let (scratch, tiles) = (&stream.scratch, &stream.pair.second);
            accumulate::<E, N>(&weights, scratch, tiles, at, &mut self.result, values);
            finish(&mut self.result, comptime!(shape.values), 0usize, comptime!(shape.by.is_grouped()));
        }
    }

    /// Writes all that is asked for.
    fn end<O: Float, M: Size>(
        &mut self,
        to: (&mut Tensor<f32>, &mut Tensor<f32>, &mut Tensor<Vector<O, M>>),
        space: &Space,
        outer: u32,
        #[comptime] shape: AttentionShape,
    ) {
        let (maxima, sums, out) = to;
        let (row, width) = (self.row, comptime!(shape.values));
        let total = self.write(maxima, sums, space, outer, row, comptime!(shape.clone()));
        if comptime!(width > 0) {
            if comptime!(shape.gives(AttentionPart::Result)) {
                divide(&mut self.result, &total, width);
            }
            write_queries(out, &self.result, space, (outer, row), shape, width);
        }
    }

    /// Puts scores in place of products, and gives the factors of their weights.
    fn scores(
        &mut self,
        products: &mut Array<Vector<f32, Two>>,
        beside: &Beside,
        space: &Space,
        staged: &Staged,
        tile: &KeyTile,
        #[comptime] shape: AttentionShape,
    ) -> Array<Vector<f32, Two>> {
        let columns = comptime!(shape.columns);
        let mut factors = Array::<Vector<f32, Two>>::new(comptime!(columns / 4));
        self.most[0] = self.greatest[0];
        self.most[1] = self.greatest[1];
        #[unroll]
        for at in 0..comptime!(columns / 4) {
            let half = comptime!(at % 2);
            let query = self.row + comptime!(8 * half as u32);
            let mut scores = Vector::<f32, Two>::zeroed();
            let mut factor = Vector::<f32, Two>::zeroed();
            #[unroll]
            for c in 0..2usize {
                let which = comptime!(Which { pair: at / 4, tile: at / 2 % 2, half, key: c });
                let (line, own) = (self.lines.index(half), comptime!(shape.clone()));
                let product = products[at].extract(c);
                let inputs = element(beside, space, line, staged, tile, product, which, own);
                let key = tile.first + key_in_tile(which);
                let s = score(&inputs, space, query, key, comptime!(shape.clone()));
                self.most[half] = max(self.most[half], s);
                scores.insert(c, s);
                if let Some(weight) = comptime!(shape.weight.clone()) {
                    factor.insert(c, evaluate(&inputs, weight));
                }
            }
            products[at] = scores;
            factors[at] = factor;
        }
        factors
    }

    /// Replaces scores by weights times their factors; rescales earlier sums to the new maximum.
    fn weigh(
        &mut self,
        scores: &mut Array<Vector<f32, Two>>,
        factors: &Array<Vector<f32, Two>>,
        #[comptime] shape: AttentionShape,
    ) {
        #[unroll]
        for half in 0..2usize {
            if comptime!(shape.max.is_none()) {
                let before = self.greatest[half];
                self.greatest[half] = row_max(self.most[half]);
                let kept = exponential(shift(before) - shift(self.greatest[half]), comptime!(shape.by));
                let kept = select(before == comptime!(f32::NEG_INFINITY).runtime(), 0.0f32, kept);
                self.total[half] *= kept;
                #[unroll]
                for n in 0..comptime!(shape.values / 8) {
                    self.result[2 * n + half] *= Vector::<f32, Two>::new(kept);
                }
            }
            let relative_to = shift(self.greatest[half]);
            #[unroll]
            for n in 0..comptime!(shape.columns / 8) {
                let mut made = Vector::<f32, Two>::zeroed();
                #[unroll]
                for c in 0..2usize {
                    let score = scores[2 * n + half].extract(c);
                    let weight = exponential(score - relative_to, comptime!(shape.by));
                    self.total[half] += weight;
                    if comptime!(shape.weight.is_some()) {
                        made.insert(c, weight * factors[2 * n + half].extract(c));
                    } else {
                        made.insert(c, weight);
                    }
                }
                scores[2 * n + half] = made;
            }
        }
    }

    /// Gives the sums of the weights of both rows.
    fn write(
        &self,
        maxima: &mut Tensor<f32>,
        sums: &mut Tensor<f32>,
        space: &Space,
        outer: u32,
        row: u32,
        #[comptime] shape: AttentionShape,
    ) -> Array<f32> {
        let mut total = Array::<f32>::new(2usize);
        let maxima_base = base(&*maxima, space, outer, comptime!(shape.clone()));
        let sums_base = base(&*sums, space, outer, comptime!(shape.clone()));
        #[unroll]
        for half in 0..2usize {
            let query = row + comptime!(8 * half as u32);
            let sum = row_sum(self.total[half]);
            total[half] = sum;
            if query < space.rows && UNIT_POS & 3 == 0u32 {
                if comptime!(shape.gives(AttentionPart::Max)) {
                    let at = maxima_base + row_offset(&*maxima, space, query, comptime!(shape.clone()));
                    maxima[at] = self.greatest[half];
                }
                if comptime!(shape.gives(AttentionPart::Sum)) {
                    let at = sums_base + row_offset(&*sums, space, query, comptime!(shape.clone()));
                    sums[at] = sum;
                }
            }
        }
        total
    }
}
