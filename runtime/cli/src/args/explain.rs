//! The options of `explain`.

use super::{FormatArgs, MachineArgs, ModelArgs, PageLayouts, PassArgs};
use crate::complete;
use crate::value_parsers::{page, passes_help};
use clap::{Args, ValueEnum};
use clap_complete::engine::ArgValueCompleter;
use meshwright_plan::Phase;
use std::path::PathBuf;

/// A program that is made of a model.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProgramChoice {
    /// The training step.
    Train,
    /// The evaluation of losses and metrics.
    Eval,
    /// The outputs.
    Predict,
}

#[derive(Args, Debug)]
pub(crate) struct ProgramArgs {
    /// Which program [default: train; if the model has no `train` block eval, or predict if it has no loss and no metric]
    #[arg(long, value_enum)]
    pub(crate) program: Option<ProgramChoice>,
}

#[derive(Args, Debug)]
pub(crate) struct PagerArgs {
    /// Do not show a long report page by page; otherwise, on a terminal, $PAGER does [default: less -FRX]
    #[arg(long, help_heading = "Output")]
    pub(crate) no_pager: bool,
}

/// A part of the step.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PhaseChoice {
    Forward,
    Backward,
    Update,
}

impl PhaseChoice {
    pub(crate) fn phase(self) -> Phase {
        match self {
            PhaseChoice::Forward => Phase::Forward,
            PhaseChoice::Backward => Phase::Backward,
            PhaseChoice::Update => Phase::Update,
        }
    }
}

/// The rows that `--only` leaves.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnlyChoice {
    /// Rows with collectives, without totals.
    Collectives,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "What is shown")]
pub(crate) struct ViewArgs {
    /// Show every value in a row of its own, and when each collective runs.
    #[arg(long, conflicts_with_all = ["emit", "why"])]
    pub(crate) all: bool,
    /// Show only this part of the step; may be repeated.
    #[arg(long = "phase", value_enum, conflicts_with_all = ["emit", "why"])]
    pub(crate) phases: Vec<PhaseChoice>,
    /// Show the values whose path matches, such as 'b1.*', with their gradients and optimizer state; may be repeated.
    #[arg(long = "match", value_name = "GLOB", conflicts_with_all = ["emit", "why"])]
    pub(crate) globs: Vec<String>,
    /// Show nothing but these rows.
    #[arg(long, value_enum, conflicts_with_all = ["emit", "why"])]
    pub(crate) only: Option<OnlyChoice>,
}

#[derive(Args, Debug)]
#[command(after_help = passes_help(), after_long_help = format!("\
Examples:
  meshwright explain mnist_mlp --layout 'batch -> r; hidden1 -> c' --mesh r=2,c=2
  meshwright explain mlp --layout zero3 --all
  meshwright explain mlp --layout dp_tp --match 'h.*' --phase backward
  meshwright explain mlp --layout dp_tp --only collectives --program eval
  meshwright explain mlp --layout zero3 --format json
  meshwright explain mlp --layout dp --layout zero3 --mesh 4 --html plan.html
  meshwright explain mlp --layout dp_tp --emit plan
  meshwright explain gpt --preset tiny --precision bf16 --emit device --device cuda
  meshwright explain mlp --layout dp_tp --emit burn --rank 3
  meshwright explain mlp --layout dp_tp --why logits.classes
  meshwright explain gpt --preset small --precision bf16 --device cuda
  meshwright explain E0310
  meshwright explain softmax
  meshwright explain adam

The report begins with totals. Then come the values that a collective moves; neighboring blocks whose rows are equal are shown
once. With --format json, the report has everything.
--html writes a page that needs nothing but itself: no network, and no other file.

{}", passes_help()))]
pub(crate) struct ExplainArgs {
    /// A model (a file, or the name of a model that ships), a code such as E0310, an op such as softmax, or another word of the
    /// language: an optimizer, an initializer, a learning-rate schedule or a keyword.
    #[arg(value_name = "MODEL|CODE|WORD", add = ArgValueCompleter::new(complete::topics))]
    pub(crate) topic: String,
    #[command(flatten)]
    pub(crate) project: ModelArgs<PageLayouts>,
    #[command(flatten)]
    pub(crate) program: ProgramArgs,
    #[command(flatten)]
    pub(crate) view: ViewArgs,
    /// Explain why a dim of a value is split or replicated: PATH is a value in the report, such as b1.attention.out, DIM one of
    /// its dims; without DIM, explain all of its dims.
    #[arg(long, value_name = "PATH[.DIM]", conflicts_with_all = ["emit", "time_passes"])]
    pub(crate) why: Option<String>,
    /// Write the plan as a page, to be opened in a browser: where each value is on the mesh, the collectives with their reasons,
    /// memory over the step, compute and collectives on a timeline. With several layouts, it switches between them.
    #[arg(long, value_name = "FILE.html|DIR/", value_parser = page(), conflicts_with_all = ["emit", "why", "all", "phases", "globs", "only", "time_passes"], help_heading = "Output")]
    pub(crate) html: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) machine: MachineArgs,
    #[command(flatten)]
    pub(crate) passes: PassArgs,
    #[command(flatten)]
    pub(crate) format: FormatArgs,
    #[command(flatten)]
    pub(crate) pager: PagerArgs,
}
