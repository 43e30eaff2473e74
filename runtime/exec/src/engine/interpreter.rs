//! Runs the operations of a graph. Burn's own interpreter takes each operation by value, so that one that runs in every step
//! would be cloned in every step; this one reads them.

use crate::backend::{Backend, Handles, RngState};
use HandleKind::{Bool, Float, Int};
use burn_backend::tensor::{BoolTensor, FloatTensor, IntTensor};
use burn_ir::{
    BackendIr, BaseOperationIr as Base, BoolOperationIr as BoolOp, FloatOperationIr as FloatOp,
    HandleContainer, HandleKind, IntOperationIr as IntOp, NumericOperationIr as Numeric, OperationIr,
    TensorIr, TensorStatus,
};
use meshwright_device::KernelError;
use meshwright_device::LoweringError;
use meshwright_device::kernels::Kernel;
use meshwright_device::launch::Launch;
use meshwright_device::lowering::local::DeviceContext;
use meshwright_device::slot::Residual;

/// A kernel of a loaded program.
pub(crate) enum LoadedKernel<K> {
    /// Keeps a value for its position of a loop, in place of a stack with all positions.
    Store(Residual),
    /// Gives the value that was kept for a position; for the last time or not.
    Load(Residual, bool),
    /// One that the backend runs.
    OfBackend(K),
}

impl<K> LoadedKernel<K> {
    /// Makes a kernel ready to run.
    ///
    /// # Errors
    /// Where the backend cannot.
    pub(crate) fn new<B: Backend<Kernel = K>>(
        backend: &B,
        context: &DeviceContext<'_>,
        kernel: &Kernel,
    ) -> Result<LoadedKernel<K>, LoweringError> {
        Ok(match kernel {
            Kernel::Store(residual) => LoadedKernel::Store(residual.clone()),
            Kernel::Load { residual, last } => LoadedKernel::Load(residual.clone(), *last),
            kernel => LoadedKernel::OfBackend(backend.prepare(context, kernel)?),
        })
    }
}

impl<K> LoadedKernel<K> {
    /// Runs it on the tensors of its launch.
    ///
    /// # Errors
    /// Of the kernel.
    pub(crate) fn run<B: Backend<Kernel = K>>(
        &self,
        backend: &mut B,
        launch: &Launch,
        handles: &mut Handles<B>,
        rng: RngState,
    ) -> Result<(), KernelError> {
        match self {
            LoadedKernel::Store(residual) => store::<B>(handles, launch, residual, rng),
            LoadedKernel::Load(residual, last) => load::<B>(handles, launch, (residual, *last), rng),
            LoadedKernel::OfBackend(kernel) => backend.run_kernel(kernel, launch, handles, rng),
        }
    }
}

