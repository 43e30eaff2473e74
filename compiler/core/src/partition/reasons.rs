//! What the pass decided about each value, and why: kept beside the program it made, for `explain --why`.

use super::pass::{Loops, Pass};
use crate::layout::{Assigned, assign};
use meshwright_ops::{Id, Role};
use meshwright_plan::{Axis, Dim, Placement};

/// One decision about a value.
#[derive(Clone, Debug)]
pub enum Reason {
    /// The rules were asked.
    Rules {
        /// For which dims: those of the value, or of the loops of its op that may be split.
        asked: Vec<Dim>,
        /// What they said.
        said: Assigned,
    },
    /// The op costs nothing, and is computed where all its users want the result.
    Wanted {
        /// Which splits they want.
        splits: Loops,
        /// The users.
        users: Vec<Id>,
    },
    /// Operands are unfinished over an axis, and so is the result: nothing is split over it.
    Partial {
        /// The axis.
        axis: Axis,
        /// The operands.
        operands: Vec<Id>,
    },
    /// A loop is split as an operand is, on an axis that the rules leave free.
    Followed {
        /// The loop.
        dim: Dim,
        /// The axis.
        axis: Axis,
        /// The operand.
        operand: Id,
        /// What the operand calls the dim.
        on: Dim,
        /// Bytes on the wire for finishing the result, in units of 1 / axis size.
        finish: u64,
        /// Bytes on the wire for gathering the operands, in the same units.
        gather: u64,
    },
    /// A loop is not split as an operand is.
    Refused {
        /// The loop.
        dim: Dim,
        /// The axis.
        axis: Axis,
        /// The operand.
        operand: Id,
        /// Why not.
        why: Refusal,
    },
    /// The value is another under another name of a dim.
    Renamed {
        /// The name of the dim there.
        from: Dim,
        /// Its name here.
        to: Dim,
        /// The other.
        operand: Id,
    },
    /// A constant, an input or a rename of one: made wherever it is needed, in any placement.
    Rematerializable,
    /// Sums that were unfinished are finished, in this placement: of those that its users want and the one of the rules,
    /// the one that moves the fewest bytes.
    Reduced {
        /// The placement.
        to: Placement,
        /// Whether it is the one of the rules.
        by_rules: bool,
    },
}

/// Why an op does not follow an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It needs the dim whole.
    NeedsWhole,
    /// The axis is taken already.
    Taken,
    /// The dim is split over other axes before this one.
    Order,
    /// Finishing its result would move more bytes than gathering the operands (first finishing, then gathering).
    Dearer(u64, u64),
    /// A `params:` rule splits the operand: such a split ends where values begin.
    Parameter,
}

impl Pass<'_> {
    /// Keeps a reason.
    pub(super) fn note(&mut self, id: Id, reason: Reason) {
        self.reasons.entry(id).or_default().push(reason);
    }

    /// Asks the rules for a value that no op computes, and keeps what they say.
    pub(super) fn note_target(&mut self, id: Id) {
        let n = self.node(id);
        let said = assign(self.layout, n.origin.class, &n.origin.path, &n.ty.dims, &self.graph().dims);
        let asked = n.ty.dims.clone();
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
            || self.reasons.get(&id).is_some_and(|all| {
                all.iter().any(|r| matches!(r, Reason::Partial { axis: a, .. } if *a == axis))
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
        if self.rematerializable(operand) {
            return;
        }
        for l in self.roles(id).loops {
            let Some(on) = l.on[slot] else { continue };
            for axis in self.current(operand).axes(on).to_vec() {
                if !loops.get(&l.dim).is_some_and(|axes| axes.contains(&axis)) {
                    self.note(id, Reason::Refused { dim: l.dim, axis, operand, why: Refusal::Parameter });
                }
            }
        }
    }
}
