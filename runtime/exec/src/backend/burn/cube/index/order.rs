//! Entries in the order of the rows that they name, those of one row in their own order: a counting sort whose results depend on nothing else.

use super::kernels::{IndexSpace, row_named};
use crate::backend::burn::cube::space::positions;
use crate::backend::burn::cube::tile::PLANE;
use cubecl::prelude::*;

/// Rows of a cube, each of which a unit has; and entries that it looks at together.
pub(super) const ROWS: usize = 256;

/// For each row where its entries begin in `order`, and where they end. A cube has some rows at one outer position, and goes through all entries there
/// twice: to count, and to put each in its place.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn order_entries(
    indices: Sequence<OwnedTensor<i32>>,
    ranges: &mut Tensor<u32>,
    order: &mut Tensor<u32>,
    space: IndexSpace,
    rows: u32,
) {
    let blocks = rows.div_ceil(comptime!(ROWS as u32));
    let (outer, first) = (CUBE_POS_X / blocks, CUBE_POS_X % blocks * comptime!(ROWS as u32));
    let mut named = Shared::<[u32]>::new_slice(ROWS);
    let mut any = Shared::<[u32]>::new_slice(ROWS / PLANE);
    // How many entries name a row before those of this cube, as far as this unit looked, and how many name its own.
    let mut before = 0u32;
    let mut own = 0u32;
    // The next entry is on its way meanwhile.
    let mut ahead = look(&indices, &space, outer, 0u32);
    for part in 0..space.entries.len.div_ceil(comptime!(ROWS as u32)) {
        let row = ahead;
        ahead = look(&indices, &space, outer, (part + 1u32) * comptime!(ROWS as u32));
        if row < first {
            before += 1u32;
        }
        share(row - first, &mut named, &mut any);
        #[unroll]
        for plane in 0..comptime!(ROWS / PLANE) {
            if any[plane] != 0u32 {
                for i in 0..comptime!(PLANE as u32) {
                    if named[comptime!(plane * PLANE) + i as usize] == UNIT_POS {
                        own += 1u32;
                    }
                }
            }
        }
        sync_cube();
    }
    // Where the entries of this unit's row begin: behind those of the rows before.
    let mut counts = Shared::<[u32]>::new_slice(2 * ROWS);
    counts[UNIT_POS as usize] = own;
    counts[comptime!(ROWS) + UNIT_POS as usize] = before;
    sync_cube();
    let mut next = outer * space.entries.len;
    for i in 0..comptime!(ROWS as u32) {
        next += counts[comptime!(ROWS) + i as usize];
        if i < UNIT_POS {
            next += counts[i as usize];
        }
    }
    if first + UNIT_POS < rows {
        let row = (outer * rows + first + UNIT_POS) as usize;
        ranges[2 * row] = next;
        ranges[2 * row + 1] = next + own;
    }
    ahead = look(&indices, &space, outer, 0u32);
    for part in 0..space.entries.len.div_ceil(comptime!(ROWS as u32)) {
        let row = ahead;
        ahead = look(&indices, &space, outer, (part + 1u32) * comptime!(ROWS as u32));
        share(row - first, &mut named, &mut any);
        #[unroll]
        for plane in 0..comptime!(ROWS / PLANE) {
            if any[plane] != 0u32 {
                for i in 0..comptime!(PLANE as u32) {
                    if named[comptime!(plane * PLANE) + i as usize] == UNIT_POS {
                        order[next as usize] =
                            part * comptime!(ROWS as u32) + comptime!((plane * PLANE) as u32) + i;
                        next += 1u32;
                    }
                }
            }
        }
        sync_cube();
    }
}

/// The row that this unit's entry of a part names; none is the greatest number.
#[cube]
fn look(indices: &Sequence<OwnedTensor<i32>>, space: &IndexSpace, outer: u32, part: u32) -> u32 {
    let entry = part + UNIT_POS;
    let mut row = u32::MAX.runtime();
    if entry < space.entries.len {
        let (outer, entry) = (positions(&space.outer, outer), positions(&space.entries, entry));
        let named = row_named(indices, space, &outer, &entry);
        row = select(named.is_held, named.number, row);
    }
    row
}

/// Tells the cube which of its rows a unit's entry names, and of each plane whether any does.
#[cube]
fn share(row: u32, named: &mut Shared<[u32]>, any: &mut Shared<[u32]>) {
    let is_here = row < comptime!(ROWS as u32);
    named[UNIT_POS as usize] = row;
    any[(UNIT_POS / comptime!(PLANE as u32)) as usize] = plane_max(select(is_here, 1u32, 0u32));
    sync_cube();
}
