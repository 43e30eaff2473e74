//! Facts on a step and its layout before anything is placed. The walk reads and never changes them.

use super::crossings::Crossings;
use super::decision::Loops;
use super::reduce_grads::gradient_terms;
use super::spmd::operand_placement;
use crate::layout::{Assigned, Layout, Rulebook, assign};
use crate::step::step_graph::StepGraph;
use meshwright_ops::{
    Boundary, Class, Crossing, Graph, Id, InputOpKind, Kind, Loop, Node, RepeatId, Role, Roles, union,
};
use meshwright_plan::{Axis, Dim, IdVec, Mesh, Monoid, Phase, Placement};
use meshwright_sorted::{SortedMap, SortedSet};
use std::sync::Arc;

/// The class of a value that is more than the result of an op.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ValueClass {
    /// It can be made in any placement at no cost.
    Rematerializable,
    /// It is a parameter, or a function of one.
    ParamLike,
    /// Neither.
    Other,
}

/// A mask made of positions by no more ops than this is made wherever it is needed.
const MOST_OPS: usize = 16;

/// Facts of every value of the graph.
pub(super) struct Facts<'a> {
    pub(super) step: &'a StepGraph,
    pub(super) layout: &'a Layout,
    pub(super) rules: Rulebook<'a>,
    pub(super) mesh: &'a Mesh,
    users: IdVec<Id, Vec<Id>>,
    /// The values of the forward pass by name.
    forward: SortedMap<Arc<str>, Vec<Id>>,
    outputs: SortedSet<Id>,
    elementwise: IdVec<Id, bool>,
    /// Of values that are known from positions alone, by how many ops.
    generated: IdVec<Id, Option<usize>>,
    classes: IdVec<Id, ValueClass>,
    /// Parameters whose gathered copies are kept, and values computed from one of them alone.
    kept: IdVec<Id, bool>,
    roles: IdVec<Id, Roles>,
    /// Splits of each value's dims by the rules.
    targets: IdVec<Id, Assigned>,
    /// Splits of the loops of its op by the rules.
    ruled: IdVec<Id, Assigned>,
    pub(super) crossings: Crossings,
    /// Of each loop the axes that split its dim.
    loop_axes: IdVec<RepeatId, Vec<Axis>>,
    /// Of ops that cost nothing, the one placement that all users of the result ask for.
    wanted: SortedMap<Id, Placement>,
    /// Values whose partial sums are reduced in `bf16`, where the layout asks for that.
    pub(super) gradient_terms: Option<IdVec<Id, bool>>,
}

impl<'a> Facts<'a> {
    pub(super) fn new(step: &'a StepGraph, layout: &'a Layout) -> Self {
        let g = &step.graph;
        let mut facts = Facts {
            step,
            layout,
            rules: Rulebook::new(layout),
            mesh: &layout.mesh,
            users: users(g),
            forward: forward_values(g),
            outputs: step.outputs.iter().map(|o| o.id).collect(),
            elementwise: g.ids().map(|id| g.is_elementwise(id)).collect(),
            generated: IdVec::new(),
            classes: IdVec::new(),
            kept: IdVec::new(),
            roles: g.ids().map(|id| g.node(id).op.roles(&g.input_types(id), g.ty(id), &g.dims)).collect(),
            crossings: Crossings::new(g),
            loop_axes: IdVec::new(),
            targets: IdVec::new(),
            ruled: IdVec::new(),
            wanted: SortedMap::new(),
            gradient_terms: layout.reduce_grads.map(|_| gradient_terms(step)),
        };
        for r in g.repeats.iter() {
            let said = assign(&facts.rules, Class::Value, "", &[r.dim], &g.dims);
            facts.loop_axes.push(said.splits.get(&r.dim).cloned().unwrap_or_default());
        }
        for id in g.ids() {
            let ops = facts.ops_from_positions(id);
            facts.generated.push(ops);
            let o = &g.node(id).origin;
            let said = assign(&facts.rules, o.class, &o.path, &g.ty(id).dims, &g.dims);
            facts.targets.push(said);
            let loops = facts.loop_dims(id);
            let said = assign(&facts.rules, o.class, &o.path, &loops, &g.dims);
            facts.ruled.push(said);
        }
        facts.classify();
        for id in g.ids() {
            let kept = facts.is_kept(id);
            facts.kept.push(kept);
        }
        // Users come after what they use, so theirs are known.
        for id in g.ids().collect::<Vec<_>>().into_iter().rev() {
            if !facts.sees_through(id) {
                continue;
            }
            // The next iteration is a user too.
            let carried = facts.carries_of(id).iter().map(|carry| facts.target(*carry));
            let all = facts.users(id).iter().map(|u| facts.demand(*u, id)).chain(carried);
            let all: SortedSet<Placement> = all.collect();
            if let (1, Some(only)) = (all.len(), all.into_iter().next()) {
                facts.wanted.insert(id, only);
            }
        }
        facts
    }

