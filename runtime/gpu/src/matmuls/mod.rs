//! Matrix products by cuBLASLt, opened at run time.
//!
//! cuBLASLt counts by columns, and everything here by rows: the product of `left` and `right` is asked for as that of the
//! transposed `right` and the transposed `left`, which in memory are the same matrices. So nothing is copied: a factor
//! that lies by columns is one that is transposed.
//!
//! Factors in FP8 are codes with a scale each, which the library reads from memory of the GPU.
//!
//! **Invariant:** sums of half types and of `f32` are in `f32`, without rounding factors first ([`Sums`] says otherwise where the
//! user does).

mod api;
mod choice;
mod library;
mod matmul;
mod matrix;
mod parts;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests;
mod timing;
mod tuned;

pub use api::Algorithm;
pub use choice::KernelChoices;
pub use library::{MatmulLibrary, installed};
pub use matmul::{Bits, Epilogue, Follows, Matmul, MatmulError, MatmulKey, Sums, WORKSPACE_BYTES, Workspace};
pub use matrix::{Matrix, MatrixElement, Order, matrix_of};
pub use parts::LARGE_PRODUCT;
pub use tuned::{KernelProposal, TunedMatmuls};
