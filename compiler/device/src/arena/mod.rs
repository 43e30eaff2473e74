//! The arena: a range of a device's memory in which the kernels of a program write their results, each at an offset
//! that is known before the program runs (ADR 49).
//!
//! A simulated run of the program, with all iterations of its loops, gives the lifetime of each tensor (`lifetimes`).
//! Results that live within a run get an offset by their lifetimes (`packing`, [`layout`]). Tensors that outlive a run,
//! and results of Burn's operations, have memory of their own.

pub mod layout;
mod lifetimes;
mod packing;
mod spacing;
pub(crate) mod views;

use crate::slot::LaunchId;
use meshwright_sorted::SortedSet;
use serde::{Deserialize, Serialize};

/// Offsets of the results of a program's kernels.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Arena {
    /// Size of the arena in bytes.
    pub bytes: u64,
    /// Memory of each result, in the order of a run. A launch in a loop has one entry for each iteration and result.
    pub spots: Vec<Spot>,
    /// Launch of each entry of `spots`.
    pub of: Vec<LaunchId>,
    /// The launches that would put a value into a stack, and have nothing to do: all their values are made there.
    pub in_place: SortedSet<LaunchId>,
    /// The step at which most is needed at once.
    pub fullest: usize,
}

/// The memory of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Spot {
    /// A range of the arena.
    At {
        /// Offset of the first byte.
        start: u64,
        /// Size in bytes.
        bytes: u64,
    },
    /// The memory of the operand, which is in the arena.
    Operand,
    /// An allocation of its own, outside of the arena.
    Own,
}

/// Alignment of long rows in bytes: matmuls on tensor cores need rows that begin at multiples of 16 bytes to be fast,
/// which contiguous rows of a vocabulary of 50257 in `bf16` do not.
const ROW_BYTES: usize = 128;
/// Rows that are long, in bytes, so that gaps are a small part of them.
const LONG_ROW: usize = 1024;
/// Alignment that other rows have without padding.
const ALIGNED_ROW: usize = 16;

/// Elements from one row to the next, of a result whose rows may have gaps between them.
pub fn row_pitch(shape: &[usize], element: usize) -> usize {
    let Some(row) = shape.last().copied() else { return 1 };
    let bytes = row * element;
    let rows: usize = shape[..shape.len() - 1].iter().product();
    if rows > 1 && bytes >= LONG_ROW { aligned_pitch(row, element) } else { row }
}

/// Stride of rows in elements, at the alignment of fast matmul kernels.
pub fn aligned_pitch(row: usize, element: usize) -> usize {
    let bytes = row * element;
    if bytes.is_multiple_of(ALIGNED_ROW) { row } else { bytes.next_multiple_of(ROW_BYTES) / element }
}

/// Bytes of a result, with gaps between rows or without.
pub fn result_bytes(shape: &[usize], element: usize, gaps: bool) -> u64 {
    let elements: usize = shape.iter().product();
    let row = shape.last().copied().unwrap_or(1);
    let pitch = if gaps { row_pitch(shape, element) } else { row };
    (elements / row.max(1) * pitch * element) as u64
}
