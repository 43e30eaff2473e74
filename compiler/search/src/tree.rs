//! Nodes of a search, in the order in which they are taken.

use crate::text::Candidate;
use std::cmp::Ordering;

/// A node of the search.
#[derive(Clone, Debug)]
pub(crate) enum TreeNode {
    /// The children of a mesh with some sets, in the order of their bounds, from a position on.
    Axes { mesh: Vec<usize>, sets: Vec<usize>, children: Vec<(f64, usize)>, from: usize },
    /// A mesh with all its sets, before any of its candidates is made.
    Base(Candidate),
    /// A candidate.
    Leaf(Candidate),
}

/// A node in the order of its bound; of equal bounds that with fewer axes and rules, then the older.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) bound: f64,
    pub(crate) rank: (usize, usize, u64),
    pub(crate) node: TreeNode,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        // A heap gives the greatest.
        other.bound.total_cmp(&self.bound).then_with(|| other.rank.cmp(&self.rank))
    }
}
