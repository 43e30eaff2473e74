//! The options of `generate`.

use super::{CheckpointArgs, FormatArgs};
use crate::value_parsers;
use clap::Args;
use meshwright_train::BeamSearch;
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  meshwright generate runs/gpt-1 --prompt 'In the beginning'
  meshwright generate runs/gpt-1 --prompt 'And he said' --temperature 0.8 --top-k 40 --seed 7
  meshwright generate runs/gpt-1 --prompts beginnings.txt --max-tokens 50 --format json
  meshwright generate runs/gpt-1 --prompt 'And it came' --beams 4 --length-penalty 0.6 --num-results 2
  meshwright generate gpt --checkpoint gpt.safetensors --tokenizer tokenizer.json --prompt 'In the' --layout tp --mesh model=2

Text of a single prompt appears as it is made. It ends by the token that ends texts, after --max-tokens, or where the model has no
positions left. What is drawn depends on --seed, the number of the prompt and the position alone: not on other prompts, nor on the
layout.")]
pub(crate) struct GenerateArgs {
    #[command(flatten)]
    pub(crate) what: CheckpointArgs,
    /// A text to continue; may be repeated.
    #[arg(long = "prompt", value_name = "TEXT", required_unless_present = "prompts")]
    pub(crate) prompt: Vec<String>,
    /// A file of texts to continue, one a line.
    #[arg(long, value_name = "FILE")]
    pub(crate) prompts: Option<PathBuf>,
    /// At most so many tokens for each text.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_tokens: u32,
    /// 0 takes the most probable token always; 1 draws by the model's probabilities; between them probable ones are drawn more
    /// often than that, and above 1 less.
    #[arg(long, value_name = "T", default_value_t = 0.0, allow_negative_numbers = true,
        value_parser = value_parsers::temperature)]
    pub(crate) temperature: f64,
    /// Draw among the K most probable tokens alone.
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) top_k: Option<u32>,
    /// Draw among the most probable tokens that together have this probability.
    #[arg(long, value_name = "P", value_parser = value_parsers::probability)]
    pub(crate) top_p: Option<f64>,
    /// Beam search: the N most probable texts of each prompt go on together, and the best that ends is told.
    #[arg(long, value_name = "N", conflicts_with_all = ["temperature", "top_k", "top_p"], help_heading = "Beam search",
        value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) beams: Option<u16>,
    /// Compare texts that have ended by log(P) / ((5 + length) / 6)^A: 0 compares their probabilities, and the greater A is, the
    /// more long ones are preferred.
    #[arg(long, value_name = "A", default_value_t = 0.0, requires = "beams", help_heading = "Beam search",
        allow_negative_numbers = true, value_parser = value_parsers::length_penalty)]
    pub(crate) length_penalty: f64,
    /// Tell the N best texts of each prompt, not more than --beams.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "beams", help_heading = "Beam search",
        value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) num_results: u16,
    /// Seed of what is drawn.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
    /// The value of the model that has a number for each token that may be next.
    #[arg(long, value_name = "NAME", default_value = "logits")]
    pub(crate) value: String,
    /// The tokenizer: a tokenizer.json, or a list of word pieces [default: that of --data, the one imported with the run, or that
    /// of its data]
    #[arg(long, value_name = "FILE")]
    pub(crate) tokenizer: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) format: FormatArgs,
}

impl GenerateArgs {
    /// The options that change nothing, since the most probable token is always taken.
    pub(crate) fn idle(&self) -> Vec<String> {
        if self.temperature > 0.0 || self.beams.is_some() {
            return Vec::new();
        }
        let top_k = self.top_k.map(|k| format!("--top-k {k}"));
        let top_p = self.top_p.map(|p| format!("--top-p {p}"));
        let seed = (self.seed != 0).then(|| format!("--seed {}", self.seed));
        top_k.into_iter().chain(top_p).chain(seed).collect()
    }

    /// The beam search that is asked for.
    pub(crate) fn search(&self) -> Option<BeamSearch> {
        let (width, results) = (usize::from(self.beams?), usize::from(self.num_results));
        Some(BeamSearch { width, length_penalty: self.length_penalty, results })
    }
}
