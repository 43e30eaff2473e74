//! A device's timeline: plain records, kept while it runs and gathered at the end.
//!
//! Times are those of the system's monotonic clock, which all processes of a machine share. For devices on several
//! machines, each machine's offset from rank 0's clock is estimated from the fastest of several exchanges (F. Cristian,
//! "Probabilistic clock synchronization", 1989), right after the traced steps, since clocks drift.

use meshwright_comm::{BufMut, Collectives, CommError, Group, Part, Tag, Transport};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum What {
    /// A run of the whole program.
    Step,
    /// A step of the Plan that computes.
    Compute,
    /// The start of a collective: packing, and the call of the transport.
    Start,
    /// Waiting for the end of a collective.
    Wait,
    /// Unpacking of received values.
    Unpack,
    /// A forward pass of a microbatch through a stage of a pipeline.
    Forward,
    /// A backward pass.
    Backward,
    /// A pass for gradients of weights.
    Weights,
}

/// A stretch of time of one device. Times are nanoseconds of a clock without a meaningful zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Its kind.
    pub what: What,
    /// When it begins.
    pub begin: u64,
    /// When it ends.
    pub end: u64,
    /// The number of the training step, from 1.
    pub step_number: u64,
    /// Number of the collective on this device, which pairs start and end; of a pass the microbatch; 0 for other records.
    pub sequence: u64,
    /// The step of the Plan, by position: of an end, the step that waits. Of a pass the chunk of the device.
    pub at: u32,
}

/// All records of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceTrace {
    /// The device.
    pub rank: usize,
    /// In the order of their ends, in times of rank 0's clock.
    pub records: Vec<Record>,
}

/// Keeps records. Memory is made before a step begins, so that a record costs two reads of a clock at most.
#[derive(Debug)]
pub struct Recorder {
    /// The program, by order of loading, and the numbers of the steps that are recorded.
    program: usize,
    steps: RangeInclusive<u64>,
    records: Vec<Record>,
    step_number: u64,
    /// Step of the Plan that computes, and since when.
    open: Option<(u32, u64)>,
    began: u64,
}

/// Nanoseconds of the monotonic clock.
pub fn now() -> u64 {
    let t = clock_gettime(ClockId::Monotonic);
    (t.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(t.tv_nsec as u64)
}

impl Recorder {
    /// Records those steps of a program.
    pub fn new(program: usize, steps: RangeInclusive<u64>) -> Recorder {
        Recorder { program, steps, records: vec![], step_number: 0, open: None, began: 0 }
    }

    /// Begins a step with `plan_steps` steps of the Plan. False if it is not recorded.
    pub fn begin(&mut self, program: usize, step_number: u64, plan_steps: usize) -> bool {
        if program != self.program || !self.steps.contains(&step_number) {
            return false;
        }
        // A collective in one go has three.
        self.records.reserve(3 * plan_steps + 1);
        (self.step_number, self.open, self.began) = (step_number, None, now());
        true
    }

    /// Begins the computation of a step of the Plan, unless it has begun; the computation before it ends.
    #[inline]
    pub fn compute(&mut self, at: usize) {
        let at = at as u32;
        if self.open.is_some_and(|o| o.0 == at) {
            return;
        }
        let time = self.close();
        self.open = Some((at, time));
    }

    /// Ends the current computation. Gives the time.
    #[inline]
    pub fn close(&mut self) -> u64 {
        let end = now();
        if let Some((at, begin)) = self.open.take() {
            self.push(What::Compute, at, begin, end, 0);
        }
        end
    }

    /// Something has ended that began at `begin`. Gives the time.
    #[inline]
    pub fn ended(&mut self, what: What, at: usize, begin: u64, sequence: u64) -> u64 {
        let end = now();
        self.push(what, at as u32, begin, end, sequence);
        end
    }

    /// The step is over.
    pub fn end(&mut self) {
        let end = self.close();
        self.push(What::Step, 0, self.began, end, 0);
    }

    #[inline]
    fn push(&mut self, what: What, at: u32, begin: u64, end: u64, sequence: u64) {
        self.records.push(Record { what, begin, end, step_number: self.step_number, sequence, at });
    }

    /// Gathers the records of all devices of the world; all of them must call it. `sequence` numbers its calls.
    pub(crate) fn gather(
        self,
        transport: &mut dyn Transport,
        world: &Group,
        sequence: &mut u64,
    ) -> Result<Vec<DeviceTrace>, CommError> {
        let mut tag = || {
            *sequence += 1;
            Tag::new(*sequence, "trace", 0)
        };
        let machines = transport.gather_values(world, &tag(), &machine())?;
        let mut offset = 0;
        for (rank, _) in machines.iter().enumerate().filter(|(_, m)| **m != machines[0]) {
            // The numbers of calls stay the same on all ranks.
            let tags: Vec<[Tag; 2]> = (0..EXCHANGES).map(|_| [tag(), tag()]).collect();
            if [0, rank].contains(&world.rank()) {
                let found = clock_offset(transport, rank, &tags, &now)?;
                offset = if world.rank() == rank { found } else { offset };
            }
        }
        let shift = |t: u64| t.wrapping_add_signed(offset);
        let on_one_clock = |r: &Record| Record { begin: shift(r.begin), end: shift(r.end), ..*r };
        let mine: Vec<Record> = self.records.iter().map(on_one_clock).collect();
        let all = transport.gather_values(world, &tag(), &mine)?;
        Ok(all.into_iter().enumerate().map(|(rank, records)| DeviceTrace { rank, records }).collect())
    }
}

/// Number of clock exchanges; the fastest one counts.
const EXCHANGES: usize = 16;

/// An id of this machine since its start; empty if the system has none.
fn machine() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default()
}

