//! Recomputation: what a layout names in `recompute` is computed again for the backward pass, instead of kept for it
//! (Chen et al. 2016, "Training deep nets with sublinear memory cost").
//!
//! Before: a step whose backward pass reads values of the forward pass as they are or, from the body of a loop, as slices of
//! stacks. After: for each of them that is under a path of `recompute`, a clone where the backward pass first reads it, and in
//! its turn of what it is made of, back to what no path matches. A clone draws what its original drew. What is cheaper to compute
//! than to keep (`cheap`) is treated alike, whatever the layout says.

mod cheap;
mod residual;

use crate::layout::{Layout, recomputed_names};
use crate::passes::linear::linearized;
use crate::passes::normalize::{dead_code, rebuild};
use crate::resolve::{PatternIndex, matches};
use crate::step::step_graph::StepGraph;
use meshwright_ops::{Boundary, Crossing, Expand, Graph, Id, Kind, Node, Origin, RepeatId, Source};
use meshwright_plan::Phase;
use meshwright_sorted::{SortedMap, SortedSet};
use residual::residual;
use std::borrow::Cow;
use std::sync::Arc;

/// The loops of the forward pass in which a value is, and for each the loop in which it is made again, outermost first.
type Loops = [(RepeatId, RepeatId)];

/// Computes again what the layout says, and what is cheap.
pub(crate) fn recompute(step: StepGraph, layout: &Layout) -> StepGraph {
    let cheap = cheap::recomputed(&step.graph);
    if layout.recompute.is_empty() && cheap.is_empty() {
        return step;
    }
    let named = named(&step.graph, &layout.recompute).into_keys().map(Arc::from).collect();
    let mut again =
        Again { named, cheap: SortedSet::new(), made: SortedMap::new(), crossed: SortedMap::new() };
    let out = rebuild(&step, |g, mut node, old| {
        if cheap.contains(&old) {
            let id = again.push(g, node);
            again.cheap.insert(id);
            return id;
        }
        if node.origin.phase == Phase::Backward {
            let read = residual(g, &node).filter(|(v, _)| again.wants(g, *v));
            if let Some((v, loops)) = read {
                return again.clone_of(g, v, &loops);
            }
            for x in &mut node.inputs {
                // Both are around all loops, or in the same one: that over the parts of a batch.
                if g.within(node.scope, g.node(*x).scope) && again.wants(g, *x) {
                    *x = again.clone_of(g, *x, &[]);
                }
            }
        }
        again.push(g, node)
    });
    linearized(dead_code(&out))
}

/// The names of values that a `recompute` names, and by which of its patterns: two of them at most.
pub(crate) fn named(g: &Graph, patterns: &[Arc<str>]) -> SortedMap<String, Vec<usize>> {
    let first: SortedMap<&str, usize> = patterns.iter().enumerate().rev().map(|(i, p)| (&**p, i)).collect();
    let index = PatternIndex::new(first.into_iter().map(|(p, i)| (i, p)));
    let names: SortedSet<Cow<'_, str>> =
        g.ids().filter_map(|id| recomputed_names(g.node(id))).flatten().collect();
    let by = |name: &str| -> Vec<usize> {
        index.candidates(name).into_iter().filter(|i| matches(&patterns[*i], name)).take(2).collect()
    };
    let all = names.into_iter().map(|name| (by(&name), name.into_owned()));
    all.filter(|(by, _)| !by.is_empty()).map(|(by, name)| (name, by)).collect()
}

struct Again {
    /// The names of values that the layout names.
    named: SortedSet<Arc<str>>,
    /// What is cheap.
    cheap: SortedSet<Id>,
    /// Clones, and forward values as a backward loop reads them, by the innermost backward loop.
    made: SortedMap<(Option<RepeatId>, Id), Id>,
    /// What crosses boundaries already.
    crossed: SortedMap<(RepeatId, Crossing, Id), Id>,
}

impl Again {
    /// Adds a value. Of one that is taken out of a stack as another is already gives that: what the forward pass has kept is
    /// there in any case.
    fn push(&mut self, g: &mut Graph, node: Node) -> Id {
        let crosses =
            if let Kind::Boundary(b) = node.op.kind() { Some((b.of, b.how, node.inputs[0])) } else { None };
        let stacked =
            |x: Id| matches!(g.node(x).op.kind(), Kind::Boundary(Boundary { how: Crossing::Stack, .. }));
        let known = crosses.filter(|c| stacked(c.2)).and_then(|c| self.crossed.get(&c)).copied();
        if let Some(known) = known.filter(|known| g.node(*known).ty == node.ty) {
            return known;
        }
        let id = g.push(node);
        self.crossed.extend(crosses.map(|c| (c, id)));
        id
    }

    fn cross(&mut self, g: &mut Graph, of: RepeatId, how: Crossing, x: Id, origin: Origin) -> Id {
        if let Some(known) = self.crossed.get(&(of, how, x)) {
            return *known;
        }
        g.cursor = origin;
        let id = g.cross(of, how, x);
        self.crossed.insert((of, how, x), id);
        id
    }

    /// Whether a value is one that is to be computed again.
    fn wants(&self, g: &Graph, v: Id) -> bool {
        if self.cheap.contains(&v) {
            return true;
        }
        let node = g.node(v);
        let named = |names: [Cow<'_, str>; 2]| names.iter().any(|n| self.named.contains(&**n));
        node.origin.phase == Phase::Forward && recomputed_names(node).is_some_and(named)
    }

    /// A value computed again.
    fn clone_of(&mut self, g: &mut Graph, v: Id, loops: &Loops) -> Id {
        let scope = backward_scope(g, v, loops);
        if let Some(known) = self.made.get(&(scope, v)) {
            return *known;
        }
        let Node { op, inputs, ty, origin, .. } = g.node(v).clone();
        let inputs = inputs.into_iter().map(|x| self.bring(g, x, loops)).collect();
        let origin = Origin { phase: Phase::Backward, ..origin };
        let id = self.push(g, Node { op, inputs, ty, origin, scope });
        self.made.insert((scope, v), id);
        id
    }

    /// An operand of a clone: computed again too, or read as the backward pass reads values of the forward pass.
    fn bring(&mut self, g: &mut Graph, x: Id, loops: &Loops) -> Id {
        let node = g.node(x).clone();
        let free = match node.op.kind() {
            Kind::Rematerializable(source) => source != Source::Random,
            Kind::Rename { .. } => true,
            _ => node.op.as_any().is::<Expand>(),
        };
        let inner = node.scope.and_then(|f| loops.iter().find(|l| l.0 == f));
        if self.wants(g, x) || (free && inner.is_some()) {
            return self.clone_of(g, x, loops);
        }
        let Some((forward, back)) = inner.copied() else { return x };
        if let Some(known) = self.made.get(&(Some(back), x)) {
            return *known;
        }
        let slice = matches!(node.op.kind(), Kind::Boundary(Boundary { how: Crossing::Slice, .. }));
        let all = match slice {
            true => node.inputs[0],
            false => self.cross(g, forward, Crossing::Stack, x, node.origin.clone()),
        };
        let all = self.bring(g, all, loops);
        let id = self.cross(g, back, Crossing::Slice, all, Origin { phase: Phase::Backward, ..node.origin });
        self.made.insert((Some(back), x), id);
        id
    }
}

/// The scope in which a value is made again: its own, unless it is in the body of a loop of the forward pass.
fn backward_scope(g: &Graph, v: Id, loops: &Loops) -> Option<RepeatId> {
    let scope = g.node(v).scope;
    loops.iter().find(|l| Some(l.0) == scope).map_or(scope, |l| Some(l.1))
}
