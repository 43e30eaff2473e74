//! Nothing hangs, and errors name rank, call and line.

use super::{fake, on_gpus, on_these, options, tag, world};
use crate::TransportMemory;
use crate::nccl::{Checks, LaunchOrder, NcclOptions, NcclTransport};
use crate::{
    Buf, BufMut, Call, CallName, CollectiveKind, Collectives, CommError, Group, MemorySpace, Timeouts,
    Transport, ValueIndexF32, World,
};
use meshwright_plan::{Axis, DType, Mesh, Monoid};
use std::time::{Duration, Instant};

/// So long nothing here waits, however busy the machine is: what takes longer waits for ever.
const ENDLESS: Duration = Duration::from_secs(60);

fn short() -> NcclOptions {
    let timeouts = Timeouts { first_step: Duration::from_secs(5), later: Duration::from_millis(400) };
    options(timeouts)
}

/// Sums, then waits for the result on the host.
fn sum(t: &mut NcclTransport, sequence: u64, len: usize) -> Result<(), CommError> {
    let group = world(t);
    let mut memory = t.memory(len, DType::F32)?;
    memory.write(&vec![0; len * 4])?;
    t.all_reduce(&group, &tag(sequence), Monoid::Sum, [memory.buf_mut()])?;
    t.settle()
}

fn name(kind: CollectiveKind, sequence: u64) -> CallName {
    CallName::new(kind, &tag(sequence))
}

/// One GPU of three stalls in its third collective: somebody says where, and all end.
#[test]
fn a_stalled_gpu_ends_all_within_the_timeout() {
    let first = fake::gpus(3);
    fake::fault(&format!("stall:gpu{}:call2", first + 1));
    let begin = Instant::now();
    let results = on_these(&[first, first + 1, first + 2], &short(), |mut t| {
        sum(&mut t, 0, 100)?;
        t.first_step_done();
        sum(&mut t, 1, 100)?;
        sum(&mut t, 2, 100)
    });
    assert!(begin.elapsed() < ENDLESS);
    let mut timeouts = 0;
    for error in results.into_iter().map(Result::unwrap_err) {
        match error {
            CommError::Timeout { call, waited, missing, .. } => {
                assert_eq!(call, name(CollectiveKind::AllReduce, 2));
                assert!(waited >= Duration::from_millis(400));
                // All have called; a device has not got there.
                assert!(missing.is_empty(), "{missing:?}");
                timeouts += 1;
            }
            CommError::Aborted { reason, call, .. } => {
                assert!(reason.contains("all_reduce #2 of `v2` at line 12"), "{reason}");
                assert!(call.is_none_or(|c| c == name(CollectiveKind::AllReduce, 2)));
            }
            other => panic!("{other}"),
        }
    }
    assert!(timeouts > 0);
}

/// A collective of all stalls, and others are queued behind it on communicators of their own: an abort of one of those waits
/// for the stream, so all must be told at once.
#[test]
fn collectives_behind_one_that_stalls_end_too() {
    let first = fake::gpus(4);
    fake::fault(&format!("stall:gpu{}:call2", first + 3));
    let gpus: Vec<u32> = (first..first + 4).collect();
    let begin = Instant::now();
    let results = on_these(&gpus, &short(), |mut t| {
        let mesh = Mesh::new([("r", 2), ("c", 2)]);
        let sets = [vec![Axis(0)], vec![Axis(1)], vec![Axis(0), Axis(1)]];
        t.prepare(&mesh, &sets)?;
        let row = Group::of_mesh(&mesh, t.rank(), &sets[1]).unwrap();
        let column = Group::of_mesh(&mesh, t.rank(), &sets[0]).unwrap();
        let mut memory = t.memory(100, DType::F32)?;
        sum(&mut t, 0, 100)?;
        t.first_step_done();
        sum(&mut t, 1, 100)?;
        for (i, group) in [world(&t), row, column].iter().enumerate() {
            t.all_reduce(group, &tag(2 + i as u64), Monoid::Sum, [memory.buf_mut()])?;
        }
        t.settle()
    });
    assert!(begin.elapsed() < ENDLESS);
    assert!(results.iter().all(Result::is_err), "{results:?}");
    assert!(results.iter().any(|r| matches!(r, Err(CommError::Timeout { .. }))), "{results:?}");
}

