//! Properties of an op that passes may ask for.

use crate::Boundary;
use meshwright_plan::{Dim, Init, Monoid};

/// Kinds of ops that the partitioner distinguishes, besides their roles.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// Something bound before the step.
    Input(InputOpKind),
    /// A function of the global index alone: it can be made anywhere, in any placement, at no cost.
    Rematerializable(Source),
    /// The n-ary sum, in which partial sums meet.
    Add,
    /// A dim gets another name; nothing moves.
    Rename {
        /// Its name on the operand.
        from: Dim,
        /// Its name on the result.
        to: Dim,
    },
    /// It crosses the boundary of a loop.
    Boundary(Boundary),
    /// The finished gradient of a parameter.
    Gradient,
    /// A function of its operands.
    Compute(Computes),
}

/// The computation of an op, for passes that need it.
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

/// The content of a rematerializable value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A number, the same everywhere: [`Op::element`](crate::Op::element) of no operands.
    Constant,
    /// Whether the program trains: known as soon as it is known which program is built.
    Training,
    /// Drawn anew in each step.
    Random,
    /// A function of the positions along dims.
    Position,
}

/// The reduction of all elements along dims to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fold {
    /// By a monoid.
    By(Monoid),
    /// Their sum by their number.
    Mean,
}

/// Inputs that are bound before the step.
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

/// In which dtype an op reads and gives floats where the arithmetic of the program is a half type, `bf16` or `f16`. What an op
/// computes with is `f32` always: a half type is how values are stored and sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// Reads its operands as they are stored, and is stored as those are that have all its dims: whatever works element by
    /// element or moves elements.
    AsOperands,
    /// Reads the half type: a matrix product or a convolution, for which there is hardware. Sums in `f32`.
    Products,
    /// Reads the half type, and gives elements of it as they are: entries of a table.
    Entries,
    /// Reads its operands as they are stored, and gives `f32`: sums.
    Sums,
    /// Reads its operands as they are stored, and gives `f32`, but does not ask for operands in full: products whose sums go
    /// through functions that rounding would spoil, all in one op.
    Inside,
    /// Like [`Precision::Inside`], but what it gives is stored as its operands are: the last of such sums is rounded once.
    Rounded,
    /// Reads and gives `f32`: what a rounding would spoil, such as a softmax. So does its gradient.
    Full,
}

/// When a composite op is replaced by what it is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExpandWhen {
    /// Never: it is a primitive.
    Never,
    /// If any of these dims is split.
    Split(Vec<Dim>),
    /// Always.
    Always,
}
