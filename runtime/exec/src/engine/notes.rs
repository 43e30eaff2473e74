//! Notes of a device for the user.

use super::{Engine, ProgramId};
use meshwright_device::error::NoAttentionKernel;
use meshwright_sorted::SortedMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

impl Engine {
    /// Notes for the user on how the device communicates ([`Transport::note`](meshwright_comm::Transport::note)) and
    /// computes.
    pub fn notes(&self) -> Vec<String> {
        let all = [self.transport.note(), self.executor.note(), self.products_note.as_deref()];
        all.into_iter().flatten().map(str::to_string).collect()
    }

    /// Reasons why attention steps of a program have no kernel on this device, by step.
    pub fn attention_without_kernel(&self, program: ProgramId) -> SortedMap<usize, NoAttentionKernel> {
        self.executor.attention_without_kernel(program.0)
    }

    /// Note for the user on the runs since the last call.
    pub(super) fn take_note(&mut self) -> Option<String> {
        let why = self.executor.take_news()?;
        Some(format!(
            "rank {}: the step could not be recorded as a graph, so the host launches each of its kernels: {why}",
            self.rank
        ))
    }

    /// The number of the step that it was asked for last, which others can read while it works; 0 before.
    pub(crate) fn asked(&self) -> Arc<AtomicU64> {
        self.asked.clone()
    }
}
