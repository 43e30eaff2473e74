//! Truth values that are drawn for scores, bit by bit those that are drawn into memory elsewhere.
//!
//! One count of the generator gives the words of four keys that follow each other, if these are counted so. Each unit has four elements of
//! 8 columns of an accumulator, of two rows and two columns, and so asks for one count: its neighbors have the other keys of it, and
//! words are exchanged.

use super::scores::{AttentionShape, Beside, QueryLine};
use cubecl::prelude::*;

/// Of two queries, which are the rows of an accumulator, at `key` and the key after it: first those of the first query.
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
        let mut drawn = Array::<f32>::new(4usize);
        if comptime!(shape.four) {
            // Two units have the four keys: the even one asks for those of the first query, the odd one of the second.
            let is_even = UNIT_POS & 1 == 0u32;
            let count = select(is_even, counts.0, counts.1) + u64::cast_from(key);
            let (a, b, c, d) = draw.generator.words(beside.step[0usize], count >> 2);
            let left = plane_shuffle_xor(select(is_even, c, a), 1u32);
            let right = plane_shuffle_xor(select(is_even, d, b), 1u32);
            drawn[0] = draw.truth(select(is_even, a, left));
            drawn[1] = draw.truth(select(is_even, b, right));
            drawn[2] = draw.truth(select(is_even, left, c));
            drawn[3] = draw.truth(select(is_even, right, d));
        } else {
            let along = comptime!(shape.key());
            #[unroll]
            for c in 0..2usize {
                let far = u64::cast_from(key + comptime!(c as u32)) * *draw.strides.index(along);
                drawn[c] = draw.truth(draw.generator.word(beside.step[0usize], counts.0 + far));
                drawn[2 + c] = draw.truth(draw.generator.word(beside.step[0usize], counts.1 + far));
            }
        }
        all.push(drawn);
    }
    all
}

/// Of two queries, which are columns of an accumulator, at `key` and the eighth key after it: first both queries at the first key.
#[cube]
pub(super) fn by_columns(
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
        let mut drawn = Array::<f32>::new(4usize);
        if comptime!(shape.four) {
            // Four units, each fourth of the plane, have the four keys, and each asks for one of the elements that they have alike.
            let own = UNIT_POS / 4 % 4;
            let key = key + own / 2 * 8u32;
            let count = select(own & 1 == 0u32, counts.0, counts.1) + u64::cast_from(key);
            let words = draw.generator.words(beside.step[0usize], count >> 2);
            let mut had = Array::<u32>::new(4usize);
            #[unroll]
            for round in 0..4u32 {
                let word = chosen(words, own ^ round);
                had[round as usize] = plane_shuffle_xor(word, comptime!(4 * round));
            }
            let had = (had[0], had[1], had[2], had[3]);
            #[unroll]
            for element in 0..4usize {
                drawn[element] = draw.truth(chosen(had, own ^ comptime!(element as u32)));
            }
        } else {
            let along = comptime!(shape.key());
            #[unroll]
            for half in 0..2usize {
                let far = u64::cast_from(key + comptime!(8 * half as u32)) * *draw.strides.index(along);
                drawn[2 * half] = draw.truth(draw.generator.word(beside.step[0usize], counts.0 + far));
                drawn[2 * half + 1] = draw.truth(draw.generator.word(beside.step[0usize], counts.1 + far));
            }
        }
        all.push(drawn);
    }
    all
}

/// One of four.
#[cube]
fn chosen(of: (u32, u32, u32, u32), which: u32) -> u32 {
    let lower = select(which & 1 == 0u32, of.0, of.1);
    let upper = select(which & 1 == 0u32, of.2, of.3);
    select(which < 2u32, lower, upper)
}
