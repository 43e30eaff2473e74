//! What can be wrong with a Plan or a kernel of it on one device.

use meshwright_plan::{Arity, DType};

/// A kernel that cannot be prepared, or was run with what it was not prepared for.
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
    /// There is no memory for a result.
    #[error("{0}")]
    Memory(String),
    /// Something that has no meaning for these dtypes, or not in that place.
    #[error("{0}")]
    Unsupported(String),
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
