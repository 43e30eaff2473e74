//! Indexing dims by integer tensors, `t[vocab = token]`. As a contraction with a one-hot it sums the dim, so a split
//! table gives a partial sum: each device looks up what it holds.

use super::composite::primitive;
use crate::family::{float, index_of, integer};
use crate::{
    Emit, F64Tensor, Family, Graph, Id, Linear, Op, OpError, Precision, Roles, Sample, ScatterAdd, Signature,
    Type, union,
};
use meshwright_diag::codes;
use meshwright_plan::{DType, Dim, Dims, Monoid, Prim};
use std::sync::Arc;

/// `table[dims = indices]`, of the table and an index for each dim. Beyond the end of a dim it is 0.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lookup {
    /// The dims that are indexed.
    pub dims: Vec<Dim>,
}

/// How it is written; the call's dim is the one that is indexed.
pub(crate) static FAMILY: &[Family] = &[Family {
    name: "lookup",
    signature: Signature::SYNTAX,
    doc: "`t[vocab = token]`: the entries of `t` along `vocab` at the positions `token`, an `i32 in vocab`.",
    build: |g, c| {
        let (t, i, dim) = (c.tensor(g, 0), c.tensor(g, 1), c.dim());
        positions(g, i, dim)?;
        g.add_op(Arc::new(Lookup { dims: vec![dim] }), &[t, i])
    },
    samples: || {
        let (a, b, c, u, v) = (("a", 5), ("b", 3), ("c", 2), ("u", 4), ("v", 7));
        vec![
            Sample::call("embedding", "lookup", &["v"], vec![float(&[v, b]), index_of(&[a], v)]),
            Sample::call("inner", "lookup", &["v"], vec![float(&[b, v]), index_of(&[a], v)]),
            Sample::call("shared dim", "lookup", &["v"], vec![float(&[a, v, b]), index_of(&[a], v)]),
            Sample::new(
                "two dims",
                vec![float(&[a, v, b, u]), index_of(&[a, c], u), index_of(&[c], v)],
                |g, x| {
                    let dims = ["u", "v"].iter().filter_map(|d| g.dims.find(d)).collect();
                    g.add_op(Arc::new(Lookup { dims }), x)
                },
            ),
            // Without a range, an index may be beyond the end.
            Sample::new("beyond the end", vec![float(&[v, b]), integer(&[a], -3.0, 9.0)], |g, x| {
                let dims = vec![g.ty(x[0]).dims[0]];
                g.add_op(Arc::new(Lookup { dims }), x)
            }),
        ]
    },
}];

impl Op for Lookup {
    fn name(&self) -> &'static str {
        "lookup"
    }

    fn infer(&self, x: &[&Type], table: &Dims) -> Result<Type, OpError> {
        let entries = x[0];
        for (k, dim) in self.dims.iter().enumerate() {
            let (name, index) = (table.name(*dim), x[k + 1]);
            if !entries.has(*dim) {
                return Err(OpError::no_dim(format!("`[{name} = …]`"), *dim, (0, entries), table));
            }
            if index.dtype != DType::I32 {
                return Err(OpError::new(
                    codes::E0205,
                    format!("the index of `[{name} = …]` is {}", index.dtype),
                )
                .operand(k + 1));
            }
            if self.dims.iter().any(|d| index.has(*d)) {
                return Err(OpError::new(
                    codes::E0203,
                    format!("the index of `[{name} = …]` has the dim `{name}` itself"),
                )
                .operand(k + 1)
                .help("rename that dim of the index first"));
            }
        }
        if !entries.dtype.is_float() {
            let name = self.dims.first().map_or("", |d| table.name(*d));
            let what = format!("`[{name} = …]` of {}: only floats can be indexed", entries.dtype);
            return Err(OpError::new(codes::E0202, what).operand(0));
        }
        let mut dims = union(x[1..].iter().copied());
        let rest: Vec<Dim> =
            entries.dims.iter().copied().filter(|d| !self.dims.contains(d) && !dims.contains(d)).collect();
        dims.extend(rest);
        Ok(Type::new(entries.dtype, dims))
    }

    fn ordered(&self, _: &[&Type], _: &Type, _: &Dims) -> Vec<Dim> {
        self.dims.clone()
    }

    fn roles(&self, x: &[&Type], y: &Type, _: &Dims) -> Roles {
        Roles::new(x, y, Monoid::Sum, Linear::Only([0].into()))
    }

    fn precision(&self, _: &[&Type], _: &Type) -> Precision {
        Precision::Entries
    }

    fn vjp(&self, g: &mut Graph, x: &[Id], y: Id, dy: Id, _: &[bool]) -> Vec<Option<Id>> {
        let dims = g.ty(y).dims.clone();
        let full = g.expanded(dy, &dims);
        let out = g.ty(x[0]).dims.clone();
        let operands = [&[full], &x[1..]].concat();
        let dims = self.dims.clone();
        std::iter::once(Some(g.op(ScatterAdd { dims, out }, &operands)))
            .chain(x[1..].iter().map(|_| None))
            .collect()
    }

    fn lower(&self, e: &mut dyn Emit) {
        primitive(e, Prim::Lookup { dims: self.dims.clone() });
    }

    fn oracle(&self, x: &[&F64Tensor], y: &Type, table: &Dims) -> F64Tensor {
        let dims = [y.dims.as_slice(), &self.dims].concat();
        F64Tensor::build(table, &y.dims, |at| {
            let position = located(&self.dims, x, table, &y.dims, at);
            position.map_or(0.0, |position| x[0].at(&dims, &position))
        })
    }
}

/// A position among `over`, with what the operands behind the first name in `dims` behind it; `None` where one is beyond its end.
pub(crate) fn located(
    dims: &[Dim],
    x: &[&F64Tensor],
    table: &Dims,
    over: &[Dim],
    at: &[usize],
) -> Option<Vec<usize>> {
    let mut position = at.to_vec();
    for (dim, index) in dims.iter().zip(&x[1..]) {
        let found = index.at(over, at);
        position.push((found >= 0.0 && found < table.size(*dim) as f64).then_some(found as usize)?);
    }
    Some(position)
}

/// Fails unless a value has positions along a dim, as its type says.
pub(crate) fn positions(g: &Graph, index: Id, dim: Dim) -> Result<(), OpError> {
    let (ty, name) = (g.ty(index), g.dims.name(dim));
    if ty.dtype == DType::I32 && ty.range == Some(dim) {
        return Ok(());
    }
    let range = ty.range.map_or(String::new(), |r| format!(" in {}", g.dims.name(r)));
    let what = format!("the index of `[{name} = …]` must be an `i32 in {name}`, not {}{range}", ty.dtype);
    Err(OpError::new(codes::E0205, what).operand(1).help(format!("declare it `i32 in {name}`")))
}
