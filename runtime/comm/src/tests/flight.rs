//! Several collectives in flight, and handles that are dropped or leaked.

use super::{errors, millis, on_all, tag, world};
use crate::{Buf, BufMut, Call, Collectives, CommError, Faulty, Group, Slot, Tag, Timeouts, Transport};
use meshwright_plan::Monoid;

#[expect(clippy::ptr_arg, reason = "the owner is a `Vec`")]
fn sum(b: &mut Vec<f32>) -> Call<'_> {
    Call::AllReduce { monoid: Monoid::Sum, bucket: vec![Slot::InPlace(BufMut::new(b))] }
}

#[test]
fn several_in_flight_finish_in_any_order() {
    on_all(4, Timeouts::for_tests(), |t| {
        let rank = t.rank();
        let (all, pair) = (world(&t), Group::new([rank & 2, rank | 1 | (rank & 2)], rank).unwrap());
        let mut t = Faulty::new(t).with_delays(rank as u64, millis(1));
        for round in 0..20 {
            let mut started = Vec::new();
            for i in 0..6u64 {
                let group = if i % 2 == 0 { &all } else { &pair };
                let data = vec![(rank + 1) as f32 * (i + 1) as f32; 3 + 30_000 * (i as usize % 3)];
                started.push((i, t.start(group, &tag(round * 10 + i), data, sum).unwrap()));
            }
            let pieces = (vec![rank as u8], vec![9u8; 4]);
            let gather = t.start(&all, &tag(round * 10 + 6), pieces, |(piece, whole)| Call::AllGather {
                input: Buf::new(piece),
                counts: vec![1; 4].into(),
                output: BufMut::new(whole),
            });
            // Each device finishes in another order.
            let by = rank + round as usize;
            started.rotate_left(by % 6);
            if by.is_multiple_of(2) {
                started.reverse();
            }
            for (i, handle) in started {
                let ranks = if i % 2 == 0 { 10.0 } else { [3.0, 7.0][rank / 2] };
                let got = handle.finish().unwrap();
                assert!(got.iter().all(|x| *x == ranks * (i + 1) as f32), "{got:?}");
            }
            assert_eq!(gather.unwrap().finish().unwrap().1, [0, 1, 2, 3]);
        }
    });
}

#[test]
fn a_dropped_handle_withdraws_for_all() {
    let results = on_all(3, Timeouts::for_tests(), |mut t| {
        let group = world(&t);
        if t.rank() == 1 {
            std::thread::sleep(millis(30));
            drop(t.start(&group, &tag(0), vec![1f32; 100_000], sum)?);
            std::thread::sleep(millis(200));
            return t.barrier(&group, &tag(1));
        }
        if t.rank() == 2 {
            std::thread::sleep(millis(100));
        }
        t.start(&group, &tag(0), vec![1f32; 100_000], sum)?.finish().map(drop)
    });
    let [a, _, c] = errors(results).try_into().unwrap();
    assert!(matches!(&a, CommError::Withdrawn { rank: 1, .. }), "{a}");
    assert_eq!(a, c);
}

#[test]
fn a_leaked_handle_keeps_its_memory() {
    let results = on_all(3, Timeouts::for_tests(), |mut t| {
        let group = world(&t);
        let started = t.start(&group, &tag(0), vec![t.rank() as f32; 200_000], sum)?;
        if t.rank() == 2 {
            std::mem::forget(started);
            return Ok(0.0);
        }
        started.finish().map(|sum| sum[199_999])
    });
    assert_eq!(results, [Ok(3.0), Ok(3.0), Ok(0.0)]);
}

#[test]
fn an_unfinished_device_may_drop_after_all_have_come() {
    on_all(3, Timeouts::for_tests(), |mut t| {
        let group = world(&t);
        for i in 0..50 {
            let started = t.start(&group, &tag(2 * i), vec![1f32; 50_000], sum).unwrap();
            t.barrier(&group, &tag(2 * i + 1)).unwrap();
            if (i as usize + t.rank()).is_multiple_of(2) {
                drop(started);
            } else {
                assert_eq!(started.finish().unwrap()[49_999], 3.0);
            }
        }
    });
}

#[test]
fn devices_that_agree_and_that_do_not() {
    let check = |hashes: [&'static [u8]; 4]| {
        on_all(4, Timeouts::for_tests(), move |mut t| {
            let (group, tag) = (world(&t), Tag::new(0, "plan", 0));
            let hash = hashes[t.rank()];
            t.agree(&group, &tag, hash)
        })
    };
    assert!(check([b"abc"; 4]).iter().all(Result::is_ok));
    for odd in [&b"abd"[..], b"", b"abcd"] {
        for error in errors(check([b"abc", b"abc", odd, b"abc"])) {
            assert_eq!(error.to_string(), "the plan differs on rank 2 from the one on rank 0");
        }
    }
    for error in errors(check([b"x", b"abc", b"abc", b"abc"])) {
        assert_eq!(error, CommError::Disagree { what: "plan".into(), ranks: vec![0], like: 1 });
    }
    for error in errors(check([b"x", b"y", b"x", b"y"])) {
        assert_eq!(error, CommError::Disagree { what: "plan".into(), ranks: vec![1, 3], like: 0 });
    }
}
