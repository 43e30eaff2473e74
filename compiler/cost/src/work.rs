//! What a device does in a step, as amounts: bytes, products, scores, transfers. A machine turns them into seconds.

use meshwright_plan::{Axis, CollectiveKind, DType, Phase};

/// The work of one device in a step, in order.
#[derive(Clone, Debug, Default)]
pub struct Program {
    /// What runs outside of loops, and the loops.
    pub body: Vec<Item>,
}

/// An element of a [`Program`].
#[derive(Clone, Debug)]
pub enum Item {
    /// Kernels.
    Work(Box<Work>),
    /// A collective: its start if it is async, or all of it.
    Start(Transfer),
    /// The end of an async collective.
    Wait(u32),
    /// A loop.
    Loop(Loop),
}

/// A loop with its body.
#[derive(Clone, Debug)]
pub struct Loop {
    /// The step of the Plan at which it begins.
    pub step: usize,
    /// Number of iterations.
    pub size: usize,
    /// Items with their lags (see [`meshwright_plan::Step::lag`]): an item runs in turn `t` for iteration `t - lag`.
    pub body: Vec<(Item, usize)>,
}

/// The kind of work that decides the time of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// Matrix products.
    Matmul,
    /// Attention.
    Attention,
    /// Convolutions.
    Convolve,
    /// Sums and extremes in windows.
    Pool,
    /// Lookups in tables.
    Lookup,
    /// Sums into tables.
    Scatter,
    /// Cumulative sums, sorting and greatest elements.
    Scan,
    /// All else: what reads and writes memory.
    Memory,
}

impl Family {
    /// The key of a machine file.
    pub fn name(self) -> &'static str {
        match self {
            Family::Matmul => "matmul",
            Family::Attention => "attention",
            Family::Convolve => "convolve",
            Family::Pool => "pool",
            Family::Lookup => "lookup",
            Family::Scatter => "scatter",
            Family::Scan => "scan",
            Family::Memory => "memory_bound",
        }
    }
}

/// Kernels that follow each other.
#[derive(Clone, Debug)]
pub struct Work {
    /// The step of the Plan that they compute, the last one if there are several.
    pub step: usize,
    /// All steps of the Plan that they compute.
    pub steps: Vec<usize>,
    /// The family.
    pub family: Family,
    /// The phase.
    pub phase: Phase,
    /// Number of kernels.
    pub kernels: f64,
    /// Bytes read and written.
    pub bytes: f64,
    /// Matrix products.
    pub products: Vec<Product>,
    /// The same as the Plan has them, where some are computed as one.
    pub single: Vec<Product>,
    /// Attention.
    pub attention: Option<Scores>,
    /// Elements of scalar functions, by [`ScalarFamily::position`].
    pub scalars: [f64; ScalarFamily::ALL.len()],
    /// Operations of the families between attention and memory.
    pub operations: f64,
    /// Packing around a collective: elements are brought into the order in which they are sent, or from it.
    pub packs: bool,
}

impl Work {
    /// Work that reads and writes bytes in a number of kernels.
    pub fn memory(step: usize, phase: Phase, bytes: f64, kernels: f64) -> Work {
        let (family, products, attention) = (Family::Memory, vec![], None);
        let scalars = [0.0; ScalarFamily::ALL.len()];
        Work {
            step,
            steps: vec![],
            family,
            phase,
            kernels,
            bytes,
            products,
            single: vec![],
            attention,
            scalars,
            operations: 0.0,
            packs: false,
        }
    }
}

/// `batch` products of `[m, k]` with `[k, n]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Product {
    /// Rows of the result.
    pub m: u64,
    /// Columns of the result.
    pub n: u64,
    /// Elements that are summed.
    pub k: u64,
    /// Number of products.
    pub batch: u64,
    /// Dtype of the factors.
    pub dtype: DType,
    /// Multiplied in 8 bits.
    pub fp8: bool,
}

impl Product {
    /// Floating-point operations.
    pub fn flops(&self) -> f64 {
        2.0 * self.m as f64 * self.n as f64 * self.k as f64 * self.batch as f64
    }
}

/// The scores of an attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scores {
    /// Matrices of scores: batch times heads.
    pub matrices: f64,
    /// Queries of a matrix.
    pub queries: f64,
    /// Keys of a matrix.
    pub keys: f64,
    /// Elements of a key.
    pub width: f64,
    /// Elements of a value.
    pub values: f64,
    /// The part of the scores that positions alone do not hide.
    pub visible: f64,
    /// The same in the mean of all devices, as where positions are dealt so that all have as many.
    pub balanced: f64,
    /// Products of a matrix of scores, each `2 queries keys width` operations.
    pub products: f64,
    /// A gradient.
    pub backward: bool,
    /// Whether weights are multiplied by random values.
    pub dropout: bool,
    /// Dtype of queries and keys.
    pub dtype: DType,
}

/// A family of scalar functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScalarFamily {
    /// Sums, products, comparisons, choices.
    Simple,
    /// Division.
    Divide,
    /// Square roots.
    Root,
    /// Exponentials, logarithms, hyperbolic and error functions.
    Exponential,
    /// Powers, sines.
    Power,
    /// Random values.
    Random,
}

impl ScalarFamily {
    /// All families.
    pub const ALL: [ScalarFamily; 6] = [
        ScalarFamily::Simple,
        ScalarFamily::Divide,
        ScalarFamily::Root,
        ScalarFamily::Exponential,
        ScalarFamily::Power,
        ScalarFamily::Random,
    ];

    /// Its place in [`ScalarFamily::ALL`].
    pub fn position(self) -> usize {
        self as usize
    }

    /// The key of a machine file.
    pub fn name(self) -> &'static str {
        match self {
            ScalarFamily::Simple => "simple",
            ScalarFamily::Divide => "divide",
            ScalarFamily::Root => "root",
            ScalarFamily::Exponential => "exponential",
            ScalarFamily::Power => "power",
            ScalarFamily::Random => "random",
        }
    }
}

/// A collective.
#[derive(Clone, Debug, PartialEq)]
pub struct Transfer {
    /// The step of the Plan.
    pub step: usize,
    /// Its kind.
    pub kind: CollectiveKind,
    /// Axes of its group.
    pub axes: Vec<Axis>,
    /// Bytes of a device's buffer, as [`meshwright_plan::Step::collective_bytes`].
    pub bytes: f64,
    /// Its phase.
    pub phase: Phase,
    /// Id of an async collective.
    pub flight: Option<u32>,
    /// The part of its time that the product beside it hides, where an engine cuts both into pieces.
    pub pieces: Option<f64>,
}
