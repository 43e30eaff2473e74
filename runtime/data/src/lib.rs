//! Data: files on disk become a [`Dataset`], and batches of records its blocks on each device.
//!
//! [`find`] says which files a run reads, [`load`] opens and checks all of them against the model's inputs,
//! [`Dataset::read`] gathers a block of a batch, [`BatchSampler`] says which records a step takes, and [`Prefetch`] prepares
//! the next step while one is computed.
//!
//! **Invariant:** a value is checked before it is used: those of small files by [`load`], those of large ones, which stay
//! where they are, when they are read.

mod catch;
pub mod corpus;
mod dataset;
mod readers;
mod source;
mod tokens;

pub use catch::panics_are_awaited;
pub use dataset::Dataset;
pub use dataset::batch_sampler::BatchSampler;
pub use dataset::bind::load;
pub use dataset::binding::{InputBinding, Places};
pub use dataset::convert::{Unconverted, converted};
pub use dataset::order::{EpochSeed, Order};
pub use dataset::prefetch::Prefetch;
use readers::bytes::Bytes;
pub use source::find::{find, only_split, roots};
use source::pattern::files;
pub use source::{FileRef, InputSource, OrderSource, Source, SplitSource, StreamCut};
pub use tokens::{TaskKind, TaskOptions, TokenFiles, TokenSource};

#[cfg(test)]
mod tests;
