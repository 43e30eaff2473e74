//! Ranks that die, stall, leave or go another way: an error for all, in time, that names who and what.

use super::{errors, millis, on_all, on_all_that_live, tag, world};
use crate::{
    Buf, BufMut, Call, CollectiveKind, Collectives, CommError, FaultInjector, Group, InjectedFault, Layout,
    Part, Slot, Tag, Timeouts, Transport,
};
use meshwright_plan::Monoid;
use std::time::{Duration, Instant};

/// So long nothing here waits, however busy the machine is: what takes longer waits for ever.
const ENDLESS: Duration = Duration::from_secs(60);

fn reduce(t: &mut impl Transport, sequence: u64, len: usize) -> Result<(), CommError> {
    let group = world(t);
    let mut data = vec![1f32; len];
    t.all_reduce(&group, &tag(sequence), Monoid::Sum, [BufMut::new(&mut data)])?;
    assert!(data.iter().all(|x| *x == t.size() as f32));
    Ok(())
}

#[test]
fn a_timeout_names_who_is_missing_and_where_it_is() {
    let begin = Instant::now();
    let results = on_all(3, Timeouts::all(millis(100)), |t| {
        let stalls = t.rank() == 2;
        let mut t = FaultInjector::new(t);
        if stalls {
            t = t.with_fault(1, InjectedFault::Stall(millis(300)));
        }
        (0..3).try_for_each(|i| reduce(&mut t, i, 100_000))
    });
    assert!(begin.elapsed() < ENDLESS);
    let errors = errors(results);
    assert!(errors.iter().all(|e| *e == errors[0]), "the late one hears the same: {errors:?}");
    let CommError::Timeout { rank, call, missing, .. } = &errors[0] else { panic!("{}", errors[0]) };
    assert!(*rank < 2);
    assert_eq!((call.tag.sequence, &*call.tag.what, call.tag.line), (1, "v1", 11));
    assert_eq!(missing.iter().map(|m| m.rank).collect::<Vec<_>>(), [2]);
    assert_eq!(missing[0].last_call.as_ref().unwrap().tag.sequence, 0);
    let text = errors[0].to_string();
    assert!(
        text.ends_with(
            " s in all_reduce #1 of `v1` at line 11; waiting for rank 2 (last call: all_reduce #0 of `v0` at line 10)"
        ),
        "{text}"
    );
}

#[test]
fn who_waits_in_turn_is_not_taken_for_the_stuck_one() {
    // Rank 3 is stuck; rank 1 waits for it, and 0 and 2 for rank 1: they began to wait first, so they time out first.
    let results = on_all(4, Timeouts::all(millis(200)), |mut t| {
        let rank = t.rank();
        let first = Group::new(if rank % 2 == 1 { [1, 3] } else { [0, 2] }, rank).unwrap();
        match rank {
            1 => std::thread::sleep(millis(100)),
            3 => {
                std::thread::sleep(millis(500));
                return t.barrier(&first, &tag(0));
            }
            _ => {}
        }
        t.barrier(&first, &tag(0))?;
        t.barrier(&Group::new([0, 1, 2], rank).unwrap(), &tag(1))
    });
    let error = results[0].clone().unwrap_err();
    let CommError::Timeout { missing, stuck, .. } = &error else { panic!("{error}") };
    assert_eq!(missing.iter().map(|m| m.rank).collect::<Vec<_>>(), [1]);
    assert_eq!(stuck.iter().map(|m| m.rank).collect::<Vec<_>>(), [3]);
    let text = error.to_string();
    assert!(text.ends_with(", itself blocked by rank 3 (no call yet)"), "{text}");
}

#[test]
fn of_ranks_that_wait_in_a_circle_the_one_behind_is_named() {
    let results = on_all(3, Timeouts::all(millis(100)), |mut t| {
        let rank = t.rank();
        let (pair, number) = [([0, 1], 5), ([1, 2], 4), ([2, 0], 6)][rank];
        t.barrier(&Group::new(pair, rank).unwrap(), &tag(number))
    });
    let timeouts = errors(results).into_iter().filter_map(|e| match e {
        CommError::Timeout { stuck, .. } => Some(stuck.iter().map(|m| m.rank).collect::<Vec<_>>()),
        _ => None,
    });
    let timeouts: Vec<_> = timeouts.collect();
    assert!(!timeouts.is_empty() && timeouts.iter().any(|stuck| *stuck == [1]), "{timeouts:?}");
}

