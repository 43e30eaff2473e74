//! Seconds of a collective, by its group and the lines of the network.

use crate::machine::{InNetwork, Line, Machine, ReduceMode, Tier};
use meshwright_plan::CollectiveKind;
use std::collections::BTreeMap;

/// The time of a collective.
#[derive(Clone, Debug, PartialEq)]
pub struct CollectiveTime {
    /// Seconds.
    pub seconds: f64,
    /// The line of the machine file with the least time, behind its tier: `nvlink ring`.
    pub algorithm: String,
    /// Devices of the group.
    pub members: usize,
    /// Nodes of the group.
    pub nodes: usize,
    /// Compute units that it takes while it runs.
    pub units: f64,
}

/// A group on the tiers of a machine.
struct Reach<'m> {
    tiers: &'m [Tier],
    /// The innermost tier that connects all members.
    tier: usize,
    members: usize,
    nodes: usize,
    /// Members of the fullest node.
    beside: usize,
}

impl<'m> Reach<'m> {
    fn of(machine: &'m Machine, ranks: &[usize]) -> Reach<'m> {
        let tiers = &machine.tier;
        let blocks = |size: usize| {
            let mut all: BTreeMap<usize, usize> = BTreeMap::new();
            ranks.iter().for_each(|r| *all.entry(r / size.max(1)).or_default() += 1);
            all
        };
        let connects = |t: &Tier| blocks(t.size).len() == 1;
        let tier = tiers.iter().position(connects).unwrap_or(tiers.len().saturating_sub(1));
        let nodes = blocks(tiers.first().map_or(usize::MAX, |t| t.size));
        let beside = nodes.values().copied().max().unwrap_or(1);
        Reach { tiers, tier, members: ranks.len(), nodes: nodes.len(), beside }
    }
}

/// Bytes on a device's link relative to those of its buffer: the factor of bus bandwidth.
fn factor(kind: CollectiveKind, members: f64) -> f64 {
    match kind {
        CollectiveKind::AllReduce => 2.0 * (members - 1.0) / members,
        _ => (members - 1.0) / members,
    }
}

/// The least time that the lines of the network allow.
///
/// `bytes` are those of a device's whole buffer: what an all-reduce and a reduce-scatter take, what an all-gather gives, what an all-to-all
/// exchanges, of a permute what is received. `ranks` are the members.
pub fn collective(machine: &Machine, kind: CollectiveKind, bytes: f64, ranks: &[usize]) -> CollectiveTime {
    let reach = Reach::of(machine, ranks);
    let (members, nodes) = (reach.members, reach.nodes);
    let found = |seconds: f64, algorithm: String, units: f64| CollectiveTime {
        seconds,
        algorithm,
        members,
        nodes,
        units,
    };
    let Some(tier) = reach.tiers.get(reach.tier).filter(|_| members > 1 && bytes > 0.0) else {
        return found(0.0, String::new(), 0.0);
    };
    // The part inside of a node decides which units it takes, as long as there is one.
    let units = if reach.beside > 1 { reach.tiers[0].units } else { tier.units };
    if kind == CollectiveKind::Permute || kind == CollectiveKind::Broadcast {
        let rate = tier.p2p.unwrap_or_else(|| tier.line.iter().map(|l| l.rate).fold(0.0, f64::max));
        return found(tier.p2p_latency + bytes / rate, format!("{} p2p", tier.name), units);
    }
    let lines = tier.line.iter().filter(|l| fits(l, kind, members));
    let timed = lines
        .map(|line| (line_seconds(&reach, tier, line, kind, bytes), format!("{} {}", tier.name, line.name)));
    let in_network =
        tier.reduce.as_ref().filter(|r| kind == CollectiveKind::AllReduce && uses(r, &reach, bytes));
    let reduced =
        in_network.map(|r| (in_network_seconds(&reach, r, bytes), format!("{} in-network", tier.name)));
    let least = timed.chain(reduced).min_by(|a, b| a.0.total_cmp(&b.0));
    least.map_or_else(
        || found(f64::INFINITY, "none".into(), units),
        |(seconds, name)| found(seconds, name, units),
    )
}

fn fits(line: &Line, kind: CollectiveKind, members: usize) -> bool {
    line.ops.iter().any(|op| op == kind.name()) && (line.members.0..=line.members.1).contains(&members)
}

fn line_seconds(reach: &Reach<'_>, tier: &Tier, line: &Line, kind: CollectiveKind, bytes: f64) -> f64 {
    let (n, beside, nodes) = (reach.members as f64, reach.beside as f64, reach.nodes as f64);
    let start = line.latency + line.per_member * (n - 1.0);
    if reach.tier == 0 {
        return start + factor(kind, n) * bytes / line.rate;
    }
    let inside = &reach.tiers[0];
    let fastest = |t: &Tier| {
        t.line.iter().filter(|l| l.ops.iter().any(|op| op == kind.name())).map(|l| l.rate).fold(0.0, f64::max)
    };
    if kind == CollectiveKind::AllToAll {
        // Each device sends a part to its own node and a part to others, at the same time.
        let near = (beside - 1.0) / n * bytes / fastest(inside).max(f64::MIN_POSITIVE);
        let alone = tier.cap.map_or(line.rate, |cap| line.rate.min(cap / beside));
        return start + tier.hop + near.max((n - beside) / n * bytes / alone);
    }
    let mut rate = beside * line.rate;
    rate = tier.cap.map_or(rate, |cap| rate.min(cap));
    if beside > 1.0 {
        rate = rate.min(fastest(inside));
    }
    let rounds = if kind == CollectiveKind::AllReduce { 2.0 } else { 1.0 };
    let (far, near) = match line.log {
        true => (nodes.log2().ceil(), beside - 1.0),
        false => (nodes - 1.0, n - nodes),
    };
    start + rounds * (far * tier.hop + near * inside.hop) + factor(kind, n) * bytes / rate
}

fn uses(reduce: &InNetwork, reach: &Reach<'_>, bytes: f64) -> bool {
    reach.members >= reduce.members && bytes >= reduce.smallest && reach.nodes > 1
}

/// Up and down the levels of switches; within nodes a reduce-scatter before and an all-gather after.
fn in_network_seconds(reach: &Reach<'_>, r: &InNetwork, bytes: f64) -> f64 {
    let beside = reach.beside as f64;
    let own = bytes / beside;
    let levels = f64::from(r.levels);
    let across = match r.mode {
        // A level costs a frame; frames of one collective follow each other at the rate of the wire.
        ReduceMode::CutThrough => 2.0 * levels * (r.link + r.frame / r.rate) + own / r.rate,
        ReduceMode::StoreAndForward => {
            let piece = r.buffer.map_or(own, |b| own.min(b));
            let pieces = (own / piece).ceil();
            2.0 * levels * (r.link + piece / r.rate) + (pieces - 1.0) * 2.0 * piece / r.rate
        }
    };
    if reach.beside == 1 {
        return across;
    }
    let inside = &reach.tiers[0];
    let of = |kind: CollectiveKind| {
        let lines = inside.line.iter().filter(|l| fits(l, kind, reach.beside));
        let seconds =
            lines.map(|l| l.latency + l.per_member * (beside - 1.0) + factor(kind, beside) * bytes / l.rate);
        seconds.fold(f64::INFINITY, f64::min)
    };
    across + of(CollectiveKind::ReduceScatter) + of(CollectiveKind::AllGather)
}
