//! Devices that fail on purpose, for transports whose devices are processes: each failure takes a world of its own.

use super::tag;
use meshwright_comm::{BufMut, Call, Collectives, CommError, Group, Slot, Transport};
use meshwright_plan::Monoid;
use std::time::Duration;

/// What a device does on purpose; at least four devices are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessFault {
    /// Rank 1 folds elements of another dtype.
    Dtype,
    /// Rank 1 leaves a call out.
    Skip,
    /// Rank 2 comes too late.
    Stall,
    /// Rank 3 is late; rank 1 waits for it, and the others for rank 1.
    InTurn,
    /// Three ranks wait for each other in a circle.
    Circle,
    /// Rank 2 ends in order, too early.
    Leave,
    /// Rank 1 gives a collective up.
    Cancel,
    /// Rank 1 aborts.
    Abort,
    /// Rank 1 panics.
    Panic,
    /// Rank 1 is killed while rank 0 waits to set up a communicator with it, for which it is not ready.
    Unready,
    /// A first collective of two groups, where rank 1 is killed in the library (`tests/fake-mpi`).
    Groups,
    /// The library refuses a send of rank 1, after others (`tests/fake-mpi`).
    Refused,
    /// It refuses to say how these go on (`tests/fake-mpi`).
    Doubted,
    /// Nothing, but without end: for faults from outside.
    Endless,
}

