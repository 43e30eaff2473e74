//! The n-ary sum: the one op in which partial sums meet.

use crate::family::float;
use crate::{Emit, Family, Graph, Id, Kind, Linear, Op, OpError, Roles, Sample, Signature, Type, union};
use meshwright_diag::codes;
use meshwright_plan::expr::{BinaryFn, Reg};
use meshwright_plan::{Dims, Expr};
use std::sync::Arc;

/// The sum of its operands, broadcast by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Add;

/// How it is written.
pub(crate) static FAMILY: &[Family] = &[
    Family {
        name: "+",
        signature: Signature::INFIX,
        doc: "Sum, broadcast by name.",
        build: |g, c| {
            let x = c.unified(g, true)?;
            g.add_op(Arc::new(Add), &x)
        },
        samples: || {
            vec![
                Sample::call(
                    "same dims",
                    "+",
                    &[],
                    vec![float(&[("a", 5), ("b", 3)]), float(&[("b", 3), ("a", 5)])],
                ),
                Sample::call("bias", "+", &[], vec![float(&[("a", 5), ("b", 3)]), float(&[("b", 3)])]),
                Sample::call("outer", "+", &[], vec![float(&[("a", 5)]), float(&[("b", 3)])]),
                Sample::new("three", vec![float(&[("a", 3)]), float(&[("b", 2)]), float(&[])], |g, x| {
                    Ok(g.sum_of(x))
                }),
            ]
        },
    },
    Family {
        name: "-",
        signature: Signature::INFIX,
        doc: "Difference, broadcast by name.",
        build: |g, c| {
            let x = c.unified(g, true)?;
            let minus = g.add_op(Arc::new(crate::Unary(&super::NEG)), &x[1..])?;
            g.add_op(Arc::new(Add), &[x[0], minus])
        },
        samples: || {
            vec![Sample::call("a - b", "-", &[], vec![float(&[("a", 5)]), float(&[("a", 5), ("b", 2)])])]
        },
    },
];

impl Op for Add {
    fn name(&self) -> &'static str {
        "add"
    }

    fn infer(&self, x: &[&Type], _: &Dims) -> Result<Type, OpError> {
        for (i, t) in x.iter().enumerate() {
            // Bytes have no room for sums: they would wrap, and where they wrap would depend on the layout.
            if t.dtype == x[0].dtype && !super::unary::signed(t.dtype) {
                return Err(OpError::new(
                    codes::E0202,
                    format!("a sum takes floats or i32, not {}", t.dtype),
                )
                .operand(i)
                .help("cast it first: `cast(…, float)`"));
            }
            if t.dtype != x[0].dtype {
                return Err(OpError::new(codes::E0202, format!("a sum of {} and {}", x[0].dtype, t.dtype))
                    .operand(i)
                    .one_dtype(x[0].dtype, t.dtype));
            }
        }
        Ok(Type::new(x[0].dtype, union(x.iter().copied())))
    }

    fn roles(&self, x: &[&Type], y: &Type, _: &Dims) -> Roles {
        Roles::elementwise(x, y, Linear::Jointly)
    }

    fn kind(&self) -> Kind {
        Kind::Add
    }

    fn vjp(&self, g: &mut Graph, x: &[Id], y: Id, dy: Id, need: &[bool]) -> Vec<Option<Id>> {
        let dims = g.ty(y).dims.clone();
        let mut out = Vec::new();
        for (x, need) in x.iter().zip(need) {
            let to = g.ty(*x).dims.clone();
            out.push(need.then(|| g.pull_back(&[dy], &dims, &to)));
        }
        out
    }

    fn scalar(&self, e: &mut Expr, x: &[Reg], _: &[&Type], _: &Type, _: &Dims) -> Option<Reg> {
        x.iter().copied().reduce(|a, b| e.binary(BinaryFn::Add, a, b))
    }

    fn lower(&self, _: &mut dyn Emit) {}

    fn flops(&self, x: &[&Type], y: &Type, size: &dyn Fn(meshwright_plan::Dim) -> u64, _: &Dims) -> u64 {
        (x.len() as u64 - 1) * y.dims.iter().map(|d| size(*d)).product::<u64>()
    }

    fn element(&self, x: &[f64], _: &Type) -> Option<f64> {
        Some(x.iter().sum())
    }
}
