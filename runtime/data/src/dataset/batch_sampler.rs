//! The records of each training step.

use super::Dataset;
use super::order::{EpochSeed, Order, OrderRule};
use std::sync::{Arc, Mutex, PoisonError};

/// The records of each training step. The last partial batch of an epoch is dropped (a different one each epoch,
/// since the order differs).
#[derive(Clone, Debug)]
pub struct BatchSampler {
    seed: u64,
    records: usize,
    batch: usize,
    rule: OrderRule,
    /// The order of the epoch at hand: some are long to set up.
    at_hand: Arc<Mutex<Option<(u32, Order)>>>,
}

impl BatchSampler {
    /// Of a set of so many records in the usual order. `None` where there is not one whole batch.
    pub fn new(seed: u64, records: usize, batch: usize) -> Option<BatchSampler> {
        Self::ruled(seed, records, batch, OrderRule::default())
    }

    /// Of a training set, in the order that its `data.toml` says. `None` where there is not one whole batch.
    pub fn of(seed: u64, set: &Dataset, batch: usize) -> Option<BatchSampler> {
        Self::ruled(seed, set.records(), batch, set.rule().clone())
    }

    fn ruled(seed: u64, records: usize, batch: usize, rule: OrderRule) -> Option<BatchSampler> {
        let sampler = BatchSampler { seed, records, batch, rule, at_hand: Arc::default() };
        (batch > 0 && records >= batch).then_some(sampler)
    }

    /// Steps in an epoch.
    pub fn steps_per_epoch(&self) -> u64 {
        (self.records / self.batch) as u64
    }

    /// The epoch (from 0) and the position of the first example in it, of the step number `step`, from 0.
    pub fn position(&self, step: u64) -> (u32, usize) {
        let per = self.steps_per_epoch();
        let epoch = u32::try_from(step / per).unwrap_or(u32::MAX);
        (epoch, (step % per) as usize * self.batch)
    }

    /// Records of the rows `rows` of the batch of step `step` (from 0).
    pub fn records(&self, step: u64, rows: std::ops::Range<usize>) -> Vec<usize> {
        let (epoch, first) = self.position(step);
        let order = self.order(epoch);
        rows.map(|row| order.record(first + row)).collect()
    }

    /// On what the random parts of the records of step `step` (from 0) depend.
    pub fn epoch_seed(&self, step: u64) -> EpochSeed {
        EpochSeed { seed: self.seed, epoch: self.position(step).0 }
    }

    fn order(&self, epoch: u32) -> Order {
        let mut at_hand = self.at_hand.lock().unwrap_or_else(PoisonError::into_inner);
        match &*at_hand {
            Some((e, order)) if *e == epoch => order.clone(),
            _ => {
                let order = self.rule.order(self.seed, epoch, self.records);
                *at_hand = Some((epoch, order.clone()));
                order
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_sampler_drops_another_rest_each_epoch() {
        let sampler = BatchSampler::new(1, 103, 10).unwrap();
        assert_eq!(sampler.steps_per_epoch(), 10);
        assert_eq!(sampler.position(23), (2, 30));
        let epoch = |e: u64| {
            let mut all: Vec<usize> = (0..10).flat_map(|s| sampler.records(e * 10 + s, 0..10)).collect();
            all.sort_unstable();
            all.dedup();
            all
        };
        assert_eq!(epoch(0).len(), 100);
        assert_ne!(epoch(0), epoch(1));
        let whole = sampler.records(5, 0..10);
        assert_eq!([sampler.records(5, 0..3), sampler.records(5, 3..10)].concat(), whole);
        assert!(BatchSampler::new(1, 9, 10).is_none());
    }
}
