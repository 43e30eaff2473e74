//! Flat typed memory that collectives read and write, borrowed from whoever owns the tensors.

use half::{bf16, f16};
use meshwright_plan::DType;
use std::marker::PhantomData;

/// A value and the index it stands at, as arg-reductions exchange them ([`DType::PairF32`]).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ValueIndexF32 {
    /// The value.
    pub value: f32,
    /// Its global index.
    pub index: u32,
}

/// A value and the index it stands at, as arg-reductions exchange them ([`DType::PairF64`]).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ValueIndexF64 {
    /// The value.
    pub value: f64,
    /// Its global index.
    pub index: u64,
}

#[expect(unsafe_code, reason = "plain old data, seen as bytes")]
// SAFETY: `repr(C)` of two 4-byte numbers: no padding, every bit pattern is valid.
unsafe impl bytemuck::Pod for ValueIndexF32 {}
#[expect(unsafe_code, reason = "plain old data, seen as bytes")]
// SAFETY: zero is a valid value of both numbers.
unsafe impl bytemuck::Zeroable for ValueIndexF32 {}
#[expect(unsafe_code, reason = "plain old data, seen as bytes")]
// SAFETY: `repr(C)` of two 8-byte numbers: no padding, every bit pattern is valid.
unsafe impl bytemuck::Pod for ValueIndexF64 {}
#[expect(unsafe_code, reason = "plain old data, seen as bytes")]
// SAFETY: zero is a valid value of both numbers.
unsafe impl bytemuck::Zeroable for ValueIndexF64 {}

mod sealed {
    /// Only types without padding and without invalid bit patterns: a collective copies bytes between devices.
    pub trait Sealed {}
}

/// A Rust type that is stored as a [`DType`]. `bool` is not among them, since a byte that a peer sends need not be a
/// valid `bool`: truth values are bytes, see [`Buf::truth`].
pub trait Element: sealed::Sealed + Copy + Send + Sync + 'static {
    /// Its dtype.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($rust:ty => $dtype:ident),*) => {$(
        impl sealed::Sealed for $rust {}
        impl Element for $rust {
            const DTYPE: DType = DType::$dtype;
        }
    )*};
}
elements!(f64 => F64, f32 => F32, bf16 => BF16, f16 => F16, i32 => I32, u8 => U8, ValueIndexF32 => PairF32, ValueIndexF64 => PairF64);

/// Alignment that the elements of a dtype need, in bytes.
pub(crate) fn alignment(dtype: DType) -> usize {
    match dtype {
        DType::F64 | DType::PairF64 => 8,
        DType::F32 | DType::I32 | DType::PairF32 => 4,
        DType::BF16 | DType::F16 => 2,
        DType::U8 | DType::Bool => 1,
    }
}

/// Why bytes are not a buffer of a dtype.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BufferMismatch {
    /// The length is not a whole number of elements.
    #[error("{bytes} bytes are no whole number of elements of {dtype}")]
    Length {
        /// Bytes given.
        bytes: usize,
        /// Dtype asked for.
        dtype: DType,
    },
    /// The memory starts at an address where no such element can stand.
    #[error("memory is not aligned for elements of {dtype}")]
    Alignment {
        /// Dtype asked for.
        dtype: DType,
    },
}

fn fits(bytes: &[u8], dtype: DType) -> Result<usize, BufferMismatch> {
    if !bytes.len().is_multiple_of(dtype.bytes()) {
        return Err(BufferMismatch::Length { bytes: bytes.len(), dtype });
    }
    if !bytes.is_empty() && !(bytes.as_ptr() as usize).is_multiple_of(alignment(dtype)) {
        return Err(BufferMismatch::Alignment { dtype });
    }
    Ok(bytes.len() / dtype.bytes())
}

/// Where memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemorySpace {
    /// The memory of this process.
    Host,
    /// The memory of a GPU, by its number among the ones that this process sees. Its addresses mean nothing to the host.
    Device(u32),
}

impl std::fmt::Display for MemorySpace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            MemorySpace::Host => f.write_str("host memory"),
            MemorySpace::Device(ordinal) => write!(f, "memory of GPU {ordinal}"),
        }
    }
}

/// Elements that a collective reads.
#[derive(Clone, Copy, Debug)]
pub struct Buf<'a> {
    ptr: *const u8,
    len: usize,
    dtype: DType,
    place: MemorySpace,
    life: PhantomData<&'a [u8]>,
}

/// Elements that a collective writes (or reads and writes).
#[derive(Debug)]
pub struct BufMut<'a> {
    ptr: *mut u8,
    len: usize,
    dtype: DType,
    place: MemorySpace,
    life: PhantomData<&'a mut [u8]>,
}

