//! What is asked of `generate`.

use super::beams::BeamSearch;
use super::choice::Sampling;
use crate::inference::EvalOptions;
use std::path::PathBuf;

/// What to generate.
#[derive(Clone, Debug)]
pub struct GenerateOptions {
    /// Data, which says how text becomes inputs, and checkpoint.
    pub eval: EvalOptions,
    /// The value of the model that has a number for each token that may be next.
    pub value: String,
    /// A tokenizer in place of that of the data.
    pub tokenizer: Option<PathBuf>,
    /// The texts that are continued.
    pub prompts: Vec<String>,
    /// At most so many tokens are added to each.
    pub max_tokens: usize,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Several texts of each prompt at a time, in place of choosing each token for good.
    pub beams: Option<BeamSearch>,
    /// What is drawn at random is drawn from this.
    pub seed: u64,
}
