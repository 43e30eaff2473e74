//! The trait that every op implements, in one file each.

use crate::{Emit, F64Tensor, Graph, Id, OpError, Roles, Type};
use meshwright_plan::expr::Reg;
use meshwright_plan::{Dim, Dims, Expr, Init};
use std::fmt::Debug;

/// What the partitioner must know of an op beyond its roles.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// Something bound before the step.
    Input(InputOpKind),
    /// A function of the global index alone: it can be made anywhere, in any placement, at no cost.
    Rematerializable,
    /// The n-ary sum, in which unfinished sums meet.
    Add,
    /// A dim gets another name; nothing moves.
    Rename {
        /// Its name on the operand.
        from: Dim,
        /// Its name on the result.
        to: Dim,
    },
    /// The finished gradient of a parameter.
    Gradient,
    /// Anything else.
    Compute,
}

/// What is bound before the step.
#[derive(Clone, Debug, PartialEq)]
pub enum InputOpKind {
    /// Read from data.
    Input {
        /// Its name.
        name: String,
    },
    /// A parameter.
    Param {
        /// Its path.
        path: String,
        /// Its first value.
        init: Init,
    },
    /// A state of the optimizer.
    OptimizerState {
        /// `PATH/m`.
        path: String,
        /// Its first value.
        init: Init,
    },
    /// A tensor that is kept between training steps and not trained.
    State {
        /// Its path.
        path: String,
        /// Its first value.
        init: Init,
    },
    /// The number of the step, from 1.
    StepNumber,
}

/// In which dtype an op reads and gives floats where the arithmetic of the program is `bf16`. What an op computes with is
/// `f32` always: `bf16` is how values are stored and sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// Reads its operands as they are stored, and is stored as those are that have all its dims: whatever works element by
    /// element or moves elements.
    AsOperands,
    /// Reads `bf16`: a matrix product or a convolution, for which there is hardware. Sums in `f32`.
    Products,
    /// Reads its operands as they are stored, and gives `f32`: sums.
    Sums,
    /// Reads and gives `f32`: what a rounding would spoil, such as a softmax. So does its gradient.
    Full,
}

/// When a composite op is replaced by what it is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExpandWhen {
    /// Never: it is a primitive.
    Never,
    /// Where any of these dims is split.
    Split(Vec<Dim>),
    /// Always.
    Always,
}

/// An op: one result, any number of operands, attributes in the implementing type.
///
/// `Debug` must print all attributes and nothing else: two ops with equal text and operands are the same computation.
pub trait Op: Debug + Send + Sync {
    /// Its name, for listings.
    fn name(&self) -> &'static str;

    /// Type of the result, or why the operands do not fit. Here and below `table` has the sizes of the dims.
    fn infer(&self, x: &[&Type], table: &Dims) -> Result<Type, OpError>;

    /// The role of every dim.
    fn roles(&self, x: &[&Type], y: &Type, _: &Dims) -> Roles;

    /// What tells ops of this name apart, for listings; starts with a blank.
    fn detail(&self) -> String {
        String::new()
    }

    /// What else the partitioner must know.
    fn kind(&self) -> Kind {
        Kind::Compute
    }

    /// For each operand whose `need` is set, its cotangent: built from ops on the operands `x`, the result `y` and its
    /// cotangent `dy`. A cotangent may lack dims along which it is constant. `None` means zero.
    fn vjp(&self, g: &mut Graph, x: &[Id], y: Id, dy: Id, need: &[bool]) -> Vec<Option<Id>>;

    /// An element-wise op as a scalar expression of its operands (already in `e`); `None` for all others. Neither operands
    /// nor types are of `bf16`: what is stored so is read as `f32`.
    fn scalar(&self, _e: &mut Expr, _x: &[Reg], _types: &[&Type], _y: &Type, _: &Dims) -> Option<Reg> {
        None
    }

    /// In which dtype it reads and gives floats in a program of `bf16`.
    fn precision(&self, _x: &[&Type], _y: &Type) -> Precision {
        Precision::AsOperands
    }

    /// When [`Op::expand`] applies.
    fn expand_when(&self) -> ExpandWhen {
        ExpandWhen::Never
    }

    /// The same result from simpler ops.
    fn expand(&self, _g: &mut Graph, _x: &[Id]) -> Option<Id> {
        None
    }

    /// Appends the primitive steps that compute it on one device. Never called where [`Op::scalar`] gives an expression.
    fn lower(&self, e: &mut dyn Emit);

    /// Floating-point operations, given local sizes of the dims.
    fn flops(&self, x: &[&Type], y: &Type, size: &dyn Fn(Dim) -> u64, _: &Dims) -> u64 {
        let _ = x;
        y.dims.iter().map(|d| size(*d)).product()
    }

    /// Its meaning, slow and in f64, on whole values; shares nothing with [`Op::lower`] or [`Op::roles`].
    fn oracle(&self, x: &[&F64Tensor], y: &Type, _: &Dims) -> F64Tensor;
}
