//! Messages between the stages of a pipeline.

use super::runner::{InFlightCall, Program, RunContext, RunError};
use crate::backend::Backend;
use crate::trace::What;
use meshwright_device::launch::{CollectiveLaunch, Launch, most_sent};
use meshwright_plan::{Axis, Plan};
use meshwright_sorted::SortedSet;
use std::time::Instant;

/// The sets of mesh axes over which a Plan communicates, each once.
pub(super) fn axis_sets(plan: &Plan) -> Vec<Vec<Axis>> {
    let collectives = plan.steps.iter().filter_map(|s| Some(s.collective()?.axes().to_vec()));
    collectives.collect::<SortedSet<_>>().into_iter().collect()
}

impl<B: Backend> Program<B> {
    /// A message between two stages. The sent tensor stays live until the receiver has it; few messages are in flight.
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
        if let Some(id) = of.async_id {
            self.in_flight.entry(id).or_default().push_back(in_flight);
            return Ok(());
        }
        self.sent.push_back(in_flight);
        self.delivered(most_sent(&self.plan), run)
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
