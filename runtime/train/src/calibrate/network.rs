//! Collectives among devices, by the benchmark of transports, and lines through their times.

use super::fit::straight;
use super::ranks::Ranks;
use super::rounds::{RoundsWatcher, UNSTEADY, Unsteady, is_steady};
use crate::devices::Devices;
use crate::devices::consensus::agree_on_result;
use crate::estimates::measured_step::quartiles;
use crate::failure::Failure;
use meshwright_comm::bench::{self, BenchGroups, BenchJob, Measured, run, run_end_over, sizes};
use meshwright_comm::nccl::{NcclOptions, NcclTransport};
use meshwright_comm::{CollectiveKind, CommError, World};
use meshwright_cost::machine::{NetworkLine, Tier};
use meshwright_diag::{Diagnostic, codes};
use meshwright_plan::{DType, Mesh, Monoid, Portion};
use meshwright_sorted::SortedMap;
use std::time::{Duration, Instant};

/// Collectives in which all members give and take alike.
fn kinds() -> impl Iterator<Item = CollectiveKind> {
    bench::kinds().filter(|k| !k.traffic().rooted)
}

/// Those that have lines of their own: from member to member, `p2p` counts.
fn has_lines(kind: CollectiveKind) -> bool {
    kind.traffic().receive != Portion::Ranges
}

/// Bytes: the least, the greatest, and the greatest of a short calibration.
const BYTES: [usize; 3] = [4 << 10, 64 << 20, 4 << 20];

/// Least and greatest number of rounds. In each, a size has its turn with the others, and threads begin anew: where these share
/// cores, their places decide how long collectives take.
const ROUNDS: [usize; 2] = [3, 600];

/// Timed calls of a round. The shortest of three is the lower quartile in the mean, whatever their times are: a call that
/// something else at work delays by a time slice takes hundreds of times as long as others.
const CALLS: usize = 3;

/// A second line through the times has to make their mean square so much smaller.
const WORTH: f64 = 0.7;

/// Seconds by collective and bytes.
pub(super) type CollectiveTimes = SortedMap<CollectiveKind, Vec<(f64, f64)>>;

/// Times collectives among this number of devices, and names unsteady ones. Where devices are processes, all groups of as many
/// consecutive ones call side by side, and only the first process gets the times. Rounds go on as turns of programs do.
pub(super) fn timed(
    devices: &Devices,
    members: usize,
    (time, short): (Duration, bool),
    progress: &mut RoundsWatcher<'_>,
) -> Result<(CollectiveTimes, Vec<Unsteady>), Failure> {
    let sizes = sizes(BYTES[0], BYTES[if short { 2 } else { 1 }], 4);
    let job = |kind, bytes: usize| BenchJob {
        kind,
        monoid: Monoid::Sum,
        dtype: DType::F32,
        bytes,
        warmup: 2,
        iterations: CALLS,
        checks: 1,
    };
    let mut each: Vec<TimedCollective> = kinds()
        .flat_map(|kind| {
            sizes.iter().map(move |b| TimedCollective { job: job(kind, *b), bytes: 0, times: vec![] })
        })
        .collect();
    let (begin, mut last) = (Instant::now(), Duration::ZERO);
    for round in 0..ROUNDS[1] {
        let enough = begin.elapsed() + last > time;
        let goes_on =
            |c: &TimedCollective| round < ROUNDS[0] || !(enough || is_steady(c.seen()[2], c.times.len()));
        let asked: Vec<bool> = each.iter().map(goes_on).collect();
        let asked = devices.processes.broadcast("the next round".into(), asked)?;
        if !asked.contains(&true) {
            break;
        }
        let start = Instant::now();
        let one = each.iter_mut().zip(asked).filter(|(_, asked)| *asked).map(|(c, _)| c).collect();
        timed_once(devices, members, one, progress)?;
        // Elements are compared once.
        each.iter_mut().for_each(|c| c.job.checks = 0);
        last = start.elapsed();
    }
    let mut found = CollectiveTimes::new();
    let mut unsteady = vec![];
    for c in each.iter().filter(|c| !c.times.is_empty()) {
        let [seconds, spread, _] = c.seen();
        found.entry(c.job.kind).or_default().push((c.bytes as f64, seconds));
        if spread > UNSTEADY {
            let name = format!("{} of {} bytes among {members}", c.job.kind.name(), c.bytes);
            unsteady.push(Unsteady { name, spread });
        }
    }
    Ok((found, unsteady))
}

