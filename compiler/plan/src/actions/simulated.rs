//! What the papers say of schedules, for all pipelines of up to 12 ranks, 64 microbatches and 4 chunks: how long ranks wait and
//! what they hold, in a simulator that knows nothing but what a pass waits for and how long it takes.

use super::PipelineSchedule::{self, Gpipe, OneForwardOneBackward, ZbH1};
use super::{Pass, PassRun, in_flight, runs};
use std::collections::VecDeque;

/// Times of F, B and W of a rank, of all of its chunks together. No W is longer than F or B.
const RATIOS: [[f64; 3]; 4] = [[1.0, 1.0, 1.0], [1.0, 2.0, 1.0], [1.3, 2.1, 0.7], [3.0, 3.0, 2.0]];

/// The time at which the last pass ends. A pass of a chunk takes its part of the times.
fn played(lists: &[Vec<PassRun>], (chunks, micros): (usize, usize), times: [f64; 3]) -> f64 {
    let (ranks, stages) = (lists.len(), lists.len() * chunks);
    let slot = |pass: Pass, stage: usize, micro: usize| (pass as usize * stages + stage) * micros + micro;
    let mut ends: Vec<Option<f64>> = vec![None; 3 * stages * micros];
    let (mut at, mut clock) = (vec![0; ranks], vec![0.0f64; ranks]);
    let mut awake: VecDeque<usize> = (0..ranks).collect();
    while let Some(rank) = awake.pop_front() {
        while let Some(run) = lists[rank].get(at[rank]) {
            let stage = run.chunk * ranks + rank;
            let after = match run.pass {
                Pass::F => [(stage > 0).then(|| slot(Pass::F, stage - 1, run.micro)), None],
                Pass::B => [
                    Some(slot(Pass::F, stage, run.micro)),
                    (stage + 1 < stages).then(|| slot(Pass::B, stage + 1, run.micro)),
                ],
                Pass::W => [Some(slot(Pass::B, stage, run.micro)), None],
            };
            let ready = after
                .into_iter()
                .flatten()
                .map(|slot| ends[slot])
                .try_fold(clock[rank], |t, end| Some(t.max(end?)));
            let Some(begin) = ready else { break };
            clock[rank] = begin + times[run.pass as usize] / chunks as f64;
            ends[slot(run.pass, stage, run.micro)] = Some(clock[rank]);
            at[rank] += 1;
            awake.extend([(rank + 1) % ranks, (rank + ranks - 1) % ranks]);
        }
    }
    assert!((0..ranks).all(|rank| at[rank] == lists[rank].len()), "a rank waits for ever");
    clock.into_iter().fold(0.0, f64::max)
}

/// Pairs of a microbatch and a chunk of which a rank has run the forward pass, and not yet all that reads it; at most.
fn held(list: &[PassRun], last: Pass) -> usize {
    let (mut now, mut most) = (0usize, 0);
    for run in list {
        now += usize::from(run.pass == Pass::F);
        most = most.max(now);
        now -= usize::from(run.pass == last);
    }
    most
}

/// How long each rank waits, by its schedule, where there is a formula.
fn bubble(schedule: PipelineSchedule, (p, v, m): (usize, usize, usize), [f, b, w]: [f64; 3]) -> Option<f64> {
    let (edge, whole) = ((p - 1) as f64, v == 1 || m.is_multiple_of(p));
    match schedule {
        Gpipe => Some(edge * (f + b + w)),
        OneForwardOneBackward => whole.then(|| edge * (f + b + w) / v as f64),
        ZbH1 => (whole && m >= 2 * p).then(|| edge * (f + b - w) / v as f64),
    }
}

/// What rank `s` holds, and whether that is exact or the most that it may.
fn kept(schedule: PipelineSchedule, (p, v, m): (usize, usize, usize), s: usize) -> (usize, bool) {
    let chunked = 2 * (p - s - 1) + (v - 1) * p + 1;
    match (schedule, v) {
        (Gpipe, _) => (m, true),
        (OneForwardOneBackward, 1) => (m.min(p - s), true),
        (OneForwardOneBackward, _) => ((m * v).min(chunked), m.is_multiple_of(p)),
        (ZbH1, 1) => (m.min(p), true),
        (ZbH1, _) => ((m * v).min(chunked + s), false),
    }
}

#[test]
fn ranks_wait_and_hold_as_the_papers_say() {
    let all = (1..=12).flat_map(|p| (1..=4).flat_map(move |v| (1..=64).map(move |m| (p, v, m))));
    let (mut waits, mut holds) = (0, 0);
    for (p, v, m) in all {
        for schedule in PipelineSchedule::ALL.into_iter().filter(|s| v == 1 || *s != Gpipe) {
            let lists = runs(schedule, p, v, m).unwrap();
            let of = format!("{}, {p} ranks, {v} chunks, {m} microbatches", schedule.name());
            for times in RATIOS {
                let [f, b, w] = times;
                let joined = if schedule == ZbH1 { times } else { [f, b + w, 0.0] };
                let Some(wanted) = bubble(schedule, (p, v, m), times) else { continue };
                let waited = played(&lists, (v, m), joined) - m as f64 * (f + b + w);
                assert!((waited - wanted).abs() < 1e-9, "{of}, {times:?}: {waited}, not {wanted}");
                waits += 1;
            }
            let last = if schedule == ZbH1 { Pass::W } else { Pass::B };
            for (s, list) in lists.iter().enumerate() {
                let ((most, exact), got) = (kept(schedule, (p, v, m), s), held(list, last));
                assert!(got == most || (!exact && got < most), "{of}, rank {s}: {got}, not {most}");
                assert_eq!(got, in_flight(list), "{of}, rank {s}");
                holds += usize::from(exact);
            }
        }
    }
    // Few are without a formula.
    assert!(waits > 10_000 && holds > 10_000, "{waits} {holds}");
}
