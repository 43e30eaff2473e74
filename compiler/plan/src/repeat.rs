//! Loops among the steps of a Plan: from a [`Prim::Repeat`] to the [`Prim::EndRepeat`] that belongs to it.

use crate::{Axis, Dim, Extent, Mesh, Plan, Prim, coords_along};
use std::ops::Range;

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
    /// Iterations on the device that has most of them.
    pub most: usize,
}

/// Positions of a loop over a dim, from `from` on, on the device at `coords`.
pub fn positions(of: &Extent, from: usize, mesh: &Mesh, coords: &[usize]) -> Range<usize> {
    let own = of.range(mesh, coords);
    own.start.max(from)..own.end.max(from)
}

/// The only device that runs a loop of one position, `from`, by position in the group over the axes that split it.
pub fn only_member(of: &Extent, from: usize, mesh: &Mesh) -> Option<usize> {
    (!of.axes.is_empty() && from + 1 == of.size).then_some(())?;
    let coords = coords_along(&of.axes, mesh).find(|c| !positions(of, from, mesh, c).is_empty())?;
    let (rank, mut axes) = (mesh.rank(&coords), of.axes.clone());
    axes.sort();
    mesh.group(rank, &axes).into_iter().position(|member| member == rank)
}

impl Plan {
    /// Most positions of a loop over a dim, from `from` on, on one device.
    fn most(&self, dim: Dim, from: usize, axes: &[Axis]) -> usize {
        let of = Extent::of(&self.dims, dim, axes);
        let all = coords_along(axes, &self.mesh);
        all.map(|c| positions(&of, from, &self.mesh, &c).len()).max().unwrap_or(0)
    }
}

impl StepLoop {
    /// Whether a step is in its body.
    pub fn contains(&self, step: usize) -> bool {
        self.begin < step && step < self.end
    }
}

impl Plan {
    /// All loops in order of their beginnings, so that one comes before those in its body. Those that do not end are left out.
    pub fn loops(&self) -> Vec<StepLoop> {
        let (mut open, mut all) = (Vec::new(), Vec::new());
        for (i, step) in self.steps.iter().enumerate() {
            match &step.prim {
                Prim::Repeat { dim, reverse, from, axes } => {
                    let most = self.most(*dim, *from, axes);
                    open.push(StepLoop { begin: i, end: i, dim: *dim, reverse: *reverse, from: *from, most });
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
            if let Prim::Repeat { dim, from, axes, .. } = &step.prim {
                let most = self.most(*dim, *from, axes);
                now.push(times.saturating_mul(most as u64));
            }
            times
        });
        each.collect()
    }
}
