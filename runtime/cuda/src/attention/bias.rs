//! The gradient of a bias: that of the scores, summed over the outer dims that the bias lacks. A block has the scores of 64
//! queries and 64 keys, and goes over these dims in one order: nothing is added by atomics, and no scores are in memory.

use super::decide::is_decided;
use super::draws::{bits_of, load_bits};
use super::elements::KeyTile;
use super::load::{QUERIES, meet, row_of_unit};
use super::scores::{AttentionShape, Beside, Space, base, row_offset, two_lines};
use super::slopes::{QueryRows, slopes};
use super::staged::Staged;
use super::stream::{Both, Pair, PairShape};
use crate::kernel::tile::Two;
use cubecl::prelude::*;

/// The outer position of a term of the sum, of which the `place`-th is along the dims of the bias, and the `term`-th along the
/// others.
#[cube]
fn outer_of(space: &Space, place: u32, term: u32, #[comptime] shape: AttentionShape) -> u32 {
    let mut of_bias = place;
    let mut summed = term;
    let mut outer = 0u32;
    #[unroll]
    for i in 0..comptime!(shape.outer) {
        let dim = comptime!(shape.outer - 1 - i);
        let (size, divisor) = (*space.sizes.index(dim), *space.divisors.index(dim));
        if comptime!(shape.summed[dim]) {
            outer += summed % size * divisor;
            summed /= size;
        } else {
            outer += of_bias % size * divisor;
            of_bias /= size;
        }
    }
    outer
}

/// The gradient of the bias. `terms` is the number of positions along the dims that it lacks; the slope of the shape is that of
/// scores by the bias.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn attention_bias_grad<E: Float, N: Size>(
    queries: &Tensor<Vector<E, N>>,
    keys: &Tensor<Vector<E, N>>,
    values: &Tensor<Vector<E, N>>,
    cotangent: &Tensor<Vector<E, N>>,
    beside: Beside,
    space: Space,
    decided: &Tensor<u32>,
    bits: &Tensor<u32>,
    out: &mut Tensor<f32>,
    terms: u32,
    #[comptime] shape: AttentionShape,
    #[define(E)] _half: ElemType,
) {
    let of_rows = comptime!(PairShape { rows: QUERIES, many: 1, of_keys: false });
    let of_keys = comptime!(PairShape { rows: QUERIES, many: 1, of_keys: true });
    let (row_tiles, key_tiles) =
        (space.rows.div_ceil(comptime!(QUERIES as u32)), space.keys.div_ceil(comptime!(QUERIES as u32)));
    let first_key = CUBE_POS_X % key_tiles * comptime!(QUERIES as u32);
    let first_query = CUBE_POS_X / key_tiles % row_tiles * comptime!(QUERIES as u32);
    let place = CUBE_POS_X / key_tiles / row_tiles;
    let row = first_query + row_of_unit();
    let outer = outer_of(&space, place, 0u32, comptime!(shape.clone()));
    let rows = Pair::<E, N>::new(queries, cotangent, &space, outer, of_rows, comptime!(shape.clone()));
    let others = Pair::<E, N>::new(keys, values, &space, outer, of_keys, comptime!(shape.clone()));
    let staged = Staged::new(&beside, &space, outer, true, comptime!(shape.clone()));
    let mut words = Array::<u32>::new(comptime!(shape.draws.len().max(1)));
    let mut sums = Array::<Vector<f32, Two>>::new(comptime!(QUERIES / 4));
    #[unroll]
    for at in 0..comptime!(QUERIES / 4) {
        sums[at] = Vector::<f32, Two>::zeroed();
    }
    // Of scores that positions decide no operand changes anything.
    if !is_decided(decided, &space, first_query, first_key, comptime!(shape.clone())) {
        for term in 0..terms {
            let outer = outer_of(&space, place, term, comptime!(shape.clone()));
            // The tiles of the term before are read until here.
            sync_cube();
            let (query_at, key_at) = ((outer, first_query), (outer, first_key));
            rows.load_at((queries, cotangent), &space, query_at, of_rows, comptime!(shape.clone()));
            others.load_at((keys, values), &space, key_at, of_keys, comptime!(shape.clone()));
            staged.load_at(&beside, &space, key_at, true, comptime!(shape.clone()));
            let at = (outer, first_query, first_key);
            load_bits(&space, bits, at, &mut words, comptime!(shape.clone()));
            meet(comptime!(shape.by.is_grouped()));
            let (of, own) = comptime!(((of_rows, of_keys), shape.clone()));
            let mut both = Both::begin::<E, N>((&rows, 0u32), (&others, 0u32), of, 0usize, QUERIES, own);
            let lines = two_lines(&beside, &space, outer, row, comptime!(shape.clone()));
            let of_queries = QueryRows::new(row, lines, comptime!(shape.clone()));
            let own = comptime!(shape.clone());
            let drawn = bits_of(&beside, &space, &of_queries.lines, &words, first_key, false, own);
            let tile = KeyTile { first: first_key, buffer: 0u32, drawn };
            both.finish(QUERIES, comptime!(shape.by.is_grouped()));
            let own = comptime!(shape.clone());
            slopes(&mut both, &beside, &space, &of_queries, &staged, &tile, 0usize, QUERIES, own);
            #[unroll]
            for at in 0..comptime!(QUERIES / 4) {
                sums[at] += both.scores[at];
            }
        }
    }
    write_scores(out, &sums, &space, (outer, row, first_key), shape);
}

/// Writes accumulators of two queries, the first of which is `at.1`, and of the keys from `at.2` on.
#[cube]
fn write_scores(
    out: &mut Tensor<f32>,
    sums: &Array<Vector<f32, Two>>,
    space: &Space,
    at: (u32, u32, u32),
    #[comptime] shape: AttentionShape,
) {
    let along = out.stride(comptime!(shape.key()));
    let start = base(&*out, space, at.0, comptime!(shape.clone()));
    #[unroll]
    for half in 0..2usize {
        let query = at.1 + comptime!(8 * half as u32);
        if comptime!(shape.whole) || query < space.rows {
            let offset = start + row_offset(&*out, space, query, comptime!(shape.clone()));
            #[unroll]
            for n in 0..comptime!(QUERIES / 8) {
                #[unroll]
                for c in 0..2usize {
                    let key = at.2 + UNIT_POS % 4 * 2u32 + comptime!((8 * n + c) as u32);
                    if comptime!(shape.whole) || key < space.keys {
                        out[offset + key as usize * along] = sums[comptime!(2 * n + half)].extract(c);
                    }
                }
            }
        }
    }
}
