//! Runs the operations of a graph. Burn's own interpreter takes each operation by value, so that one that runs in every step
//! would be cloned in every step; this one reads them.

use crate::backend::{Backend, Handles, RngState};
use crate::kernels::KernelError;
use HandleKind::{Bool, Float, Int};
use burn_backend::tensor::{BoolTensor, FloatTensor, IntTensor};
use burn_ir::{
    BackendIr, BaseOperationIr as Base, BoolOperationIr as BoolOp, FloatOperationIr as FloatOp,
    HandleContainer, HandleKind, IntOperationIr as IntOp, NumericOperationIr as Numeric, OperationIr,
    TensorIr,
};

/// Runs one operation.
///
/// # Errors
/// Of a kernel; or where the operation is none that [`super::ops::operation`] makes.
pub(crate) fn execute<B: Backend>(
    backend: &mut B,
    kernels: &[B::Kernel],
    handles: &mut Handles<B>,
    operation: &OperationIr,
    rng: RngState,
) -> Result<(), KernelError> {
    match operation {
        OperationIr::Custom(op) => backend.run_kernel(kernels, op, handles, rng),
        OperationIr::Drop(tensor) => {
            backend.recycle(handles.get_handle(&tensor.id, &tensor.status));
            Ok(())
        }
        of_burn => {
            let computed = Interpreter::<B::Burn> { handles, device: backend.device() }.compute(of_burn);
            let unknown = || KernelError::Unsupported(format!("the interpreter has no {of_burn:?}"));
            let (out, tensor) = computed.ok_or_else(unknown)?;
            register::<B::Burn>(handles, out, tensor);
            Ok(())
        }
    }
}

/// Keeps a tensor.
pub(crate) fn register<B: BackendIr>(
    handles: &mut HandleContainer<B::Handle>,
    out: &TensorIr,
    tensor: HandleKind<B>,
) {
    handles.register_handle(out.id, opaque::<B>(tensor));
}

/// The handle of a tensor.
pub(crate) fn opaque<B: BackendIr>(tensor: HandleKind<B>) -> B::Handle {
    match tensor {
        Float(t) => B::float_tensor_handle(t),
        Int(t) => B::int_tensor_handle(t),
        Bool(t) => B::bool_tensor_handle(t),
        HandleKind::Quantized(t) => B::quantized_tensor_handle(t),
    }
}

/// A result and what is known of it; none of what Burn has and steps do not need.
type Computed<'o, B> = Option<(&'o TensorIr, HandleKind<B>)>;

struct Interpreter<'h, B: BackendIr> {
    handles: &'h mut HandleContainer<B::Handle>,
    device: &'h B::Device,
}

