//! The kernels of the backward pass. One goes through the keys of some queries, and another through the queries of some keys, so
//! that every sum has one order: nothing is added by atomics (FlashAttention-2, Dao 2023, arXiv 2307.08691, section 3.1.2, has
//! one kernel, which computes less and adds the gradients of queries as they come).

use super::decide::{any_needs, any_query_needs, next_wanted};
use super::draws::bits_of;
use super::elements::{KeyTile, staged_line};
use super::layout::new_tiles;
use super::load::{QUERIES, meet, place_of_cube, row_of_unit, write_keys, write_queries};
use super::scores::{AttentionShape, Beside, QueryLine, Space, of_query, two_lines};
use super::slopes::{QueryRows, slopes};
use super::staged::Staged;
use super::stream::{Both, Pair, PairShape, Stream};
use super::tiles::{accumulate, accumulate_columns, factors, finish, store};
use crate::kernel::ptx::show_to_products;
use crate::kernel::tile::Two;
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
    let (columns, grouped) = comptime!((shape.columns, shape.by.is_grouped()));
    let of_rows = comptime!(PairShape { rows: QUERIES, many: 1, of_keys: false });
    let of_keys = comptime!(PairShape { rows: columns, many: 2, of_keys: true });
    let key_tile = comptime!(of_keys.tiles(&shape).0);
    let (outer, first_query) = place_of_cube(space.rows, true);
    let own = comptime!(shape.clone());
    let rows = Pair::<E, N>::new(queries, cotangent, &space, outer, of_rows, own);
    let own = comptime!(shape.clone());
    let mut stream = Stream::<E, N>::new(keys, values, &beside, &space, outer, of_keys, own);
    rows.load((queries, cotangent), &space, (0u32, first_query), of_rows, comptime!(shape.clone()));
    let row = first_query + row_of_unit();
    let lines = two_lines(&beside, &space, outer, row, comptime!(shape.clone()));
    let of_queries = QueryRows::new(row, lines, comptime!(shape.clone()));
    let wants = (queries_need(&of_queries, &space, comptime!(shape.clone())), true.runtime());
    let many = space.keys.div_ceil(comptime!(columns as u32));
    let own = comptime!(shape.clone());
    let (mut tile, mut is_decided) = next_wanted(decided, &space, first_query, 0u32, many, wants, true, own);
    let mut buffer = 0u32;
    if tile < many {
        let at = (outer, first_query, tile * comptime!(columns as u32), buffer);
        stream.fetch((keys, values, bits), &beside, &space, at, of_keys, comptime!(shape.clone()));
    }
    let mut sums = Array::<Vector<f32, Two>>::new(comptime!(shape.width / 4));
    while tile < many {
        let (first, is) = (tile * comptime!(columns as u32), is_decided);
        meet(grouped);
        let (of, own) = comptime!(((of_rows, of_keys), shape.clone()));
        let mut both = Both::begin::<E, N>((&rows, 0u32), (&stream.pair, buffer), of, 0usize, columns, own);
        let own = comptime!(shape.clone());
        let drawn = bits_of(&beside, &space, &of_queries.lines, &stream.bits, first, is, own);
        let looked_at = KeyTile { first, buffer, drawn };
        let (from, own) = (tile + 1u32, comptime!(shape.clone()));
        (tile, is_decided) = next_wanted(decided, &space, first_query, from, many, wants, true, own);
        if tile < many {
            let at = (outer, first_query, tile * comptime!(columns as u32), 1u32 - buffer);
            stream.fetch((keys, values, bits), &beside, &space, at, of_keys, comptime!(shape.clone()));
        }
        both.finish(columns, grouped);
        let own = comptime!(shape.clone());
        slopes(&mut both, &beside, &space, &of_queries, &stream.staged, &looked_at, 0usize, columns, own);
        let at = buffer * comptime!(key_tile.size() as u32);
        let (slopes, tiles) = (factors::<E>(&both.scores, columns, comptime!(shape.by)), &stream.pair.first);
        accumulate::<E, N>(&slopes, &stream.scratch, tiles, at, &mut sums, key_tile);
        finish(&mut sums, comptime!(shape.width), 0usize, grouped);
        buffer = 1u32 - buffer;
    }
    write_queries(out, &sums, &space, (outer, row), comptime!(shape.clone()), comptime!(shape.width));
}

