//! Truth values that are drawn for scores, bit by bit those that are drawn into memory elsewhere.
//!
//! As a rule one counter of the generator gives the truth values of eight keys that follow each other, 16 bits for each. What a unit has of two
//! neighboring tiles of 8 columns are elements of as many counters as there are units that have elements of these: so each computes one, and they
//! exchange words.

use super::super::random::of_words;
use super::scores::{AttentionShape, Beside, DrawnShape, QueryLine};
use cubecl::prelude::*;

/// The four words of a counter, or of four counters that a unit has elements of.
type Words = (u32, u32, u32, u32);

/// Of two queries, which are the rows of accumulators, at `key`, the key after it, and both 8 keys later: first the keys, then the
/// queries, then the tiles of 8 keys.
#[cube]
pub(super) fn by_rows(
    beside: &Beside,
    first: &QueryLine,
    second: &QueryLine,
    key: u32,
    #[comptime] shape: AttentionShape,
) -> Sequence<Array<f32>> {
    let mut all = Sequence::<Array<f32>>::new();
    #[unroll]
    for i in 0..comptime!(beside.draws.len()) {
        let draw = beside.draws.index(i);
        let counts = (*first.counts.index(i), *second.counts.index(i));
        let mut drawn = Array::<f32>::new(8usize);
        let DrawnShape { many, in_groups } = comptime!(shape.draws[i]);
        if comptime!(in_groups) {
            // Four units have the eight keys of a tile. The lowest bit of each says for which query it computes a counter, the other for
            // which tile.
            let own = UNIT_POS % 4;
            let count = select(own & 1 == 0u32, counts.0, counts.1) + u64::cast_from(key + own / 2 * 8u32);
            let words = draw.generator.words(beside.step[0usize], count >> 3);
            let had = exchanged(words, own, 1u32);
            #[unroll]
            for from in 0..4usize {
                let word = of_words(had, from, 4usize);
                drawn[2 * from] = draw.truth(word << 16u32);
                drawn[2 * from + 1] = draw.truth(word);
            }
        } else {
            let along = comptime!(shape.key());
            #[unroll]
            for place in 0..8usize {
                let count = if comptime!(place / 2 % 2 == 0) { counts.0 } else { counts.1 };
                let key = key + comptime!((place / 4 * 8 + place % 2) as u32);
                let count = count + u64::cast_from(key) * *draw.strides.index(along);
                drawn[place] = draw.truth(draw.generator.word(beside.step[0usize], count, many));
            }
        }
        all.push(drawn);
    }
    all
}

/// Of four queries, which are columns of accumulators, the first two of one tile and the others of the next, at `key` and the eighth key after
/// it: first the queries of a tile, then the keys, then the tiles.
#[cube]
pub(super) fn by_columns(
    beside: &Beside,
    lines: &Sequence<QueryLine>,
    key: u32,
    #[comptime] shape: AttentionShape,
) -> Sequence<Array<f32>> {
    let mut all = Sequence::<Array<f32>>::new();
    #[unroll]
    for i in 0..comptime!(beside.draws.len()) {
        let draw = beside.draws.index(i);
        let mut counts = Array::<u64>::new(4usize);
        #[unroll]
        for line in 0..4usize {
            counts[line] = *lines.index(line).counts.index(i);
        }
        let mut drawn = Array::<f32>::new(8usize);
        let DrawnShape { many, in_groups } = comptime!(shape.draws[i]);
        if comptime!(in_groups) {
            // Eight units, each fourth of the plane, have the eight keys. The lowest bit of each says for which tile it computes a counter,
            // the next for which query, the highest for which eight keys.
            let own = UNIT_POS / 4 % 8;
            let is_first = own & 1 == 0u32;
            let of_tile = (select(is_first, counts[0], counts[2]), select(is_first, counts[1], counts[3]));
            let count = select(own & 2 == 0u32, of_tile.0, of_tile.1);
            let count = count + u64::cast_from(key + own / 4 * 8u32);
            let words = draw.generator.words(beside.step[0usize], count >> 3);
            let had = exchanged(words, own / 2, 8u32);
            let half = 16u32 - own % 2 * 16u32;
            #[unroll]
            for from in 0..4usize {
                let word = of_words(had, from, 4usize);
                let other = plane_shuffle_xor(word, 4u32);
                drawn[from] = draw.truth(select(is_first, word, other) << half);
                drawn[4 + from] = draw.truth(select(is_first, other, word) << half);
            }
        } else {
            let along = comptime!(shape.key());
            #[unroll]
            for place in 0..8usize {
                let key = key + comptime!((place / 2 % 2 * 8) as u32);
                let count = counts[comptime!(place / 4 * 2 + place % 2)];
                let count = count + u64::cast_from(key) * *draw.strides.index(along);
                drawn[place] = draw.truth(draw.generator.word(beside.step[0usize], count, many));
            }
        }
        all.push(drawn);
    }
    all
}

/// Of four units that have four words each, the word with the number of this one, `own`, from each of them; the next is `apart` lanes away.
#[cube]
fn exchanged(words: Words, own: u32, apart: u32) -> Words {
    let is_even = own & 1 == 0u32;
    let (a, b) = swapped(words.0, words.1, is_even, apart);
    let (c, d) = swapped(words.2, words.3, is_even, apart);
    let is_lower = own & 2 == 0u32;
    let (a, c) = swapped(a, c, is_lower, 2u32 * apart);
    let (b, d) = swapped(b, d, is_lower, 2u32 * apart);
    (a, b, c, d)
}

/// Keeps the first word and gives the second one away for the first of the other unit; the other way round in that one.
#[cube]
fn swapped(first: u32, second: u32, keeps_first: bool, apart: u32) -> (u32, u32) {
    let got = plane_shuffle_xor(select(keeps_first, second, first), apart);
    (select(keeps_first, first, got), select(keeps_first, got, second))
}
