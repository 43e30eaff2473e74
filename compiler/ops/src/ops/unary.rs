//! What all element-wise functions of one value share. Each function is a [`UnaryDef`] in a file of its own.

use crate::op::eq_by;
use crate::{Emit, Graph, Id, Linear, Op, OpCall, OpError, Roles, Type};
use meshwright_diag::codes;
use meshwright_plan::expr::Reg;
use meshwright_plan::{DType, Dims, Expr};
use std::sync::Arc;

/// A function of one value.
pub struct UnaryDef {
    /// Its name.
    pub name: &'static str,
    /// The dtypes it takes.
    pub takes: fn(DType) -> bool,
    /// What it takes, in words.
    pub takes_text: &'static str,
    /// Whether it is linear.
    pub linear: bool,
    /// The scalar expression.
    pub expr: fn(&mut Expr, Reg) -> Reg,
    /// Its derivative as factors with the operand's dims, of operand and result; `None` where it is zero everywhere. The
    /// cotangent is multiplied by one after the other: a derivative that is beyond the dtype alone may be so with a cotangent
    /// that is far from 1.
    pub derivative: fn(&mut Graph, Id, Id) -> Option<Vec<Id>>,
    /// Its meaning.
    pub oracle: fn(f64) -> f64,
}

// A function is the one of its name.
eq_by!(Unary, |op| op.0.name);

impl std::fmt::Debug for UnaryDef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// An element-wise function of one value.
#[derive(Clone, Copy, Debug)]
pub struct Unary(pub &'static UnaryDef);

/// Takes floats only.
pub(crate) fn floats(t: DType) -> bool {
    t.is_float()
}

/// Takes signed numbers.
pub(crate) fn signed(t: DType) -> bool {
    t.is_float() || t == DType::I32
}

/// Builds a function from a call: a bool becomes a float.
pub(crate) fn build(def: &'static UnaryDef, g: &mut Graph, call: &OpCall) -> Result<Id, OpError> {
    let numeric = !(def.takes)(DType::Bool);
    let x = call.unified(g, numeric)?;
    g.add_op(Arc::new(Unary(def)), &x)
}

/// The family of one [`UnaryDef`], written `name(x)`.
macro_rules! unary_family {
    ($name:literal, $def:ident, $doc:literal, $low:expr, $high:expr) => {
        /// How it is written.
        pub(crate) static FAMILY: &[crate::Family] = &[crate::Family {
            name: $name,
            signature: crate::Signature::UNARY,
            doc: $doc,
            build: |g, call| crate::ops::unary::build(&$def, g, call),
            samples: || {
                vec![crate::Sample::call(
                    concat!($name, "(x)"),
                    $name,
                    &[],
                    vec![crate::family::between(&[("a", 5), ("b", 3)], $low, $high)],
                )]
            },
        }];
    };
}
pub(crate) use unary_family;

impl Op for Unary {
    fn name(&self) -> &'static str {
        self.0.name
    }

    fn infer(&self, x: &[&Type], _: &Dims) -> Result<Type, OpError> {
        if !(self.0.takes)(x[0].dtype) {
            let what = self.0.takes_text;
            return Err(OpError::new(
                codes::E0202,
                format!("`{}` takes {what}, not {}", self.0.name, x[0].dtype),
            )
            .operand(0)
            .converted(self.0.takes));
        }
        Ok(Type::new(x[0].dtype, x[0].dims.clone()))
    }

    fn roles(&self, x: &[&Type], y: &Type, _: &Dims) -> Roles {
        Roles::elementwise(x, y, if self.0.linear { Linear::Only([0].into()) } else { Linear::No })
    }

    fn vjp(&self, g: &mut Graph, x: &[Id], y: Id, dy: Id, _: &[bool]) -> Vec<Option<Id>> {
        let factors = (self.0.derivative)(g, x[0], y);
        vec![factors.map(|all| all.into_iter().fold(dy, |dy, factor| g.product(&[dy, factor])))]
    }

    fn scalar(&self, e: &mut Expr, x: &[Reg], _: &[&Type], _: &Type, _: &Dims) -> Option<Reg> {
        Some((self.0.expr)(e, x[0]))
    }

    fn lower(&self, _: &mut dyn Emit) {}

    fn element(&self, x: &[f64], _: &Type) -> Option<f64> {
        Some((self.0.oracle)(x[0]))
    }
}
