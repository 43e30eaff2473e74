//! What kernels read and write: typed slices, and how an iteration walks them.

use super::check::KernelError;
pub use crate::tensor::{Slice, SliceMut};
use half::{bf16, f16};
pub use meshwright_comm::{ValueIndexF32, ValueIndexF64};
use meshwright_plan::DType;

/// Something that a kernel reads.
#[derive(Clone, Copy, Debug)]
pub enum Arg<'a> {
    /// Elements of their own.
    Slice(Slice<'a>),
    /// The present contents of the output of that number, which are overwritten. Its [`Access`] must be dense and of
    /// the output's dtype.
    Out(usize),
}

impl<'a> From<Slice<'a>> for Arg<'a> {
    fn from(slice: Slice<'a>) -> Self {
        Arg::Slice(slice)
    }
}

/// How an iteration walks an operand: element `offset + sum(index[d] * strides[d])`, in elements.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    pub(super) fn reach(&self, shape: &[usize]) -> usize {
        if shape.contains(&0) {
            return 0;
        }
        let last = shape.iter().zip(&self.strides).map(|(n, s)| (n - 1).saturating_mul(*s));
        last.fold(self.offset, usize::saturating_add).saturating_add(1)
    }

    /// Fails unless it has a stride for each dim.
    pub(super) fn check_rank(&self, shape: &[usize]) -> Result<(), KernelError> {
        if self.strides.len() == shape.len() {
            return Ok(());
        }
        Err(KernelError::Rank { expected: shape.len(), found: self.strides.len() })
    }
}

/// Element types, for kernels that are generic over them.
pub(super) trait Element: Copy + Default + Send + Sync + 'static {
    /// The elements, if they are of this type.
    fn of<'a>(slice: Slice<'a>) -> Option<&'a [Self]>;
    /// The elements, if they are of this type.
    fn of_mut<'a>(slice: SliceMut<'a>) -> Option<&'a mut [Self]>;
}

macro_rules! element {
    ($t:ty, $($kind:ident)|+) => {
        impl Element for $t {
            fn of<'a>(slice: Slice<'a>) -> Option<&'a [Self]> {
                match slice {
                    $(Slice::$kind(s))|+ => Some(s),
                    _ => None,
                }
            }
            fn of_mut<'a>(slice: SliceMut<'a>) -> Option<&'a mut [Self]> {
                match slice {
                    $(SliceMut::$kind(s))|+ => Some(s),
                    _ => None,
                }
            }
        }
    };
}
element!(f64, F64);
element!(f32, F32);
element!(bf16, BF16);
element!(f16, F16);
element!(i32, I32);
element!(u8, U8 | Bool);
element!(ValueIndexF32, PairF32);
element!(ValueIndexF64, PairF64);
