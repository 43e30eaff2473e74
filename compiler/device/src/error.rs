//! Errors of a Plan or of a kernel on one device.

use meshwright_plan::{Arity, DType};
use serde::{Deserialize, Serialize};

/// A kernel that cannot be prepared, or was run with other operands than it was prepared for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KernelError {
    /// Strides do not match the iteration's rank.
    #[error("an operand has {found} strides for {expected} dims")]
    Rank {
        /// Dims of the iteration.
        expected: usize,
        /// Strides given.
        found: usize,
    },
    /// Another number of operands than prepared for.
    #[error("{found} operands where {expected} were expected")]
    Count {
        /// Prepared for.
        expected: usize,
        /// Given.
        found: usize,
    },
    /// An operand of another dtype than prepared for.
    #[error("an operand of {found} where {expected} was expected")]
    DType {
        /// Prepared for.
        expected: DType,
        /// Given.
        found: DType,
    },
    /// An operand that is too short, or an output that has not the exact length.
    #[error("an operand of {found} elements where {expected} were expected")]
    Length {
        /// Prepared for.
        expected: usize,
        /// Given.
        found: usize,
    },
    /// Memory for a result cannot be had.
    #[error("{0}")]
    Memory(String),
    /// Something that has no meaning for these dtypes, or not in that place.
    #[error("{0}")]
    Unsupported(String),
}

/// The reason why a target has no kernel for an attention, which is then computed by plain operations (ADR 40).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum NoAttentionKernel {
    /// The target lacks instructions of the kernels, those for half types on tensor cores.
    #[error("its kernels need a GPU of compute capability 8.0 or later")]
    TensorCores,
    /// Queries of a dtype that kernels do not multiply.
    #[error("its queries are `{0}`, and kernels multiply `bf16`, `f16` and `f32`")]
    Wide(DType),
    /// Keys or values of another dtype than the queries.
    #[error("its queries are `{0}`, but its keys or values `{1}`")]
    Mixed(DType, DType),
    /// An operand besides queries and keys.
    #[error("its scores have an operand of `{0}`")]
    Beside(DType),
    /// Queries and keys of a width that kernels are not made for.
    #[error("its queries and keys are {width} wide, and kernels take multiples of 16 up to {widest}")]
    Width {
        /// Elements of a query.
        width: usize,
        /// Most elements that kernels take of its dtype.
        widest: usize,
    },
    /// The same of values.
    #[error("its values are {width} wide, and kernels take multiples of 16 up to {widest}")]
    ValuesWidth {
        /// Elements of a value.
        width: usize,
        /// Most elements that kernels take of its dtype.
        widest: usize,
    },
    /// Tiles of rows that are wide for the target.
    #[error("its tiles take more than the {0} bytes of shared memory that a block of the device may have")]
    SharedMemory(usize),
    /// A dim of keys or values that another factor of its products lacks.
    #[error("its queries, keys and values do not all have the dim `{0}`")]
    Outer(String),
    /// A bias with a gradient of its own that lacks a dim of the queries, or that of the keys.
    #[error("its bias has a gradient of its own, but lacks the dim `{0}`")]
    Bias(String),
    /// Only values have a gradient.
    #[error("only its values have a gradient, which no kernel gives alone")]
    ValuesAlone,
    /// More positions than are counted in 32 bits.
    #[error("it has {0} queries, keys or tiles, and kernels count fewer than 2147483648")]
    Positions(usize),
    /// A function or a conversion that kernels lack.
    #[error("its scores or weights are computed by {0}, which kernels lack")]
    Function(String),
}

/// The reason why a matmul whose factors are rounded to FP8 runs in `bf16` on a GPU.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum NoFp8Matmul {
    /// The device lacks the library that has such matmuls.
    #[error("the device has no cuBLASLt")]
    Library,
    /// Tensor cores do not multiply FP8.
    #[error("the device multiplies no FP8, which needs the compute capability 8.9")]
    Capability,
    /// Of the formats of both factors no kernel takes the product.
    #[error("both factors are E5M2, and kernels take one at most")]
    BothE5M2,
    /// Rows, columns and summed elements.
    #[error("its extents are {0} x {2} and {2} x {1}, and kernels take multiples of 16")]
    Extents(usize, usize, usize),
    /// Matrices cannot be formed without copies.
    #[error("the dims of its matrices are interleaved, or it has batches")]
    Interleaved,
    /// A collective, a loop or a view is between the rounding of a factor and the matmul.
    #[error("`{0}` is not multiplied where it is rounded: it is moved in between")]
    Moved(String),
    /// A loop stacks a factor, next to the matmul: stacks have the dtype of the Plan.
    #[error("`{0}` is also kept for a later loop, in `bf16`")]
    Kept(String),
    /// A factor has a consumer that needs it in `bf16`.
    #[error("`{factor}` is also read by `{reader}`, which needs it in `bf16`")]
    OtherReader {
        /// The rounded factor.
        factor: String,
        /// Its other consumer.
        reader: String,
    },
}

/// The reason why a step could not be lowered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoweringError {
    /// The Plan contradicts itself.
    #[error("{0}")]
    Plan(String),
    /// There is no kernel for it.
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

impl From<String> for LoweringError {
    fn from(problem: String) -> Self {
        LoweringError::Plan(problem)
    }
}

impl From<Arity> for LoweringError {
    fn from(arity: Arity) -> Self {
        LoweringError::Plan(arity.to_string())
    }
}

/// A Plan that cannot be compiled for a device, and the step at fault, where one is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{source}")]
pub struct CompileError {
    /// The step of the Plan.
    pub step: Option<usize>,
    /// The problem.
    pub source: LoweringError,
}
