//! Integers that are known to be positions along a dim, `cast(i, i32 in d)`: what tells it is found before.

use crate::family::{float, index_of, integer, no_spelling};
use crate::{Emit, Family, Graph, Id, Linear, Lookup, Op, OpError, Roles, Sample, Signature, Type};
use meshwright_diag::codes;
use meshwright_plan::expr::Reg;
use meshwright_plan::{DType, Dim, Dims, Expr};
use std::sync::Arc;

/// The same integers as positions along a dim. Whoever makes it has seen to it that they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InRange {
    /// The dim.
    pub dim: Dim,
}

/// How it is written: the resolver reads the dim, and proves the range.
pub(crate) static FAMILY: &[Family] = &[Family {
    name: "in_range",
    signature: Signature::SYNTAX,
    doc: "`cast(i, i32 in d)`: integers as positions along `d`, where their arithmetic shows that they are; with `clamp = true` those outside become the nearest position.",
    build: no_spelling,
    samples: || {
        let positions = vec![index_of(&[("a", 5)], ("v", 7))];
        vec![
            Sample::new("positions", positions, |g, x| {
                let Some(dim) = g.ty(x[0]).range else { return Ok(x[0]) };
                Ok(g.op(InRange { dim }, &[x[0]]))
            })
            .flat(),
            // `t[v = cast(i, i32 in v, clamp = true)]`, of integers on both sides of the dim.
            Sample::new(
                "clamped",
                vec![float(&[("v", 7), ("b", 3)]), integer(&[("a", 9)], -6.0, 14.0)],
                |g, x| {
                    let dim = g.ty(x[0]).dims[0];
                    g.captured.insert(dim);
                    let [last, first] =
                        [g.dims.size(dim) as f64 - 1.0, 0.0].map(|end| g.constant(end, DType::I32));
                    let low = g.binary("min", x[1], last);
                    let kept = g.binary("max", low, first);
                    let positions = g.op(InRange { dim }, &[kept]);
                    g.add_op(Arc::new(Lookup { dims: vec![dim] }), &[x[0], positions])
                },
            ),
        ]
    },
}];

impl Op for InRange {
    fn name(&self) -> &'static str {
        "in_range"
    }

    fn infer(&self, x: &[&Type], _: &Dims) -> Result<Type, OpError> {
        if x[0].dtype != DType::I32 {
            return Err(
                OpError::new(codes::E0202, format!("positions are i32, not {}", x[0].dtype)).operand(0)
            );
        }
        Ok(Type { dtype: DType::I32, dims: x[0].dims.clone(), range: Some(self.dim) })
    }

    fn roles(&self, x: &[&Type], y: &Type, _: &Dims) -> Roles {
        Roles::elementwise(x, y, Linear::Only([0].into()))
    }

    fn vjp(&self, _: &mut Graph, _: &[Id], _: Id, _: Id, _: &[bool]) -> Vec<Option<Id>> {
        vec![None]
    }

    fn scalar(&self, _: &mut Expr, x: &[Reg], _: &[&Type], _: &Type, _: &Dims) -> Option<Reg> {
        Some(x[0])
    }

    fn lower(&self, _: &mut dyn Emit) {}

    fn flops(&self, _: &[&Type], _: &Type, _: &dyn Fn(Dim) -> u64, _: &Dims) -> u64 {
        0
    }

    fn element(&self, x: &[f64], _: &Type) -> Option<f64> {
        Some(x[0])
    }
}
