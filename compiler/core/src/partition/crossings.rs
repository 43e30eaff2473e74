//! The boundaries of loops, as facts of a graph.

use meshwright_ops::{Boundary, Graph, Id, RepeatId};
use meshwright_plan::IdVec;
use meshwright_sorted::SortedMap;

/// What each loop gives, and which carries a value is next for.
pub(super) struct Crossings {
    /// By loop, what leaves it, in order.
    pub(super) outs: SortedMap<RepeatId, Vec<Id>>,
    /// By value the carries.
    pub(super) carries_of: SortedMap<Id, Vec<Id>>,
    pub(super) boundaries: IdVec<Id, Option<Boundary>>,
}

impl Crossings {
    pub(super) fn new(g: &Graph) -> Crossings {
        let boundaries: IdVec<Id, Option<Boundary>> = g.ids().map(|id| g.boundary(id)).collect();
        let mut outs: SortedMap<RepeatId, Vec<Id>> = SortedMap::new();
        for id in g.ids() {
            if let Some(b) = boundaries[id].filter(|b| b.how.leaves()) {
                outs.entry(b.of).or_default().push(id);
            }
        }
        let mut carries_of: SortedMap<Id, Vec<Id>> = SortedMap::new();
        for (carry, next) in g.repeats.iter().flat_map(|r| &r.carries) {
            carries_of.entry(*next).or_default().push(*carry);
        }
        Crossings { outs, carries_of, boundaries }
    }
}
