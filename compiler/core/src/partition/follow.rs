//! The loops of one op: what the rules say, what its users want, and which operand it follows where the rules are silent.

use super::decision::Loops;
use super::decision::{Reason, Refusal};
use super::propagation::Walk;
use meshwright_ops::{Id, Role};
use meshwright_plan::{Axis, Dim, Placement};
use meshwright_sorted::SortedSet;
use std::cmp::Reverse;

impl Walk<'_> {
    /// The axes of an op's loops, and the axes over which it works on partial sums.
    pub(super) fn choose_loops(&mut self, id: Id) -> (Loops, SortedSet<Axis>) {
        let facts = self.facts;
        let asked = facts.loop_dims(id);
        let mut loops = facts.rigid(id).clone();
        self.note(id, Reason::Rules { asked, said: facts.ruled(id).clone() });
        if let Some(splits) = self.where_users_want(id) {
            self.note(id, Reason::Wanted { splits: splits.clone(), users: facts.users(id).to_vec() });
            loops = splits;
        }
        self.scatter_into_shards(id, &mut loops);
        let keep = self.keep_partial(id, &mut loops);
        self.follow(id, &mut loops, &keep);
        (loops, keep)
    }

    /// The loops that give what all users of an op want that costs nothing, where its operand gets there without a byte moved.
    fn where_users_want(&mut self, id: Id) -> Option<Loops> {
        let facts = self.facts;
        let wanted = facts.wanted(id).filter(|_| facts.transparent(id))?;
        let x = facts.node(id).inputs[0];
        let now = self.state.current(x);
        now.partial.is_empty().then_some(())?;
        let ty = facts.graph().ty(x);
        let p =
            Placement::split(wanted.splits.iter().filter(|(d, _)| ty.has(**d)).map(|(d, a)| (*d, a.clone())));
        (facts.rematerializable(x) || self.cost(x, &now, &p) == 0).then(|| wanted.splits.clone())
    }

    /// The axes over which an op works on partial sums: those of its operands, where it is linear in exactly these and the axis
    /// is in none of its loops. An add drops the axis from its loops instead.
    fn keep_partial(&mut self, id: Id, loops: &mut Loops) -> SortedSet<Axis> {
        let inputs = &self.facts.node(id).inputs;
        let open: SortedSet<Axis> =
            inputs.iter().flat_map(|x| self.state.current(*x).partial).map(|(axis, _)| axis).collect();
        let mut keep = SortedSet::new();
        for axis in open {
            let partial = |slot: &usize| self.state.is_partial(inputs[*slot], axis);
            let slots: SortedSet<usize> = (0..inputs.len()).filter(partial).collect();
            let blocked = loops.values().flatten().any(|a| *a == axis);
            if self.facts.linear_in(id, &slots) && (!blocked || self.facts.is_add(id)) {
                keep.insert(axis);
                let operands = slots.iter().map(|s| inputs[*s]).collect();
                self.note(id, Reason::Partial { axis, operands });
                for (_, axes) in loops.iter_mut() {
                    axes.retain(|a| *a != axis);
                }
                loops.retain(|_, a| !a.is_empty());
            }
        }
        keep
    }

    /// A gradient that is stored split, of an op that scatters: if the operands are smaller than the result, each
    /// device gathers them and adds into its own shard, instead of a sum over the whole result and a slice.
    fn scatter_into_shards(&mut self, id: Id, loops: &mut Loops) {
        let facts = self.facts;
        let roles = facts.roles(id);
        let scatters =
            roles.loops.iter().any(|l| l.role == Role::Parallel && l.on.iter().all(Option::is_none));
        let [gradient] = facts.users(id) else { return };
        if !scatters
            || facts.node(id).inputs.is_empty()
            || !facts.is_gradient(*gradient)
            || facts.is_output(id)
        {
            return;
        }
        let target = facts.target(*gradient);
        let reduced = |d: &Dim| roles.get(*d).is_some_and(|l| matches!(l.role, Role::Reduction(_)));
        let mut scattered = loops.clone();
        scattered.retain(|d, axes| !reduced(d) || !axes.iter().any(|a| target.split_axes().any(|b| b == *a)));
        if scattered == *loops {
            return;
        }
        scattered.retain(|d, _| !target.splits.contains_key(d));
        scattered.extend(target.splits.clone());
        let used: Vec<Axis> = scattered.values().flatten().copied().collect();
        if used.iter().collect::<SortedSet<_>>().len() < used.len() {
            return;
        }
        let (reduce, gather) =
            (self.carried_out(id, loops, &target), self.carried_out(id, &scattered, &target));
        if gather < reduce {
            self.note(id, Reason::Scattered { splits: scattered.clone(), reduce, gather });
            self.scattered.insert(id);
            *loops = scattered;
        }
    }

    /// Cost of moving the operands of an op to its loops, and its result to a placement.
    fn carried_out(&mut self, id: Id, loops: &Loops, dst: &Placement) -> u64 {
        let facts = self.facts;
        let natural = facts.result(id, loops, &SortedSet::new());
        let mut cost = self.cost(id, &natural, dst);
        for (slot, x) in
            facts.node(id).inputs.iter().enumerate().filter(|(_, x)| !facts.rematerializable(**x))
        {
            let needed = facts.operand(id, slot, loops).without_windows();
            let now = self.state.current(*x);
            cost = cost.saturating_add(self.cost(*x, &now, &needed));
        }
        cost
    }

    /// Axes that the rules leave free: follow an operand that is split there, where that costs no more than gathering it.
    fn follow(&mut self, id: Id, loops: &mut Loops, keep: &SortedSet<Axis>) {
        let facts = self.facts;
        let inputs = &facts.node(id).inputs;
        let mut used: SortedSet<Axis> =
            loops.values().flatten().copied().chain(keep.iter().copied()).collect();
        let mut slots: Vec<usize> = (0..inputs.len()).collect();
        slots.sort_by_key(|s| Reverse(facts.bytes(inputs[*s], &Placement::replicated())));
        for slot in slots {
            let x = inputs[slot];
            // A split by a `params:` rule ends where values begin, but for the maximum of a factor: a number for each part.
            let ends = facts.param_like(x) && !facts.param_like(id) && !facts.is_maximum_of_factor(id);
            if facts.rematerializable(x) || ends {
                self.note_stored(id, slot, x, loops);
                continue;
            }
            for (on, axes) in self.state.current(x).splits {
                let Some(l) = facts.roles(id).loops.iter().find(|l| l.on[slot] == Some(on)) else { continue };
                for (k, axis) in axes.iter().enumerate() {
                    let (dim, axis) = (l.dim, *axis);
                    let prefix = loops.get(&dim).map_or(&[][..], Vec::as_slice);
                    if used.contains(&axis) || l.role == Role::NeedReplication || axes[..k] != *prefix {
                        self.note_refused(id, (dim, l.role), axis, x, loops);
                        continue;
                    }
                    let reason = self.follow_or_gather(id, (dim, l.role), (x, on), axis);
                    if matches!(reason, Reason::Followed { .. }) {
                        loops.entry(dim).or_default().push(axis);
                        used.insert(axis);
                    }
                    self.note(id, reason);
                }
            }
        }
    }

    /// Whether a loop is split as an operand is, along its dim `on`.
    fn follow_or_gather(&self, id: Id, (dim, role): (Dim, Role), (x, on): (Id, Dim), axis: Axis) -> Reason {
        let facts = self.facts;
        let refused = |why| Reason::Refused { dim, axis, operand: x, why };
        let finish = if matches!(role, Role::Reduction(_)) { 2 * facts.gathered(id, axis) } else { 0 };
        let dim_on = |x: Id| {
            let splits = self.state.current(x).splits;
            splits.into_iter().find(|(_, axes)| axes.contains(&axis)).map(|(dim, _)| (x, dim))
        };
        let split: Vec<(Id, Dim)> = facts.node(id).inputs.iter().filter_map(|x| dim_on(*x)).collect();
        let gather = split.iter().map(|(x, _)| facts.gathered(*x, axis)).sum();
        // A step without a rule is not taken to save bytes: the legality of a program must not depend on its sizes.
        if finish > gather && split.iter().all(|(x, dim)| self.implied(*x, axis, *dim, Some(id))) {
            return refused(Refusal::Dearer(finish, gather));
        }
        if facts.is_gradient(id) {
            // All of its update would follow, and be gathered: the next parameter and every state of the optimizer.
            return refused(Refusal::Gradient);
        }
        let whole = facts.gathered(x, axis);
        match self.reductions_after(x, on, axis, whole) {
            Some(after) => refused(Refusal::Downstream(after, whole)),
            None => Reason::Followed { dim, axis, operand: x, on, finish, gather },
        }
    }

    /// Bytes on the wire for reducing all that is summed along a dim of a value and of what is computed from it while it stays
    /// split, in units of 1 / axis size; `None` where they are no more than `limit`, or where gathering the value is no choice.
    fn reductions_after(&self, x: Id, on: Dim, axis: Axis, limit: u64) -> Option<u64> {
        let facts = self.facts;
        // The dim may be gathered, and several ops would each go on with a part of it.
        let may = facts.layout.joins(on) || self.gradient_of_whole(x, axis, on);
        if !may || !self.branches(x, on) {
            return None;
        }
        let mut bytes = 0;
        let mut todo = vec![(x, on)];
        let mut seen: SortedSet<(Id, Dim)> = todo.iter().copied().collect();
        let mut summed: SortedSet<Id> = SortedSet::new();
        while let Some((v, d)) = todo.pop() {
            for u in
                facts.users(v).iter().filter(|u| !facts.rigid(**u).values().flatten().any(|a| *a == axis))
            {
                let Some(l) = facts.loop_on(*u, v, d) else { continue };
                match l.role {
                    Role::Parallel if seen.insert((*u, l.dim)) => todo.push((*u, l.dim)),
                    Role::Reduction(_) if summed.insert(*u) => bytes += 2 * facts.gathered(*u, axis),
                    _ => {}
                }
            }
            if bytes > limit {
                return Some(bytes);
            }
        }
        None
    }

    /// Whether a value goes, split along a dim, into several ops or into one whose result is larger: then gathering it once is
    /// less than gathering what they make of it.
    fn branches(&self, x: Id, on: Dim) -> bool {
        let facts = self.facts;
        let parallel = |u: &&Id| facts.loop_on(**u, x, on).is_some_and(|l| l.role == Role::Parallel);
        let size = |id: Id| facts.bytes(id, &Placement::replicated());
        match facts.users(x).iter().filter(parallel).collect::<Vec<_>>()[..] {
            [] => false,
            [only] => size(*only) > size(x),
            _ => true,
        }
    }
}
