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
    /// Seconds that the busiest stage waits.
    pub bubble: f64,
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
