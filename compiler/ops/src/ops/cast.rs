//! Conversion between dtypes.

use crate::family::no_spelling;
use crate::{Emit, Family, Graph, Id, Linear, Op, OpError, Roles, Sample, Signature, Type};
use meshwright_plan::expr::Reg;
use meshwright_plan::{DType, Dims, Expr};

/// Conversion to a dtype: float to integer truncates toward zero, non-zero is true, true is 1.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cast {
    /// The new dtype.
    pub to: DType,
}

/// How it is written: `cast(x, float)`; the resolver reads the dtype.
pub(crate) static FAMILY: &[Family] = &[Family {
    name: "cast",
    signature: Signature::SYNTAX,
    doc: "`cast(x, dtype)`: the value as `float`, `f32`, `f64`, `i32` or `bool`. Float to integer truncates.",
    build: no_spelling,
    samples: || {
        use crate::family::{float, truth};
        vec![
            Sample::new("bool to float", vec![truth(&[("a", 5), ("b", 3)])], |g, x| {
                Ok(g.cast(x[0], DType::F64))
            })
            .flat(),
            Sample::new("float to integer", vec![float(&[("a", 5)])], |g, x| Ok(g.cast(x[0], DType::I32)))
                .flat(),
            Sample::new("float to bool", vec![float(&[("a", 5)])], |g, x| Ok(g.cast(x[0], DType::Bool)))
                .flat(),
        ]
    },
}];

impl Op for Cast {
    fn name(&self) -> &'static str {
        "cast"
    }

    fn infer(&self, x: &[&Type], _: &Dims) -> Result<Type, OpError> {
        let range = if self.to == DType::I32 { x[0].range } else { None };
        Ok(Type { dtype: self.to, dims: x[0].dims.clone(), range })
    }

    fn roles(&self, x: &[&Type], y: &Type, _: &Dims) -> Roles {
        // Between floats the cast of a sum is the sum of the casts, beyond rounding; truncation is not linear.
        let linear = x[0].dtype.is_float() && y.dtype.is_float();
        Roles::elementwise(x, y, if linear { Linear::Only([0].into()) } else { Linear::No })
    }

    fn vjp(&self, g: &mut Graph, x: &[Id], _: Id, dy: Id, _: &[bool]) -> Vec<Option<Id>> {
        let from = g.ty(x[0]).dtype;
        vec![from.is_float().then(|| g.cast(dy, from))]
    }

    fn scalar(&self, e: &mut Expr, x: &[Reg], _: &[&Type], _: &Type, _: &Dims) -> Option<Reg> {
        Some(e.cast(x[0], self.to))
    }

    fn lower(&self, _: &mut dyn Emit) {}

    fn element(&self, x: &[f64], _: &Type) -> Option<f64> {
        let v = x[0];
        Some(match self.to {
            DType::Bool => f64::from(u8::from(v != 0.0)),
            // Truncates, and saturates; NaN gives 0.
            DType::I32 => f64::from(v as i32),
            DType::U8 => f64::from(v as u8),
            DType::F32 => f64::from(v as f32),
            DType::BF16 => half::bf16::from_f32(v as f32).into(),
            DType::F16 => half::f16::from_f32(v as f32).into(),
            _ => v,
        })
    }
}
