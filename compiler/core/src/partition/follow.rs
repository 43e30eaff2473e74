//! The loops of one op: what the rules say, what its users want, and which operand it follows where the rules are silent.

use super::pass::{Loops, Pass};
use super::reasons::{Reason, Refusal};
use meshwright_diag::{Diagnostic, codes};
use meshwright_ops::{Id, Kind, Role};
use meshwright_plan::{Axis, Dim, Placement};
use std::collections::BTreeSet;

impl Pass<'_> {
    /// The axes of an op's loops, and the axes over which it works on unfinished sums.
    pub(super) fn choose_loops(&mut self, id: Id) -> (Loops, BTreeSet<Axis>) {
        let inputs = self.node(id).inputs.clone();
        let (asked, said) = self.ruled(id);
        let mut loops = said.splits.clone();
        self.note(id, Reason::Rules { asked, said });
        if self.transparent(id)
            && let Some(w) = self.wanted(id)
        {
            let x = inputs[0];
            let now = self.current(x);
            if now.partial.is_empty() {
                let dims = self.graph().ty(x).dims.clone();
                let p = Placement::split(
                    w.splits.iter().filter(|(d, _)| dims.contains(d)).map(|(d, a)| (*d, a.clone())),
                );
                if self.rematerializable(x) || self.route(x, &now, &p).0 == 0 {
                    let users = self.users[id.0 as usize].clone();
                    self.note(id, Reason::Wanted { splits: w.splits.clone(), users });
                    loops = w.splits.clone();
                }
            }
        }
        let open: BTreeSet<Axis> = inputs.iter().flat_map(|x| self.current(*x).partial.into_keys()).collect();
        let mut keep = BTreeSet::new();
        for axis in open {
            let slots: BTreeSet<usize> = inputs
                .iter()
                .enumerate()
                .filter(|(_, x)| self.current(**x).partial.contains_key(&axis))
                .map(|(i, _)| i)
                .collect();
            let blocked = loops.values().flatten().any(|a| *a == axis);
            if self.linear_in(id, &slots) && (!blocked || self.is_add(id)) {
                keep.insert(axis);
                let operands = slots.iter().map(|s| inputs[*s]).collect();
                self.note(id, Reason::Partial { axis, operands });
                for axes in loops.values_mut() {
                    axes.retain(|a| *a != axis);
                }
                loops.retain(|_, a| !a.is_empty());
            }
        }
        self.follow(id, &mut loops, &keep);
        (loops, keep)
    }

    /// Axes that the rules leave free: follow an operand that is split there, where that costs no more than gathering it.
    fn follow(&mut self, id: Id, loops: &mut Loops, keep: &BTreeSet<Axis>) {
        let inputs = self.node(id).inputs.clone();
        let roles = self.roles(id);
        let mut used: BTreeSet<Axis> =
            loops.values().flatten().copied().chain(keep.iter().copied()).collect();
        let mut slots: Vec<usize> = (0..inputs.len()).collect();
        slots.sort_by_key(|s| std::cmp::Reverse(self.bytes(inputs[*s], &Placement::replicated())));
        for slot in slots {
            let x = inputs[slot];
            // What a `params:` rule splits ends where values begin.
            if self.rematerializable(x) || (self.param_like(x) && !self.param_like(id)) {
                self.note_stored(id, slot, x, loops);
                continue;
            }
            for (dim, axes) in self.current(x).splits {
                let Some(l) = roles.loops.iter().find(|l| l.on[slot] == Some(dim)) else { continue };
                for (k, axis) in axes.iter().enumerate() {
                    let prefix = loops.get(&l.dim).map_or(&[][..], Vec::as_slice);
                    if used.contains(axis) || l.role == Role::NeedReplication || axes[..k] != *prefix {
                        self.note_refused(id, (l.dim, l.role), *axis, x, loops);
                        continue;
                    }
                    let (finish, gather) =
                        (self.follow_cost(id, *axis, l.role), self.gather_cost(&inputs, *axis));
                    if finish > gather {
                        let why = Refusal::Dearer(finish, gather);
                        self.note(id, Reason::Refused { dim: l.dim, axis: *axis, operand: x, why });
                    } else {
                        let (dim, axis, on) = (l.dim, *axis, dim);
                        self.note(id, Reason::Followed { dim, axis, operand: x, on, finish, gather });
                        loops.entry(l.dim).or_default().push(axis);
                        used.insert(axis);
                    }
                }
            }
        }
    }

    /// Bytes on the wire for finishing the result, if the loop that is split folds; in units of 1 / axis size.
    fn follow_cost(&self, id: Id, axis: Axis, role: Role) -> u64 {
        let others = self.mesh.size(axis) as u64 - 1;
        if matches!(role, Role::Reduction(_)) {
            2 * others * self.bytes(id, &Placement::replicated())
        } else {
            0
        }
    }

    /// Bytes on the wire for gathering all operands that are split over an axis; in the same units.
    fn gather_cost(&self, inputs: &[Id], axis: Axis) -> u64 {
        let others = self.mesh.size(axis) as u64 - 1;
        inputs
            .iter()
            .filter(|x| self.current(**x).split_axes().any(|a| a == axis))
            .map(|x| others * self.bytes(*x, &Placement::replicated()))
            .sum()
    }

    /// Whether an op costs nothing and moves nothing, so that it is computed where its users want the result.
    fn transparent(&self, id: Id) -> bool {
        let n = self.node(id);
        let kind = n.op.kind();
        let simple = matches!(kind, Kind::Rename { .. })
            || (matches!(kind, Kind::Compute | Kind::Contraction)
                && n.inputs.len() == 1
                && self.pointwise(id));
        simple && !self.given.contains(&id)
    }

    /// The one placement that all users of a value ask for.
    fn wanted(&mut self, id: Id) -> Option<Placement> {
        // Users first, without recursion: chains may be long.
        let mut todo = vec![id];
        while let Some(v) = todo.last().copied() {
            let unknown = |u: &Id| !self.wants.contains_key(u) && self.sees_through(*u);
            let users = self.users[v.0 as usize].clone();
            let before = todo.len();
            if !self.wants.contains_key(&v) {
                todo.extend(users.iter().copied().filter(unknown));
            }
            if todo.len() > before {
                continue;
            }
            todo.pop();
            if !self.wants.contains_key(&v) {
                let all: BTreeSet<Placement> = users.iter().map(|u| self.demand(*u, v)).collect();
                let w = if all.len() == 1 { all.into_iter().next() } else { None };
                self.wants.insert(v, w);
            }
        }
        self.wants.get(&id).cloned().flatten()
    }

    /// Whether what an op asks of its operand depends on what is asked of its result.
    fn sees_through(&self, id: Id) -> bool {
        matches!(self.node(id).op.kind(), Kind::Rename { .. }) || self.transparent(id)
    }

    /// The placement of `v` that its user will ask for, seen through ops that cost nothing.
    pub(super) fn demand(&mut self, user: Id, v: Id) -> Placement {
        let kind = self.node(user).op.kind();
        let rename = if let Kind::Rename { from, to } = kind { Some((from, to)) } else { None };
        if self.transparent(user) || rename.is_some() {
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
        let slot = self.node(user).inputs.iter().position(|x| *x == v).unwrap_or(0);
        let loops = self.rigid(user);
        // What a window adds is fetched for this user alone; it does not decide where the value stands.
        self.operand(user, slot, &loops).without_windows()
    }
}

