//! `where(c, a, b)`: one of two values.

use crate::family::{float, truth};
use crate::signature::Argument;
use crate::{
    Computes, Emit, Family, Graph, Id, Kind, Linear, Op, OpError, Roles, Sample, Signature, Type, union,
};
use meshwright_diag::codes;
use meshwright_plan::expr::Reg;
use meshwright_plan::{DType, Dims, Expr};
use std::sync::Arc;

/// The second operand where the first is true, else the third. In none is it linear: the chosen constant would be added
/// once a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Select;

/// How it is written.
pub(crate) static FAMILY: &[Family] = &[Family {
    name: "where",
    signature: Signature::named(&[Argument::once("c"), Argument::once("a"), Argument::once("b")]),
    doc: "`where(c, a, b)`: `a` where `c` is true, else `b`; broadcast by name.",
    build: |g, c| {
        let condition = c.tensor(g, 0);
        let x = c.unify(g, &c.args[1..], false)?;
        g.add_op(Arc::new(Select), &[condition, x[0], x[1]])
    },
    samples: || {
        vec![Sample::call(
            "where",
            "where",
            &[],
            vec![truth(&[("a", 5)]), float(&[("a", 5), ("b", 3)]), float(&[("b", 3)])],
        )]
    },
}];

impl Op for Select {
    fn name(&self) -> &'static str {
        "where"
    }

    fn infer(&self, x: &[&Type], _: &Dims) -> Result<Type, OpError> {
        if x[0].dtype != DType::Bool {
            return Err(OpError::new(
                codes::E0202,
                format!("`where` takes a truth value first, not {}", x[0].dtype),
            )
            .operand(0)
            .help("compare it: `x != 0`"));
        }
        if x[1].dtype != x[2].dtype {
            return Err(OpError::new(
                codes::E0202,
                format!("`where` chooses between {} and {}: they need one dtype", x[1].dtype, x[2].dtype),
            ));
        }
        // One of two positions along a dim is a position along it.
        let range = x[1].range.filter(|_| x[1].range == x[2].range);
        Ok(Type { dtype: x[1].dtype, dims: union([x[1], x[2], x[0]]), range })
    }

    fn roles(&self, x: &[&Type], y: &Type, _: &Dims) -> Roles {
        Roles::elementwise(x, y, Linear::No)
    }

    fn kind(&self) -> Kind {
        Kind::Compute(Computes::Select)
    }

    fn vjp(&self, g: &mut Graph, x: &[Id], y: Id, dy: Id, need: &[bool]) -> Vec<Option<Id>> {
        let dims = g.ty(y).dims.clone();
        let mut out = vec![None; 3];
        for i in [1, 2] {
            if !need[i] {
                continue;
            }
            let c = if i == 1 { x[0] } else { g.unary(&super::NOT, x[0]) };
            let to = g.ty(x[i]).dims.clone();
            let d = g.masked(c, dy);
            out[i] = Some(g.pull_back(&[d], &dims, &to));
        }
        out
    }

    fn scalar(&self, e: &mut Expr, x: &[Reg], _: &[&Type], _: &Type, _: &Dims) -> Option<Reg> {
        Some(e.select(x[0], x[1], x[2]))
    }

    fn lower(&self, _: &mut dyn Emit) {}

    fn element(&self, x: &[f64], _: &Type) -> Option<f64> {
        Some(if x[0] != 0.0 { x[1] } else { x[2] })
    }
}