#[expect(unsafe_code, reason = "stands for `&[T]` of plain numbers")]
// SAFETY: a `Buf` is a shared slice of `Element`s, which are `Send + Sync`; it gives nothing but its address and size.
unsafe impl Send for Buf<'_> {}
#[expect(unsafe_code, reason = "stands for `&[T]` of plain numbers")]
// SAFETY: as above.
unsafe impl Sync for Buf<'_> {}
#[expect(unsafe_code, reason = "stands for `&mut [T]` of plain numbers")]
// SAFETY: a `BufMut` is an exclusive slice of `Element`s, which are `Send`.
unsafe impl Send for BufMut<'_> {}
#[expect(unsafe_code, reason = "stands for `&mut [T]` of plain numbers")]
// SAFETY: a shared `BufMut` gives its address and size only.
unsafe impl Sync for BufMut<'_> {}

impl<'a> Buf<'a> {
    /// The elements of a slice.
    pub fn new<T: Element>(slice: &'a [T]) -> Self {
        Buf {
            ptr: slice.as_ptr().cast(),
            len: slice.len(),
            dtype: T::DTYPE,
            place: MemorySpace::Host,
            life: PhantomData,
        }
    }

    /// Truth values, a byte each, 0 or 1.
    pub fn truth(slice: &'a [u8]) -> Self {
        Buf { dtype: DType::Bool, ..Buf::new(slice) }
    }

    /// Bytes as elements of `dtype`.
    pub fn from_bytes(bytes: &'a [u8], dtype: DType) -> Result<Self, BufferMismatch> {
        let len = fits(bytes, dtype)?;
        Ok(Buf { ptr: bytes.as_ptr(), len, dtype, place: MemorySpace::Host, life: PhantomData })
    }

    /// `len` elements of `dtype` in the memory of GPU `ordinal`, for a transport that works there; the others refuse it.
    ///
    /// # Safety
    /// The address is one of that GPU, in its primary context, aligned for `dtype`, and valid for `len` elements as long
    /// as `'a`; nobody writes to them meanwhile. Meanwhile is meant in the order of the device: work submitted to its primary
    /// context before a collective is posted comes before it, work submitted after the collective is complete comes after.
    #[expect(unsafe_code, reason = "an address that nothing vouches for")]
    pub unsafe fn device(address: u64, len: usize, dtype: DType, ordinal: u32) -> Self {
        let ptr = std::ptr::without_provenance(address as usize);
        Buf { ptr, len, dtype, place: MemorySpace::Device(ordinal), life: PhantomData }
    }

    /// Where the elements are.
    pub fn place(&self) -> MemorySpace {
        self.place
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no element.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Address of the first element in its [`MemorySpace`]; aligned, but dangling when there is none.
    pub fn as_ptr(&self) -> *const u8 {
        self.ptr
    }
}

impl<'a> BufMut<'a> {
    /// The elements of a slice.
    pub fn new<T: Element>(slice: &'a mut [T]) -> Self {
        BufMut {
            ptr: slice.as_mut_ptr().cast(),
            len: slice.len(),
            dtype: T::DTYPE,
            place: MemorySpace::Host,
            life: PhantomData,
        }
    }

    /// Truth values, a byte each, 0 or 1.
    pub fn truth(slice: &'a mut [u8]) -> Self {
        BufMut { dtype: DType::Bool, ..BufMut::new(slice) }
    }

    /// Bytes as elements of `dtype`.
    pub fn from_bytes(bytes: &'a mut [u8], dtype: DType) -> Result<Self, BufferMismatch> {
        let len = fits(bytes, dtype)?;
        Ok(BufMut { ptr: bytes.as_mut_ptr(), len, dtype, place: MemorySpace::Host, life: PhantomData })
    }

    /// `len` elements of `dtype` in the memory of GPU `ordinal`, for a transport that works there; the others refuse it.
    ///
    /// # Safety
    /// The address is one of that GPU, in its primary context, aligned for `dtype`, and valid for `len` elements as long
    /// as `'a`; nobody else touches them meanwhile. Meanwhile is meant in the order of the device: work submitted to its primary
    /// context before a collective is posted comes before it, work submitted after the collective is complete comes after.
    #[expect(unsafe_code, reason = "an address that nothing vouches for")]
    pub unsafe fn device(address: u64, len: usize, dtype: DType, ordinal: u32) -> Self {
        let ptr = std::ptr::without_provenance_mut(address as usize);
        BufMut { ptr, len, dtype, place: MemorySpace::Device(ordinal), life: PhantomData }
    }

    /// Where the elements are.
    pub fn place(&self) -> MemorySpace {
        self.place
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no element.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Address of the first element in its [`MemorySpace`]; aligned, but dangling when there is none.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.ptr
    }

    /// Address of the first element, whatever borrows there are: for those who uphold exclusiveness themselves.
    pub(crate) fn address(&self) -> *mut u8 {
        self.ptr
    }

    /// The same memory once more, for those who uphold exclusiveness themselves.
    pub(crate) fn alias(&self) -> BufMut<'static> {
        BufMut { ptr: self.ptr, len: self.len, dtype: self.dtype, place: self.place, life: PhantomData }
    }
}

impl<'a, T: Element> From<&'a [T]> for Buf<'a> {
    fn from(slice: &'a [T]) -> Self {
        Buf::new(slice)
    }
}

impl<'a, T: Element> From<&'a mut [T]> for BufMut<'a> {
    fn from(slice: &'a mut [T]) -> Self {
        BufMut::new(slice)
    }
}
