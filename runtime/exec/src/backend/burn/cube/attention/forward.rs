//! The forward pass: of each query the greatest score, the sum of the exponentials relative to it, and the values summed by these
//! (FlashAttention-2, Dao 2023, arXiv 2307.08691, algorithm 1, but that the values are divided by the sum only where the
//! result is asked for).

use super::super::exp2::exp;
use super::super::program::evaluate;
use super::super::tile::{Two, row_max, row_sum};
use super::decide::{any_needs, next_wanted, shift};
use super::draws::{bits_of, load_bits};
use super::load::{QUERIES, load, meet, place_of_cube, row_of_unit, write_queries};
use super::scores::{
    AttentionShape, Beside, KeyTile, QueryLine, Space, Which, base, element, key_in_tile, of_query,
    row_offset, score, two_lines,
};
use super::staged::{RowSource, Staged};
use super::tiles::{accumulate, finish, halves, new_tiles, products};
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
    let columns = comptime!(shape.columns);
    let width = comptime!(shape.values);
    let (query_shape, key_shape, value_shape) = comptime!((
        shape.tile(QUERIES, shape.width),
        shape.tile(columns, shape.width),
        shape.tile(columns, width)
    ));
    let (outer, first_query) = place_of_cube(space.rows, true);
    let row = first_query + row_of_unit();
    let query_rows = new_tiles::<E, N>(query_shape, 1usize);
    let key_rows = new_tiles::<E, N>(key_shape, 2usize);
    let value_rows = new_tiles::<E, N>(value_shape, 2usize);
    let staged = Staged::new(&beside, &space, outer, true, comptime!(shape.clone()));
    let of_queries = RowSource::new(queries, &space, outer, false, comptime!(shape.clone()));
    let of_keys = RowSource::new(keys, &space, outer, true, comptime!(shape.clone()));
    let of_values = RowSource::new(values, &space, outer, true, comptime!(shape.clone()));
    let own = comptime!(shape.clone());
    load(queries, &of_queries, &query_rows, 0u32, first_query, &space, own, query_shape, false);
    let mut softmax = Softmax::new(&beside, &space, outer, row, comptime!(shape.clone()));
    let mut result = Array::<Vector<f32, Two>>::new(comptime!(width / 4));

    // Tiles that positions decide come last, and only where they have weight.
    let many = space.keys.div_ceil(comptime!(columns as u32));
    let mut buffer = 0u32;
    let mut bits_ahead = Array::<u32>::new(comptime!(shape.draws.len().max(1)));
    for pass in 0..comptime!(if shape.decides { 2u32 } else { 1u32 }) {
        let wants = (pass == 1u32, pass == 0u32);
        let (mut tile, _is) =
            next_wanted(decided, &space, first_query, 0u32, many, wants, true, comptime!(shape.clone()));
        if comptime!(shape.decides) && pass == 1u32 {
            let needed = any_needs(softmax.greatest[0], softmax.greatest[1], row, &space);
            tile = select(needed, tile, many);
        }
        if tile < many {
            let first = tile * comptime!(columns as u32);
            load(keys, &of_keys, &key_rows, buffer, first, &space, comptime!(shape.clone()), key_shape, true);
            load(
                values,
                &of_values,
                &value_rows,
                buffer,
                first,
                &space,
                comptime!(shape.clone()),
                value_shape,
                true,
            );
            staged.load(&beside, &space, buffer, first, true, comptime!(shape.clone()));
            load_bits(&space, bits, (outer, first_query, first), &mut bits_ahead, comptime!(shape.clone()));
        }
        while tile < many {
            let first = tile * comptime!(columns as u32);
            meet(comptime!(shape.grouped));
            let mut weights = Array::<Vector<f32, Two>>::new(comptime!(columns / 4));
            let at = buffer * comptime!(key_shape.size() as u32);
            products::<E, N>(
                &query_rows,
                0u32,
                &key_rows,
                at,
                &mut weights,
                query_shape,
                key_shape,
                0usize,
                columns,
            );
            let drawn =
                bits_of(&beside, &softmax.lines, &bits_ahead, first, wants.0, comptime!(shape.clone()));
            // The next tile comes while this one is looked at.
            let from = tile + 1u32;
            let (next, _is) =
                next_wanted(decided, &space, first_query, from, many, wants, true, comptime!(shape.clone()));
            tile = next;
            if tile < many {
                let (first, other) = (tile * comptime!(columns as u32), 1u32 - buffer);
                load(
                    keys,
                    &of_keys,
                    &key_rows,
                    other,
                    first,
                    &space,
                    comptime!(shape.clone()),
                    key_shape,
                    true,
                );
                load(
                    values,
                    &of_values,
                    &value_rows,
                    other,
                    first,
                    &space,
                    comptime!(shape.clone()),
                    value_shape,
                    true,
                );
                staged.load(&beside, &space, other, first, true, comptime!(shape.clone()));
                load_bits(
                    &space,
                    bits,
                    (outer, first_query, first),
                    &mut bits_ahead,
                    comptime!(shape.clone()),
                );
            }
            let looked_at = KeyTile { first, buffer, drawn };
            finish(&mut weights, columns, 0usize, comptime!(shape.grouped));
            let own = comptime!(shape.clone());
            let factors = softmax.scores::<E>(&mut weights, &beside, &space, &staged, &looked_at, own);
            softmax.weigh(&mut weights, &factors, &mut result, comptime!(shape.clone()));
            if comptime!(width > 0) {
                let (weights, at) =
                    (halves::<E>(&weights, columns), buffer * comptime!(value_shape.size() as u32));
                accumulate::<E, N>(&weights, &value_rows, at, &mut result, value_shape);
                finish(&mut result, width, 0usize, comptime!(shape.grouped));
            }
            buffer = 1u32 - buffer;
        }
    }
    let total = softmax.write(maxima, sums, &space, outer, row, comptime!(shape.clone()));
    if comptime!(width > 0) {
        if comptime!(shape.gives(AttentionPart::Result)) {
            divide(&mut result, &total, width);
        }
        write_queries(out, &result, &space, (outer, row), shape, width);
    }
}
/// Divides what was summed of the values by the sums of their weights.
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

