//! Folds of one type: how elements are gathered into an accumulator, in an order that sizes alone decide.

use super::data::{Element, ValueIndexF32, ValueIndexF64};
use super::half_types::Half;
use super::instruction_set::multiversion;
use super::math::Real;
use half::{bf16, f16};
use meshwright_plan::{DType, square_scale};
use std::marker::PhantomData;

/// A monoid over elements of one type.
pub(super) trait Fold {
    /// Type of the operands.
    type Item: Element;
    /// The result.
    type Out: Element;
    /// Type of the accumulator: wider than the items if sums need it.
    type Acc: Copy + Send + Sync;
    /// The result of an empty fold.
    const IDENTITY: Self::Acc;
    /// One more element.
    fn step(acc: Self::Acc, x: Self::Item) -> Self::Acc;
    /// Two partial folds.
    fn join(a: Self::Acc, b: Self::Acc) -> Self::Acc;
    /// The result.
    fn finish(acc: Self::Acc) -> Self::Out;
}

const LANES: usize = 32;

multiversion! {
    /// Folds a contiguous row, in [`LANES`] interleaved parts that are then joined as a tree.
    pub(super) fn row[F: Fold](x: &[F::Item]) -> F::Acc {
        if x.len() < LANES {
            return x.iter().fold(F::IDENTITY, |acc, x| F::step(acc, *x));
        }
        let mut acc = [F::IDENTITY; LANES];
        let mut chunks = x.chunks_exact(LANES);
        for chunk in &mut chunks {
            for (acc, x) in acc.iter_mut().zip(chunk) {
                *acc = F::step(*acc, *x);
            }
        }
        for (acc, x) in acc.iter_mut().zip(chunks.remainder()) {
            *acc = F::step(*acc, *x);
        }
        let mut n = LANES;
        while n > 1 {
            n /= 2;
            for i in 0..n {
                acc[i] = F::join(acc[i], acc[i + n]);
            }
        }
        acc[0]
    }
}

multiversion! {
    /// `acc[j] = acc[j] + x[i * step + j * stride]` for each `i < count` in turn.
    pub(super) fn columns[F: Fold](acc: &mut [F::Acc], x: &[F::Item], count: usize, step: usize, stride: usize) {
        for i in 0..count {
            let x = &x[i * step..];
            if stride == 1 {
                for (acc, x) in acc.iter_mut().zip(x) {
                    *acc = F::step(*acc, *x);
                }
            } else {
                for (j, acc) in acc.iter_mut().enumerate() {
                    *acc = F::step(*acc, x[j * stride]);
                }
            }
        }
    }
}

