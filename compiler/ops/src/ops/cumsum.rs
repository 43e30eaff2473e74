//! Running sums along a dim.

use super::composite::in_place;
use crate::family::{float, integer};
use crate::signature::{Choice, DIM};
use crate::{
    Emit, F64Tensor, Family, Graph, Id, Linear, Op, OpError, Precision, Roles, Sample, Signature, Type,
};
use meshwright_diag::codes;
use meshwright_plan::{DType, Dim, Dims, Prim};
use std::sync::Arc;

/// The sums of all elements up to each along a dim.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CumSum {
    /// Along which dim.
    pub dim: Dim,
    /// Whether it runs from the end.
    pub reverse: bool,
    /// Whether an element's own value is left out of its sum.
    pub exclusive: bool,
}

/// How it is written.
pub(crate) static FAMILY: &[Family] = &[Family {
    name: "cumsum",
    signature: Signature {
        options: &[
            Choice::flag("reverse", "from the end"),
            Choice::flag("exclusive", "an element's own value is left out of its sum"),
        ],
        ..Signature::over(&[DIM])
    },
    doc: "`cumsum[d](x)`: at each position along `d` the sum up to it, its own element included; with `exclusive = true` \
          without it, with `reverse = true` from the end. It needs `d` whole: a split `d` is joined, or moved to another dim.",
    build: |g, c| {
        let x = c.unified(g, true)?[0];
        let (dim, reverse, exclusive) = (c.dim(), c.flag("reverse"), c.flag("exclusive"));
        g.add_op(Arc::new(CumSum { dim, reverse, exclusive }), &[x])
    },
    samples: || {
        let wide = || vec![float(&[("a", 5), ("b", 3)])];
        let mut out = vec![
            Sample::bracket("inner", "cumsum", &[&[(&["b"], &[], None)]], &[], &[], wide()),
            Sample::bracket("outer", "cumsum", &[&[(&["a"], &[], None)]], &[], &[], wide()),
            Sample::bracket(
                "integers",
                "cumsum",
                &[&[(&["b"], &[], None)]],
                &[],
                &[],
                vec![integer(&[("a", 2), ("b", 7), ("c", 3)], -4.0, 5.0)],
            )
            .flat(),
        ];
        for (label, reverse, exclusive) in
            [("from the end", true, false), ("before it", false, true), ("behind it", true, true)]
        {
            out.push(Sample::new(label, vec![float(&[("a", 5), ("b", 3)])], move |g, x| {
                let dim = g.ty(x[0]).dims[0];
                g.add_op(Arc::new(CumSum { dim, reverse, exclusive }), x)
            }));
        }
        out
    },
}];

impl Op for CumSum {
    fn name(&self) -> &'static str {
        "cumsum"
    }

    fn infer(&self, x: &[&Type], _: &Dims) -> Result<Type, OpError> {
        let of = x[0].dtype;
        if !(of.is_float() || of == DType::I32) {
            return Err(OpError::new(codes::E0202, format!("`cumsum` takes floats and i32, not {of}"))
                .operand(0)
                .help("convert it: `cast(…, float)`"));
        }
        Ok(Type::new(of, x[0].dims.clone()))
    }

    fn ordered(&self, _: &[&Type], _: &Type, _: &Dims) -> Vec<Dim> {
        vec![self.dim]
    }

    fn roles(&self, x: &[&Type], y: &Type, _: &Dims) -> Roles {
        Roles::elementwise(x, y, Linear::Only([0].into())).whole(&[self.dim])
    }

    fn precision(&self, _: &[&Type], _: &Type) -> Precision {
        Precision::Full
    }

    fn vjp(&self, g: &mut Graph, _: &[Id], _: Id, dy: Id, _: &[bool]) -> Vec<Option<Id>> {
        // An element is in the sums behind it: what they get, it gets.
        let mut dims = g.ty(dy).dims.clone();
        dims.push(self.dim);
        let dy = if g.ty(dy).has(self.dim) { dy } else { g.expanded(dy, &dims) };
        let back = CumSum { reverse: !self.reverse, ..*self };
        vec![Some(g.op(back, &[dy]))]
    }

    fn lower(&self, e: &mut dyn Emit) {
        let CumSum { dim, reverse, exclusive } = *self;
        in_place(e, Prim::CumSum { dim, reverse, exclusive });
    }

    fn oracle(&self, x: &[&F64Tensor], y: &Type, table: &Dims) -> F64Tensor {
        let place = y.dims.iter().position(|d| *d == self.dim);
        F64Tensor::build(table, &y.dims, |at| {
            let mut there = at.to_vec();
            let Some(place) = place else { return f64::NAN };
            let own = at[place];
            let counts = |i: usize| match (i == own, self.reverse) {
                (true, _) => !self.exclusive,
                (false, true) => i > own,
                (false, false) => i < own,
            };
            (0..table.size(self.dim))
                .filter(|i| counts(*i))
                .map(|i| {
                    there[place] = i;
                    x[0].at(&y.dims, &there)
                })
                .sum()
        })
    }
}
