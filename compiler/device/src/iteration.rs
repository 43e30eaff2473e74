//! Positions of the loops around a launch.

use crate::error::KernelError;
use meshwright_plan::{Dim, Plan};

/// Limit of nested loops.
pub const MOST_NESTED: usize = 8;

/// Positions of the loops around a launch.
#[derive(Clone, Copy, Debug, Default)]
pub struct Iteration {
    /// Position along the dim of each loop, outermost first, among those that the device has.
    at: [Option<(Dim, usize)>; MOST_NESTED],
    /// The position in all of them, row-major, but for that over the parts of the batch.
    index: u32,
    /// The part of the batch.
    part: usize,
}

impl Iteration {
    /// Adds a loop of a Plan over `dim` at a place where positions are stored, inside of the others. The device has the places
    /// from `first` on. Of a loop `of_one_stage` random values know nothing.
    pub fn within(
        mut self,
        plan: &Plan,
        (dim, of_one_stage): (Dim, bool),
        position: usize,
        first: usize,
    ) -> Iteration {
        if let Some(free) = self.at.iter_mut().find(|at| at.is_none()) {
            *free = Some((dim, position - first));
        }
        // Random values belong to an example, in any part of the batch.
        if plan.microbatches.is_some_and(|m| m.over == dim) {
            self.part = position;
        } else if !of_one_stage {
            let position = plan.dims.cuts(dim).map_or(position, |cuts| cuts.position(position));
            self.index = self.index.wrapping_mul(plan.dims.size(dim) as u32).wrapping_add(position as u32);
        }
        self
    }

    /// The position in all loops, row-major, but for that over the parts of the batch.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Number of loops.
    pub fn depth(&self) -> usize {
        self.at.iter().flatten().count()
    }

    /// The part of the batch.
    pub fn part(&self) -> usize {
        self.part
    }

    /// The position along the dim of a loop, counted from the first one that the device has.
    ///
    /// # Errors
    /// If no loop is over this dim.
    pub fn position(&self, dim: Dim) -> Result<usize, KernelError> {
        let found = self.at.iter().flatten().find(|(d, _)| *d == dim);
        found.map(|(_, at)| *at).ok_or_else(|| KernelError::Unsupported("no loop runs over this dim".into()))
    }
}
