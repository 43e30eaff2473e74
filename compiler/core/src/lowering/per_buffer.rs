//! A value for each buffer of a Plan.

use meshwright_plan::{BufId, Plan};
use std::ops::{Index, IndexMut};

/// One `T` for each buffer.
#[derive(Clone, Debug)]
pub(super) struct PerBuffer<T>(Vec<T>);

impl<T: Clone> PerBuffer<T> {
    /// The same for all buffers of a Plan.
    pub(super) fn new(plan: &Plan, value: T) -> Self {
        PerBuffer(vec![value; plan.buffers.len()])
    }
}

impl<T> PerBuffer<T> {
    /// Each buffer with its value, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (BufId, &T)> {
        self.0.iter().enumerate().map(|(i, value)| (BufId(i as u32), value))
    }
}

impl<T> Index<BufId> for PerBuffer<T> {
    type Output = T;

    fn index(&self, buf: BufId) -> &T {
        &self.0[buf.0 as usize]
    }
}

impl<T> IndexMut<BufId> for PerBuffer<T> {
    fn index_mut(&mut self, buf: BufId) -> &mut T {
        &mut self.0[buf.0 as usize]
    }
}
