//! The peak of the devices: operations a second of a matrix product, which a training step is compared with.

use super::Cluster;
use crate::error::ExecError;
use meshwright_plan::DType;
use std::time::Duration;

/// The first product has this many rows and columns, each later one twice as many.
const FIRST: usize = 256;
/// The last: its three matrices of `f32` take 768 MiB.
const LAST: usize = 8192;
/// A product that takes as long is large enough for its time to be that of multiplying.
const LONG: Duration = Duration::from_millis(12);
/// Products of the largest size; the fastest counts.
const REPEATS: usize = 3;

impl Cluster {
    /// Floating-point operations a second that all devices of the mesh reach together in a product of two square matrices: of
    /// the devices of this process, which multiply at once and may share cores, times the other processes. Takes about a tenth
    /// of a second.
    ///
    /// # Errors
    /// Where a device fails.
    pub fn measured_peak(&self, dtype: DType) -> Result<f64, ExecError> {
        let slowest = |n: usize| -> Result<Duration, ExecError> {
            Ok(self
                .on_all(move |engine| engine.time_product(n, dtype))?
                .into_iter()
                .max()
                .unwrap_or_default())
        };
        let mut size = FIRST;
        // The first product of all makes threads and kernels ready.
        slowest(size)?;
        let mut best = slowest(size)?;
        while best < LONG && size < LAST {
            size *= 2;
            best = slowest(size)?;
        }
        for _ in 1..REPEATS {
            best = best.min(slowest(size)?);
        }
        let operations = 2.0 * (size as f64).powi(3) * self.mesh.devices() as f64;
        Ok(operations / best.as_secs_f64().max(1e-9))
    }
}
