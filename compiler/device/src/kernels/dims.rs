//! Positions along several dims, for kernels that read elements at places of their own.

/// A dim that is walked, and which one it is of each tensor that has it.
#[derive(Clone, Debug)]
pub struct WalkDim {
    pub size: usize,
    pub axes: Vec<Option<usize>>,
}

/// How many positions there are along dims; none where 31 bits do not count them.
pub fn counted(dims: &[WalkDim]) -> Option<usize> {
    let all = dims.iter().try_fold(1_usize, |all, dim| all.checked_mul(dim.size))?;
    i32::try_from(all).ok().and(Some(all))
}
