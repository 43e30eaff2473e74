//! The position along a dim, `index(d)`: what causal masks and one-hots are made of.

use crate::family::no_spelling;
use crate::{
    Emit, F64Tensor, Family, Graph, Id, Kind, Linear, Op, OpError, Roles, Sample, Signature, Source, Type,
};
use meshwright_plan::expr::{Reg, Scalar};
use meshwright_plan::{DType, Dim, Dims, Expr};

/// `0, 1, 2, …` along a dim: the global position, whatever part of the dim a device holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Index {
    /// Along which dim.
    pub dim: Dim,
}

/// How it is written: the resolver reads the dim's name as an argument.
pub(crate) static FAMILY: &[Family] = &[Family {
    name: "index",
    signature: Signature::SYNTAX,
    doc: "`index(d)`: the position along the dim `d`, an `i32 in d`.",
    build: no_spelling,
    samples: || {
        vec![
            Sample::new("index", vec![crate::family::integer(&[("a", 5), ("b", 3)], 0.0, 4.0)], |g, x| {
                let a = g.ty(x[0]).dims[0];
                let i = g.index(a);
                Ok(g.sum_of(&[i, x[0]]))
            })
            .flat(),
        ]
    },
}];

impl Op for Index {
    fn name(&self) -> &'static str {
        "index"
    }

    fn infer(&self, _: &[&Type], _: &Dims) -> Result<Type, OpError> {
        Ok(Type { dtype: DType::I32, dims: vec![self.dim], range: Some(self.dim) })
    }

    fn ordered(&self, _: &[&Type], _: &Type, _: &Dims) -> Vec<Dim> {
        vec![self.dim]
    }

    fn roles(&self, x: &[&Type], y: &Type, _: &Dims) -> Roles {
        Roles::elementwise(x, y, Linear::No)
    }

    fn kind(&self) -> Kind {
        Kind::Rematerializable(Source::Position)
    }

    fn vjp(&self, _: &mut Graph, _: &[Id], _: Id, _: Id, _: &[bool]) -> Vec<Option<Id>> {
        Vec::new()
    }

    fn scalar(&self, e: &mut Expr, _: &[Reg], _: &[&Type], _: &Type, _: &Dims) -> Option<Reg> {
        Some(e.push(Scalar::Index(0), DType::I32))
    }

    fn lower(&self, _: &mut dyn Emit) {}

    fn oracle(&self, _: &[&F64Tensor], y: &Type, table: &Dims) -> F64Tensor {
        F64Tensor::build(table, &y.dims, |at| at[0] as f64)
    }
}
