//! Model FLOPs utilization: the operations of the model in a second, as a share of what the devices reach at most.

use crate::failure::Failure;
use crate::project::Project;
use crate::training::TrainOptions;
use meshwright_core::{model_flops, training_step};
use meshwright_exec::Cluster;

/// What a step computes, and what the devices could.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Utilization {
    /// See [`model_flops`].
    pub(crate) model_flops: u64,
    /// Operations a second of all devices of the mesh together: as `--peak-flops` says, or measured.
    pub(crate) peak: Option<f64>,
}

impl Utilization {
    /// Measures the peak where it is not given and the run asks for it: before the first step, never within one.
    ///
    /// # Errors
    /// Where a device fails.
    pub(crate) fn of(
        project: &Project,
        options: &TrainOptions,
        cluster: &Cluster,
    ) -> Result<Utilization, Failure> {
        let model_flops = training_step(&project.program).map_or(0, |step| model_flops(&step));
        let peak = match options.policies.peak_flops {
            Some(each) => Some(each * project.layout.mesh.devices() as f64),
            None if options.measure_peak => Some(cluster.measured_peak(project.program.float)?),
            None => None,
        };
        Ok(Utilization { model_flops, peak })
    }

    /// The share of the peak at so many steps a second.
    pub(crate) fn share(&self, steps_per_second: f64) -> Option<f64> {
        Some(self.model_flops as f64 * steps_per_second / self.peak?)
    }
}
