//! Typed slices, and iteration over them.

use half::{bf16, f16};
pub use meshwright_comm::{ValueIndexF32, ValueIndexF64};
pub use meshwright_device::access::{Access, dense_strides};
pub use meshwright_exec::{Slice, SliceMut};

/// An operand of a kernel.
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
