//! Element-wise folds, left to right in group order.
//!
//! Element `i` of a result is `f(f(f(x0[i], x1[i]), x2[i]), ...)` in the dtype itself, whatever the chunking, so that
//! a rerun gives the same bits. A fold is computed once and copied to all members, so that they hold the same bits.
//!
//! - `Sum` and `Prod` of `i32` wrap. Those of `bf16` and `f16` are computed in `f32` and rounded after each member.
//! - `Max` and `Min` give the first NaN in group order where there is one, and of equal values (`0.0` and `-0.0`) the
//!   first in group order.
//! - `ArgMax` and `ArgMin` give the pair of greatest or least value; a NaN stands before all numbers; of equal values
//!   (or several NaN) the pair of lowest index.
//! - `And` and `Or` take any byte but 0 as true, and give 0 or 1.

use crate::{ValueIndexF32, ValueIndexF64};
use half::{bf16, f16};
use meshwright_plan::{DType, Monoid};

/// Bytes that one inner pass folds: it stays in the first-level cache together with its sources.
const BLOCK: usize = 4096;

/// Whether there is a fold of that dtype: sums and products of floats and `i32`, maxima and minima of numbers, arg-reductions of
/// pairs, conjunction and disjunction of truth values.
pub fn can_fold(monoid: Monoid, dtype: DType) -> bool {
    match monoid {
        Monoid::Sum | Monoid::Prod => dtype.is_float() || dtype == DType::I32,
        Monoid::Max | Monoid::Min => dtype.is_float() || dtype.is_int(),
        Monoid::ArgMax | Monoid::ArgMin => dtype.is_pair(),
        Monoid::And | Monoid::Or => dtype == DType::Bool,
    }
}

/// Folds `len` elements of each source into all targets. A target may be one of the sources.
///
/// # Safety
/// `can_fold(monoid, dtype)`; every pointer is valid for `len` aligned elements, of which nobody else writes one that is
/// read here or touches one that is written here; sources and targets are equal or do not overlap.
#[expect(unsafe_code, reason = "reads and writes the memory of several devices")]
pub(crate) unsafe fn fold(
    monoid: Monoid,
    dtype: DType,
    sources: &[*const u8],
    targets: &[*mut u8],
    len: usize,
) {
    macro_rules! run {
        ($t:ty, $f:expr) => {
            // SAFETY: the caller's promise, with `$t` the Rust type of `dtype`.
            unsafe { fold_as::<$t>(sources, targets, len, $f) }
        };
    }
    match (monoid, dtype) {
        (Monoid::Sum, DType::F64) => run!(f64, |a, b| a + b),
        (Monoid::Sum, DType::F32) => run!(f32, |a, b| a + b),
        (Monoid::Sum, DType::BF16) => run!(bf16, |a, b| a + b),
        (Monoid::Sum, DType::F16) => run!(f16, |a, b| a + b),
        (Monoid::Sum, DType::I32) => run!(i32, i32::wrapping_add),
        (Monoid::Prod, DType::F64) => run!(f64, |a, b| a * b),
        (Monoid::Prod, DType::F32) => run!(f32, |a, b| a * b),
        (Monoid::Prod, DType::BF16) => run!(bf16, |a, b| a * b),
        (Monoid::Prod, DType::F16) => run!(f16, |a, b| a * b),
        (Monoid::Prod, DType::I32) => run!(i32, i32::wrapping_mul),
        // `|` and `&` have no branches, so that the loops vectorize.
        (Monoid::Max, DType::F64) => {
            run!(f64, |a: f64, b: f64| if (b > a) | (b.is_nan() & !a.is_nan()) { b } else { a })
        }
        (Monoid::Max, DType::F32) => {
            run!(f32, |a: f32, b: f32| if (b > a) | (b.is_nan() & !a.is_nan()) { b } else { a })
        }
        (Monoid::Min, DType::F64) => {
            run!(f64, |a: f64, b: f64| if (b < a) | (b.is_nan() & !a.is_nan()) { b } else { a })
        }
        (Monoid::Min, DType::F32) => {
            run!(f32, |a: f32, b: f32| if (b < a) | (b.is_nan() & !a.is_nan()) { b } else { a })
        }
        (Monoid::Max, DType::BF16) => {
            run!(bf16, |a: bf16, b: bf16| if (b > a) | (b.is_nan() & !a.is_nan()) { b } else { a })
        }
        (Monoid::Min, DType::BF16) => {
            run!(bf16, |a: bf16, b: bf16| if (b < a) | (b.is_nan() & !a.is_nan()) { b } else { a })
        }
        (Monoid::Max, DType::F16) => {
            run!(f16, |a: f16, b: f16| if (b > a) | (b.is_nan() & !a.is_nan()) { b } else { a })
        }
        (Monoid::Min, DType::F16) => {
            run!(f16, |a: f16, b: f16| if (b < a) | (b.is_nan() & !a.is_nan()) { b } else { a })
        }
        (Monoid::Max, DType::I32) => run!(i32, i32::max),
        (Monoid::Min, DType::I32) => run!(i32, i32::min),
        (Monoid::Max, DType::U8) => run!(u8, u8::max),
        (Monoid::Min, DType::U8) => run!(u8, u8::min),
        (Monoid::And, _) => run!(u8, |a, b| u8::from((a != 0) & (b != 0))),
        (Monoid::Or, _) => run!(u8, |a, b| u8::from((a != 0) | (b != 0))),
        (Monoid::ArgMax, DType::PairF32) => run!(ValueIndexF32, |a: ValueIndexF32, b: ValueIndexF32| {
            if before(b.value.into(), b.index.into(), a.value.into(), a.index.into()) { b } else { a }
        }),
        (Monoid::ArgMin, DType::PairF32) => run!(ValueIndexF32, |a: ValueIndexF32, b: ValueIndexF32| {
            if before((-b.value).into(), b.index.into(), (-a.value).into(), a.index.into()) { b } else { a }
        }),
        (Monoid::ArgMax, DType::PairF64) => run!(ValueIndexF64, |a: ValueIndexF64, b: ValueIndexF64| {
            if before(b.value, b.index, a.value, a.index) { b } else { a }
        }),
        (Monoid::ArgMin, DType::PairF64) => run!(ValueIndexF64, |a: ValueIndexF64, b: ValueIndexF64| {
            if before(-b.value, b.index, -a.value, a.index) { b } else { a }
        }),
        // Excluded by `can_fold`.
        (Monoid::Sum | Monoid::Prod | Monoid::Max | Monoid::Min | Monoid::ArgMax | Monoid::ArgMin, _) => {}
    }
}