impl<B: BackendIr> Interpreter<'_, B> {
    fn compute<'o>(&mut self, operation: &'o OperationIr) -> Computed<'o, B> {
        match operation {
            OperationIr::BaseFloat(op) => self.base_float(op),
            OperationIr::BaseInt(op) => self.base_int(op),
            OperationIr::BaseBool(op) => self.base_bool(op),
            OperationIr::NumericFloat(_, op) => self.numeric_float(op),
            OperationIr::NumericInt(_, op) => self.numeric_int(op),
            OperationIr::Float(_, op) => self.float(op),
            OperationIr::Int(op) => self.int(op),
            OperationIr::Bool(op) => self.bool(op),
            _ => None,
        }
    }

    fn f(&mut self, tensor: &TensorIr) -> FloatTensor<B> {
        self.handles.get_float_tensor::<B>(tensor)
    }

    fn i(&mut self, tensor: &TensorIr) -> IntTensor<B> {
        self.handles.get_int_tensor::<B>(tensor)
    }

    fn b(&mut self, tensor: &TensorIr) -> BoolTensor<B> {
        self.handles.get_bool_tensor::<B>(tensor)
    }

    fn base_float<'o>(&mut self, op: &'o Base) -> Computed<'o, B> {
        Some(match op {
            Base::Reshape(o) => (&o.out, Float(B::float_reshape(self.f(&o.input), o.out.shape.clone()))),
            Base::Expand(o) => (&o.out, Float(B::float_expand(self.f(&o.input), o.out.shape.clone()))),
            Base::Permute(o) => (&o.out, Float(B::float_permute(self.f(&o.input), &o.axes))),
            Base::Flip(o) => (&o.out, Float(B::float_flip(self.f(&o.input), &o.axes))),
            Base::Slice(o) => (&o.out, Float(B::float_slice(self.f(&o.tensor), &o.ranges))),
            Base::Cat(o) => {
                let parts = o.tensors.iter().map(|t| self.f(t)).collect();
                (&o.out, Float(B::float_cat(parts, o.dim)))
            }
            Base::Select(o) => (&o.out, Float(B::float_select(self.f(&o.tensor), o.dim, self.i(&o.indices)))),
            Base::SelectAssign(o) => {
                let (x, at, values) = (self.f(&o.tensor), self.i(&o.indices), self.f(&o.value));
                (&o.out, Float(B::float_select_assign(x, o.dim, at, values, o.update)))
            }
            Base::MaskWhere(o) => {
                let (x, mask, value) = (self.f(&o.tensor), self.b(&o.mask), self.f(&o.value));
                (&o.out, Float(B::float_mask_where(x, mask, value)))
            }
            Base::MaskFill(o) => {
                (&o.out, Float(B::float_mask_fill(self.f(&o.tensor), self.b(&o.mask), o.value.into())))
            }
            Base::Equal(o) => {
                (&o.out, Bool(B::float_equal(self.f(&o.lhs), self.f(&o.rhs), o.out.dtype.into())))
            }
            Base::EqualElem(o) => {
                (&o.out, Bool(B::float_equal_elem(self.f(&o.lhs), o.rhs.into(), o.out.dtype.into())))
            }
            Base::NotEqual(o) => {
                (&o.out, Bool(B::float_not_equal(self.f(&o.lhs), self.f(&o.rhs), o.out.dtype.into())))
            }
            Base::NotEqualElem(o) => {
                (&o.out, Bool(B::float_not_equal_elem(self.f(&o.lhs), o.rhs.into(), o.out.dtype.into())))
            }
            Base::Cast(o) => (&o.out, Float(B::float_cast(self.f(&o.input), o.out.dtype.into()))),
            _ => return None,
        })
    }

    fn base_int<'o>(&mut self, op: &'o Base) -> Computed<'o, B> {
        Some(match op {
            Base::Reshape(o) => (&o.out, Int(B::int_reshape(self.i(&o.input), o.out.shape.clone()))),
            Base::Expand(o) => (&o.out, Int(B::int_expand(self.i(&o.input), o.out.shape.clone()))),
            Base::Permute(o) => (&o.out, Int(B::int_permute(self.i(&o.input), &o.axes))),
            Base::Flip(o) => (&o.out, Int(B::int_flip(self.i(&o.input), &o.axes))),
            Base::Slice(o) => (&o.out, Int(B::int_slice(self.i(&o.tensor), &o.ranges))),
            Base::Cat(o) => {
                let parts = o.tensors.iter().map(|t| self.i(t)).collect();
                (&o.out, Int(B::int_cat(parts, o.dim)))
            }
            Base::Select(o) => (&o.out, Int(B::int_select(self.i(&o.tensor), o.dim, self.i(&o.indices)))),
            Base::SelectAssign(o) => {
                let (x, at, values) = (self.i(&o.tensor), self.i(&o.indices), self.i(&o.value));
                (&o.out, Int(B::int_select_assign(x, o.dim, at, values, o.update)))
            }
            Base::MaskWhere(o) => {
                let (x, mask, value) = (self.i(&o.tensor), self.b(&o.mask), self.i(&o.value));
                (&o.out, Int(B::int_mask_where(x, mask, value)))
            }
            Base::MaskFill(o) => {
                (&o.out, Int(B::int_mask_fill(self.i(&o.tensor), self.b(&o.mask), o.value.into())))
            }
            Base::Equal(o) => {
                (&o.out, Bool(B::int_equal(self.i(&o.lhs), self.i(&o.rhs), o.out.dtype.into())))
            }
            Base::EqualElem(o) => {
                (&o.out, Bool(B::int_equal_elem(self.i(&o.lhs), o.rhs.into(), o.out.dtype.into())))
            }
            Base::NotEqual(o) => {
                (&o.out, Bool(B::int_not_equal(self.i(&o.lhs), self.i(&o.rhs), o.out.dtype.into())))
            }
            Base::NotEqualElem(o) => {
                (&o.out, Bool(B::int_not_equal_elem(self.i(&o.lhs), o.rhs.into(), o.out.dtype.into())))
            }
            _ => return None,
        })
    }

    fn base_bool<'o>(&mut self, op: &'o Base) -> Computed<'o, B> {
        Some(match op {
            Base::Reshape(o) => (&o.out, Bool(B::bool_reshape(self.b(&o.input), o.out.shape.clone()))),
            Base::Expand(o) => (&o.out, Bool(B::bool_expand(self.b(&o.input), o.out.shape.clone()))),
            Base::Permute(o) => (&o.out, Bool(B::bool_permute(self.b(&o.input), &o.axes))),
            Base::Flip(o) => (&o.out, Bool(B::bool_flip(self.b(&o.input), &o.axes))),
            Base::Slice(o) => (&o.out, Bool(B::bool_slice(self.b(&o.tensor), &o.ranges))),
            Base::Cat(o) => {
                let parts = o.tensors.iter().map(|t| self.b(t)).collect();
                (&o.out, Bool(B::bool_cat(parts, o.dim)))
            }
            Base::Select(o) => (&o.out, Bool(B::bool_select(self.b(&o.tensor), o.dim, self.i(&o.indices)))),
            Base::MaskWhere(o) => {
                let (x, mask, value) = (self.b(&o.tensor), self.b(&o.mask), self.b(&o.value));
                (&o.out, Bool(B::bool_mask_where(x, mask, value)))
            }
            Base::MaskFill(o) => {
                (&o.out, Bool(B::bool_mask_fill(self.b(&o.tensor), self.b(&o.mask), o.value.into())))
            }
            Base::Equal(o) => (&o.out, Bool(B::bool_equal(self.b(&o.lhs), self.b(&o.rhs)))),
            Base::NotEqual(o) => (&o.out, Bool(B::bool_not_equal(self.b(&o.lhs), self.b(&o.rhs)))),
            Base::EqualElem(o) => (&o.out, Bool(B::bool_equal_elem(self.b(&o.lhs), o.rhs.into()))),
            Base::NotEqualElem(o) => (&o.out, Bool(B::bool_not_equal_elem(self.b(&o.lhs), o.rhs.into()))),
            _ => return None,
        })
    }

    fn numeric_float<'o>(&mut self, op: &'o Numeric) -> Computed<'o, B> {
        Some(match op {
            Numeric::Full(o) => {
                let shape = o.out.shape.clone();
                (&o.out, Float(B::float_full(shape, o.value.into(), self.device, o.out.dtype.into())))
            }
            Numeric::Neg(o) => (&o.out, Float(B::float_neg(self.f(&o.input)))),
            Numeric::Abs(o) => (&o.out, Float(B::float_abs(self.f(&o.input)))),
            Numeric::Add(o) => (&o.out, Float(B::float_add(self.f(&o.lhs), self.f(&o.rhs)))),
            Numeric::AddScalar(o) => (&o.out, Float(B::float_add_scalar(self.f(&o.lhs), o.rhs.into()))),
            Numeric::Sub(o) => (&o.out, Float(B::float_sub(self.f(&o.lhs), self.f(&o.rhs)))),
            Numeric::SubScalar(o) => (&o.out, Float(B::float_sub_scalar(self.f(&o.lhs), o.rhs.into()))),
            Numeric::Mul(o) => (&o.out, Float(B::float_mul(self.f(&o.lhs), self.f(&o.rhs)))),
            Numeric::MulScalar(o) => (&o.out, Float(B::float_mul_scalar(self.f(&o.lhs), o.rhs.into()))),
            Numeric::Div(o) => (&o.out, Float(B::float_div(self.f(&o.lhs), self.f(&o.rhs)))),
            Numeric::DivScalar(o) => (&o.out, Float(B::float_div_scalar(self.f(&o.lhs), o.rhs.into()))),
            Numeric::Rem(o) => (&o.out, Float(B::float_remainder(self.f(&o.lhs), self.f(&o.rhs)))),
            Numeric::RemScalar(o) => (&o.out, Float(B::float_remainder_scalar(self.f(&o.lhs), o.rhs.into()))),
            Numeric::Lower(o) => {
                (&o.out, Bool(B::float_lower(self.f(&o.lhs), self.f(&o.rhs), o.out.dtype.into())))
            }
            Numeric::LowerElem(o) => {
                (&o.out, Bool(B::float_lower_elem(self.f(&o.lhs), o.rhs.into(), o.out.dtype.into())))
            }
            Numeric::LowerEqual(o) => {
                (&o.out, Bool(B::float_lower_equal(self.f(&o.lhs), self.f(&o.rhs), o.out.dtype.into())))
            }
            Numeric::LowerEqualElem(o) => {
                (&o.out, Bool(B::float_lower_equal_elem(self.f(&o.lhs), o.rhs.into(), o.out.dtype.into())))
            }
            Numeric::Greater(o) => {
                (&o.out, Bool(B::float_greater(self.f(&o.lhs), self.f(&o.rhs), o.out.dtype.into())))
            }
            Numeric::GreaterElem(o) => {
                (&o.out, Bool(B::float_greater_elem(self.f(&o.lhs), o.rhs.into(), o.out.dtype.into())))
            }
            Numeric::GreaterEqual(o) => {
                (&o.out, Bool(B::float_greater_equal(self.f(&o.lhs), self.f(&o.rhs), o.out.dtype.into())))
            }
            Numeric::GreaterEqualElem(o) => {
                (&o.out, Bool(B::float_greater_equal_elem(self.f(&o.lhs), o.rhs.into(), o.out.dtype.into())))
            }
            Numeric::SumDim(o) => (&o.out, Float(B::float_sum_dim(self.f(&o.input), o.axis))),
            Numeric::ProdDim(o) => (&o.out, Float(B::float_prod_dim(self.f(&o.input), o.axis))),
            Numeric::MaxDim(o) => (&o.out, Float(B::float_max_dim(self.f(&o.input), o.axis))),
            Numeric::MinDim(o) => (&o.out, Float(B::float_min_dim(self.f(&o.input), o.axis))),
            Numeric::CumSum(o) => (&o.out, Float(B::float_cumsum(self.f(&o.input), o.axis))),
            _ => return None,
        })
    }

    fn numeric_int<'o>(&mut self, op: &'o Numeric) -> Computed<'o, B> {
        Some(match op {
            Numeric::Full(o) => {
                let shape = o.out.shape.clone();
                (&o.out, Int(B::int_full(shape, o.value.into(), self.device, o.out.dtype.into())))
            }
            Numeric::Neg(o) => (&o.out, Int(B::int_neg(self.i(&o.input)))),
            Numeric::Abs(o) => (&o.out, Int(B::int_abs(self.i(&o.input)))),
            Numeric::Add(o) => (&o.out, Int(B::int_add(self.i(&o.lhs), self.i(&o.rhs)))),
            Numeric::AddScalar(o) => (&o.out, Int(B::int_add_scalar(self.i(&o.lhs), o.rhs.into()))),
            Numeric::Sub(o) => (&o.out, Int(B::int_sub(self.i(&o.lhs), self.i(&o.rhs)))),
            Numeric::SubScalar(o) => (&o.out, Int(B::int_sub_scalar(self.i(&o.lhs), o.rhs.into()))),
            Numeric::Mul(o) => (&o.out, Int(B::int_mul(self.i(&o.lhs), self.i(&o.rhs)))),
            Numeric::MulScalar(o) => (&o.out, Int(B::int_mul_scalar(self.i(&o.lhs), o.rhs.into()))),
            Numeric::Div(o) => (&o.out, Int(B::int_div(self.i(&o.lhs), self.i(&o.rhs)))),
            Numeric::DivScalar(o) => (&o.out, Int(B::int_div_scalar(self.i(&o.lhs), o.rhs.into()))),
            Numeric::Rem(o) => (&o.out, Int(B::int_remainder(self.i(&o.lhs), self.i(&o.rhs)))),
            Numeric::RemScalar(o) => (&o.out, Int(B::int_remainder_scalar(self.i(&o.lhs), o.rhs.into()))),
            Numeric::Powi(o) => (&o.out, Int(B::int_powi(self.i(&o.lhs), self.i(&o.rhs)))),
            Numeric::PowiScalar(o) => (&o.out, Int(B::int_powi_scalar(self.i(&o.lhs), o.rhs.into()))),
            Numeric::Lower(o) => {
                (&o.out, Bool(B::int_lower(self.i(&o.lhs), self.i(&o.rhs), o.out.dtype.into())))
            }
            Numeric::LowerElem(o) => {
                (&o.out, Bool(B::int_lower_elem(self.i(&o.lhs), o.rhs.into(), o.out.dtype.into())))
            }
            Numeric::LowerEqual(o) => {
                (&o.out, Bool(B::int_lower_equal(self.i(&o.lhs), self.i(&o.rhs), o.out.dtype.into())))
            }
            Numeric::LowerEqualElem(o) => {
                (&o.out, Bool(B::int_lower_equal_elem(self.i(&o.lhs), o.rhs.into(), o.out.dtype.into())))
            }
            Numeric::Greater(o) => {
                (&o.out, Bool(B::int_greater(self.i(&o.lhs), self.i(&o.rhs), o.out.dtype.into())))
            }
            Numeric::GreaterElem(o) => {
                (&o.out, Bool(B::int_greater_elem(self.i(&o.lhs), o.rhs.into(), o.out.dtype.into())))
            }
            Numeric::GreaterEqual(o) => {
                (&o.out, Bool(B::int_greater_equal(self.i(&o.lhs), self.i(&o.rhs), o.out.dtype.into())))
            }
            Numeric::GreaterEqualElem(o) => {
                (&o.out, Bool(B::int_greater_equal_elem(self.i(&o.lhs), o.rhs.into(), o.out.dtype.into())))
            }
            Numeric::SumDim(o) => (&o.out, Int(B::int_sum_dim(self.i(&o.input), o.axis))),
            Numeric::ProdDim(o) => (&o.out, Int(B::int_prod_dim(self.i(&o.input), o.axis))),
            Numeric::MaxDim(o) => (&o.out, Int(B::int_max_dim(self.i(&o.input), o.axis))),
            Numeric::MinDim(o) => (&o.out, Int(B::int_min_dim(self.i(&o.input), o.axis))),
            Numeric::CumSum(o) => (&o.out, Int(B::int_cumsum(self.i(&o.input), o.axis))),
            _ => return None,
        })
    }

    fn float<'o>(&mut self, op: &'o FloatOp) -> Computed<'o, B> {
        Some(match op {
            FloatOp::Matmul(o) => (&o.out, Float(B::float_matmul(self.f(&o.lhs), self.f(&o.rhs)))),
            FloatOp::Exp(o) => (&o.out, Float(B::float_exp(self.f(&o.input)))),
            FloatOp::Log(o) => (&o.out, Float(B::float_log(self.f(&o.input)))),
            FloatOp::Log1p(o) => (&o.out, Float(B::float_log1p(self.f(&o.input)))),
            FloatOp::Erf(o) => (&o.out, Float(B::float_erf(self.f(&o.input)))),
            FloatOp::Sqrt(o) => (&o.out, Float(B::float_sqrt(self.f(&o.input)))),
            FloatOp::Recip(o) => (&o.out, Float(B::float_recip(self.f(&o.input)))),
            FloatOp::Tanh(o) => (&o.out, Float(B::float_tanh(self.f(&o.input)))),
            FloatOp::Sin(o) => (&o.out, Float(B::float_sin(self.f(&o.input)))),
            FloatOp::Cos(o) => (&o.out, Float(B::float_cos(self.f(&o.input)))),
            FloatOp::Tan(o) => (&o.out, Float(B::float_tan(self.f(&o.input)))),
            FloatOp::Floor(o) => (&o.out, Float(B::float_floor(self.f(&o.input)))),
            FloatOp::Ceil(o) => (&o.out, Float(B::float_ceil(self.f(&o.input)))),
            FloatOp::Round(o) => (&o.out, Float(B::float_round(self.f(&o.input)))),
            FloatOp::Powf(o) => (&o.out, Float(B::float_powf(self.f(&o.lhs), self.f(&o.rhs)))),
            FloatOp::PowfScalar(o) => (&o.out, Float(B::float_powf_scalar(self.f(&o.lhs), o.rhs.into()))),
            FloatOp::IsNan(o) => (&o.out, Bool(B::float_is_nan(self.f(&o.input), o.out.dtype.into()))),
            FloatOp::IntoInt(o) => (&o.out, Int(B::float_into_int(self.f(&o.input), o.out.dtype.into()))),
            _ => return None,
        })
    }

    fn int<'o>(&mut self, op: &'o IntOp) -> Computed<'o, B> {
        Some(match op {
            IntOp::IntoFloat(o) => (&o.out, Float(B::int_into_float(self.i(&o.input), o.out.dtype.into()))),
            IntOp::BitwiseAnd(o) => (&o.out, Int(B::bitwise_and(self.i(&o.lhs), self.i(&o.rhs)))),
            IntOp::BitwiseOr(o) => (&o.out, Int(B::bitwise_or(self.i(&o.lhs), self.i(&o.rhs)))),
            IntOp::BitwiseAndScalar(o) => (&o.out, Int(B::bitwise_and_scalar(self.i(&o.lhs), o.rhs.into()))),
            IntOp::BitwiseOrScalar(o) => (&o.out, Int(B::bitwise_or_scalar(self.i(&o.lhs), o.rhs.into()))),
            _ => return None,
        })
    }

    fn bool<'o>(&mut self, op: &'o BoolOp) -> Computed<'o, B> {
        Some(match op {
            BoolOp::IntoFloat(o) => (&o.out, Float(B::bool_into_float(self.b(&o.input), o.out.dtype.into()))),
            BoolOp::IntoInt(o) => (&o.out, Int(B::bool_into_int(self.b(&o.input), o.out.dtype.into()))),
            BoolOp::Not(o) => (&o.out, Bool(B::bool_not(self.b(&o.input)))),
            BoolOp::And(o) => (&o.out, Bool(B::bool_and(self.b(&o.lhs), self.b(&o.rhs)))),
            BoolOp::Or(o) => (&o.out, Bool(B::bool_or(self.b(&o.lhs), self.b(&o.rhs)))),
            _ => return None,
        })
    }
}
