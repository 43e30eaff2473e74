//! The kernels of the backward pass. One goes through the keys of some queries, and another through the queries of some keys, so that every
//! sum has one order: nothing is added by atomics (FlashAttention-2, Dao 2023, arXiv 2307.08691, section 3.1.2, has one kernel, which
//! computes less and adds the gradients of queries as they come).

use super::super::ptx::show_to_products;
use super::super::tile::{Two, VECTOR};
use super::decide::{any_needs, any_query_needs, next_wanted};
use super::draws::{bits_of, load_bits};
use super::load::{QUERIES, load, meet, place_of_cube, row_of_unit, write_keys, write_queries};
use super::scores::{AttentionShape, Beside, KeyTile, QueryLine, Space, of_query, staged_line, two_lines};
use super::slopes::{QueryRows, slopes};
use super::staged::{RowSource, Staged};
use super::tiles::{accumulate, accumulate_columns, finish, halves, new_tiles, products, store};
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
    bits: &Tensor<u32>,
    out: &mut Tensor<Vector<O, M>>,
    #[comptime] shape: AttentionShape,
    #[define(E)] _half: ElemType,
    #[define(O)] _result: ElemType,
) {
    let columns = comptime!(shape.columns);
    let (width, values_width) = comptime!((shape.width, shape.values));
    let (query_shape, cotangent_shape) =
        comptime!((shape.tile(QUERIES, width), shape.tile(QUERIES, values_width)));
    let (key_shape, value_shape) = comptime!((shape.tile(columns, width), shape.tile(columns, values_width)));
    let (outer, first_query) = place_of_cube(space.rows, true);
    let row = first_query + row_of_unit();
    let query_rows = new_tiles::<E, N>(query_shape, 1usize);
    let cotangent_rows = new_tiles::<E, N>(cotangent_shape, 1usize);
    let key_rows = new_tiles::<E, N>(key_shape, 2usize);
    let value_rows = new_tiles::<E, N>(value_shape, 2usize);
    let staged = Staged::new(&beside, &space, outer, true, comptime!(shape.clone()));
    let of_keys = RowSource::new(keys, &space, outer, true, comptime!(shape.clone()));
    let of_values = RowSource::new(values, &space, outer, true, comptime!(shape.clone()));
    let source = RowSource::new(queries, &space, outer, false, comptime!(shape.clone()));
    let own = comptime!(shape.clone());
    load(queries, &source, &query_rows, 0u32, first_query, &space, own, query_shape, false);
    let source = RowSource::new(cotangent, &space, outer, false, comptime!(shape.clone()));
    let own = comptime!(shape.clone());
    load(cotangent, &source, &cotangent_rows, 0u32, first_query, &space, own, cotangent_shape, false);
    let lines = two_lines(&beside, &space, outer, row, comptime!(shape.clone()));
    let of_queries = QueryRows::new(row, lines, comptime!(shape.clone()));
    let mut needed = true.runtime();
    if comptime!(shape.decides) {
        let max = comptime!(shape.max.unwrap_or(0));
        let first = of_query(of_queries.lines.index(0), max);
        needed = any_needs(first, of_query(of_queries.lines.index(1), max), row, &space);
    }
    let wants = (needed, true.runtime());
    let many = space.keys.div_ceil(comptime!(columns as u32));
    let (mut tile, mut is) =
        next_wanted(decided, &space, first_query, 0u32, many, wants, true, comptime!(shape.clone()));
    let mut buffer = 0u32;
    let mut bits_ahead = Array::<u32>::new(comptime!(shape.draws.len().max(1)));
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
    let mut sums = Array::<Vector<f32, Two>>::new(comptime!(width / 4));
    while tile < many {
        let first = tile * comptime!(columns as u32);
        meet(comptime!(shape.grouped));
        let mut scores = Array::<Vector<f32, Two>>::new(comptime!(columns / 4));
        let mut by_weights = Array::<Vector<f32, Two>>::new(comptime!(columns / 4));
        let keys_at = buffer * comptime!(key_shape.size() as u32);
        let values_at = buffer * comptime!(value_shape.size() as u32);
        products::<E, N>(
            &query_rows,
            0u32,
            &key_rows,
            keys_at,
            &mut scores,
            query_shape,
            key_shape,
            0usize,
            columns,
        );
        products::<E, N>(
            &cotangent_rows,
            0u32,
            &value_rows,
            values_at,
            &mut by_weights,
            cotangent_shape,
            value_shape,
            0usize,
            columns,
        );
        let drawn = bits_of(&beside, &of_queries.lines, &bits_ahead, first, is, comptime!(shape.clone()));
        let from = tile + 1u32;
        (tile, is) =
            next_wanted(decided, &space, first_query, from, many, wants, true, comptime!(shape.clone()));
        if tile < many {
            let (first, other) = (tile * comptime!(columns as u32), 1u32 - buffer);
            load(keys, &of_keys, &key_rows, other, first, &space, comptime!(shape.clone()), key_shape, true);
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
            load_bits(&space, bits, (outer, first_query, first), &mut bits_ahead, comptime!(shape.clone()));
        }
        let looked_at = KeyTile { first, buffer, drawn };
        finish(&mut scores, columns, 0usize, comptime!(shape.grouped));
        finish(&mut by_weights, columns, 0usize, comptime!(shape.grouped));
        let own = comptime!(shape.clone());
        slopes::<E>(
            &mut scores,
            &mut by_weights,
            &beside,
            &space,
            &of_queries,
            &staged,
            &looked_at,
            0usize,
            columns,
            own,
        );
        let factors = halves::<E>(&scores, columns);
        accumulate::<E, N>(&factors, &key_rows, keys_at, &mut sums, key_shape);
        finish(&mut sums, width, 0usize, comptime!(shape.grouped));
        buffer = 1u32 - buffer;
    }
    write_queries(out, &sums, &space, (outer, row), shape, width);
}

