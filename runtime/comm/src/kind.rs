//! Which collective.

use serde::{Deserialize, Serialize};

/// Which collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum CollectiveKind {
    /// Folds equal shapes.
    AllReduce,
    /// Joins pieces.
    AllGather,
    /// Folds, and keeps a piece.
    ReduceScatter,
    /// Sends a piece to each member.
    AllToAll,
    /// Sends ranges to some members.
    Permute,
    /// Copies from one member to all.
    Broadcast,
    /// Waits for all.
    Barrier,
}

impl CollectiveKind {
    /// Every collective.
    pub const ALL: [CollectiveKind; 7] = [
        CollectiveKind::AllReduce,
        CollectiveKind::AllGather,
        CollectiveKind::ReduceScatter,
        CollectiveKind::AllToAll,
        CollectiveKind::Permute,
        CollectiveKind::Broadcast,
        CollectiveKind::Barrier,
    ];

    /// As the Plan and `explain` name it.
    pub fn name(self) -> &'static str {
        match self {
            CollectiveKind::AllReduce => "all_reduce",
            CollectiveKind::AllGather => "all_gather",
            CollectiveKind::ReduceScatter => "reduce_scatter",
            CollectiveKind::AllToAll => "all_to_all",
            CollectiveKind::Permute => "permute",
            CollectiveKind::Broadcast => "broadcast",
            CollectiveKind::Barrier => "barrier",
        }
    }
}
