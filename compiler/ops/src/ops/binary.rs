//! What all element-wise functions of two values share. The functions themselves are in `arithmetic.rs`, `compare.rs`
//! and `logic.rs`.

use crate::op::eq_by;
use crate::{Emit, Graph, Id, Linear, Op, OpCall, OpError, Roles, Type, union};
use meshwright_diag::codes;
use meshwright_plan::expr::{BinaryFn, Reg};
use meshwright_plan::{DType, Dims, Expr};
use meshwright_sorted::SortedSet;
use std::sync::Arc;

/// Derivatives of a function of two values: what to multiply the cotangent with, for each operand that needs it.
pub type Derivatives = fn(&mut Graph, Id, Id, Id, [bool; 2]) -> [Option<Vec<Id>>; 2];

/// A function of two values of one dtype, broadcast by name.
pub struct BinaryDef {
    /// Its name or symbol.
    pub name: &'static str,
    /// The scalar function.
    pub function: BinaryFn,
    /// The dtypes it takes.
    pub takes: fn(DType) -> bool,
    /// What it takes, in words.
    pub takes_text: &'static str,
    /// The operands in which it is linear, each alone.
    pub linear: &'static [usize],
    /// Its derivatives, as factors; `None` where zero.
    pub derivatives: Derivatives,
    /// Its meaning.
    pub oracle: fn(f64, f64) -> f64,
}

// A function is the one of its name.
eq_by!(Binary, |op| op.0.name);

impl std::fmt::Debug for BinaryDef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// No derivative.
pub(crate) fn flat(_: &mut Graph, _: Id, _: Id, _: Id, _: [bool; 2]) -> [Option<Vec<Id>>; 2] {
    [None, None]
}

/// Builds a function from a call; truth values become numbers where the function does not take them.
pub(crate) fn build(def: &'static BinaryDef, g: &mut Graph, call: &OpCall) -> Result<Id, OpError> {
    let numeric = !(def.takes)(DType::Bool);
    let x = call.unified(g, numeric)?;
    g.add_op(Arc::new(Binary(def)), &x)
}

/// An element-wise function of two values.
#[derive(Clone, Copy, Debug)]
pub struct Binary(pub &'static BinaryDef);

impl Op for Binary {
    fn name(&self) -> &'static str {
        self.0.name
    }

    fn infer(&self, x: &[&Type], _: &Dims) -> Result<Type, OpError> {
        if x[0].dtype != x[1].dtype {
            return Err(OpError::new(
                codes::E0202,
                format!("`{}` of {} and {}: they need one dtype", self.0.name, x[0].dtype, x[1].dtype),
            )
            .one_dtype(x[0].dtype, x[1].dtype));
        }
        for (i, t) in x.iter().enumerate() {
            if !(self.0.takes)(t.dtype) {
                let what = self.0.takes_text;
                return Err(OpError::new(
                    codes::E0202,
                    format!("`{}` takes {what}, not {}", self.0.name, t.dtype),
                )
                .operand(i)
                .converted(self.0.takes));
            }
        }
        let dtype = if self.0.function.is_comparison() { DType::Bool } else { x[0].dtype };
        Ok(Type::new(dtype, union(x.iter().copied())))
    }

    fn roles(&self, x: &[&Type], y: &Type, _: &Dims) -> Roles {
        let slots: SortedSet<usize> = self.0.linear.iter().copied().collect();
        Roles::elementwise(x, y, if slots.is_empty() { Linear::No } else { Linear::Only(slots) })
    }

    fn vjp(&self, g: &mut Graph, x: &[Id], y: Id, dy: Id, need: &[bool]) -> Vec<Option<Id>> {
        let factors = (self.0.derivatives)(g, x[0], x[1], y, [need[0], need[1]]);
        let dims = g.ty(y).dims.clone();
        let mut out = Vec::new();
        for (i, f) in factors.into_iter().enumerate() {
            out.push(f.filter(|_| need[i]).map(|mut f| {
                f.insert(0, dy);
                let to = g.ty(x[i]).dims.clone();
                g.pull_back(&f, &dims, &to)
            }));
        }
        out
    }

    fn scalar(&self, e: &mut Expr, x: &[Reg], _: &[&Type], _: &Type, _: &Dims) -> Option<Reg> {
        Some(e.binary(self.0.function, x[0], x[1]))
    }

    fn lower(&self, _: &mut dyn Emit) {}

    fn element(&self, x: &[f64], y: &Type) -> Option<f64> {
        let (a, b) = (x[0], x[1]);
        // Integers have no infinity and no NaN.
        Some(match self.0.function {
            BinaryFn::FloorDiv if y.dtype.is_int() && b == 0.0 => -1.0,
            BinaryFn::Mod if y.dtype.is_int() && b == 0.0 => a,
            _ => (self.0.oracle)(a, b),
        })
    }
}
