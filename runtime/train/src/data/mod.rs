//! Data: files on disk become a [`Dataset`], and batches of records its blocks on each device.
//!
//! [`find`] says which files a run reads, [`load`] reads and checks all of them against the model's inputs,
//! [`Dataset::read`] gathers a block of a batch, [`Schedule`] says which records a step takes, and [`Prefetch`] prepares
//! the next step while one is computed.
//!
//! **Invariant:** after [`load`] every record is known to be good; reading cannot fail.

mod array;
mod bind;
mod bytes;
mod dataset;
mod formats;
mod idx;
mod npy;
mod order;
mod prefetch;
mod safetensor;
mod source;

pub use bind::{Places, load};
pub use dataset::Dataset;
pub use order::{Order, Schedule};
pub use prefetch::Prefetch;
pub use source::{FileRef, Source, find, roots};

#[cfg(test)]
mod tests;
