//! A resolved model: its forward graph and all that the declarations say.

use crate::optimizers::Optimizer;
use meshwright_diag::Span;
use meshwright_ops::{Graph, Id};
use meshwright_plan::{DType, Dim, InputDecl};
use meshwright_syntax::ast::{Expr, Name};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What the command line sets.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// `--dim name=size`, in order.
    pub dims: Vec<(String, usize)>,
    /// `--set name=value`, in order.
    pub consts: Vec<(String, f64)>,
    /// Which `size NAME { … }` of the file applies.
    pub size: Option<String>,
    /// `--precision`: the arithmetic type; the model's own (`precision f64` in `train`, else `f32`) where `None`.
    pub float: Option<DType>,
}

/// What gives dims and consts their values: it is kept, so that dims get other sizes without the text.
#[derive(Clone, Debug, Default)]
pub struct Declarations {
    /// All dims and consts, in order.
    pub(crate) list: Arc<[Declared]>,
    /// What takes the place of their expressions.
    pub(crate) settings: Settings,
}

/// A dim or a const with its expression.
#[derive(Clone, Debug)]
pub(crate) struct Declared {
    /// Whether it is a dim.
    pub(crate) dim: bool,
    pub(crate) name: Name,
    pub(crate) value: Expr,
}

/// A parameter.
#[derive(Clone, Debug)]
pub struct ParamDecl {
    /// Its path, such as `h1.w`.
    pub path: String,
    /// Its leaf.
    pub id: Id,
    /// Where it is declared.
    pub span: Span,
    /// Whether the optimizer leaves it alone (`freeze`).
    pub frozen: bool,
    /// Whether weight decay spares it (`weight_decay … except`).
    pub no_decay: bool,
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

/// Clipping of gradients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ClipSpec {
    /// All gradients are scaled so that their joint 2-norm is at most this.
    GlobalNorm(f64),
}

/// The `train` block.
#[derive(Clone, Debug)]
pub struct TrainSpec {
    /// The loss that is minimized.
    pub minimize: LossDecl,
    /// The optimizer. Its scalars are values of the graph: constants, or expressions of the step number.
    pub optimizer: Optimizer,
    /// Clipping.
    pub clip: Option<ClipSpec>,
}

/// A resolved model. The graph holds forward values (phase `Forward`) and hyperparameters (phase `Update`).
#[derive(Clone, Debug)]
pub struct Program {
    /// Name of the model.
    pub model: String,
    /// Its graph.
    pub graph: Graph,
    /// Arithmetic type.
    pub float: DType,
    /// The consts of the file and their values, as the command line leaves them.
    pub consts: BTreeMap<String, f64>,
    /// What gives dims and consts their values.
    pub declarations: Declarations,
    /// Where each dim is declared.
    pub dim_spans: BTreeMap<Dim, Span>,
    /// Inputs in order of declaration, each with its leaf.
    pub inputs: Vec<(InputDecl, Id, Span)>,
    /// Parameters in order of creation.
    pub params: Vec<ParamDecl>,
    /// States in order of creation.
    pub states: Vec<StateDecl>,
    /// Losses.
    pub losses: Vec<LossDecl>,
    /// Metrics.
    pub metrics: Vec<LossDecl>,
    /// Outputs, for `predict`.
    pub outputs: Vec<LossDecl>,
    /// How it is trained; `None` where the file has no `train` block for it.
    pub train: Option<TrainSpec>,
}

impl Program {
    /// Elements of all parameters.
    pub fn parameter_elements(&self) -> usize {
        self.params.iter().map(|p| self.graph.ty(p.id).elements(&self.graph.dims)).sum()
    }
}
