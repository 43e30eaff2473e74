//! The gradients. Weights are computed again from the greatest scores and the sums. One kernel goes through the keys of some queries, and
//! another through the queries of some keys, so that every sum has one order: nothing is added by atomics (FlashAttention-2, Dao 2023,
//! arXiv 2307.08691, section 3.1.2, has one kernel, which computes less and adds the gradients of queries as they come).

use super::draws::{by_columns, by_rows};
use super::forward::{QUERIES, any_of_cube, fetch_keys, fetch_queries, has_weight, place_of_decision, shift};
use super::program::evaluate;
use super::scores::{Beside, Line, Shape, Space, base, element, line, of_query, row_offset, score};
use super::tile::{ROWS, Two, accumulate, new_tile, products, put};
use cubecl::prelude::*;
use meshwright_plan::AttentionPart;

/// Of one score: its weight times its factor, and the gradient of the product of query and key.
#[derive(CubeType)]
struct Slopes {
    weight: f32,
    product: f32,
}

/// `product` is that of query and key, `by_weight` that of cotangent and value.
#[cube]
fn slopes<E: Float>(
    beside: &Beside,
    space: &Space,
    line: &Line,
    drawn: &Sequence<Array<f32>>,
    query: u32,
    key: u32,
    product: f32,
    by_weight: f32,
    #[comptime] which: usize,
    #[comptime] shape: Shape,
) -> Slopes {
    let at = element(beside, space, line, drawn, key, product, which, comptime!(shape.clone()));
    let score = score::<E>(&at, space, query, key, comptime!(shape.clone()));
    let max = of_query(beside, line, comptime!(shape.max.unwrap_or(0)));
    let scale = of_query(beside, line, comptime!(shape.scale.unwrap_or(0)));
    let weight = (score - shift(max)).exp() * scale;
    // Beyond the end nothing is added, whatever is given for the last query.
    let weight = select(query < space.rows && key < space.keys, weight, 0.0f32);
    let mut weighed = weight;
    let mut by_softmax = by_weight;
    if comptime!(shape.weight.is_some()) {
        let factor = evaluate::<E>(&at, comptime!(shape.weight.clone().unwrap()));
        weighed = weight * factor;
        by_softmax = by_weight * factor;
    }
    let mut product_slope = 0.0f32;
    if comptime!(shape.delta.is_some()) {
        let delta = of_query(beside, line, comptime!(shape.delta.unwrap_or(0)));
        let slope = evaluate::<E>(&at, comptime!(shape.slope.clone().unwrap()));
        product_slope = weight * (by_softmax - delta) * slope;
    }
    Slopes { weight: weighed, product: product_slope }
}

/// Writes accumulators of 16 rows from `row` on; `at` is where each half of them begins.
#[cube]
fn write<O: Float, M: Size>(
    out: &mut Tensor<Vector<O, M>>,
    sums: &Array<Vector<f32, Two>>,
    at: usize,
    #[comptime] half: usize,
    #[comptime] width: usize,
) {
    #[unroll]
    for n in 0..comptime!(width / 8) {
        let place = at / 2 + comptime!(4 * n) + (UNIT_POS % 4) as usize;
        out[place] = Vector::<O, M>::cast_from(sums[2 * n + half]);
    }
}

