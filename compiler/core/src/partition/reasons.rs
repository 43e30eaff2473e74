//! Keeping the reasons of decisions.

use super::decision::{Loops, Reason, Refusal};
use super::propagation::Walk;
use meshwright_ops::{Id, Role};
use meshwright_plan::{Axis, Dim};

impl Walk<'_> {
    /// Keeps what the rules say of a value that no op computes.
    pub(super) fn note_target(&mut self, id: Id) {
        let (asked, said) = (self.facts.graph().ty(id).dims.clone(), self.facts.said(id).clone());
        self.note(id, Reason::Rules { asked, said });
    }

    /// Keeps why an op does not follow an operand on an axis; nothing where it is split that way already.
    pub(super) fn note_refused(
        &mut self,
        id: Id,
        (dim, role): (Dim, Role),
        axis: Axis,
        operand: Id,
        loops: &Loops,
    ) {
        if loops.get(&dim).is_some_and(|axes| axes.contains(&axis)) {
            return;
        }
        let taken = loops.values().flatten().any(|a| *a == axis)
            || self.decisions.get(&id).is_some_and(|d| {
                d.reasons.iter().any(|r| matches!(r, Reason::Partial { axis: a, .. } if *a == axis))
            });
        let why = match role {
            Role::NeedReplication => Refusal::NeedsWhole,
            _ if taken => Refusal::Taken,
            _ => Refusal::Order,
        };
        self.note(id, Reason::Refused { dim, axis, operand, why });
    }

    /// Keeps that the split of a stored parameter is not followed, where there is one.
    pub(super) fn note_stored(&mut self, id: Id, slot: usize, operand: Id, loops: &Loops) {
        if self.facts.rematerializable(operand) {
            return;
        }
        let stored = self.state.current(operand);
        for l in &self.facts.roles(id).loops {
            let Some(on) = l.on[slot] else { continue };
            for axis in stored.axes(on) {
                if !loops.get(&l.dim).is_some_and(|axes| axes.contains(axis)) {
                    let why = Refusal::Parameter;
                    self.note(id, Reason::Refused { dim: l.dim, axis: *axis, operand, why });
                }
            }
        }
    }
}
