//! Sums of the entries that name each row: a group of threads shares a row's columns, and the groups of a block take
//! turns at its entries. The groups' sums are then added in a tree.

use super::kernels::{IndexSpace, place_of_row, row_named};
use crate::kernel::space::{place, positions};
use cubecl::prelude::*;

/// Threads of a block.
pub(super) const THREADS: usize = 256;
/// A row with more entries is that of a whole block, one with fewer that of a group.
const LONG: u32 = 64;
/// Entries that a thread has on their way at once.
const AT_ONCE: usize = 4;

/// The compile-time parameters of a kernel: elements of a vector, and threads of a group, each with a vector of
/// columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SumShape {
    pub(super) width: usize,
    pub(super) lanes: usize,
}

impl SumShape {
    pub(super) const fn groups(&self) -> usize {
        THREADS / self.lanes
    }
}

/// The columns of a thread, if it has some, and the group that it is in.
#[derive(CubeType)]
struct Columns {
    is_there: bool,
    group: u32,
    /// Offsets in the entries, and in the table.
    from: usize,
    to: usize,
}

#[cube]
fn columns_of_thread(space: &IndexSpace, outer: u32, block: u32, #[comptime] shape: SumShape) -> Columns {
    let lanes = comptime!(shape.lanes as u32);
    let outer = positions(&space.outer, outer);
    let column = block * lanes + UNIT_POS % lanes;
    let is_there = column < space.columns.len;
    let at = positions(&space.columns, select(is_there, column, 0u32));
    Columns {
        is_there,
        group: UNIT_POS / lanes,
        from: place(&outer, &space.by_outer) + place(&at, &space.by_column),
        to: place(&outer, &space.table_by_outer) + place(&at, &space.table_by_column),
    }
}

/// Adds an entry of these columns, if it is one's own.
#[cube]
fn add<T: Float, N: Size>(
    sum: &mut Vector<f32, N>,
    entries: &Tensor<Vector<T, N>>,
    space: &IndexSpace,
    columns: &Columns,
    entry: &Sequence<u32>,
    is_own: bool,
    #[comptime] width: usize,
) {
    let read = Vector::<f32, N>::cast_from(entries[(columns.from + place(entry, &space.by_entry)) / width]);
    #[unroll]
    for lane in 0..width {
        let x = sum.extract(lane) + select(is_own, read.extract(lane), 0.0f32);
        sum.insert(lane, x);
    }
}

/// Adds the entries of the order from one on, with a constant stride.
#[cube]
fn add_ordered<T: Float, N: Size>(
    entries: &Tensor<Vector<T, N>>,
    order: &Tensor<u32>,
    space: &IndexSpace,
    columns: &Columns,
    range: (u32, u32),
    #[comptime] by: usize,
    #[comptime] width: usize,
) -> Vector<f32, N> {
    let mut sum = Vector::<f32, N>::new(0.0f32);
    let (first, end) = range;
    let mut turn = first;
    while turn < end {
        // Entries beyond the end are read and not added, so that loads need not wait for each other.
        #[unroll]
        for i in 0..AT_ONCE {
            let at = turn + comptime!((i * by) as u32);
            let is_own = at < end;
            let entry = positions(&space.entries, order[select(is_own, at, first) as usize]);
            add(&mut sum, entries, space, columns, &entry, is_own, width);
        }
        turn += comptime!((AT_ONCE * by) as u32);
    }
    sum
}

/// Writes a row of the table.
#[cube]
fn write<O: Float, N: Size>(
    out: &mut Tensor<Vector<O, N>>,
    sum: Vector<f32, N>,
    space: &IndexSpace,
    place: usize,
    row: u32,
    #[comptime] width: usize,
) {
    out[(place + place_of_row(space, row)) / width] = Vector::<O, N>::cast_from(sum);
}

/// Adds the sums of all groups in a tree; the first one then has the total.
#[cube]
fn add_groups<N: Size>(
    own: Vector<f32, N>,
    shared: &mut Shared<[Vector<f32, N>]>,
    group: u32,
    #[comptime] shape: SumShape,
) -> Vector<f32, N> {
    let mut sum = own;
    shared[UNIT_POS as usize] = own;
    sync_cube();
    let mut half = comptime!(shape.groups() as u32 / 2).runtime();
    while half > 0u32 {
        if group < half {
            sum += shared[(UNIT_POS + half * comptime!(shape.lanes as u32)) as usize];
            shared[UNIT_POS as usize] = sum;
        }
        sync_cube();
        half /= 2u32;
    }
    sum
}

