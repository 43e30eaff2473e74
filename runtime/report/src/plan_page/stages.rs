//! The stages of a pipeline as they are drawn: what each holds and sends, and its passes in time.

use meshwright_core::explain::{PipelineReport, StageReport};
use meshwright_plan::actions::{Pass, spans};
use serde::Serialize;

/// Passes of one stage that are drawn, at most.
const DRAWN: usize = 400;

/// A pass: its kind, microbatch and chunk, and its begin and end.
type DrawnPass = (u8, usize, usize, u64, u64);

/// A pipeline.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct PipelineView {
    axis: String,
    schedule: &'static str,
    microbatches: usize,
    chunks: usize,
    bubble: f64,
    bubble_equal_stages: f64,
    balanced: Option<String>,
    stages: Vec<StageReport>,
    /// The passes of each stage in order, the first ones of many. Times are numbers of operations.
    passes: Vec<Vec<DrawnPass>>,
    /// Number of those that are not drawn.
    left_out: usize,
}

impl PipelineView {
    pub(super) fn of(p: &PipelineReport) -> PipelineView {
        let cost = |stage: usize, pass: Pass| p.costs[stage][pass as usize].max(1);
        let timed = spans(&p.runs, p.chunks, &cost).unwrap_or_default();
        let drawn = |(runs, spans): (&Vec<_>, &Vec<(u64, u64)>)| {
            let pass = |(r, s): (&meshwright_plan::actions::PassRun, &(u64, u64))| {
                (r.pass as u8, r.micro, r.chunk, s.0, s.1)
            };
            runs.iter().zip(spans).take(DRAWN).map(pass).collect()
        };
        PipelineView {
            axis: p.axis.clone(),
            schedule: p.schedule,
            microbatches: p.microbatches,
            chunks: p.chunks,
            bubble: p.bubble,
            bubble_equal_stages: p.bubble_equal_stages,
            balanced: p.balanced.clone(),
            stages: p.stages.clone(),
            passes: p.runs.iter().zip(&timed).map(drawn).collect(),
            left_out: p.runs.iter().map(|list| list.len().saturating_sub(DRAWN)).sum(),
        }
    }
}
