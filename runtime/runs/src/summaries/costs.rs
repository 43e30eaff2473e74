//! What a training step costs by its Plan: `costs.json` in the folder of a run.

use meshwright_plan::{CollectiveTotal, PeakMemory, Plan, StoredElements};
use serde::{Deserialize, Serialize};

/// What a step costs a device, that with the largest blocks, by the Plan.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunCosts {
    /// Devices of the mesh.
    pub devices: usize,
    /// Examples in a batch.
    pub batch: usize,
    /// Floating-point operations.
    pub flops: u64,
    /// Bytes that it gives to collectives.
    pub collective_bytes: u64,
    /// What is alive at once, by use.
    #[serde(flatten)]
    pub memory: PeakMemory,
    /// The collectives by kind and axes, in the order in which they first occur; `collective_bytes` is the sum of theirs.
    pub collectives: Vec<CollectiveTotal>,
    /// The estimate of a step, if a machine was named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimate: Option<RunEstimate>,
}

/// The time of a step as it was estimated before the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunEstimate {
    /// The machine file.
    pub machine: String,
    /// Seconds of a step.
    pub seconds: f64,
    /// Relative error of it.
    pub error: f64,
}

impl RunCosts {
    /// Of the Plan of a training step. What stands in a loop counts as often as it runs.
    pub fn of(plan: &Plan) -> RunCosts {
        let s = &plan.summary;
        RunCosts {
            devices: plan.mesh.devices(),
            // The first dim of the first input counts examples.
            batch: plan.inputs.first().and_then(|i| i.dims.first()).map_or(1, |d| plan.dims.size(*d)),
            flops: s.flops,
            collective_bytes: s.collective_bytes,
            memory: plan.peak_memory(&StoredElements::new()),
            collectives: plan.communication(),
            estimate: None,
        }
    }
}