/// Whether the score of decided tiles has a weight for any query of the block.
#[cube]
fn queries_need(queries: &QueryRows, space: &Space, #[comptime] shape: AttentionShape) -> bool {
    let mut needed = true.runtime();
    if comptime!(shape.decides) {
        let max = comptime!(shape.max.unwrap_or(0));
        let (first, second) = (queries.lines.index(0), queries.lines.index(1));
        needed = any_needs(of_query(first, max), of_query(second, max), queries.row, space);
    }
    needed
}

/// The gradients of the keys and of the values. `columns` keys are processed at a time: wider queries leave a thread
/// fewer registers for them.
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
    let of = comptime!(PairShape { rows: QUERIES, many: shape.buffers, of_keys: false });
    let of_keys = comptime!(PairShape { rows: QUERIES, many: 1, of_keys: true });
    let (outer, first_key) = place_of_cube(space.keys, false);
    let own = comptime!(shape.clone());
    let fixed = Pair::<E, N>::new(keys, values, &space, outer, of_keys, own);
    let own = comptime!(shape.clone());
    let mut stream = Stream::<E, N>::new(queries, cotangent, &beside, &space, outer, of, own);
    let mut gradients = KeyGradients::<E, N>::new(comptime!(shape.clone()));
    let staged = Staged::new(&beside, &space, outer, true, comptime!(shape.clone()));
    fixed.load((keys, values), &space, (0u32, first_key), of_keys, comptime!(shape.clone()));
    staged.load(&beside, &space, 0u32, first_key, true, comptime!(shape.clone()));
    let wants = (any_query_needs(&beside, &space, outer, comptime!(shape.clone())), true.runtime());
    let many = space.rows.div_ceil(comptime!(QUERIES as u32));
    let (from, own) = ((outer, first_key, 0u32, 0u32), comptime!(shape.clone()));
    let tensors = (queries, cotangent, bits, decided);
    let (mut tile, mut is_decided) = stream.fetch_wanted(tensors, (&beside, &space), from, wants, of, own);
    let mut buffer = 0u32;
    while tile < many {
        let (first_query, is) = (tile * comptime!(QUERIES as u32), is_decided);
        meet(comptime!(shape.by.is_grouped()));
        let (at, own) = ((outer, first_query, buffer), comptime!(shape.clone()));
        let rows = staged_rows(&beside, &space, &stream.staged, at, own);
        let own = comptime!(shape.clone());
        let drawn = bits_of(&beside, &space, &rows.lines, &stream.bits, first_key, is, own);
        let looked_at = KeyTile { first: first_key, buffer: 0u32, drawn };
        let mut next = buffer;
        #[unroll]
        for part in 0..comptime!(QUERIES / columns) {
            let (start, own) = comptime!((part * columns, shape.clone()));
            let (left, right) = ((&stream.pair, buffer), (&fixed, 0u32));
            let mut both = Both::begin::<E, N>(left, right, (of, of_keys), start, columns, own);
            if comptime!(part == 0 && of.many == 2) {
                next = 1u32 - buffer;
                let (from, own) = ((outer, first_key, tile + 1u32, next), comptime!(shape.clone()));
                let tensors = (queries, cotangent, bits, decided);
                (tile, is_decided) = stream.fetch_wanted(tensors, (&beside, &space), from, wants, of, own);
            }
            both.finish(columns, comptime!(shape.by.is_grouped()));
            let (first, own) = comptime!((start / 16, shape.clone()));
            slopes(&mut both, &beside, &space, &rows, &staged, &looked_at, first, columns, own);
            gradients.hold(&both, start, columns, comptime!(shape.clone()));
        }
        gradients.add(&stream.pair, buffer, of, comptime!(shape.clone()));
        if comptime!(of.many == 1) {
            // All threads have read the tile that the next one overwrites.
            sync_cube();
            let (from, own) = ((outer, first_key, tile + 1u32, next), comptime!(shape.clone()));
            let tensors = (queries, cotangent, bits, decided);
            (tile, is_decided) = stream.fetch_wanted(tensors, (&beside, &space), from, wants, of, own);
        }
        buffer = next;
    }
    gradients.write(keys_out, values_out, &space, (outer, first_key + row_of_unit()), shape);
}

