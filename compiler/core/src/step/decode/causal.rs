//! That what a model keeps of its positions is masked for those that come later.

use super::rebuild::Refusal;
use meshwright_ops::{F64Tensor, Graph, Id, Kind, Source};
use meshwright_plan::{Dim, IdVec};
use meshwright_sorted::{SortedMap, SortedSet};

/// For every dim that `seq` is renamed to, some comparison of positions must be false for all later ones: the causal mask.
pub(super) fn only_the_past(g: &Graph, seq: Dim) -> Result<(), Refusal> {
    let along = along(g);
    let mut masked: SortedSet<Dim> = SortedSet::new();
    for id in g.ids().filter(|id| matches!(g.node(*id).op.name(), "<" | "<=" | ">" | ">=")) {
        let [Some(a), Some(b)] = [0, 1].map(|i| along[g.node(id).inputs[i]].clone()) else { continue };
        for (key, other) in [(a.clone(), b.clone()), (b, a)] {
            if let ([key], [other]) = (&key[..], &other[..])
                && *other == seq
                && g.dims.size(*key) == g.dims.size(seq)
                && hides_later(g, id, *key, seq)
            {
                masked.insert(*key);
            }
        }
    }
    let renamed = |id: &Id| matches!(g.node(*id).op.kind(), Kind::Rename { from, to } if from == seq && !masked.contains(&to));
    let Some(id) = g.ids().find(renamed) else { return Ok(()) };
    let Kind::Rename { to, .. } = g.node(id).op.kind() else { return Ok(()) };
    let (seq, key) = (g.dims.name(seq), g.dims.name(to));
    Err((
        Some(id),
        format!(
            "all positions are seen along `{key}`: no comparison of `index({key})` and `index({seq})` hides the later ones"
        ),
    ))
}

/// The dims whose positions a value is a function of; `None` where it depends on anything else.
fn along(g: &Graph) -> IdVec<Id, Option<Vec<Dim>>> {
    let mut along: IdVec<Id, Option<Vec<Dim>>> = g.nodes.table(None);
    for id in g.ids() {
        let node = g.node(id);
        along[id] = match node.op.kind() {
            Kind::Rematerializable(Source::Constant | Source::Position) => Some(node.ty.dims.clone()),
            Kind::Compute(_) | Kind::Add if !node.inputs.is_empty() => {
                let all = node.inputs.iter().map(|x| along[*x].clone()).collect::<Option<Vec<_>>>();
                all.map(|_| node.ty.dims.clone())
            }
            _ => None,
        };
    }
    along
}

/// Whether a comparison of a function of the positions along `key` with one of those along `seq` is false wherever the former
/// is later.
fn hides_later(g: &Graph, comparison: Id, key: Dim, seq: Dim) -> bool {
    let node = g.node(comparison);
    let x: Vec<F64Tensor> = node.inputs.iter().map(|x| number(g, *x)).collect();
    let [a, b] = &x[..] else { return false };
    let n = g.dims.size(seq);
    let of = |t: &F64Tensor, i: usize, k: usize| t.data[if t.dims == [key] { k } else { i }];
    (0..n).all(|i| (i + 1..n).all(|k| node.op.element(&[of(a, i, k), of(b, i, k)], &node.ty) == Some(0.0)))
}

/// A value that is a function of positions.
fn number(g: &Graph, id: Id) -> F64Tensor {
    let mut values: SortedMap<Id, F64Tensor> = SortedMap::new();
    let mut needed = SortedSet::from([id]);
    let mut todo = vec![id];
    while let Some(id) = todo.pop() {
        todo.extend(g.node(id).inputs.iter().filter(|x| needed.insert(**x)));
    }
    // Operands come before their users.
    for id in needed {
        let node = g.node(id);
        let x: Vec<&F64Tensor> = node.inputs.iter().filter_map(|x| values.get(x)).collect();
        let value = node.op.oracle(&x, &node.ty, &g.dims);
        values.insert(id, value);
    }
    values.remove(&id).unwrap_or_else(|| panic!("internal error: a mask that is not computed"))
}
