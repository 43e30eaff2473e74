//! Repetition along dims that a value lacks.

use crate::family::{float, no_spelling};
use crate::{Emit, F64Tensor, Family, Graph, Id, Linear, Op, OpError, Roles, Sample, Signature, Type};
use meshwright_plan::expr::Reg;
use meshwright_plan::{Dim, Dims, Expr};

/// The value with all of `dims`, in that order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Expand {
    /// Dims of the result, the operand's among them.
    pub dims: Vec<Dim>,
}

/// Gradients are made of it; programs broadcast by name.
pub(crate) static FAMILY: &[Family] = &[Family {
    name: "expand",
    signature: Signature::SYNTAX,
    doc: "The value repeated along dims that it lacks.",
    build: no_spelling,
    samples: || {
        vec![Sample::new("expand", vec![float(&[("a", 5)]), float(&[("b", 3)])], |g, x| {
            let dims = vec![g.ty(x[1]).dims[0], g.ty(x[0]).dims[0]];
            let wide = g.expanded(x[0], &dims);
            Ok(g.sum_of(&[wide, x[1]]))
        })]
    },
}];

impl Op for Expand {
    fn name(&self) -> &'static str {
        "expand"
    }

    fn infer(&self, x: &[&Type], _: &Dims) -> Result<Type, OpError> {
        Ok(Type { dtype: x[0].dtype, dims: self.dims.clone(), range: x[0].range })
    }

    fn roles(&self, x: &[&Type], y: &Type, _: &Dims) -> Roles {
        Roles::elementwise(x, y, Linear::Only([0].into()))
    }

    fn vjp(&self, g: &mut Graph, x: &[Id], y: Id, dy: Id, _: &[bool]) -> Vec<Option<Id>> {
        let (dims, to) = (g.ty(y).dims.clone(), g.ty(x[0]).dims.clone());
        vec![Some(g.pull_back(&[dy], &dims, &to))]
    }

    fn scalar(&self, _: &mut Expr, x: &[Reg], _: &[&Type], _: &Type, _: &Dims) -> Option<Reg> {
        Some(x[0])
    }

    fn lower(&self, _: &mut dyn Emit) {}

    fn flops(&self, _: &[&Type], _: &Type, _: &dyn Fn(Dim) -> u64, _: &Dims) -> u64 {
        0
    }

    fn oracle(&self, x: &[&F64Tensor], y: &Type, table: &Dims) -> F64Tensor {
        F64Tensor::build(table, &y.dims, |at| x[0].at(&y.dims, at))
    }
}
