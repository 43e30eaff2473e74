//! What the walk has placed so far: where each value stands, every copy of it, and the instructions that make them.

use super::frames::Frames;
use super::roots::Roots;
use super::spmd::{CopyId, PlacedCopy};
use super::step_facts::Facts;
use litemap::LiteMap;
use meshwright_ops::{Graph, Id};
use meshwright_plan::{Axis, Dim, IdVec, Phase, Placement};
use meshwright_sorted::{SortedMap, SortedSet};
use std::sync::Arc;

/// A copy that has been made of a value.
#[derive(Clone)]
struct Made {
    copy: CopyId,
    /// The part of the step that made it; `None` where it is bound before the step.
    phase: Option<Phase>,
    /// Whether a gather made it.
    gathered: bool,
}

/// Why a dim of a value is split over an axis, the weakest reason first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SplitBy {
    /// A rule of this number says how parameters, gradients or moments are stored, and the value is a function of such.
    Stored(usize),
    /// A sum over the axis was finished by splitting a dim of which no rule speaks.
    Finished,
    /// A rule of this number speaks of the value, or of one that it follows.
    Ruled(usize),
}

/// State of the walk.
pub(super) struct State {
    /// The placement that an op yields by itself.
    pub(super) natural: IdVec<Id, Option<Placement>>,
    /// The placement after it has been decided which partial sums are reduced.
    pub(super) settled: IdVec<Id, Option<Placement>>,
    /// Over which dims each axis of a partial value was summed.
    pub(super) summed: SortedMap<(Id, Axis), Vec<Dim>>,
    /// Which dim of each value an axis splits, and why.
    pub(super) split_by: SortedMap<(Id, Axis), (Dim, SplitBy)>,
    /// Values that are sums over an axis which have been finished, or are made of such element by element.
    pub(super) sums: SortedSet<(Id, Axis)>,
    /// The names of those of the forward pass.
    pub(super) sum_names: SortedSet<(Arc<str>, Axis)>,
    made: IdVec<Id, LiteMap<Placement, Made>>,
    pub(super) copies: IdVec<CopyId, PlacedCopy>,
    /// Which stage alone has a copy.
    pub(super) roots: Roots,
    pub(super) frames: Frames,
}

impl State {
    pub(super) fn new(graph: &Graph) -> Self {
        State {
            natural: graph.nodes.table(None),
            settled: graph.nodes.table(None),
            summed: SortedMap::new(),
            split_by: SortedMap::new(),
            sums: SortedSet::new(),
            sum_names: SortedSet::new(),
            made: graph.nodes.table(LiteMap::new()),
            copies: IdVec::new(),
            roots: Roots::default(),
            frames: Frames::new(),
        }
    }

    /// The placement of a value as it is now.
    pub(super) fn current(&self, id: Id) -> Placement {
        self.settled[id].as_ref().or(self.natural[id].as_ref()).cloned().unwrap_or_default()
    }

    /// Whether a value has been placed and is partial over an axis.
    pub(super) fn is_partial(&self, id: Id, axis: Axis) -> bool {
        self.settled[id].as_ref().or(self.natural[id].as_ref()).is_some_and(|p| p.partial.contains_key(&axis))
    }

    /// Places a value where it stays.
    pub(super) fn stands(&mut self, id: Id, p: Placement) {
        self.natural[id] = Some(p.clone());
        self.settled[id] = Some(p);
    }

    /// Adds a copy of a value.
    pub(super) fn copy(&mut self, value: Id, p: Placement, phase: Option<Phase>, gathered: bool) -> CopyId {
        let copy = self.copies.push(PlacedCopy { value, placement: p.clone(), in_bf16: false });
        self.made[value].insert(p, Made { copy, phase, gathered });
        copy
    }

    /// The copy of a value in a placement that is known to be there.
    pub(super) fn have(&self, facts: &Facts, id: Id, p: &Placement) -> CopyId {
        match self.made[id].get(p) {
            Some(m) => m.copy,
            None => panic!("internal error: {} is not there as {p:?}", facts.graph().describe(id)),
        }
    }

    /// A copy that may be used in a part of the step: gathered parameters are dropped at its end, unless they are kept.
    pub(super) fn usable(&self, facts: &Facts, id: Id, p: &Placement, phase: Phase) -> Option<CopyId> {
        let m = self.made[id].get(p)?;
        let old = m.gathered
            && m.phase.is_some_and(|made| made != phase)
            && facts.param_like(id)
            && !facts.kept(id);
        (!old).then_some(m.copy)
    }

    /// The placements of all copies of a value.
    pub(super) fn placements(&self, id: Id) -> impl Iterator<Item = &Placement> {
        self.made[id].keys()
    }

    /// Copies from which one placed as `dst` may be made in a part of the step: an axis over which a value is reduced is
    /// never partial again, and what a window has cut serves that window alone.
    pub(super) fn sources(&self, facts: &Facts, id: Id, dst: &Placement, phase: Phase) -> Vec<Placement> {
        let all = self.made[id].keys();
        all.filter(|p| dst.partial.keys().all(|a| p.partial.contains_key(a)))
            .filter(|p| p.windows.iter().all(|(d, w)| dst.windows.get(d) == Some(w)))
            .filter(|p| self.usable(facts, id, p, phase).is_some())
            .cloned()
            .collect()
    }
}
