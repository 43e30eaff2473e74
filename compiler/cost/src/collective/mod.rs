//! Seconds of a collective: which levels of the network its group spans, and the fastest line that the machine has for it.
//!
//! Bytes are the whole of one device: what an all-reduce or a reduce-scatter takes, what an all-gather gives, what an all-to-all
//! exchanges, what a permute receives.

use crate::machine::{InNetwork, Machine, NetworkLine, ReduceMode, Tier};
use meshwright_plan::CollectiveKind;
use meshwright_sorted::SortedMap;

/// The group of a collective, as the levels of a network see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierGroup {
    /// Number of members.
    pub members: usize,
    /// The level that connects them all.
    level: usize,
    /// On each level up to it, the number of parts that it connects: members on the innermost one, then groups of the level
    /// below.
    parts: Vec<usize>,
    /// The most such parts in one group of the level.
    most: Vec<usize>,
}

impl TierGroup {
    /// The group of these ranks. Beyond the ranks that the machine connects, the outermost level counts.
    pub fn new(machine: &Machine, ranks: &[usize]) -> TierGroup {
        let (mut parts, mut most) = (Vec::new(), Vec::new());
        let mut below = ranks.to_vec();
        let mut size = 1;
        for (i, tier) in machine.tier.iter().enumerate() {
            let last = i + 1 == machine.tier.len();
            // A group of the level below belongs to the one of this level that has its first rank.
            let owner = |block: &usize| if last { 0 } else { block * size / tier.size };
            let mut blocks: SortedMap<usize, usize> = SortedMap::new();
            below.iter().for_each(|b| *blocks.entry(owner(b)).or_default() += 1);
            parts.push(below.len());
            most.push(blocks.values().copied().max().unwrap_or(0));
            if blocks.len() <= 1 {
                break;
            }
            (below, size) = (blocks.into_keys().collect(), tier.size);
        }
        TierGroup { members: ranks.len(), level: parts.len().saturating_sub(1), parts, most }
    }

    /// The most members in a group of the innermost level, a node: each has links of its own.
    pub fn in_node(&self) -> usize {
        self.most.first().copied().unwrap_or(1).max(1)
    }

    /// Number of nodes.
    pub fn nodes(&self) -> usize {
        self.parts.get(1).copied().unwrap_or(1)
    }
}

/// The time of a collective.
#[derive(Clone, Debug, PartialEq)]
pub struct CollectiveTime {
    /// Seconds.
    pub seconds: f64,
    /// The line that was taken, behind its level: `nvlink ring`.
    pub algorithm: String,
    /// Members of the group.
    pub members: usize,
    /// Nodes that they are in.
    pub nodes: usize,
    /// Compute units that it takes from the device meanwhile.
    pub units: f64,
}

/// The time of a collective of this kind among these ranks.
pub fn collective(machine: &Machine, kind: CollectiveKind, bytes: f64, ranks: &[usize]) -> CollectiveTime {
    over(machine, kind, bytes, &TierGroup::new(machine, ranks))
}

/// The time of a collective of this kind over a group.
pub fn over(machine: &Machine, kind: CollectiveKind, bytes: f64, group: &TierGroup) -> CollectiveTime {
    let nothing = group.members <= 1 || (bytes <= 0.0 && kind != CollectiveKind::Barrier);
    let found = (!nothing).then(|| fastest(machine, kind, bytes, group)).flatten();
    let (seconds, algorithm) = found.unwrap_or((0.0, String::new()));
    // The innermost level on which members meet has the links that a device drives.
    let units = group.most.iter().position(|m| *m > 1).map_or(0.0, |level| machine.tier[level].units);
    CollectiveTime { seconds, algorithm, members: group.members, nodes: group.nodes(), units }
}

type FastestLine = (f64, String);

/// What a reduction in switches is called.
const IN_NETWORK: &str = "in-network";

fn named(tier: &Tier, line: &str) -> String {
    format!("{} {line}", tier.name)
}

