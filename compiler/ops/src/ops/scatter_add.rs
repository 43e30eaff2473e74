//! The transpose of a lookup: values are added up at the positions that an index names.

use super::composite::primitive;
use crate::family::{float, index_of};
use crate::{Emit, F64Tensor, Family, Graph, Id, Linear, Lookup, Op, OpError, Precision, Roles, Sample, Signature, Type, union};
use meshwright_plan::{Dim, Dims, Monoid, Prim};

/// `out[dim = index] += values`, starting at 0. Dims of the operands that `out` lacks are summed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ScatterAdd {
    /// The dim that is scattered to.
    pub dim: Dim,
    /// Dims of the result, `dim` among them.
    pub out: Vec<Dim>,
}

/// Gradients are made of it.
pub(crate) static FAMILY: &[Family] = &[Family {
    name: "scatter_add",
    signature: Signature::SYNTAX,
    doc: "The sum of values at the positions that an index names: the gradient of indexing.",
    build: |g, c| {
        let x = [c.tensor(g, 0), c.tensor(g, 1)];
        Ok(g.op(ScatterAdd { dim: c.dims()[0], out: c.dims() }, &x))
    },
    samples: || {
        let (a, b, v) = (("a", 5), ("b", 3), ("v", 7));
        vec![
            Sample::call("embedding", "scatter_add", &["v", "b"], vec![float(&[a, b]), index_of(&[a], v)]),
            Sample::call("kept dim", "scatter_add", &["v", "b", "a"], vec![float(&[a, b]), index_of(&[a], v)]),
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

    fn roles(&self, x: &[&Type], y: &Type, _: &Dims) -> Roles {
        Roles::new(x, y, Monoid::Sum, Linear::Only([0].into()))
    }

    fn precision(&self, _: &[&Type], _: &Type) -> Precision {
        Precision::Sums
    }

    fn vjp(&self, g: &mut Graph, x: &[Id], y: Id, dy: Id, _: &[bool]) -> Vec<Option<Id>> {
        let dims = g.ty(y).dims.clone();
        let full = g.expanded(dy, &dims);
        let picked = g.op(Lookup { dim: self.dim }, &[full, x[1]]);
        vec![Some(picked), None]
    }

    fn lower(&self, e: &mut dyn Emit) {
        primitive(e, Prim::ScatterAdd { dim: self.dim });
    }

    fn flops(&self, x: &[&Type], _: &Type, size: &dyn Fn(Dim) -> u64, _: &Dims) -> u64 {
        x[0].dims.iter().map(|d| size(*d)).product()
    }

    fn oracle(&self, x: &[&F64Tensor], y: &Type, table: &Dims) -> F64Tensor {
        let types: Vec<Type> =
            x.iter().map(|t| Type::new(meshwright_plan::DType::F64, t.dims.clone())).collect();
        let mut all = union(&types);
        all.retain(|d| *d != self.dim);
        let mut to = all.clone();
        to.push(self.dim);
        let mut out = F64Tensor::build(table, &y.dims, |_| 0.0);
        crate::tensor::each_position(&table.shape(&all), |at| {
            let mut position = at.to_vec();
            position.push(x[1].at(&all, at) as usize);
            let o = out.offset(&to, &position);
            out.data[o] += x[0].at(&all, at);
        });
        out
    }
}
