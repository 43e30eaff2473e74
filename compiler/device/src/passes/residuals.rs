//! Values that a loop stores for another one by position: the residuals of a forward loop, which a backward loop reads.
//!
//! A Plan stacks them in one buffer, which one loop updates and another slices. Where nothing else reads it, the engine makes no
//! such buffer: each value stays where it was made, until the iteration of the other loop that reads it last. So nothing is
//! copied, and memory is free again as the second loop goes on.

use crate::decisions::def_use::DefUse;
use meshwright_plan::{BufId, Dim, Prim};
use meshwright_sorted::{SortedMap, SortedSet};

/// Effect of a step on residuals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResidualStep {
    /// Nothing: the step would allocate the stack, or put it into another one.
    Nothing,
    /// The second operand is stored for the position of an iteration, in place of an update of the stack.
    Store {
        /// The first buffer of the stack, which names it.
        stack: BufId,
        /// The loops.
        over: Vec<Stacked>,
    },
    /// The stored value of a position, in place of a slice of the stack.
    Load {
        /// The first buffer of the stack, which names it.
        stack: BufId,
        /// The loops.
        over: Vec<Stacked>,
        /// Whether this is the last consumer of the value, which ends its lifetime.
        last: bool,
    },
}

/// A loop that leaves its values to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stacked {
    /// Its dim.
    pub dim: Dim,
    /// The lowest position that is read. Values of lower positions are not stored.
    pub from: usize,
}

/// The stacks of a Plan that are never allocated, because each value stays where it was computed.
#[derive(Clone, Debug, Default)]
pub struct Residuals {
    /// Effect of each step that would create, write or read a stack.
    pub steps: SortedMap<usize, ResidualStep>,
    /// The buffers of these stacks.
    pub buffers: SortedSet<BufId>,
    /// The same of each stack, by its first one.
    pub stacks: SortedMap<BufId, Vec<BufId>>,
}

/// The stores of a loop into a stack.
struct Filled {
    /// The step that allocates it, and the one that adds a position.
    steps: [usize; 2],
    dim: Dim,
    /// The buffers: at the start, in an iteration, for the next one, and after the loop.
    chain: [BufId; 4],
    /// The step that begins the loop.
    begin: usize,
}

/// The slices of a stack in later loops.
struct Sliced {
    /// The loops, outermost first.
    over: Vec<Stacked>,
    /// Steps that take the values of a position.
    loads: Vec<usize>,
    /// Steps of enclosing loops that slice the stack of all their positions, and their results.
    outer: Vec<(usize, BufId)>,
}

impl Residuals {
    /// Finds them.
    pub fn of(uses: &DefUse<'_>) -> Residuals {
        let mut found = Residuals::default();
        for (end, begin) in &uses.begins {
            let (Some(first), Some(last)) = (uses.plan.steps.get(*begin), uses.plan.steps.get(*end)) else {
                continue;
            };
            let carries = first.reads.iter().zip(&first.writes).zip(last.reads.iter().zip(&last.writes));
            for ((start, current), (next, after)) in carries {
                let chain = [start.buf, current.buf, next.buf, after.buf];
                found.add(uses, uses.filled(chain, (*begin, *end)));
            }
        }
        found
    }

    /// Adds a stack, if later loops only slice it; perhaps one that is put into another stack, position by position of a loop
    /// around.
    fn add(&mut self, uses: &DefUse<'_>, filled: Option<Filled>) -> Option<()> {
        // Inner loops come first, so that the stack of an outer one may be taken already.
        let filled = filled.filter(|filled| !self.steps.contains_key(&filled.steps[1]))?;
        let (stack, after) = (filled.chain[0], filled.chain[3]);
        let (around, sliced) = match uses.put_into(&filled) {
            Some(outer) => {
                let sliced = uses.sliced(outer.chain[3], &[filled.dim, outer.dim], outer.begin)?;
                (Some(outer), sliced)
            }
            None => (None, uses.sliced(after, &[filled.dim], filled.begin)?),
        };
        let mut buffers = filled.chain.to_vec();
        let [blank, update] = filled.steps;
        self.steps.insert(blank, ResidualStep::Nothing);
        self.steps.insert(update, ResidualStep::Store { stack, over: sliced.over.clone() });
        if let Some(outer) = around {
            self.steps.extend(outer.steps.map(|step| (step, ResidualStep::Nothing)));
            buffers.extend(outer.chain);
        }
        for (step, of) in sliced.outer {
            self.steps.insert(step, ResidualStep::Nothing);
            buffers.push(of);
        }
        let last = sliced.loads.iter().copied().max_by_key(|step| uses.order_of(*step));
        for step in sliced.loads {
            let load = ResidualStep::Load { stack, over: sliced.over.clone(), last: Some(step) == last };
            self.steps.insert(step, load);
        }
        self.buffers.extend(&buffers);
        self.stacks.insert(stack, buffers);
        Some(())
    }
}