macro_rules! fold {
    ($name:ident, $item:ty, $acc:ty, $id:expr, $step:expr, $join:expr) => {
        fold!($name, $item, $acc, $item, $id, $step, $join);
    };
    ($name:ident, $item:ty, $acc:ty, $out:ty, $id:expr, $step:expr, $join:expr) => {
        pub(super) struct $name;
        impl Fold for $name {
            type Item = $item;
            type Out = $out;
            type Acc = $acc;
            const IDENTITY: $acc = $id;
            #[inline(always)]
            fn step(acc: $acc, x: $item) -> $acc {
                let f: fn($acc, $item) -> $acc = $step;
                f(acc, x)
            }
            #[inline(always)]
            fn join(a: $acc, b: $acc) -> $acc {
                let f: fn($acc, $acc) -> $acc = $join;
                f(a, b)
            }
            #[inline(always)]
            #[allow(clippy::unnecessary_cast, reason = "f64 sums have f64 accumulators")]
            fn finish(acc: $acc) -> $out {
                acc as $out
            }
        }
    };
}
fold!(SumF32, f32, f64, 0.0, |a, x| a + f64::from(x), |a, b| a + b);
fold!(SumF64, f64, f64, 0.0, |a, x| a + x, |a, b| a + b);
fold!(SumI32, i32, i32, 0, |a, x| a.wrapping_add(x), |a, b| a.wrapping_add(b));
fold!(SumU8, u8, u8, 0, |a, x| a.wrapping_add(x), |a, b| a.wrapping_add(b));
fold!(ProdF32, f32, f64, 1.0, |a, x| a * f64::from(x), |a, b| a * b);
fold!(ProdF64, f64, f64, 1.0, |a, x| a * x, |a, b| a * b);
fold!(ProdI32, i32, i32, 1, |a, x| a.wrapping_mul(x), |a, b| a.wrapping_mul(b));
fold!(ProdU8, u8, u8, 1, |a, x| a.wrapping_mul(x), |a, b| a.wrapping_mul(b));
fold!(MaxF32, f32, f32, f32::NEG_INFINITY, |a, x| a.greater(x), |a, b| a.greater(b));
fold!(MaxF64, f64, f64, f64::NEG_INFINITY, |a, x| a.greater(x), |a, b| a.greater(b));
fold!(MaxI32, i32, i32, i32::MIN, |a, x| a.max(x), |a, b| a.max(b));
fold!(MaxU8, u8, u8, 0, |a, x| a.max(x), |a, b| a.max(b));
fold!(MinF32, f32, f32, f32::INFINITY, |a, x| a.lesser(x), |a, b| a.lesser(b));
fold!(MinF64, f64, f64, f64::INFINITY, |a, x| a.lesser(x), |a, b| a.lesser(b));
fold!(MinI32, i32, i32, i32::MAX, |a, x| a.min(x), |a, b| a.min(b));
fold!(MinU8, u8, u8, u8::MAX, |a, x| a.min(x), |a, b| a.min(b));
fold!(And, u8, u8, 1, |a, x| a & u8::from(x != 0), |a, b| a & b);
fold!(Or, u8, u8, 0, |a, x| a | u8::from(x != 0), |a, b| a | b);

/// Squares of scaled elements.
pub(super) struct ScaledSquares<T>(PhantomData<T>);
macro_rules! scaled_squares {
    ($($t:ty, $dtype:expr;)*) => {$(
        impl Fold for ScaledSquares<$t> {
            type Item = $t;
            type Out = $t;
            type Acc = f64;
            const IDENTITY: f64 = 0.0;
            #[inline(always)]
            fn step(acc: f64, x: $t) -> f64 {
                let scaled = f64::from(x) * const { square_scale($dtype) };
                acc + scaled * scaled
            }
            #[inline(always)]
            fn join(a: f64, b: f64) -> f64 {
                a + b
            }
            #[inline(always)]
            fn finish(acc: f64) -> $t {
                acc as $t
            }
        }
    )*};
}
scaled_squares! {
    f32, DType::F32;
    f64, DType::F64;
}

