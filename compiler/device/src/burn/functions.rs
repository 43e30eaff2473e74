//! Scalar functions as operations of Burn, an arm for each.

use super::fp8;
use super::lower::{Lower, unsupported};
use crate::error::LoweringError;
use crate::lowering::graph::{GraphBuilder, Val};
use crate::lowering::ops::Binary;
use burn_backend::DType as BurnType;
use burn_ir::{FloatOperationIr as FloatOp, NumericOperationIr as Numeric};
use meshwright_plan::expr::UnaryFn;
use meshwright_plan::{DType, Fp8};

impl Lower<'_> {
    /// An element-wise function; `dtype` is the dtype of the Plan's value.
    pub(crate) fn function(&mut self, f: UnaryFn, a: Val, dtype: DType) -> Result<Val, LoweringError> {
        if !f.takes(dtype) {
            return unsupported(format!("{} of {dtype}", f.name()));
        }
        let e = &mut self.graph;
        Ok(match f {
            UnaryFn::Neg => e.numeric(Numeric::Neg, a),
            UnaryFn::Relu => {
                // NaN stays.
                let below = e.scalar(Binary::Le, a, 0.0);
                e.fill(a, below, 0.0)
            }
            UnaryFn::Sqrt => e.float(FloatOp::Sqrt, a),
            UnaryFn::Rsqrt => {
                let root = e.float(FloatOp::Sqrt, a);
                e.float(FloatOp::Recip, root)
            }
            UnaryFn::Recip => e.float(FloatOp::Recip, a),
            UnaryFn::Exp => e.float(FloatOp::Exp, a),
            UnaryFn::Log => e.float(FloatOp::Log, a),
            UnaryFn::Abs => e.numeric(Numeric::Abs, a),
            UnaryFn::Sign => {
                let (over, under) = (e.scalar(Binary::Gt, a, 0.0), e.scalar(Binary::Lt, a, 0.0));
                let one = e.fill(a, over, 1.0);
                // No byte is below 0, and Burn fills none with -1.
                if dtype == DType::U8 { one } else { e.fill(one, under, -1.0) }
            }
            UnaryFn::Tanh => e.float(FloatOp::Tanh, a),
            UnaryFn::Sigmoid => {
                let minus = e.numeric(Numeric::Neg, a);
                let exp = e.float(FloatOp::Exp, minus);
                let sum = e.scalar(Binary::Add, exp, 1.0);
                e.float(FloatOp::Recip, sum)
            }
            UnaryFn::Erf => e.float(FloatOp::Erf, a),
            UnaryFn::Sin => e.float(FloatOp::Sin, a),
            UnaryFn::Cos => e.float(FloatOp::Cos, a),
            UnaryFn::Tan => e.float(FloatOp::Tan, a),
            UnaryFn::Log1p => e.float(FloatOp::Log1p, a),
            UnaryFn::Expm1 => {
                // exp(x) - 1 loses digits near 0: there its series, to the precision of the dtype.
                let terms = if e.dtype(a) == BurnType::F64 { 17 } else { 9 };
                let size = e.numeric(Numeric::Abs, a);
                let near = e.scalar(Binary::Lt, size, 0.5);
                let mut sum = e.scalar(Binary::Mul, a, 1.0 / f64::from(terms));
                for k in (1..terms).rev() {
                    // x / k * (1 + sum)
                    let next = e.scalar(Binary::Add, sum, 1.0);
                    let scaled = e.scalar(Binary::Mul, a, 1.0 / f64::from(k));
                    sum = e.mul(next, scaled);
                }
                let exp = e.float(FloatOp::Exp, a);
                let far = e.scalar(Binary::Sub, exp, 1.0);
                e.choose(near, sum, far)
            }
            UnaryFn::Floor => e.float(FloatOp::Floor, a),
            UnaryFn::Ceil => e.float(FloatOp::Ceil, a),
            UnaryFn::Round => e.float(FloatOp::Round, a),
            UnaryFn::Tf32 => tf32(e, a),
            UnaryFn::RoundE4m3 => fp8::round(e, a, Fp8::E4M3),
            UnaryFn::RoundE5m2 => fp8::round(e, a, Fp8::E5M2),
            UnaryFn::PowerOfTwo => fp8::power_of_two(e, a),
            UnaryFn::Not => e.not(a),
        })
    }
}

/// [`meshwright_plan::tf32`] by sums: the upper digits of `x` are `c - (c - x)` with `c = x (2^k + 1)` (Dekker 1971, section 5).
/// If two numbers are equally near, the result may be the odd one.
fn tf32(e: &mut GraphBuilder, a: Val) -> Val {
    let dropped = match e.dtype(a) {
        BurnType::F64 => 42,
        BurnType::F32 => 13,
        // Half types have no more digits.
        _ => return a,
    };
    // Scales the operand down where `c` would overflow.
    let size = e.numeric(Numeric::Abs, a);
    let large = e.scalar(Binary::Gt, size, 2f64.powi(100));
    let smaller = e.scalar(Binary::Mul, a, 2f64.powi(-32));
    let x = e.choose(large, smaller, a);
    let c = e.scalar(Binary::Mul, x, 2f64.powi(dropped) + 1.0);
    let rest = e.sub(c, x);
    let upper = e.sub(c, rest);
    let larger = e.scalar(Binary::Mul, upper, 2f64.powi(32));
    let rounded = e.choose(large, larger, upper);
    let infinite = e.scalar(Binary::Gt, size, f64::from(f32::MAX));
    e.choose(infinite, a, rounded)
}
