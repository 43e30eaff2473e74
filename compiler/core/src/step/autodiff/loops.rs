//! The gradient of a loop: a loop over the same dim in the opposite direction.
//!
//! | forward | backward |
//! |---|---|
//! | `final` of a carry | what the cotangent's carry starts as, zeros where nothing reads it |
//! | `carry` | the next value of the cotangent's carry; its `final` goes to what the carry starts as |
//! | a value around the loop | `accumulate` of its cotangents |
//! | `slice` | `stack` of its cotangents |
//! | `stack` | `slice` of its cotangent |
//! | `accumulate` | its cotangent, as it is |
//!
//! A value of the forward body is stacked and sliced again, but for what costs nothing to make once more.

use super::pass::{BackwardLoop, BackwardPass, backward};
use crate::step::stack_part::StackPart;
use meshwright_ops::{Class, Crossing, Expand, Id, Kind, Node, Origin, RepeatId, Source};
use meshwright_plan::{Dim, Phase};
use meshwright_sorted::SortedMap;

impl BackwardPass<'_> {
    pub(super) fn differentiate_loop(&mut self, forward: RepeatId) {
        let outs: Vec<(Id, Crossing)> = self.outs(forward);
        if !outs.iter().any(|(out, _)| self.cotangents.contains_key(out)) {
            return;
        }
        let (dim, reverse) = (self.g.repeats[forward].dim, self.g.repeats[forward].reverse);
        let reversed = self.g.repeat(dim, !reverse);
        let around = self.g.scope;
        let mut carries = Vec::new();
        // Cotangents that the body begins with.
        let mut first: Vec<(Id, Id)> = Vec::new();
        for (carry, next) in self.g.repeats[forward].carries.clone() {
            if self.needs[carry] && self.g.ty(carry).dtype.is_float() {
                let back = self.cotangent_carry(reversed, (carry, next), &outs);
                carries.push((carry, back));
                first.push((next, back));
            }
        }
        for (out, how) in outs {
            let Some(parts) = self.cotangents.remove(&out) else { continue };
            self.g.cursor = backward(self.g, out, Class::Value);
            let mut dy = self.g.sum_of(&parts);
            if how == Crossing::Stack && self.g.ty(dy).has(dim) {
                dy = self.g.cross(reversed, Crossing::Slice, dy);
            }
            first.push((self.g.node(out).inputs[0], dy));
        }
        self.g.scope = Some(reversed);
        self.open.push(BackwardLoop {
            forward,
            backward: reversed,
            captured: SortedMap::new(),
            slices: vec![],
        });
        first.into_iter().for_each(|(x, dy)| self.give(x, dy));
        self.walk(Some(forward));
        let nexts: Vec<(Id, Id, Id)> =
            carries.into_iter().map(|(carry, back)| (carry, back, self.carried_back(carry))).collect();
        let Some(BackwardLoop { captured, slices, .. }) = self.open.pop() else { return };
        let sums: Vec<(Id, Id)> = captured
            .into_iter()
            .map(|(x, parts)| {
                self.g.cursor = backward(self.g, x, Class::Value);
                (x, self.g.sum_of(&parts))
            })
            .collect();
        self.g.scope = around;
        let starts = nexts.iter().map(|(carry, ..)| self.g.node(*carry).inputs[0]);
        let read: Vec<Id> = starts.chain(sums.iter().map(|(x, _)| *x)).collect();
        let from = if reverse { 0 } else { self.lowest_read(dim, &read, &slices) };
        self.g.repeats[reversed].from = from.max(self.g.repeats[forward].from);
        for (carry, back, next) in nexts {
            self.g.carry_on(reversed, back, next);
            let start = self.g.node(carry).inputs[0];
            self.leave(reversed, Crossing::Final, next, start);
        }
        for (x, sum) in sums {
            self.leave(reversed, Crossing::Accumulate, sum, x);
        }
        for (x, dy) in slices {
            self.leave(reversed, Crossing::Stack, dy, x);
        }
    }

    /// The lowest position of a loop's dim at which its gradient is read: where all that the body takes gradients of are slices
    /// of parameters of which the first ones are frozen, the loop's gradient ends behind these.
    fn lowest_read(&self, dim: Dim, around: &[Id], slices: &[(Id, Id)]) -> usize {
        let takes = |x: &Id| self.needs[*x] && self.g.ty(*x).dtype.is_float();
        if around.iter().any(takes) {
            return 0;
        }
        let trained = |(x, _): &(Id, Id)| {
            let parts = self.frozen.get(x).copied().unwrap_or_default();
            let ends = parts.iter().flat_map(|part| &part.0).filter(|(d, _)| *d == dim).map(|(_, r)| r.end);
            let covers = |end: &usize| StackPart::cover(parts, StackPart(vec![(dim, 0..*end)]));
            ends.filter(covers).max().unwrap_or(0)
        };
        slices.iter().filter(|(x, _)| takes(x)).map(trained).min().unwrap_or(0)
    }

    /// What leaves a loop, in order.
    fn outs(&self, of: RepeatId) -> Vec<(Id, Crossing)> {
        self.outs.get(&of).cloned().unwrap_or_default()
    }

    /// The carry of the cotangent of a carry: it starts as the cotangent of the carry's last value, and is in each iteration a
    /// part of that of its next value.
    fn cotangent_carry(&mut self, of: RepeatId, (carry, next): (Id, Id), outs: &[(Id, Crossing)]) -> Id {
        let last =
            |(out, how): &&(Id, Crossing)| *how == Crossing::Final && self.g.node(*out).inputs[0] == next;
        let parts: Vec<Id> = outs
            .iter()
            .filter(last)
            .flat_map(|(out, _)| self.cotangents.get(out))
            .flatten()
            .copied()
            .collect();
        let finals: Vec<Id> = outs.iter().filter(last).map(|(out, _)| *out).collect();
        // Another carry with the same next value adds nothing.
        finals.iter().for_each(|out| drop(self.cotangents.remove(out)));
        self.g.cursor = backward(self.g, carry, Class::Value);
        let ty = self.g.ty(carry).clone();
        let dy = if parts.is_empty() { self.g.constant(0.0, ty.dtype) } else { self.g.sum_of(&parts) };
        let start = self.g.expanded(dy, &ty.dims);
        self.g.carry(of, start)
    }

    /// The cotangent of a carry in an iteration: that of the previous iteration's value.
    fn carried_back(&mut self, carry: Id) -> Id {
        let parts = self.cotangents.remove(&carry).unwrap_or_default();
        self.g.cursor = backward(self.g, carry, Class::Value);
        let ty = self.g.ty(carry).clone();
        let dy = if parts.is_empty() { self.g.constant(0.0, ty.dtype) } else { self.g.sum_of(&parts) };
        self.g.expanded(dy, &ty.dims)
    }

    /// Gives a cotangent to a value around a loop, from the body of the loop's gradient.
    fn leave(&mut self, of: RepeatId, how: Crossing, dy: Id, x: Id) {
        if self.needs[x] && self.g.ty(x).dtype.is_float() {
            self.g.cursor = backward(self.g, x, Class::Value);
            let part = self.g.cross(of, how, dy);
            self.give(x, part);
        }
    }

    /// The cotangent of a slice of `x`.
    pub(super) fn sliced(&mut self, x: Id, dy: Id) {
        if let Some(open) = self.open.last_mut() {
            open.slices.push((x, dy));
        }
    }

    /// A value of the forward pass as the backward pass reads it where the walk is.
    pub(super) fn bring(&mut self, v: Id) -> Id {
        let scope = self.g.node(v).scope;
        let open = self.open.iter().find(|l| scope == Some(l.forward));
        let Some((forward, backward)) = open.map(|l| (l.forward, l.backward)) else { return v };
        if let Some(known) = self.brought.get(&(backward, v)) {
            return *known;
        }
        let Node { op, inputs, ty, origin, .. } = self.g.node(v).clone();
        let phase = Phase::Backward;
        let again = match op.kind() {
            Kind::Rematerializable(source) => source != Source::Random,
            // What nothing needs under its first name is kept under the second: where that stands elsewhere, it stays there.
            Kind::Rename { .. } => !self.only_renamed.contains(&inputs[0]),
            _ => op.as_any().is::<Expand>(),
        };
        let slice = self.g.boundary(v).is_some_and(|b| b.how == Crossing::Slice);
        let made = if again {
            let inputs = inputs.iter().map(|x| self.bring(*x)).collect();
            let origin = Origin { phase, ..origin };
            self.g.push(Node { op, inputs, ty, origin, scope: Some(backward) })
        } else {
            let all = if slice {
                inputs[0]
            } else {
                self.g.cursor = origin.clone();
                self.g.cross(forward, Crossing::Stack, v)
            };
            let all = self.bring(all);
            self.g.cursor = Origin { phase, ..origin };
            self.g.cross(backward, Crossing::Slice, all)
        };
        self.brought.insert((backward, v), made);
        made
    }
}