fn fastest(machine: &Machine, kind: CollectiveKind, bytes: f64, group: &TierGroup) -> Option<FastestLine> {
    match kind {
        CollectiveKind::Permute => permute(machine, bytes, group),
        CollectiveKind::AllToAll => all_to_all(machine, bytes, group),
        CollectiveKind::AllReduce => {
            let lines = lines(machine, kind, bytes, group);
            least(lines.into_iter().chain(in_network(machine, bytes, group)))
        }
        // By the lines of an all-gather, whose members send on what they receive, too: nobody calibrates it.
        CollectiveKind::Broadcast => lines(machine, CollectiveKind::AllGather, bytes, group),
        CollectiveKind::Barrier => lines(machine, CollectiveKind::AllReduce, 0.0, group),
        _ => lines(machine, kind, bytes, group),
    }
}

fn least(all: impl Iterator<Item = FastestLine>) -> Option<FastestLine> {
    all.min_by(|a, b| a.0.total_cmp(&b.0))
}

/// By the fastest line of the level that connects all members.
fn lines(machine: &Machine, kind: CollectiveKind, bytes: f64, group: &TierGroup) -> Option<FastestLine> {
    let tier = machine.tier.get(group.level)?;
    let factor = kind.bus_factor().of(group.members);
    let rounds = if kind == CollectiveKind::AllReduce { 2.0 } else { 1.0 };
    least(tier.line.iter().filter(|l| l.is_for(kind.name(), bytes, group.members)).map(|line| {
        let hops = if group.level == 0 { 0.0 } else { rounds * hops(machine, group, line.log) };
        let start = line.latency + line.per_member * (group.members as f64 - 1.0);
        (start + hops + factor * bytes / rate(machine, kind, group, line), named(tier, &line.name))
    }))
}

/// Seconds of the steps of one round through all members: a ring takes one from part to part on each level, and one from level to
/// level; a tree as many as its depth between nodes, and a chain inside each.
fn hops(machine: &Machine, group: &TierGroup, log: bool) -> f64 {
    let steps = |level: usize| -> f64 {
        let (parts, most) = (group.parts[level], group.most[level]);
        match (log, level) {
            (true, 0) => most as f64 - 1.0,
            (true, _) => (most as f64).log2().ceil(),
            // Parts of this level in a row, without the steps that lead out of it.
            (false, _) => (parts - group.parts.get(level + 1).copied().unwrap_or(1)) as f64,
        }
    };
    (0..=group.level).map(|level| steps(level) * machine.tier[level].hop).sum()
}

/// Bytes per second of a line: all members in a node drive their links, as far as the level and the ones below carry that.
fn rate(machine: &Machine, kind: CollectiveKind, group: &TierGroup, line: &NetworkLine) -> f64 {
    let links = |level: usize, rate: f64, cap: Option<f64>| match level {
        0 => rate,
        _ => (group.in_node() as f64 * rate).min(cap.unwrap_or(f64::INFINITY)),
    };
    // A level that no two members share carries nothing.
    let inside = (0..group.level).filter(|level| group.most[*level] > 1).map(|level| {
        let tier = &machine.tier[level];
        links(level, fastest_rate(tier, kind), tier.cap)
    });
    let own = links(group.level, line.rate, line.cap.or(machine.tier[group.level].cap));
    inside.fold(own, f64::min)
}

/// The rate of the fastest line of a level for a collective.
fn fastest_rate(tier: &Tier, kind: CollectiveKind) -> f64 {
    let rates = tier.line.iter().filter(|l| l.ops.iter().any(|o| o == kind.name())).map(|l| l.rate);
    rates.fold(0.0, f64::max)
}

