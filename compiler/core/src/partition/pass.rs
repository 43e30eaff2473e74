//! The walk over a step graph that gives every op its loops and every operand its placement.

use super::reasons::Reason;
use super::reshard::{Reshard, Router};
use super::spmd::{CopyId, Instr, PlacedCopy, Spmd, operand_placement};
use crate::layout::{Assigned, Layout, assign};
use crate::step_graph::{OutputKind, StepGraph};
use meshwright_diag::{Diagnostic, Outcome, has_errors};
use meshwright_ops::{Add, Graph, Id, InputOpKind, Kind, Node, Role, Roles};
use meshwright_plan::{Axis, Collective, Dim, Mesh, Monoid, Phase, Placement};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Axes of the loops of an op.
pub(super) type Loops = BTreeMap<Dim, Vec<Axis>>;

/// Where one version of a value stands.
pub(super) struct Made {
    pub(super) version: CopyId,
    /// The part of the step that made it; `None` where it is bound before the step.
    phase: Option<Phase>,
    /// Whether a gather made it.
    gathered: bool,
}

/// What a value is, where it is not only the result of an op.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ValueClass {
    /// It can be made in any placement at no cost.
    Rematerializable,
    /// It is a parameter, or a function of one.
    ParamLike,
    /// Neither.
    Other,
}

/// State of the walk.
pub(super) struct Pass<'a> {
    pub(super) step: StepGraph,
    pub(super) layout: &'a Layout,
    pub(super) mesh: &'a Mesh,
    pub(super) router: Router,
    /// Users of each value, each once, in order.
    pub(super) users: Vec<Vec<Id>>,
    /// Values that the step gives.
    pub(super) given: BTreeSet<Id>,
    /// The placement that an op yields by itself.
    pub(super) natural: Vec<Option<Placement>>,
    /// The placement after it has been decided which sums are finished.
    pub(super) settled: Vec<Option<Placement>>,
    pub(super) wants: BTreeMap<Id, Option<Placement>>,
    class: Vec<ValueClass>,
    roles: Vec<Option<Roles>>,
    /// Over which dims each axis of an unfinished value was summed.
    pub(super) summed: BTreeMap<(Id, Axis), Vec<Dim>>,
    made: BTreeMap<Id, BTreeMap<Placement, Made>>,
    copies: Vec<PlacedCopy>,
    instrs: Vec<Instr>,
    pub(super) diagnostics: Vec<Diagnostic>,
    pub(super) told: BTreeSet<(Dim, Axis)>,
    pub(super) reasons: BTreeMap<Id, Vec<Reason>>,
}

/// Partitions a step. `layout` must have been checked for conflicts.
pub fn partition(step: &StepGraph, layout: &Layout) -> Outcome<Spmd> {
    let layout = layout.effective();
    let mut pass = Pass::new(step, &layout);
    for id in step.graph.ids() {
        pass.place(id);
    }
    let outputs: Vec<CopyId> = (0..step.outputs.len()).map(|i| pass.deliver(i)).collect();
    let diagnostics = std::mem::take(&mut pass.diagnostics);
    if has_errors(&diagnostics) {
        return (None, diagnostics);
    }
    let spmd = Spmd {
        step: pass.step,
        mesh: layout.mesh.clone(),
        copies: pass.copies,
        instrs: pass.instrs,
        outputs,
        reasons: pass.reasons,
    };
    (Some(spmd), diagnostics)
}

impl<'a> Pass<'a> {
    fn new(step: &StepGraph, layout: &'a Layout) -> Self {
        let n = step.graph.nodes.len();
        let mut users = vec![Vec::new(); n];
        for id in step.graph.ids() {
            for i in &step.graph.node(id).inputs {
                let list: &mut Vec<Id> = &mut users[i.0 as usize];
                if list.last() != Some(&id) {
                    list.push(id);
                }
            }
        }
        let mut pass = Pass {
            step: step.clone(),
            layout,
            mesh: &layout.mesh,
            router: Router::default(),
            users,
            given: step.outputs.iter().map(|g| g.id).collect(),
            natural: vec![None; n],
            settled: vec![None; n],
            wants: BTreeMap::new(),
            class: Vec::with_capacity(n),
            roles: vec![None; n],
            summed: BTreeMap::new(),
            made: BTreeMap::new(),
            copies: Vec::new(),
            instrs: Vec::new(),
            diagnostics: Vec::new(),
            told: BTreeSet::new(),
            reasons: BTreeMap::new(),
        };
        for id in step.graph.ids() {
            let class = pass.class_of(id);
            pass.class.push(class);
        }
        pass
    }

