//! What is asked of `generate`, once its prompts are read.

use super::options::GenerateOptions;
use super::prompts::{Prompts, TextInputs};
use super::sequence::Limits;
use crate::failure::Failure;
use crate::project::Project;
use meshwright_data::corpus::TextTokenizer;

/// What is asked for.
pub(super) struct Question {
    /// The project with a batch as large as there are prompts.
    pub(super) project: Project,
    pub(super) inputs: TextInputs,
    pub(super) tokenizer: TextTokenizer,
    pub(super) prompts: Prompts,
    /// Ends a text.
    pub(super) end: Option<u32>,
    pub(super) context: usize,
}

impl Question {
    pub(super) fn of(project: &Project, options: &GenerateOptions) -> Result<Question, Failure> {
        let inputs = TextInputs::of(project, options)?;
        let tokenizer = inputs.tokenizer(options)?;
        let context = inputs.context(project);
        let prompts = Prompts::of(project, &inputs, &tokenizer, options)?;
        let project = project.with_batch(prompts.tokens.len())?;
        let end = tokenizer.special().end;
        Ok(Question { project, inputs, tokenizer, prompts, end, context })
    }

    pub(super) fn limits(&self, options: &GenerateOptions) -> Limits {
        Limits { end: self.end, most: options.max_tokens, context: self.context }
    }
}
