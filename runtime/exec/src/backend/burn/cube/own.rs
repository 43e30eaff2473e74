//! Kernels from our own source, as the lowering of steps names them.

#[cfg(feature = "cuda")]
use super::attention::AttentionCall;
#[cfg(feature = "cuda")]
use super::epilogue::ProductCall;
#[cfg(feature = "cuda")]
use super::folds::FoldCall;
use super::maps::MapCall;
use crate::engine::arena::ResultMemory;
use burn_ir::TensorIr;
#[cfg(feature = "cuda")]
use std::sync::Arc;

/// A kernel with what is known of it when a Plan is loaded.
pub(crate) enum OwnKernel {
    /// Element-wise steps that do not depend on each other.
    Map(Arc<[MapCall]>),
    /// Folds that do not depend on each other.
    #[cfg(feature = "cuda")]
    Fold(Arc<[FoldCall]>),
    #[cfg(feature = "cuda")]
    Attention(Arc<AttentionCall>),
    /// A product that does more in the same kernel.
    #[cfg(feature = "cuda")]
    Product(Arc<ProductCall>),
}

impl OwnKernel {
    /// Where its results can be.
    pub(crate) fn result_memory(&self, results: &[TensorIr]) -> ResultMemory {
        let none = || vec![vec![]; results.len()];
        match self {
            OwnKernel::Map(calls) => ResultMemory::Given { over: over(calls), gaps: true },
            #[cfg(feature = "cuda")]
            OwnKernel::Fold(_) | OwnKernel::Attention(_) => ResultMemory::Given { over: none(), gaps: false },
            #[cfg(feature = "cuda")]
            OwnKernel::Product(call) => {
                // Those of its matrix, where they are one dim.
                let gaps = results[0].shape.to_vec().last() == Some(&call.matrices[1]);
                ResultMemory::Given { over: none(), gaps }
            }
        }
    }
}

/// For each result the operands in whose place it can be.
fn over(calls: &[MapCall]) -> Vec<Vec<usize>> {
    let (mut first, mut all) = (0, vec![]);
    for call in calls {
        all.extend(call.over.iter().map(|over| over.iter().map(|i| first + i).collect()));
        first += call.tensors();
    }
    all
}
