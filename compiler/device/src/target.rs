//! Targets: kinds of devices as values.

use burn_backend::{BoolStore, DType as BurnType};
use serde::{Deserialize, Serialize};

/// A kind of device with the kernels and libraries that a device plan may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Target {
    /// Kind of the device.
    pub kind: TargetKind,
    /// Burn's dtype of truth values within a step.
    pub boolean: BurnType,
    /// Kernels work on the memory of the host. They accept empty tensors, and pairs of value and index as one tensor. Storage
    /// returns to the device's pool, so the last read by an operation of Burn is followed by a drop.
    pub host_kernels: bool,
    /// All matmuls are kernels of the target; Burn's matmul is not used.
    pub own_matmul: bool,
    /// The target has kernels for element-wise steps.
    pub maps: bool,
    /// The target has kernels whose threads form blocks: folds, rows, lookups, windows.
    pub blocks: bool,
    /// Kernels multiply half types on tensor cores.
    pub tensor_cores: bool,
    /// The library multiplies factors in FP8.
    pub fp8: bool,
    /// Bytes of shared memory that a block may have; 0 without blocks.
    pub shared_memory: usize,
    /// Matmuls have epilogues.
    pub epilogues: bool,
    /// Matmuls of one shape that share a factor are one launch.
    pub joined_products: bool,
    /// Approximate limit of the scores that are live at once in an attention of Burn's operations.
    pub scores_at_once: usize,
}

/// Kind of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum TargetKind {
    /// A thread of the host with this project's kernels for CPUs.
    Cpu,
    /// The host with Burn's operations, as on a GPU without kernels: the reference of tests.
    BurnOnHost,
    /// The host with the element-wise kernels of GPUs, compiled for the CPU: for tests.
    CompiledOnHost,
    /// An NVIDIA GPU.
    Cuda,
}

/// Scores of an attention of Burn's operations: 128 MiB of `f32`, and a few times as much for intermediate results.
const SCORES_AT_ONCE: usize = 1 << 25;
/// The same limit for tests, so small that they go through several tiles.
const FEW_SCORES_AT_ONCE: usize = 64;
/// Least compute capability with the instructions of the kernels for half types (`mma.m16n8k16`, `ldmatrix`).
const TENSOR_CORES: (u32, u32) = (8, 0);
/// Least compute capability whose tensor cores multiply FP8 (NVIDIA, *cuBLAS*, "cublasLtMatmul").
const FP8: (u32, u32) = (8, 9);

/// Bytes of shared memory that a block may have at a compute capability (CUDA C++ Programming Guide, "Technical Specifications
/// per Compute Capability"); of one that is not listed those of the smallest after 8.0.
fn shared_memory(capability: (u32, u32)) -> usize {
    let kibibytes = match capability {
        (7, 5) => 64,
        (7, 0) => 96,
        (8, 0 | 7) => 163,
        (9, 0) | (10, _) => 227,
        _ => 99,
    };
    kibibytes << 10
}

impl Target {
    /// Whether results of kernels lie in an arena.
    pub fn has_arena(&self) -> bool {
        self.maps
    }

    /// A CPU: the target of `--device cpu`.
    pub fn cpu() -> Target {
        Target {
            kind: TargetKind::Cpu,
            boolean: BurnType::Bool(BoolStore::Native),
            host_kernels: true,
            own_matmul: false,
            maps: false,
            blocks: false,
            tensor_cores: false,
            fp8: false,
            shared_memory: 0,
            epilogues: false,
            joined_products: false,
            scores_at_once: usize::MAX,
        }
    }

    /// The host with Burn's operations; `own_matmul` adds the stand-in for cuBLASLt.
    pub fn burn_on_host(own_matmul: bool) -> Target {
        Target {
            kind: TargetKind::BurnOnHost,
            host_kernels: false,
            own_matmul,
            scores_at_once: FEW_SCORES_AT_ONCE,
            ..Target::cpu()
        }
    }

    /// The host with compiled element-wise kernels.
    pub fn compiled_on_host() -> Target {
        Target {
            kind: TargetKind::CompiledOnHost,
            boolean: BurnType::Bool(BoolStore::U8),
            own_matmul: true,
            maps: true,
            scores_at_once: SCORES_AT_ONCE,
            ..Target::burn_on_host(true)
        }
    }

    /// An NVIDIA GPU of a compute capability (major, minor), with or without cuBLASLt.
    pub fn cuda(capability: (u32, u32), cublaslt: bool) -> Target {
        Target {
            kind: TargetKind::Cuda,
            blocks: true,
            tensor_cores: capability >= TENSOR_CORES,
            fp8: cublaslt && capability >= FP8,
            shared_memory: shared_memory(capability),
            epilogues: cublaslt,
            joined_products: cublaslt,
            ..Target::compiled_on_host()
        }
    }

    /// An H100 with cuBLASLt: the target of `--device cuda`, for which no GPU is needed.
    pub fn h100() -> Target {
        Target::cuda((9, 0), true)
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.kind {
            TargetKind::Cpu => "cpu",
            TargetKind::BurnOnHost => "burn",
            TargetKind::CompiledOnHost => "cubecl-cpu",
            TargetKind::Cuda => "cuda",
        })?;
        match self.kind {
            TargetKind::Cuda if !self.tensor_cores => f.write_str(" without tensor cores"),
            TargetKind::Cuda if !self.epilogues => f.write_str(" without cuBLASLt"),
            TargetKind::Cuda if !self.fp8 => f.write_str(" without FP8"),
            _ => Ok(()),
        }
    }
}
