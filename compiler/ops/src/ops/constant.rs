//! A number, the same everywhere.

use crate::op::eq_by;
use crate::{Emit, Family, Graph, Id, Kind, Linear, Op, OpError, Roles, Source, Type};
use meshwright_plan::expr::Reg;
use meshwright_plan::{DType, Dim, Dims, Expr};

/// A scalar constant.
#[derive(Clone, Debug)]
pub struct Const {
    /// Its value.
    pub value: f64,
    /// Its dtype.
    pub dtype: DType,
    /// The dim along which it is a position, if it is one.
    pub range: Option<Dim>,
}

eq_by!(Const, |c| (c.value.to_bits(), c.dtype, c.range));

impl Const {
    /// A constant of a dtype.
    pub fn new(value: f64, dtype: DType) -> Self {
        Const { value, dtype, range: None }
    }

    /// A position along a dim, which an op that indexes the dim takes.
    pub fn position(at: usize, dim: Dim) -> Self {
        Const { value: at as f64, dtype: DType::I32, range: Some(dim) }
    }
}

/// Constants are written as numbers.
pub(crate) static FAMILY: &[Family] = &[];

impl Op for Const {
    fn name(&self) -> &'static str {
        "const"
    }

    fn infer(&self, _: &[&Type], _: &Dims) -> Result<Type, OpError> {
        Ok(Type { dtype: self.dtype, dims: Vec::new(), range: self.range })
    }

    fn roles(&self, x: &[&Type], y: &Type, _: &Dims) -> Roles {
        Roles::elementwise(x, y, Linear::No)
    }

    fn kind(&self) -> Kind {
        Kind::Rematerializable(Source::Constant)
    }

    fn vjp(&self, _: &mut Graph, _: &[Id], _: Id, _: Id, _: &[bool]) -> Vec<Option<Id>> {
        Vec::new()
    }

    fn scalar(&self, e: &mut Expr, _: &[Reg], _: &[&Type], _: &Type, _: &Dims) -> Option<Reg> {
        Some(e.constant(self.value, self.dtype))
    }

    fn lower(&self, _: &mut dyn Emit) {}

    fn element(&self, _: &[f64], _: &Type) -> Option<f64> {
        Some(self.value)
    }
}
