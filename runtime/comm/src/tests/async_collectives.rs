//! An asynchronous collective that is cancelled, and devices that do not agree.

use super::{errors, millis, on_all, tag, world};
use crate::{BufMut, Call, Collectives, CommError, Slot, Tag, Timeouts, Transport};
use meshwright_plan::Monoid;

#[expect(clippy::ptr_arg, reason = "the owner is a `Vec`")]
fn sum(b: &mut Vec<f32>) -> Call<'_> {
    Call::all_reduce(Monoid::Sum, vec![Slot::InPlace(BufMut::new(b))])
}

#[test]
fn a_dropped_handle_cancels_for_all() {
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
        t.start(&group, &tag(0), vec![1f32; 100_000], sum)?.wait().map(drop)
    });
    let [a, _, c] = errors(results).try_into().unwrap();
    assert!(matches!(&a, CommError::Cancelled { rank: 1, .. }), "{a}");
    assert_eq!(a, c);
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

#[test]
fn values_are_gathered_and_others_are_named() {
    let results = on_all(3, Timeouts::for_tests(), |mut t| {
        let (group, tag) = (world(&t), Tag::new(0, "values", 0));
        let mine = (t.rank(), "x".repeat(t.rank()));
        let all = t.gather_values(&group, &tag, &mine)?;
        assert_eq!(all, [(0, String::new()), (1, "x".into()), (2, "xx".into())]);
        // Rank 1 sends something else than what the others read.
        if t.rank() == 1 {
            t.gather_values(&group, &tag, &u8::MAX).map(drop)
        } else {
            t.gather_values(&group, &tag, &mine).map(drop)
        }
    });
    for (rank, error) in results.into_iter().enumerate().filter(|(rank, _)| *rank != 1) {
        let error = error.unwrap_err();
        assert!(matches!(&error, CommError::Malformed { rank: r, from: 1, .. } if *r == rank), "{error}");
    }
}
