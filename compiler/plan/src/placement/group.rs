//! Who takes part in a collective.

use crate::{Axis, Mesh};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The ranks of a collective in group order, and this device's position among them. Pieces lie, and reductions run, in
/// group order. All members must build the group with the same order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    ranks: Arc<[usize]>,
    position: usize,
}

/// Why ranks are no group.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAGroup {
    /// This rank is not a member.
    #[error("rank {rank} is not among the ranks {ranks:?}")]
    NotMember {
        /// This rank.
        rank: usize,
        /// The ranks given.
        ranks: Vec<usize>,
    },
    /// A rank occurs twice.
    #[error("rank {rank} occurs twice among the ranks {ranks:?}")]
    Twice {
        /// The rank that occurs twice.
        rank: usize,
        /// The ranks given.
        ranks: Vec<usize>,
    },
}

impl Group {
    /// A group of distinct `ranks`, among them `rank`, which is this device.
    pub fn new(ranks: impl Into<Arc<[usize]>>, rank: usize) -> Result<Group, NotAGroup> {
        let ranks: Arc<[usize]> = ranks.into();
        let mut sorted = ranks.to_vec();
        sorted.sort_unstable();
        if let Some(pair) = sorted.windows(2).find(|p| p[0] == p[1]) {
            return Err(NotAGroup::Twice { rank: pair[0], ranks: ranks.to_vec() });
        }
        match ranks.iter().position(|r| *r == rank) {
            Some(position) => Ok(Group { ranks, position }),
            None => Err(NotAGroup::NotMember { rank, ranks: ranks.to_vec() }),
        }
    }

    /// The group of `rank` over some axes of a mesh: [`Mesh::group`].
    pub fn of_mesh(mesh: &Mesh, rank: usize, axes: &[Axis]) -> Result<Group, NotAGroup> {
        Group::new(mesh.group(rank, axes), rank)
    }

    /// All ranks `0..size`.
    pub fn world(size: usize, rank: usize) -> Result<Group, NotAGroup> {
        Group::new((0..size).collect::<Vec<_>>(), rank)
    }

    /// Members in group order.
    pub fn ranks(&self) -> &[usize] {
        &self.ranks
    }

    /// Members in group order, shared.
    pub fn shared_ranks(&self) -> &Arc<[usize]> {
        &self.ranks
    }

    /// This device's place in [`Group::ranks`].
    pub fn position(&self) -> usize {
        self.position
    }

    /// This device.
    pub fn rank(&self) -> usize {
        self.ranks[self.position]
    }

    /// Why it is no group of `rank` in a world of `size`, if so.
    pub fn problem(&self, rank: usize, size: usize) -> Option<String> {
        if self.rank() != rank {
            return Some(format!("the group is rank {}'s", self.rank()));
        }
        let outside = self.ranks().iter().find(|r| **r >= size)?;
        Some(format!("rank {outside} in a world of {size}"))
    }

    /// Number of members, at least 1.
    pub fn size(&self) -> usize {
        self.ranks.len()
    }
}
