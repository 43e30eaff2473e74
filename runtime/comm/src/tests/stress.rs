//! Many devices on few cores, collectives drawn from a seed: overlapping groups, sizes from nothing to several chunks, some
//! in flight while others run, bits compared with what each member can compute by itself.

use super::on_all;
use crate::{
    Buf, BufMut, Call, CollectiveKind, Collectives, CommError, Group, Layout, Part, Slot, Started, Tag,
    ThreadsTransport, Timeouts, Transport,
};
use meshwright_plan::Monoid;
use std::time::{Duration, Instant};

const DEVICES: usize = 9;

/// SplitMix64.
struct StressRng(u64);

impl StressRng {
    fn of(parts: &[usize]) -> StressRng {
        StressRng(parts.iter().fold(17, |h, p| StressRng(h ^ *p as u64).next()))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

/// Element `i` of what `rank` gives in a case: sums of them are exact.
fn value(rank: usize, case: u64, i: usize) -> i32 {
    (rank * 7919 + case as usize * 104_729 + i * 31) as i32 % 1000
}

fn given(rank: usize, case: u64, len: usize) -> Vec<i32> {
    (0..len).map(|i| value(rank, case, i)).collect()
}

/// One collective, the same for all members: a function of the seed and its number.
struct StressCase {
    number: u64,
    ranks: Vec<usize>,
    kind: usize,
    len: usize,
    flies: bool,
}

impl StressCase {
    fn new(seed: u64, number: u64) -> StressCase {
        let mut rng = StressRng::of(&[seed as usize, number as usize]);
        // A random order of some of the ranks, at least one.
        let mut all: Vec<usize> = (0..DEVICES).collect();
        for i in 0..DEVICES {
            all.swap(i, i + rng.below(DEVICES - i));
        }
        all.truncate(1 + rng.below(DEVICES));
        let len = [0, 1, 7, 300, 5_000, 20_000][rng.below(6)];
        StressCase { number, ranks: all, kind: rng.below(6), len, flies: rng.below(3) == 0 }
    }

    fn sum(&self, len: usize) -> Vec<i32> {
        (0..len).map(|i| self.ranks.iter().map(|r| value(*r, self.number, i)).sum()).collect()
    }

    /// The call of the member at a position, on memory `(input, output)`.
    fn call<'x>(&self, at: usize, input: &'x [i32], output: &'x mut [i32]) -> Call<'x> {
        let (n, len) = (self.ranks.len(), self.len);
        let counts = || vec![len; n];
        match self.kind {
            0 => Call::all_reduce(Monoid::Sum, vec![Slot::Apart(Buf::new(input), BufMut::new(output))]),
            1 => Call::all_gather(Buf::new(input), counts(), BufMut::new(output)),
            2 => {
                let slots = vec![Slot::Apart(Buf::new(input), BufMut::new(output))];
                let layouts = [Layout::Pieces(counts().into()), Layout::Whole];
                Call::new(CollectiveKind::ReduceScatter, layouts, slots).folded(Monoid::Sum)
            }
            3 => Call::all_to_all((Buf::new(input), counts()), (BufMut::new(output), counts())),
            4 => Call::permute(
                (Buf::new(input), vec![Part { peer: (at + 1) % n, range: 0..len }]),
                (BufMut::new(output), vec![Part { peer: (at + n - 1) % n, range: 0..len }]),
            ),
            _ => Call::broadcast(self.number as usize % n, BufMut::new(output)),
        }
    }

    /// What the member at a position gives, what its output holds before, and what it holds after.
    fn memory(&self, at: usize) -> (Vec<i32>, Vec<i32>, Vec<i32>) {
        let (n, len, here) = (self.ranks.len(), self.len, self.ranks[at]);
        let whole = |rank: usize, len: usize| given(rank, self.number, len);
        let blank = |len: usize| vec![-1; len];
        match self.kind {
            0 => (whole(here, len), blank(len), self.sum(len)),
            1 => {
                let all = self.ranks.iter().flat_map(|r| whole(*r, len)).collect();
                (whole(here, len), blank(n * len), all)
            }
            2 => (whole(here, n * len), blank(len), self.sum(n * len).split_off(at * len)[..len].to_vec()),
            3 => {
                let piece = |r: &usize| whole(*r, n * len)[at * len..(at + 1) * len].to_vec();
                (whole(here, n * len), blank(n * len), self.ranks.iter().flat_map(piece).collect())
            }
            4 => (whole(here, len), blank(len), whole(self.ranks[(at + n - 1) % n], len)),
            _ => (vec![], whole(here, len), whole(self.ranks[self.number as usize % n], len)),
        }
    }
}

type CaseMemory = (Vec<i32>, Vec<i32>);

/// Goes through the cases; those that fly end later, in another order.
fn device(mut t: ThreadsTransport, seed: u64, cases: u64) -> Result<(), CommError> {
    let rank = t.rank();
    let mut flying: Vec<(Started<CaseMemory>, Vec<i32>, u64)> = Vec::new();
    let mut order = StressRng::of(&[seed as usize, rank]);
    let check =
        |got: &[i32], want: &[i32], n: u64| assert!(got == want, "seed {seed}, case {n}, rank {rank}");
    for number in 0..cases {
        let case = StressCase::new(seed, number);
        let Some(at) = case.ranks.iter().position(|r| *r == rank) else { continue };
        let group = Group::new(case.ranks.clone(), rank).unwrap();
        let tag = Tag::new(number, "stress", 0);
        let (input, mut output, want) = case.memory(at);
        if case.flies {
            let started = t.start(&group, &tag, (input, output), |m| case.call(at, &m.0, &mut m.1))?;
            flying.push((started, want, number));
        } else {
            t.call(&group, &tag, case.call(at, &input, &mut output))?;
            check(&output, &want, number);
        }
        if flying.len() > 4 {
            let (started, want, n) = flying.swap_remove(order.below(flying.len()));
            check(&started.wait()?.1, &want, n);
        }
    }
    for (started, want, n) in flying {
        check(&started.wait()?.1, &want, n);
    }
    Ok(())
}

#[test]
fn random_collectives_of_more_devices_than_cores() {
    let begin = Instant::now();
    let mut rounds = 0;
    while begin.elapsed() < Duration::from_millis(1500) {
        for result in on_all(DEVICES, Timeouts::for_tests(), |t| device(t, 100 + rounds, 150)) {
            result.unwrap();
        }
        rounds += 1;
    }
}