    pub(super) fn graph(&self) -> &Graph {
        &self.step.graph
    }

    pub(super) fn node(&self, id: Id) -> &Node {
        self.step.graph.node(id)
    }

    pub(super) fn roles(&mut self, id: Id) -> Roles {
        if let Some(r) = &self.roles[id.0 as usize] {
            return r.clone();
        }
        let g = &self.step.graph;
        let r = g.node(id).op.roles(&g.input_types(id), g.ty(id), &g.dims);
        self.roles[id.0 as usize] = Some(r.clone());
        r
    }

    /// Bytes of the largest block of a value in a placement.
    pub(super) fn bytes(&self, id: Id, p: &Placement) -> u64 {
        let ty = self.graph().ty(id);
        (p.elements(&ty.dims, &self.graph().dims, self.mesh) * ty.dtype.bytes()) as u64
    }

    /// Cost of the cheapest route of a value, and its moves.
    pub(super) fn route(&mut self, id: Id, src: &Placement, dst: &Placement) -> (u64, Vec<Reshard>) {
        let ty = self.step.graph.ty(id).clone();
        match self.router.route(&ty, &self.step.graph.dims, self.mesh, src, dst) {
            Some(r) => r,
            None => {
                panic!("internal error: no route for {} from {src:?} to {dst:?}", self.graph().describe(id))
            }
        }
    }

    /// The splits that the rules give a value.
    pub(super) fn target(&self, id: Id) -> Placement {
        let n = self.node(id);
        assign(self.layout, n.origin.class, &n.origin.path, &n.ty.dims, &self.graph().dims).placement()
    }

    /// The splits that the rules give the loops of an op.
    pub(super) fn rigid(&mut self, id: Id) -> Loops {
        self.ruled(id).1.splits
    }

    /// The loops of an op that may be split, and what the rules say of them.
    pub(super) fn ruled(&mut self, id: Id) -> (Vec<Dim>, Assigned) {
        let roles = self.roles(id);
        let dims: Vec<Dim> =
            roles.loops.iter().filter(|l| l.role != Role::NeedReplication).map(|l| l.dim).collect();
        let n = self.node(id);
        let said = assign(self.layout, n.origin.class, &n.origin.path, &dims, &self.graph().dims);
        (dims, said)
    }

    /// The placement that an operand needs when the loops are split as `loops`.
    pub(super) fn operand(&mut self, user: Id, slot: usize, loops: &Loops) -> Placement {
        operand_placement(&self.roles(user), slot, loops, &self.graph().dims, self.mesh)
    }

    /// Constants, positions, random values and inputs can be made in any placement at no cost, also under another name of a dim.
    pub(super) fn rematerializable(&self, id: Id) -> bool {
        self.class[id.0 as usize] == ValueClass::Rematerializable
    }

    /// A parameter or state, or an element-wise function or rename of parameters alone.
    pub(super) fn param_like(&self, id: Id) -> bool {
        self.class[id.0 as usize] == ValueClass::ParamLike
    }

    /// What a value is, of which the operands are known: in order of definition, since chains may be long.
    fn class_of(&self, id: Id) -> ValueClass {
        let n = self.node(id);
        let operand = n.inputs.first().map(|x| self.class[x.0 as usize]);
        match (n.op.kind(), operand) {
            (
                Kind::Rematerializable | Kind::Input(InputOpKind::Input { .. } | InputOpKind::StepNumber),
                _,
            ) => ValueClass::Rematerializable,
            (Kind::Input(InputOpKind::Param { .. } | InputOpKind::State { .. }), _) => ValueClass::ParamLike,
            (Kind::Rename { .. }, Some(operand)) => operand,
            (Kind::Compute, Some(ValueClass::ParamLike)) if n.inputs.len() == 1 && self.pointwise(id) => {
                ValueClass::ParamLike
            }
            _ => ValueClass::Other,
        }
    }

