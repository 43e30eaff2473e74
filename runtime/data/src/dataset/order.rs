//! The order of records in training: a function of (seed, epoch, index) alone.
//!
//! A permutation without a table: a Feistel network over `a x b >= n` cells with Philox as its round function, walked on
//! until it lands below `n`. So every device finds its own records, and no state has to be saved or sent: that of a shuffle
//! buffer too follows from the seed, the epoch and the position that a checkpoint has.

use meshwright_plan::random::{Key, uniform01};
use std::sync::Arc;

/// Seed and epoch for the random parts of examples, such as hidden tokens, which differ from epoch to epoch. Evaluations and
/// predictions use the default, so that their examples are always the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EpochSeed {
    /// The seed of the run.
    pub seed: u64,
    /// The epoch, from 0.
    pub epoch: u32,
}

/// Rule for the order of a set in training.
#[derive(Clone, Debug, Default)]
pub(crate) enum OrderRule {
    /// Every record anywhere.
    #[default]
    Shuffled,
    /// As the files have it.
    Unshuffled,
    /// Files in any order, records among `size` that follow each other in it. `files` are the first records of the files.
    Buffered { size: usize, files: Arc<[usize]> },
    /// Drawn with replacement.
    Weighted(Arc<Weights>),
}

impl OrderRule {
    /// Bytes that tell rules apart; `None` for the usual one.
    pub(crate) fn described(&self) -> Option<Vec<u8>> {
        match self {
            OrderRule::Shuffled => None,
            OrderRule::Unshuffled => Some(b"unshuffled".to_vec()),
            OrderRule::Buffered { size, .. } => Some(format!("buffer of {size}").into_bytes()),
            OrderRule::Weighted(w) => Some(w.sums.iter().flat_map(|s| s.to_le_bytes()).collect()),
        }
    }

    /// The rule for `records` of the records: number `i` is `record(i)`. `None` where none of them can be drawn.
    pub(super) fn of_part(&self, record: impl Fn(usize) -> usize, records: usize) -> Option<OrderRule> {
        Some(match self {
            OrderRule::Buffered { size, .. } => OrderRule::Buffered { size: *size, files: Arc::new([0]) },
            OrderRule::Weighted(all) => {
                let of_part = (0..records).map(|i| all.weight(record(i)));
                OrderRule::Weighted(Arc::new(Weights::new(of_part)?))
            }
            other => other.clone(),
        })
    }

    /// The order of an epoch.
    pub(crate) fn order(&self, seed: u64, epoch: u32, records: usize) -> Order {
        let kind = match self {
            OrderRule::Shuffled => return Order::shuffled(seed, epoch, records),
            OrderRule::Unshuffled => return Order::sequential(records),
            OrderRule::Buffered { size, files } => {
                OrderKind::Buffered(Arc::new(Buffered::new((seed, epoch), records, *size, files)))
            }
            OrderRule::Weighted(weights) => {
                OrderKind::Weighted(Key::new(seed, "sampling weights").at(epoch, 0), weights.clone())
            }
        };
        Order { records, kind }
    }
}

/// Chances of records, summed up.
#[derive(Debug)]
pub(crate) struct Weights {
    sums: Vec<f64>,
    /// The last record that has a chance.
    last: usize,
}

impl Weights {
    /// `None` where all are 0.
    pub(crate) fn new(weights: impl Iterator<Item = f64>) -> Option<Weights> {
        let (mut sum, mut last, mut sums) = (0.0, None, Vec::new());
        for w in weights {
            if w > 0.0 {
                last = Some(sums.len());
            }
            sum += w;
            sums.push(sum);
        }
        let last = last.filter(|_| sum.is_finite())?;
        Some(Weights { sums, last })
    }

    fn weight(&self, record: usize) -> f64 {
        self.sums[record] - record.checked_sub(1).map_or(0.0, |before| self.sums[before])
    }

    /// The record at a share of the sum of all.
    fn at(&self, share: f64) -> usize {
        let at = share * self.sums[self.last];
        self.sums.partition_point(|sum| *sum <= at).min(self.last)
    }
}

/// The order of the records of one epoch.
#[derive(Clone, Debug)]
pub struct Order {
    records: usize,
    kind: OrderKind,
}

#[derive(Clone, Debug)]
enum OrderKind {
    /// The order of the file.
    File,
    Shuffled(Shuffle),
    Buffered(Arc<Buffered>),
    Weighted(Key, Arc<Weights>),
}