/// What crosses each level goes over it at the same time: the slowest level counts.
fn all_to_all(machine: &Machine, bytes: f64, group: &TierGroup) -> Option<FastestLine> {
    let kind = CollectiveKind::AllToAll;
    let n = group.members as f64;
    // Members that a member shares a group of the level with, at the least: what is left comes from further away.
    let mut near = 1.0;
    let mut slowest: Option<FastestLine> = None;
    for level in 0..=group.level {
        let tier = &machine.tier[level];
        let within = if level == group.level { n } else { near * group.most[level] as f64 };
        let share = bytes * (within - near) / n;
        near = within;
        if share <= 0.0 {
            continue;
        }
        let cap = tier.cap.map_or(f64::INFINITY, |cap| cap / group.in_node() as f64);
        let time = |l: &NetworkLine| {
            let start = l.latency + l.per_member * (n - 1.0) + if level == 0 { 0.0 } else { tier.hop };
            (start + share / if level == 0 { l.rate } else { l.rate.min(cap) }, named(tier, &l.name))
        };
        let lines = tier.line.iter().filter(|l| l.is_for(kind.name(), bytes, group.members));
        let here = least(lines.map(time));
        slowest = slowest.into_iter().chain(here).max_by(|a, b| a.0.total_cmp(&b.0));
    }
    slowest
}

/// Between two devices, over the level that connects all.
fn permute(machine: &Machine, bytes: f64, group: &TierGroup) -> Option<FastestLine> {
    let level = group.level;
    let tier = machine.tier.get(level)?;
    Some((point_to_point(tier, bytes), named(tier, "p2p")))
}

/// Seconds of a message between two devices that a level connects.
pub fn point_to_point(tier: &Tier, bytes: f64) -> f64 {
    let fastest = || tier.line.iter().map(|l| l.rate).fold(0.0, f64::max);
    tier.p2p_latency + bytes / tier.p2p.unwrap_or_else(fastest)
}

/// An all-reduce in the switches of the outermost level: among one member of each node, or after a reduce-scatter in the node and
/// before an all-gather.
fn in_network(machine: &Machine, bytes: f64, group: &TierGroup) -> Option<FastestLine> {
    let tier = machine.tier.get(group.level).filter(|_| group.level > 0)?;
    let reduce = tier.reduce.as_ref()?;
    let inside = group.in_node();
    // Members that are not spread evenly would wait for a link.
    let even = inside * group.nodes() == group.members;
    if !even || bytes < reduce.smallest || group.members < reduce.members {
        return None;
    }
    let among = reduce.seconds(bytes / inside as f64);
    if inside == 1 {
        return Some((among, named(tier, IN_NETWORK)));
    }
    let node = TierGroup { members: inside, level: 0, parts: vec![inside], most: vec![inside] };
    // A reduce-scatter and an all-gather are what an all-reduce does.
    let inside = lines(machine, CollectiveKind::AllReduce, bytes, &node)?.0;
    Some((inside + among, named(tier, IN_NETWORK)))
}

impl InNetwork {
    /// Seconds of one all-reduce. Cut through, a level of switches costs a frame each way; else a piece that is stored before it
    /// is added, and each further piece waits for both ways.
    pub fn seconds(&self, bytes: f64) -> f64 {
        let levels = 2.0 * f64::from(self.levels);
        match self.mode {
            ReduceMode::CutThrough => levels * (self.link + self.frame / self.rate) + bytes / self.rate,
            ReduceMode::StoreAndForward => {
                let piece = self.piece(bytes);
                let more = (bytes / piece).ceil() - 1.0;
                levels * (self.link + piece / self.rate) + more * 2.0 * piece / self.rate
            }
        }
    }

    /// Seconds for each of many all-reduces back to back: the way through the switches is hidden behind those before it.
    pub fn stream(&self, bytes: f64) -> f64 {
        let ways = if self.mode == ReduceMode::CutThrough { 1.0 } else { 2.0 };
        ways * bytes / self.rate
    }

    /// Bytes that a switch stores before it adds them.
    fn piece(&self, bytes: f64) -> f64 {
        bytes.min(self.buffer.unwrap_or(bytes))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests;