#[test]
fn ranks_in_different_groups_time_out_and_say_so() {
    let results = on_all(2, Timeouts::all(millis(100)), |mut t| {
        let order = if t.rank() == 0 { [0, 1] } else { [1, 0] };
        let group = Group::new(order, t.rank()).unwrap();
        t.barrier(&group, &tag(7))
    });
    for error in errors(results) {
        assert!(matches!(&error, CommError::Timeout { .. } | CommError::Left { .. }), "{error}");
    }
}

#[test]
fn the_first_step_has_its_own_timeout() {
    let timeouts = Timeouts { first_step: Duration::from_secs(5), later: millis(50) };
    let results = on_all(2, timeouts, |mut t| {
        if t.rank() == 1 {
            std::thread::sleep(millis(150));
        }
        reduce(&mut t, 0, 10)?;
        t.first_step_done();
        if t.rank() == 1 {
            std::thread::sleep(millis(150));
        }
        reduce(&mut t, 1, 10)
    });
    for error in errors(results) {
        assert!(
            matches!(&error, CommError::Timeout { rank: 0, call, .. } if call.tag.sequence == 1),
            "{error}"
        );
    }
}

#[test]
fn an_abort_ends_pending_and_later_waits_of_all() {
    let begin = Instant::now();
    let results = on_all(5, Timeouts::for_tests(), |mut t| match t.rank() {
        1 => {
            std::thread::sleep(millis(50));
            t.abort("no space left on device");
            t.abort("something later");
            std::thread::sleep(millis(100));
            reduce(&mut t, 0, 10)
        }
        // Pending, in a group without the rank that ends, whose other member would come much later.
        2 => {
            let group = Group::new([2, 3], 2).unwrap();
            t.barrier(&group, &tag(0))
        }
        3 => {
            std::thread::sleep(millis(150));
            let group = Group::new([2, 3], 3).unwrap();
            t.barrier(&group, &tag(0))
        }
        4 => {
            std::thread::sleep(millis(150));
            let group = Group::new([4], 4).unwrap();
            t.barrier(&group, &tag(0))
        }
        _ => reduce(&mut t, 0, 100_000),
    });
    assert!(begin.elapsed() < ENDLESS);
    for error in errors(results) {
        let CommError::Aborted { rank: 1, reason, .. } = &error else { panic!("{error}") };
        assert_eq!(reason, "no space left on device");
    }
}

#[test]
fn a_panic_ends_all() {
    let begin = Instant::now();
    for at in 0..3 {
        let results = on_all_that_live(3, |t| {
            let panics = t.rank() == 1;
            let mut t = FaultInjector::new(t);
            if panics {
                t = t.with_fault(at, InjectedFault::Panic);
            }
            (0..4).try_for_each(|i| reduce(&mut t, i, 10_000))
        });
        assert_eq!(results[1], None);
        for error in errors(results.into_iter().flatten().collect()) {
            assert_eq!(
                error.to_string(),
                format!(
                    "rank 1 ended: its thread panicked, while this rank was in all_reduce #{at} of `v{at}` at line {}",
                    10 + at
                )
            );
        }
    }
    assert!(begin.elapsed() < ENDLESS);
}

#[test]
fn a_panic_with_collectives_in_flight_ends_all() {
    let begin = Instant::now();
    let results = on_all_that_live(2, |mut t| {
        let group = world(&t);
        let data = vec![1f64; 100_000];
        let started = t.start(&group, &tag(0), data, |d| {
            Call::all_reduce(Monoid::Sum, vec![Slot::InPlace(BufMut::new(d))])
        });
        assert_ne!(t.rank(), 1, "on purpose");
        let first = started.and_then(|s| s.wait()).map(drop);
        first.and_then(|()| t.barrier(&group, &tag(1)))
    });
    assert!(begin.elapsed() < ENDLESS);
    let error = results[0].clone().unwrap().unwrap_err();
    assert!(matches!(&error, CommError::Aborted { rank: 1, .. }), "{error}");
    assert_eq!(results[1], None);
}

