//! The call of matmuls that share a factor.

use super::super::call::{CallWork, KernelCall, SpacedTensors};
use super::super::fold::FoldCall;
use super::super::map::MapCall;
use super::super::matmul::FactorDigits;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::sync::Arc;

/// Matmuls of one shape that share a factor. Operands: the shared factor; the other factor of each; with biases, the added
/// vectors and then the buffers from which these were computed. Results: each matmul, then the sums of each. Matrices are
/// contiguous, and those of the matmuls lie at equal distances, so that a library computes all as one batched matmul.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MatmulGroupCall {
    /// Number of matmuls.
    pub count: usize,
    /// Rows, columns and summed elements of each.
    pub sizes: [usize; 3],
    /// Whether they share the left factor.
    pub shares_left: bool,
    /// Whether the left and the right factors lie by columns.
    pub by_columns: [bool; 2],
    /// Digits of the factors.
    pub digits: FactorDigits,
    /// Epilogue of each.
    pub beside: GroupEpilogue,
}

/// Epilogue of each matmul, and the kernels that compute the epilogues alone if the library cannot fuse them: one for each
/// matmul.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum GroupEpilogue {
    /// None.
    Nothing,
    /// A bias along the columns.
    Bias {
        /// Kernel of the biases alone.
        map: Arc<[MapCall]>,
        /// Index of the matmul among the two operands of each.
        at: usize,
    },
    /// Sums of the factor that is not shared over what the matmul sums.
    Sums {
        /// Kernel of the sums alone.
        fold: Arc<[FoldCall]>,
    },
}

impl MatmulGroupCall {
    /// The operands that are factors of one matmul each.
    pub fn own(&self) -> Range<usize> {
        1..1 + self.count
    }

    /// The operands that are vectors of the biases; none without.
    pub fn vectors(&self) -> Range<usize> {
        let many = if matches!(self.beside, GroupEpilogue::Bias { .. }) { self.count } else { 0 };
        1 + self.count..1 + self.count + many
    }

    /// Rows and columns of the left and of the right factor.
    pub fn factors(&self) -> [[usize; 2]; 2] {
        let [rows, columns, summed] = self.sizes;
        [[rows, summed], [summed, columns]]
    }
}

impl KernelCall for MatmulGroupCall {
    const NAME: &'static str = "matmuls";

    fn name(&self) -> &'static str {
        self.digits.name([Self::NAME, "matmuls_tf32", "matmuls_fp8"])
    }

    fn spaced(&self) -> Vec<SpacedTensors> {
        let mut all = vec![SpacedTensors::Reads(self.own()), SpacedTensors::Writes(0..self.count)];
        match self.beside {
            GroupEpilogue::Nothing => {}
            GroupEpilogue::Bias { .. } => all.push(SpacedTensors::Reads(self.vectors())),
            GroupEpilogue::Sums { .. } => all.push(SpacedTensors::Writes(self.count..2 * self.count)),
        }
        all
    }

    fn work(&self) -> CallWork {
        let sums = matches!(self.beside, GroupEpilogue::Sums { .. });
        CallWork {
            joined: true,
            summed: sums.then_some(usize::from(self.shares_left)),
            ..CallWork::default()
        }
    }
}
