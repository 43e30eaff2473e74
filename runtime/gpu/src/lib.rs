//! The GPUs of this machine: the libraries that drive them, opened at run time, and their reports.
//!
//! **Invariant:** no GPU and no part of CUDA is needed to build or to start: a missing library is an error that names
//! it.

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
#[path = "../../../tests/fake-nccl/built.rs"]
mod built;
pub mod devices;
pub mod driver;
mod health;
pub mod load;
pub mod matmuls;
pub mod monitor;
mod nvml;
