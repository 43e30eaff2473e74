//! Loops among the steps of a Plan: from a [`Prim::Repeat`] to the [`Prim::EndRepeat`] that belongs to it.

use crate::{Dim, Plan, Prim};

/// A loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepLoop {
    /// The step at which it begins.
    pub begin: usize,
    /// The step at which it ends.
    pub end: usize,
    /// It runs once for each position of this dim, from the lowest one on.
    pub dim: Dim,
    /// From the last to the first.
    pub reverse: bool,
    /// The lowest position.
    pub from: usize,
}

impl StepLoop {
    /// Whether a step is in its body.
    pub fn contains(&self, step: usize) -> bool {
        self.begin < step && step < self.end
    }

    /// How often its body runs each time.
    pub fn iterations(&self, plan: &Plan) -> usize {
        plan.dims.size(self.dim) - self.from
    }
}

impl Plan {
    /// All loops in order of their beginnings, so that one comes before those in its body. Those that do not end are left out.
    pub fn loops(&self) -> Vec<StepLoop> {
        let (mut open, mut all) = (Vec::new(), Vec::new());
        for (i, step) in self.steps.iter().enumerate() {
            match step.prim {
                Prim::Repeat { dim, reverse, from } => {
                    open.push(StepLoop { begin: i, end: i, dim, reverse, from });
                }
                Prim::EndRepeat => all.extend(open.pop().map(|l| StepLoop { end: i, ..l })),
                _ => {}
            }
        }
        all.sort_by_key(|l| l.begin);
        all
    }

    /// Each step of a loop's body with its [`crate::Step::lag`] in that loop; all of a loop in it have that of its beginning.
    pub fn lags(&self, of: &StepLoop) -> Vec<(usize, u8)> {
        let (mut depth, mut outer) = (0, 0);
        let each = (of.begin + 1..of.end).map(|at| {
            let step = &self.steps[at];
            depth -= usize::from(matches!(step.prim, Prim::EndRepeat));
            let lag = if depth == 0 { step.lag } else { outer };
            if matches!(step.prim, Prim::Repeat { .. }) {
                outer = lag;
                depth += 1;
            }
            (at, lag)
        });
        each.collect()
    }

    /// How often each step runs in a run of the Plan.
    pub fn times(&self) -> Vec<u64> {
        let mut now = vec![1u64];
        let each = self.steps.iter().map(|step| {
            if let Prim::EndRepeat = step.prim {
                now.pop();
            }
            let times = now.last().copied().unwrap_or(1);
            if let Prim::Repeat { dim, from, .. } = step.prim {
                now.push(times.saturating_mul((self.dims.size(dim) - from) as u64));
            }
            times
        });
        each.collect()
    }
}
