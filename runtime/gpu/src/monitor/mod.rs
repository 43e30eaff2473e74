//! Watching a GPU, so that there is something to say when it fails.

use super::driver::Driver;
pub use super::health::{DeviceMemory, EccErrors, GpuHealth, RemappedRows};
use super::load::Paths;
use super::nvml::{Nvml, XidEvents};
use std::fmt;
use std::sync::{Mutex, PoisonError};

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests;

/// The name of a GPU in messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuName {
    /// Its number among the GPUs that this process sees.
    pub ordinal: u32,
    /// Its place on the PCI bus, such as `0000:1b:00.0`.
    pub bus_id: String,
}

impl fmt::Display for GpuName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GPU {} ({})", self.ordinal, self.bus_id)
    }
}

/// Watches a GPU from the start of a program on, so that there is something to say when it fails. No function here waits for
/// the GPU.
pub struct GpuMonitor {
    name: GpuName,
    driver: Driver,
    /// NVML, if the system has it.
    nvml: Option<(Nvml, Mutex<Watched>)>,
}

struct Watched {
    events: Option<XidEvents>,
    /// Errors that were read before.
    xids: Vec<u64>,
}

impl GpuMonitor {
    /// Begins; none where the driver does not know the GPU.
    pub fn open(paths: &Paths, ordinal: u32) -> Option<GpuMonitor> {
        let driver = Driver::open(paths).ok()?;
        let name = GpuName { ordinal, bus_id: driver.properties(ordinal).ok()?.bus_id };
        let nvml = Nvml::open(paths).ok().map(|nvml| {
            let watched = Watched { events: nvml.xid_events(&name.bus_id), xids: vec![] };
            (nvml, Mutex::new(watched))
        });
        Some(GpuMonitor { name, driver, nvml })
    }

    /// The name of the GPU.
    pub fn name(&self) -> &GpuName {
        &self.name
    }

    /// The faults of the GPU, as far as NVML knows them.
    pub fn health(&self) -> GpuHealth {
        let Some((nvml, watched)) = &self.nvml else { return GpuHealth::default() };
        let mut watched = watched.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found = nvml.health(&self.name.bus_id, watched.events.as_ref());
        for xid in std::mem::take(&mut found.xids) {
            if !watched.xids.contains(&xid) {
                watched.xids.push(xid);
            }
        }
        GpuHealth { xids: watched.xids.clone(), ..found }
    }

    /// The memory of the GPU; none where NVML is missing.
    pub fn memory(&self) -> Option<DeviceMemory> {
        self.nvml.as_ref().and_then(|(nvml, _)| nvml.memory(&self.name.bus_id))
    }

    /// The driver's name of an error, such as `CUDA_ERROR_ILLEGAL_ADDRESS`.
    pub fn error_name(&self, code: i32) -> String {
        self.driver.error_name(code).unwrap_or_else(|| format!("error {code}"))
    }
}
