//! The forward pass: of each query the greatest score, the sum of the exponentials relative to it, and the values summed by these
//! (FlashAttention-2, Dao 2023, arXiv 2307.08691, algorithm 1, but that the result is not divided by the sum).

use super::draws::by_rows;
use super::program::evaluate;
use super::scores::{Beside, DECIDED, Line, Shape, Space, base, element, line, of_query, row_offset, score};
use super::tile::{
    PLANES, ROWS, Two, UNITS, VECTOR, accumulate, new_tile, products, put, row_max, row_sum, vectors_each,
};
use cubecl::prelude::*;
use meshwright_plan::AttentionPart;

/// Queries of a cube.
pub(super) const QUERIES: usize = PLANES * ROWS;

/// What of some rows a unit is to put into a tile.
#[cube]
pub(super) fn fetch_queries<E: Float, N: Size>(
    source: &Tensor<Vector<E, N>>,
    base: usize,
    first: u32,
    space: &Space,
    #[comptime] shape: Shape,
    #[comptime] rows: usize,
    #[comptime] width: usize,
) -> Array<Vector<E, N>> {
    let each = comptime!(vectors_each(rows, width));
    let vectors = comptime!((width / VECTOR) as u32);
    let mut fetched = Array::<Vector<E, N>>::new(each);
    #[unroll]
    for i in 0..each {
        let at = UNIT_POS + comptime!((i * UNITS) as u32);
        let row = at / vectors;
        if row < comptime!(rows as u32) && first + row < space.rows {
            let offset = row_offset(source, space, first + row, comptime!(shape.clone()));
            fetched[i] = source[(base + offset) / VECTOR + (at % vectors) as usize];
        }
    }
    fetched
}

/// The same of keys or values.
#[cube]
pub(super) fn fetch_keys<E: Float, N: Size>(
    source: &Tensor<Vector<E, N>>,
    base: usize,
    first: u32,
    space: &Space,
    #[comptime] shape: Shape,
    #[comptime] rows: usize,
    #[comptime] width: usize,
) -> Array<Vector<E, N>> {
    let each = comptime!(vectors_each(rows, width));
    let vectors = comptime!((width / VECTOR) as u32);
    let mut fetched = Array::<Vector<E, N>>::new(each);
    #[unroll]
    for i in 0..each {
        let at = UNIT_POS + comptime!((i * UNITS) as u32);
        let row = at / vectors;
        if row < comptime!(rows as u32) && first + row < space.keys {
            let offset = (first + row) as usize * source.stride(comptime!(shape.key()));
            fetched[i] = source[(base + offset) / VECTOR + (at % vectors) as usize];
        }
    }
    fetched
}

/// The number to which scores are relative: none of a row without scores, all of whose weights are 0.
#[cube]
pub(super) fn shift(max: f32) -> f32 {
    select(max == comptime!(f32::NEG_INFINITY).runtime(), 0.0f32, max)
}

