//! Tiles that positions decide: all their scores are one number, and they are left out where that has no weight.

use super::scores::{AttentionShape, Beside, DECIDED, Space, line, of_query};
use crate::kernel::tile::{PLANES, UNITS};
use cubecl::prelude::*;

/// The number to which scores are relative: none of a row without scores, all of whose weights are 0.
#[cube]
pub(super) fn shift(max: f32) -> f32 {
    select(max == comptime!(f32::NEG_INFINITY).runtime(), 0.0f32, max)
}

/// Whether the weight of a score, relative to the greatest of its row, is not 0 in `f32`; NaN has a weight.
#[cube]
fn has_weight(score: f32, max: f32) -> bool {
    let apart = max - score;
    apart <= 110.0f32 || apart.is_nan()
}

/// True if the score has a weight in any row of the block; a thread has two rows, the first of which is `row`.
#[cube]
pub(super) fn any_needs(first: f32, second: f32, row: u32, space: &Space) -> bool {
    let needs = row < space.rows && has_weight(space.decided, first);
    let other_needs = row + 8u32 < space.rows && has_weight(space.decided, second);
    any_of_cube(needs || other_needs)
}

/// Whether it is so for any thread of the block.
#[cube]
fn any_of_cube(is: bool) -> bool {
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

/// Index of a tile in the table of decided tiles.
#[cube]
fn place_of_decision(space: &Space, query: u32, key: u32) -> usize {
    let tile = comptime!(DECIDED as u32);
    (query / tile * space.keys.div_ceil(tile) + key / tile) as usize
}

/// Index of the next of `many` tiles, from `from` on, and whether positions decide it: decided tiles count if the first
/// of `wants` is true, others if the second is. Tiles are of keys for the queries from `at` on, or of 64 queries for
/// the keys from there on.
#[cube]
pub(super) fn next_wanted(
    decided: &Tensor<u32>,
    space: &Space,
    at: u32,
    from: u32,
    many: u32,
    wants: (bool, bool),
    #[comptime] of_keys: bool,
    #[comptime] shape: AttentionShape,
) -> (u32, bool) {
    let mut tile = from;
    let mut is = false.runtime();
    if comptime!(shape.decides) {
        let mut looks = true;
        while looks && tile < many {
            is = if comptime!(of_keys) {
                is_decided(
                    decided,
                    space,
                    at,
                    tile * comptime!(shape.columns as u32),
                    comptime!(shape.clone()),
                )
            } else {
                is_decided(decided, space, tile * comptime!(DECIDED as u32), at, comptime!(shape.clone()))
            };
            looks = select(is, !wants.0, !wants.1);
            tile += select(looks, 1u32, 0u32);
        }
    }
    (tile, is)
}

/// Whether positions decide a tile.
#[cube]
pub(super) fn is_decided(
    decided: &Tensor<u32>,
    space: &Space,
    query: u32,
    key: u32,
    #[comptime] shape: AttentionShape,
) -> bool {
    let mut is = false.runtime();
    if comptime!(shape.decides) {
        is = decided[place_of_decision(space, query, key)] != 0u32;
    }
    is
}

/// Whether the score has a weight for any query of an attention.
#[cube]
pub(super) fn any_query_needs(
    beside: &Beside,
    space: &Space,
    outer: u32,
    #[comptime] shape: AttentionShape,
) -> bool {
    let mut needs = false.runtime();
    if comptime!(shape.decides) {
        for i in 0..space.rows.div_ceil(comptime!(UNITS as u32)) {
            let row = min(i * comptime!(UNITS as u32) + UNIT_POS, space.rows - 1u32);
            let at = line(beside, space, outer, row, comptime!(shape.clone()));
            let max = of_query(&at, comptime!(shape.max.unwrap_or(0)));
            needs = needs || has_weight(space.decided, max);
        }
        needs = any_of_cube(needs);
    }
    needs
}
