//! Kernels from our own source, as the lowering of steps names them.

#[cfg(feature = "cuda")]
use super::attention::AttentionCall;
#[cfg(feature = "cuda")]
use super::epilogue::ProductCall;
#[cfg(feature = "cuda")]
use super::folds::FoldCall;
#[cfg(feature = "cuda")]
use super::index::{IndexCall, ScatterCall};
use super::maps::{JoinCall, MapCall};
#[cfg(feature = "cuda")]
use super::rows::RowCall;
#[cfg(feature = "cuda")]
use super::windows::{ConvolveCall, PoolCall};
use crate::engine::arena::GivenResult;
use burn_ir::TensorIr;
use std::sync::Arc;

/// A kernel with what is known of it when a Plan is loaded.
pub(crate) enum OwnKernel {
    /// Element-wise steps that do not depend on each other.
    Map(Arc<[MapCall]>),
    /// Ranges, one after the other.
    Join(Arc<JoinCall>),
    /// Folds that do not depend on each other.
    #[cfg(feature = "cuda")]
    Fold(Arc<[FoldCall]>),
    /// Steps along rows.
    #[cfg(feature = "cuda")]
    Rows(Arc<RowCall>),
    #[cfg(feature = "cuda")]
    Attention(Arc<AttentionCall>),
    #[cfg(feature = "cuda")]
    Convolve(Arc<ConvolveCall>),
    #[cfg(feature = "cuda")]
    LookUp(Arc<IndexCall>),
    /// The transpose of a lookup.
    #[cfg(feature = "cuda")]
    Scatter(Arc<ScatterCall>),
    /// A pool, or the transpose of one.
    #[cfg(feature = "cuda")]
    Pool(Arc<PoolCall>),
    /// A product that does more in the same kernel.
    #[cfg(feature = "cuda")]
    Product(Arc<ProductCall>),
}

impl OwnKernel {
    /// What may be done with its results.
    pub(crate) fn given(&self, results: &[TensorIr]) -> Vec<GivenResult> {
        match self {
            OwnKernel::Map(calls) => of_maps(calls),
            OwnKernel::Join(_) => vec![GivenResult { over: vec![], gaps: true }; results.len()],
            #[cfg(feature = "cuda")]
            OwnKernel::LookUp(_)
            | OwnKernel::Scatter(_)
            | OwnKernel::Fold(_)
            | OwnKernel::Attention(_)
            | OwnKernel::Convolve(_)
            | OwnKernel::Pool(_) => {
                vec![GivenResult::default(); results.len()]
            }
            #[cfg(feature = "cuda")]
            OwnKernel::Rows(call) => {
                let result = |over: &Vec<usize>| GivenResult { over: over.clone(), gaps: true };
                call.over.iter().map(result).collect()
            }
            #[cfg(feature = "cuda")]
            OwnKernel::Product(call) => {
                let mut all = vec![GivenResult::default(); results.len()];
                // Rows of the product itself, where they are one dim.
                all[0].gaps = results[0].shape.to_vec().last() == Some(&call.matrices[1]);
                all
            }
        }
    }
}

fn of_maps(calls: &[MapCall]) -> Vec<GivenResult> {
    let (mut first, mut all) = (0, vec![]);
    for call in calls {
        let result =
            |over: &Vec<usize>| GivenResult { over: over.iter().map(|i| first + i).collect(), gaps: true };
        all.extend(call.over.iter().map(result));
        first += call.tensors();
    }
    all
}