#[test]
fn who_leaves_is_missed_only_where_it_is_needed() {
    let begin = Instant::now();
    let results = on_all(3, Timeouts::for_tests(), |mut t| {
        reduce(&mut t, 0, 10)?;
        if t.rank() == 2 {
            return Ok(());
        }
        std::thread::sleep(millis(20));
        let pair = Group::new([0, 1], t.rank()).unwrap();
        let mut data = [1i32];
        t.all_reduce(&pair, &tag(1), Monoid::Sum, [BufMut::new(&mut data)])?;
        assert_eq!(data, [2]);
        reduce(&mut t, 2, 10)
    });
    assert!(begin.elapsed() < ENDLESS);
    assert_eq!(results[2], Ok(()));
    for result in &results[..2] {
        assert!(
            matches!(result, Err(CommError::Left { rank: 2, call }) if call.tag.sequence == 2),
            "{result:?}"
        );
    }
}

#[test]
fn another_order_is_a_mismatch() {
    let results = on_all(3, Timeouts::for_tests(), |t| {
        let skips = t.rank() == 1;
        let mut t = FaultInjector::new(t);
        if skips {
            t = t.with_fault(1, InjectedFault::Skip);
        }
        let group = world(&t);
        for i in 0..4 {
            t.barrier(&group, &tag(i))?;
        }
        Ok(())
    });
    for error in errors(results) {
        let CommError::Mismatch(mismatch) = &error else { panic!("{error}") };
        assert_eq!(mismatch.what, "sequence number");
        assert!(mismatch.sides.iter().any(|s| s.rank == 1));
        let mut sequences = mismatch.sides.each_ref().map(|s| s.call.tag.sequence);
        sequences.sort_unstable();
        assert_eq!(sequences, [1, 2]);
    }
}

/// Two devices make different calls: both hear what differs.
fn mismatch(what: &str, call: impl for<'x> Fn(usize, &'x [f32], &'x mut [f32]) -> Call<'x> + Sync) {
    let results = on_all(2, Timeouts::for_tests(), |mut t| {
        let (input, mut output) = (vec![1f32; 4], vec![0f32; 4]);
        let (group, rank) = (world(&t), t.rank());
        t.call(&group, &tag(3), call(rank, &input, &mut output))
    });
    for error in errors(results) {
        let CommError::Mismatch(mismatch) = &error else { panic!("{error}") };
        assert_eq!((mismatch.what, mismatch.sides.each_ref().map(|s| s.rank)), (what, [0, 1]), "{error}");
    }
}

#[test]
fn calls_that_do_not_belong_together() {
    fn slot(buffer: &mut [f32]) -> Vec<Slot<'_>> {
        vec![Slot::InPlace(BufMut::new(buffer))]
    }
    mismatch("kind of collective", |rank, _, b| match rank {
        0 => Call::barrier(),
        _ => Call::broadcast(0, BufMut::new(b)),
    });
    mismatch("counts", |rank, _, b| Call::all_reduce(Monoid::Sum, slot(&mut b[..3 + rank])));
    mismatch("monoid", |rank, _, b| Call::all_reduce([Monoid::Sum, Monoid::Max][rank], slot(b)));
    mismatch("number of buffers", |rank, _, b| {
        Call::all_reduce(Monoid::Sum, if rank == 0 { Vec::new() } else { slot(b) })
    });
    mismatch("counts", |rank, a, b| {
        Call::all_gather(
            Buf::new(&a[..[1, 3][rank]]),
            [vec![1, 2], vec![1, 3]][rank].clone(),
            BufMut::new(&mut b[..3 + rank]),
        )
    });
    mismatch("counts", |rank, a, b| {
        Call::all_to_all(
            (Buf::new(&a[..2]), vec![1, 1]),
            (BufMut::new(&mut b[..[2, 3][rank]]), [vec![1, 1], vec![2, 1]][rank].clone()),
        )
    });
    mismatch("counts", |rank, a, b| {
        Call::permute(
            (Buf::new(a), vec![Part { peer: 1 - rank, range: 0..2 }]),
            (BufMut::new(b), vec![Part { peer: 1 - rank, range: 0..2 + rank }]),
        )
    });
    mismatch("root", |rank, _, b| Call::broadcast(rank, BufMut::new(b)));
}

