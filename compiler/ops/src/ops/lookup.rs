//! Indexing a dim by an integer tensor, `t[vocab = token]`. As a contraction with a one-hot it sums the dim, so a split
//! table gives a partial sum: each device looks up what it holds.

use super::composite::primitive;
use crate::family::{float, index_of};
use crate::{Emit, F64Tensor, Family, Graph, Id, Linear, Op, OpError, Precision, Roles, Sample, ScatterAdd, Signature, Type};
use meshwright_diag::codes;
use meshwright_plan::{DType, Dim, Dims, Monoid, Prim};
use std::sync::Arc;

/// `table[dim = index]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lookup {
    /// The dim that is indexed.
    pub dim: Dim,
}

/// How it is written; the call's dim is the one that is indexed.
pub(crate) static FAMILY: &[Family] = &[Family {
    name: "lookup",
    signature: Signature::SYNTAX,
    doc: "`t[vocab = token]`: the entries of `t` along `vocab` at the positions `token`, an `i32 in vocab`.",
    build: |g, c| {
        let (t, i, dim) = (c.tensor(g, 0), c.tensor(g, 1), c.dim());
        g.add_op(Arc::new(Lookup { dim }), &[t, i])
    },
    samples: || {
        let (a, b, v) = (("a", 5), ("b", 3), ("v", 7));
        vec![
            Sample::call("embedding", "lookup", &["v"], vec![float(&[v, b]), index_of(&[a], v)]),
            Sample::call("inner", "lookup", &["v"], vec![float(&[b, v]), index_of(&[a], v)]),
            Sample::call("shared dim", "lookup", &["v"], vec![float(&[a, v, b]), index_of(&[a], v)]),
        ]
    },
}];

impl Op for Lookup {
    fn name(&self) -> &'static str {
        "lookup"
    }

    fn infer(&self, x: &[&Type], table: &Dims) -> Result<Type, OpError> {
        let name = table.name(self.dim);
        if !x[0].has(self.dim) {
            return Err(OpError::new(
                codes::E0203,
                format!("`[{name} = …]` of a value that has no dim `{name}`: it has {}", table.list(&x[0].dims)),
            )
            .operand(0));
        }
        if !x[0].dtype.is_float() {
            return Err(OpError::new(codes::E0202, format!("`[{name} = …]` of {}: only floats can be indexed", x[0].dtype))
                .operand(0));
        }
        if x[1].dtype != DType::I32 || x[1].range != Some(self.dim) {
            let range = x[1].range.map_or(String::new(), |r| format!(" in {}", table.name(r)));
            return Err(OpError::new(
                codes::E0205,
                format!("the index of `[{name} = …]` must be an `i32 in {name}`, not {}{range}", x[1].dtype),
            )
            .operand(1)
            .help(format!("declare it `i32 in {name}`")));
        }
        if x[1].has(self.dim) {
            return Err(OpError::new(codes::E0203, format!("the index of `[{name} = …]` has the dim `{name}` itself"))
                .operand(1)
                .help("rename that dim of the index first"));
        }
        let mut dims = x[1].dims.clone();
        dims.extend(x[0].dims.iter().copied().filter(|d| *d != self.dim && !x[1].has(*d)));
        Ok(Type::new(x[0].dtype, dims))
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
        vec![Some(g.op(ScatterAdd { dim: self.dim, out }, &[full, x[1]])), None]
    }

    fn lower(&self, e: &mut dyn Emit) {
        primitive(e, Prim::Lookup { dim: self.dim });
    }

    fn oracle(&self, x: &[&F64Tensor], y: &Type, table: &Dims) -> F64Tensor {
        let mut dims = y.dims.clone();
        dims.push(self.dim);
        F64Tensor::build(table, &y.dims, |at| {
            let mut position = at.to_vec();
            position.push(x[1].at(&y.dims, at) as usize);
            x[0].at(&dims, &position)
        })
    }
}
