//! The arena: one stretch of a device's memory in which the kernels of a program put what they make, each result at a place that is known
//! before the program runs (ADR 49).
//!
//! A program is walked as it runs, loops and all, with tensors that only say how long somebody holds them (`walk`). What is made and given up
//! in a run gets a place by these times (`packing`, [`layout`]). What outlives a run, and what operations of Burn make, has memory of its own.

pub mod layout;
mod lifetimes;
mod packing;
pub(crate) mod views;

use crate::slot::LaunchId;
use std::collections::BTreeSet;

/// Where the results of a program's kernels are.
#[derive(Debug, Default)]
pub struct Arena {
    /// Size of the arena in bytes.
    pub bytes: u64,
    /// Memory of each result, in the order of a run. A launch in a loop has one entry for each iteration and result.
    pub spots: Vec<Spot>,
    /// Launch of each entry of `spots`.
    pub of: Vec<LaunchId>,
    /// The launches that would put a value into a stack, and have nothing to do: all their values are made there.
    pub in_place: BTreeSet<LaunchId>,
    /// The step at which most is needed at once.
    pub fullest: usize,
}

/// The memory of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// Bytes that rows begin at a multiple of, where they are long: products on tensor cores need rows that begin at multiples of 16 bytes to be fast,
/// which those of a vocabulary of 50257 in `bf16` do not if they follow each other.
const ROW_BYTES: usize = 128;
/// Rows that are long, in bytes, so that gaps are a small part of them.
const LONG_ROW: usize = 1024;
/// What rows of others begin at a multiple of already.
const ALIGNED_ROW: usize = 16;

/// Elements from one row to the next, of a result whose rows may have gaps between them.
pub fn row_pitch(shape: &[usize], element: usize) -> usize {
    let Some(row) = shape.last().copied() else { return 1 };
    let bytes = row * element;
    let rows: usize = shape[..shape.len() - 1].iter().product();
    if rows > 1 && bytes >= LONG_ROW { aligned_pitch(row, element) } else { row }
}

/// Elements from one row to the next, where rows of so many begin where fast kernels of products want them to.
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
