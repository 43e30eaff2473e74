//! Walks of iterations through operands.

use crate::error::KernelError;
use meshwright_plan::DType;
use serde::{Deserialize, Serialize};

/// Walk of an iteration through an operand: element `offset + sum(index[d] * strides[d])`, in elements.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Access {
    /// Type of the elements.
    pub dtype: DType,
    /// Position of the first element.
    pub offset: usize,
    /// Step along each iteration dim; 0 where the operand is broadcast.
    pub strides: Vec<usize>,
}

/// Row-major strides of a dense array.
pub fn dense_strides(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1usize; shape.len()];
    for d in (1..shape.len()).rev() {
        strides[d - 1] = strides[d].saturating_mul(shape[d]);
    }
    strides
}

impl Access {
    /// The whole of a dense array of that shape, in its own order.
    pub fn dense(dtype: DType, shape: &[usize]) -> Access {
        Access { dtype, offset: 0, strides: dense_strides(shape) }
    }

    /// A dense operand with named dims, walked over the iteration's dims: dims that it lacks are broadcast. Its own dims
    /// that the iteration lacks stay at index 0 (see [`Access::stride_of`] for those).
    pub fn by_dims<D: PartialEq>(dtype: DType, iteration: &[D], dims: &[D], shape: &[usize]) -> Access {
        let strides = iteration.iter().map(|d| Access::stride_of(d, dims, shape)).collect();
        Access { dtype, offset: 0, strides }
    }

    /// Stride of one dim of a dense operand; 0 where it lacks the dim.
    pub fn stride_of<D: PartialEq>(dim: &D, dims: &[D], shape: &[usize]) -> usize {
        dims.iter().position(|d| d == dim).map_or(0, |p| dense_strides(shape)[p])
    }

    /// Whether it walks a dense array of that shape in order from its start.
    pub fn is_dense(&self, shape: &[usize]) -> bool {
        let dense = dense_strides(shape);
        self.offset == 0 && shape.iter().zip(&self.strides).zip(&dense).all(|((n, s), d)| *n <= 1 || s == d)
    }

    /// Elements that the operand must have at least.
    pub fn reach(&self, shape: &[usize]) -> usize {
        if shape.contains(&0) {
            return 0;
        }
        let last = shape.iter().zip(&self.strides).map(|(n, s)| (n - 1).saturating_mul(*s));
        last.fold(self.offset, usize::saturating_add).saturating_add(1)
    }

    /// Fails unless it has a stride for each dim.
    pub fn check_rank(&self, shape: &[usize]) -> Result<(), KernelError> {
        if self.strides.len() == shape.len() {
            return Ok(());
        }
        Err(KernelError::Rank { expected: shape.len(), found: self.strides.len() })
    }
}
