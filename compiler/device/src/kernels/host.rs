//! Kernels on the host's memory, as data. The host prepares them for their shapes when a program is loaded.

use crate::access::Access;
use crate::collective::halo::Halo;
use crate::collective::pack::{PackedBlock, StridedView};
use crate::lowering::contraction::{BatchedMatmul, Factor};
use crate::lowering::local::Local;
use meshwright_plan::{DType, Donation, Prim};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// A kernel with its operands and results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HostKernel {
    /// The computation.
    pub work: HostWork,
    /// Operands, in the order that `work` expects.
    pub reads: Vec<Local>,
    /// Results.
    pub writes: Vec<Local>,
    /// Dtype of each tensor that the launch reads.
    pub inputs: Vec<DType>,
    /// Index of each operand's tensor among those of the launch. A tensor that is read twice is listed once.
    pub loads: Vec<usize>,
    /// For each result, the index of the tensor that donates its storage.
    pub over: Vec<Option<usize>>,
}

/// Computation of a kernel of the host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum HostWork {
    /// The primitive of a step of the Plan, by number and name. Half types that its kernel lacks are `f32` here.
    Step(usize, Cow<'static, str>),
    /// The same for a step that takes an iteration's part of a tensor: the host shows the part, and nothing moves.
    Show(usize),
    /// Conversion to the dtype of the result.
    Cast,
    /// Zeros.
    Zero,
    /// Copy of a part, or to another order of dims.
    Copy,
    /// Matmul of the first operand by the second.
    Matmul(Box<BatchedMatmul>),
    /// Matmul of a factor with few rows by a matrix, which is streamed.
    ThinProduct {
        /// Sizes and strides.
        shape: ThinShape,
        /// Whether the first operand is the thin factor.
        of_left: bool,
    },
    /// Concatenation of blocks of each operand.
    Pack(Vec<(StridedView, Vec<PackedBlock>)>),
    /// Inverse of `Pack`, for one array.
    Unpack(StridedView, Vec<PackedBlock>),
    /// Join of received blocks and the device's own part; which of the two operands exist.
    JoinHalo(Box<Halo>, [bool; 2]),
}

impl HostWork {
    /// Name in texts.
    pub fn name(&self) -> &str {
        match self {
            HostWork::Step(_, name) => name,
            HostWork::Show(_) => "iteration_slice",
            HostWork::Cast => "cast",
            HostWork::Zero => "zero",
            HostWork::Copy => "copy",
            HostWork::Matmul(_) => "matmul",
            HostWork::ThinProduct { .. } => "thin_matmul",
            HostWork::Pack(_) => "pack",
            HostWork::Unpack(..) => "unpack",
            HostWork::JoinHalo(..) => "join_halo",
        }
    }
}

/// Most rows of the thin factor of a product.
pub const MOST_ROWS: usize = 4;
/// Least elements of a matrix for a kernel of thin products; with less, a general product is as good.
pub const LEAST_MATRIX: usize = 1 << 12;

/// Sizes of a thin matmul, `result[rows, columns] = sum over inner of thin[rows, inner] * matrix`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThinShape {
    /// Rows of the thin factor and of the result.
    pub rows: usize,
    /// Size of the dim that is summed.
    pub inner: usize,
    /// Columns of the matrix and of the result.
    pub columns: usize,
    /// Whether the matrix is stored as `[columns, inner]`, else as `[inner, columns]`.
    pub by_columns: bool,
    /// Strides of the thin factor: between rows, and within a row.
    pub thin: [usize; 2],
    /// Strides of the result: between rows, and within a row.
    pub result: [usize; 2],
}

/// Strides of the matrices of a factor, in elements.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Factored {
    /// Stride of each dim of the batch.
    pub batch: Vec<usize>,
    /// Stride between rows.
    pub row: usize,
    /// Stride between columns.
    pub column: usize,
}

impl Factored {
    /// Strides of a factor.
    pub fn of(factor: &Factor) -> Factored {
        let steps = crate::access::dense_strides(&factor.reshape);
        let order: Vec<usize> = factor.permute.clone().unwrap_or_else(|| (0..steps.len()).collect());
        let mut steps: Vec<usize> = order.iter().map(|i| steps[*i]).collect();
        let (column, row) = (steps.pop().unwrap_or(1), steps.pop().unwrap_or(1));
        Factored { batch: steps, row, column }
    }
}

/// Access to each operand that the kernel of a primitive reads element by element with its results, so that a result may
/// overwrite it. Operands beyond the list are read in another order.
pub fn aligned(prim: &Prim, reads: &[Local], writes: &[Local]) -> Vec<Option<Access>> {
    let Some(out) = writes.first() else { return vec![] };
    let walked = |local: &Local| Some(local.access(&out.dims));
    let many = match prim.spec().donation {
        Donation::Aligned => reads.len(),
        Donation::First => 1,
        Donation::Never | Donation::Paired => 0,
    };
    reads.iter().take(many).map(walked).collect()
}
