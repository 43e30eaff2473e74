//! The kernels of the backward pass: see `slopes` for why there are two.

use super::decide::{any_needs, any_of_cube, has_weight, place_of_decision};
use super::forward::QUERIES;
use super::load::load;
use super::scores::{Beside, Line, Shape, Space, base, line, of_query, row_offset};
use super::slopes::{slopes_by_columns, slopes_by_rows};
use super::tile::{ROWS, Two, accumulate, new_tile, products, write};
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
    #[comptime] shape: Shape,
    #[define(E)] _half: ElemType,
    #[define(O)] _result: ElemType,
) {
    let tiles = space.rows.div_ceil(comptime!(QUERIES as u32));
    let outer = CUBE_POS_X / tiles;
    let first_query = CUBE_POS_X % tiles * comptime!(QUERIES as u32);
    let plane_row = UNIT_POS / 32 * comptime!(ROWS as u32);
    let columns = comptime!(shape.columns);
    let (width, values_width) = comptime!((shape.width, shape.values));
    let queries_base = base(queries, &space, outer, comptime!(shape.clone()));
    let cotangent_base = base(cotangent, &space, outer, comptime!(shape.clone()));
    let keys_base = base(keys, &space, outer, comptime!(shape.clone()));
    let values_base = base(values, &space, outer, comptime!(shape.clone()));

    let mut query_rows = new_tile::<E, N>(QUERIES, width);
    let mut cotangent_rows = new_tile::<E, N>(QUERIES, values_width);
    let mut key_rows = new_tile::<E, N>(columns, width);
    let mut value_rows = new_tile::<E, N>(columns, values_width);
    load(
        queries,
        cotangent,
        &mut query_rows,
        &mut cotangent_rows,
        queries_base,
        cotangent_base,
        first_query,
        &space,
        comptime!(shape.clone()),
        false,
        QUERIES,
        values_width,
    );
    let row = first_query + plane_row + UNIT_POS % 32 / 4;
    let mut lines = Sequence::<Line>::new();
    lines.push(line(&beside, &space, outer, row, comptime!(shape.clone())));
    lines.push(line(&beside, &space, outer, row + 8u32, comptime!(shape.clone())));
    let mut needed = true;
    if comptime!(shape.decides) {
        let first = of_query(&beside, lines.index(0), comptime!(shape.max.unwrap_or(0)));
        let second = of_query(&beside, lines.index(1), comptime!(shape.max.unwrap_or(0)));
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
                keys_base,
                values_base,
                first_key,
                &space,
                comptime!(shape.clone()),
                true,
                columns,
                values_width,
            );
            let mut scores = products::<E, N>(&query_rows, plane_row, &key_rows, columns, width);
            let by_weights = products::<E, N>(&cotangent_rows, plane_row, &value_rows, columns, values_width);
            slopes_by_rows::<E>(
                &mut scores,
                &by_weights,
                &beside,
                &space,
                &lines,
                row,
                first_key,
                comptime!(shape.clone()),
            );
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
    let (width, values_width) = comptime!((shape.width, shape.values));
    let queries_base = base(queries, &space, outer, comptime!(shape.clone()));
    let cotangent_base = base(cotangent, &space, outer, comptime!(shape.clone()));
    let keys_base = base(keys, &space, outer, comptime!(shape.clone()));
    let values_base = base(values, &space, outer, comptime!(shape.clone()));

    let mut key_rows = new_tile::<E, N>(QUERIES, width);
    let mut value_rows = new_tile::<E, N>(QUERIES, values_width);
    let mut query_rows = new_tile::<E, N>(columns, width);
    let mut cotangent_rows = new_tile::<E, N>(columns, values_width);
    load(
        keys,
        values,
        &mut key_rows,
        &mut value_rows,
        keys_base,
        values_base,
        first_key,
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
                queries_base,
                cotangent_base,
                first_query,
                &space,
                comptime!(shape.clone()),
                false,
                columns,
                values_width,
            );
            let mut scores = products::<E, N>(&key_rows, plane_row, &query_rows, columns, width);
            let mut weights =
                products::<E, N>(&value_rows, plane_row, &cotangent_rows, columns, values_width);
            slopes_by_columns::<E>(
                &mut scores,
                &mut weights,
                &beside,
                &space,
                outer,
                first_query,
                key,
                comptime!(shape.clone()),
            );
            accumulate::<E, N>(&weights, &cotangent_rows, &mut of_values, columns, values_width);
            accumulate::<E, N>(&scores, &query_rows, &mut of_keys, columns, width);
        }
    }
    write_keys(keys_out, &of_keys, &space, outer, key, comptime!(shape.clone()), AttentionPart::Key, width);
    let values_part = AttentionPart::Value;
    write_keys(values_out, &of_values, &space, outer, key, shape, values_part, values_width);
}

/// Whether the number of a tile that positions decide has a weight for any of its queries.
#[cube]
fn any_query_needs(
    beside: &Beside,
    space: &Space,
    outer: u32,
    first_query: u32,
    #[comptime] shape: Shape,
) -> bool {
    let query = first_query + UNIT_POS % comptime!(shape.columns as u32);
    let at = line(beside, space, outer, query, comptime!(shape.clone()));
    let max = of_query(beside, &at, comptime!(shape.max.unwrap_or(0)));
    any_of_cube(query < space.rows && has_weight(space.decided, max))
}

/// Writes a gradient of two keys, if it is asked for.
#[cube]
fn write_keys<O: Float, M: Size>(
    out: &mut Tensor<Vector<O, M>>,
    sums: &Array<Vector<f32, Two>>,
    space: &Space,
    outer: u32,
    key: u32,
    #[comptime] shape: Shape,
    #[comptime] part: AttentionPart,
    #[comptime] width: usize,
) {
    if comptime!(shape.gives(part)) {
        let out_base = base(&*out, space, outer, comptime!(shape.clone()));
        #[unroll]
        for half in 0..2usize {
            let key = key + comptime!(8 * half as u32);
            if key < space.keys {
                let at = out_base + key as usize * out.stride(comptime!(shape.key()));
                write(out, sums, at, half, width);
            }
        }
    }
}
