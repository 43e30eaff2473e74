//! The batches of a data set as whole tensors, in the order in which a training takes them.

use crate::devices::dataset;
use crate::devices::host_tensor::host_of;
use crate::failure::Failure;
use crate::project::Project;
use crate::stepping::batch_blocks::{InputForm, input_forms};
use crate::training::TrainOptions;
use crate::training::evaluator::data_failed;
use meshwright_data::{BatchSampler, Dataset, EpochSeed};
use meshwright_exec::HostTensor;
use std::ops::Range;

/// A split of the data, batch by batch.
pub struct BatchReader {
    set: Dataset,
    /// The order of a training; without one, that of the file.
    sampler: Option<BatchSampler>,
    inputs: Vec<InputForm>,
    examples: usize,
}

impl BatchReader {
    /// Opens a split of the data that `options` name. The batches of `train` are those of a run with the seed of `options`, those
    /// of other splits are in the order of the file, of which the last may be smaller.
    ///
    /// # Errors
    /// Those of the data, and where there is no such split, or not one whole batch to train on.
    pub fn open(project: &Project, options: &TrainOptions, split: &str) -> Result<BatchReader, Failure> {
        let Some(set) = dataset(project, options.wanted()?, split, true)? else {
            return Err(data_failed(format!("there is no `{split}` split")));
        };
        let (examples, seed) = (project.batch(), options.seed.unwrap_or(0));
        let sampler = match split {
            "train" => match BatchSampler::of(seed, &set, examples) {
                Some(sampler) => Some(sampler),
                None => return Err(data_failed("there is not one whole batch".into())),
            },
            _ => None,
        };
        Ok(BatchReader { set, sampler, inputs: input_forms(project), examples })
    }

    /// Batches in an epoch of training, or in the split.
    pub fn batches(&self) -> u64 {
        match &self.sampler {
            Some(sampler) => sampler.steps_per_epoch(),
            None => self.set.records().div_ceil(self.examples) as u64,
        }
    }

    /// The batch of that number, from 0, by input. Those of a training go on over epochs.
    ///
    /// # Errors
    /// Where the data cannot be read, or is not what the inputs take.
    pub fn batch(&self, n: u64) -> Result<Vec<(String, HostTensor)>, Failure> {
        let (records, seed) = match &self.sampler {
            Some(sampler) => (sampler.records(n, 0..self.examples), sampler.epoch_seed(n)),
            None => {
                let first = (n as usize).saturating_mul(self.examples).min(self.set.records());
                let last = first.saturating_add(self.examples).min(self.set.records());
                ((first..last).collect(), EpochSeed::default())
            }
        };
        let mut out = Vec::new();
        for form in &self.inputs {
            let Some(input) = self.set.find(&form.name) else { continue };
            let ranges: Vec<Range<usize>> = form.shape[1..].iter().map(|n| 0..*n).collect();
            let block = self.set.block(input, (&records, seed), &ranges)?;
            out.extend(host_of(block).map(|t| (form.name.clone(), t)));
        }
        Ok(out)
    }
}