/// A collective of one size, and the shortest call of each round.
struct TimedCollective {
    job: BenchJob,
    /// Bytes that were moved.
    bytes: usize,
    times: Vec<f64>,
}

impl TimedCollective {
    /// The median, and relative to it the distance of the quartiles and that of the lower one.
    fn seen(&self) -> [f64; 3] {
        let relative = |[low, median, high]: [f64; 3]| [median, (high - low) / median, 1.0 - low / median];
        quartiles(self.times.clone()).map_or([0.0; 3], relative)
    }
}

/// A round of some collectives.
fn timed_once(
    devices: &Devices,
    members: usize,
    mut all: Vec<&mut TimedCollective>,
    progress: &mut RoundsWatcher<'_>,
) -> Result<(), Failure> {
    let jobs: Vec<BenchJob> = all.iter().map(|c| c.job).collect();
    let mut wrong = None;
    let mut seen = all.iter_mut();
    let ended = called(devices, members, &jobs, |m| {
        progress(&format!("{} of {} bytes among {members}", m.job.kind.name(), m.bytes()));
        if m.wrong.is_some_and(|n| n > 0) {
            wrong = Some(format!("{} of {} bytes gave wrong elements", m.job.kind.name(), m.bytes()));
        }
        if let Some(c) = seen.next() {
            c.bytes = m.bytes();
            c.times.push(m.least.as_secs_f64());
        }
        true
    });
    ended.map_err(|e| Diagnostic::error(codes::E0520, e.to_string()))?;
    let wrong = wrong.map_or(Ok(()), |wrong| Err(Diagnostic::error(codes::E0520, wrong).into()));
    agree_on_result(&devices.processes, "collectives", wrong)
}

/// Calls collectives on the devices' own transport.
fn called(
    devices: &Devices,
    members: usize,
    jobs: &[BenchJob],
    each: impl FnMut(Measured) -> bool,
) -> Result<(), CommError> {
    let options = NcclOptions {
        paths: devices.libraries.clone(),
        timeouts: devices.timeouts,
        ..NcclOptions::default()
    };
    let gpu =
        |local| devices.device.of_rank(local, devices.gpus).gpu_number().and_then(|n| u32::try_from(n).ok());
    let end = devices.processes.take_ends(true).and_then(|ends| ends.into_iter().next());
    let mut end = match (end, gpu(0)) {
        (None, None) => return run(World::new(members, devices.timeouts), jobs, each),
        (None, Some(_)) => {
            let gpus: Vec<u32> = (0..members).filter_map(gpu).collect();
            return run(NcclTransport::of_process(&gpus, &options)?, jobs, each);
        }
        (Some(end), None) => end,
        (Some(end), Some(gpu)) => Box::new(NcclTransport::new(end, gpu, &options)?),
    };
    let mesh = Mesh::new([("groups", end.size() / members), ("members", members)]);
    let inner = mesh.iter().skip(1).collect();
    run_end_over(&mut *end, &BenchGroups::over(mesh, inner), jobs, each)
}

/// The level of a network that connects hosts.
const NETWORK: (&str, usize) = ("network", 65_536);

/// Sets the levels of a network by what was measured, for each number of members: the first within a host, and where there are
/// several hosts a second between them. Other levels stay where there is one host.
pub(super) fn fit(tiers: &mut Vec<Tier>, measured: &SortedMap<usize, CollectiveTimes>, ranks: &Ranks) {
    let Some(first) = tiers.first_mut().filter(|_| !measured.is_empty()) else { return };
    let within: Vec<_> = measured.iter().filter(|(members, _)| **members <= ranks.in_host).collect();
    let across: Vec<_> = measured.iter().filter(|(members, _)| **members > ranks.in_host).collect();
    level(first, &within, usize::MAX);
    if ranks.hosts > 1 {
        // Lines between hosts have their steps in their latency.
        first.hop = 0.0;
        let (name, size) = NETWORK;
        let mut between = Tier { name: name.into(), size, reduce: None, ..first.clone() };
        level(&mut between, &across, ranks.in_host);
        first.size = ranks.in_host;
        tiers.truncate(usize::from(ranks.in_host > 1));
        tiers.push(between);
    }
}

