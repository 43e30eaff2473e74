//! Scalar functions: the tables of those of one number and of two. A backend has a kernel for each row of the first.

use crate::{DType, Fp8};
use serde::{Deserialize, Serialize};

/// The domain of a function of one number, which is its range too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Domain {
    /// Floats.
    Float,
    /// Floats and integers.
    Number,
    /// Truth values.
    Truth,
}

/// Families of functions by the instructions that they take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FunctionCost {
    /// One instruction or a few.
    Simple,
    /// A division.
    Divide,
    /// A root.
    Root,
    /// A polynomial.
    Exponential,
    /// A reduction of the argument and a polynomial, or several.
    Power,
}

/// Declares the functions of one number. A row: the variant, the name in texts, the domain, the family of its cost, and its
/// meaning in `f64`.
macro_rules! unary_functions {
    ($($(#[$doc:meta])* $variant:ident $name:literal $takes:ident $cost:ident |$x:ident| $meaning:expr;)*) => {
        /// Functions of one number.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum UnaryFn {
            $($(#[$doc])* $variant,)*
        }

        impl UnaryFn {
            /// All, in the order of the table.
            pub const ALL: &'static [UnaryFn] = &[$(UnaryFn::$variant),*];

            /// Its name in texts.
            pub fn name(self) -> &'static str {
                match self {
                    $(UnaryFn::$variant => $name,)*
                }
            }

            /// Its domain.
            pub const fn domain(self) -> Domain {
                match self {
                    $(UnaryFn::$variant => Domain::$takes,)*
                }
            }

            /// The family of its cost.
            pub const fn cost(self) -> FunctionCost {
                match self {
                    $(UnaryFn::$variant => FunctionCost::$cost,)*
                }
            }

            /// Its meaning, of a truth value as 0 or 1. Kernels of `f64` are this function, kernels of `f32` within a few units
            /// in the last place of it.
            #[inline(always)]
            pub fn of(self, x: f64) -> f64 {
                match self {
                    $(UnaryFn::$variant => {
                        let $x = x;
                        $meaning
                    })*
                }
            }
        }
    };
}

unary_functions! {
    /// `-x`.
    Neg "neg" Number Simple |x| -x;
    /// The greater of `x` and 0; NaN of NaN.
    Relu "relu" Number Simple |x| if x <= 0.0 { 0.0 } else { x };
    /// Square root.
    Sqrt "sqrt" Float Root |x| x.sqrt();
    /// `1 / sqrt(x)`.
    Rsqrt "rsqrt" Float Root |x| 1.0 / x.sqrt();
    /// `1 / x`.
    Recip "recip" Float Divide |x| 1.0 / x;
    /// `e` to the power of `x`.
    Exp "exp" Float Exponential |x| x.exp();
    /// Natural logarithm.
    Log "log" Float Exponential |x| x.ln();
    /// Absolute value.
    Abs "abs" Number Simple |x| x.abs();
    /// -1, 0 or 1; NaN of NaN.
    Sign "sign" Number Simple |x| if x > 0.0 { 1.0 } else if x < 0.0 { -1.0 } else if x == 0.0 { 0.0 } else { x };
    /// Hyperbolic tangent.
    Tanh "tanh" Float Exponential |x| x.tanh();
    /// `1 / (1 + exp(-x))`; of an exponential that cannot overflow, so that small results keep their digits.
    Sigmoid "sigmoid" Float Exponential |x| {
        let e = (-x.abs()).exp();
        (if x < 0.0 { e } else { 1.0 }) / (1.0 + e)
    };
    /// Error function.
    Erf "erf" Float Exponential |x| libm::erf(x);
    /// Sine.
    Sin "sin" Float Power |x| x.sin();
    /// Cosine.
    Cos "cos" Float Power |x| x.cos();
    /// Tangent.
    Tan "tan" Float Power |x| x.tan();
    /// `log(1 + x)`, accurate near 0.
    Log1p "log1p" Float Exponential |x| x.ln_1p();
    /// `exp(x) - 1`, accurate near 0.
    Expm1 "expm1" Float Exponential |x| x.exp_m1();
    /// The greatest integer that is not greater.
    Floor "floor" Float Simple |x| x.floor();
    /// The least integer that is not less.
    Ceil "ceil" Float Simple |x| x.ceil();
    /// The nearest integer; of two equally near the even one.
    Round "round" Float Simple |x| x.round_ties_even();
    /// The nearest number of TF32, with 11 significant bits; of two equally near the even one.
    Tf32 "tf32" Float Simple |x| f64::from(crate::tf32(x as f32));
    /// The nearest number of E4M3, of two equally near the even one, at most 448 in magnitude.
    RoundE4m3 "round_e4m3" Float Simple |x| f64::from(Fp8::E4M3.round(x as f32));
    /// The nearest number of E5M2, of two equally near the even one, at most 57344 in magnitude.
    RoundE5m2 "round_e5m2" Float Simple |x| f64::from(Fp8::E5M2.round(x as f32));
    /// The greatest power of two that is not greater than the magnitude.
    PowerOfTwo "power_of_two" Float Simple |x| f64::from(crate::power_of_two(x as f32));
    /// Negation.
    Not "not" Truth Simple |x| f64::from(u8::from(x == 0.0));
}

impl UnaryFn {
    /// The function of that name.
    pub fn named(name: &str) -> Option<UnaryFn> {
        UnaryFn::ALL.iter().copied().find(|f| f.name() == name)
    }

    /// The format of 8 bits that it rounds to.
    pub const fn rounds_to(self) -> Option<Fp8> {
        match self {
            UnaryFn::RoundE4m3 => Some(Fp8::E4M3),
            UnaryFn::RoundE5m2 => Some(Fp8::E5M2),
            _ => None,
        }
    }

    /// True if the function exists for this dtype.
    pub fn takes(self, dtype: DType) -> bool {
        match self.domain() {
            Domain::Float => dtype.is_float(),
            Domain::Number => dtype.is_float() || dtype.is_int(),
            Domain::Truth => dtype == DType::Bool,
        }
    }
}

/// Functions of two numbers of one dtype. Comparisons give `Bool`; `And` and `Or` take it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "each name is the function")]
pub enum BinaryFn {
    Add,
    Sub,
    Mul,
    Div,
    Pow,
    Min,
    Max,
    Lt,
    Le,
    Gt,
    Ge,
    Eq,
    Ne,
    And,
    Or,
    /// The quotient rounded down. Of integers `x / 0` is -1.
    FloorDiv,
    /// `x - floor(x / y) * y`, of the sign of `y`. Of integers `x mod 0` is `x`.
    Mod,
}

impl BinaryFn {
    /// True if the result is a truth value whatever the operands are.
    pub fn is_comparison(self) -> bool {
        use BinaryFn::*;
        matches!(self, Lt | Le | Gt | Ge | Eq | Ne)
    }

    /// The dtype of the result for operands of this dtype, if there is such a function of it.
    pub fn result(self, of: DType) -> Option<DType> {
        let taken = match self {
            _ if of.is_pair() => false,
            BinaryFn::And | BinaryFn::Or => of == DType::Bool,
            BinaryFn::Min | BinaryFn::Max => true,
            f => f.is_comparison() || of != DType::Bool,
        };
        taken.then_some(if self.is_comparison() { DType::Bool } else { of })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn the_name_in_texts_is_that_in_plans() {
        for f in UnaryFn::ALL {
            assert_eq!(serde_json::to_value(f).unwrap(), f.name());
            assert_eq!(UnaryFn::named(f.name()), Some(*f));
        }
    }
}
