//! Values that a loop leaves to another position by position: what a backward loop reads of the forward one.
//!
//! A Plan stacks them in one buffer, which one loop updates and another slices. Where nothing else reads it, the engine makes no such
//! buffer: each value stays where it was made, until the iteration of the other loop that reads it last. So nothing is copied, and
//! memory is free again as the second loop goes on.

use crate::decisions::def_use::DefUse;
use meshwright_plan::{BufId, Dim, Prim};
use std::collections::{BTreeMap, BTreeSet};

/// Effect of a step on residuals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResidualStep {
    /// Nothing: the step would allocate the stack.
    Blank,
    /// The second operand is stored for the position of an iteration, in place of an update of the stack.
    Store {
        /// The first buffer of the stack, which names it.
        stack: BufId,
        /// Dim of the loop.
        dim: Dim,
        /// The lowest position that is read. Values of lower positions are not stored.
        from: usize,
    },
    /// The stored value of a position, in place of a slice of the stack.
    Load {
        /// The first buffer of the stack, which names it.
        stack: BufId,
        /// Dim of the loop.
        dim: Dim,
        /// The lowest position that is read.
        from: usize,
        /// Whether this is the last consumer of the value, which ends its lifetime.
        last: bool,
    },
}

/// The stacks of a Plan that are never allocated, because each value stays where it was computed.
#[derive(Clone, Debug, Default)]
pub struct Residuals {
    /// Effect of each step that would create, write or read a stack.
    pub steps: BTreeMap<usize, ResidualStep>,
    /// The buffers of these stacks.
    pub buffers: BTreeSet<BufId>,
}

impl Residuals {
    /// Finds them.
    pub fn of(uses: &DefUse<'_>) -> Residuals {
        let plan = uses.plan;
        let mut found = Residuals::default();
        for (end, begin) in &uses.begins {
            let (Some(first), Some(last)) = (plan.steps.get(*begin), plan.steps.get(*end)) else { continue };
            let Prim::Repeat { dim, .. } = first.prim else { continue };
            let carries = first.reads.iter().zip(&first.writes).zip(last.reads.iter().zip(&last.writes));
            for ((start, current), (next, after)) in carries {
                let chain = [start.buf, current.buf, next.buf, after.buf];
                if let Some(steps) = uses.stack(chain, (*begin, *end), dim) {
                    found.steps.extend(steps);
                    found.buffers.extend(chain);
                }
            }
        }
        found
    }
}

impl DefUse<'_> {
    /// Effects of the steps on a stack, if one loop only fills it and one later loop only slices it.
    fn stack(
        &self,
        [start, current, next, after]: [BufId; 4],
        (begin, end): (usize, usize),
        dim: Dim,
    ) -> Option<Vec<(usize, ResidualStep)>> {
        let steps = &self.plan.steps;
        let buffer = self.plan.buffers.get(start.0 as usize)?;
        if buffer.dtype.is_pair() || self.only(start) != Some(begin) || self.only(next) != Some(end) {
            return None;
        }
        let blank = *self.writers.get(&start)?.iter().rev().find(|s| **s < begin)?;
        let update = self.only(current).filter(|s| steps[*s].writes_buf(next))?;
        let written = |s: usize| steps[s].reads.first().is_some_and(|o| o.buf == current);
        let fills = matches!(steps[blank].prim, Prim::Blank { zero: false })
            && matches!(steps[update].prim, Prim::IterationUpdate { dim: d } if d == dim)
            && written(update)
            && self.within[update] == Some(begin);
        let slices = self.readers.get(&after)?;
        // Several loops may read them, as those of a backward pass and of gradients of weights.
        let mut lowest = None;
        let mut slice = |s: &usize| {
            let Some(inside) = self.within[*s] else { return false };
            let Prim::Repeat { dim: read, from, .. } = steps[inside].prim else { return false };
            let alike = *lowest.get_or_insert(from) == from;
            // A loop that runs again in a loop around it alone reads them again.
            alike
                && read == dim
                && self.within[inside] == self.within[begin]
                && matches!(steps[*s].prim, Prim::IterationSlice { dim: d } if d == dim)
        };
        if !fills || self.leaves(after) || !slices.iter().all(&mut slice) {
            return None;
        }
        let from = lowest?;
        // A step with a lag reads a position in a later turn.
        let last = *slices.iter().max_by_key(|s| (self.within[**s], steps[**s].lag, **s))?;
        let load = |s: &usize| ResidualStep::Load { stack: start, dim, from, last: *s == last };
        let loads = slices.iter().map(|s| (*s, load(s)));
        Some(
            [(blank, ResidualStep::Blank), (update, ResidualStep::Store { stack: start, dim, from })]
                .into_iter()
                .chain(loads)
                .collect(),
        )
    }
}
