//! The innermost loops of a convolution: a small block of sums of products that stays in registers.

use crate::kernels::instruction_set::{Isa, Level};
use crate::kernels::math::Real;

/// A stretch of a sum: `len` steps from element `a` of the one factor and element `b` of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stretch {
    pub(super) a: usize,
    pub(super) b: usize,
    pub(super) len: usize,
}

/// The factors of a tile. Its element at row `m` and lane `l` is the sum, over all stretches `s` and their steps `k`, of
/// `a[s.a + m * across + k * along] * b[s.b + k * step + l]`.
pub(super) struct Factors<'a, T> {
    pub(super) a: &'a [T],
    pub(super) across: usize,
    pub(super) along: usize,
    pub(super) b: &'a [T],
    pub(super) step: usize,
    pub(super) stretches: &'a [Stretch],
}

/// Most rows of a tile on any machine.
pub(super) const MOST_ROWS: usize = 16;

/// A float type whose tiles are `LANES` wide.
pub(super) trait Tiled: Real {
    /// Lanes of a tile.
    const LANES: usize;

    /// Most rows of a tile: its sums fit the registers.
    fn rows(level: Level) -> usize;

    /// Sums of the first `rows` rows; `a0` and `b0` are added to the positions of every stretch. ConvolveRow `m` is written to
    /// `out[m * LANES..]`.
    ///
    /// # Panics
    /// Where a stretch goes beyond a factor or `out` is too short.
    fn tile(level: Level, rows: usize, f: &Factors<'_, Self>, starts: [usize; 2], out: &mut [Self]);
}

/// Fails where a tile would read or write what is not there.
fn check<T: Tiled>(rows: usize, f: &Factors<'_, T>, [a0, b0]: [usize; 2], out: &[T]) {
    assert!(rows > 0 && rows <= MOST_ROWS && out.len() >= rows * T::LANES, "a tile of {rows} rows");
    for s in f.stretches.iter().filter(|s| s.len > 0) {
        let a = a0 + s.a + (rows - 1) * f.across + (s.len - 1) * f.along;
        let b = b0 + s.b + (s.len - 1) * f.step + T::LANES - 1;
        assert!(a < f.a.len() && b < f.b.len(), "{s:?} goes beyond its factors");
    }
}

/// Calls `$tile::<rows, …>` for a number of rows that is one of those listed.
macro_rules! by_rows {
    ($rows:expr, $call:ident [$($n:literal)*] $args:tt) => {
        match $rows {
            $($n => $call::<$n> $args,)*
            _ => {}
        }
    };
}

/// Without vector instructions of its own: the compiler uses what every machine of the target has.
fn portable<T: Tiled, const M: usize, const L: usize>(
    f: &Factors<'_, T>,
    [a0, b0]: [usize; 2],
    out: &mut [T],
) {
    let mut acc = [[T::default(); L]; M];
    for s in f.stretches {
        for k in 0..s.len {
            let b = &f.b[b0 + s.b + k * f.step..][..L];
            let a = a0 + s.a + k * f.along;
            for (m, acc) in acc.iter_mut().enumerate() {
                let x = f.a[a + m * f.across];
                for (acc, b) in acc.iter_mut().zip(b) {
                    *acc += x * *b;
                }
            }
        }
    }
    for (row, acc) in out.chunks_exact_mut(L).zip(&acc) {
        row.copy_from_slice(acc);
    }
}

/// Tiles in registers of one kind: `$c` vectors of `$n` lanes a row.
#[cfg(target_arch = "x86_64")]
macro_rules! vectors {
    ($name:ident, $features:literal, $t:ty, $n:literal x $c:literal, $zero:ident, $load:ident, $splat:ident, $fma:ident, $store:ident) => {
        /// # Safety
        /// The machine has the features, and [`check`] passed for `M` rows.
        #[expect(
            unsafe_code,
            reason = "vector instructions, and loads whose bounds were checked a stretch at a time"
        )]
        #[target_feature(enable = $features)]
        unsafe fn $name<const M: usize>(f: &Factors<'_, $t>, [a0, b0]: [usize; 2], out: &mut [$t]) {
            use std::arch::x86_64::*;
            let mut acc = [[$zero(); $c]; M];
            for s in f.stretches {
                for k in 0..s.len {
                    // SAFETY: `check` found the last element that this stretch reads within the factors.
                    let (a, b) = unsafe {
                        (f.a.as_ptr().add(a0 + s.a + k * f.along), f.b.as_ptr().add(b0 + s.b + k * f.step))
                    };
                    let mut lanes = [$zero(); $c];
                    for (c, lanes) in lanes.iter_mut().enumerate() {
                        // SAFETY: as above.
                        *lanes = unsafe { $load(b.add(c * $n)) };
                    }
                    for (m, acc) in acc.iter_mut().enumerate() {
                        // SAFETY: as above.
                        let x = $splat(unsafe { *a.add(m * f.across) });
                        for (acc, lanes) in acc.iter_mut().zip(&lanes) {
                            *acc = $fma(x, *lanes, *acc);
                        }
                    }
                }
            }
            for (m, acc) in acc.iter().enumerate() {
                for (c, acc) in acc.iter().enumerate() {
                    // SAFETY: `check` found that `out` has `M` rows.
                    unsafe { $store(out.as_mut_ptr().add((m * $c + c) * $n), *acc) };
                }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
vectors!(wide_f32, "avx512f", f32, 16 x 1, _mm512_setzero_ps, _mm512_loadu_ps, _mm512_set1_ps, _mm512_fmadd_ps, _mm512_storeu_ps);
#[cfg(target_arch = "x86_64")]
vectors!(wide_f64, "avx512f", f64, 8 x 1, _mm512_setzero_pd, _mm512_loadu_pd, _mm512_set1_pd, _mm512_fmadd_pd, _mm512_storeu_pd);
#[cfg(target_arch = "x86_64")]
vectors!(half_f32, "avx2,fma", f32, 8 x 2, _mm256_setzero_ps, _mm256_loadu_ps, _mm256_set1_ps, _mm256_fmadd_ps, _mm256_storeu_ps);
#[cfg(target_arch = "x86_64")]
vectors!(half_f64, "avx2,fma", f64, 4 x 2, _mm256_setzero_pd, _mm256_loadu_pd, _mm256_set1_pd, _mm256_fmadd_pd, _mm256_storeu_pd);

macro_rules! tiled {
    ($t:ty, $lanes:literal, $wide:ident, $half:ident) => {
        impl Tiled for $t {
            const LANES: usize = $lanes;

            fn rows(level: Level) -> usize {
                match level.isa() {
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx512 => MOST_ROWS,
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx2 => 6,
                    Isa::Portable => 2,
                }
            }

            #[cfg_attr(target_arch = "x86_64", expect(unsafe_code, reason = "calls of functions for an instruction set"))]
            fn tile(level: Level, rows: usize, f: &Factors<'_, Self>, starts: [usize; 2], out: &mut [Self]) {
                check(rows, f, starts, out);
                match level.isa() {
                    // SAFETY: a `Level` exists only where the machine has these features, and `check` passed.
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx512 => unsafe {
                        by_rows!(rows, $wide [1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16] (f, starts, out));
                    },
                    // SAFETY: as above.
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx2 => unsafe {
                        by_rows!(rows, $half [1 2 3 4 5 6] (f, starts, out));
                    },
                    Isa::Portable => match rows {
                        1 => portable::<Self, 1, $lanes>(f, starts, out),
                        _ => portable::<Self, 2, $lanes>(f, starts, out),
                    },
                }
            }
        }
    };
}
tiled!(f32, 16, wide_f32, half_f32);
tiled!(f64, 8, wide_f64, half_f64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tile_of_every_instruction_set_is_the_sum_of_products() {
        let number = |i: usize| ((i * 7 + 3) % 11) as f64 - 5.0;
        let a: Vec<f64> = (0..400).map(number).collect();
        let b: Vec<f64> = (0..400).map(|i| number(i + 5)).collect();
        let (a32, b32): (Vec<f32>, Vec<f32>) =
            (a.iter().map(|v| *v as f32).collect(), b.iter().map(|v| *v as f32).collect());
        let stretches = [
            Stretch { a: 2, b: 1, len: 5 },
            Stretch { a: 40, b: 90, len: 0 },
            Stretch { a: 50, b: 120, len: 3 },
        ];
        let sum = |m: usize, l: usize| -> f64 {
            let steps = stretches.iter().flat_map(|s| (0..s.len).map(move |k| (s, k)));
            steps.map(|(s, k)| a[4 + s.a + m * 3 + k * 2] * b[6 + s.b + k * 17 + l]).sum()
        };
        for level in Level::available() {
            for rows in 1..=f64::rows(level) {
                let mut out = vec![0.0; rows * 8];
                let f = Factors { a: &a, across: 3, along: 2, b: &b, step: 17, stretches: &stretches };
                f64::tile(level, rows, &f, [4, 6], &mut out);
                let mut out32 = vec![0.0; rows * 16];
                let f = Factors { a: &a32, across: 3, along: 2, b: &b32, step: 17, stretches: &stretches };
                f32::tile(level, rows, &f, [4, 6], &mut out32);
                for m in 0..rows {
                    (0..8).for_each(|l| assert_eq!(out[m * 8 + l], sum(m, l), "{level:?} {rows} {m} {l}"));
                    (0..16).for_each(|l| assert_eq!(f64::from(out32[m * 16 + l]), sum(m, l)));
                }
            }
        }
    }
}
