//! Entries in the order of the rows that they name, stable within a row, so that the order is unique: chunks are
//! sorted, then each entry counts the entries of all chunks that come before it.

use super::kernels::{IndexSpace, row_named};
use crate::kernel::space::positions;
use crate::kernel::tile::PLANE;
use cubecl::prelude::*;

/// Threads of a block that puts entries in their places.
pub(super) const THREADS: usize = 256;
/// Most threads of a block that sorts a chunk.
const SORT_THREADS: usize = 512;
/// Chunks that entries are cut into, where that makes them neither tiny nor too large for shared memory.
const CHUNKS: usize = 16;
const LEAST_CHUNK: usize = 2 * PLANE;
const LARGEST_CHUNK: usize = 4096;
/// Chunks that are searched at once, so that their loads overlap.
const AT_ONCE: usize = 4;

/// Entries of a chunk, a power of two, for this total.
pub(super) fn chunk_of(entries: usize) -> usize {
    entries.div_ceil(CHUNKS).next_power_of_two().clamp(LEAST_CHUNK, LARGEST_CHUNK)
}

/// Threads of a block that sorts a chunk; each has a pair of entries, or several.
pub(super) fn sort_threads(chunk: usize) -> usize {
    SORT_THREADS.min(chunk / 2)
}

fn chunks_at_once(chunk: usize) -> usize {
    AT_ONCE.min(LARGEST_CHUNK / chunk)
}

/// The entries of each chunk by rows, stable within a row; entries without a row are last. A bitonic sort: of two
/// entries that are `apart`, the lesser comes first, or last if their run descends.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn sort_chunks(
    indices: Sequence<OwnedTensor<i32>>,
    rows: &mut Tensor<u32>,
    entries: &mut Tensor<u32>,
    space: IndexSpace,
    #[comptime] chunk: usize,
) {
    let threads = comptime!(sort_threads(chunk));
    let chunks = space.entries.len.div_ceil(comptime!(chunk as u32));
    let (outer, first) = (CUBE_POS_X / chunks, CUBE_POS_X % chunks * comptime!(chunk as u32));
    let mut keys = Shared::<[u64]>::new_slice(chunk);
    #[unroll]
    for i in 0..comptime!(chunk / threads) {
        let at = UNIT_POS + comptime!((i * threads) as u32);
        let row = look(&indices, &space, outer, first + at);
        keys[at as usize] = (u64::cast_from(row) << 32) | u64::cast_from(first + at);
    }
    sync_cube();
    let mut run = 2u32;
    while run <= comptime!(chunk as u32) {
        let mut apart = run / 2u32;
        while apart > 0u32 {
            #[unroll]
            for i in 0..comptime!(chunk / 2 / threads) {
                let pair = UNIT_POS + comptime!((i * threads) as u32);
                let low = 2u32 * pair - (pair & (apart - 1u32));
                let (a, b) = (keys[low as usize], keys[(low + apart) as usize]);
                let rises = low & run == 0u32;
                if (a > b) == rises {
                    keys[low as usize] = b;
                    keys[(low + apart) as usize] = a;
                }
            }
            // Pairs that are this near are of 64 entries that only one warp has.
            let is_near = apart <= comptime!(PLANE as u32);
            let is_next_near = apart > 1u32 || run < comptime!(2 * PLANE as u32);
            if is_near && is_next_near {
                sync_plane();
            } else {
                sync_cube();
            }
            apart /= 2u32;
        }
        run *= 2u32;
    }
    #[unroll]
    for i in 0..comptime!(chunk / threads) {
        let at = UNIT_POS + comptime!((i * threads) as u32);
        let key = keys[at as usize];
        let to = CUBE_POS_X as usize * chunk + at as usize;
        rows[to] = u32::cast_from(key >> 32);
        entries[to] = u32::cast_from(key & 0xffff_ffffu64);
    }
}

/// The row that an entry names; none is the greatest number.
#[cube]
fn look(indices: &Sequence<OwnedTensor<i32>>, space: &IndexSpace, outer: u32, entry: u32) -> u32 {
    let mut row = u32::MAX.runtime();
    if entry < space.entries.len {
        let (outer, entry) = (positions(&space.outer, outer), positions(&space.entries, entry));
        let named = row_named(indices, space, &outer, &entry);
        row = select(named.is_held, named.number, row);
    }
    row
}

