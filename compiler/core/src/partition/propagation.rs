//! The walk over a step graph that decides for every op where its loops, operands and result are.

use super::decision::{Decision, Loops, Reason};
use super::reduce_grads::{keeps_storage, no_choice, no_effect, sums};
use super::reshard::{Reshard, ReshardPaths};
use super::spmd::{Cause, CopyId, Instr, Spmd};
use super::stages::{pipeline_of, refused_stages, split_twice_by};
use super::state::State;
use super::step_facts::Facts;
use super::working_copies::{gathered, idle};
use crate::layout::Layout;
use crate::passes::normalize::rebuild;
use crate::step::step_graph::{OutputKind, StepGraph};
use meshwright_diag::{Diagnostic, Outcome, has_errors};
use meshwright_ops::{Add, Id, InputOpKind, Kind, Node, Role};
use meshwright_plan::{Axis, Collective, Dim, Monoid, PartialAxes, Phase, Placement};
use meshwright_sorted::{SortedMap, SortedSet};
use std::sync::Arc;

/// For adds, the operands (by position) of which some are better added first, among themselves.
type Groups = SortedMap<Id, Vec<Vec<usize>>>;

/// One walk.
pub(super) struct Walk<'a> {
    pub(super) facts: &'a Facts<'a>,
    pub(super) state: State,
    pub(super) decisions: SortedMap<Id, Decision>,
    pub(super) diagnostics: Vec<Diagnostic>,
    pub(super) told: SortedSet<(Dim, Axis)>,
    /// Ops that work on gathered operands for a shard of their result.
    pub(super) scattered: SortedSet<Id>,
    paths: ReshardPaths,
    groups: Groups,
}

/// Partitions a step. `layout` must have been checked for conflicts.
pub fn partition(step: &StepGraph, layout: &Layout) -> Outcome<Spmd> {
    let layout = layout.effective();
    let mut step = step.clone();
    // Which operands of an add are partial alike shows on a walk. Then the graph is grouped, and walked again.
    loop {
        let facts = Facts::new(&step, &layout);
        let mut walk = Walk::new(&facts);
        for id in step.graph.ids() {
            walk.enter(step.graph.node(id).scope);
            walk.place(id);
        }
        walk.enter(None);
        if walk.groups.is_empty() {
            let outputs: Vec<CopyId> = (0..step.outputs.len()).map(|i| walk.deliver(i)).collect();
            let Walk { state: State { copies, frames, .. }, decisions, mut diagnostics, .. } = walk;
            if has_errors(&diagnostics) {
                return (None, diagnostics);
            }
            let mesh = layout.mesh.clone();
            let (instrs, loops) = frames.finish();
            if step.program == "train" {
                diagnostics.extend(idle(&layout, &gathered(&facts, &instrs, &copies)));
            }
            let pipeline = pipeline_of(&layout, &loops);
            let spmd = Spmd { step, mesh, copies, instrs, loops, outputs, decisions, pipeline };
            let unused = layout.reduce_grads.and_then(|asked| no_effect(&spmd, asked));
            diagnostics.extend(unused);
            diagnostics.extend(no_choice(&spmd.step, &layout));
            diagnostics.extend(refused_stages(&spmd, &layout));
            if has_errors(&diagnostics) {
                return (None, diagnostics);
            }
            return (Some(spmd), diagnostics);
        }
        let groups = walk.groups;
        step = grouped(&step, &groups);
    }
}

/// The graph with the groups of operands added first, each by an add of its own.
fn grouped(step: &StepGraph, groups: &Groups) -> StepGraph {
    rebuild(step, |g, mut node, id| {
        let Some(parts) = groups.get(&id) else { return g.push(node) };
        let operands = std::mem::take(&mut node.inputs);
        let alone = |slot: &usize| !parts.iter().flatten().any(|s| s == slot);
        node.inputs = (0..operands.len()).filter(alone).map(|s| operands[s]).collect();
        for slots in parts {
            let inputs: Vec<Id> = slots.iter().map(|s| operands[*s]).collect();
            let (ty, origin, scope) = (g.ty(inputs[0]).clone(), node.origin.clone(), node.scope);
            node.inputs.push(g.push(Node { op: Arc::new(Add), inputs, ty, origin, scope }));
        }
        g.push(node)
    })
}

impl<'a> Walk<'a> {
    fn new(facts: &'a Facts<'a>) -> Self {
        Walk {
            facts,
            state: State::new(facts.graph()),
            decisions: SortedMap::new(),
            diagnostics: Vec::new(),
            told: SortedSet::new(),
            scattered: SortedSet::new(),
            paths: ReshardPaths::default(),
            groups: Groups::new(),
        }
    }

