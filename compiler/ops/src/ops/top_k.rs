//! The positions of the greatest elements along a dim.

use crate::family::{float, integer};
use crate::signature::BECOMES;
use crate::{
    Emit, ExpandWhen, F64Tensor, Family, Graph, Id, Linear, Op, OpError, Roles, Sample, Signature, Type,
};
use meshwright_diag::codes;
use meshwright_plan::{DType, Dim, Dims, Monoid, Prim};
use std::sync::Arc;

/// The positions of the greatest along a dim, as many as `to` has, in descending order of their values; of equal ones the lowest
/// position first, NaN before all numbers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TopK {
    /// Along which dim.
    pub dim: Dim,
    /// The dim of the result that counts them.
    pub to: Dim,
}

/// How it is written.
pub(crate) static FAMILY: &[Family] = &[Family {
    name: "top_k",
    signature: Signature::over(&[BECOMES]),
    doc: "`top_k[d -> k](x)`: the positions of the `size(k)` greatest along `d`, an `i32 in d` with `k` for `d`: greatest \
          first, of equal ones the lowest position first, NaN before all. Their values are `x[d = top_k[d -> k](x)]`. Where \
          `d` is split it is found as that many arg-maxima in turn, so that nothing is gathered.",
    build: |g, c| {
        let x = c.tensor(g, 0);
        let (dim, to) = (c.dim(), c.piece().to[0]);
        g.add_op(Arc::new(TopK { dim, to }), &[x])
    },
    samples: || {
        let ties = || integer(&[("a", 7), ("b", 3)], 0.0, 3.0);
        vec![
            Sample::bracket(
                "inner",
                "top_k",
                &[&[(&["b"], &["k"], None)]],
                &[],
                &[("k", 2)],
                vec![float(&[("a", 5), ("b", 7)])],
            )
            .flat(),
            Sample::bracket(
                "outer",
                "top_k",
                &[&[(&["a"], &["k"], None)]],
                &[],
                &[("k", 3)],
                vec![float(&[("a", 5), ("b", 3)])],
            )
            .flat(),
            Sample::bracket("ties", "top_k", &[&[(&["a"], &["k"], None)]], &[], &[("k", 4)], vec![ties()])
                .flat(),
            Sample::bracket(
                "all of them",
                "top_k",
                &[&[(&["b"], &["k"], None)]],
                &[],
                &[("k", 3)],
                vec![ties()],
            )
            .flat(),
            Sample::new("values", vec![float(&[("a", 5), ("b", 7)])], |g, x| {
                let (dim, to) = (g.ty(x[0]).dims[1], g.dims.find("k").unwrap_or_else(|| g.dims.add("k", 3)));
                let at = g.add_op(Arc::new(TopK { dim, to }), x)?;
                g.add_op(Arc::new(crate::Lookup { dims: vec![dim] }), &[x[0], at])
            }),
        ]
    },
}];

impl Op for TopK {
    fn name(&self) -> &'static str {
        "top_k"
    }

    fn infer(&self, x: &[&Type], table: &Dims) -> Result<Type, OpError> {
        let (dim, to, of) = (table.name(self.dim), table.name(self.to), x[0].dtype);
        if !(of.is_float() || of == DType::I32) {
            return Err(OpError::new(codes::E0202, format!("`top_k` takes floats and i32, not {of}"))
                .operand(0)
                .help("convert it: `cast(…, float)`"));
        }
        let (k, n) = (table.size(self.to), table.size(self.dim));
        if k == 0 || k > n {
            return Err(OpError::new(codes::E0204, format!("`top_k[{dim} -> {to}]`: {k} of {n} positions"))
                .help(format!("`{to}` has at least 1 and at most the size of `{dim}`, {n}")));
        }
        let dims = x[0].dims.iter().map(|d| if *d == self.dim { self.to } else { *d }).collect();
        Ok(Type { dtype: DType::I32, dims, range: Some(self.dim) })
    }

    fn ordered(&self, _: &[&Type], _: &Type, _: &Dims) -> Vec<Dim> {
        vec![self.dim, self.to]
    }

    fn roles(&self, x: &[&Type], y: &Type, _: &Dims) -> Roles {
        Roles::elementwise(x, y, Linear::No).whole(&[self.dim])
    }

    fn vjp(&self, _: &mut Graph, _: &[Id], _: Id, _: Id, _: &[bool]) -> Vec<Option<Id>> {
        vec![None]
    }

    fn expand_when(&self) -> ExpandWhen {
        ExpandWhen::Split(vec![self.dim])
    }

    fn expand(&self, g: &mut Graph, x: &[Id]) -> Option<Id> {
        // In f64 there is room below the least f32 and i32, so that what was taken stands behind -inf too. Of f64 itself
        // -inf counts as the least finite number.
        let mut rest = g.cast(x[0], DType::F64);
        let gone = g.constant(f64::NEG_INFINITY, DType::F64);
        if g.ty(x[0]).dtype.is_float() {
            let (least, bottomless) = (g.constant(f64::MIN, DType::F64), g.binary("==", rest, gone));
            rest = g.choose(bottomless, least, rest);
        }
        let (here, rank) = (g.index(self.dim), g.index(self.to));
        let mut found: Option<Id> = None;
        for i in 0..g.dims.size(self.to) {
            let at = super::arg_extreme(g, Monoid::ArgMax, rest, self.dim);
            found = Some(match found {
                None => {
                    let mut dims = g.ty(at).dims.clone();
                    dims.push(self.to);
                    g.expanded(at, &dims)
                }
                Some(before) => {
                    let i = g.constant(i as f64, DType::I32);
                    let this = g.binary("==", rank, i);
                    g.choose(this, at, before)
                }
            });
            let taken = g.binary("==", here, at);
            rest = g.choose(taken, gone, rest);
        }
        found
    }

    fn lower(&self, e: &mut dyn Emit) {
        // The kernel writes the positions of a row side by side.
        let (dim, to, input) = (self.dim, self.to, e.input(0));
        let mut order: Vec<Dim> = e.result_type().dims.iter().copied().filter(|d| *d != to).collect();
        order.push(to);
        let out = e.output(&order);
        e.push(Prim::TopK { dim, to }, vec![input], out);
    }

    fn flops(&self, x: &[&Type], _: &Type, size: &dyn Fn(Dim) -> u64, _: &Dims) -> u64 {
        2 * x[0].dims.iter().map(|d| size(*d)).product::<u64>()
    }

    fn oracle(&self, x: &[&F64Tensor], y: &Type, table: &Dims) -> F64Tensor {
        let place = y.dims.iter().position(|d| *d == self.to);
        let dims: Vec<Dim> = y.dims.iter().map(|d| if *d == self.to { self.dim } else { *d }).collect();
        F64Tensor::build(table, &y.dims, |at| {
            let Some(place) = place else { return f64::NAN };
            let value = |i: usize| {
                let mut there = at.to_vec();
                there[place] = i;
                x[0].at(&dims, &there)
            };
            // A position has the rank that is the number of those that come before it.
            let before = |i: usize, j: usize| match (value(i).is_nan(), value(j).is_nan()) {
                (true, true) => i < j,
                (false, false) => value(i) > value(j) || value(i) == value(j) && i < j,
                (nan, _) => nan,
            };
            let rank = |j: usize| (0..table.size(self.dim)).filter(|i| before(*i, j)).count();
            (0..table.size(self.dim)).find(|j| rank(*j) == at[place]).map_or(f64::NAN, |j| j as f64)
        })
    }
}
