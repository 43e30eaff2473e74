//! Own CPU kernels for the primitive steps, but contractions and collectives, on plain slices.
//!
//! A kernel is prepared once for a shape and then run for each training step. Every result depends on nothing but the
//! inputs and the machine's instruction set: not on the number of threads, nor on how the work was cut into blocks.
//! Where the calling thread is in a rayon pool of several threads, large work is shared by the pool.
//!
//! Signatures (all `new` give `Result<Self, KernelError>`, all `run` give `Result<(), KernelError>`; outputs are dense
//! and row-major over the shape named):
//!
//! ```text
//! MapKernel::new(expr, shape, inputs: &[Access], index_offsets: &[usize], outs: &[Reg])
//!     .run(&[Arg], &mut [SliceMut])
//! ReduceKernel::new(monoid, keep: &[usize], fold: &[usize], input: &Access over keep ++ fold, arg_offset)
//!     .run(Slice, SliceMut)                                         out over keep
//! ReduceKernel::scaled_squares(keep, fold, input).run(Slice, SliceMut)   out over keep
//! CopyKernel::new(shape, from: &Access).run(Slice, SliceMut)
//! BlockCopy::new(dtype, out: StridedView, sources, fill).run(&[Slice], SliceMut)
//! ConvolveKernel::new(dtype, gives, &ConvolveShape, elements of input, kernel and result).run(Slice, Slice, SliceMut)
//! LookupKernel::new(shape, table: &Access, along: Along, index: &Access).run(table, index, out)
//! ScatterAddKernel::new(shape, values: &Access, index: &Access, out: &Access, along: Along)
//!     .run(values, index, out)                                      out is set to 0 first
//! UpdateKernel::new(shape, (along, held, count), value: &Access, start: &Access).run(value, start, out)
//! PoolKernel::new(work, dtype, &[Plain], &[Sliding], elements of source and destination).run(Slice, Option<Slice>, SliceMut)
//! SoftmaxKernel::new(dtype, shape, dim, log).run(Arg, SliceMut)    out over shape
//! TopKKernel::new(rows, count, input: &Access over rows ++ [count], ranks)
//!     .run(Slice, SliceMut)                                         out over rows ++ [ranks]
//! CumSumKernel::new(dtype, shape, dim, reverse, exclusive).run(Arg, SliceMut)   out over shape
//! LogSumExpKernel::new(rows, classes, input: &Access over rows ++ [classes]).run(Slice, SliceMut)
//! CrossEntropyKernel::new(rows, classes, logits: &Access over rows ++ [classes], label: &Access over rows)
//!     .run(logits, label, out)                                      out over rows
//! CrossEntropyGradKernel::new(dtype, shape, dim, label: &Access over shape, scale: &Access over shape)
//!     .run(Arg, label, scale, out)                                  out over shape
//! AttentionKernel::new(AttentionPlan).run(&[Slice], &mut [SliceMut], rng)
//! RandomKernel::new(stream, distribution, dtype, sizes, ranges).run(seed, DrawPoint, first_example, out)
//! ```

/// Declares the files of kernels, and passes on what they define.
macro_rules! kernels {
    ($($file:ident)*) => {$(
        mod $file;
        #[allow(unused_imports, unreachable_pub, reason = "what a file keeps for its neighbors is not passed on")]
        pub use $file::*;
    )*};
}

kernels! {
    attention block_copy convolve copy cross_entropy cumsum few_rows index map matmul pool positions random reduce softmax top_k update
}

mod check;
mod data;
mod elementwise;
mod fold;
mod functions;
mod half_types;
mod instruction_set;
mod map_run;
mod math;
mod matrix;
mod par;
mod rows;
mod shared_tasks;
mod strided_walk;
#[cfg(test)]
mod tests;
mod trig;

pub use check::{Along, KernelError};
use check::{check_in, check_out};
pub use data::{Access, Arg, Slice, SliceMut, ValueIndexF32, ValueIndexF64, dense_strides};
