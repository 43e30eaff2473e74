//! Matmuls with an epilogue: a function of their elements before they are written, or sums of a factor.

use super::call::{CallWork, KernelCall};
use super::fold::FoldCall;
use super::map::MapCall;
use super::result::{GivenResult, ResultMemory};
use burn_backend::DType as BurnType;
use burn_ir::TensorIr;
use meshwright_plan::Fp8;
use std::sync::Arc;

/// Significant digits of the factors of a matmul.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum FactorDigits {
    /// All.
    #[default]
    All,
    /// TF32: the lower digits are 0, so tensor cores may multiply them.
    Tf32,
    /// The left and the right factor are bytes, codes of these formats, and each has a scale.
    Fp8([Fp8; 2]),
}

impl FactorDigits {
    /// The name of a kernel, by its digits.
    pub(super) fn name(self, [all, tf32, fp8]: [&'static str; 3]) -> &'static str {
        match self {
            FactorDigits::All => all,
            FactorDigits::Tf32 => tf32,
            FactorDigits::Fp8(_) => fp8,
        }
    }

    /// Number of operands behind the factors that scale them.
    pub fn scales(self) -> usize {
        if matches!(self, FactorDigits::Fp8(_)) { 2 } else { 0 }
    }
}

/// Function of the elements of a product, after a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EpilogueFunction {
    /// The element itself.
    Identity,
    /// `max(x, 0)`.
    Relu,
    /// The approximation of `gelu` by `tanh` (Hendrycks & Gimpel 2016, section 2).
    GeluTanh,
}

/// A matmul with an epilogue. Its operands are the factors as matrices, a bias or bits if there are any, and the other
/// operands of the fused step.
///
/// Factors in FP8 are bytes: the left one `[rows, summed]`, the right one `[columns, summed]`, both by rows. Behind them stand the two `f32` numbers by
/// which they are multiplied, and the matmul may have no epilogue.
#[derive(Clone, Debug)]
pub struct MatmulCall {
    /// Rows and columns.
    pub matrices: [usize; 2],
    /// Shape and type of the product alone.
    pub product: (Vec<usize>, BurnType),
    /// Digits of its factors.
    pub digits: FactorDigits,
    /// Whether a bias is added.
    pub biased: bool,
    /// Whether the last result is the bits of the elements that a `relu` let through.
    pub keeps_bits: bool,
    /// The step of the `relu` whose bits are written or read, if any are.
    pub bits_of: Option<usize>,
    /// The epilogue.
    pub beside: MatmulEpilogue,
}

/// An epilogue of a matmul, with the kernel that computes it alone if the library cannot fuse it.
#[derive(Clone, Debug)]
pub enum MatmulEpilogue {
    /// None: the matmul alone.
    Nothing,
    /// A function of the matmul's elements.
    Map {
        /// The function.
        function: EpilogueFunction,
        /// Kernel of the function alone; one element.
        map: Arc<[MapCall]>,
        /// Index of the matmul's result among the operands of `map`.
        at: usize,
    },
    /// A matmul with a bias, and the `gelu` by `tanh` of that. The `gelu` is the first result, its operand the second.
    GeluKeeping {
        /// Kernel of the bias alone; one element.
        map: Arc<[MapCall]>,
        /// Index of the matmul's result among the operands of `map`.
        at: usize,
        /// Kernel of the `gelu` alone; one element.
        gelu: Arc<[MapCall]>,
    },
    /// The gradient of a `relu`. The matmul is the cotangent.
    ReluGrad {
        /// Kernel of the gradient alone; one element.
        map: Arc<[MapCall]>,
        /// Index of the matmul's result among the operands of `map`.
        at: usize,
    },
    /// The gradient of a `gelu` by `tanh`. The matmul is the cotangent, and the operand of the `gelu` is the only other operand.
    GeluGrad {
        /// Kernel of the gradient alone; one element.
        map: Arc<[MapCall]>,
        /// Index of the matmul's result among the operands of `map`.
        at: usize,
    },
    /// Sums of a factor over the summed dim of the matmul. They are the second result.
    FactorSums {
        /// True if the right factor is summed, false if the left one is.
        right: bool,
        /// Kernel of the sums alone; one element.
        fold: Arc<[FoldCall]>,
    },
    /// The matmul is added to the operand behind the factors, in its memory where that ends.
    Adds {
        /// Kernel of the sum alone; one element.
        map: Arc<[MapCall]>,
        /// Index of the matmul's result among the operands of `map`.
        at: usize,
        /// Sums of a factor beside, which are the second result: true if the right factor is summed, and the kernel of the sums
        /// alone.
        sums: Option<(bool, Arc<[FoldCall]>)>,
    },
}

impl MatmulEpilogue {
    /// The factor that is summed beside: true if it is the right one; none if neither is.
    pub fn summed(&self) -> Option<bool> {
        match self {
            MatmulEpilogue::FactorSums { right, .. }
            | MatmulEpilogue::Adds { sums: Some((right, _)), .. } => Some(*right),
            _ => None,
        }
    }

    /// True if matmuls of factors in FP8 have it: a function of their elements, or a value that they are added to. Sums of a factor, and products
    /// with the gradient of a function, they have not.
    pub fn is_of_codes(&self) -> bool {
        matches!(
            self,
            MatmulEpilogue::Nothing
                | MatmulEpilogue::Map { .. }
                | MatmulEpilogue::GeluKeeping { .. }
                | MatmulEpilogue::Adds { sums: None, .. }
        )
    }

    /// True if the matmul is added to an operand.
    pub fn adds(&self) -> bool {
        matches!(self, MatmulEpilogue::Adds { .. })
    }
}

/// Number of factors: the value to which a matmul is added is the operand behind these and their scales.
const FACTORS: usize = 2;

impl KernelCall for MatmulCall {
    const NAME: &'static str = "matmul_fused";

    fn name(&self) -> &'static str {
        match &self.beside {
            MatmulEpilogue::Nothing => self.digits.name(["matmul", "matmul_tf32", "matmul_fp8"]),
            MatmulEpilogue::Adds { .. } => {
                self.digits.name(["matmul_added", "matmul_added_tf32", "matmul_added_fp8"])
            }
            _ => self.digits.name([Self::NAME, "matmul_fused_tf32", "matmul_fused_fp8"]),
        }
    }

    fn result_memory(&self, results: &[TensorIr]) -> ResultMemory {
        // Rows of the product itself may have gaps, where they are one dim.
        let whole = |of: &TensorIr| of.shape.to_vec().last() == Some(&self.matrices[1]);
        let given = |(k, of)| {
            let over =
                if k == 0 && self.beside.adds() { vec![FACTORS + self.digits.scales()] } else { vec![] };
            GivenResult { over, gaps: k == 0 && whole(of), alike: true }
        };
        ResultMemory::Given(results.iter().enumerate().map(given).collect())
    }

    fn work(&self) -> CallWork {
        let in_8_bits = matches!(self.digits, FactorDigits::Fp8(_));
        CallWork { summed: self.beside.summed().map(usize::from), in_8_bits, ..CallWork::default() }
    }
}

/// Alignment of a row of `relu` bits (`CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD`).
const BITS_OF_A_ROW: usize = 128;

/// Bytes of the `relu` bits of a matrix of these rows and columns, as cuBLASLt writes them.
pub fn relu_bits([rows, columns]: [usize; 2]) -> usize {
    rows * columns.next_multiple_of(BITS_OF_A_ROW) / 8
}
