//! Arithmetic of integers that backends do differently: division, and powers.

use super::lower::Lower;
use crate::lowering::graph::Val;
use crate::lowering::ops::Binary;
use burn_backend::DType as BurnType;
use burn_ir::NumericOperationIr as Numeric;
use meshwright_plan::DType;
use meshwright_plan::expr::BinaryFn;

impl Lower<'_> {
    /// Division as expressions have it: `x / 0` is -1 (all bits set) and `x mod 0` is `x`; `x / -1` is `-x`, which wraps
    /// around.
    pub(crate) fn int_division(&mut self, f: BinaryFn, a: Val, b: Val) -> Val {
        let e = &mut self.graph;
        let byte = e.dtype(a) == BurnType::U8;
        let [a, b] = [a, b].map(|v| e.cast(v, BurnType::I32));
        let zero = e.scalar(Binary::Eq, b, 0.0);
        let mut odd = zero;
        if !byte {
            let minus = e.scalar(Binary::Eq, b, -1.0);
            odd = e.binary(Binary::Or, zero, minus);
        }
        let safe = e.fill(b, odd, 1.0);
        // Backends truncate quotients of integers.
        let cut = e.binary(Binary::Div, a, safe);
        let product = e.mul(cut, safe);
        let rest = e.sub(a, product);
        let (low, negative) = (e.scalar(Binary::Lt, rest, 0.0), e.scalar(Binary::Lt, safe, 0.0));
        let [low, negative] = [low, negative].map(|v| e.cast(v, BurnType::I32));
        let apart = e.binary(Binary::Ne, low, negative);
        let some = e.scalar(Binary::Ne, rest, 0.0);
        let apart = e.and(apart, some);
        let out = match f {
            BinaryFn::Mod => {
                let shifted = e.add(rest, safe);
                let rest = e.choose(apart, shifted, rest);
                // The remainder by -1 is 0, as by 1, which replaces it.
                e.choose(zero, a, rest)
            }
            _ => {
                let mut quotient = cut;
                if f == BinaryFn::FloorDiv {
                    let less = e.scalar(Binary::Sub, cut, 1.0);
                    quotient = e.choose(apart, less, cut);
                }
                if !byte {
                    let minus = e.scalar(Binary::Eq, b, -1.0);
                    let negated = e.numeric(Numeric::Neg, a);
                    quotient = e.choose(minus, negated, quotient);
                }
                e.fill(quotient, zero, -1.0)
            }
        };
        if byte { self.convert(out, BurnType::U8) } else { out }
    }

    /// The true power, truncated: of a negative exponent 0 unless the base is 1 or -1 (and -1 for base 0, as for `1 / 0`).
    /// By squaring, a bit of the exponent at a time.
    pub(crate) fn int_power(&mut self, a: Val, b: Val, exponent: Option<f64>, dtype: DType) -> Val {
        let e = &mut self.graph;
        let byte = dtype == DType::U8;
        let [a, b] = [a, b].map(|v| e.cast(v, BurnType::I32));
        let shape = vec![1; e.shape(a).len()];
        let mut out = e.full(&shape, BurnType::I32, 1.0);
        let mut square = a;
        let bits = match exponent {
            Some(n) if n >= 0.0 => 32 - (n as u32).leading_zeros(),
            _ if byte => 8,
            _ => 31,
        };
        for k in 0..bits {
            if k > 0 {
                square = e.mul(square, square);
            }
            let product = e.mul(out, square);
            let bit = e.scalar(Binary::And, b, f64::from(1u32 << k));
            let set = e.scalar(Binary::Ne, bit, 0.0);
            out = e.choose(set, product, out);
        }
        if !byte && exponent.is_none_or(|n| n < 0.0) {
            let below = e.scalar(Binary::Lt, b, 0.0);
            let one = e.scalar(Binary::Eq, a, 1.0);
            let one = e.cast(one, BurnType::I32);
            let minus = e.scalar(Binary::Eq, a, -1.0);
            let odd = e.scalar(Binary::And, b, 1.0);
            let twice = e.scalar(Binary::Mul, odd, -2.0);
            let sign = e.scalar(Binary::Add, twice, 1.0);
            let zero = e.scalar(Binary::Eq, a, 0.0);
            let small = e.choose(minus, sign, one);
            let small = e.fill(small, zero, -1.0);
            out = e.choose(below, small, out);
        }
        if byte { self.convert(out, BurnType::U8) } else { out }
    }
}
