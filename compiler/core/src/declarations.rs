//! The values of a program that have declarations: parameters, states, losses.

use crate::step::stack_part::StackPart;
use meshwright_diag::Span;
use meshwright_ops::Id;
use meshwright_syntax::ast::Better;

/// A parameter.
#[derive(Clone, Debug)]
pub struct ParamDecl {
    /// Its path, such as `h1.w`.
    pub path: String,
    /// Its leaf.
    pub id: Id,
    /// Its declaration.
    pub span: Span,
    /// Number of its dims, from the first, that are dims of loops: it counts as one parameter for each position of
    /// these.
    pub stack: usize,
    /// Whether the optimizer leaves it alone (`freeze`).
    pub frozen: bool,
    /// Of a parameter of loops, parts that the optimizer leaves alone (`freeze layers[0..2].*`).
    pub frozen_at: Vec<StackPart>,
    /// Whether weight decay spares it (`weight_decay … except`).
    pub no_decay: bool,
    /// Of a parameter of loops, parts that weight decay spares.
    pub no_decay_at: Vec<StackPart>,
    /// Whether a moving average of it is kept (`ema`).
    pub averaged: bool,
    /// Which of the objectives it is trained for.
    pub objective: usize,
    /// Which of the optimizers trains it.
    pub optimizer: usize,
    /// Of a parameter of loops, parts that others train. They are one kind of optimizer, with other settings.
    pub optimizer_at: Vec<(StackPart, usize)>,
}

impl ParamDecl {
    /// A parameter of which the `train` block says nothing.
    pub fn new(path: String, id: Id, span: Span) -> ParamDecl {
        ParamDecl {
            path,
            id,
            span,
            stack: 0,
            frozen: false,
            frozen_at: Vec::new(),
            no_decay: false,
            no_decay_at: Vec::new(),
            averaged: false,
            objective: 0,
            optimizer: 0,
            optimizer_at: Vec::new(),
        }
    }
}

/// A state: a tensor that is kept from one training step to the next and not trained. Evaluations and predictions read it.
#[derive(Clone, Debug)]
pub struct StateDecl {
    /// Its path, such as `norm1.average`.
    pub path: String,
    /// Its leaf: the value before the step.
    pub id: Id,
    /// Its declaration.
    pub span: Span,
    /// Its value after a training step; it stays as it is where `None`.
    pub next: Option<Id>,
}

/// A named scalar or output.
#[derive(Clone, Debug)]
pub struct LossDecl {
    /// Its name.
    pub name: String,
    /// Its value.
    pub id: Id,
    /// Its declaration.
    pub span: Span,
    /// Which values are better: less of a loss, of a metric what it says.
    pub better: Option<Better>,
}

/// In which steps some parameters are updated: every `every`th, from the step `from` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// From one of these steps to the next; 1 or more.
    pub every: u64,
    /// The first of them; 1 or more.
    pub from: u64,
}
