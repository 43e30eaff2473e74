//! The tensor operations that steps are lowered to, as the backend's representation names them.

use burn_backend::{DType as BurnType, Slice, tensor::IndexingUpdateOp};
use burn_ir::{
    BaseOperationIr, BinaryOpIr, BoolOperationIr, CastOpIr, CatOpIr, CustomOpIr, DimOpIr, FlipOpIr,
    FloatOperationIr, FullOpIr, IntOperationIr, MaskFillOpIr, MaskWhereOpIr, MatmulOpIr, NumericOperationIr,
    OperationIr, PermuteOpIr, ReduceDimOpIr, ScalarIr, ScalarOpIr, SelectAssignOpIr, SelectOpIr, ShapeOpIr,
    SliceOpIr, TensorIr, UnaryOpIr,
};
use std::ops::Range;

/// Functions of one tensor, element by element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unary {
    Neg,
    Abs,
    Exp,
    Log,
    Log1p,
    Sqrt,
    Recip,
    Tanh,
    Erf,
    Sin,
    Cos,
    Tan,
    Floor,
    Ceil,
    Round,
    IsNan,
    Not,
}

/// Functions of two tensors, element by element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Binary {
    Add,
    Sub,
    Mul,
    Div,
    /// The remainder, of the divisor's sign.
    Rem,
    Pow,
    Lt,
    Le,
    Gt,
    Ge,
    Eq,
    Ne,
    /// Of truth values, or of the bits of integers.
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

