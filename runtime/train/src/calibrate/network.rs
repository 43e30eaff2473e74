//! Collectives among devices that are threads, by the benchmark of transports, and lines through their times.

use super::fit::straight;
use super::rounds::RoundsWatcher;
use crate::estimates::measured::quartiles;
use crate::failure::Failure;
use meshwright_comm::bench::{self, BenchJob, run, sizes};
use meshwright_comm::{CollectiveKind, Timeouts, World};
use meshwright_cost::machine::{NetworkLine, Tier};
use meshwright_diag::{Diagnostic, codes};
use meshwright_plan::{DType, Mesh, Monoid, Portion};
use std::collections::{BTreeMap, BTreeSet};

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

/// Each size is measured so often, in turns with the others.
const TURNS: usize = 3;

/// What the timed calls of a turn move, and the bounds of their number.
const MOVED: usize = 64 << 20;
const CALLS: [usize; 2] = [3, 100];

/// The greatest number of a short calibration.
const FEW: usize = 15;

/// A second line through the times has to make their mean square so much smaller.
const WORTH: f64 = 0.7;

/// Numbers of members of the groups that a mesh has.
pub(super) fn members(mesh: &Mesh) -> Vec<usize> {
    let mut all: BTreeSet<usize> = [1].into();
    for axis in &mesh.axes {
        let with: Vec<usize> = all.iter().map(|n| n * axis.size).collect();
        all.extend(with);
    }
    all.into_iter().filter(|n| *n > 1).collect()
}

/// Seconds by collective and bytes.
pub(super) type CollectiveTimes = BTreeMap<CollectiveKind, Vec<(f64, f64)>>;

/// Times collectives among so many devices.
pub(super) fn timed(
    members: usize,
    short: bool,
    progress: &mut RoundsWatcher<'_>,
) -> Result<CollectiveTimes, Failure> {
    let sizes = sizes(BYTES[0], BYTES[if short { 2 } else { 1 }], 4);
    let job = |kind, bytes: usize| BenchJob {
        kind,
        monoid: Monoid::Sum,
        dtype: DType::F32,
        bytes,
        warmup: 2,
        iterations: (MOVED / bytes).clamp(CALLS[0], if short { FEW } else { CALLS[1] }),
        checks: 1,
    };
    let each: Vec<BenchJob> = kinds().flat_map(|kind| sizes.iter().map(move |b| job(kind, *b))).collect();
    let jobs: Vec<BenchJob> = (0..TURNS).flat_map(|_| each.iter().copied()).collect();
    let mut found: BTreeMap<CollectiveKind, BTreeMap<usize, Vec<f64>>> = BTreeMap::new();
    let mut wrong = None;
    run(World::new(members, Timeouts::default()), &jobs, |m| {
        progress(&format!("{} of {} bytes among {members}", m.job.kind.name(), m.bytes()));
        if m.wrong.is_some_and(|n| n > 0) {
            wrong = Some(format!("{} of {} bytes gave wrong elements", m.job.kind.name(), m.bytes()));
        }
        let times = found.entry(m.job.kind).or_default().entry(m.bytes()).or_default();
        times.push(m.median.as_secs_f64());
        wrong.is_none()
    })
    .map_err(|e| Diagnostic::error(codes::E0520, e.to_string()))?;
    if let Some(wrong) = wrong {
        return Err(Diagnostic::error(codes::E0520, wrong).into());
    }
    let median = |(bytes, times)| Some((bytes as f64, quartiles(times)?[1]));
    Ok(found.into_iter().map(|(kind, by)| (kind, by.into_iter().filter_map(median).collect())).collect())
}