/// Runs one operation of Burn.
///
/// # Errors
/// Where the operation is none that steps are lowered to.
pub(crate) fn execute<B: Backend>(
    backend: &mut B,
    handles: &mut Handles<B>,
    operation: &OperationIr,
) -> Result<(), KernelError> {
    match operation {
        OperationIr::Drop(tensor) => {
            backend.recycle(handles.get_handle(&tensor.id, &tensor.status));
            Ok(())
        }
        OperationIr::BaseFloat(op) | OperationIr::BaseInt(op)
            if backend.target().has_arena()
                && let Some(input) = viewed(op)
                && let Some(made) =
                    handles.get_handle_ref(&input.id).and_then(|tensor| B::view(tensor, op)) =>
        {
            drop(handles.get_handle(&input.id, &input.status));
            operation.outputs().for_each(|out| handles.register_handle(out.id, made.clone()));
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

/// The operand of an operation that only shows it in another form.
fn viewed(op: &Base) -> Option<&TensorIr> {
    match op {
        Base::Reshape(op) => Some(&op.input),
        Base::Slice(op) => Some(&op.tensor),
        _ => None,
    }
}

/// Keeps a value for the position of the iteration, if it is one that is read.
fn store<B: Backend>(
    handles: &mut Handles<B>,
    launch: &Launch,
    residual: &Residual,
    rng: RngState,
) -> Result<(), KernelError> {
    let kept = residual.tensor(rng.iteration)?;
    for value in &launch.reads {
        let value = handles.get_handle(&value.id, &value.status);
        if let Some(kept) = kept {
            handles.register_handle(kept, value);
        }
    }
    Ok(())
}

/// Gives the value that was kept for the position of the iteration.
fn load<B: Backend>(
    handles: &mut Handles<B>,
    launch: &Launch,
    (residual, last): (&Residual, bool),
    rng: RngState,
) -> Result<(), KernelError> {
    let not_kept = || KernelError::Unsupported("no value of this position is kept".into());
    let kept = residual.tensor(rng.iteration)?.ok_or_else(not_kept)?;
    let status = if last { TensorStatus::ReadWrite } else { TensorStatus::ReadOnly };
    for out in &launch.writes {
        let value = handles.get_handle(&kept, &status);
        handles.register_handle(out.id, value);
    }
    Ok(())
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
pub fn opaque<B: BackendIr>(tensor: HandleKind<B>) -> B::Handle {
    match tensor {
        Float(t) => B::float_tensor_handle(t),
        Int(t) => B::int_tensor_handle(t),
        Bool(t) => B::bool_tensor_handle(t),
        HandleKind::Quantized(t) => B::quantized_tensor_handle(t),
    }
}

/// A result with its kind; none for operations of Burn that steps do not need.
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

/// Applies a numeric operation to its operands, by its form.
macro_rules! apply {
    (unary, $of:ident, $f:path, $kind:ident, $get:ident, $o:ident) => {
        $kind($f($of.$get(&$o.input)))
    };
    (along, $of:ident, $f:path, $kind:ident, $get:ident, $o:ident) => {
        $kind($f($of.$get(&$o.input), $o.axis))
    };
    (binary, $of:ident, $f:path, $kind:ident, $get:ident, $o:ident) => {
        $kind($f($of.$get(&$o.lhs), $of.$get(&$o.rhs)))
    };
    (scalar, $of:ident, $f:path, $kind:ident, $get:ident, $o:ident) => {
        $kind($f($of.$get(&$o.lhs), $o.rhs.into()))
    };
    (compare, $of:ident, $f:path, $kind:ident, $get:ident, $o:ident) => {
        Bool($f($of.$get(&$o.lhs), $of.$get(&$o.rhs), $o.out.dtype.into()))
    };
    (compare_scalar, $of:ident, $f:path, $kind:ident, $get:ident, $o:ident) => {
        Bool($f($of.$get(&$o.lhs), $o.rhs.into(), $o.out.dtype.into()))
    };
}

/// The operations of numbers: the form of each, and the function for floats and that for integers.
macro_rules! numeric {
    ($($op:ident $form:ident $float:ident $int:ident;)*) => {
        impl<B: BackendIr> Interpreter<'_, B> {
            fn numeric_float<'o>(&mut self, op: &'o Numeric) -> Computed<'o, B> {
                Some(match op {
                    Numeric::Full(o) => {
                        let shape = o.out.shape.clone();
                        (&o.out, Float(B::float_full(shape, o.value.into(), self.device, o.out.dtype.into())))
                    }
                    $(Numeric::$op(o) => (&o.out, apply!($form, self, B::$float, Float, f, o)),)*
                    _ => return None,
                })
            }

            fn numeric_int<'o>(&mut self, op: &'o Numeric) -> Computed<'o, B> {
                Some(match op {
                    Numeric::Full(o) => {
                        let shape = o.out.shape.clone();
                        (&o.out, Int(B::int_full(shape, o.value.into(), self.device, o.out.dtype.into())))
                    }
                    $(Numeric::$op(o) => (&o.out, apply!($form, self, B::$int, Int, i, o)),)*
                    _ => return None,
                })
            }
        }
    };
}

numeric! {
    Neg unary float_neg int_neg;
    Abs unary float_abs int_abs;
    Add binary float_add int_add;
    AddScalar scalar float_add_scalar int_add_scalar;
    Sub binary float_sub int_sub;
    SubScalar scalar float_sub_scalar int_sub_scalar;
    Mul binary float_mul int_mul;
    MulScalar scalar float_mul_scalar int_mul_scalar;
    Div binary float_div int_div;
    DivScalar scalar float_div_scalar int_div_scalar;
    Rem binary float_remainder int_remainder;
    RemScalar scalar float_remainder_scalar int_remainder_scalar;
    Lower compare float_lower int_lower;
    LowerElem compare_scalar float_lower_elem int_lower_elem;
    LowerEqual compare float_lower_equal int_lower_equal;
    LowerEqualElem compare_scalar float_lower_equal_elem int_lower_equal_elem;
    Greater compare float_greater int_greater;
    GreaterElem compare_scalar float_greater_elem int_greater_elem;
    GreaterEqual compare float_greater_equal int_greater_equal;
    GreaterEqualElem compare_scalar float_greater_equal_elem int_greater_equal_elem;
    SumDim along float_sum_dim int_sum_dim;
    ProdDim along float_prod_dim int_prod_dim;
    MaxDim along float_max_dim int_max_dim;
    MinDim along float_min_dim int_min_dim;
    CumSum along float_cumsum int_cumsum;
}