/// An operation. Shapes and dtypes are those of its operands.
#[derive(Clone, Debug)]
pub(crate) enum GraphOp {
    Full(f64),
    /// A kernel of the backend's own, by name and number.
    Kernel(&'static str, usize),
    Unary(Unary),
    Binary(Binary),
    Scalar(Binary, f64),
    Cast,
    Reduce(Reduce, usize),
    CumSum(usize),
    Flip(usize),
    Reshape,
    Permute(Vec<usize>),
    Expand,
    Slice(usize, Range<usize>),
    Cat(usize),
    Select(usize),
    SelectAdd(usize),
    MaskWhere,
    MaskFill(f64),
    Matmul,
}

/// What an operation computes with.
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

fn number(t: BurnType, x: f64) -> ScalarIr {
    match class(t) {
        Class::Float => ScalarIr::Float(x),
        Class::Int => ScalarIr::Int(x as i64),
        Class::Bool => ScalarIr::Bool(x != 0.0),
    }
}

/// One of the operations that all dtypes have.
fn base(dtype: BurnType, op: BaseOperationIr) -> OperationIr {
    match class(dtype) {
        Class::Float => OperationIr::BaseFloat(op),
        Class::Int => OperationIr::BaseInt(op),
        Class::Bool => OperationIr::BaseBool(op),
    }
}

/// One of those that numbers have.
fn numeric(dtype: BurnType, op: NumericOperationIr) -> OperationIr {
    match class(dtype) {
        Class::Float => OperationIr::NumericFloat(dtype, op),
        _ => OperationIr::NumericInt(dtype, op),
    }
}

/// An operation in Burn's words. Those of Burn have one result.
pub(crate) fn operation(op: &GraphOp, inputs: Vec<TensorIr>, mut outs: Vec<TensorIr>) -> OperationIr {
    if let GraphOp::Kernel(name, number) = op {
        let number = vec![ScalarIr::UInt(*number as u64)];
        return OperationIr::Custom(CustomOpIr::with_scalars(name, &inputs, &outs, number));
    }
    let out = outs.swap_remove(0);
    let dtype = inputs.first().map_or(out.dtype, |t| t.dtype);
    let (base, numeric) = (|op| base(dtype, op), |op| numeric(dtype, op));
    let mut inputs = inputs.into_iter();
    // Every operation is recorded with as many inputs as it has.
    let mut next = || inputs.next().unwrap_or_else(|| out.clone());
    match op {
        // Above.
        GraphOp::Kernel(..) => OperationIr::Drop(out),
        GraphOp::Full(x) => numeric(NumericOperationIr::Full(FullOpIr { value: number(dtype, *x), out })),
        GraphOp::Unary(f) => {
            let input = next();
            unary(*f, dtype, UnaryOpIr { input, out })
        }
        GraphOp::Binary(f) => {
            let (lhs, rhs) = (next(), next());
            binary(*f, dtype, BinaryOpIr { lhs, rhs, out })
        }
        GraphOp::Scalar(f, x) => {
            let lhs = next();
            scalar(*f, dtype, ScalarOpIr { lhs, rhs: number(dtype, *x), out })
        }
        GraphOp::Cast => {
            let input = next();
            cast(dtype, CastOpIr { input, out })
        }
        GraphOp::Reduce(f, axis) => {
            let input = next();
            let op = ReduceDimOpIr { input, out, axis: *axis, accumulator_len: 1 };
            numeric(reduce(*f, op))
        }
        GraphOp::CumSum(axis) => {
            let input = next();
            numeric(NumericOperationIr::CumSum(DimOpIr { input, out, axis: *axis }))
        }
        GraphOp::Flip(axis) => {
            let input = next();
            base(BaseOperationIr::Flip(FlipOpIr { input, out, axes: vec![*axis] }))
        }
        GraphOp::Reshape => {
            let input = next();
            base(BaseOperationIr::Reshape(ShapeOpIr { input, out }))
        }
        GraphOp::Expand => {
            let input = next();
            base(BaseOperationIr::Expand(ShapeOpIr { input, out }))
        }
        GraphOp::Permute(axes) => {
            let input = next();
            base(BaseOperationIr::Permute(PermuteOpIr { input, out, axes: axes.clone() }))
        }
        GraphOp::Slice(axis, range) => {
            let tensor = next();
            let ranges = slices(&tensor, *axis, range);
            base(BaseOperationIr::Slice(SliceOpIr { tensor, ranges, out }))
        }
        GraphOp::Cat(dim) => {
            base(BaseOperationIr::Cat(CatOpIr { tensors: inputs.collect(), dim: *dim, out }))
        }
        GraphOp::Select(dim) => {
            let (tensor, indices) = (next(), next());
            base(BaseOperationIr::Select(SelectOpIr { tensor, dim: *dim, indices, out }))
        }
        GraphOp::SelectAdd(dim) => {
            let (tensor, indices, value) = (next(), next(), next());
            let (dim, update) = (*dim, IndexingUpdateOp::Add);
            let op = SelectAssignOpIr { tensor, dim, indices, value, update, out };
            base(BaseOperationIr::SelectAssign(op))
        }
        GraphOp::MaskWhere => {
            let (tensor, mask, value) = (next(), next(), next());
            base(BaseOperationIr::MaskWhere(MaskWhereOpIr { tensor, mask, value, out }))
        }
        GraphOp::MaskFill(x) => {
            let (tensor, mask) = (next(), next());
            base(BaseOperationIr::MaskFill(MaskFillOpIr { tensor, mask, value: number(dtype, *x), out }))
        }
        GraphOp::Matmul => {
            let (lhs, rhs) = (next(), next());
            OperationIr::Float(dtype, FloatOperationIr::Matmul(MatmulOpIr { lhs, rhs, out }))
        }
    }
}

/// The whole of a tensor, but along one axis a range.
fn slices(tensor: &TensorIr, axis: usize, range: &Range<usize>) -> Vec<Slice> {
    let extents = tensor.shape.iter().enumerate();
    let ranges = extents.map(|(i, n)| if i == axis { range.clone() } else { 0..*n });
    ranges.map(|r| Slice::new(r.start as isize, Some(r.end as isize), 1)).collect()
}

fn cast(dtype: BurnType, op: CastOpIr) -> OperationIr {
    match (class(dtype), class(op.out.dtype)) {
        (Class::Float, Class::Int) => OperationIr::Float(dtype, FloatOperationIr::IntoInt(op)),
        (Class::Int, Class::Float) => OperationIr::Int(IntOperationIr::IntoFloat(op)),
        (Class::Bool, Class::Float) => OperationIr::Bool(BoolOperationIr::IntoFloat(op)),
        (Class::Bool, _) => OperationIr::Bool(BoolOperationIr::IntoInt(op)),
        (Class::Float, _) => OperationIr::BaseFloat(BaseOperationIr::Cast(op)),
        (Class::Int, _) => OperationIr::BaseInt(BaseOperationIr::Cast(op)),
    }
}

fn reduce(f: Reduce, op: ReduceDimOpIr) -> NumericOperationIr {
    match f {
        Reduce::Sum => NumericOperationIr::SumDim(op),
        Reduce::Prod => NumericOperationIr::ProdDim(op),
        Reduce::Max => NumericOperationIr::MaxDim(op),
        Reduce::Min => NumericOperationIr::MinDim(op),
    }
}

fn unary(f: Unary, dtype: BurnType, op: UnaryOpIr) -> OperationIr {
    let float = |op: FloatOperationIr| OperationIr::Float(dtype, op);
    let numeric = |op| numeric(dtype, op);
    match f {
        Unary::Neg => numeric(NumericOperationIr::Neg(op)),
        Unary::Abs => numeric(NumericOperationIr::Abs(op)),
        Unary::Exp => float(FloatOperationIr::Exp(op)),
        Unary::Log => float(FloatOperationIr::Log(op)),
        Unary::Log1p => float(FloatOperationIr::Log1p(op)),
        Unary::Sqrt => float(FloatOperationIr::Sqrt(op)),
        Unary::Recip => float(FloatOperationIr::Recip(op)),
        Unary::Tanh => float(FloatOperationIr::Tanh(op)),
        Unary::Erf => float(FloatOperationIr::Erf(op)),
        Unary::Sin => float(FloatOperationIr::Sin(op)),
        Unary::Cos => float(FloatOperationIr::Cos(op)),
        Unary::Tan => float(FloatOperationIr::Tan(op)),
        Unary::Floor => float(FloatOperationIr::Floor(op)),
        Unary::Ceil => float(FloatOperationIr::Ceil(op)),
        Unary::Round => float(FloatOperationIr::Round(op)),
        Unary::IsNan => float(FloatOperationIr::IsNan(op)),
        Unary::Not => OperationIr::Bool(BoolOperationIr::Not(op)),
    }
}

fn binary(f: Binary, dtype: BurnType, op: BinaryOpIr) -> OperationIr {
    let (base, numeric) = (|op| base(dtype, op), |op| numeric(dtype, op));
    let kind = class(dtype);
    match f {
        Binary::Add => numeric(NumericOperationIr::Add(op)),
        Binary::Sub => numeric(NumericOperationIr::Sub(op)),
        Binary::Mul => numeric(NumericOperationIr::Mul(op)),
        Binary::Div => numeric(NumericOperationIr::Div(op)),
        Binary::Rem => numeric(NumericOperationIr::Rem(op)),
        Binary::Pow if kind == Class::Float => OperationIr::Float(dtype, FloatOperationIr::Powf(op)),
        Binary::Pow => numeric(NumericOperationIr::Powi(op)),
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

fn scalar(f: Binary, dtype: BurnType, op: ScalarOpIr) -> OperationIr {
    let (base, numeric) = (|op| base(dtype, op), |op| numeric(dtype, op));
    let kind = class(dtype);
    match f {
        Binary::Add => numeric(NumericOperationIr::AddScalar(op)),
        Binary::Sub => numeric(NumericOperationIr::SubScalar(op)),
        Binary::Mul => numeric(NumericOperationIr::MulScalar(op)),
        Binary::Div => numeric(NumericOperationIr::DivScalar(op)),
        Binary::Rem => numeric(NumericOperationIr::RemScalar(op)),
        Binary::Pow if kind == Class::Float => OperationIr::Float(dtype, FloatOperationIr::PowfScalar(op)),
        Binary::Pow => numeric(NumericOperationIr::PowiScalar(op)),
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
