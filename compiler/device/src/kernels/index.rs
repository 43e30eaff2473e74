//! Descriptions of lookups and their transposes.

use super::call::KernelCall;
use super::dims::{WalkDim, counted};
use super::fold::FoldCall;
use super::fold_blocks::{BLOCKS, THREADS};
use meshwright_plan::DType;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// A dim of the table that is indexed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IndexedDim {
    /// Index of the dim in the table.
    pub axis: usize,
    /// Interval that the device holds, in positions of the global table.
    pub held: Range<usize>,
}

/// The dims of a lookup or its transpose. The axes of a dim are for the table, the entries, then each index.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IndexDims {
    /// Dims of table, entries and indices.
    pub outer: Vec<WalkDim>,
    /// Dims of entries and indices.
    pub entries: Vec<WalkDim>,
    /// Dims of table and entries.
    pub columns: Vec<WalkDim>,
    /// Indexed dims of the table, one for each index.
    pub indexed: Vec<IndexedDim>,
}

/// Algorithm of the transpose of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ScatterWay {
    /// Each element of the table reads all entries. For few entries.
    Each,
    /// Each row reads all entries, with several threads. For few rows.
    Rows {
        /// Number of chunks into which the entries are cut.
        chunks: usize,
        /// Entries of a chunk; the last one may have fewer.
        each: usize,
    },
    /// Entries are sorted by row first.
    Ordered,
}

/// A lookup on one device, or the common part of it and its transpose.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IndexCall {
    /// The dims, with the device's block of each.
    pub dims: IndexDims,
    /// Rows of the table at each outer position.
    pub rows: usize,
}

/// The transpose of a lookup on one device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScatterCall {
    /// Dims and rows.
    pub index: IndexCall,
    /// The algorithm.
    pub way: ScatterWay,
    /// The sum over chunks; none if there is one chunk.
    pub fold: Option<FoldCall>,
}

/// Up to this number of entries for each outer position, or that many times the columns, each element scans all
/// entries.
const FEW_ENTRIES: usize = 8;
const FEW_READS: usize = 512;
/// Up to this number of rows each row scans all entries.
const FEW_ROWS: usize = 64;
/// Few blocks take long to add this many entries in order: reading all of them for each row is faster, up to `MANY_READS`.
const MANY_ENTRIES: usize = 1 << 16;
const MANY_READS: usize = 1 << 31;
const FEW_BLOCKS: usize = 16;
/// Approximate columns of a block, and table elements whose entries a block adds in order.
const COLUMNS: usize = 32;
const ELEMENTS: usize = 4 * THREADS;
/// Least entries of a chunk.
const LEAST_ENTRIES: usize = 1024;

impl KernelCall for IndexCall {
    const NAME: &'static str = "look_up";
}

impl KernelCall for ScatterCall {
    const NAME: &'static str = "scatter";

    /// Entries are sorted and put in order first, or chunks of them are folded.
    fn starts(&self) -> u64 {
        match self.way {
            ScatterWay::Ordered => 3,
            ScatterWay::Each | ScatterWay::Rows { .. } => 1 + u64::from(self.fold.is_some()),
        }
    }
}

impl IndexCall {
    /// Describes a lookup from a table to entries of these dtypes; none if there is no kernel for it.
    pub fn new(dims: IndexDims, [table, entries]: [DType; 2]) -> Option<IndexCall> {
        let float = |dtype: DType| dtype == DType::F32 || dtype.is_half();
        let (outer, many, columns) =
            (counted(&dims.outer)?, counted(&dims.entries)?, counted(&dims.columns)?);
        let rows = dims.indexed.iter().try_fold(1_usize, |all, dim| all.checked_mul(dim.held.len()))?;
        i32::try_from(outer.checked_mul(rows)?.checked_mul(columns)?).ok()?;
        i32::try_from(outer.checked_mul(many)?.checked_mul(columns)?).ok()?;
        let ends = dims.indexed.iter().all(|dim| i32::try_from(dim.held.end).is_ok());
        (ends && float(table) && float(entries)).then_some(IndexCall { dims, rows })
    }
}

impl ScatterCall {
    /// Describes the transpose of a lookup, to a table of that dtype and shape; none if there is no kernel for it.
    pub fn new(index: IndexCall, table: DType, shape: &[usize]) -> Option<ScatterCall> {
        let of = |dims: &[WalkDim]| dims.iter().map(|dim| dim.size).product();
        let IndexDims { outer, entries, columns, .. } = &index.dims;
        let way = ScatterWay::of([of(outer), index.rows, of(columns), of(entries)]);
        let fold = match way {
            ScatterWay::Rows { chunks: chunks @ 2.., .. } => {
                Some(FoldCall::sum_of_chunks(chunks, shape, table)?)
            }
            _ => None,
        };
        Some(ScatterCall { index, way, fold })
    }
}

impl ScatterWay {
    /// Choice by the number of outer positions, rows and columns at each, and entries.
    fn of([outer, rows, columns, many]: [usize; 4]) -> ScatterWay {
        if many <= FEW_ENTRIES || many * columns <= FEW_READS {
            return ScatterWay::Each;
        }
        let is_slow = many >= MANY_ENTRIES && (outer * rows * columns).div_ceil(ELEMENTS) < FEW_BLOCKS;
        let is_cheap = rows.saturating_mul(columns).saturating_mul(many) <= MANY_READS;
        if rows > FEW_ROWS && !(is_slow && is_cheap) {
            return ScatterWay::Ordered;
        }
        let blocks = outer * rows * columns.div_ceil(COLUMNS);
        let each = many.div_ceil(BLOCKS.div_ceil(blocks).min(many / LEAST_ENTRIES).max(1));
        ScatterWay::Rows { chunks: many.div_ceil(each), each }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_say_how_entries_are_added_up() {
        // The words and the kinds of tokens of BERT base, the buckets of T5, a choice in each row.
        assert_eq!(ScatterWay::of([1, 30_522, 768, 32_768]), ScatterWay::Ordered);
        assert!(matches!(ScatterWay::of([1, 2, 768, 32_768]), ScatterWay::Rows { chunks: 2.., .. }));
        let buckets = ScatterWay::of([1, 32, 8, 262_144]);
        let ScatterWay::Rows { chunks, each } = buckets else { panic!("{buckets:?}") };
        assert!(chunks > 4 && chunks * each >= 262_144 && (chunks - 1) * each < 262_144);
        assert!(matches!(ScatterWay::of([1, 128, 8, 262_144]), ScatterWay::Rows { .. }));
        assert_eq!(ScatterWay::of([1, 128, 8, 4096]), ScatterWay::Ordered);
        assert_eq!(ScatterWay::of([1, 300, 64, 65_536]), ScatterWay::Ordered);
        assert_eq!(ScatterWay::of([32_768, 10, 1, 1]), ScatterWay::Each);
        assert_eq!(ScatterWay::of([32_768, 64, 1, 9]), ScatterWay::Each);
    }
}
