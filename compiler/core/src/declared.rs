//! The values of a program that have declarations: parameters, states, losses.

use meshwright_diag::Span;
use meshwright_ops::Id;

/// A parameter.
#[derive(Clone, Debug)]
pub struct ParamDecl {
    /// Its path, such as `h1.w`.
    pub path: String,
    /// Its leaf.
    pub id: Id,
    /// Where it is declared.
    pub span: Span,
    /// How many of its dims, from the first, are those of loops: it counts as one parameter for each position of these.
    pub stack: usize,
    /// Whether the optimizer leaves it alone (`freeze`).
    pub frozen: bool,
    /// Whether weight decay spares it (`weight_decay … except`).
    pub no_decay: bool,
    /// Whether a moving average of it is kept (`ema`).
    pub averaged: bool,
    /// Which of the objectives it is trained for.
    pub objective: usize,
    /// Which of the optimizers trains it.
    pub optimizer: usize,
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
            no_decay: false,
            averaged: false,
            objective: 0,
            optimizer: 0,
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
    /// Where it is declared.
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
    /// Where it is declared.
    pub span: Span,
}

/// In which steps some parameters are updated: every `every`th, from the step `from` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// From one of these steps to the next; 1 or more.
    pub every: u64,
    /// The first of them; 1 or more, and at most `every`.
    pub from: u64,
}