impl DefUse<'_> {
    /// A stack that a loop only fills, position by position.
    fn filled(
        &self,
        [start, current, next, after]: [BufId; 4],
        (begin, end): (usize, usize),
    ) -> Option<Filled> {
        let steps = &self.plan.steps;
        let Prim::Repeat { dim, .. } = steps[begin].prim else { return None };
        let buffer = self.plan.buffers.get(start.0 as usize)?;
        if buffer.dtype.is_pair() || self.only(start) != Some(begin) || self.only(next) != Some(end) {
            return None;
        }
        let blank = *self.writers.get(&start)?.iter().rev().find(|s| **s < begin)?;
        let update = self.only(current).filter(|s| steps[*s].writes_buf(next))?;
        let fills = matches!(steps[blank].prim, Prim::Blank { zero: false })
            && matches!(steps[update].prim, Prim::IterationUpdate { dim: d } if d == dim)
            && !self.leaves(after);
        fills.then_some(Filled { steps: [blank, update], dim, chain: [start, current, next, after], begin })
    }

    /// The stack of the loop around into which another one goes, if nothing else reads that.
    fn put_into(&self, inner: &Filled) -> Option<Filled> {
        let steps = &self.plan.steps;
        let put = self.only(inner.chain[3])?;
        let begin = self.within[inner.begin]?;
        let end = *self.begins.iter().find(|(_, b)| **b == begin)?.0;
        let into = steps[put].writes.first()?.buf;
        let at = steps[end].reads.iter().position(|o| o.buf == into)?;
        let [start, current] = [steps[begin].reads.get(at)?.buf, steps[begin].writes.get(at)?.buf];
        self.filled([start, current, into, steps[end].writes.get(at)?.buf], (begin, end))
    }

    /// The steps that read a stack over the dims of some loops, innermost first, if all of them slice it in loops over
    /// these dims, in the iteration of the loop that begins at a step.
    fn sliced(&self, stack: BufId, dims: &[Dim], beside: usize) -> Option<Sliced> {
        let (dim, inner) = dims.split_last()?;
        let steps = &self.plan.steps;
        let mut all: Option<Sliced> = None;
        for step in self.readers.get(&stack)? {
            let inside = self.within[*step]?;
            let Prim::Repeat { from, .. } = steps[inside].prim else { return None };
            // A loop that an enclosing loop alone repeats reads them again. Several loops may read them, as those of a
            // backward pass and of gradients of weights.
            let alike = self.within[inside] == self.within[beside]
                && matches!(steps[*step].prim, Prim::IterationSlice { dim: d } if d == *dim);
            if !alike {
                return None;
            }
            let own = Stacked { dim: *dim, from };
            let found = if inner.is_empty() {
                Sliced { over: vec![own], loads: vec![*step], outer: vec![] }
            } else {
                let slice = steps[*step].writes.first()?.buf;
                // Its consumers are in loops within this one, all of them in the iteration of the first.
                let first = self.within[*self.readers.get(&slice)?.first()?]?;
                let within =
                    self.sliced(slice, inner, first).filter(|_| self.within[first] == Some(inside))?;
                let over = [vec![own], within.over].concat();
                Sliced { over, loads: within.loads, outer: vec![(*step, slice)] }
            };
            match &mut all {
                None => all = Some(found),
                Some(all) if all.over == found.over => {
                    all.loads.extend(found.loads);
                    all.outer.extend(found.outer);
                }
                Some(_) => return None,
            }
        }
        all
    }

    /// A step's place in the order in which steps run for one position of the loops around them: its lag and its place in each
    /// loop, outermost first.
    pub fn order_of(&self, step: usize) -> Vec<(u8, usize)> {
        let mut order: Vec<_> = std::iter::successors(Some(step), |at| self.within[*at])
            .map(|at| (self.plan.steps[at].lag, at))
            .collect();
        order.reverse();
        order
    }
}