/// Two rows of scores, of which a unit has some.
#[derive(CubeType)]
struct Softmax {
    /// The first of them.
    row: u32,
    lines: Sequence<QueryLine>,
    /// The greatest so far.
    greatest: Array<f32>,
    /// The greatest of the tile that is looked at too.
    most: Array<f32>,
    /// Sums of the unit's weights.
    total: Array<f32>,
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
        Softmax { row, lines, greatest, most: Array::<f32>::new(2usize), total: Array::<f32>::new(2usize) }
    }

    /// Puts scores in place of products, and gives the factors of their weights.
    fn scores<E: Float>(
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
                let s = score::<E>(&inputs, space, query, key, comptime!(shape.clone()));
                self.most[half] = max(self.most[half], s);
                scores.insert(c, s);
                if let Some(weight) = comptime!(shape.weight.clone()) {
                    factor.insert(c, evaluate::<E>(&inputs, weight));
                }
            }
            products[at] = scores;
            factors[at] = factor;
        }
        factors
    }

    /// Puts weights times their factors in place of scores; what was summed before becomes relative to the new greatest.
    fn weigh(
        &mut self,
        scores: &mut Array<Vector<f32, Two>>,
        factors: &Array<Vector<f32, Two>>,
        result: &mut Array<Vector<f32, Two>>,
        #[comptime] shape: AttentionShape,
    ) {
        #[unroll]
        for half in 0..2usize {
            if comptime!(shape.max.is_none()) {
                let before = self.greatest[half];
                self.greatest[half] = row_max(self.most[half]);
                let kept = exp(shift(before) - shift(self.greatest[half]));
                let kept = select(before == comptime!(f32::NEG_INFINITY).runtime(), 0.0f32, kept);
                self.total[half] *= kept;
                #[unroll]
                for n in 0..comptime!(shape.values / 8) {
                    result[2 * n + half] *= Vector::<f32, Two>::new(kept);
                }
            }
            let relative_to = shift(self.greatest[half]);
            #[unroll]
            for n in 0..comptime!(shape.columns / 8) {
                let mut made = Vector::<f32, Two>::zeroed();
                #[unroll]
                for c in 0..2usize {
                    let weight = exp(scores[2 * n + half].extract(c) - relative_to);
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
