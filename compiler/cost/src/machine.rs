//! A machine: rates, latencies and sizes, as its file has them.
//!
//! Seconds, bytes, bytes per second and floating-point operations per second throughout. Every number about a machine is in such a file;
//! the code has none.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version of the format.
pub const VERSION: u32 = 1;

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
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub errors: BTreeMap<String, f64>,
    /// The calibration of the file; none where nothing was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibration: Option<Calibration>,
}

/// Sources of the numbers of a table: one for all, or one for each key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Source {
    /// Of all numbers of the table.
    All(String),
    /// By key.
    ByKey(BTreeMap<String, String>),
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
    /// The part of [`Matrix::best`] that a training keeps, whatever the shape: a limit by power and clock.
    pub sustained: f64,
    /// The same for attention.
    #[serde(default = "one")]
    pub attention_sustained: f64,
    /// Relative growth of a step for each doubling of the replicas beyond a node.
    #[serde(default)]
    pub straggle: f64,
    /// Rates of matrix products by dtype.
    pub matrix: BTreeMap<String, Matrix>,
    /// Efficiency of a matrix product by its shape.
    pub product: ProductShape,
    /// Memory.
    pub stream: Stream,
    /// Of a CPU, seconds per element of an `f32` function by family, on one core.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub scalar: BTreeMap<String, f64>,
    /// Operations per second of other kernels by family, on one unit of a CPU or a whole GPU: `convolve`, `scatter`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub families: BTreeMap<String, f64>,
    /// Attention by kernel.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub attention: BTreeMap<String, AttentionRates>,
    /// Sources of the numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
}

fn one() -> f64 {
    1.0
}

/// Rates of matrix products of one dtype: of a whole GPU, or of one core of a CPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Matrix {
    /// Peak of the data sheet: the base of MFU.
    pub peak: f64,
    /// The fastest product.
    pub best: f64,
    /// Sources of the numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
}

/// Efficiency of a matrix product by its shape: a library divides the result into tiles, and assigns whole tiles to units in whole waves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProductShape {
    /// The part of the peak that a unit reaches inside a tile.
    pub issue: f64,
    /// Elements of the summed dim during which a tile does no work: a pipeline fills, the result is written.
    pub fill: f64,
    /// Tiles: rows, columns, and the rate relative to the best tile.
    pub tiles: Vec<(usize, usize, f64)>,
    /// The rate of a product whose sum is split among units, relative to one that is not.
    #[serde(default = "one")]
    pub split: f64,
    /// Sources of the numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
}

/// Rates of memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stream {
    /// Bytes per second of a kernel by the bytes that it reads and writes, ascending; between two entries by the logarithm of the bytes.
    pub rates: Vec<(f64, f64)>,
    /// Bytes per second of all units of a CPU together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<f64>,
    /// Sources of the numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
}

/// Rates of an attention kernel: `top * keys / (keys + half)`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttentionRates {
    /// Of the forward pass: operations per second, and the number of keys with half of them.
    pub forward: (f64, f64),
    /// Of the backward pass.
    pub backward: (f64, f64),
    /// Sources of the numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
}

/// A level of the network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tier {
    /// Its name.
    pub name: String,
    /// Consecutive ranks that it connects.
    pub size: usize,
    /// Seconds of a step of a ring or a tree from one member to the next on this level.
    #[serde(default)]
    pub hop: f64,
    /// Bytes per second of all links of one group of the level below together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cap: Option<f64>,
    /// Bytes per second between two devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p2p: Option<f64>,
    /// Seconds of a message between two devices, apart from its bytes.
    #[serde(default)]
    pub p2p_latency: f64,
    /// Compute units that a collective takes from the device while it runs.
    #[serde(default)]
    pub units: f64,
    /// Algorithms and protocols; the one with the least time counts.
    pub line: Vec<Line>,
    /// Reduction in the network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reduce: Option<InNetwork>,
    /// Sources of the numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
}

/// Time of a collective: `latency + per_member (members - 1) + hops + factor bytes / rate`, where `factor` is that of bus bandwidth.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Line {
    /// Name of the algorithm: `ring`.
    pub name: String,
    /// Collectives that it is for: `all_reduce` and so on.
    pub ops: Vec<String>,
    /// Least and greatest number of members.
    #[serde(default = "any_number")]
    pub members: (usize, usize),
    /// Seconds.
    pub latency: f64,
    /// Seconds for each member after the first.
    #[serde(default)]
    pub per_member: f64,
    /// Bytes per second of a device's link (bus bandwidth).
    pub rate: f64,
    /// The number of hops is logarithmic in the number of groups.
    #[serde(default)]
    pub log: bool,
    /// Sources of the numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
}

fn any_number() -> (usize, usize) {
    (2, usize::MAX)
}

/// How switches reduce.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReduceMode {
    /// A switch adds frames as they come.
    CutThrough,
    /// A switch stores a piece before it adds.
    StoreAndForward,
}

/// Reduction in the switches of a tier.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InNetwork {
    /// How switches reduce.
    pub mode: ReduceMode,
    /// Levels of switches.
    pub levels: u32,
    /// Bytes per second of a link.
    pub rate: f64,
    /// Seconds of a link.
    pub link: f64,
    /// Bytes of a frame.
    pub frame: f64,
    /// Bytes that a switch stores, for store-and-forward.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buffer: Option<f64>,
    /// Bytes from which on it is used.
    #[serde(default)]
    pub smallest: f64,
    /// Members from which on it is used.
    #[serde(default)]
    pub members: usize,
    /// Sources of the numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
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
    pub source: Option<Source>,
}

/// What `calibrate` has measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// Day, as `2026-11-21`.
    pub date: String,
    /// Where: the machine, or the published runs.
    pub on: String,
    /// Number of plans or published runs that were compared.
    pub plans: u32,
    /// Mean relative error of their times.
    pub mean_error: f64,
    /// The greatest.
    pub max_error: f64,
}

impl Machine {
    /// Bytes that a program can use on a device.
    pub fn usable(&self) -> f64 {
        self.device.memory - self.device.reserve
    }
}