/// The gradients of the keys and of the values. `columns` keys are looked at a time: what units keep of wider queries leaves them fewer registers.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn attention_key_grad<E: Float, O: Float, N: Size, M: Size>(
    queries: &Tensor<Vector<E, N>>,
    keys: &Tensor<Vector<E, N>>,
    values: &Tensor<Vector<E, N>>,
    cotangent: &Tensor<Vector<E, N>>,
    beside: Beside,
    space: Space,
    decided: &Tensor<u32>,
    bits: &Tensor<u32>,
    keys_out: &mut Tensor<Vector<O, M>>,
    values_out: &mut Tensor<Vector<O, M>>,
    #[comptime] columns: usize,
    #[comptime] shape: AttentionShape,
    #[define(E)] _half: ElemType,
    #[define(O)] _result: ElemType,
) {
    let (width, values_width) = comptime!((shape.width, shape.values));
    let (row_shape, value_shape) = comptime!((shape.tile(QUERIES, width), shape.tile(QUERIES, values_width)));
    let score_shape = comptime!(shape.tile(QUERIES, QUERIES));
    let (outer, first_key) = place_of_cube(space.keys, false);
    let key_rows = new_tiles::<E, N>(row_shape, 1usize);
    let value_rows = new_tiles::<E, N>(value_shape, 1usize);
    let query_rows = new_tiles::<E, N>(row_shape, 2usize);
    let cotangent_rows = new_tiles::<E, N>(value_shape, 2usize);
    let weight_rows = new_tiles::<E, N>(score_shape, 1usize);
    let slope_rows = new_tiles::<E, N>(score_shape, 1usize);
    let staged = Staged::new(&beside, &space, outer, true, comptime!(shape.clone()));
    let staged_rows = Staged::new(&beside, &space, outer, false, comptime!(shape.clone()));
    let source = RowSource::new(keys, &space, outer, true, comptime!(shape.clone()));
    load(keys, &source, &key_rows, 0u32, first_key, &space, comptime!(shape.clone()), row_shape, true);
    let source = RowSource::new(values, &space, outer, true, comptime!(shape.clone()));
    load(values, &source, &value_rows, 0u32, first_key, &space, comptime!(shape.clone()), value_shape, true);
    staged.load(&beside, &space, 0u32, first_key, true, comptime!(shape.clone()));
    let of_queries = RowSource::new(queries, &space, outer, false, comptime!(shape.clone()));
    let of_cotangents = RowSource::new(cotangent, &space, outer, false, comptime!(shape.clone()));
    let mut needed = true.runtime();
    if comptime!(shape.decides) {
        needed = any_query_needs(&beside, &space, outer, comptime!(shape.clone()));
    }
    let wants = (needed, true.runtime());
    let many = space.rows.div_ceil(comptime!(QUERIES as u32));
    let (mut tile, mut is) =
        next_wanted(decided, &space, first_key, 0u32, many, wants, false, comptime!(shape.clone()));
    let mut buffer = 0u32;
    let mut bits_ahead = Array::<u32>::new(comptime!(shape.draws.len().max(1)));
    if tile < many {
        let (first, own) = (tile * comptime!(QUERIES as u32), comptime!(shape.clone()));
        load(queries, &of_queries, &query_rows, buffer, first, &space, own, row_shape, false);
        let own = comptime!(shape.clone());
        load(cotangent, &of_cotangents, &cotangent_rows, buffer, first, &space, own, value_shape, false);
        staged_rows.load(&beside, &space, buffer, first, false, comptime!(shape.clone()));
        load_bits(&space, bits, (outer, first, first_key), &mut bits_ahead, comptime!(shape.clone()));
    }
    let mut of_keys = Array::<Vector<f32, Two>>::new(comptime!(width / 4));
    let mut of_values = Array::<Vector<f32, Two>>::new(comptime!(values_width / 4));
    while tile < many {
        let first_query = tile * comptime!(QUERIES as u32);
        meet(comptime!(shape.grouped));
        let queries_at = buffer * comptime!(row_shape.size() as u32);
        let cotangents_at = buffer * comptime!(value_shape.size() as u32);
        let (row, own) = (row_of_unit(), comptime!(shape.clone()));
        let mut lines = Sequence::<QueryLine>::new();
        lines.push(staged_line(&beside, &space, &staged_rows, (outer, first_query, buffer), row, own));
        let own = comptime!(shape.clone());
        lines.push(staged_line(&beside, &space, &staged_rows, (outer, first_query, buffer), row + 8u32, own));
        let rows = QueryRows::new(first_query + row, lines, comptime!(shape.clone()));
        let drawn = bits_of(&beside, &rows.lines, &bits_ahead, first_key, is, comptime!(shape.clone()));
        let looked_at = KeyTile { first: first_key, buffer: 0u32, drawn };
        let from = tile + 1u32;
        #[unroll]
        for part in 0..comptime!(QUERIES / columns) {
            let mut scores = Array::<Vector<f32, Two>>::new(comptime!(columns / 4));
            let mut by_weights = Array::<Vector<f32, Two>>::new(comptime!(columns / 4));
            let start = comptime!(part * columns);
            products::<E, N>(
                &query_rows,
                queries_at,
                &key_rows,
                0u32,
                &mut scores,
                row_shape,
                row_shape,
                start,
                columns,
            );
            products::<E, N>(
                &cotangent_rows,
                cotangents_at,
                &value_rows,
                0u32,
                &mut by_weights,
                value_shape,
                value_shape,
                start,
                columns,
            );
            if comptime!(part == 0) {
                (tile, is) = next_wanted(
                    decided,
                    &space,
                    first_key,
                    from,
                    many,
                    wants,
                    false,
                    comptime!(shape.clone()),
                );
                if tile < many {
                    let (first, other) = (tile * comptime!(QUERIES as u32), 1u32 - buffer);
                    let own = comptime!(shape.clone());
                    load(queries, &of_queries, &query_rows, other, first, &space, own, row_shape, false);
                    let own = comptime!(shape.clone());
                    load(
                        cotangent,
                        &of_cotangents,
                        &cotangent_rows,
                        other,
                        first,
                        &space,
                        own,
                        value_shape,
                        false,
                    );
                    staged_rows.load(&beside, &space, other, first, false, comptime!(shape.clone()));
                    load_bits(
                        &space,
                        bits,
                        (outer, first, first_key),
                        &mut bits_ahead,
                        comptime!(shape.clone()),
                    );
                }
            }
            finish(&mut scores, columns, 0usize, comptime!(shape.grouped));
            finish(&mut by_weights, columns, 0usize, comptime!(shape.grouped));
            let (first, own) = comptime!((start / 16, shape.clone()));
            slopes::<E>(
                &mut scores,
                &mut by_weights,
                &beside,
                &space,
                &rows,
                &staged,
                &looked_at,
                first,
                columns,
                own,
            );
            let vector = comptime!(start / VECTOR);
            store::<E, N>(&halves::<E>(&by_weights, columns), &weight_rows, vector, columns, score_shape);
            store::<E, N>(&halves::<E>(&scores, columns), &slope_rows, vector, columns, score_shape);
        }
        if comptime!(shape.grouped) {
            show_to_products();
        }
        sync_cube();
        accumulate_columns::<E, N>(
            &weight_rows,
            &cotangent_rows,
            cotangents_at,
            &mut of_values,
            score_shape,
            value_shape,
        );
        accumulate_columns::<E, N>(
            &slope_rows,
            &query_rows,
            queries_at,
            &mut of_keys,
            score_shape,
            row_shape,
        );
        finish(&mut of_values, values_width, 0usize, comptime!(shape.grouped));
        finish(&mut of_keys, width, 0usize, comptime!(shape.grouped));
        buffer = 1u32 - buffer;
    }
    let at = (outer, first_key + row_of_unit());
    write_keys(keys_out, &of_keys, &space, at, comptime!(shape.clone()), AttentionPart::Key, width);
    write_keys(values_out, &of_values, &space, at, shape, AttentionPart::Value, values_width);
}
