//! Positions along several dims, for kernels that read elements at places of their own.

use serde::{Deserialize, Serialize};

/// A dim that a kernel walks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WalkDim {
    /// Number of positions.
    pub size: usize,
    /// Index of the dim in each tensor of the kernel; none for a tensor that lacks it, or that slides along it.
    pub axes: Vec<Option<usize>>,
}

/// Number of positions along all dims; none if it exceeds 2^31 - 1.
pub fn counted(dims: &[WalkDim]) -> Option<usize> {
    let all = dims.iter().try_fold(1_usize, |all, dim| all.checked_mul(dim.size))?;
    i32::try_from(all).ok().and(Some(all))
}