/// The gradient of the queries.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn attention_query_grad<E: Float, O: Float, N: Size, M: Size>(
    queries: &Tensor<Vector<E, N>>,
    keys: &Tensor<Vector<E, N>>,
    values: &Tensor<Vector<E, N>>,
    cotangent: &Tensor<Vector<E, N>>,
    beside: Beside,
    space: Space,
    decided: &Tensor<u32>,
    out: &mut Tensor<Vector<O, M>>,
    #[comptime] shape: Shape,
    #[define(E)] _half: ElemType,
    #[define(O)] _result: ElemType,
) {
    let tiles = space.rows.div_ceil(comptime!(QUERIES as u32));
    let outer = CUBE_POS_X / tiles;
    let first_query = CUBE_POS_X % tiles * comptime!(QUERIES as u32);
    let plane_row = UNIT_POS / 32 * comptime!(ROWS as u32);
    let columns = comptime!(shape.columns);
    let width = comptime!(shape.width);
    let values_width = comptime!(shape.values);

    let mut query_rows = new_tile::<E, N>(QUERIES, width);
    let queries_base = base(queries, &space, outer, comptime!(shape.clone()));
    let fetched =
        fetch_queries(queries, queries_base, first_query, &space, comptime!(shape.clone()), QUERIES, width);
    put(&fetched, &mut query_rows, QUERIES, width);
    let mut cotangent_rows = new_tile::<E, N>(QUERIES, values_width);
    let cotangent_base = base(cotangent, &space, outer, comptime!(shape.clone()));
    let fetched = fetch_queries(
        cotangent,
        cotangent_base,
        first_query,
        &space,
        comptime!(shape.clone()),
        QUERIES,
        values_width,
    );
    put(&fetched, &mut cotangent_rows, QUERIES, values_width);
    let mut key_rows = new_tile::<E, N>(columns, width);
    let mut value_rows = new_tile::<E, N>(columns, values_width);
    let keys_base = base(keys, &space, outer, comptime!(shape.clone()));
    let values_base = base(values, &space, outer, comptime!(shape.clone()));

    let row = first_query + plane_row + UNIT_POS % 32 / 4;
    let mut lines = Sequence::<Line>::new();
    lines.push(line(&beside, &space, outer, row, comptime!(shape.clone())));
    lines.push(line(&beside, &space, outer, row + 8u32, comptime!(shape.clone())));
    let mut needed = true;
    if comptime!(shape.decides) {
        let mut needs = false;
        #[unroll]
        for half in 0..2usize {
            let max = of_query(&beside, lines.index(half), comptime!(shape.max.unwrap_or(0)));
            if row + comptime!(8 * half as u32) < space.rows && has_weight(space.decided, max) {
                needs = true;
            }
        }
        needed = any_of_cube(needs);
    }
    let mut sums = Array::<Vector<f32, Two>>::new(comptime!(width / 4));
    let many = space.keys.div_ceil(comptime!(columns as u32));
    for key_tile in 0..many {
        let first_key = key_tile * comptime!(columns as u32);
        let mut wanted = true;
        if comptime!(shape.decides) {
            wanted = needed || decided[place_of_decision(&space, first_query, first_key)] == 0u32;
        }
        if wanted {
            let fetched =
                fetch_keys(keys, keys_base, first_key, &space, comptime!(shape.clone()), columns, width);
            sync_cube();
            put(&fetched, &mut key_rows, columns, width);
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
            sync_cube();
            let mut scores = products::<E, N>(&query_rows, plane_row, &key_rows, columns, width);
            let by_weights = products::<E, N>(&cotangent_rows, plane_row, &value_rows, columns, values_width);
            #[unroll]
            for n in 0..comptime!(columns / 8) {
                let first = first_key + comptime!(8 * n as u32) + UNIT_POS % 4 * 2u32;
                let drawn = by_rows(&beside, lines.index(0), lines.index(1), first, comptime!(shape.clone()));
                #[unroll]
                for half in 0..2usize {
                    let mut made = Vector::<f32, Two>::zeroed();
                    #[unroll]
                    for c in 0..2usize {
                        let made_of = slopes::<E>(
                            &beside,
                            &space,
                            lines.index(half),
                            &drawn,
                            row + comptime!(8 * half as u32),
                            first + comptime!(c as u32),
                            scores[2 * n + half].extract(c),
                            by_weights[2 * n + half].extract(c),
                            comptime!(2 * half + c),
                            comptime!(shape.clone()),
                        );
                        made.insert(c, made_of.product);
                    }
                    scores[2 * n + half] = made;
                }
            }
            accumulate::<E, N>(&scores, &key_rows, &mut sums, columns, width);
        }
    }
    let out_base = base(&*out, &space, outer, comptime!(shape.clone()));
    #[unroll]
    for half in 0..2usize {
        let query = row + comptime!(8 * half as u32);
        if query < space.rows {
            let at = out_base + row_offset(&*out, &space, query, comptime!(shape.clone()));
            write(out, &sums, at, half, width);
        }
    }
}

