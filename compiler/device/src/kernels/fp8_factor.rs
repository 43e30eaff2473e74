//! Factors of FP8 matmuls: rounded values as bytes.

use super::call::KernelCall;
use super::map::MapCall;
use meshwright_plan::{DType, Fp8};
use meshwright_sorted::SortedSet;
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

impl Fp8FactorCall {
    /// Number of its results.
    pub fn results(&self) -> usize {
        usize::from(self.plain) + usize::from(self.turned)
    }
}

/// Factors that do not depend on each other, such as the weights of a layer. Operands and results are those of one after the
/// other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fp8FactorCalls(pub Vec<Fp8FactorCall>);

impl KernelCall for Fp8FactorCalls {
    const NAME: &'static str = "fp8_factor";
    const BY_ELEMENTS: bool = true;

    /// One for each half type of operands.
    fn starts(&self) -> u64 {
        self.0.iter().map(|call| call.map.half).collect::<SortedSet<Option<DType>>>().len() as u64
    }
}
