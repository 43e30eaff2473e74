//! What the backward pass reads of the body of a loop.

use meshwright_ops::{Boundary, Crossing, Graph, Id, Kind, Node, RepeatId};
use meshwright_plan::Dim;

/// The value of a forward body that a slice in a backward body takes out of a stack, and these loops.
pub(super) fn residual(g: &Graph, node: &Node) -> Option<(Id, Vec<(RepeatId, RepeatId)>)> {
    let crossing = |n: &Node| if let Kind::Boundary(b) = n.op.kind() { Some(b) } else { None };
    let (mut backward, mut x) = (Vec::new(), None);
    let mut at = node;
    while let Some(Boundary { of, how: Crossing::Slice, .. }) = crossing(at) {
        backward.push(of);
        x = Some(at.inputs[0]);
        at = g.node(at.inputs[0]);
    }
    let mut v = x?;
    let mut loops = Vec::new();
    while let Some(back) = backward.pop() {
        let Some(Boundary { of, how: Crossing::Stack, .. }) = crossing(g.node(v)) else { return None };
        loops.push((of, back));
        v = g.node(v).inputs[0];
    }
    // What is drawn depends on all loops around.
    let alike = loops.iter().all(|(f, b)| around(g, *f) == around(g, *b));
    (alike && g.node(v).scope == loops.last().map(|l| l.0)).then_some((v, loops))
}

/// The dims of the loops around and at a loop, innermost first.
fn around(g: &Graph, of: RepeatId) -> Vec<Dim> {
    let mut all = Vec::new();
    let mut scope = Some(of);
    while let Some(of) = scope {
        all.push(g.repeats[of].dim);
        scope = g.repeats[of].parent;
    }
    all
}
