//! Why dims of values are split: by a rule, as a parameter is stored, or since a sum was finished so. Known of each value as soon
//! as it is placed, so that a gather can be told to be implied or not, and which rule is at fault, without a look at what came
//! before.

use super::propagation::Walk;
use super::state::SplitBy;
use meshwright_ops::{Boundary, Crossing, Id, Kind};
use meshwright_plan::{Axis, Dim, Phase, Placement};

impl Walk<'_> {
    /// Keeps why a value is split as its op leaves it: a rule speaks of it, or it is split as its operands are.
    pub(super) fn note_splits(&mut self, id: Id, p: &Placement) {
        for (dim, axis) in pairs(p) {
            let by = self.said_by(id, dim, axis).or_else(|| self.operands_by(id, dim, axis));
            self.record(id, dim, axis, by);
        }
        if self.facts.is_elementwise(id) {
            let inputs = self.facts.node(id).inputs.iter();
            let sums = inputs.flat_map(|x| self.state.sums.range((*x, Axis(0))..=(*x, Axis(u8::MAX))));
            let axes: Vec<Axis> = sums.map(|s| s.1).collect();
            axes.into_iter().for_each(|axis| self.record_sum(id, axis));
        }
    }

    fn record_sum(&mut self, id: Id, axis: Axis) {
        self.state.sums.insert((id, axis));
        let origin = &self.facts.node(id).origin;
        if origin.phase == Phase::Forward {
            self.state.sum_names.insert((origin.name.clone(), axis));
        }
    }

    /// Keeps why a value is split where its partial sums have been reduced.
    pub(super) fn note_finished(&mut self, id: Id, natural: &Placement, now: &Placement) {
        for (dim, axis) in pairs(now).into_iter().filter(|(d, a)| !natural.axes(*d).contains(a)) {
            let finished = natural.partial.contains_key(&axis).then_some(SplitBy::Finished);
            self.record(id, dim, axis, self.said_by(id, dim, axis).or(finished));
        }
        for (_, axis) in pairs(natural).into_iter().filter(|(_, a)| !now.uses(*a)) {
            self.state.split_by.remove(&(id, axis));
        }
        for axis in natural.partial.keys().filter(|a| !now.partial.contains_key(a)) {
            self.record_sum(id, *axis);
        }
    }

    fn record(&mut self, id: Id, dim: Dim, axis: Axis, by: Option<SplitBy>) {
        let Some(by) = by else {
            self.state.split_by.remove(&(id, axis));
            return;
        };
        self.state.split_by.insert((id, axis), (dim, by));
    }

    /// The rule that splits a dim of a value.
    fn said_by(&self, id: Id, dim: Dim, axis: Axis) -> Option<SplitBy> {
        let said = self.facts.said(id);
        let rule =
            said.splits.get(&dim).filter(|axes| axes.contains(&axis)).and_then(|_| said.by.get(&axis))?;
        let stored = self.facts.layout.rules[*rule].scope.kind.is_some();
        Some(if stored { SplitBy::Stored(*rule) } else { SplitBy::Ruled(*rule) })
    }

    /// Why the operands are split along which a dim of the result is: the strongest reason.
    fn operands_by(&self, id: Id, dim: Dim, axis: Axis) -> Option<SplitBy> {
        let facts = self.facts;
        let inputs = &facts.node(id).inputs;
        let of =
            |x: Id, on: Dim| self.state.split_by.get(&(x, axis)).filter(|(d, _)| *d == on).map(|(_, by)| *by);
        match facts.kind(id) {
            Kind::Rename { from, to } => of(inputs[0], if dim == to { from } else { dim }),
            Kind::Boundary(Boundary { how: Crossing::Final, .. }) => {
                of(facts.carries_of(inputs[0]).first().copied().unwrap_or(inputs[0]), dim)
            }
            Kind::Boundary(_) => of(inputs[0], dim),
            _ => {
                let l = facts.roles(id).loops.iter().find(|l| l.dim == dim)?;
                inputs.iter().zip(&l.on).filter_map(|(x, on)| of(*x, (*on)?)).max()
            }
        }
    }

    /// Whether a value is split since a sum was finished so: to gather it is the second half of the all-reduce that the sum
    /// implies.
    pub(super) fn finished_split(&self, id: Id, axis: Axis, dim: Dim) -> bool {
        match self.state.split_by.get(&(id, axis)).filter(|(on, _)| *on == dim) {
            Some((_, by)) => *by == SplitBy::Finished,
            // It went there on the way from one placement to another.
            None => self.state.sums.contains(&(id, axis)),
        }
    }

    /// Whether a value is the gradient of a sum over the axis: what is summed over devices is, in the backward pass, needed whole
    /// by each of them. So is what is made of it for the operand of the sum, which is the same along the dim that was summed.
    pub(super) fn gradient_of_sum(&self, id: Id, axis: Axis) -> bool {
        let of = self.facts.node(id).origin.name.strip_prefix("d(").and_then(|n| n.strip_suffix(')'));
        let lacks = |d: &Dim| !self.facts.graph().ty(id).has(*d);
        let summed =
            |x: Id| self.state.current(x).splits.iter().any(|(d, axes)| axes.contains(&axis) && lacks(d));
        of.is_some_and(|name| self.state.sum_names.contains(&(name.into(), axis)))
            || self.facts.values_of_gradient(id).any(summed)
    }

    /// Whether a value is the gradient of one that each device has whole in the forward pass, and takes a part of where a rule
    /// for another name of the dim asks for it: keys and values, under `key -> a`. To take a part costs nothing; the gradient of
    /// that is to gather.
    pub(super) fn gradient_of_whole(&self, id: Id, axis: Axis, dim: Dim) -> bool {
        let mut of =
            self.facts.values_of_gradient(id).filter(|x| self.facts.graph().ty(*x).has(dim)).peekable();
        of.peek().is_some() && of.all(|x| !self.state.current(x).axes(dim).contains(&axis))
    }

    /// The same where such a gradient is made of the value: of what a path splits that is not split around it, and of windows.
    pub(super) fn makes_gradient_of_whole(&self, id: Id, axis: Axis, dim: Dim, user: Id) -> bool {
        self.facts.loop_on(user, id, dim).is_some_and(|l| self.gradient_of_whole(user, axis, l.dim))
    }

    /// The number of the rule by which a dim of a value is split over an axis.
    pub(super) fn splitting_rule(&self, id: Id, axis: Axis) -> Option<usize> {
        match self.state.split_by.get(&(id, axis))? {
            (_, SplitBy::Ruled(rule) | SplitBy::Stored(rule)) => Some(*rule),
            (_, SplitBy::Finished) => None,
        }
    }
}

fn pairs(p: &Placement) -> Vec<(Dim, Axis)> {
    p.splits.iter().flat_map(|(d, axes)| axes.iter().map(|a| (*d, *a))).collect()
}
