//! Reproducible random numbers (SplitMix64, Steele et al. 2014), and the seeds that a law takes.

use std::ops::Range;

/// The seeds of a law: the one of `SEED=n`, those of `SEED=n..m`, or else the first `few`; with `LONG=1` the first `many`.
pub(crate) fn seeds(few: u64, many: u64) -> Range<u64> {
    if let Ok(asked) = std::env::var("SEED") {
        let some = asked.split_once("..").and_then(|(from, to)| Some(from.parse().ok()?..to.parse().ok()?));
        let one = || asked.parse().ok().map(|seed| seed..seed + 1);
        return some.or_else(one).unwrap_or_else(|| panic!("SEED is `{asked}`; give n or n..m"));
    }
    0..if std::env::var_os("LONG").is_some() { many } else { few }
}

/// Whether `SEED` says which: then a law says nothing of how many there are of what.
pub(crate) fn chosen() -> bool {
    std::env::var_os("SEED").is_some()
}

/// A generator; equal seeds give equal numbers on every machine.
pub(crate) struct Rng(u64);

impl Rng {
    /// A generator of a seed.
    pub(crate) fn new(seed: u64) -> Self {
        Rng(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x5851_F42D_4C95_7F2D)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number in `0..n`; `n` is at least 1.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// A number in `low..high`.
    pub(crate) fn float(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * ((self.next() >> 11) as f64 / (1u64 << 53) as f64)
    }

    /// True once in `n` times.
    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// One of several.
    pub(crate) fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }

    /// Some of several, in their order: each is taken once in two times.
    pub(crate) fn some<T: Clone>(&mut self, from: &[T]) -> Vec<T> {
        from.iter().filter(|_| self.one_in(2)).cloned().collect()
    }

    /// The same elements in another order.
    pub(crate) fn shuffled<T: Clone>(&mut self, from: &[T]) -> Vec<T> {
        let mut out = from.to_vec();
        for i in (1..out.len()).rev() {
            out.swap(i, self.below(i + 1));
        }
        out
    }
}
