//! The forward pass: of each query the greatest score, the sum of the exponentials relative to it, and the values summed by these
//! (FlashAttention-2, Dao 2023, arXiv 2307.08691, algorithm 1, but that the values are divided by the sum only where the
//! result is asked for).

use super::super::exp2::exp;
use super::super::program::evaluate;
use super::super::tile::{ROWS, Two, accumulate, new_tile, products, row_max, row_sum};
use super::decide::{any_needs, place_of_decision, shift};
use super::draws::by_rows;
use super::load::{QUERIES, load, place_of_cube, write_queries};
use super::scores::{
    AttentionShape, Beside, QueryLine, Space, base, element, of_query, row_offset, score, two_lines,
};
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
    maxima: &mut Tensor<f32>,
    sums: &mut Tensor<f32>,
    out: &mut Tensor<Vector<O, M>>,
    #[comptime] shape: AttentionShape,
    #[define(E)] _half: ElemType,
    #[define(O)] _result: ElemType,
) {
    let (outer, first_query) = place_of_cube(space.rows);
    let plane_row = UNIT_POS / 32 * comptime!(ROWS as u32);
    let columns = comptime!(shape.columns);
    let width = comptime!(shape.values);
    let mut query_rows = new_tile::<E, N>(QUERIES, comptime!(shape.width));
    let mut key_rows = new_tile::<E, N>(columns, comptime!(shape.width));
    let mut value_rows = new_tile::<E, N>(columns, width);
    load(
        queries,
        queries,
        &mut query_rows,
        &mut value_rows,
        (outer, first_query),
        &space,
        comptime!(shape.clone()),
        false,
        QUERIES,
        0usize,
    );
    let row = first_query + plane_row + UNIT_POS % 32 / 4;
    let mut softmax = Softmax::new(&beside, &space, outer, row, comptime!(shape.clone()));
    let mut result = Array::<Vector<f32, Two>>::new(comptime!(width / 4));

    // Tiles that positions decide come last, and only where they have weight.
    let many = space.keys.div_ceil(comptime!(columns as u32));
    let mut needed = true;
    for i in 0..many * comptime!(if shape.decides { 2u32 } else { 1u32 }) {
        let first_key = i % many * comptime!(columns as u32);
        let mut wanted = true;
        if comptime!(shape.decides) {
            if i == many {
                needed = any_needs(softmax.greatest[0], softmax.greatest[1], row, &space);
            }
            let later = i >= many;
            wanted = (decided[place_of_decision(&space, first_query, first_key)] != 0u32) == later;
            wanted = wanted && (needed || !later);
        }
        if wanted {
            load(
                keys,
                values,
                &mut key_rows,
                &mut value_rows,
                (outer, first_key),
                &space,
                comptime!(shape.clone()),
                true,
                columns,
                width,
            );
            let mut weights =
                products::<E, N>(&query_rows, plane_row, &key_rows, columns, comptime!(shape.width));
            let own = comptime!(shape.clone());
            let factors = softmax.scores::<E>(&mut weights, &beside, &space, row, first_key, own);
            softmax.weigh(&mut weights, &factors, &mut result, comptime!(shape.clone()));
            accumulate::<E, N>(&weights, &value_rows, &mut result, columns, width);
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
                greatest[half] = of_query(beside, lines.index(half), comptime!(shape.max.unwrap_or(0)));
            }
        }
        Softmax { lines, greatest, most: Array::<f32>::new(2usize), total: Array::<f32>::new(2usize) }
    }

    /// Puts scores in place of products, and gives the factors of their weights.
    fn scores<E: Float>(
        &mut self,
        products: &mut Array<Vector<f32, Two>>,
        beside: &Beside,
        space: &Space,
        row: u32,
        first_key: u32,
        #[comptime] shape: AttentionShape,
    ) -> Array<Vector<f32, Two>> {
        let columns = comptime!(shape.columns);
        let mut factors = Array::<Vector<f32, Two>>::new(comptime!(columns / 4));
        self.most[0] = self.greatest[0];
        self.most[1] = self.greatest[1];
        #[unroll]
        for pair in 0..comptime!(columns / 16) {
            let first = first_key + comptime!(16 * pair as u32) + UNIT_POS % 4 * 2u32;
            let (line, other) = (self.lines.index(0), self.lines.index(1));
            let drawn = by_rows(beside, line, other, first, comptime!(shape.clone()));
            #[unroll]
            for place in 0..4usize {
                let (tile, half) = comptime!((place / 2, place % 2));
                let at = comptime!(2 * (2 * pair + tile) + half);
                let query = row + comptime!(8 * half as u32);
                let mut scores = Vector::<f32, Two>::zeroed();
                let mut factor = Vector::<f32, Two>::zeroed();
                #[unroll]
                for c in 0..2usize {
                    let key = first + comptime!((8 * tile + c) as u32);
                    let (product, which) = (products[at].extract(c), comptime!(2 * place + c));
                    let (line, own) = (self.lines.index(half), comptime!(shape.clone()));
                    let inputs = element(beside, space, line, &drawn, key, product, which, own);
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
