//! Random truth values for scores, equal bit by bit to those that are drawn into memory elsewhere.
//!
//! A kernel of its own draws the bits of a whole attention, one for each score, in the layout of the other kernels'
//! threads: drawing is integer arithmetic alone, which keeps a multiprocessor busy and waits for nothing. Decided tiles
//! are drawn when they are processed, which is rare; so are all tiles of an attention whose bits would take too much
//! memory, or are too few for a kernel of their own.
//!
//! Usually one counter of the generator gives the truth values of eight adjacent keys, 16 bits for each. A thread's
//! elements of two adjacent tiles of 8 columns belong to as many counters as there are threads with elements of these:
//! so each thread computes one, and they exchange the results.

use super::decide::is_decided;
use super::load::{place_of_cube, row_of_unit};
use super::scores::{AttentionShape, Beside, DECIDED, DrawnShape, QueryLine, Space, drawn_at, two_lines};
use crate::kernel::random::of_words;
use crate::kernel::tile::UNITS;
use cubecl::prelude::*;

/// Draws for all tiles of 64 queries and 64 keys, except decided ones: a word for each thread.
#[cube(launch_unchecked)]
pub(super) fn attention_draws(
    beside: Beside,
    space: Space,
    decided: &Tensor<u32>,
    out: &mut Tensor<u32>,
    #[comptime] shape: AttentionShape,
) {
    let (outer, first_query) = place_of_cube(space.rows, false);
    let lines = two_lines(&beside, &space, outer, first_query + row_of_unit(), comptime!(shape.clone()));
    let step = beside.step[0usize];
    for tile in 0..space.keys.div_ceil(comptime!(DECIDED as u32)) {
        let first_key = tile * comptime!(DECIDED as u32);
        let mut wanted = true;
        if comptime!(shape.decides) {
            wanted = !is_decided(decided, &space, first_query, first_key, comptime!(shape.clone()));
        }
        if wanted {
            #[unroll]
            for i in 0..comptime!(shape.draws.len()) {
                let own = comptime!(shape.clone());
                let bits = drawn((&beside, &space), &lines, step, first_key, i, DECIDED, own);
                let at =
                    place_of_bits(&space, outer, first_query, first_key, i, comptime!(shape.draws.len()));
                out[at] = bits;
            }
        }
    }
}

/// Index of this thread's word, among those of the four warps that have these 64 queries and 64 keys.
#[cube]
fn place_of_bits(
    space: &Space,
    outer: u32,
    query: u32,
    key: u32,
    #[comptime] which: usize,
    #[comptime] many: usize,
) -> usize {
    let size = comptime!(DECIDED as u32);
    let (rows, keys) = (space.rows.div_ceil(size), space.keys.div_ceil(size));
    let tile =
        (outer as usize * rows as usize + (query / size) as usize) * keys as usize + (key / size) as usize;
    (tile * many + which) * UNITS + UNIT_POS as usize
}

/// Loads the words of all draws for the keys of a tile from `at.2` on.
#[cube]
pub(super) fn load_bits(
    space: &Space,
    bits: &Tensor<u32>,
    at: (u32, u32, u32),
    own: &mut Array<u32>,
    #[comptime] shape: AttentionShape,
) {
    let (outer, first_query, first_key) = at;
    #[unroll]
    for i in 0..comptime!(shape.draws.len()) {
        if comptime!(shape.ahead) {
            let place = place_of_bits(space, outer, first_query, first_key, i, comptime!(shape.draws.len()));
            own[i] = bits[place] >> (first_key % comptime!(DECIDED as u32) / 2u32);
        }
    }
}

/// The bits of all draws for the keys of a tile from `first_key` on: loaded ones, unless there are none or positions
/// decide the tile.
#[cube]
pub(super) fn bits_of(
    beside: &Beside,
    space: &Space,
    lines: &Sequence<QueryLine>,
    loaded: &Array<u32>,
    first_key: u32,
    is_decided: bool,
    #[comptime] shape: AttentionShape,
) -> Sequence<u32> {
    let mut all = Sequence::<u32>::new();
    #[unroll]
    for i in 0..comptime!(shape.draws.len()) {
        let mut own = loaded[i];
        let mut anew = true;
        if comptime!(shape.ahead) {
            anew = is_decided;
        }
        if anew {
            let step = beside.step[0usize];
            let (columns, shape) = comptime!((shape.columns, shape.clone()));
            own = drawn((beside, space), lines, step, first_key, i, columns, shape);
        }
        all.push(own);
    }
    all
}

/// The bits of a draw for two queries, which are rows of accumulators, and `columns` keys: for each 16 keys the first
/// eight come first, and in these the first query, two bits each.
#[cube]
fn drawn(
    of: (&Beside, &Space),
    lines: &Sequence<QueryLine>,
    step: u32,
    first_key: u32,
    #[comptime] which: usize,
    #[comptime] columns: usize,
    #[comptime] shape: AttentionShape,
) -> u32 {
    let (beside, space) = of;
    let along = comptime!(shape.key());
    let draw = beside.draws.index(which);
    let counts = (*lines.index(0).counts.index(which), *lines.index(1).counts.index(which));
    let DrawnShape { many, in_groups } = comptime!(shape.draws[which]);
    let mut bits = 0u32;
    if comptime!(in_groups) {
        // Four threads have the eight keys of a tile of accumulators, which share a counter. The lowest bit of each says for
        // which query it computes counters, the other for which eight of 16 keys: a byte for each 16.
        let own = UNIT_POS % 4;
        let count = select(own & 1 == 0u32, counts.0, counts.1);
        let mut bytes = 0u32;
        #[unroll]
        for pair in 0..comptime!(columns / 16) {
            let key = first_key + own / 2 * 8u32 + comptime!(16 * pair as u32);
            let key = drawn_at(space, key, along, comptime!(shape.clone()));
            let words = draw.generator.words(step, (count + u64::cast_from(key)) >> 3);
            #[unroll]
            for from in 0..4usize {
                let word = of_words(words, from, 4usize);
                let at = comptime!((8 * pair + 2 * from) as u32);
                bytes |= u32::cast_from(draw.is_true(word << 16u32)) << at;
                bytes |= u32::cast_from(draw.is_true(word)) << comptime!(at + 1);
            }
        }
        // The bits of its own two keys, from the bytes of each of the four.
        #[unroll]
        for apart in 0..4u32 {
            let theirs = if comptime!(apart == 0) { bytes } else { plane_shuffle_xor(bytes, apart) };
            bits |= ((theirs >> (2u32 * own)) & 0x0303_0303u32) << (2u32 * (own ^ apart));
        }
    } else {
        #[unroll]
        for pair in 0..comptime!(columns / 16) {
            #[unroll]
            for place in 0..8usize {
                let count = if comptime!(place / 2 % 2 == 0) { counts.0 } else { counts.1 };
                let offset = comptime!((16 * pair + place / 4 * 8 + place % 2) as u32);
                let key = first_key + UNIT_POS % 4 * 2u32 + offset;
                let key = drawn_at(space, key, along, comptime!(shape.clone()));
                let count = count + u64::cast_from(key) * *draw.strides.index(along);
                let is = draw.is_true(draw.generator.word(step, count, many));
                bits |= u32::cast_from(is) << comptime!((8 * pair + place) as u32);
            }
        }
    }
    bits
}
