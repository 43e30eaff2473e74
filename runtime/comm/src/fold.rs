//! Element-wise folds, left to right in group order.
//!
//! Element `i` of a result is `f(f(f(x0[i], x1[i]), x2[i]), ...)`, whatever the chunking, so that a rerun gives the same
//! bits. A fold is computed once and copied to all members, so that they hold the same bits.
//!
//! - `Sum` and `Prod` of `i32` wrap. Those of `bf16` and `f16` are computed in `f32` over all members and rounded once.
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
pub unsafe fn fold(monoid: Monoid, dtype: DType, sources: &[*const u8], targets: &[*mut u8], len: usize) {
    macro_rules! run {
        ($t:ty, $f:expr) => {
            // SAFETY: the caller's promise, with `$t` the Rust type of `dtype`.
            unsafe { fold_as::<$t>(sources, targets, len, $f) }
        };
    }
    macro_rules! run_half {
        ($t:ty, $f:expr) => {
            // SAFETY: as above.
            unsafe { fold_half::<$t>(sources, targets, len, (<$t>::to_f32, <$t>::from_f32), $f) }
        };
    }
    match (monoid, dtype) {
        (Monoid::Sum, DType::F64) => run!(f64, |a, b| a + b),
        (Monoid::Sum, DType::F32) => run!(f32, |a, b| a + b),
        (Monoid::Sum, DType::BF16) => run_half!(bf16, |a, b| a + b),
        (Monoid::Sum, DType::F16) => run_half!(f16, |a, b| a + b),
        (Monoid::Sum, DType::I32) => run!(i32, i32::wrapping_add),
        (Monoid::Prod, DType::F64) => run!(f64, |a, b| a * b),
        (Monoid::Prod, DType::F32) => run!(f32, |a, b| a * b),
        (Monoid::Prod, DType::BF16) => run_half!(bf16, |a, b| a * b),
        (Monoid::Prod, DType::F16) => run_half!(f16, |a, b| a * b),
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

/// Folds in `f32`, which the elements become and are rounded from at the end.
///
/// # Safety
/// As [`fold`], with `T` the type of the elements.
#[expect(unsafe_code, reason = "reads and writes the memory of several devices")]
unsafe fn fold_half<T: Copy + Default>(
    sources: &[*const u8],
    targets: &[*mut u8],
    len: usize,
    (wide, rounded): (impl Fn(T) -> f32, impl Fn(f32) -> T),
    f: impl Fn(f32, f32) -> f32,
) {
    const ELEMENTS: usize = BLOCK / size_of::<f32>();
    let Some((first, rest)) = sources.split_first() else { return };
    let (mut acc, mut out) = ([0.0f32; ELEMENTS], [T::default(); ELEMENTS]);
    for at in (0..len).step_by(ELEMENTS) {
        let n = ELEMENTS.min(len - at);
        // SAFETY: elements `at..at + n` of every source are ours to read by the caller's promise; a slice of one ends before a
        // target is written.
        let of = |source: &*const u8| unsafe { std::slice::from_raw_parts(source.cast::<T>().add(at), n) };
        for (acc, x) in acc.iter_mut().zip(of(first)) {
            *acc = wide(*x);
        }
        for source in rest {
            for (acc, x) in acc.iter_mut().zip(of(source)) {
                *acc = f(*acc, wide(*x));
            }
        }
        for (out, acc) in out.iter_mut().zip(&acc[..n]) {
            *out = rounded(*acc);
        }
        for target in targets {
            // SAFETY: elements `at..at + n` of every target are ours to write; `out` is our own.
            unsafe { std::ptr::copy_nonoverlapping(out.as_ptr(), target.cast::<T>().add(at), n) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each addend alone is less than half of the last place of the sum before it, and all of them are not.
    #[test]
    #[expect(unsafe_code, reason = "calls a fold of memory")]
    fn sums_of_half_types_are_rounded_once() {
        let few = |x: f32| vec![bf16::from_f32(x); 3000];
        let parts: Vec<Vec<bf16>> = [256.0, 0.75, 0.75, 0.75].map(few).into();
        let mut out = few(0.0);
        let sources: Vec<*const u8> = parts.iter().map(|p| p.as_ptr().cast()).collect();
        // SAFETY: all have 3000 elements of that dtype, and no two overlap.
        unsafe { fold(Monoid::Sum, DType::BF16, &sources, &[out.as_mut_ptr().cast()], 3000) };
        assert_eq!(out, few(258.0));
        let mut parts: Vec<Vec<f16>> = [2048.0, 0.75, 0.75].map(|x| vec![f16::from_f32(x); 3]).into();
        let target: *mut u8 = parts[0].as_mut_ptr().cast();
        let sources = [target.cast_const(), parts[1].as_ptr().cast(), parts[2].as_ptr().cast()];
        // SAFETY: as above; the first source is the target.
        unsafe { fold(Monoid::Sum, DType::F16, &sources, &[target], 3) };
        assert_eq!(parts[0], [f16::from_f32(2050.0); 3]);
    }
}
