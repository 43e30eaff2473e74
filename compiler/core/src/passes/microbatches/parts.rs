//! The relation of each value of a step to the parts of its batch.

use meshwright_ops::{Crossing, Graph, Id, InputOpKind, Kind, Role};
use meshwright_plan::{Dim, IdVec, Monoid};
use meshwright_sorted::SortedSet;

/// The relation of a value to a part of the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BatchPart {
    /// The same in all parts.
    Same,
    /// That of the part's examples.
    Examples,
    /// A sum over the part's examples: that of the batch is the sum over all parts.
    Sum,
}

/// Why a step cannot be taken in parts.
pub(super) struct Mixed {
    /// The value at which examples of different parts would have to meet.
    pub(super) at: Id,
    /// In words.
    pub(super) why: String,
}

/// The relation of each value to the parts of a batch that `example` counts, if a step can be taken in parts.
pub(super) fn parts(g: &Graph, example: Dim) -> Result<IdVec<Id, BatchPart>, Mixed> {
    let all = known(g, example);
    for id in g.ids() {
        check(g, id, example, &all).map_err(|why| Mixed { at: id, why })?;
    }
    Ok(all)
}

/// The same, whether or not the step can be taken in parts.
pub(super) fn known(g: &Graph, example: Dim) -> IdVec<Id, BatchPart> {
    let mut all = g.nodes.table(BatchPart::Same);
    loop {
        let mut changed = false;
        for id in g.ids() {
            let now = part(g, id, example, &all);
            changed |= now != std::mem::replace(&mut all[id], now);
        }
        // A carry depends on what comes after it.
        if !changed || g.repeats.is_empty() {
            break;
        }
    }
    all
}

/// Whether a value in the body of a loop is a sum, which goes on as one. Around the loops it is known as that of the batch.
fn open(g: &Graph, x: Id, all: &IdVec<Id, BatchPart>) -> bool {
    all[x] == BatchPart::Sum && g.node(x).scope.is_some()
}

fn part(g: &Graph, id: Id, example: Dim, all: &IdVec<Id, BatchPart>) -> BatchPart {
    let reads = g.depends_on(id);
    if g.ty(id).has(example) {
        BatchPart::Examples
    } else if reads.iter().any(|x| all[*x] == BatchPart::Examples || open(g, *x, all)) {
        BatchPart::Sum
    } else {
        BatchPart::Same
    }
}

fn check(g: &Graph, id: Id, example: Dim, all: &IdVec<Id, BatchPart>) -> Result<(), String> {
    let node = g.node(id);
    let sums = sums_of(g, id, all);
    let boundary = g.boundary(id);
    let carried = boundary.is_some_and(|b| matches!(b.how, Crossing::Carry(_)));
    let examples = node.inputs.iter().any(|x| all[*x] == BatchPart::Examples);
    match all[id] {
        BatchPart::Same => Ok(()),
        BatchPart::Sum if carried => {
            Err("a loop carries on a sum over examples; carry one value for each example, and sum behind the loop".into())
        }
        _ if boundary.is_some() => Ok(()),
        BatchPart::Examples if !sums.is_empty() => {
            Err("each example reads a sum over examples that is made in the same loop".into())
        }
        BatchPart::Examples => match node.op.kind() {
            Kind::Input(InputOpKind::Input { .. }) | Kind::Rematerializable(_) => Ok(()),
            Kind::Input(_) => Err("what is kept from step to step has the dim of the examples".into()),
            _ => passes(g, id, example, |role| role == Role::Parallel),
        },
        BatchPart::Sum if examples && sums.is_empty() => {
            passes(g, id, example, |role| role == Role::Reduction(Monoid::Sum))
        }
        BatchPart::Sum => (!examples && adds_up(g, id, all)).then_some(()).ok_or_else(|| {
            format!("`{}` of a sum over examples is not the sum of what it is of each part", g.spelled(id))
        }),
    }
}

/// An op of sums of each part, summed over the parts, is the op of the sums over all parts.
pub(super) fn adds_up(g: &Graph, id: Id, all: &IdVec<Id, BatchPart>) -> bool {
    let node = g.node(id);
    let roles = node.op.roles(&g.input_types(id), &node.ty, &g.dims);
    roles.linear_in(&sums_of(g, id, all), node.inputs.len())
}

/// The operands that are such sums.
fn sums_of(g: &Graph, id: Id, all: &IdVec<Id, BatchPart>) -> SortedSet<usize> {
    let inputs = g.node(id).inputs.iter().enumerate();
    inputs.filter(|(_, x)| open(g, **x, all)).map(|(i, _)| i).collect()
}

/// Whether an op treats all examples alike, none by its position, with such a role of their dim.
fn passes(g: &Graph, id: Id, example: Dim, role: impl Fn(Role) -> bool) -> Result<(), String> {
    let node = g.node(id);
    let types = g.input_types(id);
    let roles = node.op.roles(&types, &node.ty, &g.dims);
    let elsewhere =
        |l: &&meshwright_ops::Loop| l.on.iter().flatten().any(|d| (*d == example) != (l.dim == example));
    let plain = roles.get(example).is_some_and(|l| role(l.role) && l.windows.iter().all(Option::is_none));
    let counted = types.iter().any(|t| t.range == Some(example));
    match plain && !counted && roles.loops.iter().find(elsewhere).is_none() {
        true => Ok(()),
        false => Err(format!("`{}` mixes the examples of a batch", g.spelled(id))),
    }
}
