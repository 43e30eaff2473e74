//! How the buffer of a collective is divided among the members of a group.

use crate::Portion;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::sync::Arc;

/// Part of a buffer that goes to, or comes from, a member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BufferPart {
    /// The other member, by position in the group (it may be the caller itself).
    pub peer: usize,
    /// Elements of the input (sent) or of the output (received).
    pub range: Range<usize>,
}

/// How a buffer is divided among the members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BufferLayout {
    /// Every member gets, or gives, all of it.
    Whole,
    /// A piece for each member, in group order: elements of each, which may be 0.
    Pieces(Arc<[usize]>),
    /// Any ranges. Those that are sent may overlap; elements that are not received keep their values.
    Parts(Arc<[BufferPart]>),
}

impl BufferLayout {
    /// Without its sizes.
    pub fn portion(&self) -> Portion {
        match self {
            BufferLayout::Whole => Portion::Whole,
            BufferLayout::Pieces(_) => Portion::Pieces,
            BufferLayout::Parts(_) => Portion::Ranges,
        }
    }
}