    /// The cheapest reshard path of a value and its cost; `None` where there is none.
    fn path(&mut self, id: Id, src: &Placement, dst: &Placement) -> Option<(u64, Vec<Reshard>)> {
        let g = self.facts.graph();
        self.paths.cheapest(g.ty(id), &g.dims, self.facts.mesh, src, dst)
    }

    /// Cost of the cheapest reshard path of a value between placements without windows, where there always is one.
    pub(super) fn cost(&mut self, id: Id, src: &Placement, dst: &Placement) -> u64 {
        self.path(id, src, dst).map_or(u64::MAX, |found| found.0)
    }

    /// Keeps a reason.
    pub(super) fn note(&mut self, id: Id, reason: Reason) {
        self.decisions.entry(id).or_default().reasons.push(reason);
    }

    // ------------------------------------------------------------------------------------------- placing an op

    fn place(&mut self, id: Id) {
        let facts = self.facts;
        match facts.kind(id) {
            Kind::Rematerializable(_) | Kind::Input(InputOpKind::Input { .. } | InputOpKind::StepNumber) => {
                self.note_target(id);
                self.note(id, Reason::Rematerializable);
                self.state.stands(id, facts.target(id));
                return;
            }
            Kind::Input(_) => {
                let target = facts.target(id);
                self.note_target(id);
                self.note_splits(id, &target);
                self.state.stands(id, target.clone());
                let out = self.state.copy(id, target, None, false);
                self.state.frames.push(self.facts.graph(), id, Instr::Input { out });
                return;
            }
            Kind::Add => self.group(id),
            // It was placed when its loop ended.
            Kind::Boundary(b) if b.how.leaves() => return,
            _ => {}
        }
        for x in &facts.node(id).inputs {
            self.settle(*x);
        }
        match facts.kind(id) {
            Kind::Boundary(b) => self.cross(id, b),
            Kind::Compute(_) if facts.rematerializable(id) => {
                self.note_target(id);
                self.note(id, Reason::Rematerializable);
                self.state.stands(id, facts.target(id));
            }
            Kind::Rename { from, to } => self.rename(id, from, to),
            _ => self.compute(id),
        }
    }

    fn rename(&mut self, id: Id, from: Dim, to: Dim) {
        let x = self.facts.node(id).inputs[0];
        self.note(id, Reason::Renamed { from, to, operand: x });
        let src = self.state.current(x);
        let p = src.rename(from, to);
        if self.facts.rematerializable(id) {
            self.note(id, Reason::Rematerializable);
            self.state.stands(id, p);
            return;
        }
        for a in src.partial.keys() {
            let dims = self.state.summed.get(&(x, *a)).cloned().unwrap_or_default();
            self.state.summed.insert((id, *a), dims);
        }
        let copy = self.state.have(self.facts, x, &src);
        self.emit(id, vec![copy], Loops::new(), p);
    }

    fn compute(&mut self, id: Id) {
        let facts = self.facts;
        let inputs = &facts.node(id).inputs;
        let (loops, keep) = self.choose_loops(id);
        let mut operands = Vec::new();
        let mut sources = Vec::new();
        for (slot, x) in inputs.iter().enumerate() {
            let mut p = facts.operand(id, slot, &loops);
            let partial = keep.iter().filter(|a| self.state.is_partial(*x, **a));
            p.partial = partial.map(|a| (*a, Monoid::Sum)).collect();
            sources.push(self.convert(*x, &p, Some(id)));
            operands.push(p);
        }
        self.note_summed(id, &loops, &keep);
        let natural = facts.result(id, &loops, &keep);
        let decision = self.decisions.entry(id).or_default();
        (decision.loops, decision.operands) = (loops.clone(), operands);
        decision.partial = natural.partial.clone();
        self.emit(id, sources, loops, natural);
        if facts.is_gradient(id) || facts.is_output(id) {
            // Reduced as soon as it is there: all gradients and the loss can then share a bucket, and overlap compute.
            self.settle(id);
        }
    }

    /// Keeps over which dims a partial result was summed.
    fn note_summed(&mut self, id: Id, loops: &Loops, keep: &SortedSet<Axis>) {
        let summed = &mut self.state.summed;
        for a in keep {
            let operands = self.facts.node(id).inputs.iter();
            let mut dims: Vec<Dim> =
                operands.flat_map(|x| summed.get(&(*x, *a))).flatten().copied().collect();
            dims.sort();
            dims.dedup();
            summed.insert((id, *a), dims);
        }
        for l in self.facts.roles(id).loops.iter().filter(|l| matches!(l.role, Role::Reduction(_))) {
            for a in loops.get(&l.dim).into_iter().flatten() {
                summed.entry((id, *a)).or_default().push(l.dim);
            }
        }
    }