/// For entries in the order of rows: `order` has the entries of each row from its index in `starts` to the next. A
/// block has as many rows as groups.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn scatter_ordered<T: Float, O: Float, N: Size>(
    entries: &Tensor<Vector<T, N>>,
    starts: &Tensor<u32>,
    order: &Tensor<u32>,
    out: &mut Tensor<Vector<O, N>>,
    space: IndexSpace,
    rows: u32,
    #[comptime] shape: SumShape,
    #[define(T)] _entries_type: ElemType,
    #[define(O)] _out_type: ElemType,
) {
    let (width, groups) = comptime!((shape.width, shape.groups()));
    let blocks = space.columns.len.div_ceil(comptime!(shape.lanes as u32));
    let row_blocks = rows.div_ceil(comptime!(groups as u32));
    let rest = CUBE_POS_X / blocks;
    let (outer, first_row) = (rest / row_blocks, rest % row_blocks * comptime!(groups as u32));
    let columns = columns_of_thread(&space, outer, CUBE_POS_X % blocks, shape);
    let own = first_row + columns.group;
    let first_start = outer * (rows + 1u32);
    let mut lens = Shared::<[u32]>::new_slice(groups);
    let mut first = 0u32;
    let mut end = 0u32;
    if own < rows {
        let at = (first_start + own) as usize;
        first = starts[at];
        end = starts[at + 1];
    }
    lens[columns.group as usize] = end - first;
    sync_cube();
    if own < rows && end - first <= LONG {
        let sum = add_ordered(entries, order, &space, &columns, (first, end), 1usize, width);
        if columns.is_there {
            write(out, sum, &space, columns.to, own, width);
        }
    }
    let mut shared = Shared::<[Vector<f32, N>]>::new_slice(THREADS);
    for i in 0..comptime!(groups as u32) {
        // The same for all threads.
        if lens[i as usize] > LONG {
            let at = (first_start + first_row + i) as usize;
            let range = (starts[at] + columns.group, starts[at + 1]);
            let own = add_ordered(entries, order, &space, &columns, range, groups, width);
            let sum = add_groups(own, &mut shared, columns.group, shape);
            if columns.group == 0u32 && columns.is_there {
                write(out, sum, &space, columns.to, first_row + i, width);
            }
        }
    }
}

/// For few rows: a block has one row and a chunk of entries, and scans all of them.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn scatter_few_rows<T: Float, O: Float, N: Size>(
    entries: &Tensor<Vector<T, N>>,
    indices: Sequence<OwnedTensor<i32>>,
    out: &mut Tensor<Vector<O, N>>,
    space: IndexSpace,
    all_rows: u32,
    each: u32,
    apart: usize,
    #[comptime] shape: SumShape,
    #[define(T)] _entries_type: ElemType,
    #[define(O)] _out_type: ElemType,
) {
    let (width, groups) = comptime!((shape.width, shape.groups()));
    let blocks = space.columns.len.div_ceil(comptime!(shape.lanes as u32));
    let rest = CUBE_POS_X / blocks;
    let (outer, row) = space.rows.div_mod(rest % all_rows);
    let chunk = rest / all_rows;
    let columns = columns_of_thread(&space, outer, CUBE_POS_X % blocks, shape);
    let outer = positions(&space.outer, outer);
    let end = min(chunk * each + each, space.entries.len);
    let mut sum = Vector::<f32, N>::new(0.0f32);
    let mut turn = chunk * each + columns.group;
    while turn < end {
        #[unroll]
        for i in 0..AT_ONCE {
            let at = turn + comptime!((i * groups) as u32);
            let entry = positions(&space.entries, select(at < end, at, turn));
            let named = row_named(&indices, &space, &outer, &entry);
            if at < end && named.is_held && named.number == row {
                add(&mut sum, entries, &space, &columns, &entry, true, width);
            }
        }
        turn += comptime!((AT_ONCE * groups) as u32);
    }
    let mut shared = Shared::<[Vector<f32, N>]>::new_slice(THREADS);
    let sum = add_groups(sum, &mut shared, columns.group, shape);
    if columns.group == 0u32 && columns.is_there {
        write(out, sum, &space, columns.to + chunk as usize * apart, row, width);
    }
}
