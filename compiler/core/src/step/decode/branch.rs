//! Sequences that go on from others: of what is kept each takes what its parent has.

use super::Decoding;
use crate::step::step_graph::{OutputKind, StepGraph, StepOutput};
use meshwright_ops::{Graph, Id, InputOp, InputOpKind, Kind, Rename, Type};
use meshwright_plan::{DType, Dim, InputDecl};
use meshwright_sorted::SortedMap;

/// A step that gives each sequence what another one has kept.
#[derive(Clone, Debug)]
pub struct Branching {
    /// The step. It gives nothing but next values of states.
    pub step: StepGraph,
    /// The input that says for each sequence the one that it goes on from.
    pub parent: String,
    /// The dim that counts those that are gone on from, and the one that counts them in the states. Whatever rules say of
    /// sequences they must say of the latter, so that states are placed as in other steps.
    pub before: (Dim, Dim),
}

/// The step by which sequences of `to` go on from those of `from`: of the same decoding, or of another of the same model with as
/// many positions in its caches, whose states have other names. `None` where nothing counts sequences.
pub fn branch(from: &Decoding, to: &Decoding) -> Option<Branching> {
    let (row_from, row) = (from.row?, to.row?);
    let (given, wanted) = (leaves(from), leaves(to));
    let mut dims = to.step.graph.dims.clone();
    let size = from.step.graph.dims.size(row_from);
    let name = |what: &str| format!("{}*{what}", to.step.graph.dims.name(row));
    let before = dims.make(&name("before"), size, Some(row));
    let own = from.caches == to.caches;
    let held = if own { row } else { dims.make(&name("held"), size, Some(row)) };
    let mut g = Graph::new(dims);
    let parent = "parent".to_string();
    let ty = Type { dtype: DType::I32, dims: vec![row], range: Some(before) };
    let at = g.op(InputOp { input: InputOpKind::Input { name: parent.clone() }, ty }, &[]);
    let mut outputs = Vec::new();
    for (path, path_from) in to.caches.iter().zip(&from.caches) {
        let ((_, old), (to_graph, new)) = (given.get(path_from)?, wanted.get(path)?);
        let node = to_graph.node(*new).clone();
        let Kind::Input(InputOpKind::State { init, .. }) = node.op.kind() else { return None };
        g.cursor = from.step.graph.node(*old).origin.clone();
        // Dims of one program are the same in all its steps.
        let mut ty = node.ty.clone();
        ty.dims.iter_mut().filter(|d| **d == row).for_each(|d| *d = held);
        let leaf = InputOpKind::State { path: path_from.clone(), init };
        let kept = g.op(InputOp { input: leaf.clone(), ty }, &[]);
        let target = if own {
            kept
        } else {
            g.cursor = node.origin.clone();
            g.push(node)
        };
        let others = g.op(Rename { from: held, to: before }, &[kept]);
        let taken = g.at(others, before, at).ok()?;
        outputs.push(StepOutput { name: path.clone(), id: taken, kind: OutputKind::Next(target) });
    }
    let inputs =
        vec![InputDecl { name: parent.clone(), dims: vec![row], dtype: DType::I32, range: Some(before) }];
    let step = StepGraph { inputs, outputs, ..to.step.with_graph(g) };
    Some(Branching { step, parent, before: (before, held) })
}

/// The states of a decoding, by path.
fn leaves(of: &Decoding) -> SortedMap<String, (&Graph, Id)> {
    let g = &of.step.graph;
    let leaf = |id: Id| match g.node(id).op.kind() {
        Kind::Input(InputOpKind::State { path, .. }) => Some((path, (g, id))),
        _ => None,
    };
    g.ids().filter_map(leaf).collect()
}
