//! A value with the gradient of another one.

use crate::family::float;
use crate::{
    Emit, ExpandWhen, Family, Graph, Id, Linear, Op, OpError, Roles, Sample, Signature, Type, union,
};
use meshwright_diag::codes;
use meshwright_plan::expr::Reg;
use meshwright_plan::{Dim, Dims, Expr};
use std::sync::Arc;

/// The first operand, as whose derivative that of the second is taken. Of the second nothing but its gradient is ever computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StraightThrough;

/// How it is written.
pub(crate) static FAMILY: &[Family] = &[Family {
    name: "straight_through",
    signature: Signature::BINARY,
    doc: "`straight_through(x, y)`: the value of `x` with the gradient of `y`, floats, broadcast by name. Of `y` nothing but the gradient is computed.",
    build: |g, c| {
        let x = c.unified(g, true)?;
        g.add_op(Arc::new(StraightThrough), &x)
    },
    samples: || {
        let (a, b) = (("a", 5), ("b", 3));
        vec![
            // The gradient of another value is none by differences; this value has its own.
            Sample::new("its own gradient", vec![float(&[a, b])], |g, x| {
                let square = g.product(&[x[0], x[0]]);
                Ok(g.op(StraightThrough, &[square, square]))
            }),
            Sample::call("alike", "straight_through", &[], vec![float(&[a, b]), float(&[b, a])]).flat(),
            Sample::call("outer", "straight_through", &[], vec![float(&[a]), float(&[b])]).flat(),
        ]
    },
}];

impl Op for StraightThrough {
    fn name(&self) -> &'static str {
        "straight_through"
    }

    fn infer(&self, x: &[&Type], _: &Dims) -> Result<Type, OpError> {
        if let Some(i) = x.iter().position(|t| !t.dtype.is_float()) {
            return Err(OpError::new(
                codes::E0202,
                format!("`straight_through` takes floats, not {}", x[i].dtype),
            )
            .operand(i)
            .help("convert it: `cast(…, float)`"));
        }
        Ok(Type::new(x[0].dtype, union(x.iter().copied())))
    }

    fn roles(&self, x: &[&Type], y: &Type, _: &Dims) -> Roles {
        Roles::elementwise(x, y, Linear::Only([0].into()))
    }

    fn vjp(&self, g: &mut Graph, x: &[Id], y: Id, dy: Id, need: &[bool]) -> Vec<Option<Id>> {
        let (dims, to) = (g.ty(y).dims.clone(), g.ty(x[1]).dims.clone());
        vec![None, need[1].then(|| g.pull_back(&[dy], &dims, &to))]
    }

    fn scalar(&self, _: &mut Expr, x: &[Reg], _: &[&Type], _: &Type, _: &Dims) -> Option<Reg> {
        Some(x[0])
    }

    // The second operand is no part of the program once gradients are taken.
    fn expand_when(&self) -> ExpandWhen {
        ExpandWhen::Always
    }

    fn expand(&self, g: &mut Graph, x: &[Id]) -> Option<Id> {
        let dims = union(x.iter().map(|i| g.ty(*i)));
        Some(g.expanded(x[0], &dims))
    }

    fn lower(&self, _: &mut dyn Emit) {}

    fn flops(&self, _: &[&Type], _: &Type, _: &dyn Fn(Dim) -> u64, _: &Dims) -> u64 {
        0
    }

    fn element(&self, x: &[f64], _: &Type) -> Option<f64> {
        Some(x[0])
    }
}
