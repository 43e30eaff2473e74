//! One device's part of a benchmark: its memory, its calls, and what must come out.

use super::job::BenchJob;
use crate::{
    Buf, BufMut, Call, CollectiveKind, Collectives, CommError, Element, Group, Part, Slot, Tag, Transport,
    TransportMemory,
};
use half::bf16;
use meshwright_plan::Monoid;
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
    fn new(transport: &impl Transport, len: usize) -> Result<Self, CommError> {
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
    here: usize,
    members: usize,
    counts: Arc<[usize]>,
    send: Arc<[Part]>,
    receive: Arc<[Part]>,
    input: Storage<T>,
    output: Storage<T>,
}

impl<'a, T: Pattern> Bench<'a, T> {
    fn new(transport: &impl Transport, group: &Group, job: &'a BenchJob) -> Result<Self, CommError> {
        let (here, members) = (group.position(), group.size());
        let all = job.elements(members);
        let piece = all / members;
        let (input, output) = match job.kind {
            CollectiveKind::AllReduce | CollectiveKind::Broadcast => (0, all),
            CollectiveKind::AllGather => (piece, all),
            CollectiveKind::ReduceScatter => (all, piece),
            CollectiveKind::AllToAll | CollectiveKind::Permute => (all, all),
            CollectiveKind::Barrier => (0, 0),
        };
        let part = |peer| vec![Part { peer, range: 0..all }].into();
        Ok(Bench {
            job,
            here,
            members,
            counts: vec![piece; members].into(),
            send: part((here + 1) % members),
            receive: part((here + members - 1) % members),
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
        let (counts, output) = (self.counts.clone(), self.output.buf_mut());
        let (monoid, input) = (self.job.monoid, self.input.buf());
        match self.job.kind {
            CollectiveKind::AllReduce => Call::all_reduce(monoid, vec![Slot::InPlace(output)]),
            CollectiveKind::AllGather => Call::all_gather(input, counts, output),
            CollectiveKind::ReduceScatter => Call::reduce_scatter(monoid, input, counts, output),
            CollectiveKind::AllToAll => Call::all_to_all((input, counts.clone()), (output, counts)),
            CollectiveKind::Permute => {
                Call::permute((input, self.send.clone()), (output, self.receive.clone()))
            }
            CollectiveKind::Broadcast => Call::broadcast(0, output),
            CollectiveKind::Barrier => Call::barrier(),
        }
    }

    /// What element `i` of the result must be.
    fn expected(&self, round: usize, i: usize) -> T {
        let len = self.output.elements.len();
        let (here, members) = (self.here, self.members);
        let piece = (len / members).max(1);
        let given = |member, i| given::<T>(members, member, round, i);
        let folded = |i| fold(self.job.monoid, (0..members).map(|m| given(m, i)));
        T::of(match self.job.kind {
            CollectiveKind::AllReduce => folded(i),
            CollectiveKind::AllGather => given(i / piece, i % piece),
            CollectiveKind::ReduceScatter => folded(here * len + i),
            CollectiveKind::AllToAll => given(i / piece, here * piece + i % piece),
            CollectiveKind::Permute => given((here + members - 1) % members, i),
            CollectiveKind::Broadcast | CollectiveKind::Barrier => given(0, i),
        })
    }

    fn wrong(&mut self, round: usize) -> Result<u64, CommError> {
        self.output.fetch()?;
        let got = self.output.elements.iter().enumerate();
        Ok(got.filter(|(i, got)| **got != self.expected(round, *i)).count() as u64)
    }
}

/// Warms up, times, checks.
pub(super) fn measure<T: Pattern, U: Transport>(
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
