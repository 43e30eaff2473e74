//! Files, for the crates that keep something in them: folders that no link leads out of, files that are replaced or written as a
//! whole, texts with a limit, the paths and tensors that files hold, the user's caches, and numbers and lists as messages about
//! them have them.
//!
//! **Invariant:** nothing that a stranger has put into a file or a folder is followed, waited for or taken without a limit.

mod allocator;
mod caches;
pub mod durable;
pub mod folder;
pub mod given_paths;
pub mod replacing;
pub mod tensor;
pub mod text;
pub mod text_file;

pub use allocator::{DiagnosedAllocator, try_reserve};
pub use caches::{cache_folder, caches_of, keep_in};
pub use replacing::{ReplacingFile, write_whole};
pub use tensor::RawTensor;

/// A result whose error is one message to the user.
pub type Checked<T> = Result<T, Box<meshwright_diag::Diagnostic>>;

#[cfg(target_endian = "big")]
compile_error!("data, checkpoints and buffers share one byte order: little-endian");
