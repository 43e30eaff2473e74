//! The def-use table of a Plan, which all passes for a device read.

use meshwright_plan::{BufId, Plan, Prim, Step};
use meshwright_sorted::{SortedMap, SortedSet};

/// The writers and readers of each buffer of a Plan, and the loop of each step. Passes for devices do not change the Plan, so
/// that one table serves all of them.
pub struct DefUse<'a> {
    /// The Plan.
    pub plan: &'a Plan,
    /// The consumers of each buffer.
    pub readers: SortedMap<BufId, Vec<usize>>,
    /// The producers of each buffer, in order.
    pub writers: SortedMap<BufId, Vec<usize>>,
    /// For each step the loop that it is in, by the step that begins it.
    pub within: Vec<Option<usize>>,
    /// For each end of a loop the step that begins it.
    pub begins: SortedMap<usize, usize>,
    /// The step with which the lifetime of a buffer ends.
    ends: SortedMap<BufId, usize>,
    /// Outputs, and the next values of states.
    leaves: SortedSet<BufId>,
}

impl<'a> DefUse<'a> {
    /// Reads the steps of a Plan.
    pub fn of(plan: &'a Plan) -> DefUse<'a> {
        let (mut readers, mut begins) = (SortedMap::<BufId, Vec<usize>>::new(), SortedMap::new());
        let mut writers = SortedMap::<BufId, Vec<usize>>::new();
        let (mut within, mut open) = (Vec::with_capacity(plan.steps.len()), Vec::new());
        let mut ends = SortedMap::new();
        for (at, step) in plan.steps.iter().enumerate() {
            if let (Prim::EndRepeat, Some(begin)) = (&step.prim, open.last()) {
                begins.insert(at, *begin);
                open.pop();
            }
            within.push(open.last().copied());
            if let Prim::Repeat { .. } = step.prim {
                open.push(at);
            }
            ends.extend(ended(step).map(|buf| (buf, at)));
            step.writes.iter().for_each(|o| writers.entry(o.buf).or_default().push(at));
            for operand in &step.reads {
                let of = readers.entry(operand.buf).or_default();
                if of.last() != Some(&at) {
                    of.push(at);
                }
            }
        }
        let leaves = (plan.outputs.iter().map(|o| o.buf))
            .chain(plan.program_inputs.iter().filter_map(|l| l.next))
            .collect();
        DefUse { plan, readers, writers, within, begins, ends, leaves }
    }

    /// Whether a buffer outlives the program.
    pub fn leaves(&self, buf: BufId) -> bool {
        self.leaves.contains(&buf)
    }

    /// The only step that reads a buffer.
    pub fn only(&self, buf: BufId) -> Option<usize> {
        match self.readers.get(&buf).map(Vec::as_slice) {
            Some([one]) => Some(*one),
            _ => None,
        }
    }

    /// Whether two steps are in the same iteration of the same loop.
    pub fn is_beside(&self, one: usize, other: usize) -> bool {
        let lag = |step: usize| self.plan.steps[step].lag;
        self.within[one] == self.within[other] && lag(one) == lag(other)
    }

    /// Whether a buffer that is live at one step is still live at another.
    pub fn lasts(&self, buf: BufId, from: usize, to: usize) -> bool {
        self.ends.get(&buf).is_none_or(|end| *end <= from || *end >= to)
    }

    /// The step with which the lifetime of a buffer ends.
    pub fn end(&self, buf: BufId) -> Option<usize> {
        self.ends.get(&buf).copied()
    }

    /// True if the lifetime of a buffer ends with a step.
    pub fn ends_with(&self, buf: BufId, step: usize) -> bool {
        self.ends.get(&buf) == Some(&step)
    }

    /// The step before another that writes a buffer.
    pub fn written_by(&self, buf: BufId, before: usize) -> Option<usize> {
        let writers = self.writers.get(&buf)?;
        writers[..writers.partition_point(|step| *step < before)].last().copied()
    }
}

/// Buffers whose lifetime ends with a step, including donated ones.
pub fn ended(step: &Step) -> impl Iterator<Item = BufId> {
    step.free.iter().copied().chain(step.aliases.iter().map(|(from, _)| *from))
}

/// Whether a step consumes its operand, so that its lifetime cannot be extended.
pub fn takes(step: &Step) -> bool {
    step.communicates() || matches!(step.prim, Prim::DynamicUpdateSlice { .. })
}