    pub(super) fn emit(&mut self, id: Id, inputs: Vec<CopyId>, loops: Loops, p: Placement) {
        let phase = self.facts.node(id).origin.phase;
        self.state.natural[id] = Some(p.clone());
        self.note_splits(id, &p);
        let out = self.state.copy(id, p, Some(phase), false);
        self.note_root(id, &inputs, out);
        let stored = inputs.first().is_some_and(|x| self.state.copies[*x].in_bf16);
        self.state.copies[out].in_bf16 = stored && keeps_storage(self.facts.graph(), id);
        self.state.frames.push(self.facts.graph(), id, Instr::Op { inputs, loops, out });
    }

    /// Finds operands of an add that are partial over the same axes: added first, they need one reduction.
    fn group(&mut self, id: Id) {
        /// Over which axes operands are partial, and their dims.
        type Alike = (PartialAxes, Vec<Dim>);
        let mut groups: SortedMap<Alike, Vec<usize>> = SortedMap::new();
        let inputs = &self.facts.node(id).inputs;
        let mut times: SortedMap<Id, usize> = SortedMap::new();
        inputs.iter().for_each(|x| *times.entry(*x).or_default() += 1);
        for (slot, x) in inputs.iter().enumerate() {
            let here = self.facts.node(*x).scope == self.facts.node(id).scope;
            let alone = self.facts.users(*x).len() == 1 && times[x] == 1 && here;
            let open = self.state.settled[*x].is_none()
                && alone
                && !self.facts.is_output(*x)
                && !self.facts.is_gradient(*x);
            let p = self.state.current(*x);
            if open && !p.partial.is_empty() && p.partial.values().all(|m| *m == Monoid::Sum) {
                let mut dims = self.facts.graph().ty(*x).dims.clone();
                dims.sort();
                groups.entry((p.partial, dims)).or_default().push(slot);
            }
        }
        // All operands alike are one sum as they stand.
        let several = |slots: &Vec<usize>| slots.len() > 1 && slots.len() < inputs.len();
        let found: Vec<Vec<usize>> = groups.into_values().filter(several).collect();
        if !found.is_empty() {
            self.groups.insert(id, found);
        }
    }

    // ------------------------------------------------------------------------------------------- moving a value

    /// The copy of a value in a placement, made from the cheapest copy there is.
    pub(super) fn convert(&mut self, id: Id, dst: &Placement, user: Option<Id>) -> CopyId {
        let facts = self.facts;
        let phase = facts.node(user.unwrap_or(id)).origin.phase;
        if let Some(copy) = self.state.usable(facts, id, dst, phase) {
            return copy;
        }
        if facts.rematerializable(id) {
            return self.rematerialize(id, dst, phase);
        }
        let mut best: Option<(u64, Placement, Vec<Reshard>)> = None;
        for p in self.state.sources(facts, id, dst, phase) {
            // From a copy whose window lies over other axes there may be no path: that copy was cut to size for one op.
            // From one without windows there always is.
            let Some((cost, steps)) = self.path(id, &p, dst) else { continue };
            if best.as_ref().is_none_or(|b| cost < b.0) {
                best = Some((cost, p, steps));
            }
        }
        let Some((_, mut now, steps)) = best else { return self.not_made(id, dst, phase) };
        let source = now.clone();
        for kind in steps {
            let Some(next) = kind.apply(&now) else { panic!("internal error: a path that does not apply") };
            if self.state.usable(facts, id, &next, phase).is_none() {
                let from = self.state.have(facts, id, &now);
                let kind = self.sent_by_root(kind, from);
                let in_bf16 = self.reshards_in_bf16(id, &kind, from);
                let cause = self.cause(id, (&kind, in_bf16), user, phase, &source);
                let gathered = matches!(kind, Reshard::Collective(Collective::AllGather { .. }));
                let out = self.state.copy(id, next.clone(), Some(phase), gathered);
                self.state.copies[out].in_bf16 = in_bf16;
                self.state.roots.moved(from, &next.partial, out);
                self.state.frames.push(self.facts.graph(), id, Instr::Reshard { kind, from, out, cause });
            }
            now = next;
        }
        self.state.have(facts, id, dst)
    }

    /// A copy that nothing can be made into, with the error that says why: the axis of stages splits it as well.
    fn not_made(&mut self, id: Id, dst: &Placement, phase: Phase) -> CopyId {
        let facts = self.facts;
        let placements = self.state.placements(id).chain([dst]);
        let Some(d) = split_twice_by(facts.graph(), facts.layout, id, placements) else {
            panic!("internal error: nothing to make {} from", facts.graph().describe(id))
        };
        if self.diagnostics.iter().all(|known| known.code != d.code) {
            self.diagnostics.push(d);
        }
        self.state.copy(id, dst.clone(), Some(phase), false)
    }

