//! Maps and sets in the order of their keys.
//!
//! The interface is that of `BTreeMap` and `BTreeSet` as far as it is used. A program has more than a hundred types of
//! maps, and each instance of a B-tree is 5,000 lines of code for LLVM: they were a third of what the largest crate made it
//! compile. Here a tree holds where values lie, and a vector the values. So one instance of a tree serves all maps with the
//! same type of keys, and what is left for each type of values is small.
//!
//! **Invariant:** every operation on one key takes the logarithm of the size, whatever the order of keys.

mod map;
mod set;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests;

pub use map::{IntoIter, Iter, IterMut, MapEntry, OccupiedEntry, SortedMap, VacantEntry};
pub use set::{ItemRange, SortedSet};