/// Sets the lines of a level by what was measured, for each number of members.
pub(super) fn fit(tier: &mut Tier, measured: &BTreeMap<usize, CollectiveTimes>) {
    let Some(most) = measured.keys().next_back().copied() else { return };
    tier.line.clear();
    let mut least = 2;
    for (members, times) in measured {
        // Beyond the groups that were measured, the largest speaks for all.
        let range = (least, if *members == most { tier.size.max(*members) } else { *members });
        for kind in kinds().filter(|k| has_lines(*k)) {
            let factor = kind.bus_factor().of(*members);
            let points = times.get(&kind).map_or(&[][..], Vec::as_slice);
            tier.line.extend(lines(points, factor).into_iter().map(|l| NetworkLine {
                ops: vec![kind.name().into()],
                members: range,
                ..l
            }));
        }
        least = members + 1;
    }
    let message = |t: &'_ CollectiveTimes| kinds().find(|k| !has_lines(*k)).and_then(|k| t.get(&k).cloned());
    let messages = measured.values().filter_map(message).next_back();
    if let Some((slope, start)) = messages.and_then(|points| rising(&points).or_else(|| alone(&points))) {
        (tier.p2p, tier.p2p_latency) = (Some(1.0 / slope), start);
    }
}

/// Slope and start of the line through points, if more bytes take more time.
fn rising(points: &[(f64, f64)]) -> Option<(f64, f64)> {
    straight(points.iter().copied()).filter(|l| l.0 > 0.0)
}

/// Where more bytes seem to take less time, since something else was at work: a line through the largest.
fn alone(points: &[(f64, f64)]) -> Option<(f64, f64)> {
    points.last().map(|(bytes, seconds)| (seconds / bytes, 0.0))
}

/// One line through points of bytes and seconds, or two where these say more. Of two lines the one for few bytes has a bound where the other is
/// slower: what a cache held no longer fits. Where it is faster, the least time counts, as of two protocols.
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
        let Some((a, mut b)) = rising(few).zip(rising(many)) else { continue };
        // Few bytes are never faster by the line of many.
        b.1 = b.1.max(a.1);
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

    #[test]
    fn groups_are_those_of_all_sets_of_axes() {
        assert_eq!(members(&Mesh::new([("a", 2), ("b", 3), ("c", 2)])), [2, 3, 4, 6, 12]);
        assert_eq!(members(&Mesh::new([("a", 1)])), [0; 0]);
    }

    #[test]
    fn times_that_make_no_sense_have_a_line_all_the_same() {
        let found = lines(&[(4096.0, 9e-3), (65536.0, 4e-3), (1048576.0, 2e-3)], 1.0);
        assert_eq!(found.len(), 1);
        assert!((found[0].rate / 524_288_000.0 - 1.0).abs() < 1e-9 && found[0].latency == 0.0, "{found:?}");
        assert!(lines(&[], 1.0).is_empty());
    }

    #[test]
    fn known_lines_are_found_again() {
        let known = machine("cpu", &[]).unwrap();
        let mut measured = BTreeMap::new();
        for n in [2, 4] {
            let ranks: Vec<usize> = (0..n).collect();
            let of = |kind| {
                let sizes = sizes(BYTES[0], BYTES[1], 4);
                let time = |b: usize| (b as f64, collective(&known, kind, b as f64, &ranks).seconds);
                (kind, sizes.into_iter().map(time).collect())
            };
            let times: CollectiveTimes = kinds().map(of).collect();
            measured.insert(n, times);
        }
        let mut found = machine("cpu", &[]).unwrap();
        found.tier[0].line.clear();
        fit(&mut found.tier[0], &measured);
        let text = found.to_toml().unwrap();
        assert!(meshwright_cost::machine::Machine::read(&text).is_ok(), "{text}");
        for (n, times) in &measured {
            let ranks: Vec<usize> = (0..*n).collect();
            for (kind, points) in times {
                for (bytes, seconds) in points {
                    let estimated = collective(&found, *kind, *bytes, &ranks).seconds;
                    assert!(
                        (estimated / seconds - 1.0).abs() < 0.02,
                        "{kind} {n} {bytes}: {estimated} {seconds}"
                    );
                }
            }
        }
    }
}
