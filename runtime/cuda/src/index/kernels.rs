//! Lookups, and their transpose where each element looks at all entries.

use crate::kernel::space::{DimWalk, place, positions};
use cubecl::prelude::*;
use cubecl::std::FastDivmod;

/// A lookup's indexing: the held part of the dim, strides of the index along the outer dims and along the entries, and
/// the stride of a row in the table.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Indexed {
    first: i32,
    held: FastDivmod<u32>,
    len: i32,
    by_outer: Sequence<usize>,
    by_entry: Sequence<usize>,
    by_row: usize,
}

/// The dims, the last column in vectors, and how far the next position along each is in the table and in the entries.
#[derive(CubeType, CubeLaunch)]
pub(super) struct IndexSpace {
    pub(super) outer: DimWalk,
    pub(super) entries: DimWalk,
    pub(super) columns: DimWalk,
    pub(super) indexed: Sequence<Indexed>,
    /// Rows of the table at each outer position.
    pub(super) rows: FastDivmod<u32>,
    pub(super) table_by_outer: Sequence<usize>,
    pub(super) table_by_column: Sequence<usize>,
    pub(super) by_outer: Sequence<usize>,
    pub(super) by_entry: Sequence<usize>,
    pub(super) by_column: Sequence<usize>,
}

/// A row of the table, if it is held: its number among those at an outer position.
#[derive(CubeType, Clone, Copy)]
pub(super) struct NamedRow {
    pub(super) is_held: bool,
    pub(super) number: u32,
}

/// The row that the indices of an entry name.
#[cube]
pub(super) fn row_named(
    indices: &Sequence<OwnedTensor<i32>>,
    space: &IndexSpace,
    outer: &Sequence<u32>,
    entry: &Sequence<u32>,
) -> NamedRow {
    let mut is_held = true.runtime();
    let mut number = 0u32;
    #[unroll]
    for i in 0..comptime!(indices.len()) {
        let indexed = space.indexed.index(i);
        let tensor = indices.index(i);
        let at = tensor[place(outer, &indexed.by_outer) + place(entry, &indexed.by_entry)] - indexed.first;
        is_held = is_held && at >= 0i32 && at < indexed.len;
        number = number * indexed.len as u32 + at as u32;
    }
    NamedRow { is_held, number }
}

/// Offset of a row in the table.
#[cube]
pub(super) fn place_of_row(space: &IndexSpace, row: u32) -> usize {
    let many = comptime!(space.indexed.len());
    let mut rest = row;
    let mut sum = 0usize;
    #[unroll]
    for i in 0..many {
        let indexed = space.indexed.index(comptime!(many - 1 - i));
        let mut at = rest;
        if comptime!(i + 1 < many) {
            let (outer, inner) = indexed.held.div_mod(rest);
            at = inner;
            rest = outer;
        }
        sum += at as usize * indexed.by_row;
    }
    sum
}

/// A vector of the entries that a table has.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn look_up_rows<T: Float, O: Float, N: Size>(
    table: &Tensor<Vector<T, N>>,
    indices: Sequence<OwnedTensor<i32>>,
    out: &mut Tensor<Vector<O, N>>,
    space: IndexSpace,
    #[comptime] width: usize,
    #[define(T)] _table_type: ElemType,
    #[define(O)] _out_type: ElemType,
) {
    let columns = space.columns.len;
    let all = space.outer.len * space.entries.len * columns;
    if ABSOLUTE_POS < all as usize {
        let at = ABSOLUTE_POS as u32;
        let (which, column) = (at / columns, positions(&space.columns, at % columns));
        let (entry, outer) = (
            positions(&space.entries, which % space.entries.len),
            positions(&space.outer, which / space.entries.len),
        );
        let row = row_named(&indices, &space, &outer, &entry);
        let mut vector = Vector::<O, N>::new(O::from_int(0));
        if row.is_held {
            let from = place(&outer, &space.table_by_outer) + place(&column, &space.table_by_column);
            vector = Vector::<O, N>::cast_from(table[(from + place_of_row(&space, row.number)) / width]);
        }
        let to = place(&outer, &space.by_outer)
            + place(&entry, &space.by_entry)
            + place(&column, &space.by_column);
        out[to / width] = vector;
    }
}

/// A vector of a row: the sum of the entries that name it, by a scan of a few entries.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn scatter_each<T: Float, O: Float, N: Size>(
    entries: &Tensor<Vector<T, N>>,
    indices: Sequence<OwnedTensor<i32>>,
    out: &mut Tensor<Vector<O, N>>,
    space: IndexSpace,
    threads: usize,
    #[comptime] width: usize,
    #[define(T)] _entries_type: ElemType,
    #[define(O)] _out_type: ElemType,
) {
    let columns = space.columns.len;
    if ABSOLUTE_POS < threads {
        let at = ABSOLUTE_POS as u32;
        let column = positions(&space.columns, at % columns);
        let (outer, row) = space.rows.div_mod(at / columns);
        let outer = positions(&space.outer, outer);
        let from = place(&outer, &space.by_outer) + place(&column, &space.by_column);
        let mut sum = Vector::<f32, N>::new(0.0f32);
        for entry in 0..space.entries.len {
            let entry = positions(&space.entries, entry);
            let named = row_named(&indices, &space, &outer, &entry);
            if named.is_held && named.number == row {
                sum += Vector::<f32, N>::cast_from(entries[(from + place(&entry, &space.by_entry)) / width]);
            }
        }
        let to = place(&outer, &space.table_by_outer) + place(&column, &space.table_by_column);
        out[(to + place_of_row(&space, row)) / width] = Vector::<O, N>::cast_from(sum);
    }
}