/// In the order of the device a call ends before it is over: the error comes at the next one.
#[test]
fn an_error_that_comes_later_is_told_by_the_next_call() {
    let first = fake::gpus(2);
    fake::fault(&format!("stall:gpu{first}:call1"));
    let results = on_these(&[first, first + 1], &short(), |mut t| {
        sum(&mut t, 0, 10)?;
        t.first_step_done();
        let group = world(&t);
        let mut memory = t.memory(10, DType::F32)?;
        let bucket = [memory.buf_mut()];
        let ended = t.all_reduce(&group, &tag(1), Monoid::Sum, bucket);
        assert_eq!(ended, Ok(()));
        std::thread::sleep(Duration::from_millis(900));
        let bucket = [memory.buf_mut()];
        t.all_reduce(&group, &tag(2), Monoid::Sum, bucket)
    });
    for error in results.into_iter().map(Result::unwrap_err) {
        assert!(error.to_string().contains("all_reduce #1 of `v1` at line 11"), "{error}");
    }
}

/// A rank that does not come is named, with the call that it made last.
#[test]
fn a_rank_that_does_not_come_is_named() {
    let results = on_gpus(3, &short(), |mut t| {
        sum(&mut t, 7, 10)?;
        t.first_step_done();
        if t.rank() == 1 {
            std::thread::sleep(Duration::from_millis(1200));
            return sum(&mut t, 8, 10);
        }
        sum(&mut t, 8, 10)
    });
    let named = results.iter().filter(|r| match r {
        Err(CommError::Timeout { missing, .. }) => {
            let [m] = missing.as_slice() else { panic!("{missing:?}") };
            assert_eq!((m.rank, m.last_call.as_ref()), (1, Some(&name(CollectiveKind::AllReduce, 7))));
            true
        }
        Err(CommError::Aborted { .. }) => false,
        other => panic!("{other:?}"),
    });
    assert!(named.count() > 0);
    let error = results[1].as_ref().unwrap_err().to_string();
    assert!(error.contains("rank 1 (last call: all_reduce #7 of `v7` at line 17)"), "{error}");
}

/// In the first step the control plane waits, and speaks of the call that it waits for.
#[test]
fn in_the_first_step_too() {
    let results = on_gpus(2, &options(Timeouts::all(Duration::from_millis(500))), |mut t| {
        sum(&mut t, 0, 10)?;
        if t.rank() == 1 {
            std::thread::sleep(Duration::from_millis(1500));
        }
        sum(&mut t, 1, 10)
    });
    let Err(CommError::Timeout { rank: 0, call, missing, .. }) = &results[0] else { panic!("{results:?}") };
    assert_eq!(*call, name(CollectiveKind::AllReduce, 1));
    assert_eq!(
        (missing[0].rank, missing[0].last_call.as_ref()),
        (1, Some(&name(CollectiveKind::AllReduce, 0)))
    );
}

#[test]
fn an_asynchronous_error_has_the_words_of_nccl() {
    let first = fake::gpus(2);
    fake::fault(&format!("error:gpu{}:call1", first + 1));
    let results = on_these(&[first, first + 1], &short(), |mut t| {
        sum(&mut t, 0, 10)?;
        sum(&mut t, 1, 10)
    });
    let error = results[1].as_ref().unwrap_err();
    assert!(matches!(error, CommError::Library { rank: 1, .. }), "{error}");
    let words = "rank 1: `a collective` of NCCL failed: remote process exited or there was a network error: a fault on \
                 purpose: the other side is gone, while this rank was in all_reduce #1 of `v1` at line 11";
    assert_eq!(error.to_string(), words);
    let other = results[0].as_ref().unwrap_err();
    assert!(other.is_consequence(), "{other}");
}

#[test]
fn a_refused_call_fails_at_once() {
    let first = fake::gpus(2);
    fake::fault(&format!("refuse:gpu{first}:call0"));
    let results = on_these(&[first, first + 1], &short(), |mut t| sum(&mut t, 0, 10));
    let error = results[0].as_ref().unwrap_err().to_string();
    assert!(error.contains("`ncclGroupEnd` of NCCL failed: unhandled system error"), "{error}");
    assert!(error.contains("refused on purpose"), "{error}");
    assert!(results[1].as_ref().unwrap_err().is_consequence());
}

#[test]
fn different_calls_are_compared_in_the_first_step() {
    let results = on_gpus(3, &short(), |mut t| {
        let len = if t.rank() == 2 { 11 } else { 10 };
        sum(&mut t, 4, len)
    });
    for error in results.into_iter().map(Result::unwrap_err) {
        let words = "rank 0 and rank 2 disagree on the counts: all_reduce #4 of `v4` at line 14 (sum of [10 f32]) against \
                     all_reduce #4 of `v4` at line 14 (sum of [11 f32])";
        assert!(matches!(error, CommError::Mismatch(_)), "{error}");
        assert_eq!(error.to_string(), words);
    }
}

