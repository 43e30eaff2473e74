//! A pipeline that is asked for, and the estimate of one.

use meshwright_plan::Dim;
use meshwright_plan::actions::PipelineSchedule;
use serde::Serialize;

/// A pipeline.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pipe {
    /// Stages on different devices.
    pub stages: usize,
    /// The order of forward and backward passes.
    pub schedule: PipelineSchedule,
    /// Stages of a device.
    pub chunks: usize,
    /// Whether the embedding and the logits count as a layer each where layers are divided.
    pub ends: bool,
}

impl Pipe {
    /// Layers of each virtual stage, in order: equal numbers; what is left goes to stages in the middle. With `ends` the first
    /// and the last have one less.
    ///
    /// # Errors
    /// Where there are more stages than layers.
    pub fn divided(&self, layers: usize) -> Result<Vec<usize>, String> {
        let stages = self.stages * self.chunks;
        let ends = usize::from(self.ends);
        let all = layers + 2 * ends;
        if all < stages || stages == 0 {
            return Err(format!("{layers} layers do not give {stages} stages a layer each"));
        }
        let mut each = vec![all / stages; stages];
        for left in 0..all % stages {
            let at = if stages > 2 { 1 + left % (stages - 2) } else { left };
            each[at] += 1;
        }
        each[0] -= ends.min(each[0]);
        each[stages - 1] -= ends.min(each[stages - 1]);
        Ok(each)
    }

    /// The name of the axis of stages beside others, in a layout.
    pub fn axis(others: &[String]) -> String {
        let all = (2..).map(|n| format!("pipe{n}"));
        std::iter::once("pipe".to_string()).chain(all).find(|n| !others.contains(n)).unwrap_or_default()
    }

    /// What a layout says of it beside the rule for its loop and its microbatches, where it is not what a layout means without
    /// saying it.
    pub fn lines(&self, layers: usize) -> Vec<String> {
        let mut lines = vec![];
        if self.schedule != PipelineSchedule::OneForwardOneBackward {
            lines.push(format!("schedule {}", self.schedule.name()));
        }
        if self.chunks > 1 {
            lines.push(format!("chunks {}", self.chunks));
        }
        if let Ok(each) = self.divided(layers)
            && !each.is_sorted_by(|a, b| a >= b)
        {
            let each: Vec<String> = each.iter().map(ToString::to_string).collect();
            lines.push(format!("stages {}", each.join(", ")));
        }
        lines
    }
}

/// A pipeline.
#[derive(Clone, Debug, Serialize)]
pub struct PipeEstimate {
    /// Stages on different devices.
    pub stages: usize,
    /// `gpipe`, `1f1b` or `zb_h1`.
    pub schedule: String,
    /// Stages of a device.
    pub chunks: usize,
    /// Parts of the batch.
    pub microbatches: usize,
    /// Seconds that the busiest stage waits: for other stages, and for sums over all of gradients outside of the loop.
    pub bubble: f64,
    /// True if times are [projected](crate::project) from a Plan without these stages.
    pub projected: bool,
}

/// A stage: its layers among all of the loop, and the dim of the loop.
#[derive(Clone, Copy)]
pub(crate) struct StageShare {
    /// Layers of the device with most.
    pub(crate) layers: usize,
    /// Layers of the model.
    pub(crate) of: usize,
    /// The dim of the loop.
    pub(crate) stacked: Dim,
    /// Parts of the batch.
    pub(crate) microbatches: usize,
}

/// Bytes of a device by what they are for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct StageBytes {
    pub(crate) parameters: f64,
    pub(crate) optimizer_state: f64,
    pub(crate) gradients: f64,
    pub(crate) residuals: f64,
    pub(crate) workspace: f64,
}