/// The offset from the clock of `rank` to rank 0's. Both call it, with the same tags; the result counts on `rank`.
/// `clock` is [`now`], except in tests.
fn clock_offset(
    transport: &mut dyn Transport,
    rank: usize,
    tags: &[[Tag; 2]],
    clock: &dyn Fn() -> u64,
) -> Result<i64, CommError> {
    let me = transport.rank();
    let Ok(pair) = Group::new(vec![0, rank], me) else { return Ok(0) };
    let parts = |peer: usize, n: usize| -> Arc<[Part]> { Arc::new([Part { peer, range: 0..n }]) };
    let none: Arc<[Part]> = Arc::new([]);
    let mut best: Option<(u64, i64)> = None;
    for [ask, answer] in tags {
        let mut time = [0u64];
        let begin = clock();
        if me == rank {
            transport.permute(&pair, ask, (&[1u8][..], parts(0, 1)), (&mut [0u8; 0][..], none.clone()))?;
            let to = (BufMut::new(bytemuck::cast_slice_mut::<u64, u8>(&mut time)), parts(0, 8));
            transport.permute(&pair, answer, (&[0u8; 0][..], none.clone()), to)?;
            let end = clock();
            let (trip, theirs) = (end.wrapping_sub(begin), time[0]);
            let offset = theirs.wrapping_sub(begin.wrapping_add(trip / 2)) as i64;
            if best.is_none_or(|b| trip < b.0) {
                best = Some((trip, offset));
            }
        } else {
            let mut asked = [0u8; 1];
            transport.permute(&pair, ask, (&[0u8; 0][..], none.clone()), (&mut asked[..], parts(1, 1)))?;
            time[0] = clock();
            transport.permute(
                &pair,
                answer,
                (bytemuck::cast_slice::<u64, u8>(&time), parts(1, 8)),
                (&mut [0u8; 0][..], none.clone()),
            )?;
        }
    }
    Ok(best.map_or(0, |b| b.1))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use meshwright_comm::{Timeouts, World};
    use std::time::Instant;

    #[test]
    fn a_record_costs_less_than_200_ns() {
        let best = (0..20).map(|_| {
            let mut r = Recorder::new(0, 1..=1);
            assert!(r.begin(0, 1, 10_000));
            let begin = Instant::now();
            (0..10_000).for_each(|at| r.compute(at));
            let each = begin.elapsed().as_nanos() / 10_000;
            assert_eq!(r.records.len(), 9_999);
            each
        });
        let best = best.min().unwrap();
        assert!(best < 200, "{best} ns a record");
    }

    #[test]
    fn clocks_that_differ_are_found_to_differ_by_that() {
        let skew = [0i64, 5_000_000_000, -70_000_000];
        let ends = World::new(3, Timeouts::for_tests());
        let found: Vec<i64> = std::thread::scope(|s| {
            let threads: Vec<_> = ends
                .into_iter()
                .enumerate()
                .map(|(me, mut t)| {
                    s.spawn(move || {
                        let clock = move || now().wrapping_add_signed(skew[me]);
                        let mut mine = 0;
                        for rank in 1..3usize {
                            let tag = |i: usize| Tag::new((rank * 100 + i) as u64, "clock", 0);
                            let tags: Vec<_> = (0..EXCHANGES).map(|i| [tag(2 * i), tag(2 * i + 1)]).collect();
                            if me == 0 || me == rank {
                                mine = clock_offset(&mut t, rank, &tags, &clock).unwrap();
                            }
                        }
                        mine
                    })
                })
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        for (found, skew) in found.iter().zip(skew).skip(1) {
            assert!((found + skew).abs() < 2_000_000, "{found} for {skew}");
        }
    }
}
