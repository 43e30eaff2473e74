//! The trait that every op implements, in one file each.

use crate::{Emit, F64Tensor, Graph, Id, OpError, Roles, Type};
use meshwright_plan::expr::Reg;
use meshwright_plan::{Dim, Dims, Expr, Init, Monoid};
use std::any::Any;
use std::fmt::Debug;
use std::hash::{Hash, Hasher};

/// What the partitioner must know of an op beyond its roles.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// Something bound before the step.
    Input(InputOpKind),
    /// A function of the global index alone: it can be made anywhere, in any placement, at no cost.
    Rematerializable(Source),
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
    /// A function of its operands.
    Compute(Computes),
}

/// What an op computes of its operands, where a pass asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Computes {
    /// One of two values, by the truth value that is the first operand.
    Select,
    /// The product of its operands, summed over the dims that the result lacks.
    Contraction,
    /// The fold of all elements along dims.
    Reduction(Fold),
    /// Anything else.
    Other,
}

/// What a rematerializable value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A number, the same everywhere: [`Op::element`] of no operands.
    Constant,
    /// Whether the program trains: known as soon as it is known which program is built.
    Training,
    /// Drawn anew in each step.
    Random,
    /// A function of the positions along dims.
    Position,
}

/// How all elements along dims become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fold {
    /// By a monoid.
    By(Monoid),
    /// Their sum by their number.
    Mean,
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

impl InputOpKind {
    /// Its name or path; with its kind it says which tensor is bound.
    pub fn name(&self) -> &str {
        match self {
            InputOpKind::Input { name } => name,
            InputOpKind::Param { path, .. }
            | InputOpKind::OptimizerState { path, .. }
            | InputOpKind::State { path, .. } => path,
            InputOpKind::StepNumber => "step",
        }
    }
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

/// Equality with any other op. Equal ops of equal operands are the same computation.
pub trait DynEq {
    /// The op as its own type may be had from it.
    fn as_any(&self) -> &dyn Any;

    /// Whether both are of one type and have equal attributes.
    fn dyn_eq(&self, other: &dyn Op) -> bool;
}

/// The hash that goes with [`DynEq`].
pub trait DynHash {
    /// Feeds type and attributes to `state`.
    fn dyn_hash(&self, state: &mut dyn Hasher);
}

impl<T: Eq + Any> DynEq for T {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn dyn_eq(&self, other: &dyn Op) -> bool {
        other.as_any().downcast_ref::<T>() == Some(self)
    }
}

impl<T: Hash + Any> DynHash for T {
    fn dyn_hash(&self, mut state: &mut dyn Hasher) {
        (self.type_id(), self).hash(&mut state);
    }
}

impl PartialEq for dyn Op {
    fn eq(&self, other: &dyn Op) -> bool {
        self.dyn_eq(other)
    }
}

impl Eq for dyn Op {}

impl Hash for dyn Op {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.dyn_hash(state);
    }
}

/// Equality and hash of an op by a key, for attributes that are floats: those are equal by their bits, NaN to itself and 0
/// not to -0.
macro_rules! eq_by {
    ($op:ty, |$this:ident| $key:expr) => {
        impl PartialEq for $op {
            fn eq(&self, other: &Self) -> bool {
                let key = |$this: &Self| $key;
                key(self) == key(other)
            }
        }

        impl Eq for $op {}

        impl std::hash::Hash for $op {
            fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
                let $this = self;
                std::hash::Hash::hash(&$key, state);
            }
        }
    };
}
pub(crate) use eq_by;

/// An op: one result, any number of operands, attributes in the implementing type, which derives equality and hash.
pub trait Op: DynEq + DynHash + Debug + Send + Sync {
    /// Its name, for listings.
    fn name(&self) -> &'static str;

    /// Type of the result, or why the operands do not fit. Here and below `table` has the sizes of the dims.
    fn infer(&self, x: &[&Type], table: &Dims) -> Result<Type, OpError>;

    /// The role of every dim.
    fn roles(&self, x: &[&Type], y: &Type, table: &Dims) -> Roles;

    /// What tells ops of this name apart, for listings; starts with a blank.
    fn detail(&self) -> String {
        String::new()
    }

    /// What else the partitioner must know.
    fn kind(&self) -> Kind {
        Kind::Compute(Computes::Other)
    }

    /// For each operand whose `need` is set, its cotangent: built from ops on the operands `x`, the result `y` and its
    /// cotangent `dy`. A cotangent may lack dims along which it is constant. `None` means zero.
    fn vjp(&self, g: &mut Graph, x: &[Id], y: Id, dy: Id, need: &[bool]) -> Vec<Option<Id>>;

    /// An element-wise op as a scalar expression of its operands (already in `e`); `None` for all others. Neither operands
    /// nor types are of `bf16`: what is stored so is read as `f32`.
    fn scalar(&self, _e: &mut Expr, _x: &[Reg], _types: &[&Type], _y: &Type, _table: &Dims) -> Option<Reg> {
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
    fn flops(&self, x: &[&Type], y: &Type, size: &dyn Fn(Dim) -> u64, table: &Dims) -> u64 {
        let _ = (x, table);
        y.dims.iter().map(|d| size(*d)).product()
    }

    /// The meaning of an element-wise op, in f64: an element of the result, of which the operands have the elements `x`.
    /// `None` for all others. It shares nothing with [`Op::scalar`].
    fn element(&self, _x: &[f64], _y: &Type) -> Option<f64> {
        None
    }

    /// Its meaning, slow and in f64, on whole values: what tests compare with, and what the last few numbers of an
    /// evaluation are computed by. It shares nothing with [`Op::lower`] or [`Op::roles`].
    fn oracle(&self, x: &[&F64Tensor], y: &Type, table: &Dims) -> F64Tensor {
        F64Tensor::build(table, &y.dims, |at| {
            let x: Vec<f64> = x.iter().map(|t| t.at(&y.dims, at)).collect();
            self.element(&x, y).unwrap_or_else(|| panic!("internal error: `{}` has no meaning", self.name()))
        })
    }
}
