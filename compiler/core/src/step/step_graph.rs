//! The graph of one whole step with what it must give: the input of the partitioner.

use meshwright_ops::{Graph, Id, InputOpKind, Kind};
use meshwright_plan::{Arithmetic, InputDecl};
use meshwright_sorted::SortedSet;

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
    pub float: Arithmetic,
    /// In `fp8`: the number of steps whose maxima scale factors; `None` where factors are scaled by their own maxima.
    pub scale_history: Option<usize>,
    /// Its values.
    pub graph: Graph,
    /// The model's inputs.
    pub inputs: Vec<InputDecl>,
    /// What it must give.
    pub outputs: Vec<StepOutput>,
}

impl StepGraph {
    /// The names of the inputs that its outputs read.
    pub fn inputs_read(&self) -> SortedSet<&str> {
        let mut seen = self.graph.nodes.table(false);
        let mut todo: Vec<Id> = self.outputs.iter().map(|o| o.id).collect();
        let mut names = SortedSet::new();
        while let Some(id) = todo.pop() {
            if std::mem::replace(&mut seen[id], true) {
                continue;
            }
            let node = self.graph.node(id);
            if let Kind::Input(InputOpKind::Input { name }) = node.op.kind() {
                names.extend(self.inputs.iter().map(|i| i.name.as_str()).find(|n| **n == name));
            }
            todo.extend(self.graph.depends_on(id));
        }
        names
    }

    /// The same step over another graph, whose values the outputs still have to be told.
    pub(crate) fn with_graph(&self, mut graph: Graph) -> StepGraph {
        graph.notes.clone_from(&self.graph.notes);
        graph.microbatches = graph.microbatches.or(self.graph.microbatches);
        StepGraph {
            model: self.model.clone(),
            program: self.program,
            float: self.float,
            scale_history: self.scale_history,
            graph,
            inputs: self.inputs.clone(),
            outputs: self.outputs.clone(),
        }
    }
}