    /// Whether an op is element-wise.
    pub(super) fn pointwise(&self, id: Id) -> bool {
        self.graph().is_elementwise(id)
    }

    /// The placement of a value as it is now.
    pub(super) fn current(&self, id: Id) -> Placement {
        let i = id.0 as usize;
        self.settled[i].clone().or_else(|| self.natural[i].clone()).unwrap_or_default()
    }

    // ------------------------------------------------------------------------------------------- placing an op

    fn place(&mut self, id: Id) {
        let i = id.0 as usize;
        let kind = self.node(id).op.kind();
        match kind {
            Kind::Rematerializable | Kind::Input(InputOpKind::Input { .. } | InputOpKind::StepNumber) => {
                let target = self.target(id);
                self.note_target(id);
                self.note(id, Reason::Rematerializable);
                self.natural[i] = Some(target.clone());
                self.settled[i] = Some(target);
                return;
            }
            Kind::Input(_) => {
                let target = self.target(id);
                self.note_target(id);
                self.natural[i] = Some(target.clone());
                self.settled[i] = Some(target.clone());
                let out = self.version(id, target, None, false);
                self.instrs.push(Instr::Input { out });
                return;
            }
            Kind::Add => self.group(id),
            _ => {}
        }
        let inputs = self.node(id).inputs.clone();
        for x in &inputs {
            self.settle(*x);
        }
        if let Kind::Rename { from, to } = kind {
            self.note(id, Reason::Renamed { from, to, operand: inputs[0] });
            if self.rematerializable(id) {
                self.note(id, Reason::Rematerializable);
                let p = self.current(inputs[0]).rename(from, to);
                self.natural[i] = Some(p.clone());
                self.settled[i] = Some(p);
                return;
            }
            let src = self.current(inputs[0]);
            let p = src.rename(from, to);
            for (a, m) in &src.partial {
                debug_assert_eq!(*m, Monoid::Sum);
                let dims = self.summed.get(&(inputs[0], *a)).cloned().unwrap_or_default();
                self.summed.insert((id, *a), dims);
            }
            let x = self.have(inputs[0], &src);
            self.emit(id, vec![x], BTreeMap::new(), p);
            return;
        }
        let (loops, keep) = self.choose_loops(id);
        let mut srcs = Vec::new();
        for (slot, x) in inputs.iter().enumerate() {
            let mut p = self.operand(id, slot, &loops);
            let now = self.current(*x);
            p.partial =
                keep.iter().filter(|a| now.partial.contains_key(a)).map(|a| (*a, Monoid::Sum)).collect();
            srcs.push(self.convert(*x, &p, Some(id)));
        }
        let roles = self.roles(id);
        let mut partial: BTreeMap<Axis, Monoid> = BTreeMap::new();
        for a in &keep {
            partial.insert(*a, Monoid::Sum);
            let mut dims: Vec<Dim> = Vec::new();
            for x in &inputs {
                dims.extend(self.summed.get(&(*x, *a)).into_iter().flatten());
            }
            dims.sort();
            dims.dedup();
            self.summed.insert((id, *a), dims);
        }
        for l in &roles.loops {
            if let Role::Reduction(m) = l.role {
                for a in loops.get(&l.dim).into_iter().flatten() {
                    partial.insert(*a, m);
                    self.summed.entry((id, *a)).or_default().push(l.dim);
                }
            }
        }
        let result = self.graph().ty(id).dims.clone();
        let mut natural =
            Placement::split(loops.iter().filter(|(d, _)| result.contains(d)).map(|(d, a)| (*d, a.clone())));
        natural.partial = partial;
        self.emit(id, srcs, loops, natural);
        if self.is_gradient(id) || self.given.contains(&id) {
            // Finished as soon as it is there: all gradients and the loss can then share a bucket, and overlap compute.
            self.settle(id);
        }
    }