impl ProcessFault {
    /// All of them, with their names.
    pub const ALL: [(&'static str, ProcessFault); 14] = [
        ("dtype", ProcessFault::Dtype),
        ("skip", ProcessFault::Skip),
        ("stall", ProcessFault::Stall),
        ("in-turn", ProcessFault::InTurn),
        ("circle", ProcessFault::Circle),
        ("leave", ProcessFault::Leave),
        ("cancel", ProcessFault::Cancel),
        ("abort", ProcessFault::Abort),
        ("panic", ProcessFault::Panic),
        ("unready", ProcessFault::Unready),
        ("groups", ProcessFault::Groups),
        ("refused", ProcessFault::Refused),
        ("doubted", ProcessFault::Doubted),
        ("endless", ProcessFault::Endless),
    ];
}

/// Plays this device's part. Errors are what a device must then report.
pub fn play(t: &mut dyn Transport, fault: ProcessFault) -> Result<(), CommError> {
    let rank = t.rank();
    let size = t.size();
    let group = |ranks: &[usize]| group(size, rank, ranks);
    let (all, pairs) = (group(&[])?, group(if rank.is_multiple_of(2) { &[0, 2] } else { &[1, 3] })?);
    let late = Duration::from_secs(6);
    reduce(t, &all, 0)?;
    match fault {
        ProcessFault::Dtype => {
            if rank == 1 {
                t.all_reduce(&all, &tag(1), Monoid::Sum, [BufMut::new(&mut [1f64])])
            } else {
                t.all_reduce(&all, &tag(1), Monoid::Sum, [BufMut::new(&mut [1f32])])
            }
        }
        ProcessFault::Skip => {
            (1..5).filter(|i| (rank, *i) != (1, 2)).try_for_each(|i| t.barrier(&all, &tag(i)))
        }
        ProcessFault::Stall => {
            if rank == 2 {
                std::thread::sleep(late);
            }
            reduce(t, &all, 1)
        }
        ProcessFault::InTurn => {
            match rank {
                1 => std::thread::sleep(Duration::from_millis(300)),
                3 => std::thread::sleep(late),
                _ => {}
            }
            t.barrier(&pairs, &tag(1))?;
            if rank == 3 { Ok(()) } else { t.barrier(&group3(rank)?, &tag(2)) }
        }
        ProcessFault::Circle => {
            let Some(pair) = [[0, 1], [1, 2], [2, 0]].get(rank) else {
                std::thread::sleep(late);
                return Ok(());
            };
            t.barrier(&crate::transports::faults::group(4, rank, pair)?, &tag([5, 4, 6][rank]))
        }
        ProcessFault::Leave => {
            if rank == 2 {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(100));
            reduce(t, &all, 1)
        }
        ProcessFault::Cancel => {
            if rank == 1 {
                std::thread::sleep(Duration::from_millis(50));
                drop(t.start(&all, &tag(1), vec![1f32; 100_000], sum)?);
                return Ok(());
            }
            if rank == 2 {
                std::thread::sleep(Duration::from_millis(1000));
            }
            t.start(&all, &tag(1), vec![1f32; 100_000], sum)?.wait().map(drop)
        }
        ProcessFault::Abort => {
            if rank == 1 {
                std::thread::sleep(Duration::from_millis(100));
                t.abort("no space left on device");
            }
            reduce(t, &all, 1)
        }
        ProcessFault::Panic => {
            assert_ne!(rank, 1, "on purpose");
            reduce(t, &all, 1)
        }
        ProcessFault::Unready => unready(t, &pairs, late),
        ProcessFault::Groups => {
            reduce(t, &group(if rank < 2 { &[0, 1] } else { &[2, 3] })?, 1)?;
            reduce(t, &all, 2)
        }
        ProcessFault::Refused => refused(t, &all, 54_321),
        ProcessFault::Doubted => refused(t, &all, 54_322),
        ProcessFault::Endless => endless(t, &all, &pairs),
    }
}

fn unready(t: &mut dyn Transport, pairs: &Group, late: Duration) -> Result<(), CommError> {
    let (rank, size) = (t.rank(), t.size());
    let group = |ranks: &[usize]| group(size, rank, ranks);
    match rank {
        0 => t.barrier(&group(&[0, 1])?, &tag(2)),
        1 => {
            // Rank 3 does not come to it, so that all later groups of this rank wait.
            let _first = t.start(pairs, &tag(1), vec![1f32; 10], sum)?;
            let _second = t.start(&group(&[0, 1])?, &tag(2), (), |()| Call::barrier())?;
            std::thread::sleep(Duration::from_millis(300));
            killed()
        }
        _ => {
            std::thread::sleep(if rank == 3 { late } else { Duration::ZERO });
            reduce(t, &group(&[])?, 3)
        }
    }
}

/// An exchange of which the library refuses one message: that of so many elements.
fn refused(t: &mut dyn Transport, all: &Group, odd: usize) -> Result<(), CommError> {
    let rank = t.rank();
    let counts = |count: &dyn Fn(usize) -> (usize, usize)| -> Vec<usize> {
        (0..t.size()).map(|peer| if count(peer) == (1, 0) { odd } else { 20_000 }).collect()
    };
    let (send, receive) = (counts(&|peer| (rank, peer)), counts(&|peer| (peer, rank)));
    let (input, mut output) = (vec![1f32; send.iter().sum()], vec![0f32; receive.iter().sum()]);
    // Calls are not compared from here on, so that it starts at once.
    t.first_step_done();
    let ended = t.all_to_all_v(all, &tag(1), (&input[..], send), (&mut output[..], receive));
    // Whoever ends would end rank 1 too.
    std::thread::sleep(Duration::from_millis(if rank == 1 { 900 } else { 1500 }));
    ended
}

fn endless(t: &mut dyn Transport, all: &Group, pairs: &Group) -> Result<(), CommError> {
    let rank = t.rank();
    t.first_step_done();
    let mut x = rank as u64;
    for i in 1.. {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        if x >> 62 == 0 {
            std::thread::sleep(Duration::from_micros(x >> 52));
        }
        if i % 3 == 0 {
            t.barrier(pairs, &tag(i))?;
        } else {
            reduce(t, all, i)?;
        }
    }
    Ok(())
}

/// Ends this process as nothing else does.
fn killed() -> ! {
    let _ended = std::process::Command::new("kill").args(["-KILL", &std::process::id().to_string()]).status();
    std::process::abort()
}

/// The group of those ranks; of all for none.
fn group(size: usize, rank: usize, ranks: &[usize]) -> Result<Group, CommError> {
    let ranks = if ranks.is_empty() { (0..size).collect() } else { ranks.to_vec() };
    Group::new(ranks, rank).map_err(|e| CommError::Library { rank, call: None, reason: e.to_string() })
}

fn group3(rank: usize) -> Result<Group, CommError> {
    group(4, rank, &[0, 1, 2])
}

#[expect(clippy::ptr_arg, reason = "the owner is a `Vec`")]
fn sum(b: &mut Vec<f32>) -> Call<'_> {
    Call::all_reduce(Monoid::Sum, vec![Slot::InPlace(BufMut::new(b))])
}

fn reduce(t: &mut dyn Transport, group: &Group, sequence: u64) -> Result<(), CommError> {
    let mut data = vec![1f32; 10_000];
    t.all_reduce(group, &tag(sequence), Monoid::Sum, [BufMut::new(&mut data)])?;
    let (n, rank) = (group.size() as f32, t.rank());
    match data.iter().all(|x| *x == n) {
        true => Ok(()),
        false => Err(CommError::Library { rank, call: None, reason: "a sum is wrong".into() }),
    }
}
