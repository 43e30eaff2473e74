//! Messages between the stages of a pipeline.

use super::runner::{InFlightCall, Program, RunContext, RunError};
use crate::backend::Backend;
use crate::trace::What;
use meshwright_device::launch::{CollectiveLaunch, Launch, LinkEnd};
use std::time::Instant;

/// Most messages to a next stage that are on their way while a device goes on; with several stages on a device, one of each more.
const MOST_SENT: usize = 2;

impl<B: Backend> Program<B> {
    /// A message over a link between two stages. What is sent is kept until the receiver has it; few messages are on their way at once.
    pub(super) fn message(
        &mut self,
        backend: &mut B,
        (launch, of): (&Launch, &CollectiveLaunch),
        run: &mut RunContext<'_>,
    ) -> Result<(), RunError> {
        let mut begin = run.close();
        let mut in_flight = vec![];
        for call in &of.calls {
            // Both ends of a link count its messages.
            let number = self.messages.entry(of.prepared.group.shared_ranks().clone()).or_default();
            *number += 1;
            let sequence = *number;
            let started = self.start(backend, of, (call, sequence), run)?;
            begin = run.ended(What::Start, launch.step, begin, sequence);
            in_flight.push(InFlightCall { started, sequence });
        }
        if of.link == Some(LinkEnd::Receive) {
            self.wait(backend, of, in_flight, (launch.step, &of.unpack), run)?;
            return self.examine(backend, &self.written(&launch.steps), run);
        }
        self.sent.push_back(in_flight);
        let more = self.plan.pipeline.as_ref().map_or(0, |p| p.chunks.saturating_sub(1));
        self.delivered(MOST_SENT + more, run)
    }

    /// Waits until at most `most` messages are in transfer.
    pub(super) fn delivered(&mut self, most: usize, run: &mut RunContext<'_>) -> Result<(), RunError> {
        while self.sent.len() > most {
            for call in self.sent.pop_front().unwrap_or_default() {
                let asked = Instant::now();
                call.started.wait()?;
                *run.waited += asked.elapsed();
            }
        }
        Ok(())
    }
}
