//! A resolved model: its forward graph and all that the declarations say.

use crate::step::loss_scaling::LossScaling;
use crate::step::optimizers::Optimizer;
use meshwright_diag::Span;
use meshwright_ops::{Graph, Id};
use meshwright_plan::{Arithmetic, Dim, InputDecl};
use meshwright_sorted::{SortedMap, SortedSet};
use meshwright_syntax::ast::{Expr, Name};
use std::sync::Arc;

pub use crate::declarations::{LossDecl, ParamDecl, StateDecl, Turn};

/// Settings of the command line.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// `--dim name=size`, in order.
    pub dims: Vec<(String, usize)>,
    /// `--set name=value`, in order.
    pub consts: Vec<(String, f64)>,
    /// Which `size NAME { … }` of the file applies.
    pub size: Option<String>,
    /// `--precision`: the arithmetic; the model's own (`precision f64` in `train`, else `f32`) where `None`.
    pub float: Option<Arithmetic>,
    /// Reports of training steps besides their losses.
    pub reports: Reports,
    /// `--no-ema`: whether evaluations and predictions read the parameters themselves where there are averages of them.
    pub no_ema: bool,
    /// Whether the run that goes on has skipped updates in `f16`: their counts are then states in every precision.
    pub skips: bool,
}

/// Reports of training steps besides their losses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reports {
    /// Names of metrics, computed on the batch of a step.
    pub metrics: Vec<String>,
    /// The norm of all gradients, also where they are not clipped.
    pub gradient_norm: bool,
}

/// The declarations of dims and consts: they are kept, so that dims get other sizes without the text.
#[derive(Clone, Debug, Default)]
pub struct Declarations {
    /// All dims and consts, in order.
    pub(crate) list: Arc<[Declared]>,
    /// Values that replace their expressions.
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

/// Clipping of gradients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ClipSpec {
    /// All gradients are scaled so that their joint 2-norm is at most this.
    GlobalNorm(f64),
}

/// A loss that is minimized for some parameters; which, they say.
#[derive(Clone, Debug)]
pub struct Objective {
    /// The loss.
    pub loss: LossDecl,
    /// In which steps; in all where `None`.
    pub turn: Option<Turn>,
}

/// The `train` block.
#[derive(Clone, Debug)]
pub struct TrainSpec {
    /// The losses that are minimized, at least one.
    pub objectives: Vec<Objective>,
    /// The optimizers, at least one. Their scalars are values of the graph: constants, or expressions of the step number.
    pub optimizers: Vec<Optimizer>,
    /// Clipping.
    pub clip: Option<ClipSpec>,
    /// The share of the old in moving averages of parameters.
    pub ema: Option<Id>,
    /// Scaling of the loss, for arithmetic in `f16`.
    pub scaling: LossScaling,
    /// The number of steps whose maxima scale the factors of `fp8`; `None` where their own maxima do.
    pub scale_history: Option<usize>,
}

impl TrainSpec {
    /// One loss, minimized for all parameters by one optimizer.
    pub fn new(loss: LossDecl, optimizer: Optimizer) -> TrainSpec {
        let objectives = vec![Objective { loss, turn: None }];
        TrainSpec {
            objectives,
            optimizers: vec![optimizer],
            clip: None,
            ema: None,
            scaling: LossScaling::default(),
            scale_history: None,
        }
    }

    /// The loss of a step: the first that is minimized.
    pub fn loss(&self) -> &LossDecl {
        &self.objectives[0].loss
    }
}

/// A resolved model. The graph holds forward values (phase `Forward`) and hyperparameters (phase `Update`).
#[derive(Clone, Debug)]
pub struct Program {
    /// Name of the model.
    pub model: String,
    /// Its graph.
    pub graph: Graph,
    /// Its arithmetic.
    pub float: Arithmetic,
    /// The consts of the file and their values, as the command line leaves them.
    pub consts: SortedMap<String, f64>,
    /// Consts that the model itself reads. Others are read by the `train` block, or by another const, alone.
    pub model_consts: SortedSet<String>,
    /// The declarations of dims and consts.
    pub declarations: Declarations,
    /// The declaration of each dim.
    pub dim_spans: SortedMap<Dim, Span>,
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
    /// The value of each name that a statement gives, by its path.
    pub named: SortedMap<Arc<str>, Id>,
    /// Its training; `None` if the file has no `train` block for it.
    pub train: Option<TrainSpec>,
}

impl Program {
    /// The dim of the loop of layers with its iterations, of a model with one: stages of a pipeline may divide it.
    pub fn layers(&self) -> Option<(Dim, usize)> {
        let mut loops = self.graph.repeats.iter().filter(|r| r.parent.is_none());
        let only = loops.next().filter(|_| loops.next().is_none())?;
        Some((only.dim, self.graph.dims.size(only.dim)))
    }

    /// The block `size` whose values it has, by its whole name.
    pub fn preset(&self) -> Option<&str> {
        self.declarations.settings.size.as_deref()
    }

    /// From now on its training step keeps the count of skipped updates: see [`Settings::skips`].
    pub fn count_skips(&mut self) {
        self.declarations.settings.skips = true;
    }

    /// Elements of all parameters.
    pub fn parameter_elements(&self) -> usize {
        self.params.iter().map(|p| self.graph.ty(p.id).elements(&self.graph.dims)).sum()
    }
}
