//! Runs that are launched, while their outputs are on their way to the host.

use super::place::place;
use crate::backend::{DeviceError, Download};
use crate::error::{ExecError, Place};
use crate::tensor::HostTensor;
use meshwright_plan::Plan;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a device tells of a run.
#[derive(Debug, Default)]
pub struct DeviceReport {
    /// Its blocks of the outputs, by name.
    pub outputs: BTreeMap<String, HostTensor>,
    /// From the begin to the outputs.
    pub time: Duration,
    /// Of this, until all was launched, and only its outputs were waited for; where the device is a thread, until all had run.
    pub launching: Duration,
    /// Of this, what it waited in collectives for other devices; on a GPU only what the host waited.
    pub waited: Duration,
    /// Whether it was launched as one graph.
    pub graph: bool,
    /// What the user should know of it.
    pub note: Option<String>,
}

/// A run that is launched.
pub(super) struct LaunchedRun {
    pub(super) plan: Arc<Plan>,
    pub(super) rank: usize,
    pub(super) step_number: u64,
    pub(super) begun: Instant,
    /// Those that are on their way.
    pub(super) outputs: Vec<(String, Download)>,
    pub(super) report: DeviceReport,
}

impl LaunchedRun {
    /// What to say of where an error came up after all was launched.
    pub(super) fn place(&self) -> Box<Place> {
        place(&self.plan, self.rank, Some(self.step_number), None)
    }

    /// Waits for the outputs.
    pub(super) fn wait(&mut self) -> Result<(), ExecError> {
        for (name, download) in std::mem::take(&mut self.outputs) {
            let read = download().map_err(|DeviceError(problem)| ExecError::Device {
                place: self.place(),
                problem: format!("output `{name}`: {problem}"),
            });
            self.report.outputs.insert(name, read?);
        }
        Ok(())
    }

    /// What the device tells, with all outputs.
    pub(super) fn outputs(mut self) -> Result<DeviceReport, ExecError> {
        self.wait()?;
        Ok(self.report)
    }
}
