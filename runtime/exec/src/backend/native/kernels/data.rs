//! What kernels read and write: typed slices, and how an iteration walks them.

use super::KernelError;
use half::bf16;
pub use meshwright_comm::{PairF32, PairF64};
use meshwright_plan::DType;

/// A slice of elements of one dtype.
#[derive(Clone, Copy, Debug)]
pub enum Slice<'a> {
    /// [`DType::F64`].
    F64(&'a [f64]),
    /// [`DType::F32`].
    F32(&'a [f32]),
    /// [`DType::BF16`].
    BF16(&'a [bf16]),
    /// [`DType::I32`].
    I32(&'a [i32]),
    /// [`DType::U8`].
    U8(&'a [u8]),
    /// [`DType::Bool`]: bytes 0 and 1.
    Bool(&'a [u8]),
    /// [`DType::PairF32`].
    PairF32(&'a [PairF32]),
    /// [`DType::PairF64`].
    PairF64(&'a [PairF64]),
}

/// A mutable slice of elements of one dtype.
#[derive(Debug)]
pub enum SliceMut<'a> {
    /// [`DType::F64`].
    F64(&'a mut [f64]),
    /// [`DType::F32`].
    F32(&'a mut [f32]),
    /// [`DType::BF16`].
    BF16(&'a mut [bf16]),
    /// [`DType::I32`].
    I32(&'a mut [i32]),
    /// [`DType::U8`].
    U8(&'a mut [u8]),
    /// [`DType::Bool`]: bytes 0 and 1.
    Bool(&'a mut [u8]),
    /// [`DType::PairF32`].
    PairF32(&'a mut [PairF32]),
    /// [`DType::PairF64`].
    PairF64(&'a mut [PairF64]),
}

/// Runs `$body` with `$s` bound to the typed slice inside of a [`Slice`] or [`SliceMut`].
macro_rules! each_type {
    ($kind:ident, $value:expr, $s:pat => $body:expr) => {
        match $value {
            $kind::F64($s) => $body,
            $kind::F32($s) => $body,
            $kind::BF16($s) => $body,
            $kind::I32($s) => $body,
            $kind::U8($s) | $kind::Bool($s) => $body,
            $kind::PairF32($s) => $body,
            $kind::PairF64($s) => $body,
        }
    };
}

impl Slice<'_> {
    /// Elements.
    #[expect(clippy::len_without_is_empty, reason = "only the count is of interest")]
    pub fn len(&self) -> usize {
        each_type!(Slice, self, s => s.len())
    }

    /// Type of the elements.
    pub fn dtype(&self) -> DType {
        match self {
            Slice::F64(_) => DType::F64,
            Slice::F32(_) => DType::F32,
            Slice::BF16(_) => DType::BF16,
            Slice::I32(_) => DType::I32,
            Slice::U8(_) => DType::U8,
            Slice::Bool(_) => DType::Bool,
            Slice::PairF32(_) => DType::PairF32,
            Slice::PairF64(_) => DType::PairF64,
        }
    }
}

impl<'a> SliceMut<'a> {
    /// Elements.
    #[expect(clippy::len_without_is_empty, reason = "only the count is of interest")]
    pub fn len(&self) -> usize {
        each_type!(SliceMut, self, s => s.len())
    }

    /// Type of the elements.
    pub fn dtype(&self) -> DType {
        self.as_slice().dtype()
    }

    /// The same elements, to be read.
    pub fn as_slice(&self) -> Slice<'_> {
        match self {
            SliceMut::F64(s) => Slice::F64(s),
            SliceMut::F32(s) => Slice::F32(s),
            SliceMut::BF16(s) => Slice::BF16(s),
            SliceMut::I32(s) => Slice::I32(s),
            SliceMut::U8(s) => Slice::U8(s),
            SliceMut::Bool(s) => Slice::Bool(s),
            SliceMut::PairF32(s) => Slice::PairF32(s),
            SliceMut::PairF64(s) => Slice::PairF64(s),
        }
    }

    /// A shorter borrow of the same elements.
    pub fn reborrow(&mut self) -> SliceMut<'_> {
        match self {
            SliceMut::F64(s) => SliceMut::F64(s),
            SliceMut::F32(s) => SliceMut::F32(s),
            SliceMut::BF16(s) => SliceMut::BF16(s),
            SliceMut::I32(s) => SliceMut::I32(s),
            SliceMut::U8(s) => SliceMut::U8(s),
            SliceMut::Bool(s) => SliceMut::Bool(s),
            SliceMut::PairF32(s) => SliceMut::PairF32(s),
            SliceMut::PairF64(s) => SliceMut::PairF64(s),
        }
    }

    /// Two parts; `mid` must be at most the length.
    pub(super) fn split_at(self, mid: usize) -> (SliceMut<'a>, SliceMut<'a>) {
        macro_rules! split {
            ($kind:ident, $s:expr) => {{
                let (a, b) = $s.split_at_mut(mid);
                (SliceMut::$kind(a), SliceMut::$kind(b))
            }};
        }
        match self {
            SliceMut::F64(s) => split!(F64, s),
            SliceMut::F32(s) => split!(F32, s),
            SliceMut::BF16(s) => split!(BF16, s),
            SliceMut::I32(s) => split!(I32, s),
            SliceMut::U8(s) => split!(U8, s),
            SliceMut::Bool(s) => split!(Bool, s),
            SliceMut::PairF32(s) => split!(PairF32, s),
            SliceMut::PairF64(s) => split!(PairF64, s),
        }
    }
}

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
element!(i32, I32);
element!(u8, U8 | Bool);
element!(PairF32, PairF32);
element!(PairF64, PairF64);
