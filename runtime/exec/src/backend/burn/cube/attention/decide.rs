//! Tiles that positions decide: all their scores are one number, and they are left out where that has no weight.

use super::super::tile::PLANES;
use super::scores::{DECIDED, Space};
use cubecl::prelude::*;

/// The number to which scores are relative: none of a row without scores, all of whose weights are 0.
#[cube]
pub(super) fn shift(max: f32) -> f32 {
    select(max == comptime!(f32::NEG_INFINITY).runtime(), 0.0f32, max)
}

/// Whether a score has a weight beside the greatest of its row, which is not 0 in `f32`; NaN has.
#[cube]
pub(super) fn has_weight(score: f32, max: f32) -> bool {
    let apart = max - score;
    apart <= 110.0f32 || apart.is_nan()
}

/// Whether the number has a weight in any row of the cube; a unit has two rows, of which `row` is the first.
#[cube]
pub(super) fn any_needs(first: f32, second: f32, row: u32, space: &Space) -> bool {
    let needs = row < space.rows && has_weight(space.decided, first);
    let other_needs = row + 8u32 < space.rows && has_weight(space.decided, second);
    any_of_cube(needs || other_needs)
}

/// Whether it is so for any unit of the cube.
#[cube]
pub(super) fn any_of_cube(is: bool) -> bool {
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

/// Where the table of decided tiles tells of a tile.
#[cube]
pub(super) fn place_of_decision(space: &Space, query: u32, key: u32) -> usize {
    let tile = comptime!(DECIDED as u32);
    (query / tile * space.keys.div_ceil(tile) + key / tile) as usize
}
