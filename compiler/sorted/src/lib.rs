//! Maps and sets in the order of their keys.
//!
//! The interface is that of `BTreeMap` and `BTreeSet` as far as it is used. A program has more than a hundred types of
//! maps, and each instance of a B-tree is 5,000 lines of code for LLVM: they were a third of what the largest crate made it
//! compile. Here a tree holds where values lie, and a vector the values. So one instance of a tree serves all maps with the
//! same type of keys, and what is left for each type of values is small.

mod map;
mod set;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests;

pub use map::{Entry, IntoIter, Iter, IterMut, OccupiedEntry, SortedMap, VacantEntry};
pub use set::{Range, SortedSet};
