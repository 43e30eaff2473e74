//! Decisions of the walk on each op, and their reasons: kept besides the program, for `--emit spmd` and `explain
//! --why`.

use crate::layout::Assigned;
use meshwright_ops::Id;
use meshwright_plan::{Axis, Dim, Dims, Mesh, PartialAxes, Placement, Splits};

/// Axes of the loops of an op.
pub type Loops = Splits;

/// Decision on the op that computes a value. For values without an op, and for renames, only the reasons.
#[derive(Clone, Debug, Default)]
pub struct Decision {
    /// The axes that split its loops.
    pub loops: Loops,
    /// Placement of each operand.
    pub operands: Vec<Placement>,
    /// The axes over which its result is partial.
    pub partial: PartialAxes,
    /// Why, in the order in which it was decided.
    pub reasons: Vec<Reason>,
}

impl Decision {
    /// `loops batch:r hidden:c; operands batch:r hidden:c, hidden:c; partial sum(c)`.
    pub fn describe(&self, names: &Dims, mesh: &Mesh) -> String {
        let loops = Placement::split(self.loops.clone()).describe(names, mesh);
        let operands: Vec<String> = self.operands.iter().map(|p| p.describe(names, mesh)).collect();
        let partial: Vec<String> =
            self.partial.iter().map(|(a, m)| format!("{m}({})", mesh.name(*a))).collect();
        let mut out = format!("loops {loops}; operands {}", operands.join(", "));
        if !partial.is_empty() {
            out.push_str(&format!("; partial {}", partial.join(" ")));
        }
        out
    }
}

/// One step of a decision about a value.
#[derive(Clone, Debug)]
pub enum Reason {
    /// The rules were asked.
    Rules {
        /// For which dims: those of the value, or of the loops of its op that may be split.
        asked: Vec<Dim>,
        /// Their result.
        said: Assigned,
    },
    /// The op costs nothing, and is computed where all its users want the result.
    Wanted {
        /// Which splits they want.
        splits: Loops,
        /// The users.
        users: Vec<Id>,
    },
    /// Operands are partial over an axis, and so is the result: nothing is split over it.
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
        /// The operand's name of the dim.
        on: Dim,
        /// Bytes on the wire for reducing the result, in units of 1 / axis size.
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
    /// A gradient of an op that scatters is computed for the shard that each device keeps, from gathered operands.
    Scattered {
        /// The loops, after it.
        splits: Loops,
        /// Bytes on the wire for reducing the whole gradient, in quarters.
        reduce: u64,
        /// Bytes on the wire for gathering the operands, in quarters.
        gather: u64,
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
    /// Partial sums are reduced, in this placement: the one that moves the fewest bytes, among those that its users
    /// need and the one of the rules.
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
    /// Reducing its result would move more bytes than gathering the operands (first reducing, then gathering).
    Dearer(u64, u64),
    /// Its descendants would be summed over the dim, which moves more bytes than gathering it once (first the sums).
    Downstream(u64, u64),
    /// It is the gradient of a parameter that is not stored so: all of the update would have to be gathered.
    Gradient,
    /// A `params:` rule splits the operand: such a split ends where values begin.
    Parameter,
}
