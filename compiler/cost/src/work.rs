//! What a device does in a step, as amounts: bytes, products, scores, transfers. A machine turns them into seconds.

use meshwright_plan::expr::FunctionCost;
use meshwright_plan::{Arithmetic, Axis, CollectiveKind, KernelFamily, Phase};

/// The work of one device in a step, in order.
#[derive(Clone, Debug, Default)]
pub struct DeviceWork {
    /// What runs outside of loops, and the loops.
    pub body: Vec<WorkItem>,
}

/// An element of a [`DeviceWork`].
#[derive(Clone, Debug)]
pub enum WorkItem {
    /// Kernels.
    Work(Box<KernelWork>),
    /// A collective: its start if it is async, or all of it.
    Start(Transfer),
    /// The end of an async collective.
    Wait(u32),
    /// A loop.
    Loop(Loop),
}

impl WorkItem {
    /// Its kernels, those of loops once.
    pub(crate) fn kernels(&self) -> Vec<&KernelWork> {
        match self {
            WorkItem::Work(work) => vec![&**work],
            WorkItem::Loop(of) => of.body.iter().flat_map(|(item, _)| item.kernels()).collect(),
            WorkItem::Start(_) | WorkItem::Wait(_) => vec![],
        }
    }
}

/// A loop with its body.
#[derive(Clone, Debug)]
pub struct Loop {
    /// The step of the Plan at which it begins.
    pub step: usize,
    /// Number of iterations.
    pub size: usize,
    /// Items with their lags (see [`meshwright_plan::Step::lag`]): an item runs in turn `t` for iteration `t - lag`.
    pub body: Vec<(WorkItem, usize)>,
}

/// Kernels that follow each other.
#[derive(Clone, Debug)]
pub struct KernelWork {
    /// The step of the Plan that they compute, the last one if there are several.
    pub step: usize,
    /// All steps of the Plan that they compute.
    pub steps: Vec<usize>,
    /// The family.
    pub family: KernelFamily,
    /// The phase.
    pub phase: Phase,
    /// Number of kernels.
    pub kernels: f64,
    /// Bytes read and written.
    pub bytes: f64,
    /// Bytes that a kernel of a library reads once more when the product has ended: the factor whose sums it gives.
    pub again: f64,
    /// Matrix products.
    pub products: Vec<Matmul>,
    /// The same as the Plan has them, where some are computed as one.
    pub single: Vec<Matmul>,
    /// Attention.
    pub attention: Option<Scores>,
    /// Elements of scalar functions, by [`ScalarFamily::position`].
    pub scalars: [f64; ScalarFamily::ALL.len()],
    /// Operations of the families between attention and memory.
    pub operations: f64,
    /// Purpose.
    pub purpose: KernelPurpose,
}

/// What kernels are for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KernelPurpose {
    /// The steps of the Plan.
    #[default]
    Step,
    /// Packing around a collective: elements are brought into the order in which they are sent, or from it.
    Packing,
    /// Copies of what lies scattered; another layout may need none.
    Copy,
}

impl KernelWork {
    /// Work that reads and writes bytes in a number of kernels.
    pub fn memory(step: usize, phase: Phase, bytes: f64, kernels: f64) -> KernelWork {
        let (family, products, attention) = (KernelFamily::Memory, vec![], None);
        let scalars = [0.0; ScalarFamily::ALL.len()];
        KernelWork {
            step,
            steps: vec![],
            family,
            phase,
            kernels,
            bytes,
            again: 0.0,
            products,
            single: vec![],
            attention,
            scalars,
            operations: 0.0,
            purpose: KernelPurpose::Step,
        }
    }
}

impl KernelWork {
    /// The steps of the Plan that it is for.
    pub fn all_steps(&self) -> Vec<usize> {
        if self.steps.is_empty() { vec![self.step] } else { self.steps.clone() }
    }

    /// The number of equal products that are one: 1 where none are.
    pub fn joined(&self) -> u64 {
        match (&self.products[..], &self.single[..]) {
            ([one], [first, ..]) if one.batch == first.batch * self.single.len() as u64 => {
                self.single.len() as u64
            }
            _ => 1,
        }
    }

    /// A part of it, of its bytes and its scalar functions.
    pub fn scaled(&self, part: f64) -> KernelWork {
        KernelWork { bytes: self.bytes * part, scalars: self.scalars.map(|s| s * part), ..self.clone() }
    }
}

/// `batch` products of `[m, k]` with `[k, n]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Matmul {
    /// Rows of the result.
    pub m: u64,
    /// Columns of the result.
    pub n: u64,
    /// Elements that are summed.
    pub k: u64,
    /// Number of products.
    pub batch: u64,
    /// Arithmetic of the factors.
    pub arithmetic: Arithmetic,
    /// Multiplied in 8 bits.
    pub fp8: bool,
}

impl Matmul {
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
    /// Products of a matrix of scores, each `2 queries keys width` operations, where one kernel computes them.
    pub products: f64,
    /// Number of kernels that compute the scores.
    pub kernels: f64,
    /// Functions for each score, over all kernels, by [`ScalarFamily::position`].
    pub functions: [f64; ScalarFamily::ALL.len()],
    /// A gradient.
    pub backward: bool,
    /// Whether weights are multiplied by random values.
    pub dropout: bool,
    /// Arithmetic of the factors.
    pub arithmetic: Arithmetic,
}

/// A family of scalar functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScalarFamily {
    /// Functions of one number, or of two.
    Function(FunctionCost),
    /// Random values.
    Random,
}

impl ScalarFamily {
    /// All families.
    pub const ALL: [ScalarFamily; 6] = [
        ScalarFamily::Function(FunctionCost::Simple),
        ScalarFamily::Function(FunctionCost::Divide),
        ScalarFamily::Function(FunctionCost::Root),
        ScalarFamily::Function(FunctionCost::Exponential),
        ScalarFamily::Function(FunctionCost::Power),
        ScalarFamily::Random,
    ];

    /// Its place in [`ScalarFamily::ALL`].
    pub fn position(self) -> usize {
        match self {
            ScalarFamily::Function(cost) => cost as usize,
            ScalarFamily::Random => FunctionCost::Power as usize + 1,
        }
    }

    /// The key of a machine file.
    pub fn name(self) -> &'static str {
        match self {
            ScalarFamily::Function(FunctionCost::Simple) => "simple",
            ScalarFamily::Function(FunctionCost::Divide) => "divide",
            ScalarFamily::Function(FunctionCost::Root) => "root",
            ScalarFamily::Function(FunctionCost::Exponential) => "exponential",
            ScalarFamily::Function(FunctionCost::Power) => "power",
            ScalarFamily::Random => "random",
        }
    }
}

impl Scores {
    /// The same work, computed by this number of kernels.
    pub fn in_kernels(&mut self, kernels: f64) {
        self.kernels = kernels;
        self.functions.iter_mut().for_each(|f| *f *= kernels);
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
    /// The part of its time that a matmul hides, if an engine cuts both into pieces.
    pub pieces: Option<f64>,
}
