//! What a step has told, as metrics.

use crate::training::run_description::MEASURED;
use crate::training::utilization::Utilization;
use meshwright_core::{GRADIENT_NORM, LOSS_SCALE, Program, STEP_SKIPPED, learning_rate};
use meshwright_exec::StepReport;
use meshwright_plan::Plan;
use meshwright_runs::memory::resident_bytes;
use meshwright_runs::metrics::StepMetrics;
use std::time::Duration;

/// What a step is one of.
pub(crate) struct StepOf<'a> {
    pub(crate) program: &'a Program,
    pub(crate) plan: &'a Plan,
    /// Examples in a batch, and tokens in an example.
    pub(crate) examples: usize,
    pub(crate) tokens: Option<usize>,
    /// What a step computes, and what the devices could.
    pub(crate) utilization: &'a Utilization,
}

impl StepOf<'_> {
    /// What the step of that number has told; it took `wall` with the wait for its data.
    pub(crate) fn measured(&self, step: u64, report: &StepReport, wall: Duration) -> StepMetrics {
        let value = |name: &str| report.outputs.get(name).and_then(|t| t.scalar());
        let mut told = self.plan.outputs.iter().map(|o| o.name.as_str());
        let loss = told.next().and_then(value).unwrap_or(f64::NAN);
        let others = told.filter(|n| !MEASURED.contains(n));
        let seconds = wall.as_secs_f64().max(1e-9);
        let rate = self.examples as f64 / seconds;
        let waiting: f64 = report.waiting.iter().map(Duration::as_secs_f64).sum();
        StepMetrics {
            step,
            loss,
            values: others.filter_map(|n| Some((n.to_string(), value(n)?))).collect(),
            learning_rate: learning_rate(self.program, step),
            gradient_norm: value(GRADIENT_NORM),
            loss_scale: value(LOSS_SCALE),
            skipped: value(STEP_SKIPPED).map(|s| s != 0.0),
            seconds,
            examples_per_second: rate,
            tokens_per_second: self.tokens.map(|n| n as f64 * rate),
            model_flops: self.utilization.model_flops,
            mfu: self.utilization.share(1.0 / seconds),
            peak_flops: self.utilization.peak,
            bytes_communicated: self.plan.summary.collective_bytes,
            waiting: waiting / report.waiting.len().max(1) as f64 / seconds,
            memory_bytes: resident_bytes(),
        }
    }
}
