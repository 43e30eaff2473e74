//! A dim read from its end: `reverse[d](x)` is `y[i] = x[n - 1 - i]`.

use super::composite::in_place;
use crate::family::{float, index_of, truth};
use crate::signature::DIM;
use crate::{Emit, F64Tensor, Family, Graph, Id, Linear, Op, OpError, Roles, Sample, Signature, Type};
use meshwright_diag::codes;
use meshwright_plan::{Dim, Dims, Prim, Window};
use std::sync::Arc;

/// The elements along a dim in the other order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reverse {
    /// Which dim.
    pub dim: Dim,
}

/// How it is written.
pub(crate) static FAMILY: &[Family] = &[Family {
    name: "reverse",
    signature: Signature::over(&[DIM]),
    doc: "`reverse[d](x)`: the elements along `d` from the last to the first. Along a split `d`, devices exchange what they hold.",
    build: |g, c| {
        let (dim, x) = (c.dim(), c.tensor(g, 0));
        g.add_op(Arc::new(Reverse { dim }), &[x])
    },
    samples: || {
        let (a, b) = (("a", 7), ("b", 3));
        let along =
            |label, inputs| Sample::bracket(label, "reverse", &[&[(&["a"], &[], None)]], &[], &[], inputs);
        vec![
            along("inner", vec![float(&[b, a])]),
            along("outer", vec![float(&[a, b])]),
            along("truth values", vec![truth(&[a])]).flat(),
            along("positions", vec![index_of(&[a], ("v", 5))]).flat(),
        ]
    },
}];

impl Op for Reverse {
    fn name(&self) -> &'static str {
        "reverse"
    }

    fn infer(&self, x: &[&Type], table: &Dims) -> Result<Type, OpError> {
        if !x[0].has(self.dim) {
            let (name, has) = (table.name(self.dim), table.list(&x[0].dims));
            let text = format!("`reverse[{name}]` of a value without the dim `{name}`: it has {has}");
            return Err(OpError::new(codes::E0203, text).operand(0));
        }
        Ok(x[0].clone())
    }

    fn roles(&self, x: &[&Type], y: &Type, table: &Dims) -> Roles {
        let window = Window::reversed(table.size(self.dim));
        Roles::elementwise(x, y, Linear::Only([0].into())).window(self.dim, 0, self.dim, window)
    }

    fn vjp(&self, g: &mut Graph, _: &[Id], y: Id, dy: Id, _: &[bool]) -> Vec<Option<Id>> {
        let dims = g.ty(y).dims.clone();
        let dy = g.expanded(dy, &dims);
        vec![Some(g.op(*self, &[dy]))]
    }

    fn lower(&self, e: &mut dyn Emit) {
        in_place(e, Prim::Reverse { dim: self.dim });
    }

    fn flops(&self, _: &[&Type], _: &Type, _: &dyn Fn(Dim) -> u64, _: &Dims) -> u64 {
        0
    }

    fn oracle(&self, x: &[&F64Tensor], y: &Type, table: &Dims) -> F64Tensor {
        let place = y.dims.iter().position(|d| *d == self.dim).unwrap_or(0);
        F64Tensor::build(table, &y.dims, |at| {
            let mut there = at.to_vec();
            there[place] = table.size(self.dim) - 1 - at[place];
            x[0].at(&y.dims, &there)
        })
    }
}
