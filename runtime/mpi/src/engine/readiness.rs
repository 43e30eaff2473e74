//! Whether the members of a group are ready to make their communicator.

use meshwright_sorted::SortedSet;

/// How far the members of a group are that is to have a communicator.
#[derive(Default)]
pub(super) struct Readiness {
    /// This rank has said that it is ready.
    pub(super) told: bool,
    /// Ranks that are ready, on the first member.
    pub(super) ready: SortedSet<usize>,
    /// All of them are.
    pub(super) all: bool,
}
