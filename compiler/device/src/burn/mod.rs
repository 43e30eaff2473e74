//! Steps as operations of Burn and kernels of GPUs.
//!
//! - Truth values are stored as bytes, and are the target's truth values within a step.
//! - A pair of value and index is stored as two tensors: the values in the dtype of what was folded, the indices as `I32`.
//!   So every fold is exact, of integers too, and no dtype is needed that GPUs lack. A dim of more than 2^31 - 1 elements
//!   cannot be counted, here as in the Plan's `I32` indices.
//! - Random values are the same bits as everywhere: devices that kernels are compiled for draw them, and the host for others.
//! - Sums of half types are computed in `F32`.
//! - An empty buffer has no tensor; a step that writes none does nothing.

mod attention;
mod blocks;
mod contract;
mod emit;
mod epilogue;
mod fold;
mod fp8;
mod fp8_matmul;
mod functions;
mod index;
mod int;
mod joins;
mod lower;
mod map;
mod pairs;
mod reduce;
mod rows;
mod windows;
