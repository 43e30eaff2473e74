//! What a step of a Plan computes or moves, and why it is there.

use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Where a step comes from. `explain`, its JSON, traces and errors join by `id` and print `path`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provenance {
    /// The value that is computed or moved, by its number in the partitioned step.
    pub id: u32,
    /// Its path: that of the layer call and its name, `b1.attention.out`; `d(b1.up)` for a cotangent. The op's name
    /// where it has none.
    pub path: Arc<str>,
    /// Line of the model file, from 1; 0 where there is none.
    pub line: u32,
    /// For collectives, the reason in words: "`hidden1` is summed".
    pub because: Arc<str>,
    /// For collectives, the line of the layout rule that brought it about, if one did.
    pub rule: Option<u32>,
}