#[derive(Clone, Copy, Debug)]
struct Shuffle {
    key: Key,
    epoch: u32,
    n: u64,
    a: u64,
    b: u64,
    /// Tells apart the permutations of one epoch.
    number: u64,
}

/// Four make a Feistel network over large halves look random. Small data sets have small halves and need more: the orders of
/// five records are measurably uneven up to 12 rounds, and even from 16 on.
const ROUNDS: u32 = 20;

impl Order {
    /// A pseudo-random order of `records` records, another one for each epoch.
    pub fn shuffled(seed: u64, epoch: u32, records: usize) -> Order {
        let shuffle = Shuffle::new(Key::new(seed, "order of examples"), epoch, records);
        Order { records, kind: OrderKind::Shuffled(shuffle) }
    }

    /// The order of the file.
    pub fn sequential(records: usize) -> Order {
        Order { records, kind: OrderKind::File }
    }

    /// The order that separates a share for validation, its beginning, from the records for training, its rest.
    pub(super) fn of_share(seed: u64, records: usize) -> Order {
        let shuffle = Shuffle::new(Key::new(seed, "share for validation"), 0, records);
        Order { records, kind: OrderKind::Shuffled(shuffle) }
    }

    /// The record that comes at position `index`.
    ///
    /// # Panics
    ///
    /// Where `index` is not below the number of records.
    pub fn record(&self, index: usize) -> usize {
        assert!(index < self.records, "position {index} of {} records", self.records);
        match &self.kind {
            OrderKind::File => index,
            OrderKind::Shuffled(shuffle) => shuffle.at(index),
            OrderKind::Buffered(buffered) => buffered.at(index),
            OrderKind::Weighted(key, weights) => weights.at(uniform01(*key, index as u64)),
        }
    }
}

impl Shuffle {
    fn new(key: Key, epoch: u32, records: usize) -> Shuffle {
        let n = records as u64;
        let root = n.isqrt();
        let a = if root * root < n { root + 1 } else { root }.max(1);
        Shuffle { key, epoch, n, a, b: n.div_ceil(a).max(1), number: 0 }
    }

    fn at(&self, index: usize) -> usize {
        let mut i = index as u64;
        // The network permutes a * b cells, so this comes back to a cell below `n` at the latest at the start.
        loop {
            i = self.permute(i);
            if i < self.n {
                return i as usize;
            }
        }
    }

    fn permute(&self, i: u64) -> u64 {
        let (mut left, mut right) = (i / self.b, i % self.b);
        let (mut size, mut other) = (self.a, self.b);
        for round in 0..ROUNDS {
            let bits = self.key.at(self.epoch, round).bits(right | self.number << 32);
            let f = (u64::from(bits[0]) | u64::from(bits[1]) << 32) % size;
            (left, right) = (right, (left + f) % size);
            (size, other) = (other, size);
        }
        // An even number of rounds: the halves are back in their places.
        left * self.b + right
    }
}

/// The order of a shuffle buffer: the files in some order are cut into pieces of the buffer's size, and each piece is shuffled.
/// The start of the first piece differs from epoch to epoch, so that the same records do not always come together.
#[derive(Debug)]
struct Buffered {
    records: usize,
    size: usize,
    begin: usize,
    key: Key,
    epoch: u32,
    /// For each file, in order: its start in this order, and the number of its first record.
    files: Vec<(usize, usize)>,
}

impl Buffered {
    fn new((seed, epoch): (u64, u32), records: usize, size: usize, files: &[usize]) -> Buffered {
        let order = Shuffle::new(Key::new(seed, "order of files"), epoch, files.len());
        let (mut at, mut in_order) = (0, Vec::with_capacity(files.len()));
        for i in 0..files.len() {
            let file = order.at(i);
            let end = files.get(file + 1).copied().unwrap_or(records).min(records);
            let first = files[file].min(end);
            if end > first {
                in_order.push((at, first));
                at += end - first;
            }
        }
        let key = Key::new(seed, "shuffle buffer");
        let begin = (uniform01(key.at(epoch, u32::MAX), 0) * records as f64) as usize % records.max(1);
        Buffered { records, size, begin, key, epoch, files: in_order }
    }

