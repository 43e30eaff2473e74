//! The network of a machine: its levels, and the lines that give the time of a collective on each.

use super::source::NumberSource;
use serde::{Deserialize, Serialize};

/// A level of the network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tier {
    /// Its name.
    pub name: String,
    /// Consecutive ranks that it connects.
    pub size: usize,
    /// Seconds of a step from one member to the next on this level, of a ring or a tree that reaches beyond the level below.
    #[serde(default)]
    pub hop: f64,
    /// Bytes per second of all links of one group of the level below together, for one collective.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cap: Option<f64>,
    /// Bytes per second between two devices; that of the fastest line if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p2p: Option<f64>,
    /// Seconds of a message between two devices, apart from its bytes.
    #[serde(default)]
    pub p2p_latency: f64,
    /// Compute units that a collective takes from the device while it runs. Without the number a CPU computes nothing meanwhile.
    #[serde(default)]
    pub units: f64,
    /// Algorithms and protocols; the one with the least time counts.
    pub line: Vec<NetworkLine>,
    /// Reduction in the network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reduce: Option<InNetwork>,
    /// Sources of the numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<NumberSource>,
}

/// Time of a collective: `latency + per_member (members - 1) + hops + factor bytes / rate`, where `factor` is that of bus
/// bandwidth. On the innermost level there are no hops: its latencies have them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkLine {
    /// Name of the algorithm: `ring`.
    pub name: String,
    /// Collectives that it is for: `all_reduce` and so on.
    pub ops: Vec<String>,
    /// Least and greatest number of members.
    #[serde(default = "any_number", skip_serializing_if = "is_any_number")]
    pub members: (usize, usize),
    /// Greatest number of bytes: caches carry no more at this rate. Without it, any number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub up_to: Option<f64>,
    /// Seconds.
    pub latency: f64,
    /// Seconds for each member after the first.
    #[serde(default)]
    pub per_member: f64,
    /// Bytes per second of a device's link (bus bandwidth).
    pub rate: f64,
    /// [`Tier::cap`] for this line alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cap: Option<f64>,
    /// The number of hops is logarithmic in the number of groups.
    #[serde(default)]
    pub log: bool,
    /// Sources of the numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<NumberSource>,
}

fn any_number() -> (usize, usize) {
    (2, usize::MAX)
}

fn is_any_number(members: &(usize, usize)) -> bool {
    *members == any_number()
}

impl NetworkLine {
    /// True if it is for this collective, number of bytes and number of members.
    pub fn is_for(&self, op: &str, bytes: f64, members: usize) -> bool {
        (self.members.0..=self.members.1).contains(&members)
            && self.up_to.is_none_or(|most| bytes <= most)
            && self.ops.iter().any(|o| o == op)
    }
}

/// How switches reduce.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReduceMode {
    /// A switch adds frames as they come.
    CutThrough,
    /// A switch stores a piece before it adds.
    StoreAndForward,
}

/// Reduction in the switches of a tier.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InNetwork {
    /// How switches reduce.
    pub mode: ReduceMode,
    /// Levels of switches.
    pub levels: u32,
    /// Bytes per second of a link.
    pub rate: f64,
    /// Seconds of a link.
    pub link: f64,
    /// Bytes of a frame.
    pub frame: f64,
    /// Bytes that a switch stores, for store-and-forward.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buffer: Option<f64>,
    /// Bytes from which on it is used.
    #[serde(default)]
    pub smallest: f64,
    /// Members from which on it is used.
    #[serde(default)]
    pub members: usize,
    /// Sources of the numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<NumberSource>,
}
