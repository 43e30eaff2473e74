//! The graph of one whole step with what it must give: the input of the partitioner.

use meshwright_ops::{Graph, Id};
use meshwright_plan::{DType, InputDecl};

/// What a value is wanted for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputKind {
    /// A loss, a metric or an accumulator: whole on every device.
    Scalar,
    /// An output of `predict`: wherever its rules put it.
    Output,
    /// The value of a leaf in the next step, placed as the leaf.
    Next(Id),
}

/// A value that the step must give.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepOutput {
    /// Its name.
    pub name: String,
    /// The value.
    pub id: Id,
    /// What it is wanted for.
    pub kind: OutputKind,
}

/// A whole step.
#[derive(Clone, Debug)]
pub struct StepGraph {
    /// Name of the model.
    pub model: String,
    /// `train`, `eval` or `predict`.
    pub program: &'static str,
    /// Arithmetic type.
    pub float: DType,
    /// Its values.
    pub graph: Graph,
    /// The model's inputs.
    pub inputs: Vec<InputDecl>,
    /// What it must give.
    pub outputs: Vec<StepOutput>,
}

impl StepGraph {
    /// The same step over another graph, whose values the outputs still have to be told.
    pub(crate) fn with_graph(&self, graph: Graph) -> StepGraph {
        StepGraph {
            model: self.model.clone(),
            program: self.program,
            float: self.float,
            graph,
            inputs: self.inputs.clone(),
            outputs: self.outputs.clone(),
        }
    }
}
