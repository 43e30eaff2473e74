//! A stand-in for the CUDA driver, NCCL, cuBLASLt and NVML on a machine without a GPU: the functions that Meshwright loads,
//! working on host memory, between threads and between processes.
//!
//! **Invariant:** it keeps the rules that matter. Streams are threads that work in order, and events order them, so that memory
//! used before its time gives wrong results. A communicator that is not blocking answers "in progress", and puts work on its
//! stream later. A message that is sent has not ended before it was received. What NCCL would not notice (counts that differ,
//! memory that is no GPU's) is an error here.
//!
//! Members of a communicator meet in a directory under the system's temporary one, named by the unique id: a member
//! writes what it gives as files, and reads those of the others.
//!
//! Faults: `fakeFault("stall:gpu3:call7")` from within the process, or the environment variable `FAKE_NCCL_FAULT` (several
//! are separated by `;`). Kinds: `stall` (never takes part), `error` (an asynchronous error), `refuse` (the call fails at
//! once), `slow` (takes part 300 ms later). Calls of a GPU count from 0, a group as one.
//!
//! Settings: the environment variables `FAKE_NCCL_GPUS` (default 1024), `FAKE_NCCL_VERSION` (23007), `FAKE_CUDA_VERSION`
//! (13000), `FAKE_CUBLASLT_VERSION` (130200), `FAKE_CUDA_MEMORY` (GiB of a GPU, 1), `FAKE_CUBLASLT_REFUSED` (how many handles
//! of cuBLASLt are refused before one is given, 0), `FAKE_CUBLASLT_EPILOGUES` (1; with 0 products have none),
//! `FAKE_CUBLASLT_COMPUTES` (1; with 0 nothing is multiplied, as kernels do nothing).
//!
//! Faults of GPUs: `FAKE_CUDA_LIMIT=1000000` (bytes that a GPU gives, whatever it says that it has; with `:gpu1` that one
//! alone), `FAKE_CUDA_FAULT=700:gpu0:kernel40` (the driver's error of that kernel and of all later calls; `stall` in place of
//! the number: a kernel that never ends), and what NVML knows: `FAKE_NVML_XID=79`, `FAKE_NVML_ECC=3` (errors of memory),
//! `FAKE_NVML_PENDING_ROWS=1`, `FAKE_NVML_LOST=1` (each with `:gpu1` of that one alone), `FAKE_NVML_OLD=1` (a driver that tells
//! none of it). `FAKE_CUDA_GRAPHS_REFUSED=1`: how many graphs are refused before one is made.
//!
//! Graphs keep the order in which streams waited for each other, also those of several streams. While one is captured, calls
//! that CUDA prohibits then break it off, and a communicator ends only when no graph uses it, as NCCL has it.
//!
//! `FAKE_CUDA_LOG=FILE` writes down uploads, kernels and launches of graphs, each with its stream.
//!
//! `FAKE_CUDA_PTX=FOLDER` keeps the text of each kernel that is loaded there, as `ptxas -v` takes it.
//!
//! Kernels do nothing, so that only the calls count; with `FAKE_CUDA_KERNELS=run` an interpreter of their PTX computes what
//! they would (`ptx`), and tells on the standard error what they must not do. `FAKE_CUDA_RACES=1` has it watch shared memory
//! too: that two warps use with no barrier between, or that is read before anyone wrote it.

mod capture;
mod cuda;
mod elements;
mod engine;
mod exchange;
mod faults;
mod fold;
mod kernels;
mod matmuls;
mod nccl;
mod nvml;
mod ops;
mod ptx;
mod stream;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, whatever a panicking thread left.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A number from the environment.
fn setting(name: &str, default: i32) -> i32 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}
