//! Results of attention, which tasks write parts of.

use super::prepare::{AttentionKernel, RowTile};
use super::tile::TileElement;

/// A result that tasks write disjoint elements of.
pub(super) struct SharedOut<T>(*mut T, usize);

#[expect(unsafe_code, reason = "tasks write disjoint elements of strided results")]
// SAFETY: no two tasks write the same element, and nobody reads before all have ended.
unsafe impl<T: Send> Send for SharedOut<T> {}
#[expect(unsafe_code, reason = "as above")]
// SAFETY: as above.
unsafe impl<T: Send> Sync for SharedOut<T> {}

impl<T: Copy> SharedOut<T> {
    pub(super) fn new(x: &mut [T]) -> Self {
        SharedOut(x.as_mut_ptr(), x.len())
    }

    /// Adds elements of a task's own from a place on; `steps` says where each lies.
    #[expect(unsafe_code, reason = "tasks write disjoint elements of strided results")]
    pub(super) fn add(&self, at: usize, steps: &[usize], x: &[T])
    where
        T: std::ops::AddAssign,
    {
        let Some(last) = steps.iter().max().filter(|_| x.len() == steps.len()) else { return };
        assert!(at + last < self.1, "elements beyond the result");
        if *last + 1 == steps.len() && steps.is_sorted() {
            // SAFETY: within the result, as was just checked, and of this task alone.
            let to = unsafe { std::slice::from_raw_parts_mut(self.0.add(at), steps.len()) };
            to.iter_mut().zip(x).for_each(|(to, x)| *to += *x);
            return;
        }
        for (step, x) in steps.iter().zip(x) {
            // SAFETY: as above.
            unsafe { *self.0.add(at + step) += *x }
        }
    }
}

impl<T: Copy + std::ops::AddAssign> SharedOut<T> {
    /// Adds to all elements.
    #[expect(unsafe_code, reason = "the task that adds has all elements")]
    pub(super) fn add_all(&self, x: &[T]) {
        assert_eq!(x.len(), self.1, "elements beyond the result");
        // SAFETY: the whole result, when all other tasks have ended.
        let to = unsafe { std::slice::from_raw_parts_mut(self.0, self.1) };
        to.iter_mut().zip(x).for_each(|(to, x)| *to += *x);
    }

    /// Number of elements.
    pub(super) fn len(&self) -> usize {
        self.1
    }
}

impl AttentionKernel {
    /// Adds rows to a result, which is 0 where nothing was added.
    pub(super) fn store<T: TileElement>(
        &self,
        write: usize,
        out: &SharedOut<T>,
        outer: &[usize],
        rows: &RowTile,
        x: &[T],
    ) {
        let base: usize = self.plan.writes[write].outer.iter().zip(outer).map(|(s, i)| s * i).sum();
        let [offsets, own] = &self.writes[write];
        for (row, at) in x.chunks_exact(own.len().max(1)).zip(&offsets[rows.first..rows.first + rows.len]) {
            out.add(base + at, own, row);
        }
    }
}