/// Whether the value `a` at `i` goes before `b` at `j` in an arg-max.
fn before(a: f64, i: u64, b: f64, j: u64) -> bool {
    match (a.is_nan(), b.is_nan()) {
        (true, false) => true,
        (false, true) => false,
        (true, true) => i < j,
        (false, false) => a > b || (a == b && i < j),
    }
}

/// # Safety
/// As [`fold`], with `T` the type of the elements.
#[expect(unsafe_code, reason = "reads and writes the memory of several devices")]
unsafe fn fold_as<T: Copy>(
    sources: &[*const u8],
    targets: &[*mut u8],
    len: usize,
    f: impl Fn(T, T) -> T + Copy,
) {
    // Folding into a block of our own and copying it out lets the loops vectorize (targets may be sources) and reads
    // every source before any target is written.
    let mut block = std::mem::MaybeUninit::<[u64; BLOCK / 8]>::uninit();
    let acc = block.as_mut_ptr().cast::<T>();
    let step = BLOCK / size_of::<T>();
    let mut at = 0;
    while at < len {
        let n = step.min(len - at);
        // SAFETY: elements `at..at + n` of every pointer are ours to read, or to write, by the caller's promise; `acc`
        // has room for `step >= n` elements, its alignment 8 suffices for all dtypes, and its first `n` elements are
        // initialized before they are read. Slices of sources end before targets are written.
        unsafe {
            match sources {
                [] => return,
                [only] => std::ptr::copy_nonoverlapping(only.cast::<T>().add(at), acc, n),
                [first, second, rest @ ..] => {
                    let a = std::slice::from_raw_parts(first.cast::<T>().add(at), n);
                    let b = std::slice::from_raw_parts(second.cast::<T>().add(at), n);
                    let out = std::slice::from_raw_parts_mut(acc.cast::<std::mem::MaybeUninit<T>>(), n);
                    for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
                        out.write(f(*a, *b));
                    }
                    let acc = std::slice::from_raw_parts_mut(acc, n);
                    for next in rest {
                        let b = std::slice::from_raw_parts(next.cast::<T>().add(at), n);
                        for (acc, b) in acc.iter_mut().zip(b) {
                            *acc = f(*acc, *b);
                        }
                    }
                }
            }
            for target in targets {
                std::ptr::copy_nonoverlapping(acc, target.cast::<T>().add(at), n);
            }
        }
        at += n;
    }
}