/// The error for a gather that no rule implies.
pub(super) fn unasked_gather(pass: &Pass, id: Id, axis: Axis, dim: Dim, user: Option<Id>) -> Diagnostic {
    let g = pass.graph();
    let (value, name, over) = (g.describe(id), g.dims.name(dim), pass.mesh.name(axis));
    let whole = pass.bytes(id, &Placement::replicated());
    let mut d = Diagnostic::error(
        codes::E0310,
        format!(
            "`{value}` would be gathered along `{name}` over `{over}`, {whole} bytes on every device, and no rule implies it"
        ),
    );
    let of_dim = |d: Dim| pass.layout.rules.iter().find(move |r| r.dim == crate::layout::RuleDim::Dim(d));
    let by_axis = pass.layout.rules.iter().find(|r| r.axes.contains(&axis));
    if let Some(u) = user {
        let wanted = g.describe(u);
        d = d.at(g.node(u).origin.span, format!("`{wanted}` needs `{name}` whole here"));
    }
    if user.is_none_or(|u| g.node(u).origin.span != g.node(id).origin.span) {
        d = d.and(g.node(id).origin.span, "the value that is split");
    }
    if let Some(r) = of_dim(dim).or(by_axis) {
        d = d.and(r.span, format!("rule {} splits it: `{}`", r.number, r.text));
    }
    if of_dim(dim).is_none() {
        d = d.help(format!("or give `{name}` a rule of its own"));
    }
    d.help(format!("if the gather is meant, say so in the layout: `gather {name}`"))
}