    fn at(&self, index: usize) -> usize {
        let at = (index + self.begin) % self.records;
        let (piece, first) = (at / self.size, at / self.size * self.size);
        let shuffle = Shuffle::new(self.key, self.epoch, self.size.min(self.records - first));
        let at = first + Shuffle { number: piece as u64, ..shuffle }.at(at - first);
        let (begin, record) = self.files[self.files.partition_point(|f| f.0 <= at) - 1];
        record + at - begin
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn every_record_comes_once() {
        for n in (1..300).chain([1000, 4096, 60_000]) {
            for epoch in [0, 1, u32::MAX] {
                let order = Order::shuffled(7, epoch, n);
                let mut seen = vec![false; n];
                for i in 0..n {
                    assert!(!std::mem::replace(&mut seen[order.record(i)], true), "{n} {epoch} {i}");
                }
            }
        }
    }

    #[test]
    fn epochs_and_seeds_differ_and_stay_as_they_are() {
        let first =
            |seed, epoch| (0..8).map(|i| Order::shuffled(seed, epoch, 60_000).record(i)).collect::<Vec<_>>();
        assert_ne!(first(0, 0), first(0, 1));
        assert_ne!(first(0, 0), first(1, 0));
        assert_eq!(first(0, 0), GOLDEN);
    }

    /// Computed a second time by a separate program.
    const GOLDEN: [usize; 8] = [11117, 14206, 7692, 46756, 54338, 1223, 12089, 27447];

    /// Each of 7 records at each of 7 positions over 14,000 epochs: chi-square with 36 degrees of freedom stays below 75
    /// with a probability of 0.9998; and so do the 120 orders of 5 records with 119 degrees and 180.
    #[test]
    fn all_places_and_orders_are_equally_likely() {
        let mut count = [[0u32; 7]; 7];
        let mut orders = meshwright_sorted::SortedMap::<Vec<usize>, u32>::new();
        for epoch in 0..14_000 {
            let order = Order::shuffled(3, epoch, 7);
            for (i, row) in count.iter_mut().enumerate() {
                row[order.record(i)] += 1;
            }
            let five = Order::shuffled(3, epoch, 5);
            *orders.entry((0..5).map(|i| five.record(i)).collect()).or_default() += 1;
        }
        let chi = |count: &mut dyn Iterator<Item = u32>, expected: f64| {
            count.map(|c| (f64::from(c) - expected).powi(2) / expected).sum::<f64>()
        };
        let places = chi(&mut count.iter().flatten().copied(), 2000.0);
        assert!(places < 75.0, "{places}");
        assert_eq!(orders.len(), 120);
        let orders = chi(&mut orders.values().copied(), 14_000.0 / 120.0);
        assert!(orders < 180.0, "{orders}");
    }

    #[test]
    fn a_buffer_shuffles_files_and_their_neighbors() {
        let files: Arc<[usize]> = Arc::new([0, 40, 40, 75, 90]);
        let rule = OrderRule::Buffered { size: 8, files: files.clone() };
        let epoch = |e: u32| (0..103).map(|i| rule.order(5, e, 103).record(i)).collect::<Vec<_>>();
        for e in 0..20 {
            let order = epoch(e);
            let mut all = order.clone();
            all.sort_unstable();
            assert_eq!(all, (0..103).collect::<Vec<_>>(), "each once");
            // What comes within a piece of the buffer comes from at most three files.
            let of = |r: &usize| files.partition_point(|f| f <= r);
            for piece in order.chunks(8) {
                let mut seen: Vec<usize> = piece.iter().map(of).collect();
                seen.sort_unstable();
                seen.dedup();
                assert!(seen.len() <= 3, "{piece:?}");
            }
        }
        assert_ne!(epoch(0), epoch(1));
        let first: meshwright_sorted::SortedSet<usize> = (0..20).map(|e| epoch(e)[0]).collect();
        assert!(first.len() > 12, "{first:?}");
    }

    #[test]
    fn weights_are_chances() {
        let weights = Weights::new([0.0, 1.0, 3.0, 0.0, 6.0, 0.0].into_iter()).unwrap();
        let rule = OrderRule::Weighted(Arc::new(weights));
        let mut count = [0u32; 6];
        for epoch in 0..10_000 {
            let order = rule.order(1, epoch, 6);
            (0..6).for_each(|i| count[order.record(i)] += 1);
        }
        for (n, expected) in count.into_iter().zip([0.0, 6000.0, 18_000.0, 0.0, 36_000.0, 0.0]) {
            assert!((f64::from(n) - expected).abs() <= 4.0 * f64::sqrt(expected), "{count:?}");
        }
        assert!(Weights::new([0.0, 0.0].into_iter()).is_none());
        let part = rule.of_part(|i| [1, 2][i], 2).unwrap();
        let order = part.order(1, 0, 2);
        assert!((0..2).all(|i| order.record(i) < 2));
        assert!(rule.of_part(|_| 0, 1).is_none());
    }
}
