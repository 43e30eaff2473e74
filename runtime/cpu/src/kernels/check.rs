//! Checks of operands, and their errors.

pub use meshwright_device::KernelError;
use meshwright_exec::{Slice, SliceMut};
use meshwright_plan::DType;

/// The dim that is looked up or scattered to, as this device's operand holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Along {
    /// Its stride in the table (lookup) or the output (scatter), in elements.
    pub stride: usize,
    /// First global position that this device holds.
    pub start: usize,
    /// Number of positions that it holds.
    pub len: usize,
}

/// Fails unless an input has that dtype and at least `reach` elements.
pub(super) fn check_in(slice: &Slice<'_>, dtype: DType, reach: usize) -> Result<(), KernelError> {
    if slice.dtype() != dtype {
        return Err(KernelError::DType { expected: dtype, found: slice.dtype() });
    }
    if slice.len() < reach {
        return Err(KernelError::Length { expected: reach, found: slice.len() });
    }
    Ok(())
}

/// Fails unless an output has that dtype and exactly `len` elements.
pub(super) fn check_out(slice: &SliceMut<'_>, dtype: DType, len: usize) -> Result<(), KernelError> {
    if slice.dtype() != dtype {
        return Err(KernelError::DType { expected: dtype, found: slice.dtype() });
    }
    if slice.len() != len {
        return Err(KernelError::Length { expected: len, found: slice.len() });
    }
    Ok(())
}
