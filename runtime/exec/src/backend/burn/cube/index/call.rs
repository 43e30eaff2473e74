//! What is known of a lookup or its transpose when a Plan is loaded.

use crate::backend::burn::cube::space::{WalkDim, counted};
use meshwright_plan::DType;
use std::ops::Range;

/// A dim of the table that is indexed: where it is, and what of it the device holds.
#[derive(Clone, Debug)]
pub(crate) struct IndexedDim {
    pub(crate) axis: usize,
    pub(crate) held: Range<usize>,
}

/// The dims of a lookup or its transpose. Each says which one it is of the table, of the entries, then of each index.
#[derive(Clone, Debug)]
pub(crate) struct IndexDims {
    /// That table, entries and indices share.
    pub(crate) outer: Vec<WalkDim>,
    /// That entries and indices share.
    pub(crate) entries: Vec<WalkDim>,
    /// That table and entries share.
    pub(crate) columns: Vec<WalkDim>,
    pub(crate) indexed: Vec<IndexedDim>,
}

/// How the transpose of a lookup is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScatterWay {
    /// Each element of the table looks at all entries, of which there are few.
    Each,
    /// Each row does, with several units, where there are few rows.
    Rows,
    /// Entries are put in the order of rows before.
    Ordered,
}

/// A lookup or its transpose on one device.
#[derive(Clone, Debug)]
pub(crate) struct IndexCall {
    pub(super) dims: IndexDims,
    /// Rows of the table at each outer position.
    pub(super) rows: usize,
    pub(super) scatter: ScatterWay,
}

/// With so few entries for each outer position all are looked at by each element.
const FEW_ENTRIES: usize = 8;
/// With so few rows all entries are looked at by each.
const FEW_ROWS: usize = 64;

impl IndexCall {
    /// None where there is no kernel for it.
    pub(crate) fn new(dims: IndexDims, [table, entries]: [DType; 2]) -> Option<IndexCall> {
        let float = |dtype: DType| dtype == DType::F32 || dtype.is_half();
        let (outer, many) = (counted(&dims.outer)?, counted(&dims.entries)?);
        let held = dims.indexed.iter().try_fold(1_usize, |all, dim| all.checked_mul(dim.held.len()))?;
        let all = outer.checked_mul(held)?.checked_mul(counted(&dims.columns)?)?;
        i32::try_from(all).ok()?;
        i32::try_from(outer.checked_mul(many)?.checked_mul(counted(&dims.columns)?)?).ok()?;
        let ends = dims.indexed.iter().all(|dim| i32::try_from(dim.held.end).is_ok());
        if !ends || !float(table) || !float(entries) {
            return None;
        }
        let scatter = match (many, held) {
            (..=FEW_ENTRIES, _) => ScatterWay::Each,
            (_, ..=FEW_ROWS) => ScatterWay::Rows,
            _ => ScatterWay::Ordered,
        };
        Some(IndexCall { dims, rows: held, scatter })
    }
}
