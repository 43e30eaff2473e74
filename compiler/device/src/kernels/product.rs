//! Matrix products with an epilogue: what is done to the elements before they are written, or summed of a factor that is read anyway.

use super::fold::FoldCall;
use super::map::MapCall;
use crate::passes::epilogues::ProductFunction;
use burn_backend::DType as BurnType;
use std::sync::Arc;

/// A product with an epilogue. Its operands are the factors as matrices, a bias or bits where it has them, and what the other step reads beside
/// the product.
#[derive(Clone, Debug)]
pub struct ProductCall {
    /// Rows and columns.
    pub matrices: [usize; 2],
    /// Shape and type of the product alone.
    pub product: (Vec<usize>, BurnType),
    /// Whether a bias is added.
    pub biased: bool,
    /// Whether the last result is which elements a `relu` let through.
    pub keeps_bits: bool,
    /// The step of the `relu` whose bits are written or read, if any are.
    pub bits_of: Option<usize>,
    /// What is done.
    pub beside: BesideProduct,
}

/// What is done beside a product, and the kernel that does it alone.
#[derive(Clone, Debug)]
pub enum BesideProduct {
    /// A function of its elements; `at` is the product's place among the operands of the kernel.
    Map { function: ProductFunction, map: Arc<[MapCall]>, at: usize },
    /// A `gelu` by `tanh`, which is the first result, of what a map makes of its elements, which is the second.
    GeluKeeping { map: Arc<[MapCall]>, at: usize, gelu: Arc<[MapCall]> },
    /// The gradient of a `relu`.
    ReluGrad { map: Arc<[MapCall]>, at: usize },
    /// The gradient of a `gelu` by `tanh`; what it was applied to is all that the kernel reads beside.
    GeluGrad { map: Arc<[MapCall]>, at: usize },
    /// Sums of the right or the left factor.
    FactorSums { right: bool, fold: Arc<[FoldCall]> },
}

/// Bits that a row of what a `relu` let through is a multiple of (`CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD`).
const BITS_OF_A_ROW: usize = 128;

/// Bytes of the bits that say which elements of a matrix of so many rows and columns a `relu` let through, as cuBLASLt writes them.
pub fn relu_bits([rows, columns]: [usize; 2]) -> usize {
    rows * columns.next_multiple_of(BITS_OF_A_ROW) / 8
}
