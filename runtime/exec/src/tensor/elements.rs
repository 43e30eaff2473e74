//! Elements of one dtype, owned or seen: the one place where each dtype meets the Rust type of its elements.

use half::{bf16, f16};
use meshwright_comm::{ValueIndexF32, ValueIndexF64};
use meshwright_plan::DType;

/// Runs `$body` with `$s` bound to the vector or slice inside of a [`HostData`], [`Slice`] or [`SliceMut`], whatever its
/// dtype.
macro_rules! dispatch {
    ($kind:ident, $value:expr, $s:pat => $body:expr) => {
        match $value {
            $kind::F64($s) => $body,
            $kind::F32($s) => $body,
            $kind::BF16($s) => $body,
            $kind::F16($s) => $body,
            $kind::I32($s) => $body,
            $kind::U8($s) | $kind::Bool($s) => $body,
            $kind::PairF32($s) => $body,
            $kind::PairF64($s) => $body,
        }
    };
}

/// A number that is stored as the elements of a dtype; of pairs the value.
trait AsNumber: Copy {
    fn to_f64(self) -> f64;
    fn of_f64(x: f64) -> Self;
}

macro_rules! number {
    ($($t:ty)*) => {$(
        impl AsNumber for $t {
            fn to_f64(self) -> f64 {
                self as f64
            }
            fn of_f64(x: f64) -> $t {
                x as $t
            }
        }
    )*};
}
number!(f64 f32 i32 u8);

macro_rules! half_number {
    ($($t:ty)*) => {$(
        impl AsNumber for $t {
            fn to_f64(self) -> f64 {
                f64::from(self)
            }
            fn of_f64(x: f64) -> $t {
                <$t>::from_f64(x)
            }
        }
    )*};
}
half_number!(bf16 f16);

impl AsNumber for ValueIndexF32 {
    fn to_f64(self) -> f64 {
        f64::from(self.value)
    }
    fn of_f64(x: f64) -> ValueIndexF32 {
        ValueIndexF32 { value: x as f32, index: 0 }
    }
}

impl AsNumber for ValueIndexF64 {
    fn to_f64(self) -> f64 {
        self.value
    }
    fn of_f64(x: f64) -> ValueIndexF64 {
        ValueIndexF64 { value: x, index: 0 }
    }
}

/// Elements as numbers; `f64` are moved.
fn numbers<T: AsNumber>(values: Vec<f64>) -> Vec<T> {
    values.into_iter().map(T::of_f64).collect()
}

