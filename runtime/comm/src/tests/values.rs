//! Random elements, and folds written a second time.

use crate::{Element, PairF32, PairF64};
use half::bf16;
use meshwright_plan::Monoid;
use std::cmp::Ordering;

/// SplitMix64.
pub(super) struct Rng(pub(super) u64);

impl Rng {
    pub(super) fn of(parts: &[usize]) -> Rng {
        Rng(parts.iter().fold(17, |h, p| Rng(h ^ *p as u64).next()))
    }

    pub(super) fn next(&mut self) -> u64 {
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

pub(super) trait Sample: Element + std::fmt::Debug + PartialEq + Default {
    fn sample(rng: &mut Rng) -> Self;
    fn bits(self) -> (u64, u64);
    fn naive(monoid: Monoid, a: Self, b: Self) -> Self;

    fn samples(rng: &mut Rng, n: usize) -> Vec<Self> {
        (0..n).map(|_| Self::sample(rng)).collect()
    }
}

macro_rules! floats {
    ($($t:ty),*) => {$(
        impl Sample for $t {
            fn sample(rng: &mut Rng) -> Self {
                match rng.below(40) {
                    0 => <$t>::NAN,
                    1 => -<$t>::INFINITY,
                    2 => 0.0,
                    3 => -0.0,
                    _ => (rng.next() as i64 as f64 / 1e17) as $t,
                }
            }
            fn bits(self) -> (u64, u64) {
                // Of the NaN of a product (0 by infinity) the sign is not defined.
                (if self.is_nan() { <$t>::NAN } else { self }.to_bits().into(), 0)
            }
            fn naive(monoid: Monoid, a: Self, b: Self) -> Self {
                match monoid {
                    Monoid::Sum => a + b,
                    Monoid::Prod => a * b,
                    _ if a.is_nan() => a,
                    _ if b.is_nan() => b,
                    Monoid::Max => if b > a { b } else { a },
                    Monoid::Min => if b < a { b } else { a },
                    _ => unreachable!(),
                }
            }
        }
    )*};
}
floats!(f32, f64);

impl Sample for bf16 {
    fn sample(rng: &mut Rng) -> Self {
        bf16::from_f32(f32::sample(rng))
    }
    fn bits(self) -> (u64, u64) {
        (if self.is_nan() { bf16::NAN } else { self }.to_bits().into(), 0)
    }
    fn naive(monoid: Monoid, a: Self, b: Self) -> Self {
        bf16::from_f32(f32::naive(monoid, a.to_f32(), b.to_f32()))
    }
}

impl Sample for i32 {
    fn sample(rng: &mut Rng) -> Self {
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
            Monoid::Min => a.min(b),
            _ => unreachable!(),
        }
    }
}

impl Sample for u8 {
    fn sample(rng: &mut Rng) -> Self {
        rng.below(2) as u8
    }
    fn bits(self) -> (u64, u64) {
        (self.into(), 0)
    }
    fn naive(monoid: Monoid, a: Self, b: Self) -> Self {
        match monoid {
            Monoid::Max | Monoid::Or => a.max(b),
            Monoid::Min | Monoid::And => a.min(b),
            _ => unreachable!(),
        }
    }
}

macro_rules! pairs {
    ($($t:ident($v:ty, $i:ty)),*) => {$(
        impl Sample for $t {
            // Few different values, so that ties and NaN are common.
            fn sample(rng: &mut Rng) -> Self {
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
                    (false, false) => (sign * a.value).partial_cmp(&(sign * b.value)).unwrap(),
                };
                if by_value.then(b.index.cmp(&a.index)).is_ge() { a } else { b }
            }
        }
    )*};
}
pairs!(PairF32(f32, u32), PairF64(f64, u64));
