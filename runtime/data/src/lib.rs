//! Data: files on disk become a [`Dataset`], and batches of records its blocks on each device.
//!
//! [`find`] says which files a run reads, [`load`] opens and checks all of them against the model's inputs,
//! [`Dataset::read`] gathers a block of a batch, [`Schedule`] says which records a step takes, and [`Prefetch`] prepares
//! the next step while one is computed.
//!
//! **Invariant:** a value is checked before it is used: those of small files by [`load`], those of large ones, which stay
//! where they are, when they are read.

mod array;
mod bind;
mod binding;
mod bytes;
mod catch;
mod column;
mod convert;
pub mod corpus;
mod csv_table;
mod damaged;
mod dataset;
mod encoded;
mod file_piece;
mod find;
mod folders;
mod formats;
mod idx;
mod image;
mod input_files;
mod input_info;
mod manifest;
mod npy;
mod npz;
mod order;
mod pattern;
mod prefetch;
mod safetensor;
mod schedule;
mod shards;
mod signed;
mod source;
mod tokens;

pub use bind::load;
pub use binding::{InputBinding, Places};
use bytes::Bytes;
pub use catch::panics_are_awaited;
pub use convert::converted;
pub use dataset::Dataset;
pub use find::{find, only_split, roots};
pub use order::{EpochSeed, Order};
use pattern::files;
pub use prefetch::Prefetch;
pub use schedule::Schedule;
pub use source::{FileRef, InputSource, OrderSource, Source, SplitSource, StreamCut};
pub use tokens::{TaskKind, TaskOptions, TokenFiles, TokenSource};

#[cfg(test)]
mod label_tests;
#[cfg(test)]
mod set_tests;
#[cfg(test)]
mod shard_tests;
#[cfg(test)]
mod test_case;
#[cfg(test)]
mod tests;
