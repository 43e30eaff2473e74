//! Kernels from our own source, as the lowering of steps names them.

#[cfg(feature = "cuda")]
use super::attention::AttentionCall;
#[cfg(feature = "cuda")]
use super::epilogue::ProductCall;
#[cfg(feature = "cuda")]
use super::folds::FoldCall;
use super::maps::MapCall;
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