    fn emit(&mut self, id: Id, inputs: Vec<CopyId>, loops: Loops, p: Placement) {
        let phase = self.node(id).origin.phase;
        self.natural[id.0 as usize] = Some(p.clone());
        let out = self.version(id, p, Some(phase), false);
        self.instrs.push(Instr::Op { inputs, loops, out });
    }

    fn version(&mut self, value: Id, placement: Placement, phase: Option<Phase>, gathered: bool) -> CopyId {
        let version = CopyId(self.copies.len() as u32);
        self.copies.push(PlacedCopy { value, placement: placement.clone() });
        self.made.entry(value).or_default().insert(placement, Made { version, phase, gathered });
        version
    }

    fn have(&self, id: Id, p: &Placement) -> CopyId {
        match self.made.get(&id).and_then(|m| m.get(p)) {
            Some(m) => m.version,
            None => panic!("internal error: {} is not there as {p:?}", self.graph().describe(id)),
        }
    }

    /// Operands that are unfinished over the same axes are added before anything else, unfinished.
    fn group(&mut self, id: Id) {
        /// Over which axes operands are unfinished, and their dims.
        type Alike = (BTreeMap<Axis, Monoid>, Vec<Dim>);
        let mut groups: BTreeMap<Alike, Vec<Id>> = BTreeMap::new();
        let inputs = self.node(id).inputs.clone();
        for x in &inputs {
            let p = self.current(*x);
            let alone = self.users[x.0 as usize].len() == 1 && inputs.iter().filter(|y| *y == x).count() == 1;
            let open = self.settled[x.0 as usize].is_none()
                && alone
                && !self.given.contains(x)
                && !self.is_gradient(*x);
            if open && !p.partial.is_empty() && p.partial.values().all(|m| *m == Monoid::Sum) {
                let mut dims = self.graph().ty(*x).dims.clone();
                dims.sort();
                groups.entry((p.partial, dims)).or_default().push(*x);
            }
        }
        for xs in groups.into_values() {
            let rest: Vec<Id> = self.node(id).inputs.iter().copied().filter(|x| !xs.contains(x)).collect();
            if xs.len() < 2 || rest.is_empty() {
                continue;
            }
            let origin = self.node(id).origin.clone();
            let ty = self.graph().ty(xs[0]).clone();
            let sub = self.step.graph.push(Node { op: Arc::new(Add), inputs: xs.clone(), ty, origin });
            for list in [&mut self.natural, &mut self.settled] {
                list.push(None);
            }
            self.roles.push(None);
            self.class.push(ValueClass::Other);
            self.users.push(vec![id]);
            for x in &xs {
                self.users[x.0 as usize] = vec![sub];
            }
            let mut inputs = rest;
            inputs.push(sub);
            self.step.graph.nodes[id.0 as usize].inputs = inputs;
            self.roles[id.0 as usize] = None;
            self.wants.clear();
            self.place(sub);
        }
    }

    pub(super) fn is_gradient(&self, id: Id) -> bool {
        matches!(self.node(id).op.kind(), Kind::Gradient)
    }

    // ------------------------------------------------------------------------------------------- moving a value

