//! Shared state of a process's collectives: types and folds of the library, limits, and memory.

use crate::sys::{Comm, ReduceOp, Type, operands};
use meshwright_comm::fold::fold;
use meshwright_plan::{DType, Monoid};
use meshwright_sorted::SortedMap;
use mpi::ffi;
use std::ffi::{c_int, c_void};

/// Shared state of a process's collectives.
pub(super) struct Kit {
    /// Most elements in one call of the library.
    pub(super) limit: usize,
    /// Whether floats are folded in group order.
    pub(super) deterministic: bool,
    sixteen: Type,
    folds: SortedMap<(Monoid, DType), ReduceOp>,
}

/// A group's part of that state.
pub(super) struct Member {
    pub(super) comm: Comm,
    pub(super) position: usize,
    pub(super) members: usize,
    /// Number of the collective on this group.
    pub(super) number: u64,
}

/// Memory for elements of any type.
pub(super) struct Staging(Vec<u64>);

impl Staging {
    pub(super) fn new(bytes: usize) -> Staging {
        Staging(vec![0; bytes.div_ceil(8)])
    }

    pub(super) fn at(&self, byte: usize) -> *const u8 {
        self.0.as_ptr().cast::<u8>().wrapping_add(byte)
    }

    pub(super) fn at_mut(&mut self, byte: usize) -> *mut u8 {
        self.0.as_mut_ptr().cast::<u8>().wrapping_add(byte)
    }

    pub(super) fn bytes_mut(&mut self, at: usize, n: usize) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.0)[at..at + n]
    }
}

/// Copies between memory of ours and that of a call.
///
/// # Safety
/// Both are valid for this number of bytes, and do not overlap.
#[expect(unsafe_code, reason = "copies to and from the memory of a call")]
pub(super) unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) }
}

#[expect(unsafe_code, reason = "called by the library with its memory")]
unsafe extern "C" fn user_fold<const M: usize, const D: usize>(
    a: *mut c_void,
    b: *mut c_void,
    len: *mut c_int,
    _: *mut ffi::MPI_Datatype,
) {
    let (monoid, dtype) = USER_FOLDS[M * 2 + D];
    // SAFETY: the library passes two buffers of `len` elements, the second of which takes the result; the fold is one
    // of `can_fold`.
    unsafe {
        let (a, b, n) = operands(a, b, len);
        fold(monoid, dtype, &[a, b.cast_const()], &[b], n);
    }
}

const USER_FOLDS: [(Monoid, DType); 6] = [
    (Monoid::ArgMax, DType::PairF32),
    (Monoid::ArgMin, DType::PairF32),
    (Monoid::ArgMax, DType::PairF64),
    (Monoid::ArgMin, DType::PairF64),
    (Monoid::And, DType::Bool),
    (Monoid::Or, DType::Bool),
];

impl Kit {
    pub(super) fn new(limit: usize, deterministic: bool) -> Result<Kit, String> {
        let functions = [
            user_fold::<0, 0>,
            user_fold::<0, 1>,
            user_fold::<1, 0>,
            user_fold::<1, 1>,
            user_fold::<2, 0>,
            user_fold::<2, 1>,
        ];
        let mut folds = SortedMap::new();
        for (key, function) in USER_FOLDS.into_iter().zip(functions) {
            folds.insert(key, ReduceOp::new(function)?);
        }
        Ok(Kit {
            limit: limit.clamp(1, c_int::MAX as usize),
            deterministic,
            sixteen: Type::bytes(16)?,
            folds,
        })
    }

    /// Elements as the library moves them.
    pub(super) fn opaque(&self, dtype: DType) -> Result<Type, String> {
        if dtype.bytes() == 16 { Ok(self.sixteen) } else { Type::bytes(dtype.bytes()) }
    }

    /// Elements and fold as the library reduces them.
    pub(super) fn reduction(&self, monoid: Monoid, dtype: DType) -> Result<(Type, ReduceOp), String> {
        if let Some(fold) = self.folds.get(&(monoid, dtype)) {
            return Ok((self.opaque(dtype)?, *fold));
        }
        let fold = match monoid {
            Monoid::Sum => ReduceOp::sum(),
            Monoid::Prod => ReduceOp::product(),
            Monoid::Max => ReduceOp::max(),
            _ => ReduceOp::min(),
        };
        Ok(match dtype {
            DType::F64 | DType::F32 => (Type::float(dtype.bytes()), fold),
            // Sums and products wrap, which C does for unsigned numbers only; the bits are the same.
            DType::I32 if matches!(monoid, Monoid::Sum | Monoid::Prod) => (Type::bytes(4)?, fold),
            DType::I32 => (Type::i32(), fold),
            _ => (self.opaque(dtype)?, fold),
        })
    }

    /// Whether a fold takes the elements of all members at once, in their order: where its result depends on that order, and of
    /// half types, which the library would round after each member.
    pub(super) fn is_ordered(&self, monoid: Monoid, dtype: DType) -> bool {
        let ordered = self.deterministic || matches!(monoid, Monoid::Max | Monoid::Min);
        dtype.is_half() || dtype.is_float() && ordered
    }

    /// Ranges of at most `limit`.
    pub(super) fn chunks(&self, len: usize) -> impl Iterator<Item = (usize, usize)> + use<> {
        let limit = self.limit;
        (0..len).step_by(limit).map(move |at| (at, limit.min(len - at)))
    }
}

impl Member {
    /// Tag of the messages of one of four stages. Tags of collectives that are in flight together differ.
    pub(super) fn tag(&self, stage: i32) -> i32 {
        (self.number % 8000) as i32 * 4 + stage
    }

    /// Positions of the other members, beginning with the next one, so that not all send to the same.
    pub(super) fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let (here, n) = (self.position, self.members);
        (1..n).map(move |i| (here + i) % n)
    }
}
