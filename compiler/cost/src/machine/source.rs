//! Sources of the numbers of a machine file.

use meshwright_sorted::SortedMap;
use serde::{Deserialize, Serialize};

/// Sources of the numbers of a table: one for all, or one for each key. They are also those of the tables below it, or below the
/// key, that name none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "`source` is a text, or a table of texts by key")]
pub enum NumberSource {
    /// Of all numbers of the table.
    All(String),
    /// By key.
    ByKey(SortedMap<String, String>),
}
