//! The time that lists take, and that they end.

use super::*;
use crate::actions::PipelineSchedule::{self, Gpipe, OneForwardOneBackward, ZbH1};
use crate::actions::runs;

/// Costs of F, B and W of a stage; four chunks share them evenly.
const RATIOS: [[u64; 3]; 4] = [[12, 12, 12], [12, 24, 12], [24, 36, 12], [36, 36, 24]];

/// Some pipelines of up to 12 ranks and 64 microbatches.
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

/// The actions of all ranks.
fn lists(schedule: PipelineSchedule, p: usize, v: usize, m: usize) -> Vec<Vec<Action>> {
    let passes = runs(schedule, p, v, m).unwrap();
    passes.iter().enumerate().map(|(rank, list)| actions(list, (rank, p), v)).collect()
}

#[test]
fn every_list_ends_though_transfers_block() {
    let odd = [(OneForwardOneBackward, 16, 6, 376), (OneForwardOneBackward, 64, 1, 512), (ZbH1, 16, 3, 40)];
    for (schedule, p, v, m) in pipelines().chain(odd) {
        let lists = lists(schedule, p, v, m);
        verify(&lists, v, m).unwrap_or_else(|e| panic!("{}, {p}, {v}, {m}: {e}", schedule.name()));
        // A transfer of each microbatch over each of the edges between stages of two ranks, forward and backward.
        let edges = if p == 1 { 0 } else { p * v - 1 };
        let sent = lists.iter().flatten().filter(|a| matches!(a, Action::Send(_))).count();
        assert_eq!(sent, 2 * m * edges);
    }
}

/// Receives begin no earlier than they must: one pass later, and neighbors wait to send to each other.
#[test]
fn lists_that_receive_later_do_not_end() {
    for (schedule, p, m) in [(OneForwardOneBackward, 2, 2), (ZbH1, 3, 6)] {
        let mut lists = lists(schedule, p, 1, m);
        for list in &mut lists {
            list.retain(|action| !matches!(action, Action::Receive(_)));
            let begun = |action: &Action| match action {
                Action::Await(run) => vec![Action::Receive(*run), *action],
                _ => vec![*action],
            };
            *list = list.iter().flat_map(begun).collect();
        }
        assert!(verify(&lists, 1, m).unwrap_err().contains("for ever"), "{schedule:?}");
    }
    for schedule in [OneForwardOneBackward, ZbH1] {
        let passes = runs(schedule, 2, 2, 4).unwrap();
        let of = |(rank, list): (usize, &Vec<PassRun>)| actions_with(list, (rank, 2), 2, 1);
        let lists: Vec<Vec<Action>> = passes.iter().enumerate().map(of).collect();
        assert!(verify(&lists, 2, 4).unwrap_err().contains("for ever"), "{schedule:?}");
    }
}

#[test]
fn the_actions_of_two_ranks() {
    let text = |list: &[Action]| {
        let word = |a: &Action| match a {
            Action::PassRun(r) => format!("{:?}{}", r.pass, r.micro),
            Action::Receive(r) => format!("receive {:?}{}", r.pass, r.micro),
            Action::Await(r) => format!("await {:?}{}", r.pass, r.micro),
            Action::Send(r) => format!("send {:?}{}", r.pass, r.micro),
        };
        list.iter().map(word).collect::<Vec<_>>().join(", ")
    };
    let lists = lists(OneForwardOneBackward, 2, 1, 2);
    let first = "F0, send F0, receive B0, F1, send F1, await B0, receive B1, B0, await B1, B1";
    assert_eq!(text(&lists[0]), first);
    let second = "receive F0, await F0, F0, receive F1, B0, send B0, await F1, F1, B1, send B1";
    assert_eq!(text(&lists[1]), second);
}

#[test]
fn lists_that_are_wrong_are_found() {
    let changed = |schedule, change: &dyn Fn(&mut Vec<Vec<Action>>)| {
        let mut lists = lists(schedule, 3, 1, 4);
        change(&mut lists);
        verify(&lists, 1, 4).unwrap_err()
    };
    let place = |list: &[Action], action: Action| list.iter().position(|a| *a == action).unwrap();
    let run = |pass, micro| PassRun { pass, micro, chunk: 0 };
    let swapped = |schedule, rank: usize, first, second| {
        changed(schedule, &|l| {
            let (a, b) = (place(&l[rank], first), place(&l[rank], second));
            l[rank].swap(a, b);
        })
    };
    let [f, b, w] = [Pass::F, Pass::B, Pass::W].map(|pass| move |micro| Action::PassRun(run(pass, micro)));
    let one = OneForwardOneBackward;
    assert!(changed(one, &|l| l[1].truncate(2)).contains("does not have each pass"));
    assert!(swapped(one, 0, f(0), Action::Send(run(Pass::F, 0))).contains("before it has run"));
    assert!(
        swapped(one, 1, f(0), Action::Await(run(Pass::F, 0))).contains("before it has received F of stage 0")
    );
    assert!(swapped(one, 2, f(0), b(0)).contains("before its F"));
    assert!(swapped(one, 0, f(1), f(2)).contains("before it has run"));
    assert!(swapped(ZbH1, 1, b(0), w(0)).contains("before its B"));
    // The receiver wants the second first.
    let [first, second] = [0, 1].map(|micro| Action::Receive(run(Pass::F, micro)));
    assert!(swapped(one, 1, first, second).contains("where rank 0 sends"));
    let without = |rank: usize, action| {
        changed(one, &|l| {
            let at = place(&l[rank], action);
            l[rank].remove(at);
        })
    };
    assert!(without(0, Action::Send(run(Pass::F, 2))).contains("where rank 0 sends"));
    assert!(without(0, Action::Send(run(Pass::F, 3))).contains("for ever"));
    assert!(without(1, Action::Receive(run(Pass::F, 3))).contains("for ever"));
    assert!(without(1, Action::Await(run(Pass::F, 3))).contains("before it has received"));
}
