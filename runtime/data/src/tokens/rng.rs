//! Random numbers of one example.

use crate::EpochSeed;
use meshwright_plan::random::Key;

/// The random numbers of one example of one epoch, one after the other.
#[derive(Clone, Debug)]
pub(super) struct ExampleRng {
    key: Key,
    epoch: u32,
    record: u64,
    next: u32,
}

impl ExampleRng {
    /// The random numbers of a stream, by its name.
    pub(super) fn new(stream: &str, seed: EpochSeed, record: usize) -> ExampleRng {
        ExampleRng { key: Key::new(seed.seed, stream), epoch: seed.epoch, record: record as u64, next: 0 }
    }

    fn bits(&mut self) -> u64 {
        let bits = self.key.at(self.epoch, self.next).bits(self.record);
        self.next += 1;
        u64::from(bits[0]) << 32 | u64::from(bits[1])
    }

    /// A number below `n`, which is at least 1.
    pub(super) fn below(&mut self, n: usize) -> usize {
        // Of 2^64 numbers the most frequent result has at most one more than the least: no test could tell.
        ((u128::from(self.bits()) * n as u128) >> 64) as usize
    }

    /// Puts a list in random order.
    pub(super) fn shuffle<T>(&mut self, list: &mut [T]) {
        for i in (1..list.len()).rev() {
            list.swap(i, self.below(i + 1));
        }
    }
}
