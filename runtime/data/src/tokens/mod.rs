//! Examples from text: `tokens` of a set names the text and the task, and inputs are fields of the examples.
//!
//! **Invariant:** an example is a function of the text, the settings, the seed, the epoch and its number. Nothing is kept from
//! one example to the next, so any device can make any part of any batch.

mod classify;
mod examples;
mod masked_tokens;
mod next_tokens;
mod rng;
mod setting;
mod spans;
mod stream;
mod task;
mod windows;

pub(super) use setting::token_source;
pub(super) use task::Field;
pub use task::{TaskKind, TaskOptions, TokenFiles, TokenSource};
pub(super) use windows::TokenExamples;

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(super) use tests::words;
