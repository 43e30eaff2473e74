//! When unfinished sums are finished, and where: the lazy half of the pass.

use super::pass::Pass;
use super::reasons::Reason;
use meshwright_ops::{Id, Kind, Role};
use meshwright_plan::{Axis, Monoid, Placement};
use std::collections::BTreeSet;

impl Pass<'_> {
    /// Decides, at the first use of a value, which of its unfinished axes are finished here, and in which placement. A
    /// value is finished once: as soon as one user needs it finished, all users take the finished one.
    pub(super) fn settle(&mut self, v: Id) {
        let i = v.0 as usize;
        if self.settled[i].is_some() {
            return;
        }
        let natural = self.natural[i].clone().unwrap_or_default();
        let todo: Vec<Axis> =
            natural.partial.iter().filter(|(a, m)| !self.stays_open(v, **a, **m)).map(|(a, _)| *a).collect();
        if todo.is_empty() {
            self.settled[i] = Some(natural);
            return;
        }
        let keep: Vec<(Axis, Monoid)> =
            natural.partial.iter().filter(|(a, _)| !todo.contains(a)).map(|(a, m)| (*a, *m)).collect();
        let strip = |p: &Placement| {
            let open = |a: &Axis| keep.iter().any(|k| k.0 == *a);
            let mut q = Placement::split(
                p.splits
                    .iter()
                    .map(|(d, a)| (*d, a.iter().copied().filter(|a| !open(a)).collect::<Vec<_>>())),
            );
            q.partial = keep.iter().copied().collect();
            q
        };
        let target = strip(&self.target(v));
        let mut wanted: BTreeSet<Placement> = BTreeSet::new();
        if self.is_gradient(v) || self.given.contains(&v) {
            wanted.insert(target.clone());
        }
        for u in self.users[i].clone() {
            let d = self.demand(u, v);
            let d = self.with_followed(u, v, &natural, d);
            wanted.insert(strip(&d));
        }
        let mut hubs: Vec<Placement> = wanted.iter().cloned().collect();
        if !hubs.contains(&target) {
            hubs.push(target.clone());
        }
        let mut best: Option<(u64, bool, Placement)> = None;
        for hub in hubs {
            let mut cost = self.cost(v, &natural, &hub);
            for w in &wanted {
                cost = cost.saturating_add(self.cost(v, &hub, w));
            }
            let candidate = (cost, hub != target, hub);
            if best.as_ref().is_none_or(|b| candidate < *b) {
                best = Some(candidate);
            }
        }
        let by_rules = best.as_ref().is_none_or(|b| !b.1);
        let hub = best.map_or(target, |b| b.2);
        self.note(v, Reason::Reduced { to: hub.clone(), by_rules });
        // A gradient is finished where it is made, whoever uses it.
        let user = if self.is_gradient(v) { None } else { self.users[i].first().copied() };
        self.convert(v, &hub, user);
        self.settled[i] = Some(hub);
    }

    /// What a user asks for, with the splits of the value that no rule speaks of and that the user will follow: a dim may
    /// be split because what it was made from is (the positions of a window, a renamed dim).
    fn with_followed(&mut self, user: Id, v: Id, natural: &Placement, mut demand: Placement) -> Placement {
        let roles = self.roles(user);
        let slot = self.node(user).inputs.iter().position(|x| *x == v).unwrap_or(0);
        let loops = self.rigid(user);
        for (dim, axes) in &natural.splits {
            let Some(l) = roles.loops.iter().find(|l| l.on[slot] == Some(*dim)) else { continue };
            let taken = |a: &Axis| demand.uses(*a) || loops.values().flatten().any(|b| b == a);
            if l.role == Role::Parallel && demand.axes(*dim).is_empty() && !axes.iter().any(taken) {
                demand.splits.insert(*dim, axes.clone());
            }
        }
        demand
    }

    /// Whether a value may go on unfinished over an axis.
    fn stays_open(&mut self, v: Id, axis: Axis, monoid: Monoid) -> bool {
        let users = self.users[v.0 as usize].clone();
        if monoid != Monoid::Sum || users.is_empty() || self.is_gradient(v) || self.given.contains(&v) {
            return false;
        }
        if !users.iter().all(|u| self.accepts(*u, v, axis)) {
            return false;
        }
        if let [only] = users[..]
            && matches!(self.node(only).op.kind(), Kind::Add | Kind::Rename { .. })
        {
            return true;
        }
        // Finishing later must not cost more: the results of all users are no larger than the value.
        let mut after = 0;
        for u in users {
            let loops = self.rigid(u);
            let dims = self.graph().ty(u).dims.clone();
            let p = Placement::split(loops.into_iter().filter(|(d, _)| dims.contains(d)));
            after += self.bytes(u, &p);
        }
        let natural = self.natural[v.0 as usize].clone().unwrap_or_default();
        after <= self.bytes(v, &natural)
    }

    /// Whether a user may take a value while it is unfinished over an axis.
    fn accepts(&mut self, user: Id, v: Id, axis: Axis) -> bool {
        let node = self.node(user);
        if matches!(node.op.kind(), Kind::Rename { .. }) {
            return true;
        }
        let inputs = node.inputs.clone();
        let open =
            |p: &Pass, x: &Id| p.natural[x.0 as usize].is_some() && p.current(*x).partial.contains_key(&axis);
        if self.is_add(user) {
            let same_dims = |p: &Pass, x: &Id| {
                let (a, b) = (&p.graph().ty(*x).dims, &p.graph().ty(v).dims);
                a.len() == b.len() && a.iter().all(|d| b.contains(d))
            };
            return !self.is_gradient(v)
                && inputs.iter().any(|x| *x != v && open(self, x) && same_dims(self, x));
        }
        if self.rigid(user).values().flatten().any(|a| *a == axis) {
            return false;
        }
        let slots: BTreeSet<usize> =
            inputs.iter().enumerate().filter(|(_, x)| **x == v || open(self, x)).map(|(i, _)| i).collect();
        self.linear_in(user, &slots)
    }
}
