//! Finds equations that an op of its own computes in less time or memory, and puts the op in their place: attention, products
//! with one-hots, which are indexing, and roots of sums of squares.
//!
//! Before: a graph as its program says it, before differentiation, so that the op's own gradient is taken. After: the same
//! graph, in which the last value of each pattern is made by the op; ids stay what they are, and what the op replaces is dead
//! unless something else reads it. What was found, and what was nearly found, is noted in [`Graph::notes`].

mod norm_roots;
mod one_hots;

use crate::program::Program;
use crate::step::autodiff::needs;
use crate::step::step_graph::StepGraph;
use meshwright_ops::{Graph, GraphNote, Id, Recognizer};

/// Finds patterns in what a training step differentiates.
pub(crate) fn in_program(g: &mut Graph, program: &Program, roots: &[Id]) {
    one_hots::index(g);
    norm_roots::replace(g);
    let trained = program.params.iter().filter(|p| !p.frozen).map(|p| p.id).collect();
    note(g, roots, needs(g, &trained));
}

/// Finds patterns in a step without gradients.
pub(crate) fn in_step(step: &mut StepGraph) {
    one_hots::index(&mut step.graph);
    norm_roots::replace(&mut step.graph);
    let roots: Vec<Id> = step.outputs.iter().map(|o| o.id).collect();
    let needs = step.graph.nodes.table(false);
    note(&mut step.graph, &roots, needs);
}

fn note(g: &mut Graph, roots: &[Id], needs: meshwright_plan::IdVec<Id, bool>) {
    for (id, found) in Recognizer::new(g, roots, needs).run(g) {
        let because = found.err().map(|miss| miss.0);
        g.notes.push(GraphNote { value: g.path(id).into(), span: g.node(id).origin.span, because });
    }
}
