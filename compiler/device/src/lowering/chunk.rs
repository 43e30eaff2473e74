//! The chunks of a device that has several stages of a pipeline, and the steps that are lowered for each.

use meshwright_plan::{Plan, Prim, StepLoop};
use std::ops::Range;

/// The chunk for which steps are lowered.
#[derive(Clone, Debug)]
pub(super) struct Chunk {
    /// Its number.
    pub(super) number: usize,
    /// The chunks of a device.
    pub(super) count: usize,
    /// Is it the first one, and is it the last one, that is lowered?
    pub(super) ends: [bool; 2],
    /// Outside of passes, the steps from a receive to a send, which run chunk after chunk.
    pub(super) alone: Option<AloneLoop>,
}

/// A loop over stages outside of passes, with its receive and its send.
#[derive(Clone, Debug)]
pub(super) struct AloneLoop {
    pub(super) receive: usize,
    pub(super) of: StepLoop,
    pub(super) send: usize,
}

/// Steps that are lowered for each chunk.
pub(super) enum ChunkedSteps {
    /// The body of a loop over microbatches.
    Pass(Range<usize>),
    /// From a receive to its send.
    Alone(Range<usize>, AloneLoop),
}

impl AloneLoop {
    pub(super) fn has(&self, step: usize) -> bool {
        step == self.receive || step == self.send || (self.of.begin..=self.of.end).contains(&step)
    }
}

impl ChunkedSteps {
    /// The steps.
    pub(super) fn range(&self) -> &Range<usize> {
        match self {
            ChunkedSteps::Pass(range) | ChunkedSteps::Alone(range, _) => range,
        }
    }
}

/// The steps of a Plan that are lowered for each chunk; none where a device has one stage.
pub(super) fn chunked(plan: &Plan) -> Vec<ChunkedSteps> {
    if plan.pipeline.as_ref().is_none_or(|p| p.chunks < 2) {
        return vec![];
    }
    let passes = plan.pipeline_passes().map_or(vec![], |p| p.loops);
    let mut all: Vec<_> = passes.iter().map(|(_, of)| ChunkedSteps::Pass(of.begin + 1..of.end)).collect();
    let alone = |at: &usize| !passes.iter().any(|(_, of)| of.contains(*at));
    let loops = plan.loops();
    for receive in (0..plan.steps.len()).filter(alone) {
        let Prim::Receive { .. } = plan.steps[receive].prim else { continue };
        let of = loops.iter().filter(|l| l.begin > receive).min_by_key(|l| l.begin);
        let send = (receive..plan.steps.len()).find(|at| matches!(plan.steps[*at].prim, Prim::Send { .. }));
        if let (Some(of), Some(send)) = (of, send) {
            all.push(ChunkedSteps::Alone(receive..send + 1, AloneLoop { receive, of: *of, send }));
        }
    }
    all
}

impl Chunk {
    /// A pass on the last rank goes on with the next chunk of the first one, and one that runs backward the other way round.
    pub(super) fn goes_on(chunk: Option<&Chunk>, forward: bool) -> bool {
        chunk.is_some_and(|c| if forward { c.number + 1 < c.count } else { c.number > 0 })
    }

    /// Lifetimes that end with a step do so here: of steps that run chunk after chunk, with the last of these.
    pub(super) fn ends(&self, step: usize) -> bool {
        let around = |a: &AloneLoop| [a.receive, a.of.begin, a.of.end, a.send].contains(&step);
        self.ends[1] || !self.alone.as_ref().is_some_and(around)
    }
}
