//! Factors of FP8 matmuls: rounded values as bytes.

use super::call::KernelCall;
use super::map::MapCall;
use meshwright_plan::Fp8;
use serde::{Deserialize, Serialize};

/// A value that is scaled, rounded to FP8 and stored as bytes, for matmuls that sum along its last dims, along its first, or
/// both. Operands: those of the map. Results: the codes in the order of the dims, if `plain`; then those of the transposed
/// matrix, if `turned`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fp8FactorCall {
    /// The element-wise step. Its only result is the scaled value in `f32`, which is rounded to the format and not stored.
    pub map: MapCall,
    /// The format of the codes.
    pub format: Fp8,
    /// Rows and columns of the value as a matrix.
    pub matrix: [usize; 2],
    /// Whether the matrix is stored by rows: one result, of the extents of the value.
    pub plain: bool,
    /// Whether it is stored by columns: one result, of `[columns, rows]`.
    pub turned: bool,
}

impl KernelCall for Fp8FactorCall {
    const NAME: &'static str = "fp8_factor";
    const BY_ELEMENTS: bool = true;
}
