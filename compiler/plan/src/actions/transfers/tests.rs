//! What the papers say of schedules, for all small pipelines: idle time, what is in flight, and that lists end.

use super::*;
use crate::actions::in_flight;
use PipelineSchedule::{Gpipe, OneForwardOneBackward, ZbH1};

/// Costs of F, B and W of a stage; four chunks share them evenly.
const RATIOS: [[u64; 3]; 4] = [[12, 12, 12], [12, 24, 12], [24, 36, 12], [36, 36, 24]];

/// Every pipeline of up to 12 ranks and 64 microbatches that is worth a look.
fn pipelines() -> impl Iterator<Item = (PipelineSchedule, usize, usize, usize)> {
    let sizes = [
        (1, 1),
        (1, 3),
        (2, 1),
        (2, 4),
        (3, 7),
        (4, 2),
        (4, 8),
        (5, 12),
        (8, 16),
        (8, 64),
        (12, 24),
        (12, 37),
    ];
    let chunked = sizes.into_iter().flat_map(|(p, m)| [1, 2, 3, 4].map(|v| (p, v, m)));
    chunked.flat_map(|(p, v, m)| {
        let all = if v == 1 { &PipelineSchedule::ALL[..] } else { &[OneForwardOneBackward, ZbH1] };
        all.iter().map(move |s| (*s, p, v, m))
    })
}

/// Seconds of the whole pipeline whose chunks share the costs of a rank.
fn makespan(schedule: PipelineSchedule, p: usize, v: usize, m: usize, costs: [u64; 3]) -> u64 {
    let joined = match schedule {
        ZbH1 => costs,
        _ => [costs[0], costs[1] + costs[2], 0],
    };
    let lists = runs(schedule, p, v, m).unwrap();
    super::makespan(&lists, v, &|_, pass| joined[pass as usize] / v as u64).unwrap()
}

#[test]
fn idle_times_are_those_of_the_papers() {
    for (schedule, p, v, m) in pipelines() {
        for [f, b, w] in RATIOS {
            let (edge, work) = (p as u64 - 1, m as u64 * (f + b + w));
            let idle = makespan(schedule, p, v, m, [f, b, w]) - work;
            let even = m % p == 0;
            let expected = match schedule {
                Gpipe => Some(edge * (f + b + w)),
                OneForwardOneBackward if v == 1 || even => Some(edge * (f + b + w) / v as u64),
                ZbH1 if m >= 2 * p && (v == 1 || even) => Some(edge * (f + b - w) / v as u64),
                _ => None,
            };
            let name = schedule.name();
            if let Some(expected) = expected {
                assert_eq!(idle, expected, "{name}, {p} ranks, {v} chunks, {m} microbatches, {f}:{b}:{w}");
            }
            // With a last group that is not full, no longer than with a full one.
            let full = makespan(schedule, p, v, m.next_multiple_of(p), [f, b, w]);
            assert!(work + idle <= full, "{name}, {p} ranks, {v} chunks, {m} microbatches");
        }
    }
}

#[test]
fn every_list_ends_though_transfers_block() {
    let odd = [(OneForwardOneBackward, 16, 6, 376), (OneForwardOneBackward, 64, 1, 512), (ZbH1, 16, 3, 40)];
    for (schedule, p, v, m) in pipelines().chain(odd) {
        let lists = actions(schedule, p, v, m).unwrap();
        verify(&lists, v, m).unwrap_or_else(|e| panic!("{}, {p}, {v}, {m}: {e}", schedule.name()));
        // A transfer of each microbatch over each of the edges between stages of two ranks, forward and backward.
        let edges = if p == 1 { 0 } else { p * v - 1 };
        let sent = lists.iter().flatten().filter(|a| matches!(a, Action::Send(_))).count();
        assert_eq!(sent, 2 * m * edges);
    }
}

#[test]
fn in_flight_is_at_most_what_the_papers_say() {
    for (schedule, p, v, m) in pipelines() {
        for (s, list) in runs(schedule, p, v, m).unwrap().iter().enumerate() {
            let warm = 2 * (p - s - 1) + (v - 1) * p + 1;
            let most = match (schedule, v) {
                (Gpipe, _) => m,
                (OneForwardOneBackward, 1) => m.min(p - s),
                (OneForwardOneBackward, _) => (m * v).min(warm),
                (ZbH1, 1) => m.min(p),
                (ZbH1, _) => (m * v).min(warm + s),
            };
            let got = in_flight(list);
            let exact = v == 1 || (m % p == 0 && schedule == OneForwardOneBackward);
            let name = schedule.name();
            assert!(got == most || (!exact && got <= most), "{name}, {p}, {v}, {m}, rank {s}: {got}, {most}");
        }
    }
}

#[test]
fn the_actions_of_two_ranks() {
    let text = |list: &[Action]| {
        let word = |a: &Action| match a {
            Action::PassRun(r) => format!("{:?}{}", r.pass, r.micro),
            Action::Send(r) => format!("send {:?}{}", r.pass, r.micro),
            Action::Receive(r) => format!("get {:?}{}", r.pass, r.micro),
        };
        list.iter().map(word).collect::<Vec<_>>().join(", ")
    };
    let lists = actions(OneForwardOneBackward, 2, 1, 2).unwrap();
    assert_eq!(text(&lists[0]), "F0, send F0, F1, send F1, get B0, B0, get B1, B1");
    assert_eq!(text(&lists[1]), "get F0, F0, get F1, B0, send B0, F1, B1, send B1");
}

#[test]
fn lists_that_are_wrong_are_found() {
    let lists = actions(OneForwardOneBackward, 3, 1, 4).unwrap();
    let changed = |change: &dyn Fn(&mut Vec<Vec<Action>>)| {
        let mut lists = lists.clone();
        change(&mut lists);
        verify(&lists, 1, 4).unwrap_err()
    };
    assert!(changed(&|l| l[1].truncate(2)).contains("does not have each pass"));
    assert!(changed(&|l| l[0].swap(0, 1)).contains("before it has run"));
    assert!(changed(&|l| l[1].swap(0, 1)).contains("before it has received F of stage 0"));
    let is = |pass, micro| move |a: &Action| *a == Action::PassRun(PassRun { pass, micro, chunk: 0 });
    assert!(
        changed(&|l| {
            let (f, b) = (
                l[2].iter().position(is(Pass::F, 0)).unwrap(),
                l[2].iter().position(is(Pass::B, 0)).unwrap(),
            );
            l[2].swap(f, b);
        })
        .contains("before its F")
    );
    // The receiver wants the second first.
    let two = |l: &mut Vec<Vec<Action>>| {
        let receives: Vec<usize> = (0..l[1].len())
            .filter(|i| matches!(l[1][*i], Action::Receive(PassRun { pass: Pass::F, .. })))
            .collect();
        l[1].swap(receives[0], receives[1]);
    };
    assert!(changed(&two).contains("for ever") || changed(&two).contains("before it has received"));
    // Receives right before a pass and sends right after it: both ranks wait to send.
    let naive: Vec<Vec<Action>> = (0..2)
        .map(|rank| {
            let mut list = Vec::new();
            for run in &runs(OneForwardOneBackward, 2, 1, 4).unwrap()[rank] {
                let other = if run.pass == Pass::F { rank == 1 } else { rank == 0 };
                list.extend(other.then_some(Action::Receive(*run)));
                list.push(Action::PassRun(*run));
                list.extend((!other).then_some(Action::Send(*run)));
            }
            list
        })
        .collect();
    assert!(verify(&naive, 1, 4).unwrap_err().contains("for ever"));
}