    /// Whether a reshard step makes a copy in `bf16`: it adds up terms of a gradient, or moves what is stored so.
    fn reshards_in_bf16(&self, id: Id, kind: &Reshard, from: CopyId) -> bool {
        self.state.copies[from].in_bf16
            || sums(kind) && self.facts.gradient_terms.as_ref().is_some_and(|terms| terms[id])
    }

    fn rematerialize(&mut self, id: Id, dst: &Placement, phase: Phase) -> CopyId {
        match self.facts.kind(id) {
            Kind::Rename { .. } => self.rematerialize_renamed(id, dst),
            Kind::Rematerializable(_) => {
                let out = self.state.copy(id, dst.clone(), Some(phase), false);
                self.state.frames.push(
                    self.facts.graph(),
                    id,
                    Instr::Op { inputs: vec![], loops: dst.splits.clone(), out },
                );
                out
            }
            Kind::Compute(_) => self.rematerialize_computed(id, dst, phase),
            _ => {
                let out = self.state.copy(id, dst.clone(), None, false);
                self.state.frames.push(self.facts.graph(), id, Instr::Input { out });
                out
            }
        }
    }

    /// What is made of positions, from these where they are needed. What a window asks for is cut out of what is not split.
    fn rematerialize_computed(&mut self, id: Id, dst: &Placement, phase: Phase) -> CopyId {
        let facts = self.facts;
        let mut whole = dst.without_windows();
        whole.splits.retain(|d, _| !dst.windows.contains_key(d));
        let mut copy = match self.state.usable(facts, id, &whole, phase) {
            Some(copy) => copy,
            None => {
                let operands = facts.node(id).inputs.iter().enumerate();
                let placed = operands.map(|(slot, x)| (*x, facts.operand(id, slot, &whole.splits)));
                let inputs = placed.map(|(x, p)| self.convert(x, &p, Some(id))).collect();
                let out = self.state.copy(id, whole.clone(), Some(phase), false);
                self.state.frames.push(
                    self.facts.graph(),
                    id,
                    Instr::Op { inputs, loops: whole.splits.clone(), out },
                );
                out
            }
        };
        for (dim, window) in &dst.windows {
            let kind = Reshard::SliceWindow { axes: dst.axes(*dim).to_vec(), dim: *dim, window: *window };
            let Some(next) = kind.apply(&whole) else {
                panic!("internal error: a slice that does not apply")
            };
            whole = next;
            let (from, phase) = (copy, Some(phase));
            copy = self.state.copy(id, whole.clone(), phase, false);
            let cause = Cause { phase: phase.unwrap_or_default(), ..Cause::default() };
            self.state.frames.push(self.facts.graph(), id, Instr::Reshard { kind, from, out: copy, cause });
        }
        copy
    }

    /// Renames of what is rematerializable, from the first that is not there yet.
    fn rematerialize_renamed(&mut self, id: Id, dst: &Placement) -> CopyId {
        let facts = self.facts;
        let mut chain = vec![(id, dst.clone())];
        let src = loop {
            let (last, p) = &chain[chain.len() - 1];
            let Kind::Rename { from, to } = facts.kind(*last) else {
                panic!("internal error: {} is no rename", facts.graph().describe(*last))
            };
            let (x, p, phase) =
                (facts.node(*last).inputs[0], p.rename(to, from), facts.node(*last).origin.phase);
            let is_rename = matches!(facts.kind(x), Kind::Rename { .. });
            if !is_rename || self.state.usable(facts, x, &p, phase).is_some() {
                break self.convert(x, &p, Some(*last));
            }
            chain.push((x, p));
        };
        let user = facts.node(id).origin.phase;
        chain.into_iter().rev().fold(src, |src, (id, p)| {
            let out = self.state.copy(id, p, Some(user), false);
            self.state.frames.push(
                facts.graph(),
                id,
                Instr::Op { inputs: vec![src], loops: Loops::new(), out },
            );
            out
        })
    }

    /// Settles and converts what the step gives.
    fn deliver(&mut self, output: usize) -> CopyId {
        let g = &self.facts.step.outputs[output];
        self.settle(g.id);
        let dst = match g.kind {
            OutputKind::Scalar => Placement::replicated(),
            OutputKind::Output => self.facts.target(g.id),
            OutputKind::Next(leaf) => self.facts.target(leaf),
        };
        self.convert(g.id, &dst, None)
    }
}