/// Whether a score has a weight beside the greatest of its row, which is not 0 in `f32`; NaN has.
#[cube]
pub(super) fn has_weight(score: f32, max: f32) -> bool {
    !(max - score > 110.0f32)
}

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
    #[comptime] shape: Shape,
    #[define(E)] _half: ElemType,
    #[define(O)] _result: ElemType,
) {
    let lane = UNIT_POS % 32;
    let tiles = space.rows.div_ceil(comptime!(QUERIES as u32));
    let outer = CUBE_POS_X / tiles;
    let query_tile = CUBE_POS_X % tiles;
    let first_query = query_tile * comptime!(QUERIES as u32);
    let plane_row = UNIT_POS / 32 * comptime!(ROWS as u32);
    let columns = comptime!(shape.columns);
    let width = comptime!(shape.width);
    let values_width = comptime!(shape.values);

    let mut query_rows = new_tile::<E, N>(QUERIES, width);
    let fetched = fetch_queries(
        queries,
        base(queries, &space, outer, comptime!(shape.clone())),
        first_query,
        &space,
        comptime!(shape.clone()),
        QUERIES,
        width,
    );
    put(&fetched, &mut query_rows, QUERIES, width);
    let mut key_rows = new_tile::<E, N>(columns, width);
    let mut value_rows = new_tile::<E, N>(columns, values_width);
    let keys_base = base(keys, &space, outer, comptime!(shape.clone()));
    let values_base = base(values, &space, outer, comptime!(shape.clone()));

    // The two rows of which this unit has elements.
    let row = first_query + plane_row + lane / 4;
    let mut lines = Sequence::<Line>::new();
    lines.push(line(&beside, &space, outer, row, comptime!(shape.clone())));
    lines.push(line(&beside, &space, outer, row + 8u32, comptime!(shape.clone())));
    let mut greatest = Array::<f32>::new(2usize);
    let mut total = Array::<f32>::new(2usize);
    #[unroll]
    for half in 0..2usize {
        greatest[half] = comptime!(f32::NEG_INFINITY).runtime();
        if comptime!(shape.max.is_some()) {
            greatest[half] = of_query(&beside, lines.index(half), comptime!(shape.max.unwrap_or(0)));
        }
        total[half] = 0.0f32;
    }
    let mut result = Array::<Vector<f32, Two>>::new(comptime!(values_width / 4));

    // Tiles that positions decide come last, and only where they have weight.
    let many = space.keys.div_ceil(comptime!(columns as u32));
    let mut all = many;
    if comptime!(shape.decides) {
        all = 2u32 * many;
    }
    let mut needed = true;
    for i in 0..all {
        let second = i >= many;
        let mut key_tile = i;
        let mut wanted = true;
        if comptime!(shape.decides) {
            key_tile = i % many;
            let at = place_of_decision(&space, first_query, key_tile * comptime!(columns as u32));
            wanted = (decided[at] != 0u32) == second;
            if i == many {
                needed = any_needs(&greatest, row, &space);
            }
            if second && !needed {
                wanted = false;
            }
        }
        if wanted {
            let first_key = key_tile * comptime!(columns as u32);
            let fetched =
                fetch_keys(keys, keys_base, first_key, &space, comptime!(shape.clone()), columns, width);
            sync_cube();
            put(&fetched, &mut key_rows, columns, width);
            if comptime!(values_width > 0) {
                let fetched = fetch_keys(
                    values,
                    values_base,
                    first_key,
                    &space,
                    comptime!(shape.clone()),
                    columns,
                    values_width,
                );
                put(&fetched, &mut value_rows, columns, values_width);
            }
            sync_cube();
            let mut weights = products::<E, N>(&query_rows, plane_row, &key_rows, columns, width);
            let mut factors = Array::<Vector<f32, Two>>::new(comptime!(columns / 4));
            let mut most = Array::<f32>::new(2usize);
            most[0] = greatest[0];
            most[1] = greatest[1];
            #[unroll]
            for n in 0..comptime!(columns / 8) {
                let first = first_key + comptime!(8 * n as u32) + lane % 4 * 2u32;
                let drawn = by_rows(&beside, lines.index(0), lines.index(1), first, comptime!(shape.clone()));
                #[unroll]
                for half in 0..2usize {
                    let query = row + comptime!(8 * half as u32);
                    let mut scores = Vector::<f32, Two>::zeroed();
                    let mut factor = Vector::<f32, Two>::zeroed();
                    #[unroll]
                    for c in 0..2usize {
                        let key = first + comptime!(c as u32);
                        let at = element(
                            &beside,
                            &space,
                            lines.index(half),
                            &drawn,
                            key,
                            weights[2 * n + half].extract(c),
                            comptime!(2 * half + c),
                            comptime!(shape.clone()),
                        );
                        let s = score::<E>(&at, &space, query, key, comptime!(shape.clone()));
                        most[half] = max(most[half], s);
                        scores.insert(c, s);
                        if comptime!(shape.weight.is_some()) {
                            let program = comptime!(shape.weight.clone().unwrap());
                            factor.insert(c, evaluate::<E>(&at, program));
                        }
                    }
                    weights[2 * n + half] = scores;
                    factors[2 * n + half] = factor;
                }
            }
            #[unroll]
            for half in 0..2usize {
                if comptime!(shape.max.is_none()) {
                    let before = greatest[half];
                    greatest[half] = row_max(most[half]);
                    let kept = (shift(before) - shift(greatest[half])).exp();
                    let kept = select(before == comptime!(f32::NEG_INFINITY).runtime(), 0.0f32, kept);
                    total[half] *= kept;
                    #[unroll]
                    for n in 0..comptime!(values_width / 8) {
                        result[2 * n + half] *= Vector::<f32, Two>::new(kept);
                    }
                }
                let relative_to = shift(greatest[half]);
                #[unroll]
                for n in 0..comptime!(columns / 8) {
                    let scores = weights[2 * n + half];
                    let mut made = Vector::<f32, Two>::zeroed();
                    #[unroll]
                    for c in 0..2usize {
                        let weight = (scores.extract(c) - relative_to).exp();
                        total[half] += weight;
                        if comptime!(shape.weight.is_some()) {
                            made.insert(c, weight * factors[2 * n + half].extract(c));
                        } else {
                            made.insert(c, weight);
                        }
                    }
                    weights[2 * n + half] = made;
                }
            }
            if comptime!(values_width > 0) {
                accumulate::<E, N>(&weights, &value_rows, &mut result, columns, values_width);
            }
        }
    }

    let maxima_base = base(&*maxima, &space, outer, comptime!(shape.clone()));
    let sums_base = base(&*sums, &space, outer, comptime!(shape.clone()));
    let out_base = base(&*out, &space, outer, comptime!(shape.clone()));
    #[unroll]
    for half in 0..2usize {
        let query = row + comptime!(8 * half as u32);
        let sum = row_sum(total[half]);
        if query < space.rows {
            if comptime!(shape.gives(AttentionPart::Max)) && lane % 4 == 0u32 {
                let at = maxima_base + row_offset(&*maxima, &space, query, comptime!(shape.clone()));
                maxima[at] = greatest[half];
            }
            if comptime!(shape.gives(AttentionPart::Sum)) && lane % 4 == 0u32 {
                let at = sums_base + row_offset(&*sums, &space, query, comptime!(shape.clone()));
                sums[at] = sum;
            }
            if comptime!(values_width > 0) {
                let at = out_base + row_offset(&*out, &space, query, comptime!(shape.clone()));
                #[unroll]
                for n in 0..comptime!(values_width / 8) {
                    let place = at / 2 + comptime!(4 * n) + (lane % 4) as usize;
                    out[place] = Vector::<O, M>::cast_from(result[2 * n + half]);
                }
            }
        }
    }
}

/// Where the table of decided tiles tells of a tile.
#[cube]
pub(super) fn place_of_decision(space: &Space, query: u32, key: u32) -> usize {
    let tile = comptime!(DECIDED as u32);
    (query / tile * space.keys.div_ceil(tile) + key / tile) as usize
}

/// Whether the score of the tiles that positions decide has a weight in any row of the cube.
#[cube]
fn any_needs(greatest: &Array<f32>, row: u32, space: &Space) -> bool {
    let mut needs = false;
    #[unroll]
    for half in 0..2usize {
        if row + comptime!(8 * half as u32) < space.rows && has_weight(space.decided, greatest[half]) {
            needs = true;
        }
    }
    any_of_cube(needs)
}

/// Whether it is so for any unit of the cube.
#[cube]
pub(super) fn any_of_cube(is: bool) -> bool {
    let mut votes = Shared::<[u32]>::new_slice(PLANES);
    let vote = plane_max(select(is, 1u32, 0u32));
    sync_cube();
    votes[(UNIT_POS / 32) as usize] = vote;
    sync_cube();
    let mut any = 0u32;
    #[unroll]
    for plane in 0..PLANES {
        any = max(any, votes[plane]);
    }
    any != 0u32
}