/// The gradients of the keys and of the values. Scores are computed with keys as rows.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn attention_key_grad<E: Float, O: Float, N: Size, M: Size>(
    queries: &Tensor<Vector<E, N>>,
    keys: &Tensor<Vector<E, N>>,
    values: &Tensor<Vector<E, N>>,
    cotangent: &Tensor<Vector<E, N>>,
    beside: Beside,
    space: Space,
    decided: &Tensor<u32>,
    keys_out: &mut Tensor<Vector<O, M>>,
    values_out: &mut Tensor<Vector<O, M>>,
    #[comptime] shape: Shape,
    #[define(E)] _half: ElemType,
    #[define(O)] _result: ElemType,
) {
    let tiles = space.keys.div_ceil(comptime!(QUERIES as u32));
    let outer = CUBE_POS_X / tiles;
    let first_key = CUBE_POS_X % tiles * comptime!(QUERIES as u32);
    let plane_row = UNIT_POS / 32 * comptime!(ROWS as u32);
    let columns = comptime!(shape.columns);
    let width = comptime!(shape.width);
    let values_width = comptime!(shape.values);

    let mut key_rows = new_tile::<E, N>(QUERIES, width);
    let keys_base = base(keys, &space, outer, comptime!(shape.clone()));
    let fetched = fetch_keys(keys, keys_base, first_key, &space, comptime!(shape.clone()), QUERIES, width);
    put(&fetched, &mut key_rows, QUERIES, width);
    let mut value_rows = new_tile::<E, N>(QUERIES, values_width);
    let values_base = base(values, &space, outer, comptime!(shape.clone()));
    let fetched =
        fetch_keys(values, values_base, first_key, &space, comptime!(shape.clone()), QUERIES, values_width);
    put(&fetched, &mut value_rows, QUERIES, values_width);
    let mut query_rows = new_tile::<E, N>(columns, width);
    let mut cotangent_rows = new_tile::<E, N>(columns, values_width);
    let queries_base = base(queries, &space, outer, comptime!(shape.clone()));
    let cotangent_base = base(cotangent, &space, outer, comptime!(shape.clone()));

    let key = first_key + plane_row + UNIT_POS % 32 / 4;
    let mut of_keys = Array::<Vector<f32, Two>>::new(comptime!(width / 4));
    let mut of_values = Array::<Vector<f32, Two>>::new(comptime!(values_width / 4));
    let many = space.rows.div_ceil(comptime!(columns as u32));
    for query_tile in 0..many {
        let first_query = query_tile * comptime!(columns as u32);
        let mut wanted = true;
        if comptime!(shape.decides) {
            if decided[place_of_decision(&space, first_query, first_key)] != 0u32 {
                let query = first_query + UNIT_POS % comptime!(columns as u32);
                let at = line(&beside, &space, outer, query, comptime!(shape.clone()));
                let max = of_query(&beside, &at, comptime!(shape.max.unwrap_or(0)));
                wanted = any_of_cube(query < space.rows && has_weight(space.decided, max));
            }
        }
        if wanted {
            let fetched = fetch_queries(
                queries,
                queries_base,
                first_query,
                &space,
                comptime!(shape.clone()),
                columns,
                width,
            );
            sync_cube();
            put(&fetched, &mut query_rows, columns, width);
            let fetched = fetch_queries(
                cotangent,
                cotangent_base,
                first_query,
                &space,
                comptime!(shape.clone()),
                columns,
                values_width,
            );
            put(&fetched, &mut cotangent_rows, columns, values_width);
            sync_cube();
            let mut scores = products::<E, N>(&key_rows, plane_row, &query_rows, columns, width);
            let mut by_weights =
                products::<E, N>(&value_rows, plane_row, &cotangent_rows, columns, values_width);
            #[unroll]
            for n in 0..comptime!(columns / 8) {
                let query = first_query + comptime!(8 * n as u32) + UNIT_POS % 4 * 2u32;
                let mut lines = Sequence::<Line>::new();
                lines.push(line(&beside, &space, outer, query, comptime!(shape.clone())));
                lines.push(line(&beside, &space, outer, query + 1u32, comptime!(shape.clone())));
                let drawn =
                    by_columns(&beside, lines.index(0), lines.index(1), key, comptime!(shape.clone()));
                let mut made = Array::<f32>::new(4usize);
                let mut weights = Array::<f32>::new(4usize);
                #[unroll]
                for half in 0..2usize {
                    #[unroll]
                    for c in 0..2usize {
                        let made_of = slopes::<E>(
                            &beside,
                            &space,
                            lines.index(c),
                            &drawn,
                            query + comptime!(c as u32),
                            key + comptime!(8 * half as u32),
                            scores[2 * n + half].extract(c),
                            by_weights[2 * n + half].extract(c),
                            comptime!(2 * half + c),
                            comptime!(shape.clone()),
                        );
                        made[2 * half + c] = made_of.product;
                        weights[2 * half + c] = made_of.weight;
                    }
                }
                #[unroll]
                for half in 0..2usize {
                    let mut two = Vector::<f32, Two>::zeroed();
                    two.insert(0usize, made[2 * half]);
                    two.insert(1usize, made[2 * half + 1]);
                    scores[2 * n + half] = two;
                    let mut two = Vector::<f32, Two>::zeroed();
                    two.insert(0usize, weights[2 * half]);
                    two.insert(1usize, weights[2 * half + 1]);
                    by_weights[2 * n + half] = two;
                }
            }
            accumulate::<E, N>(&by_weights, &cotangent_rows, &mut of_values, columns, values_width);
            accumulate::<E, N>(&scores, &query_rows, &mut of_keys, columns, width);
        }
    }
    let keys_out_base = base(&*keys_out, &space, outer, comptime!(shape.clone()));
    let values_out_base = base(&*values_out, &space, outer, comptime!(shape.clone()));
    #[unroll]
    for half in 0..2usize {
        let key = key + comptime!(8 * half as u32);
        if key < space.keys {
            let along = comptime!(shape.key());
            if comptime!(shape.gives(AttentionPart::Key)) {
                let at = keys_out_base + key as usize * keys_out.stride(along);
                write(keys_out, &of_keys, at, half, width);
            }
            if comptime!(shape.gives(AttentionPart::Value)) {
                let at = values_out_base + key as usize * values_out.stride(along);
                write(values_out, &of_values, at, half, values_width);
            }
        }
    }
}