    pub(super) fn graph(&self) -> &'a Graph {
        &self.step.graph
    }

    pub(super) fn node(&self, id: Id) -> &'a Node {
        self.graph().node(id)
    }

    pub(super) fn kind(&self, id: Id) -> Kind {
        self.node(id).op.kind()
    }

    /// The axes that split the dim of a loop.
    pub(super) fn loop_axes(&self, of: RepeatId) -> &[Axis] {
        &self.loop_axes[of]
    }

    /// Whether the iterations of a loop are stages: each device gets the carries from the stage before.
    pub(super) fn has_stages(&self, of: RepeatId) -> bool {
        let dim = self.graph().repeats[of].dim;
        self.layout.pipeline.as_ref().is_some_and(|p| p.dim == dim) && !self.loop_axes(of).is_empty()
    }

    /// True for an axis of stages.
    pub(super) fn between_stages(&self, axis: Axis) -> bool {
        self.layout.pipeline.as_ref().is_some_and(|p| p.axes.contains(&axis))
    }

    /// True for a user in a loop that the axis splits which reads a value from around it: of the iterations a device has only its
    /// own, and of a partial value it would lack the parts of other devices.
    pub(super) fn is_split_around(&self, user: Id, v: Id, axis: Axis) -> bool {
        let g = self.graph();
        let mut scope = self.node(user).scope;
        while let Some(of) = scope.filter(|of| !g.within(self.node(v).scope, Some(*of))) {
            if self.loop_axes(of).contains(&axis) {
                return true;
            }
            scope = g.repeats[of].parent;
        }
        false
    }

    /// A placement in the body of a loop, with the dim of the loop as it is split around it.
    pub(super) fn around(&self, b: Boundary, mut p: Placement) -> Placement {
        let axes = self.loop_axes(b.of);
        match b.how {
            _ if axes.is_empty() => {}
            Crossing::Slice | Crossing::Stack => drop(p.splits.insert(b.dim, axes.to_vec())),
            Crossing::Accumulate => p.partial.extend(axes.iter().map(|a| (*a, Monoid::Sum))),
            Crossing::Carry(_) | Crossing::Final => {}
        }
        p
    }

    /// Users of a value, each once, in order.
    pub(super) fn users(&self, id: Id) -> &[Id] {
        &self.users[id]
    }

    /// Values of the forward pass with the name whose gradient a value of the backward pass is.
    pub(super) fn values_of_gradient(&self, id: Id) -> impl Iterator<Item = Id> + '_ {
        let origin = &self.node(id).origin;
        let of = origin.name.strip_prefix("d(").and_then(|n| n.strip_suffix(')'));
        let of = of.filter(|_| origin.phase == Phase::Backward).and_then(|name| self.forward.get(name));
        of.into_iter().flatten().copied()
    }

    /// True for an output of the step.
    pub(super) fn is_output(&self, id: Id) -> bool {
        self.outputs.contains(&id)
    }

    pub(super) fn is_gradient(&self, id: Id) -> bool {
        matches!(self.kind(id), Kind::Gradient)
    }

    /// True for a gradient, or the sum that becomes one.
    pub(super) fn becomes_gradient(&self, id: Id) -> bool {
        let sum = || matches!(self.users(id), [only] if self.is_add(id) && self.is_gradient(*only));
        self.is_gradient(id) || sum()
    }

    pub(super) fn is_add(&self, id: Id) -> bool {
        matches!(self.kind(id), Kind::Add)
    }

    pub(super) fn roles(&self, id: Id) -> &Roles {
        &self.roles[id]
    }

    /// Splits of a value by the rules.
    pub(super) fn said(&self, id: Id) -> &Assigned {
        &self.targets[id]
    }

    /// The splits that the rules give a value.
    pub(super) fn target(&self, id: Id) -> Placement {
        self.said(id).placement()
    }

    /// Splits of an op's loops by the rules.
    pub(super) fn ruled(&self, id: Id) -> &Assigned {
        &self.ruled[id]
    }

    /// The splits that the rules give the loops of an op.
    pub(super) fn rigid(&self, id: Id) -> &Loops {
        &self.ruled(id).splits
    }

    /// The loops of an op that may be split.
    pub(super) fn loop_dims(&self, id: Id) -> Vec<Dim> {
        let loops = self.roles(id).loops.iter();
        loops.filter(|l| l.role != Role::NeedReplication).map(|l| l.dim).collect()
    }

    /// The placement that an operand needs when the loops are split as `loops`.
    pub(super) fn operand(&self, user: Id, slot: usize, loops: &Loops) -> Placement {
        operand_placement(self.roles(user), slot, loops, &self.graph().dims, self.mesh)
    }

    /// Bytes of the largest shard of a value in a placement.
    pub(super) fn bytes(&self, id: Id, p: &Placement) -> u64 {
        let ty = self.graph().ty(id);
        (p.elements(&ty.dims, &self.graph().dims, self.mesh) * ty.dtype.bytes()) as u64
    }

    /// Bytes of a value, in units of 1 / axis size of what moves over an axis when it is gathered.
    pub(super) fn gathered(&self, id: Id, axis: Axis) -> u64 {
        (self.mesh.size(axis) as u64 - 1) * self.bytes(id, &Placement::replicated())
    }

    /// Constants, positions, random values and what is made of these alone, such as a mask, and inputs can be made in any
    /// placement at no cost, also under another name of a dim.
    pub(super) fn rematerializable(&self, id: Id) -> bool {
        self.classes[id] == ValueClass::Rematerializable
    }

    /// A parameter or state, or what is made of these alone element by element, by renames, and in loops.
    pub(super) fn param_like(&self, id: Id) -> bool {
        self.classes[id] == ValueClass::ParamLike
    }

    /// True for the maximum by which a factor in 8 bits is scaled.
    pub(super) fn is_maximum_of_factor(&self, id: Id) -> bool {
        let folds = |l: &Loop| l.role == Role::Reduction(Monoid::Max);
        self.node(id).origin.layer && self.roles(id).loops.iter().any(folds)
    }

    /// Whether gathered copies of a value are kept until the backward pass is done.
    pub(super) fn kept(&self, id: Id) -> bool {
        self.kept[id]
    }

    /// The same, of a value of whose operands it is known.
    fn is_kept(&self, id: Id) -> bool {
        match (self.kind(id), &self.node(id).inputs[..]) {
            (Kind::Input(InputOpKind::Param { path, .. }), _) => {
                self.step.program == "train" && self.layout.keeps(&path).is_some()
            }
            (_, [x]) => self.kept[*x] && self.param_like(id),
            (_, [x, _]) if self.node(id).origin.layer => self.kept[*x] && self.param_like(id),
            _ => false,
        }
    }

    /// Says what each value is. A carry is made of parameters alone if what it starts as and what it becomes are, which depends
    /// on the carry: it is taken for such until that is found to be wrong.
    fn classify(&mut self) {
        let g = self.graph();
        let mut others: SortedSet<Id> = SortedSet::new();
        loop {
            self.classes = IdVec::new();
            for id in g.ids() {
                let class = self.class_of(id, &others);
                self.classes.push(class);
            }
            let wrong =
                g.repeats.iter().flat_map(|r| &r.carries).filter(|(carry, next)| {
                    self.param_like(*carry) && self.classes[*next] == ValueClass::Other
                });
            let wrong: Vec<Id> = wrong.map(|c| c.0).collect();
            if wrong.is_empty() {
                return;
            }
            others.extend(wrong);
        }
    }

    /// The class of a value with known operands: in order of definition, since chains may be long.
    fn class_of(&self, id: Id, others: &SortedSet<Id>) -> ValueClass {
        let n = self.node(id);
        let operand = n.inputs.first().map(|x| self.classes[*x]);
        let of_params = || {
            let (params, rest): (Vec<Id>, Vec<Id>) = n.inputs.iter().partition(|x| self.param_like(**x));
            let dims = union(params.iter().map(|x| self.graph().ty(*x)));
            n.ty.dims.iter().all(|d| dims.contains(d)) && rest.iter().all(|x| self.generated[*x].is_some())
        };
        match (n.op.kind(), operand) {
            (
                Kind::Rematerializable(_) | Kind::Input(InputOpKind::Input { .. } | InputOpKind::StepNumber),
                _,
            ) => ValueClass::Rematerializable,
            (Kind::Input(InputOpKind::Param { .. } | InputOpKind::State { .. }), _) => ValueClass::ParamLike,
            (Kind::Rename { .. }, Some(operand)) => operand,
            (Kind::Boundary(_), Some(ValueClass::ParamLike)) if !others.contains(&id) => {
                ValueClass::ParamLike
            }
            (Kind::Compute(_), _) if self.generated[id].is_some() => ValueClass::Rematerializable,
            // An op that rounds a factor of a layer also reads its scale, which is whole everywhere.
            (Kind::Compute(_) | Kind::Add, Some(ValueClass::ParamLike))
                if n.origin.layer
                    && self.elementwise(id)
                    && n.inputs[1..]
                        .iter()
                        .all(|x| self.graph().ty(*x).dims.is_empty() || self.param_like(*x)) =>
            {
                ValueClass::ParamLike
            }
            // Of several values in a loop, so that what it stacks and carries is split. Elsewhere it is better to gather the
            // parameters themselves, all at once; and an update stands where the rules for moments say.
            (Kind::Compute(_) | Kind::Add, _)
                if (n.inputs.len() == 1 || n.scope.is_some() && n.origin.class == Class::Value)
                    && !n.inputs.is_empty()
                    && self.elementwise(id)
                    && of_params() =>
            {
                ValueClass::ParamLike
            }
            _ => ValueClass::Other,
        }
    }

    /// Number of ops by which a value follows from positions and constants alone, element by element; `None` if it does
    /// not, or if it is cheaper to compute it once and move it.
    fn ops_from_positions(&self, id: Id) -> Option<usize> {
        let n = self.node(id);
        match n.op.kind() {
            Kind::Rematerializable(_) => Some(1),
            Kind::Rename { .. } => self.generated[n.inputs[0]],
            Kind::Compute(_) if self.elementwise(id) && !n.inputs.is_empty() => {
                let ops = n.inputs.iter().map(|x| self.generated[*x]).sum::<Option<usize>>()? + 1;
                (ops <= MOST_OPS).then_some(ops)
            }
            _ => None,
        }
    }

    /// Whether an op works element by element, or leaves its operand as it is.
    pub(super) fn is_elementwise(&self, id: Id) -> bool {
        self.elementwise(id) || matches!(self.kind(id), Kind::Rename { .. } | Kind::Boundary(_))
    }

    fn elementwise(&self, id: Id) -> bool {
        self.elementwise[id]
    }

    /// Whether an op is linear in the operands in `slots` together, the others being reduced.
    pub(super) fn linear_in(&self, id: Id, slots: &SortedSet<usize>) -> bool {
        self.roles(id).linear_in(slots, self.node(id).inputs.len())
    }

    /// The loop of an op that goes along a dim of an operand.
    pub(super) fn loop_on(&self, user: Id, operand: Id, dim: Dim) -> Option<&Loop> {
        let inputs = &self.node(user).inputs;
        let along = |l: &&Loop| inputs.iter().zip(&l.on).any(|(x, on)| *x == operand && *on == Some(dim));
        self.roles(user).loops.iter().find(along)
    }

    // ------------------------------------------------------------------------------------------- what users ask for

    /// Whether an op costs nothing and moves nothing, so that it is computed where its users want the result.
    pub(super) fn transparent(&self, id: Id) -> bool {
        let n = self.node(id);
        let kind = n.op.kind();
        let simple = matches!(kind, Kind::Rename { .. })
            || (matches!(kind, Kind::Compute(_)) && n.inputs.len() == 1 && self.elementwise(id));
        simple && !self.is_output(id)
    }

    /// True if an op's demand on its operand depends on the demand on its result.
    fn sees_through(&self, id: Id) -> bool {
        matches!(self.kind(id), Kind::Rename { .. }) || self.transparent(id)
    }

    /// The one placement that all users of a value ask for, where its op costs nothing.
    pub(super) fn wanted(&self, id: Id) -> Option<&Placement> {
        self.wanted.get(&id)
    }

    /// The placement of `v` that its user will ask for, seen through ops that cost nothing.
    pub(super) fn demand(&self, user: Id, v: Id) -> Placement {
        let rename = if let Kind::Rename { from, to } = self.kind(user) { Some((from, to)) } else { None };
        if self.sees_through(user) {
            if let Some(w) = self.wanted(user) {
                let back = |d: Dim| match rename {
                    Some((from, to)) if d == to => from,
                    _ => d,
                };
                let dims = &self.graph().ty(v).dims;
                return Placement::split(
                    w.splits.iter().map(|(d, a)| (back(*d), a.clone())).filter(|(d, _)| dims.contains(d)),
                );
            }
            if rename.is_some() {
                return self.target(v);
            }
        }
        if let Some(asked) = self.boundary(user).and_then(|b| self.demand_across(b, user, v)) {
            return asked;
        }
        let slot = self.node(user).inputs.iter().position(|x| *x == v).unwrap_or(0);
        // The additional elements of a window are fetched for this user alone; they do not decide the placement.
        self.operand(user, slot, self.rigid(user)).without_windows()
    }

    /// The placement of a result whose op leaves its loops split so, with the axes in `keep` partial.
    pub(super) fn result(&self, id: Id, loops: &Loops, keep: &SortedSet<Axis>) -> Placement {
        let ty = self.graph().ty(id);
        let mut p = Placement::split(loops.iter().filter(|(d, _)| ty.has(**d)).map(|(d, a)| (*d, a.clone())));
        p.partial = keep.iter().map(|a| (*a, Monoid::Sum)).collect();
        for l in &self.roles(id).loops {
            if let Role::Reduction(m) = l.role {
                p.partial.extend(loops.get(&l.dim).into_iter().flatten().map(|a| (*a, m)));
            }
        }
        p
    }
}

fn forward_values(g: &Graph) -> SortedMap<Arc<str>, Vec<Id>> {
    let mut values: SortedMap<Arc<str>, Vec<Id>> = SortedMap::new();
    for id in g.ids() {
        let origin = &g.node(id).origin;
        if origin.phase == Phase::Forward {
            values.entry(origin.name.clone()).or_default().push(id);
        }
    }
    values
}

fn users(g: &Graph) -> IdVec<Id, Vec<Id>> {
    let mut users = g.nodes.table(Vec::new());
    for id in g.ids() {
        for i in &g.node(id).inputs {
            let list: &mut Vec<Id> = &mut users[*i];
            if list.last() != Some(&id) {
                list.push(id);
            }
        }
    }
    users
}
