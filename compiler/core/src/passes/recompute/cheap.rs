//! Values that are recomputed without a rule, since that moves and keeps fewer bytes: element-wise values of the
//! forward pass that follow from others that the backward pass needs anyway.
//!
//! The factors of a `gelu`, written as equations, are an example: all of them follow from its operand. Reading that once more, in
//! the kernel that needs a factor, costs less than writing the factor, keeping it and reading it. What both passes read in
//! another way than element by element, as a factor of a product, must be written in each, so it is kept; and so is what may be a
//! sum over devices that is not finished yet, so that no collective is repeated. (The default partitioner of PyTorch's
//! `torch.compile` draws similar lines, by a minimum cut, and also trades one kept value for another.)

use super::residual::residual;
use crate::step::factor_scales::is_scale;
use meshwright_ops::{Class, Expand, Graph, Id, Kind, Role, Source};
use meshwright_plan::{IdVec, Phase};
use meshwright_sorted::{SortedMap, SortedSet};

/// Most operations between a value and what it is made of: their results are all there at once, if no fused map has all of them.
const MOST_OPERATIONS: usize = 16;

/// Which values of the forward pass are computed again.
pub(super) fn recomputed(g: &Graph) -> SortedSet<Id> {
    let facts = Facts::of(g);
    let mut kept: SortedSet<Id> = facts.readers.keys().copied().collect();
    let (mut again, mut needed) = (SortedSet::new(), SortedSet::new());
    // In their order: what an earlier one is made of stays.
    for (v, readers) in &facts.readers {
        let written = readers.iter().any(|r| !g.is_elementwise(*r)) && facts.written[*v];
        if written || needed.contains(v) || !facts.is_candidate(*v) {
            continue;
        }
        kept.remove(v);
        let mut way = Way { read: SortedSet::new(), made: SortedSet::from([*v]) };
        let bytes = |of: &Id| g.ty(*of).elements(&g.dims) * g.ty(*of).dtype.bytes();
        // Half as much again: small values beside a large one are no reason to keep its results.
        if facts.follows(*v, &kept, &mut way) && 2 * way.read.iter().map(bytes).sum::<usize>() <= 3 * bytes(v)
        {
            again.append(&mut way.made);
            needed.append(&mut way.read);
        } else {
            kept.insert(*v);
        }
    }
    again
}

/// Computation of a value from others.
struct Way {
    /// Kept values that it is made of.
    read: SortedSet<Id>,
    /// It, and what is made on the way.
    made: SortedSet<Id>,
}

struct Facts<'a> {
    g: &'a Graph,
    /// Values of the forward pass that the backward pass reads, and what reads them there.
    readers: SortedMap<Id, Vec<Id>>,
    /// True for values that may be partial sums.
    partial: IdVec<Id, bool>,
    /// Whether the forward pass reads a value in another way than element by element.
    written: IdVec<Id, bool>,
}

impl Facts<'_> {
    fn of(g: &Graph) -> Facts<'_> {
        let (mut readers, mut slices) = (SortedMap::<Id, Vec<Id>>::new(), SortedMap::new());
        for id in g.ids().filter(|id| g.node(*id).origin.phase == Phase::Backward) {
            let node = g.node(id);
            if let Some((v, _)) = residual(g, node) {
                slices.insert(id, v);
                continue;
            }
            for x in &node.inputs {
                let v = slices.get(x).copied().unwrap_or(*x);
                if g.node(v).origin.phase == Phase::Forward {
                    readers.entry(v).or_default().push(id);
                }
            }
        }
        let mut written = g.nodes.table(false);
        let reads_whole = |id: &Id| {
            let forward = g.node(*id).origin.phase == Phase::Forward;
            // Stacks for the backward pass alone are the candidates.
            forward && !g.is_elementwise(*id) && g.boundary(*id).is_none()
        };
        for id in g.ids().filter(reads_whole) {
            g.node(id).inputs.iter().for_each(|x| written[*x] = true);
        }
        Facts { g, readers, partial: partial(g), written }
    }

    /// Whether a value is made element by element of finished ones, in the forward pass.
    fn is_candidate(&self, v: Id) -> bool {
        let node = self.g.node(v);
        node.origin.phase == Phase::Forward
            && node.origin.class == Class::Value
            && matches!(node.op.kind(), Kind::Compute(_) | Kind::Add)
            && !node.inputs.is_empty()
            && self.g.is_elementwise(v)
            && !is_scale(node)
            && !node.inputs.iter().any(|x| self.partial[*x])
    }

    /// Whether a value can be made of `kept` ones, and of what is there anyway, in few operations.
    fn follows(&self, v: Id, kept: &SortedSet<Id>, way: &mut Way) -> bool {
        let scope = self.g.node(v).scope;
        self.g.node(v).inputs.iter().all(|x| {
            if kept.contains(x) {
                way.read.insert(*x);
                return true;
            }
            let node = self.g.node(*x);
            match node.op.kind() {
                Kind::Rematerializable(source) => source != Source::Random,
                // Of a parameter that the backward pass reads too: another may be split, and then gathered for this alone.
                Kind::Boundary(_) => {
                    let of = node.inputs[0];
                    self.g.node(of).origin.class == Class::Param && kept.contains(&of)
                }
                Kind::Input(_) => false,
                _ if way.made.contains(x) => true,
                _ if way.made.len() == MOST_OPERATIONS => false,
                Kind::Rename { .. } => way.made.insert(*x) && self.follows(*x, kept, way),
                _ if node.op.as_any().is::<Expand>() => way.made.insert(*x) && self.follows(*x, kept, way),
                _ if node.scope == scope && self.is_candidate(*x) => {
                    way.made.insert(*x) && self.follows(*x, kept, way)
                }
                _ => false,
            }
        })
    }
}

/// Whether each value may be a partial sum. A value with a user that needs it reduced is reduced where it is computed.
fn partial(g: &Graph) -> IdVec<Id, bool> {
    let (mut partial, mut finished) = (g.nodes.table(false), g.nodes.table(false));
    let mut sums: IdVec<Id, bool> = g.nodes.table(false);
    let mut all: Vec<(Id, Vec<bool>)> = vec![];
    for id in g.ids() {
        let node = g.node(id);
        let roles = node.op.roles(&g.input_types(id), &node.ty, &g.dims);
        let n = node.inputs.len();
        // A value may be an operand several times, and is then all of these at once.
        let mut slots = SortedMap::<Id, SortedSet<usize>>::new();
        for (slot, x) in node.inputs.iter().enumerate() {
            slots.entry(*x).or_default().insert(slot);
        }
        let jointly = roles.linear_in(&(0..n).collect(), n);
        let linear = |x: &Id| jointly || roles.linear_in(&slots[x], n);
        let linear: Vec<bool> = node.inputs.iter().map(linear).collect();
        node.inputs.iter().zip(&linear).for_each(|(x, linear)| finished[*x] |= !linear);
        sums[id] = roles.loops.iter().any(|l| matches!(l.role, Role::Reduction(_)));
        all.push((id, linear));
    }
    for (id, linear) in all {
        let passed = g.node(id).inputs.iter().zip(linear).any(|(x, linear)| partial[*x] && linear);
        partial[id] = !finished[id] && (sums[id] || passed);
    }
    partial
}
