//! A machine: rates, latencies and sizes, as its file has them.
//!
//! Seconds, bytes, bytes per second and floating-point operations per second throughout. Every number about a machine is in such
//! a file; the code has none.

mod check;
mod error;
mod network;
mod overrides;
mod read;
mod source;

pub use error::MachineError;
pub use network::{InNetwork, NetworkLine, ReduceMode, Tier};
pub use source::NumberSource;

use meshwright_sorted::SortedMap;
use serde::{Deserialize, Serialize};

/// Version of the format.
pub const VERSION: u32 = 1;

/// Relative error of a time that nothing has measured: what estimates from data sheets were off by at most, as a rule.
pub const UNCALIBRATED: f64 = 0.15;

/// Families of `f32` functions that files have seconds of.
pub const SCALAR_FAMILIES: [&str; 6] = ["simple", "divide", "root", "exponential", "power", "random"];

/// The least seconds of one element that a file may have: 1e30 elements a second, the greatest rate.
pub const LEAST_ELEMENT_SECONDS: f64 = 1e-30;

/// A machine file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// [`VERSION`].
    pub version: u32,
    /// Name for people.
    pub name: String,
    /// One device.
    pub device: Device,
    /// Levels of the network, the innermost first.
    #[serde(default)]
    pub tier: Vec<Tier>,
    /// Failures of devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failures: Option<Failures>,
    /// Relative error of a time by family of work, as measured: `matmul = 0.03`.
    #[serde(default, skip_serializing_if = "SortedMap::is_empty")]
    pub errors: SortedMap<String, f64>,
    /// The calibration of the file; none where nothing was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibration: Option<Calibration>,
}

/// Kind of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceKind {
    /// Threads or processes on the cores of a host. They share its cores and its memory.
    Cpu,
    /// A GPU.
    Gpu,
}

/// One device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// Its kind.
    pub kind: DeviceKind,
    /// Name for people.
    pub name: String,
    /// Bytes that a program can see; of a CPU, those of the host.
    pub memory: f64,
    /// Bytes that a program can see but not use: contexts, communicators, rounding of allocators.
    pub reserve: f64,
    /// Compute units: multiprocessors of a GPU, cores of a host.
    pub units: u32,
    /// Seconds from the end of one kernel to the full rate of the next.
    pub kernel: f64,
    /// The part of [`MatrixRates::best`] that a training keeps, whatever the shape: a limit by power and clock.
    pub sustained: f64,
    /// The same for attention.
    #[serde(default = "one")]
    pub attention_sustained: f64,
    /// Of a CPU, how much faster more threads make a device: `n` of them by `n^threads`. Devices have several where there are
    /// fewer than cores.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub threads: f64,
    /// Relative growth of a step for each doubling of the replicas beyond a node.
    #[serde(default)]
    pub straggle: f64,
    /// Rates of matrix products by dtype: `bf16`.
    pub matrix: SortedMap<String, MatrixRates>,
    /// Efficiency of a matrix product by its shape.
    pub product: MatmulShape,
    /// Memory.
    pub stream: StreamRates,
    /// Seconds per element of an `f32` function by family ([`SCALAR_FAMILIES`]), on one core of a CPU or on a whole GPU.
    #[serde(default, skip_serializing_if = "SortedMap::is_empty")]
    pub scalar: SortedMap<String, f64>,
    /// Operations per second of other kernels by family, on one unit of a CPU or a whole GPU: `convolve`, `scatter`.
    #[serde(default, skip_serializing_if = "SortedMap::is_empty")]
    pub families: SortedMap<String, f64>,
    /// Attention by kernel.
    #[serde(default, skip_serializing_if = "SortedMap::is_empty")]
    pub attention: SortedMap<String, AttentionRates>,
    /// Sources of the numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<NumberSource>,
}

fn one() -> f64 {
    1.0
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde hands over a reference")]
fn is_zero(x: &f64) -> bool {
    *x == 0.0
}

/// Rates of matrix products of one dtype: of a whole GPU, or of one core of a CPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MatrixRates {
    /// Peak of the data sheet: the base of MFU.
    pub peak: f64,
    /// The fastest product.
    pub best: f64,
    /// Sources of the numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<NumberSource>,
}

/// Efficiency of a matrix product by its shape: a library divides the result into tiles, and assigns whole tiles to units in
/// whole waves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MatmulShape {
    /// The part of the peak that a unit reaches inside a tile.
    pub issue: f64,
    /// Elements of the summed dim during which a tile does no work: a pipeline fills, the result is written.
    pub fill: f64,
    /// Tiles: rows, columns, and the rate relative to the best tile.
    pub tiles: Vec<(usize, usize, f64)>,
    /// The rate of a product whose sum is split among units, relative to one that is not.
    #[serde(default = "one")]
    pub split: f64,
    /// A unit reads the next tile's elements while it ends a tile, so that it fills once for all its tiles.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ahead: bool,
    /// Sources of the numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<NumberSource>,
}

/// Rates of memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamRates {
    /// Bytes per second of a kernel by the bytes that it reads and writes, ascending; between two entries by the logarithm of the
    /// bytes.
    pub rates: Vec<(f64, f64)>,
    /// Bytes per second of all units of a CPU together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<f64>,
    /// Sources of the numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<NumberSource>,
}

/// Rates of an attention kernel: `top * keys / (keys + half)`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttentionRates {
    /// Of the forward pass: operations per second, and the number of keys with half of them.
    pub forward: (f64, f64),
    /// Of the backward pass, five products for each matrix of scores.
    pub backward: (f64, f64),
    /// Relative rates by the elements of a key, ascending; the last entry that is not above counts, below the first the first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub widths: Vec<(f64, f64)>,
    /// Time with dropout relative to the time without.
    #[serde(default = "one")]
    pub dropout: f64,
    /// Sources of the numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<NumberSource>,
}

/// Failures, for goodput.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Failures {
    /// Hours of one device between failures.
    pub hours: f64,
    /// Seconds from a failure to the next step.
    pub restart: f64,
    /// Seconds of a checkpoint.
    pub checkpoint: f64,
    /// Sources of the numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<NumberSource>,
}

/// What `calibrate` has measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// Day, as `2026-11-21`.
    pub date: String,
    /// Where: the machine, or the published runs.
    pub on: String,
    /// The engine that was measured: `threads`, `mpi` or `cuda`; none of published runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<String>,
    /// Number of plans or published runs that were compared.
    pub plans: u32,
    /// Mean relative error of their times.
    pub mean_error: f64,
    /// The greatest.
    pub max_error: f64,
}

impl AttentionRates {
    /// The relative rate of keys of this many elements.
    pub fn width_rate(&self, width: f64) -> f64 {
        let known = self.widths.iter().rev().find(|w| w.0 <= width).or(self.widths.first());
        known.map_or(1.0, |w| w.1)
    }
}

impl Machine {
    /// Bytes that a program can use on a device.
    pub fn usable(&self) -> f64 {
        self.device.memory - self.device.reserve
    }

    /// The most devices that the network connects; 1 without one.
    pub fn devices(&self) -> usize {
        self.tier.last().map_or(1, |t| t.size)
    }

    /// Relative error of a time of this family of work: as measured by family, else of all plans, else [`UNCALIBRATED`].
    pub fn error(&self, family: &str) -> f64 {
        let all = self.calibration.as_ref().map_or(UNCALIBRATED, |c| c.mean_error);
        self.errors.get(family).copied().unwrap_or(all)
    }
}