/// Sets the lines of a level. At most `in_host` members of its groups are in a host, and each has a link of its own.
fn level(tier: &mut Tier, measured: &[(&usize, &CollectiveTimes)], in_host: usize) {
    let Some(most) = measured.last().map(|(members, _)| **members) else { return };
    tier.size = tier.size.max(most);
    tier.line.clear();
    // Between hosts a group may have a member in each.
    let mut least = 2;
    for (members, times) in measured.iter().map(|(members, times)| (**members, times)) {
        // Beyond the groups that were measured, the largest speaks for all.
        let range = (least, if members == most { tier.size } else { members });
        for kind in kinds().filter(|k| has_lines(*k)) {
            let points = times.get(&kind).map_or(&[][..], Vec::as_slice);
            tier.line.extend(
                lines(points, factor(kind, members, in_host)).into_iter().map(|l| NetworkLine {
                    ops: vec![kind.name().into()],
                    members: range,
                    ..l
                }),
            );
        }
        least = members + 1;
    }
    let message = |t: &CollectiveTimes| kinds().find(|k| !has_lines(*k)).and_then(|k| t.get(&k).cloned());
    let messages = measured.iter().filter_map(|(_, times)| message(times)).next_back();
    if let Some((slope, start)) = messages.and_then(|points| rising(&points).or_else(|| alone(&points))) {
        (tier.p2p, tier.p2p_latency) = (Some(1.0 / slope), start);
    }
}

/// Bytes on the link of a device for each byte of a collective: those of an all-to-all that leave the host, or the part of a
/// device of what all in its host send.
fn factor(kind: CollectiveKind, members: usize, in_host: usize) -> f64 {
    match in_host {
        usize::MAX => kind.bus_factor().of(members),
        near if kind == CollectiveKind::AllToAll => (members - near) as f64 / members as f64,
        near => kind.bus_factor().of(members) / near as f64,
    }
}

/// Slope and start of the line through points, if more bytes take more time.
fn rising(points: &[(f64, f64)]) -> Option<(f64, f64)> {
    straight(points.iter().copied()).filter(|l| l.0 > 0.0)
}

/// Slope of the line through points that begins at `start`, if more bytes take more time.
fn from(start: f64, points: &[(f64, f64)]) -> Option<f64> {
    // Relative distances count.
    let of = |(x, y): &(f64, f64)| (x * (y - start) / (y * y), x * x / (y * y));
    let (xy, xx) = points.iter().map(of).fold((0.0, 0.0), |sum, p| (sum.0 + p.0, sum.1 + p.1));
    Some(xy / xx).filter(|slope| *slope > 0.0)
}

/// Where more bytes seem to take less time, since something else was at work: a line through the largest.
fn alone(points: &[(f64, f64)]) -> Option<(f64, f64)> {
    points.last().map(|(bytes, seconds)| (seconds / bytes, 0.0))
}