/// Merges the entries of sorted chunks, and writes the first entry of each row; one more row begins at the end of all.
/// A thread has an entry or a row. Before it come the entries of lesser rows, and before an entry also those of its own
/// row in earlier chunks, and earlier ones in its own chunk.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn order_entries(
    chunk_rows: &Tensor<u32>,
    chunk_entries: &Tensor<u32>,
    starts: &mut Tensor<u32>,
    order: &mut Tensor<u32>,
    entries: u32,
    rows: u32,
    #[comptime] chunk: usize,
) {
    let at_once = comptime!(chunks_at_once(chunk));
    let chunks = entries.div_ceil(comptime!(chunk as u32));
    let sorted = chunks * comptime!(chunk as u32);
    let blocks = (sorted + rows + 1u32).div_ceil(comptime!(THREADS as u32));
    let (outer, block) = (CUBE_POS_X / blocks, CUBE_POS_X % blocks);
    let at = block * comptime!(THREADS as u32) + UNIT_POS;
    let first = outer * sorted;
    let is_entry = at < sorted;
    let mut row = at - sorted;
    let mut before = 0u32;
    if is_entry {
        row = chunk_rows[(first + at) as usize];
        before = at % comptime!(chunk as u32);
    }
    let own = at / comptime!(chunk as u32);
    let mut tile = Shared::<[u32]>::new_slice(comptime!(at_once * chunk));
    let mut turn = 0u32;
    while turn < chunks {
        load_chunks(chunk_rows, &mut tile, turn * comptime!(chunk as u32), (first, sorted), chunk);
        sync_cube();
        let mut least = Array::<u32>::new(at_once);
        #[unroll]
        for i in 0..at_once {
            let is_later = is_entry && turn + comptime!(i as u32) < own;
            least[i] = row + select(is_later, 1u32, 0u32);
        }
        let found = lesser(&tile, &least, chunk);
        #[unroll]
        for i in 0..at_once {
            let is_own = is_entry && turn + comptime!(i as u32) == own;
            before += select(is_own, 0u32, found[i]);
        }
        sync_cube();
        turn += comptime!(at_once as u32);
    }
    let to = outer * entries + before;
    if is_entry {
        if row != u32::MAX {
            order[to as usize] = chunk_entries[(first + at) as usize];
        }
    } else if row <= rows {
        starts[(outer * (rows + 1u32) + row) as usize] = to;
    }
}

/// Loads rows of sorted chunks, from one chunk on, and of each the same range of entries: first and number.
#[cube]
fn load_chunks(
    chunk_rows: &Tensor<u32>,
    tile: &mut Shared<[u32]>,
    from: u32,
    range: (u32, u32),
    #[comptime] chunk: usize,
) {
    let len = comptime!(chunks_at_once(chunk) * chunk);
    let (first, many) = range;
    #[unroll]
    for i in 0..comptime!(len / THREADS) {
        let at = UNIT_POS + comptime!((i * THREADS) as u32);
        let mut row = u32::MAX.runtime();
        if from + at < many {
            row = chunk_rows[(first + from + at) as usize];
        }
        tile[at as usize] = row;
    }
}

/// Number of rows in each chunk of a tile that are less than a value: binary search, all chunks at once.
#[cube]
fn lesser(tile: &Shared<[u32]>, least: &Array<u32>, #[comptime] chunk: usize) -> Array<u32> {
    let at_once = comptime!(chunks_at_once(chunk));
    let mut found = Array::<u32>::new(at_once);
    #[unroll]
    for i in 0..at_once {
        found[i] = 0u32;
    }
    #[unroll]
    for halving in 0..comptime!(chunk.ilog2() as usize + 1) {
        let step = comptime!((chunk >> (halving + 1)).max(1));
        #[unroll]
        for i in 0..at_once {
            let last = found[i] as usize + comptime!(i * chunk + step - 1);
            found[i] += select(tile[last] < least[i], comptime!(step as u32), 0u32);
        }
    }
    found
}