macro_rules! elements {
    ($($(#[$doc:meta])* $kind:ident: $t:ty),* $(,)?) => {
        /// Elements of one dtype, row-major.
        #[derive(Clone, Debug, PartialEq)]
        pub enum HostData {
            $($(#[$doc])* $kind(Vec<$t>),)*
        }

        /// A view of elements of one dtype.
        #[derive(Clone, Copy, Debug)]
        pub enum Slice<'a> {
            $($(#[$doc])* $kind(&'a [$t]),)*
        }

        /// A view of elements of one dtype, to be written.
        #[derive(Debug)]
        pub enum SliceMut<'a> {
            $($(#[$doc])* $kind(&'a mut [$t]),)*
        }

        impl HostData {
            /// `len` zeros (false; 0 at index 0).
            pub fn zeros(dtype: DType, len: usize) -> HostData {
                match dtype {
                    $(DType::$kind => HostData::$kind(vec![<$t>::default(); len]),)*
                }
            }

            /// Type of the elements.
            pub fn dtype(&self) -> DType {
                match self {
                    $(HostData::$kind(_) => DType::$kind,)*
                }
            }

            /// The elements, to be read.
            pub fn view(&self) -> Slice<'_> {
                match self {
                    $(HostData::$kind(v) => Slice::$kind(v),)*
                }
            }

            /// The elements, to be written.
            pub fn view_mut(&mut self) -> SliceMut<'_> {
                match self {
                    $(HostData::$kind(v) => SliceMut::$kind(v),)*
                }
            }

            /// Numbers as elements of `dtype`: floats are rounded, integers cut off at their bounds, bools are `x != 0`, pairs
            /// stand at index 0.
            pub fn from_f64(dtype: DType, values: Vec<f64>) -> HostData {
                let values = match dtype {
                    DType::Bool => values.iter().map(|x| f64::from(u8::from(*x != 0.0))).collect(),
                    _ => values,
                };
                match dtype {
                    $(DType::$kind => HostData::$kind(numbers(values)),)*
                }
            }

            /// A copy of bytes as this machine has elements in memory; what is beyond the last whole element is left out.
            pub fn from_bytes(dtype: DType, bytes: &[u8]) -> HostData {
                match dtype {
                    $(DType::$kind => {
                        let elements = bytes.chunks_exact(size_of::<$t>());
                        HostData::$kind(elements.map(bytemuck::pod_read_unaligned).collect())
                    })*
                }
            }
        }

        impl<'a> Slice<'a> {
            /// Type of the elements.
            pub fn dtype(&self) -> DType {
                match self {
                    $(Slice::$kind(_) => DType::$kind,)*
                }
            }

            /// Bytes, which are aligned and as many as whole elements have.
            pub fn of_bytes(bytes: &'a [u8], dtype: DType) -> Slice<'a> {
                match dtype {
                    $(DType::$kind if bytes.is_empty() => Slice::$kind(&[]),
                    DType::$kind => Slice::$kind(bytemuck::cast_slice(bytes)),)*
                }
            }

            /// A copy.
            pub fn to_host(self) -> HostData {
                match self {
                    $(Slice::$kind(s) => HostData::$kind(s.to_vec()),)*
                }
            }
        }

        impl<'a> SliceMut<'a> {
            /// Bytes, which are aligned and as many as whole elements have.
            pub fn of_bytes(bytes: &'a mut [u8], dtype: DType) -> SliceMut<'a> {
                match dtype {
                    $(DType::$kind if bytes.is_empty() => SliceMut::$kind(&mut []),
                    DType::$kind => SliceMut::$kind(bytemuck::cast_slice_mut(bytes)),)*
                }
            }

            /// The same elements, to be read.
            pub fn as_slice(&self) -> Slice<'_> {
                match self {
                    $(SliceMut::$kind(s) => Slice::$kind(s),)*
                }
            }

            /// A shorter borrow of the same elements.
            pub fn reborrow(&mut self) -> SliceMut<'_> {
                match self {
                    $(SliceMut::$kind(s) => SliceMut::$kind(s),)*
                }
            }

            /// Two parts; `mid` must be at most the length.
            pub fn split_at(self, mid: usize) -> (SliceMut<'a>, SliceMut<'a>) {
                match self {
                    $(SliceMut::$kind(s) => {
                        let (a, b) = s.split_at_mut(mid);
                        (SliceMut::$kind(a), SliceMut::$kind(b))
                    })*
                }
            }

            /// Copies elements of the same dtype and number; false where they are not.
            pub(crate) fn copy_from(self, from: Slice<'_>) -> bool {
                match (self, from) {
                    $((SliceMut::$kind(a), Slice::$kind(b)) if a.len() == b.len() => a.copy_from_slice(b),)*
                    _ => return false,
                }
                true
            }
        }
    };
}

elements! {
    /// [`DType::F64`].
    F64: f64,
    /// [`DType::F32`].
    F32: f32,
    /// [`DType::BF16`].
    BF16: bf16,
    /// [`DType::F16`].
    F16: f16,
    /// [`DType::I32`].
    I32: i32,
    /// [`DType::U8`].
    U8: u8,
    /// [`DType::Bool`]: bytes 0 and 1.
    Bool: u8,
    /// [`DType::PairF32`].
    PairF32: ValueIndexF32,
    /// [`DType::PairF64`].
    PairF64: ValueIndexF64,
}

impl HostData {
    /// AsNumber of elements.
    pub fn len(&self) -> usize {
        self.view().len()
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements as `f64` (of pairs the values). `f32` and integers are exact.
    pub fn to_f64(&self) -> Vec<f64> {
        dispatch!(HostData, self, v => v.iter().map(|x| x.to_f64()).collect())
    }
}

impl<'a> Slice<'a> {
    /// AsNumber of elements.
    #[expect(clippy::len_without_is_empty, reason = "only the count is of interest")]
    pub fn len(&self) -> usize {
        dispatch!(Slice, self, s => s.len())
    }

    /// The elements as this machine has them in memory.
    pub fn bytes(self) -> &'a [u8] {
        dispatch!(Slice, self, s => bytemuck::cast_slice(s))
    }

    /// A part, if it is within.
    pub fn part(self, range: std::ops::Range<usize>) -> Option<Slice<'a>> {
        let (dtype, size) = (self.dtype(), self.dtype().bytes());
        let bytes = self.bytes().get(range.start * size..range.end * size)?;
        Some(Slice::of_bytes(bytes, dtype))
    }
}

impl<'a> SliceMut<'a> {
    /// AsNumber of elements.
    #[expect(clippy::len_without_is_empty, reason = "only the count is of interest")]
    pub fn len(&self) -> usize {
        self.as_slice().len()
    }

    /// Type of the elements.
    pub fn dtype(&self) -> DType {
        self.as_slice().dtype()
    }

    /// The elements as this machine has them in memory.
    pub fn into_bytes(self) -> &'a mut [u8] {
        dispatch!(SliceMut, self, s => bytemuck::cast_slice_mut(s))
    }

    /// A part, if it is within.
    pub fn part(self, range: std::ops::Range<usize>) -> Option<SliceMut<'a>> {
        let (dtype, size) = (self.dtype(), self.dtype().bytes());
        let bytes = self.into_bytes().get_mut(range.start * size..range.end * size)?;
        Some(SliceMut::of_bytes(bytes, dtype))
    }
}