/// The queries of a tile that a thread has.
#[cube]
fn staged_rows(
    beside: &Beside,
    space: &Space,
    staged: &Staged,
    at: (u32, u32, u32),
    #[comptime] shape: AttentionShape,
) -> QueryRows {
    let row = row_of_unit();
    let mut lines = Sequence::<QueryLine>::new();
    lines.push(staged_line(beside, space, staged, at, row, comptime!(shape.clone())));
    lines.push(staged_line(beside, space, staged, at, row + 8u32, comptime!(shape.clone())));
    QueryRows::new(at.1 + row, lines, shape)
}

/// Sums for the keys and values of a block, and the tiles that are summed: weights and slopes, whose rows are queries. What is
/// not asked for has no width.
#[derive(CubeType)]
struct KeyGradients<E: Float, N: Size> {
    weights: Shared<[Vector<E, N>]>,
    slopes: Shared<[Vector<E, N>]>,
    of_keys: Array<Vector<f32, Two>>,
    of_values: Array<Vector<f32, Two>>,
}

#[cube]
impl<E: Float, N: Size> KeyGradients<E, N> {
    fn new(#[comptime] shape: AttentionShape) -> KeyGradients<E, N> {
        let (keys, values) = comptime!((shape.gives(AttentionPart::Key), shape.gives(AttentionPart::Value)));
        let slopes = comptime!(shape.tile(QUERIES, if keys { QUERIES } else { 0 }));
        let weights = comptime!(shape.tile(QUERIES, if values { QUERIES } else { 0 }));
        KeyGradients::<E, N> {
            weights: new_tiles::<E, N>(weights, 1usize),
            slopes: new_tiles::<E, N>(slopes, 1usize),
            of_keys: Array::<Vector<f32, Two>>::new(comptime!(if keys { shape.width / 4 } else { 0 })),
            of_values: Array::<Vector<f32, Two>>::new(comptime!(if values { shape.values / 4 } else { 0 })),
        }
    }

    /// Puts the slopes and the weights for some keys into the tiles.
    fn hold(
        &self,
        both: &Both,
        #[comptime] start: usize,
        #[comptime] columns: usize,
        #[comptime] shape: AttentionShape,
    ) {
        let tile = comptime!(shape.tile(QUERIES, QUERIES));
        if comptime!(shape.gives(AttentionPart::Value)) {
            store::<E, N>(
                &factors::<E>(&both.by_weights, columns, comptime!(shape.by)),
                &self.weights,
                start,
                columns,
                tile,
            );
        }
        if comptime!(shape.gives(AttentionPart::Key)) {
            store::<E, N>(
                &factors::<E>(&both.scores, columns, comptime!(shape.by)),
                &self.slopes,
                start,
                columns,
                tile,
            );
        }
    }

    /// Adds the products of the tiles with queries and cotangents.
    fn add(
        &mut self,
        rows: &Pair<E, N>,
        buffer: u32,
        #[comptime] of: PairShape,
        #[comptime] shape: AttentionShape,
    ) {
        if comptime!(shape.by.is_grouped()) {
            show_to_products();
        }
        sync_cube();
        let (tile, (wide, other)) = comptime!((shape.tile(QUERIES, QUERIES), of.tiles(&shape)));
        let (keys, values) = comptime!((shape.gives(AttentionPart::Key), shape.gives(AttentionPart::Value)));
        if comptime!(values) {
            let at = buffer * comptime!(other.size() as u32);
            accumulate_columns::<E, N>(&self.weights, &rows.second, at, &mut self.of_values, tile, other);
        }
        if comptime!(keys) {
            let at = buffer * comptime!(wide.size() as u32);
            accumulate_columns::<E, N>(&self.slopes, &rows.first, at, &mut self.of_keys, tile, wide);
        }
        if comptime!(values) {
            finish(&mut self.of_values, comptime!(shape.values), 0usize, comptime!(shape.by.is_grouped()));
        }
        if comptime!(keys) {
            finish(&mut self.of_keys, comptime!(shape.width), 0usize, comptime!(shape.by.is_grouped()));
        }
    }

    fn write<O: Float, M: Size>(
        &self,
        keys: &mut Tensor<Vector<O, M>>,
        values: &mut Tensor<Vector<O, M>>,
        space: &Space,
        at: (u32, u32),
        #[comptime] shape: AttentionShape,
    ) {
        let (width, own) = comptime!((shape.width, shape.clone()));
        write_keys(keys, &self.of_keys, space, at, own, AttentionPart::Key, width);
        let width = comptime!(shape.values);
        write_keys(values, &self.of_values, space, at, shape, AttentionPart::Value, width);
    }
}
