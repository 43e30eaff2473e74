//! Scalar functions as operations of Burn, an arm for each.

use super::lower::{Lower, unsupported};
use crate::engine::graph::Val;
use crate::engine::lowering::LoweringError;
use crate::engine::ops::{Binary, Unary};
use burn_backend::DType as BurnType;
use meshwright_plan::DType;
use meshwright_plan::expr::UnaryFn;

impl Lower<'_> {
    /// A function of each element; `dtype` is what the tensor stands for.
    pub(super) fn function(&mut self, f: UnaryFn, a: Val, dtype: DType) -> Result<Val, LoweringError> {
        if !f.takes(dtype) {
            return unsupported(format!("{} of {dtype}", f.name()));
        }
        let e = &mut self.graph;
        Ok(match f {
            UnaryFn::Neg => e.unary(Unary::Neg, a),
            UnaryFn::Relu => {
                // NaN stays.
                let below = e.scalar(Binary::Le, a, 0.0);
                e.fill(a, below, 0.0)
            }
            UnaryFn::Sqrt => e.unary(Unary::Sqrt, a),
            UnaryFn::Rsqrt => {
                let root = e.unary(Unary::Sqrt, a);
                e.unary(Unary::Recip, root)
            }
            UnaryFn::Recip => e.unary(Unary::Recip, a),
            UnaryFn::Exp => e.unary(Unary::Exp, a),
            UnaryFn::Log => e.unary(Unary::Log, a),
            UnaryFn::Abs => e.unary(Unary::Abs, a),
            UnaryFn::Sign => {
                let (over, under) = (e.scalar(Binary::Gt, a, 0.0), e.scalar(Binary::Lt, a, 0.0));
                let one = e.fill(a, over, 1.0);
                e.fill(one, under, -1.0)
            }
            UnaryFn::Tanh => e.unary(Unary::Tanh, a),
            UnaryFn::Sigmoid => {
                let minus = e.unary(Unary::Neg, a);
                let exp = e.unary(Unary::Exp, minus);
                let sum = e.scalar(Binary::Add, exp, 1.0);
                e.unary(Unary::Recip, sum)
            }
            UnaryFn::Erf => e.unary(Unary::Erf, a),
            UnaryFn::Sin => e.unary(Unary::Sin, a),
            UnaryFn::Cos => e.unary(Unary::Cos, a),
            UnaryFn::Tan => e.unary(Unary::Tan, a),
            UnaryFn::Log1p => e.unary(Unary::Log1p, a),
            UnaryFn::Expm1 => {
                // exp(x) - 1 loses digits near 0: there its series, to the precision of the dtype.
                let terms = if e.dtype(a) == BurnType::F64 { 17 } else { 9 };
                let size = e.unary(Unary::Abs, a);
                let near = e.scalar(Binary::Lt, size, 0.5);
                let mut sum = e.scalar(Binary::Mul, a, 1.0 / f64::from(terms));
                for k in (1..terms).rev() {
                    // x / k * (1 + sum)
                    let next = e.scalar(Binary::Add, sum, 1.0);
                    let scaled = e.scalar(Binary::Mul, a, 1.0 / f64::from(k));
                    sum = e.mul(next, scaled);
                }
                let exp = e.unary(Unary::Exp, a);
                let far = e.scalar(Binary::Sub, exp, 1.0);
                e.choose(near, sum, far)
            }
            UnaryFn::Floor => e.unary(Unary::Floor, a),
            UnaryFn::Ceil => e.unary(Unary::Ceil, a),
            UnaryFn::Round => e.unary(Unary::Round, a),
            UnaryFn::Not => e.not(a),
        })
    }
}
