//! When partial sums are reduced, and where: the lazy half of the walk.

use super::decision::Reason;
use super::propagation::Walk;
use meshwright_ops::{Crossing, Id, Kind, Role};
use meshwright_plan::{Axis, Monoid, Placement};
use meshwright_sorted::SortedSet;
use meshwright_syntax::ast::{ReduceWhen, ScopeKind};

impl Walk<'_> {
    /// Decides, at the first use of a value, which of its partial axes are reduced here, and in which placement. A value is
    /// reduced once: as soon as one user needs it reduced, all users take the reduced one.
    pub(super) fn settle(&mut self, v: Id) {
        if self.state.settled[v].is_some() {
            return;
        }
        let natural = self.state.natural[v].clone().unwrap_or_default();
        let todo: Vec<Axis> =
            natural.partial.iter().filter(|(a, m)| !self.stays_open(v, **a, **m)).map(|(a, _)| *a).collect();
        if todo.is_empty() {
            self.state.settled[v] = Some(natural);
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
        let target = strip(&self.facts.target(v));
        let mut wanted: SortedSet<Placement> = SortedSet::new();
        if self.facts.is_gradient(v) || self.facts.is_output(v) {
            wanted.insert(target.clone());
        }
        for carry in self.facts.carries_of(v) {
            wanted.insert(strip(&self.state.current(*carry)));
        }
        for u in self.facts.users(v) {
            let d = self.facts.demand(*u, v);
            let d = self.with_followed(*u, v, &natural, d);
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
        // A gradient is reduced where it is made, whoever uses it.
        let user = if self.facts.is_gradient(v) { None } else { self.facts.users(v).first().copied() };
        self.note_finished(v, &natural, &hub);
        self.convert(v, &hub, user);
        self.state.settled[v] = Some(hub);
    }

    /// The placement that a user needs, with splits of the value that no rule names and that the user will follow: a
    /// dim may be split because its source is (the positions of a window, a renamed dim).
    fn with_followed(&self, user: Id, v: Id, natural: &Placement, mut demand: Placement) -> Placement {
        let roles = self.facts.roles(user);
        let slot = self.facts.node(user).inputs.iter().position(|x| *x == v).unwrap_or(0);
        let loops = self.facts.rigid(user);
        for (dim, axes) in &natural.splits {
            let Some(l) = roles.loops.iter().find(|l| l.on[slot] == Some(*dim)) else { continue };
            let taken = |a: &Axis| demand.uses(*a) || loops.values().flatten().any(|b| b == a);
            if l.role == Role::Parallel && demand.axes(*dim).is_empty() && !axes.iter().any(taken) {
                demand.splits.insert(*dim, axes.clone());
            }
        }
        demand
    }

    /// Whether a value may stay partial over an axis.
    fn stays_open(&self, v: Id, axis: Axis, monoid: Monoid) -> bool {
        let users = self.facts.users(v);
        if !self.facts.carries_of(v).is_empty() {
            return false;
        }
        if monoid != Monoid::Sum || users.is_empty() || self.facts.is_gradient(v) || self.facts.is_output(v) {
            return false;
        }
        if !users.iter().all(|u| self.accepts(*u, v, axis)) {
            return false;
        }
        // Stages do not meet within a microbatch, whatever a value costs as a partial one. Outside, what one of them has goes to
        // all as soon as it is smallest.
        let beside = self.facts.node(v).scope.is_none() && self.is_rooted(v);
        if self.facts.between_stages(axis) && !beside {
            return true;
        }
        if let [only] = users
            && (matches!(self.facts.kind(*only), Kind::Add | Kind::Rename { .. })
                || self.facts.boundary(*only).is_some())
        {
            return true;
        }
        // Reducing later must not cost more: the results of all users are no larger than the value.
        let mut after = 0;
        for u in users {
            let mut p = self.facts.result(*u, self.facts.rigid(*u), &SortedSet::new());
            p.partial.clear();
            after += self.facts.bytes(*u, &p);
        }
        let natural = self.state.natural[v].clone().unwrap_or_default();
        after <= self.facts.bytes(v, &natural)
    }

    /// Whether a user may take a value while it is partial over an axis.
    fn accepts(&self, user: Id, v: Id, axis: Axis) -> bool {
        let facts = self.facts;
        if let Some(b) = facts.boundary(user) {
            return self.leaves_open(user, b.how, axis);
        }
        if facts.is_split_around(user, v, axis) {
            return false;
        }
        if matches!(facts.kind(user), Kind::Rename { .. }) {
            return true;
        }
        let inputs = &facts.node(user).inputs;
        if facts.is_add(user) {
            let same_dims = |x: &Id| {
                let (a, b) = (&facts.graph().ty(*x).dims, &facts.graph().ty(v).dims);
                a.len() == b.len() && a.iter().all(|d| b.contains(d))
            };
            let meets = |x: &Id| *x != v && self.state.is_partial(*x, axis) && same_dims(x);
            return !facts.is_gradient(v) && inputs.iter().any(meets);
        }
        if facts.rigid(user).values().flatten().any(|a| *a == axis) {
            return false;
        }
        let partial = |slot: &usize| inputs[*slot] == v || self.state.is_partial(inputs[*slot], axis);
        let slots: SortedSet<usize> = (0..inputs.len()).filter(partial).collect();
        facts.linear_in(user, &slots)
    }

    /// Whether a value may leave the body of a loop while it is partial over an axis: if it is summed, in this loop or
    /// in the one around it, so that it is reduced once. A gradient that is split over the axis is an exception: each
    /// iteration keeps only its shard.
    fn leaves_open(&self, crossing: Id, how: Crossing, axis: Axis) -> bool {
        let facts = self.facts;
        // A device in the body of a loop over stages waits for none of another stage.
        if facts.between_stages(axis)
            && facts.graph().node(crossing).scope.is_none()
            && how == Crossing::Accumulate
            || facts
                .boundary(crossing)
                .is_some_and(|b| matches!(how, Crossing::Carry(_)) && facts.has_stages(b.of))
        {
            return true;
        }
        let users = facts.users(crossing);
        let sums = |u: &Id| facts.boundary(*u).is_some_and(|b| b.how == Crossing::Accumulate);
        let summed = match how {
            Crossing::Accumulate => true,
            Crossing::Stack => !users.is_empty() && !facts.is_output(crossing) && users.iter().all(sums),
            _ => false,
        };
        // Once, as the sum of all parts, if the layout says so.
        let parts = facts.graph().microbatches.is_some();
        let when = facts.layout.reduce_when.filter(|_| parts).map(|(when, _)| when);
        summed && (when == Some(ReduceWhen::Once) || !self.shards_gradient(crossing, axis, when))
    }

    /// Whether a value that leaves a loop becomes a gradient that a rule for gradients or parameters splits over an
    /// axis; if each part is to reduce its gradients, also one for the optimizer state.
    fn shards_gradient(&self, mut at: Id, axis: Axis, when: Option<ReduceWhen>) -> bool {
        let facts = self.facts;
        while !facts.is_gradient(at) {
            // Several sums that meet are reduced once, where they meet.
            let [user] = facts.users(at) else { return false };
            if facts.is_add(*user) {
                return false;
            }
            at = *user;
        }
        let rule = facts.said(at).by.get(&axis).map(|rule| &facts.layout.rules[*rule].scope.kind);
        match rule {
            Some(Some(ScopeKind::Moments)) => when == Some(ReduceWhen::ByPart),
            Some(Some(ScopeKind::Grads | ScopeKind::Params)) => true,
            _ => false,
        }
    }
}
