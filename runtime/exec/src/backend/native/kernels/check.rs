//! What all kernels check of their operands, and what can be wrong with them.

use crate::tensor::{Slice, SliceMut};
use meshwright_plan::DType;

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

/// The dim that is looked up or scattered to, as this device's operand holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Along {
    /// Its stride in the table (lookup) or the output (scatter), in elements.
    pub stride: usize,
    /// First global position that this device holds.
    pub start: usize,
    /// How many positions it holds.
    pub len: usize,
}

/// Fails unless an input has that dtype and at least so many elements.
pub(super) fn check_in(slice: &Slice<'_>, dtype: DType, reach: usize) -> Result<(), KernelError> {
    if slice.dtype() != dtype {
        return Err(KernelError::DType { expected: dtype, found: slice.dtype() });
    }
    if slice.len() < reach {
        return Err(KernelError::Length { expected: reach, found: slice.len() });
    }
    Ok(())
}

/// Fails unless an output has that dtype and exactly so many elements.
pub(super) fn check_out(slice: &SliceMut<'_>, dtype: DType, len: usize) -> Result<(), KernelError> {
    if slice.dtype() != dtype {
        return Err(KernelError::DType { expected: dtype, found: slice.dtype() });
    }
    if slice.len() != len {
        return Err(KernelError::Length { expected: len, found: slice.len() });
    }
    Ok(())
}
