//! The transpose of a lookup: values are added up at the positions that an index names.

use super::composite::primitive;
use super::lookup::located;
use crate::family::{float, index_of, integer};
use crate::{
    Emit, F64Tensor, Family, Graph, Id, Linear, Lookup, Op, OpError, Precision, Roles, Sample, Signature,
    Type, union,
};
use meshwright_plan::{Dim, Dims, Monoid, Prim};

/// `out[dims = indices] += values`, starting at 0, of the values and an index for each dim; beyond the end of a dim it is
/// dropped. Dims of the operands that `out` lacks are summed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ScatterAdd {
    /// The dims that are scattered to.
    pub dims: Vec<Dim>,
    /// Dims of the result, `dims` among them.
    pub out: Vec<Dim>,
}

/// Gradients are made of it.
pub(crate) static FAMILY: &[Family] = &[Family {
    name: "scatter_add",
    signature: Signature::SYNTAX,
    doc: "The sum of values at the positions that an index names: the gradient of indexing.",
    build: |g, c| {
        let x = [c.tensor(g, 0), c.tensor(g, 1)];
        Ok(g.op(ScatterAdd { dims: vec![c.dims()[0]], out: c.dims() }, &x))
    },
    samples: || {
        let (a, b, c, u, v) = (("a", 5), ("b", 3), ("c", 2), ("u", 4), ("v", 7));
        vec![
            Sample::call("embedding", "scatter_add", &["v", "b"], vec![float(&[a, b]), index_of(&[a], v)]),
            Sample::call(
                "kept dim",
                "scatter_add",
                &["v", "b", "a"],
                vec![float(&[a, b]), index_of(&[a], v)],
            ),
            Sample::new(
                "two dims",
                vec![float(&[a, c, b]), index_of(&[a, c], u), index_of(&[c], v)],
                |g, x| {
                    let out: Vec<Dim> = ["a", "u", "b", "v"].iter().filter_map(|d| g.dims.find(d)).collect();
                    let dims = vec![out[1], out[3]];
                    Ok(g.op(ScatterAdd { dims, out }, x))
                },
            ),
            Sample::new("beyond the end", vec![float(&[a, v]), integer(&[a], -3.0, 9.0)], |g, x| {
                let dims = vec![g.dims.find("u").unwrap_or_else(|| g.dims.add("u", 4))];
                let out = vec![dims[0], g.ty(x[0]).dims[1]];
                Ok(g.op(ScatterAdd { dims, out }, x))
            }),
        ]
    },
}];

impl Op for ScatterAdd {
    fn name(&self) -> &'static str {
        "scatter_add"
    }

    fn infer(&self, x: &[&Type], _: &Dims) -> Result<Type, OpError> {
        Ok(Type::new(x[0].dtype, self.out.clone()))
    }

    fn ordered(&self, _: &[&Type], _: &Type, _: &Dims) -> Vec<Dim> {
        self.dims.clone()
    }

    fn roles(&self, x: &[&Type], y: &Type, _: &Dims) -> Roles {
        Roles::new(x, y, Monoid::Sum, Linear::Only([0].into()))
    }

    fn precision(&self, _: &[&Type], _: &Type) -> Precision {
        Precision::Sums
    }

    fn vjp(&self, g: &mut Graph, x: &[Id], y: Id, dy: Id, _: &[bool]) -> Vec<Option<Id>> {
        let dims = g.ty(y).dims.clone();
        let full = g.expanded(dy, &dims);
        let operands = [&[full], &x[1..]].concat();
        let picked = g.op(Lookup { dims: self.dims.clone() }, &operands);
        std::iter::once(Some(picked)).chain(x[1..].iter().map(|_| None)).collect()
    }

    fn lower(&self, e: &mut dyn Emit) {
        primitive(e, Prim::ScatterAdd { dims: self.dims.clone() });
    }

    fn flops(&self, x: &[&Type], _: &Type, size: &dyn Fn(Dim) -> u64, _: &Dims) -> u64 {
        x[0].dims.iter().map(|d| size(*d)).product()
    }

    fn oracle(&self, x: &[&F64Tensor], y: &Type, table: &Dims) -> F64Tensor {
        let types: Vec<Type> =
            x.iter().map(|t| Type::new(meshwright_plan::DType::F64, t.dims.clone())).collect();
        let mut all = union(&types);
        all.retain(|d| !self.dims.contains(d));
        let to = [all.as_slice(), &self.dims].concat();
        let mut out = F64Tensor::build(table, &y.dims, |_| 0.0);
        crate::tensor::each_position(&table.shape(&all), |at| {
            if let Some(position) = located(&self.dims, x, table, &all, at) {
                let o = out.offset(&to, &position);
                out.data[o] += x[0].at(&all, at);
            }
        });
        out
    }
}
