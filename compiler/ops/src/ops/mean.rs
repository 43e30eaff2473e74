//! The mean along dims: a sum and a division by the number of elements, kept as one op until the example dim of an
//! evaluation has been seen to, where the number of elements is that of the whole data set.

use crate::family::float;
use crate::signature::DIMS;
use crate::{
    Computes, Emit, ExpandWhen, F64Tensor, Family, Fold, Graph, Id, Kind, Linear, Op, OpError, Precision,
    Roles, Sample, Signature, Type,
};
use meshwright_diag::codes;
use meshwright_plan::{Dim, Dims, Monoid};
use std::sync::Arc;

/// The mean along `dims`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Mean {
    /// Along which dims.
    pub dims: Vec<Dim>,
}

/// How it is written.
pub(crate) static FAMILY: &[Family] = &[Family {
    name: "mean",
    signature: Signature::over(&[DIMS]),
    doc: "`mean[d, e](x)`: the mean along dims; truth values count as 0 and 1.",
    build: |g, c| {
        let x = c.unified(g, true)?;
        g.add_op(Arc::new(Mean { dims: c.dims() }), &x)
    },
    samples: || {
        vec![
            Sample::call("inner", "mean", &["b"], vec![float(&[("a", 5), ("b", 3)])]),
            Sample::call("both", "mean", &["a", "b"], vec![float(&[("a", 5), ("b", 3)])]),
        ]
    },
}];

impl Op for Mean {
    fn name(&self) -> &'static str {
        "mean"
    }

    fn infer(&self, x: &[&Type], _: &Dims) -> Result<Type, OpError> {
        if !x[0].dtype.is_float() {
            return Err(OpError::new(
                codes::E0202,
                format!("`mean` takes floats or truth values, not {}", x[0].dtype),
            )
            .operand(0)
            .help("convert it: `cast(…, float)`"));
        }
        let dims: Vec<Dim> = x[0].dims.iter().copied().filter(|d| !self.dims.contains(d)).collect();
        Ok(Type::new(x[0].dtype, dims))
    }

    fn roles(&self, x: &[&Type], y: &Type, _: &Dims) -> Roles {
        Roles::new(x, y, Monoid::Sum, Linear::Only([0].into()))
    }

    fn kind(&self) -> Kind {
        Kind::Compute(Computes::Reduction(Fold::Mean))
    }

    fn precision(&self, _: &[&Type], _: &Type) -> Precision {
        Precision::Sums
    }

    fn vjp(&self, g: &mut Graph, _: &[Id], _: Id, dy: Id, _: &[bool]) -> Vec<Option<Id>> {
        let n = g.dims.elements(&self.dims);
        vec![Some(g.scaled(dy, 1.0 / n as f64))]
    }

    fn expand_when(&self) -> ExpandWhen {
        ExpandWhen::Always
    }

    fn expand(&self, g: &mut Graph, x: &[Id]) -> Option<Id> {
        let n = g.dims.elements(&self.dims);
        let sum = g.reduce(Monoid::Sum, x[0], &self.dims);
        Some(g.scaled(sum, 1.0 / n as f64))
    }

    fn lower(&self, _: &mut dyn Emit) {}

    fn oracle(&self, x: &[&F64Tensor], y: &Type, table: &Dims) -> F64Tensor {
        let mut out = F64Tensor::build(table, &y.dims, |_| 0.0);
        let n = table.elements(&self.dims);
        let dims = x[0].dims.clone();
        crate::tensor::each_position(&table.shape(&dims), |at| {
            let o = out.offset(&dims, at);
            out.data[o] += x[0].at(&dims, at) / n as f64;
        });
        out
    }
}