/// One line through points of bytes and seconds, or two where these say more. Of two lines the one for few bytes has a bound
/// where the other is slower: what a cache held no longer fits. Where it is faster, the least time counts, as of two protocols.
fn lines(points: &[(f64, f64)], factor: f64) -> Vec<NetworkLine> {
    let line = |(slope, start): (f64, f64), name: &str, up_to| NetworkLine {
        name: name.into(),
        ops: vec![],
        members: (2, 2),
        up_to,
        latency: start,
        per_member: 0.0,
        rate: factor / slope,
        cap: None,
        log: false,
        source: None,
    };
    let square = |points: &[(f64, f64)], (slope, start): (f64, f64)| -> f64 {
        points.iter().map(|(x, y)| ((start + slope * x) / y - 1.0).powi(2)).sum()
    };
    let Some(one) = rising(points).or_else(|| alone(points)) else { return vec![] };
    let mut best = (WORTH * square(points, one), None);
    for at in 2..points.len().saturating_sub(1) {
        let (few, many) = points.split_at(at);
        // Both begin alike: where the line of many bytes would begin by itself is known by their noise alone.
        let Some(a) = rising(few) else { continue };
        let Some(b) = from(a.1, many).map(|slope| (slope, a.1)) else { continue };
        let sum = square(few, a) + square(many, b);
        if sum < best.0 {
            let between = (few[at - 1].0 * many[0].0).sqrt();
            best = (sum, Some((a, b, (b.0 > a.0).then_some(between))));
        }
    }
    match best.1 {
        None => vec![line(one, "measured", None)],
        Some((a, b, up_to)) => vec![line(a, "small", up_to), line(b, "large", None)],
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::estimates::machine;
    use meshwright_cost::collective::collective;
    use meshwright_cost::machine::Machine;

    #[test]
    fn times_that_make_no_sense_have_a_line_all_the_same() {
        let found = lines(&[(4096.0, 9e-3), (65536.0, 4e-3), (1048576.0, 2e-3)], 1.0);
        assert_eq!(found.len(), 1);
        assert!((found[0].rate / 524_288_000.0 - 1.0).abs() < 1e-9 && found[0].latency == 0.0, "{found:?}");
        assert!(lines(&[], 1.0).is_empty());
    }

    /// What a machine has for the collectives of groups of these numbers of members.
    fn known(machine: &Machine, members: &[usize]) -> SortedMap<usize, CollectiveTimes> {
        let of = |n: &usize| {
            let ranks: Vec<usize> = (0..*n).collect();
            let times = |kind| {
                let time = |b: usize| (b as f64, collective(machine, kind, b as f64, &ranks).seconds);
                (kind, sizes(BYTES[0], BYTES[1], 4).into_iter().map(time).collect())
            };
            (*n, kinds().map(times).collect())
        };
        members.iter().map(of).collect()
    }

    /// Fits a machine to times, writes and reads it, and compares what it then has for them.
    fn found_again(
        mut found: Machine,
        measured: &SortedMap<usize, CollectiveTimes>,
        ranks: &Ranks,
    ) -> Machine {
        fit(&mut found.tier, measured, ranks);
        let text = found.to_toml().unwrap();
        let found = Machine::read(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
        for (n, kind, bytes, seconds) in measured.iter().flat_map(|(n, times)| {
            times.iter().flat_map(move |(k, points)| points.iter().map(move |(b, s)| (*n, *k, *b, *s)))
        }) {
            let group: Vec<usize> = (0..n).collect();
            let estimated = collective(&found, kind, bytes, &group).seconds;
            assert!((estimated / seconds - 1.0).abs() < 0.02, "{kind} {n} {bytes}: {estimated} {seconds}");
        }
        found
    }

    #[test]
    fn known_lines_are_found_again() {
        let cpu = machine("cpu", &[]).unwrap();
        let ranks = Ranks { in_host: 4, hosts: 1, cores: 2 };
        let found = found_again(cpu.clone(), &known(&cpu, &[2, 4]), &ranks);
        assert_eq!((found.tier.len(), found.tier[0].size), (1, cpu.tier[0].size));
    }

    /// Hosts of four devices, and of one, whose links carry much less than memory.
    #[test]
    fn lines_between_hosts_are_found_again() {
        let cpu = machine("cpu", &[]).unwrap();
        let line = |op: &str, rate: f64| NetworkLine {
            ops: vec![op.into()],
            name: "wire".into(),
            rate,
            latency: 30e-6,
            ..cpu.tier[0].line[0].clone()
        };
        let ops = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"];
        for (in_host, members) in [(4, &[4, 8, 16][..]), (1, &[2, 4])] {
            let mut two = cpu.clone();
            let wire = Tier {
                name: "wire".into(),
                size: 64,
                p2p: Some(0.3e9),
                p2p_latency: 40e-6,
                line: ops.map(|op| NetworkLine { members: (2, 64), up_to: None, ..line(op, 0.2e9) }).into(),
                ..cpu.tier[0].clone()
            };
            two.tier[0].size = in_host;
            two.tier[0].line.retain(|l| l.members.0 == 3);
            two.tier[0].line.iter_mut().for_each(|l| l.members = (2, 64));
            two.tier.truncate(usize::from(in_host > 1));
            two.tier.push(wire);
            let ranks = Ranks { in_host, hosts: 4, cores: 2 };
            let found = found_again(cpu.clone(), &known(&two, members), &ranks);
            let levels: Vec<_> = found.tier.iter().map(|t| (t.name.as_str(), t.size)).collect();
            assert_eq!(levels.last(), Some(&NETWORK));
            assert_eq!(levels.len(), two.tier.len(), "{levels:?}");
            let rate = found.tier.last().unwrap().line[0].rate;
            assert!((rate / 0.2e9 - 1.0).abs() < 0.02, "a link: {rate}");
        }
    }
}