#[test]
fn a_mismatch_of_dtypes_shows_both_calls() {
    let results = on_all(2, Timeouts::for_tests(), |mut t| {
        let (group, tag) = (world(&t), Tag::new(17, "h1", 20));
        match t.rank() {
            0 => t.all_reduce(&group, &tag, Monoid::Sum, [BufMut::new(&mut [1f32, 2.0])]),
            _ => t.all_reduce(&group, &tag, Monoid::Sum, [BufMut::new(&mut [1f64, 2.0])]),
        }
    });
    for error in errors(results) {
        assert_eq!(
            error.to_string(),
            "rank 0 and rank 1 disagree on the dtype: all_reduce #17 of `h1` at line 20 (sum of [2 f32]) against \
             all_reduce #17 of `h1` at line 20 (sum of [2 f64])"
        );
    }
}

#[test]
fn bad_arguments_are_errors_of_the_caller() {
    let mut t = crate::World::new(3, Timeouts::for_tests()).remove(0);
    let (group, pair) = (world(&t), Group::new([0, 7], 0).unwrap());
    let (a, mut b) = ([1f32; 4], [0f32; 4]);
    let mut refuse = |group: &Group, call: Call<'_>| {
        let result = t.call(group, &tag(0), call);
        assert!(matches!(&result, Err(CommError::InvalidCall { rank: 0, .. })), "{result:?}");
    };
    for counts in [vec![4, 0], vec![3, 1, 0], vec![4, usize::MAX, 1], vec![4, 1, 0]] {
        let (input, output) = (Buf::new(&a), BufMut::new(&mut b));
        refuse(&group, Call::all_gather(input, counts, output));
    }
    let (counts, mut ints) = (vec![4, 0, 0], [0i32; 4]);
    refuse(&group, Call::all_gather(Buf::new(&a), counts, BufMut::new(&mut ints)));
    refuse(&group, Call::broadcast(3, BufMut::new(&mut b)));
    refuse(&pair, Call::barrier());
    refuse(&Group::new([0, 1], 1).unwrap(), Call::barrier());
    let part = |peer, range| Part { peer, range };
    for receive in [vec![part(0, 0..2), part(1, 1..3)], vec![part(0, 0..5)], vec![part(3, 0..1)]] {
        let (input, output) = (Buf::new(&a), BufMut::new(&mut b));
        refuse(&group, Call::permute((input, []), (output, receive)));
    }
    // To itself: more than there is room for, in a group and alone.
    let alone = Group::new([0], 0).unwrap();
    for (group, send, receive) in
        [(&group, [3, 1, 0].to_vec(), [1, 3, 0].to_vec()), (&alone, vec![4], vec![2])]
    {
        let to = receive.iter().sum();
        let (input, output) = (Buf::new(&a), BufMut::new(&mut b[..to]));
        refuse(group, Call::all_to_all((input, send), (output, receive)));
        let (input, output) = (Buf::new(&a), BufMut::new(&mut b[..2]));
        let (send, receive) = (vec![part(0, 0..4)], vec![part(0, 0..2)]);
        refuse(group, Call::permute((input, send), (output, receive)));
    }
    assert!(Group::new([0, 1, 0], 0).is_err() && Group::new([1, 2], 0).is_err());
}

/// Whatever is put together by hand is refused where two members would write to the same place, or nothing says what to write.
#[test]
fn layouts_that_no_collective_has_are_refused() {
    let mut t = crate::World::new(2, Timeouts::for_tests()).remove(0);
    let group = world(&t);
    let (a, mut b) = ([1f32; 4], [0f32; 4]);
    for (monoid, root, send, receive) in [
        (None, None, Layout::Whole, Layout::Whole),
        (None, Some(0), Layout::Whole, Layout::Pieces(vec![4, 0].into())),
        (Some(Monoid::Sum), Some(0), Layout::Whole, Layout::Whole),
        (Some(Monoid::Sum), None, Layout::Whole, Layout::Pieces(vec![4, 0].into())),
        (Some(Monoid::Sum), None, Layout::Parts([].into()), Layout::Whole),
    ] {
        let slots = vec![Slot::Apart(Buf::new(&a), BufMut::new(&mut b))];
        let call = Call { kind: CollectiveKind::Permute, monoid, root, send, receive, slots };
        let result = t.call(&group, &tag(0), call);
        assert!(matches!(&result, Err(CommError::InvalidCall { rank: 0, .. })), "{result:?}");
    }
}
