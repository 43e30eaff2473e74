//! Runs that are launched, while their outputs are on their way to the host.

use super::place::place;
use crate::backend::{DeviceError, Download};
use crate::error::{ExecError, Place};
use crate::tensor::HostTensor;
use meshwright_plan::Plan;
use meshwright_sorted::SortedMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Report of a device on a run.
#[derive(Debug, Default)]
pub struct DeviceReport {
    /// Its blocks of the outputs, by name.
    pub outputs: SortedMap<String, HostTensor>,
    /// From the begin to the outputs.
    pub time: Duration,
    /// Part of `time` until all was launched, and only the outputs were outstanding; on threads, until all had run.
    pub launching: Duration,
    /// Part of `time` in which it waited in collectives for other devices; on a GPU only the host's waits.
    pub waited: Duration,
    /// Whether it was launched as one graph.
    pub graph: bool,
    /// Note for the user on the run.
    pub note: Option<String>,
}

/// A run that is launched.
pub(super) struct LaunchedRun {
    pub(super) plan: Arc<Plan>,
    pub(super) rank: usize,
    pub(super) step_number: u64,
    pub(super) begun: Instant,
    /// Outputs in transfer to the host.
    pub(super) outputs: Vec<(String, Download)>,
    pub(super) report: DeviceReport,
}

impl LaunchedRun {
    /// The place for errors after all was launched.
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

    /// The device's report, with all outputs.
    pub(super) fn outputs(mut self) -> Result<DeviceReport, ExecError> {
        self.wait()?;
        Ok(self.report)
    }
}