    /// The version of a value in a placement, made from the cheapest version there is. An axis over which the value is
    /// finished is never unfinished again.
    pub(super) fn convert(&mut self, id: Id, dst: &Placement, user: Option<Id>) -> CopyId {
        let phase = self.node(user.unwrap_or(id)).origin.phase;
        if let Some(v) = self.usable(id, dst, phase) {
            return v;
        }
        if self.rematerializable(id) {
            return self.make_anywhere(id, dst, phase);
        }
        let sources: Vec<Placement> = self
            .made
            .get(&id)
            .into_iter()
            .flat_map(|m| m.keys())
            .filter(|p| dst.partial.keys().all(|a| p.partial.contains_key(a)))
            .filter(|p| p.windows.iter().all(|(d, w)| dst.windows.get(d) == Some(w)))
            .cloned()
            .collect();
        let mut best: Option<(u64, Placement, Vec<Reshard>)> = None;
        for p in sources {
            if self.usable(id, &p, phase).is_none() {
                continue;
            }
            let (cost, moves) = self.route(id, &p, dst);
            if best.as_ref().is_none_or(|b| cost < b.0) {
                best = Some((cost, p, moves));
            }
        }
        let Some((_, mut now, moves)) = best else {
            panic!("internal error: nothing to make {} from", self.graph().describe(id))
        };
        let source = now.clone();
        for kind in moves {
            let Some(next) = kind.apply(&now) else { panic!("internal error: a route that does not apply") };
            if self.usable(id, &next, phase).is_none() {
                let from = self.have(id, &now);
                let cause = self.cause(id, &kind, user, phase, &source);
                let gathered = matches!(kind, Reshard::Collective(Collective::AllGather { .. }));
                let out = self.version(id, next.clone(), Some(phase), gathered);
                self.instrs.push(Instr::Reshard { kind, from, out, cause });
            }
            now = next;
        }
        self.have(id, dst)
    }

    /// A version that may be used in a part of the step: gathered parameters are dropped at its end.
    fn usable(&self, id: Id, p: &Placement, phase: Phase) -> Option<CopyId> {
        let m = self.made.get(&id)?.get(p)?;
        let old = m.gathered && m.phase.is_some_and(|made| made != phase) && self.param_like(id);
        (!old).then_some(m.version)
    }

    fn make_anywhere(&mut self, id: Id, dst: &Placement, phase: Phase) -> CopyId {
        match self.node(id).op.kind() {
            Kind::Rename { .. } => self.make_renamed(id, dst),
            Kind::Rematerializable => {
                let out = self.version(id, dst.clone(), Some(phase), false);
                self.instrs.push(Instr::Op { inputs: vec![], loops: dst.splits.clone(), out });
                out
            }
            _ => {
                let out = self.version(id, dst.clone(), None, false);
                self.instrs.push(Instr::Input { out });
                out
            }
        }
    }

    /// Renames of what can be made anywhere, from the first that is not there yet.
    fn make_renamed(&mut self, id: Id, dst: &Placement) -> CopyId {
        let mut chain = vec![(id, dst.clone())];
        let src = loop {
            let (last, p) = &chain[chain.len() - 1];
            let Kind::Rename { from, to } = self.node(*last).op.kind() else {
                panic!("internal error: {} is no rename", self.graph().describe(*last))
            };
            let (x, p, phase) =
                (self.node(*last).inputs[0], p.rename(to, from), self.node(*last).origin.phase);
            let is_rename = matches!(self.node(x).op.kind(), Kind::Rename { .. });
            if !is_rename || self.usable(x, &p, phase).is_some() {
                break self.convert(x, &p, Some(*last));
            }
            chain.push((x, p));
        };
        let user = self.node(id).origin.phase;
        chain.into_iter().rev().fold(src, |src, (id, p)| {
            let out = self.version(id, p, Some(user), false);
            self.instrs.push(Instr::Op { inputs: vec![src], loops: BTreeMap::new(), out });
            out
        })
    }

    /// Settles and converts what the step gives.
    fn deliver(&mut self, goal: usize) -> CopyId {
        let g = self.step.outputs[goal].clone();
        self.settle(g.id);
        let dst = match g.kind {
            OutputKind::Scalar => Placement::replicated(),
            OutputKind::Output => self.target(g.id),
            OutputKind::Next(leaf) => self.target(leaf),
        };
        self.convert(g.id, &dst, None)
    }

    /// The op that reads operands unfinished on `axes` is linear in them.
    pub(super) fn linear_in(&mut self, id: Id, slots: &BTreeSet<usize>) -> bool {
        let n = self.node(id).inputs.len();
        self.roles(id).linear_in(slots, n)
    }

    /// Whether an op takes part in the add rule.
    pub(super) fn is_add(&self, id: Id) -> bool {
        matches!(self.node(id).op.kind(), Kind::Add)
    }
}