#[test]
fn other_kinds_are_compared_too() {
    let results = on_gpus(2, &short(), |mut t| {
        let group = world(&t);
        let mut memory = t.memory(4, DType::F32)?;
        if t.rank() == 0 {
            t.broadcast(&group, &tag(1), 0, memory.buf_mut())
        } else {
            t.all_reduce(&group, &tag(1), Monoid::Max, [memory.buf_mut()])
        }
    });
    for error in results.into_iter().map(Result::unwrap_err) {
        assert!(error.to_string().contains("disagree on the kind of collective: broadcast #1"), "{error}");
    }
}

/// Without comparing, the stand-in itself notices what NCCL would not.
#[test]
fn different_calls_end_all_even_unchecked() {
    let options = NcclOptions { checks: Checks::Never, ..short() };
    let results = on_gpus(2, &options, |mut t| {
        let len = 10 + t.rank();
        sum(&mut t, 4, len)
    });
    assert!(results.iter().all(Result::is_err));
    assert!(results.iter().any(|r| r.as_ref().unwrap_err().to_string().contains("made different calls")));
}

#[test]
fn an_abort_ends_the_waits_of_others() {
    let begin = Instant::now();
    let results = on_gpus(2, &options(Timeouts::all(Duration::from_secs(60))), |mut t| {
        sum(&mut t, 0, 10)?;
        t.first_step_done();
        if t.rank() == 1 {
            std::thread::sleep(Duration::from_millis(100));
            t.abort("the data set ended");
            return Ok(());
        }
        sum(&mut t, 1, 10)
    });
    assert!(begin.elapsed() < ENDLESS);
    let error = results[0].as_ref().unwrap_err().to_string();
    assert!(error.contains("rank 1 ended: the data set ended"), "{error}");
}

#[test]
fn a_panic_ends_all() {
    let results = on_gpus(2, &options(Timeouts::all(Duration::from_secs(60))), |mut t| {
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
            sum(&mut t, 0, 10)?;
            t.first_step_done();
            if t.rank() == 1 {
                // Not a message of the test's own.
                std::panic::resume_unwind(Box::new("a panic on purpose"));
            }
            sum(&mut t, 1, 10)
        }))
        .ok()
    });
    assert!(results[1].is_none());
    let error = results[0].as_ref().unwrap().as_ref().unwrap_err().to_string();
    assert!(error.contains("rank 1 ended: its thread panicked"), "{error}");
}

/// A transport is dropped while a collective is in flight to which the other never comes.
#[test]
fn a_drop_ends_within_the_timeout() {
    let begin = Instant::now();
    on_gpus(2, &short(), |mut t| {
        sum(&mut t, 0, 10).unwrap();
        t.first_step_done();
        if t.rank() == 0 {
            let group = world(&t);
            let mut memory = t.memory(10, DType::F32).unwrap();
            t.all_reduce(&group, &tag(1), Monoid::Sum, [memory.buf_mut()]).unwrap();
        } else {
            std::thread::sleep(Duration::from_millis(1500));
        }
    });
    assert!(begin.elapsed() < ENDLESS);
}

#[test]
fn memory_is_used_where_it_is() {
    let other = fake::gpus(1);
    on_gpus(1, &short(), |mut t| {
        let group = world(&t);
        let mut memory = t.memory(4, DType::F32).unwrap();
        let mut host = [0f32; 4];
        #[expect(unsafe_code, reason = "memory that is never touched")]
        // SAFETY: the call is refused.
        let elsewhere = unsafe { BufMut::device(memory.address(), 4, DType::F32, other) };
        let bad = t.broadcast(&group, &tag(0), 0, elsewhere).unwrap_err().to_string();
        assert!(bad.contains(&format!("memory of GPU {other}, but rank 0 has GPU")), "{bad}");
        let bad = t.all_gather_v(&group, &tag(0), Buf::new(&[0f32; 4]), [4], memory.buf_mut()).unwrap_err();
        assert!(bad.to_string().contains("part of the memory is host memory, part memory of GPU"), "{bad}");
        // Host memory goes by the control plane.
        t.broadcast(&group, &tag(0), 0, BufMut::new(&mut host)).unwrap();
        t.agree(&group, &tag(0), b"plan").unwrap();
    });
    let mut threads = World::new(1, Timeouts::for_tests()).remove(0);
    let group = Group::world(1, 0).unwrap();
    #[expect(unsafe_code, reason = "memory that is never touched")]
    // SAFETY: the call is refused.
    let device = unsafe { BufMut::device(64, 4, DType::F32, 0) };
    let bad = threads.broadcast(&group, &tag(0), 0, device).unwrap_err().to_string();
    assert!(bad.contains("memory of GPU 0, which this transport cannot reach"), "{bad}");
}