/// Declares a fold of half types.
macro_rules! half_fold {
    ($(#[$doc:meta])* $name:ident, $out:ty, $acc:ty, $id:expr, |$a:ident, $x:ident| $step:expr, |$b:ident, $c:ident| $join:expr, $finish:expr) => {
        $(#[$doc])*
        pub(super) struct $name<H>(PhantomData<H>);
        impl<H: Half> Fold for $name<H> {
            type Item = H;
            type Out = $out;
            type Acc = $acc;
            const IDENTITY: $acc = $id;
            #[inline(always)]
            fn step($a: $acc, $x: H) -> $acc {
                $step
            }
            #[inline(always)]
            fn join($b: $acc, $c: $acc) -> $acc {
                $join
            }
            #[inline(always)]
            fn finish(acc: $acc) -> $out {
                let f: fn($acc) -> $out = $finish;
                f(acc)
            }
        }
    };
}
half_fold!(
    /// Sums are `f32`.
    SumHalf, f32, f64, 0.0, |a, x| a + f64::from(x.wide()), |a, b| a + b, |a| a as f32
);
half_fold!(
    /// Products are `f32`.
    ProdHalf, f32, f64, 1.0, |a, x| a * f64::from(x.wide()), |a, b| a * b, |a| a as f32
);
half_fold!(
    /// One of the elements.
    MaxHalf, H, H, H::NEG_INFINITY, |a, x| H::narrow(a.wide().greater(x.wide())), |a, b| Self::step(a, b), |a| a
);
half_fold!(
    /// One of the elements.
    MinHalf, H, H, H::INFINITY, |a, x| H::narrow(a.wide().lesser(x.wide())), |a, b| Self::step(a, b), |a| a
);

/// Types whose greatest or least element can be asked for with its place. NaN comes before all numbers, whether the
/// greatest or the least is sought; of equals the one of lowest index counts.
pub(super) trait Ranked: Element + PartialOrd {
    /// Value and index.
    type Pair: Element;
    /// The fold that finds the greatest.
    type Greatest: Fold<Item = Self, Acc = Self>;
    /// The fold that finds the least.
    type Least: Fold<Item = Self, Acc = Self>;
    /// A found element.
    fn pair(self, index: usize) -> Self::Pair;
    /// The result of an empty search.
    fn nothing(greatest: bool) -> Self::Pair;
    /// Neither less, equal nor greater than itself.
    fn is_nan(self) -> bool;

    /// Whether `self` replaces an earlier best.
    #[inline(always)]
    fn replaces(self, best: Self, greatest: bool) -> bool {
        let better = if greatest { self > best } else { self < best };
        better || (self.is_nan() && !best.is_nan())
    }

    /// Whether it is equal to the best.
    #[inline(always)]
    fn is_best(self, best: Self) -> bool {
        self == best || (self.is_nan() && best.is_nan())
    }
}

macro_rules! ranked {
    ($t:ty, $pair:ident, $value:ty, $index:ty, $max:ty, $min:ty, $nan:expr) => {
        impl Ranked for $t {
            type Pair = $pair;
            type Greatest = $max;
            type Least = $min;
            #[inline(always)]
            fn pair(self, index: usize) -> $pair {
                $pair { value: <$value>::from(self), index: index as $index }
            }
            fn nothing(greatest: bool) -> $pair {
                let value = if greatest { <$value>::NEG_INFINITY } else { <$value>::INFINITY };
                $pair { value, index: <$index>::MAX }
            }
            #[inline(always)]
            fn is_nan(self) -> bool {
                let f: fn($t) -> bool = $nan;
                f(self)
            }
        }
    };
}
ranked!(f32, ValueIndexF32, f32, u32, MaxF32, MinF32, f32::is_nan);
ranked!(f64, ValueIndexF64, f64, u64, MaxF64, MinF64, f64::is_nan);
ranked!(bf16, ValueIndexF32, f32, u32, MaxHalf<bf16>, MinHalf<bf16>, bf16::is_nan);
ranked!(f16, ValueIndexF32, f32, u32, MaxHalf<f16>, MinHalf<f16>, f16::is_nan);
ranked!(i32, ValueIndexF64, f64, u64, MaxI32, MinI32, |_| false);
ranked!(u8, ValueIndexF64, f64, u64, MaxU8, MinU8, |_| false);

multiversion! {
    /// Best of each column and its place: `x[i * step + j * stride]` at place `i`, for `i` from 1; places hold that of
    /// `i = 0` at first.
    pub(super) fn best_columns[T: Ranked](
        best: (&mut [T], &mut [usize]),
        x: &[T],
        count: usize,
        step: usize,
        stride: usize,
        greatest: bool,
    ) {
        for i in 1..count {
            let x = &x[i * step..];
            for (j, (best, place)) in best.0.iter_mut().zip(best.1.iter_mut()).enumerate() {
                let x = x[j * stride];
                if x.replaces(*best, greatest) {
                    (*best, *place) = (x, i);
                }
            }
        }
    }
}
