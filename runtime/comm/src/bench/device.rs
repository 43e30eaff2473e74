//! One device's part of a benchmark: its memory, its calls, and what must come out.

use super::job::BenchJob;
use crate::{
    Buf, BufMut, Call, Collectives, CommError, Element, Group, Layout, Part, Slot, Tag, Transport,
    TransportMemory,
};
use half::{bf16, f16};
use meshwright_plan::{Monoid, Portion, Traffic};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What one device measured.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timings {
    /// Time of each call on this device.
    pub times: Vec<Duration>,
    /// Wrong elements in all checks.
    pub wrong: u64,
}

/// Small whole numbers as elements: folds of them are exact, in any order.
pub(super) trait Pattern: Element + PartialEq + bytemuck::Pod {
    /// Up to here whole numbers are exact.
    const EXACT: u32;

    fn of(value: u32) -> Self;
}

macro_rules! patterns {
    ($($t:ty, $exact:expr);*) => {$(
        impl Pattern for $t {
            const EXACT: u32 = $exact;

            fn of(value: u32) -> $t {
                value as $t
            }
        }
    )*};
}
// Sums of bytes are not measured.
patterns!(f64, u32::MAX; f32, 1 << 24; i32, i32::MAX as u32; u8, u32::MAX);

impl Pattern for bf16 {
    const EXACT: u32 = 1 << 8;

    fn of(value: u32) -> bf16 {
        bf16::from_f32(value as f32)
    }
}

impl Pattern for f16 {
    const EXACT: u32 = 1 << 11;

    fn of(value: u32) -> f16 {
        f16::from_f32(value as f32)
    }
}

/// Element `i` of what a member of `members` gives in a round: 0..32, or less where sums were not exact otherwise; without a
/// period that a misplaced piece could hide behind.
fn given<T: Pattern>(members: usize, member: usize, round: usize, i: usize) -> u32 {
    let salt = (member as u32 * 0x85eb_ca6b) ^ (round as u32 * 0xc2b2_ae35);
    let many = (T::EXACT / members as u32).clamp(2, 32);
    ((i as u32 ^ salt).wrapping_mul(0x9e37_79b1) >> 27) % many
}

fn fold(monoid: Monoid, values: impl Iterator<Item = u32>) -> u32 {
    match monoid {
        Monoid::Max => values.max().unwrap_or(0),
        Monoid::Min => values.min().unwrap_or(0),
        _ => values.sum(),
    }
}

/// A buffer: on the host, or on the device of the transport, where the elements here are what is copied there and back.
struct Storage<T> {
    there: Option<Box<dyn TransportMemory>>,
    elements: Vec<T>,
}

impl<T: Pattern> Storage<T> {
    fn new(transport: &(impl Transport + ?Sized), len: usize) -> Result<Self, CommError> {
        let there = if len > 0 { transport.allocate(len, T::DTYPE)? } else { None };
        Ok(Storage { there, elements: vec![T::of(0); len] })
    }

    fn fill(&mut self, of: impl Fn(usize) -> T) -> Result<(), CommError> {
        self.elements.iter_mut().enumerate().for_each(|(i, x)| *x = of(i));
        match &mut self.there {
            Some(there) => there.write(bytemuck::cast_slice(&self.elements)),
            None => Ok(()),
        }
    }

    fn fetch(&mut self) -> Result<&[T], CommError> {
        if let Some(there) = &self.there {
            there.read(bytemuck::cast_slice_mut(&mut self.elements))?;
        }
        Ok(&self.elements)
    }

    fn buf(&self) -> Buf<'_> {
        self.there.as_ref().map_or_else(|| Buf::new(&self.elements), |there| there.buf())
    }

    fn buf_mut(&mut self) -> BufMut<'_> {
        match &mut self.there {
            Some(there) => there.buf_mut(),
            None => BufMut::new(&mut self.elements),
        }
    }
}

/// A device's place, and its two buffers, of which an in-place collective uses the second only.
struct Bench<'a, T> {
    job: &'a BenchJob,
    traffic: Traffic,
    here: usize,
    members: usize,
    /// What is sent, and what is received.
    layouts: [Layout; 2],
    input: Storage<T>,
    output: Storage<T>,
}

