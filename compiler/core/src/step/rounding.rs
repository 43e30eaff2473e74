//! What passes share that round values: the precision in which a node reads, the consumers of each value, and rounded copies.

use meshwright_ops::{Graph, Id, Op, Origin, Precision};
use meshwright_plan::{IdVec, Phase};

/// Precision of an op, with the demands of its place in the step.
pub(super) fn precision(g: &Graph, id: Id) -> Precision {
    let node = g.node(id);
    if node.origin.full || node.origin.phase == Phase::Update {
        return Precision::Full;
    }
    node.op.precision(&g.input_types(id), &node.ty)
}

/// Who reads each value.
pub(super) fn readers(g: &Graph) -> IdVec<Id, Vec<Id>> {
    let mut readers: IdVec<Id, Vec<Id>> = g.nodes.table(Vec::new());
    for id in g.ids() {
        for x in &g.node(id).inputs {
            readers[*x].push(id);
        }
    }
    readers
}

/// A value rounded, but stored as it is: once for all who read it.
pub(super) fn beside(g: &mut Graph, x: Id, rounding: impl Op + 'static) -> Id {
    let (node, stored) = (g.node(x), g.ty(x).dtype);
    let name = format!("{}({})", rounding.name(), g.path(x)).into();
    let (cursor, scope) = (Origin { name, ..node.origin.clone() }, node.scope);
    let before = (std::mem::replace(&mut g.cursor, cursor), std::mem::replace(&mut g.scope, scope));
    let rounded = g.op(rounding, &[x]);
    g.nodes[rounded].ty.dtype = stored;
    (g.cursor, g.scope) = before;
    rounded
}
