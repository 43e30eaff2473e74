//! Random elements, and folds written a second time.

use half::{bf16, f16};
use meshwright_comm::{Buf, BufMut, Element, ValueIndexF32, ValueIndexF64};
use meshwright_plan::{DType, Monoid};
use std::cmp::Ordering;
use std::marker::PhantomData;

/// SplitMix64.
pub(super) struct SuiteRng(u64);

impl SuiteRng {
    pub(super) fn of(parts: &[usize]) -> SuiteRng {
        SuiteRng(parts.iter().fold(17, |h, p| SuiteRng(h ^ *p as u64).next()))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    pub(super) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

/// Elements that can be made up, folded and compared.
pub(super) trait TestValue: Element + std::fmt::Debug + Default {
    /// Distance of 1 to the next number, for floats.
    const EPSILON: f64;

    fn sample(rng: &mut SuiteRng) -> Self;
    /// Equal elements have equal bits. Of a NaN that was computed (0 by infinity) the sign is not defined.
    fn bits(self) -> (u64, u64);
    fn naive(monoid: Monoid, a: Self, b: Self) -> Self;
    /// Of all members, from left to right; half types are folded in `f32`, and rounded once.
    fn fold_all(monoid: Monoid, members: impl Iterator<Item = Self>) -> Option<Self> {
        members.reduce(|a, b| Self::naive(monoid, a, b))
    }
    /// Its value, for floats.
    fn value(self) -> f64;

    fn samples(rng: &mut SuiteRng, n: usize) -> Vec<Self> {
        (0..n).map(|_| Self::sample(rng)).collect()
    }
}

macro_rules! floats {
    ($($t:ty, $wide:ty, $narrow:expr, $epsilon:expr, $number:expr, $of:expr, $to:expr);*) => {$(
        impl TestValue for $t {
            const EPSILON: f64 = $epsilon;

            fn sample(rng: &mut SuiteRng) -> Self {
                match rng.below(40) {
                    0 => <$t>::NAN,
                    1 => -<$t>::INFINITY,
                    2 => $of(0.0),
                    3 => $of(-0.0),
                    _ => $of($number(rng.next() as i64 as f64)),
                }
            }
            fn bits(self) -> (u64, u64) {
                (if self.is_nan() { <$t>::NAN } else { self }.to_bits().into(), 0)
            }
            fn naive(monoid: Monoid, a: Self, b: Self) -> Self {
                match monoid {
                    Monoid::Sum => a + b,
                    Monoid::Prod => a * b,
                    _ if a.is_nan() => a,
                    _ if b.is_nan() => b,
                    Monoid::Max => if b > a { b } else { a },
                    _ => if b < a { b } else { a },
                }
            }
            fn fold_all(monoid: Monoid, members: impl Iterator<Item = Self>) -> Option<Self> {
                let wide = members.map(|x| $to(x) as $wide);
                wide.reduce(|a, b| <$wide>::naive(monoid, a, b)).map($narrow)
            }
            fn value(self) -> f64 {
                $to(self)
            }
        }
    )*};
}
floats!(
    f32, f32, |x| x, f32::EPSILON as f64, large, |x: f64| x as f32, f64::from;
    f64, f64, |x| x, f64::EPSILON, large, |x: f64| x, |x: f64| x;
    bf16, f32, bf16::from_f32, 1.0 / 128.0, large, bf16::from_f64, bf16::to_f64;
    f16, f32, f16::from_f32, 1.0 / 1024.0, near_one, f16::from_f64, f16::to_f64
);

/// Numbers up to 92, of a random integer.
fn large(x: f64) -> f64 {
    x / 1e17
}

/// Numbers from 0.5 to 1.5 or their negatives: a product of them overflows in no order. Of a type with a small range, another
/// order of folding would give infinities elsewhere.
fn near_one(x: f64) -> f64 {
    (0.5 + x.abs() / 1e19).copysign(x)
}

impl TestValue for i32 {
    const EPSILON: f64 = 0.0;

    fn sample(rng: &mut SuiteRng) -> Self {
        rng.next() as i32
    }
    fn bits(self) -> (u64, u64) {
        (self as u64, 0)
    }
    fn naive(monoid: Monoid, a: Self, b: Self) -> Self {
        match monoid {
            Monoid::Sum => (i64::from(a) + i64::from(b)) as i32,
            Monoid::Prod => (i64::from(a) * i64::from(b)) as i32,
            Monoid::Max => a.max(b),
            _ => a.min(b),
        }
    }
    fn value(self) -> f64 {
        self.into()
    }
}

impl TestValue for u8 {
    const EPSILON: f64 = 0.0;

    fn sample(rng: &mut SuiteRng) -> Self {
        rng.below(2) as u8
    }
    fn bits(self) -> (u64, u64) {
        (self.into(), 0)
    }
    fn naive(monoid: Monoid, a: Self, b: Self) -> Self {
        if matches!(monoid, Monoid::Max | Monoid::Or) { a.max(b) } else { a.min(b) }
    }
    fn value(self) -> f64 {
        self.into()
    }
}

macro_rules! pairs {
    ($($t:ident($v:ty, $i:ty)),*) => {$(
        impl TestValue for $t {
            const EPSILON: f64 = 0.0;

            // Few different values, so that ties and NaN are common.
            fn sample(rng: &mut SuiteRng) -> Self {
                let value = if rng.below(9) == 0 { <$v>::NAN } else { rng.below(4) as $v - 1.5 };
                $t { value, index: rng.below(1000) as $i }
            }
            fn bits(self) -> (u64, u64) {
                (self.value.to_bits().into(), self.index.into())
            }
            fn naive(monoid: Monoid, a: Self, b: Self) -> Self {
                let sign = if monoid == Monoid::ArgMax { 1.0 } else { -1.0 };
                let by_value = match (a.value.is_nan(), b.value.is_nan()) {
                    (true, true) => Ordering::Equal,
                    (true, false) => Ordering::Greater,
                    (false, true) => Ordering::Less,
                    (false, false) => (sign * a.value).partial_cmp(&(sign * b.value)).unwrap_or(Ordering::Equal),
                };
                if by_value.then(b.index.cmp(&a.index)).is_ge() { a } else { b }
            }
            fn value(self) -> f64 {
                self.value.into()
            }
        }
    )*};
}
pairs!(ValueIndexF32(f32, u32), ValueIndexF64(f64, u64));

/// A dtype with the Rust type that stores it.
pub(super) trait Typed {
    type E: TestValue;
    const DTYPE: DType;
    fn buf(slice: &[Self::E]) -> Buf<'_>;
    fn buf_mut(slice: &mut [Self::E]) -> BufMut<'_>;
}

pub(super) struct PlainValue<T>(PhantomData<T>);

impl<T: TestValue> Typed for PlainValue<T> {
    type E = T;
    const DTYPE: DType = <T as Element>::DTYPE;
    fn buf(slice: &[T]) -> Buf<'_> {
        Buf::new(slice)
    }
    fn buf_mut(slice: &mut [T]) -> BufMut<'_> {
        BufMut::new(slice)
    }
}

pub(super) struct Truth;

impl Typed for Truth {
    type E = u8;
    const DTYPE: DType = DType::Bool;
    fn buf(slice: &[u8]) -> Buf<'_> {
        Buf::truth(slice)
    }
    fn buf_mut(slice: &mut [u8]) -> BufMut<'_> {
        BufMut::truth(slice)
    }
}
