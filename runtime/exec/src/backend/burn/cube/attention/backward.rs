//! The kernels of the backward pass: see `slopes` for why there are two.

use super::super::tile::{ROWS, Two, accumulate, new_tile, products};
use super::decide::{any_needs, any_of_cube, has_weight, place_of_decision};
use super::load::{QUERIES, load, place_of_cube, write_keys, write_queries};
use super::scores::{AttentionShape, Beside, Space, line, of_query, two_lines};
use super::slopes::{slopes_by_columns, slopes_by_rows};
use cubecl::prelude::*;
use meshwright_plan::AttentionPart;

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
    #[comptime] shape: AttentionShape,
    #[define(E)] _half: ElemType,
    #[define(O)] _result: ElemType,
) {
    let (outer, first_query) = place_of_cube(space.rows);
    let plane_row = UNIT_POS / 32 * comptime!(ROWS as u32);
    let columns = comptime!(shape.columns);
    let (width, values_width) = comptime!((shape.width, shape.values));
    let mut query_rows = new_tile::<E, N>(QUERIES, width);
    let mut cotangent_rows = new_tile::<E, N>(QUERIES, values_width);
    let mut key_rows = new_tile::<E, N>(columns, width);
    let mut value_rows = new_tile::<E, N>(columns, values_width);
    load(
        queries,
        cotangent,
        &mut query_rows,
        &mut cotangent_rows,
        (outer, first_query),
        &space,
        comptime!(shape.clone()),
        false,
        QUERIES,
        values_width,
    );
    let row = first_query + plane_row + UNIT_POS % 32 / 4;
    let lines = two_lines(&beside, &space, outer, row, comptime!(shape.clone()));
    let mut needed = true;
    if comptime!(shape.decides) {
        let max = comptime!(shape.max.unwrap_or(0));
        let (first, second) =
            (of_query(&beside, lines.index(0), max), of_query(&beside, lines.index(1), max));
        needed = any_needs(first, second, row, &space);
    }
    let mut sums = Array::<Vector<f32, Two>>::new(comptime!(width / 4));
    for key_tile in 0..space.keys.div_ceil(comptime!(columns as u32)) {
        let first_key = key_tile * comptime!(columns as u32);
        let mut wanted = true;
        if comptime!(shape.decides) {
            wanted = needed || decided[place_of_decision(&space, first_query, first_key)] == 0u32;
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
                values_width,
            );
            let mut scores = products::<E, N>(&query_rows, plane_row, &key_rows, columns, width);
            let by_weights = products::<E, N>(&cotangent_rows, plane_row, &value_rows, columns, values_width);
            let own = comptime!(shape.clone());
            slopes_by_rows::<E>(&mut scores, &by_weights, &beside, &space, &lines, row, first_key, own);
            accumulate::<E, N>(&scores, &key_rows, &mut sums, columns, width);
        }
    }
    write_queries(out, &sums, &space, (outer, row), shape, width);
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
    #[comptime] shape: AttentionShape,
    #[define(E)] _half: ElemType,
    #[define(O)] _result: ElemType,
) {
    let (outer, first_key) = place_of_cube(space.keys);
    let plane_row = UNIT_POS / 32 * comptime!(ROWS as u32);
    let columns = comptime!(shape.columns);
    let (width, values_width) = comptime!((shape.width, shape.values));
    let mut key_rows = new_tile::<E, N>(QUERIES, width);
    let mut value_rows = new_tile::<E, N>(QUERIES, values_width);
    let mut query_rows = new_tile::<E, N>(columns, width);
    let mut cotangent_rows = new_tile::<E, N>(columns, values_width);
    load(
        keys,
        values,
        &mut key_rows,
        &mut value_rows,
        (outer, first_key),
        &space,
        comptime!(shape.clone()),
        true,
        QUERIES,
        values_width,
    );
    let key = first_key + plane_row + UNIT_POS % 32 / 4;
    let mut of_keys = Array::<Vector<f32, Two>>::new(comptime!(width / 4));
    let mut of_values = Array::<Vector<f32, Two>>::new(comptime!(values_width / 4));
    for query_tile in 0..space.rows.div_ceil(comptime!(columns as u32)) {
        let first_query = query_tile * comptime!(columns as u32);
        let mut wanted = true;
        if comptime!(shape.decides) {
            wanted = decided[place_of_decision(&space, first_query, first_key)] == 0u32
                || any_query_needs(&beside, &space, outer, first_query, comptime!(shape.clone()));
        }
        if wanted {
            load(
                queries,
                cotangent,
                &mut query_rows,
                &mut cotangent_rows,
                (outer, first_query),
                &space,
                comptime!(shape.clone()),
                false,
                columns,
                values_width,
            );
            let mut scores = products::<E, N>(&key_rows, plane_row, &query_rows, columns, width);
            let mut weights =
                products::<E, N>(&value_rows, plane_row, &cotangent_rows, columns, values_width);
            let (at, own) = ((outer, first_query, key), comptime!(shape.clone()));
            slopes_by_columns::<E>(&mut scores, &mut weights, &beside, &space, at, own);
            accumulate::<E, N>(&weights, &cotangent_rows, &mut of_values, columns, values_width);
            accumulate::<E, N>(&scores, &query_rows, &mut of_keys, columns, width);
        }
    }
    let at = (outer, key);
    write_keys(keys_out, &of_keys, &space, at, comptime!(shape.clone()), AttentionPart::Key, width);
    write_keys(values_out, &of_values, &space, at, shape, AttentionPart::Value, values_width);
}

/// Whether the number of a tile that positions decide has a weight for any of its queries.
#[cube]
fn any_query_needs(
    beside: &Beside,
    space: &Space,
    outer: u32,
    first_query: u32,
    #[comptime] shape: AttentionShape,
) -> bool {
    let query = first_query + UNIT_POS % comptime!(shape.columns as u32);
    let at = line(beside, space, outer, query, comptime!(shape.clone()));
    let max = of_query(beside, &at, comptime!(shape.max.unwrap_or(0)));
    any_of_cube(query < space.rows && has_weight(space.decided, max))
}
