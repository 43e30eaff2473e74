//! Burn's names of the operations to which steps are lowered, by dtype.

use burn_backend::DType as BurnType;
use burn_ir::{
    BaseOperationIr, BinaryOpIr, BoolOperationIr, CastOpIr, FloatOperationIr, IntOperationIr,
    NumericOperationIr, OperationIr, ReduceDimOpIr, ScalarIr, ScalarOpIr,
};

/// Functions of two tensors, element by element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Binary {
    Add,
    Sub,
    Mul,
    Div,
    /// The remainder, of the divisor's sign.
    Rem,
    /// Floats only.
    Pow,
    Lt,
    Le,
    Gt,
    Ge,
    Eq,
    Ne,
    /// Truth values, or the bits of integers.
    And,
    Or,
}

impl Binary {
    pub(crate) fn compares(self) -> bool {
        use Binary::*;
        matches!(self, Lt | Le | Gt | Ge | Eq | Ne)
    }
}

/// Folds of one dim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reduce {
    Sum,
    Prod,
    Max,
    Min,
}

/// The kind of number of an operation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Float,
    Int,
    Bool,
}

fn class(t: BurnType) -> Class {
    match t {
        BurnType::Bool(_) => Class::Bool,
        t if t.is_float() => Class::Float,
        _ => Class::Int,
    }
}

/// A number as elements of a dtype are.
pub(crate) fn number(t: BurnType, x: f64) -> ScalarIr {
    match class(t) {
        Class::Float => ScalarIr::Float(x),
        Class::Int => ScalarIr::Int(x as i64),
        Class::Bool => ScalarIr::Bool(x != 0.0),
    }
}

/// One of the operations that all dtypes have.
pub(crate) fn base(dtype: BurnType, op: BaseOperationIr) -> OperationIr {
    match class(dtype) {
        Class::Float => OperationIr::BaseFloat(op),
        Class::Int => OperationIr::BaseInt(op),
        Class::Bool => OperationIr::BaseBool(op),
    }
}

/// A numeric operation.
pub(crate) fn numeric(dtype: BurnType, op: NumericOperationIr) -> OperationIr {
    match class(dtype) {
        Class::Float => OperationIr::NumericFloat(dtype, op),
        _ => OperationIr::NumericInt(dtype, op),
    }
}

/// A conversion to the dtype of the result.
pub(crate) fn cast(op: CastOpIr) -> OperationIr {
    let dtype = op.input.dtype;
    match (class(dtype), class(op.out.dtype)) {
        (Class::Float, Class::Int) => OperationIr::Float(dtype, FloatOperationIr::IntoInt(op)),
        (Class::Int, Class::Float) => OperationIr::Int(IntOperationIr::IntoFloat(op)),
        (Class::Bool, Class::Float) => OperationIr::Bool(BoolOperationIr::IntoFloat(op)),
        (Class::Bool, _) => OperationIr::Bool(BoolOperationIr::IntoInt(op)),
        (Class::Float, _) => OperationIr::BaseFloat(BaseOperationIr::Cast(op)),
        (Class::Int, _) => OperationIr::BaseInt(BaseOperationIr::Cast(op)),
    }
}

/// A fold of one dim.
pub(crate) fn reduce(f: Reduce, op: ReduceDimOpIr) -> OperationIr {
    let dtype = op.input.dtype;
    let of = match f {
        Reduce::Sum => NumericOperationIr::SumDim,
        Reduce::Prod => NumericOperationIr::ProdDim,
        Reduce::Max => NumericOperationIr::MaxDim,
        Reduce::Min => NumericOperationIr::MinDim,
    };
    numeric(dtype, of(op))
}

/// A function of two tensors.
pub(crate) fn binary(f: Binary, op: BinaryOpIr) -> OperationIr {
    let dtype = op.lhs.dtype;
    let (base, numeric) = (|op| base(dtype, op), |op| numeric(dtype, op));
    let kind = class(dtype);
    match f {
        Binary::Add => numeric(NumericOperationIr::Add(op)),
        Binary::Sub => numeric(NumericOperationIr::Sub(op)),
        Binary::Mul => numeric(NumericOperationIr::Mul(op)),
        Binary::Div => numeric(NumericOperationIr::Div(op)),
        Binary::Rem => numeric(NumericOperationIr::Rem(op)),
        Binary::Pow => OperationIr::Float(dtype, FloatOperationIr::Powf(op)),
        Binary::Lt => numeric(NumericOperationIr::Lower(op)),
        Binary::Le => numeric(NumericOperationIr::LowerEqual(op)),
        Binary::Gt => numeric(NumericOperationIr::Greater(op)),
        Binary::Ge => numeric(NumericOperationIr::GreaterEqual(op)),
        Binary::Eq => base(BaseOperationIr::Equal(op)),
        Binary::Ne => base(BaseOperationIr::NotEqual(op)),
        Binary::And if kind == Class::Bool => OperationIr::Bool(BoolOperationIr::And(op)),
        Binary::Or if kind == Class::Bool => OperationIr::Bool(BoolOperationIr::Or(op)),
        Binary::And => OperationIr::Int(IntOperationIr::BitwiseAnd(op)),
        Binary::Or => OperationIr::Int(IntOperationIr::BitwiseOr(op)),
    }
}

/// A function of a tensor and a number.
pub(crate) fn scalar(f: Binary, op: ScalarOpIr) -> OperationIr {
    let dtype = op.lhs.dtype;
    let (base, numeric) = (|op| base(dtype, op), |op| numeric(dtype, op));
    match f {
        Binary::Add => numeric(NumericOperationIr::AddScalar(op)),
        Binary::Sub => numeric(NumericOperationIr::SubScalar(op)),
        Binary::Mul => numeric(NumericOperationIr::MulScalar(op)),
        Binary::Div => numeric(NumericOperationIr::DivScalar(op)),
        Binary::Rem => numeric(NumericOperationIr::RemScalar(op)),
        Binary::Pow => OperationIr::Float(dtype, FloatOperationIr::PowfScalar(op)),
        Binary::Lt => numeric(NumericOperationIr::LowerElem(op)),
        Binary::Le => numeric(NumericOperationIr::LowerEqualElem(op)),
        Binary::Gt => numeric(NumericOperationIr::GreaterElem(op)),
        Binary::Ge => numeric(NumericOperationIr::GreaterEqualElem(op)),
        Binary::Eq => base(BaseOperationIr::EqualElem(op)),
        Binary::Ne => base(BaseOperationIr::NotEqualElem(op)),
        Binary::And => OperationIr::Int(IntOperationIr::BitwiseAndScalar(op)),
        Binary::Or => OperationIr::Int(IntOperationIr::BitwiseOrScalar(op)),
    }
}