#[test]
fn arg_reductions_are_refused_and_known_to_be() {
    on_gpus(2, &short(), |mut t| {
        let (group, there) = (world(&t), MemorySpace::Device(t.ordinal()));
        assert!(!t.folds(Monoid::ArgMax, DType::PairF32, there));
        assert!(t.folds(Monoid::ArgMax, DType::PairF32, MemorySpace::Host));
        assert!(t.folds(Monoid::Sum, DType::BF16, there) && t.folds(Monoid::And, DType::Bool, there));
        let mut memory = t.memory(4, DType::PairF32).unwrap();
        let refused = t.all_reduce(&group, &tag(0), Monoid::ArgMax, [memory.buf_mut()]);
        assert!(matches!(refused, Err(CommError::NoFold { monoid: Monoid::ArgMax, .. })), "{refused:?}");
        let mut pairs = [ValueIndexF32 { value: t.rank() as f32, index: 0 }];
        t.all_reduce(&group, &tag(1), Monoid::ArgMax, [BufMut::new(&mut pairs)]).unwrap();
        assert_eq!(pairs[0].value, 1.0);
    });
}

#[test]
fn two_ranks_that_share_a_gpu_need_leave_of_nccl() {
    let gpu = fake::gpus(1);
    let ends = World::new(2, Timeouts::for_tests());
    let options = options(Timeouts::for_tests());
    let results = std::thread::scope(|scope| {
        let options = &options;
        let start = |control| {
            scope.spawn(move || {
                let mut t = NcclTransport::new(Box::new(control), gpu, options)?;
                // All ranks wait on the host, whatever they asked for.
                assert_eq!(t.launch_order(), LaunchOrder::HostSync);
                assert!(t.note().unwrap().contains("ranks 0 and 1 of one process share a GPU"));
                sum(&mut t, 0, 4)
            })
        };
        let threads: Vec<_> = ends.into_iter().map(start).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect::<Vec<Result<(), CommError>>>()
    });
    let told = results.iter().any(|r| r.as_ref().unwrap_err().to_string().contains("Duplicate GPU detected"));
    assert!(told, "{results:?}");
}

#[test]
fn a_missing_library_is_named_and_ends_all() {
    let ends = World::new(2, Timeouts::all(Duration::from_secs(60)));
    let good = options(Timeouts::all(Duration::from_secs(60)));
    let mut bad = good.clone();
    bad.paths.nccl = Some("/nowhere/libnccl.so.2".into());
    let first = fake::gpus(2);
    let results: Vec<_> = std::thread::scope(|scope| {
        let (good, bad) = (&good, &bad);
        let start = |control: crate::ThreadsTransport| {
            scope.spawn(move || {
                let rank = control.rank();
                let options = if rank == 1 { bad } else { good };
                NcclTransport::new(Box::new(control), first + rank as u32, options).map(drop)
            })
        };
        let threads: Vec<_> = ends.into_iter().map(start).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    let error = results[1].as_ref().unwrap_err().to_string();
    assert!(error.contains("rank 1: NCCL was not found: tried /nowhere/libnccl.so.2 ("), "{error}");
    assert!(error.contains("nvidia-nccl-cu13"), "{error}");
    assert!(results[0].as_ref().unwrap_err().is_consequence(), "{results:?}");
}

#[test]
fn a_gpu_that_is_not_there_is_named() {
    let control = World::new(1, Timeouts::for_tests()).remove(0);
    let Err(error) = NcclTransport::new(Box::new(control), 5000, &options(Timeouts::for_tests())) else {
        panic!("there is no such GPU")
    };
    assert!(error.to_string().contains("there is no GPU 5000: this process sees 1024"), "{error}");
}

/// A group of one copies on its stream.
#[test]
fn a_group_of_one_copies() {
    on_gpus(1, &short(), |mut t| {
        let group = world(&t);
        let (mut from, mut to) = (t.memory(4, DType::I32).unwrap(), t.memory(4, DType::I32).unwrap());
        let data = [1, 2, 3, 4i32].map(i32::to_ne_bytes).concat();
        from.write(&data).unwrap();
        t.all_gather_v(&group, &tag(0), from.buf(), [4], to.buf_mut()).unwrap();
        let mut got = [0; 16];
        to.read(&mut got).unwrap();
        assert_eq!(got[..], data[..]);
        t.call(&group, &tag(1), Call::barrier()).unwrap();
    });
}