impl<'a, T: Pattern> Bench<'a, T> {
    fn new(
        transport: &(impl Transport + ?Sized),
        group: &Group,
        job: &'a BenchJob,
    ) -> Result<Self, CommError> {
        let (here, members, traffic) = (group.position(), group.size(), job.kind.traffic());
        let all = job.elements(members);
        let piece = all / members;
        // Ranges are one, to the next member, from the one before.
        let layout = |portion, peer| match portion {
            Portion::Nothing | Portion::Whole => Layout::Whole,
            Portion::Pieces => Layout::Pieces(vec![piece; members].into()),
            Portion::Ranges => Layout::Parts([Part { peer, range: 0..all }].into()),
        };
        // Where the other buffer is in pieces, a whole one is a piece.
        let (input, output) = match (traffic.send, traffic.receive) {
            (Portion::Nothing, _) | (_, Portion::Nothing) => (0, 0),
            (Portion::Whole, Portion::Whole) => (0, all),
            (Portion::Whole, _) => (piece, all),
            (_, Portion::Whole) => (all, piece),
            _ => (all, all),
        };
        Ok(Bench {
            job,
            traffic,
            here,
            members,
            layouts: [
                layout(traffic.send, (here + 1) % members),
                layout(traffic.receive, (here + members - 1) % members),
            ],
            input: Storage::new(transport, input)?,
            output: Storage::new(transport, output)?,
        })
    }

    /// New elements, and results that no collective gives.
    fn fill(&mut self, round: usize) -> Result<(), CommError> {
        let (here, members) = (self.here, self.members);
        let own = |i| T::of(given::<T>(members, here, round, i));
        self.input.fill(own)?;
        let in_place = self.input.elements.is_empty();
        self.output.fill(|i| if in_place { own(i) } else { T::of(255) })
    }

    fn call(&mut self) -> Call<'_> {
        let whole = self.layouts.iter().all(|l| matches!(l, Layout::Whole));
        let slots = match self.traffic.send {
            Portion::Nothing => vec![],
            _ if whole => vec![Slot::InPlace(self.output.buf_mut())],
            _ => vec![Slot::Apart(self.input.buf(), self.output.buf_mut())],
        };
        let call = Call::new(self.job.kind, self.layouts.clone(), slots);
        let Traffic { folds, rooted, .. } = self.traffic;
        Call { monoid: folds.then_some(self.job.monoid), root: rooted.then_some(0), ..call }
    }

    /// What element `i` of the result must be.
    fn expected(&self, round: usize, i: usize) -> T {
        let len = self.output.elements.len();
        let (here, members) = (self.here, self.members);
        let given = |member, i| given::<T>(members, member, round, i);
        // The elements of a piece, and the member that sends this element.
        let (piece, from, i) = match self.traffic.receive {
            Portion::Nothing | Portion::Whole => (len, 0, i),
            Portion::Pieces => {
                let piece = (len / members).max(1);
                (piece, i / piece, i % piece)
            }
            Portion::Ranges => (len, (here + members - 1) % members, i),
        };
        // Of what is sent in pieces, this device's.
        let i = if self.traffic.send == Portion::Pieces { here * piece + i } else { i };
        T::of(match self.traffic.folds {
            true => fold(self.job.monoid, (0..members).map(|m| given(m, i))),
            false => given(from, i),
        })
    }

    fn wrong(&mut self, round: usize) -> Result<u64, CommError> {
        self.output.fetch()?;
        let got = self.output.elements.iter().enumerate();
        Ok(got.filter(|(i, got)| **got != self.expected(round, *i)).count() as u64)
    }
}

/// Warms up, times, checks.
pub(super) fn measure<T: Pattern, U: Transport + ?Sized>(
    transport: &mut U,
    group: &Group,
    job: &BenchJob,
    sequence: &mut u64,
) -> Result<Timings, CommError> {
    let mut bench = Bench::<T>::new(transport, group, job)?;
    let what: Arc<str> = format!("benchmark of {} bytes", job.bytes).into();
    let mut call = |transport: &mut U, bench: &mut Bench<'_, T>| {
        *sequence += 1;
        let tag = Tag::new(*sequence, what.clone(), 0);
        let begin = Instant::now();
        transport.call(group, &tag, bench.call())?;
        transport.settle()?;
        Ok(begin.elapsed())
    };
    let mut sample = Timings { times: Vec::with_capacity(job.iterations), wrong: 0 };
    // The memory must be there before it is timed. What is folded in place grows from call to call, which no time depends on.
    bench.fill(0)?;
    for _ in 0..job.warmup {
        call(&mut *transport, &mut bench)?;
    }
    // Calls are compared up to here, and no more.
    transport.first_step_done();
    for _ in 0..job.iterations {
        sample.times.push(call(&mut *transport, &mut bench)?);
    }
    for round in 1..=job.checks {
        bench.fill(round)?;
        call(&mut *transport, &mut bench)?;
        sample.wrong += bench.wrong(round)?;
    }
    Ok(sample)
}
