//! A matmul, and the key by which its kernel is chosen.

use super::matrix::{Matrix, MatrixElement, Order};
use crate::driver::DriverError;
use crate::load::LoadError;
use std::fmt;

/// Precision of the sum of an `f32` matmul.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Sums {
    /// In `f32`, of the factors without rounding.
    #[default]
    Exact,
    /// Of factors rounded to TF32 (10 bits after the point): several times as fast if a GPU has units for it.
    Tf32,
}

/// Epilogue of a matmul: a function of its elements before they are written, or a reduction of a factor that it reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epilogue {
    /// The address of a vector that is added to each row, with elements of the result's type.
    pub bias: Option<u64>,
    /// The function after the bias.
    pub then: Follows,
    /// Elements from the bias, or the sums, of one batch to those of the next; 0 where all batches have the same bias.
    pub apart: usize,
}

/// The last part of an epilogue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Follows {
    /// Nothing.
    #[default]
    Nothing,
    /// Values below 0 become 0.
    Relu,
    /// The same, and which elements were above 0 is written.
    ReluKeeping(Bits),
    /// Values that were not above 0 there become 0: the gradient of `relu`. Without a bias.
    ReluGrad(Bits),
    /// `x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2`, the approximation of `gelu`.
    GeluTanh,
    /// The same, and its operand is written to this address, in the layout of the result.
    GeluTanhKeeping(u64),
    /// Times the derivative of that at the elements of this address, in the layout of the result: the gradient of
    /// `gelu`. Without a bias.
    GeluTanhGrad(u64),
    /// Sums of the right factor over the reduction dim, one for each column, are written to this address: the gradient
    /// of a bias. Elements have the result's type. Without a bias.
    RightSums(u64),
    /// Sums of the left factor, one for each row.
    LeftSums(u64),
}

/// A bit for each element of a product, in an order of the library's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bits {
    /// Their address: a multiple of 16.
    pub address: u64,
    /// Bits from one row to the next.
    pub leading: usize,
}

impl Bits {
    /// Rows of bits are multiples of this, as the library requires (`CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD`).
    pub(super) const UNIT: usize = 128;

    /// Bits at an address, for rows of `columns` elements.
    pub fn of(address: u64, columns: usize) -> Bits {
        Bits { address, leading: columns.next_multiple_of(Bits::UNIT) }
    }

    /// Bytes of the bits of `rows` rows.
    pub fn bytes(&self, rows: usize) -> usize {
        rows * self.leading / 8
    }
}

impl Epilogue {
    /// The epilogue without addresses.
    fn kind(&self) -> (bool, FollowsKind, usize) {
        let then = match self.then {
            Follows::Nothing => FollowsKind::Nothing,
            Follows::Relu => FollowsKind::Relu,
            Follows::ReluKeeping(bits) => FollowsKind::ReluKeeping(bits.leading),
            Follows::ReluGrad(bits) => FollowsKind::ReluGrad(bits.leading),
            Follows::GeluTanh => FollowsKind::GeluTanh,
            Follows::GeluTanhKeeping(_) => FollowsKind::GeluTanhKeeping,
            Follows::GeluTanhGrad(_) => FollowsKind::GeluTanhGrad,
            Follows::RightSums(_) => FollowsKind::RightSums,
            Follows::LeftSums(_) => FollowsKind::LeftSums,
        };
        (self.bias.is_some(), then, self.apart)
    }

    /// Whether the library has such an epilogue for this number of batches and this result.
    fn is_one(&self, batches: usize, out: &Matrix) -> bool {
        let alone = self.bias.is_none() && batches == 1;
        let has_room = |bits: Bits| bits.leading >= out.columns && bits.leading.is_multiple_of(Bits::UNIT);
        // The library's requirement on the rows of a second result.
        let beside = out.leading.is_multiple_of(8);
        match self.then {
            Follows::Nothing | Follows::Relu | Follows::GeluTanh => true,
            Follows::ReluKeeping(bits) => batches == 1 && has_room(bits),
            Follows::ReluGrad(bits) => alone && has_room(bits),
            Follows::GeluTanhKeeping(_) => batches == 1 && beside,
            Follows::GeluTanhGrad(_) => alone && beside,
            // Each batch has its own.
            Follows::RightSums(_) | Follows::LeftSums(_) => {
                self.bias.is_none() && (batches == 1 || self.apart > 0)
            }
        }
    }
}

/// [`Follows`] without addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum FollowsKind {
    Nothing,
    Relu,
    ReluKeeping(usize),
    ReluGrad(usize),
    GeluTanh,
    GeluTanhKeeping,
    GeluTanhGrad,
    RightSums,
    LeftSums,
}

/// A product to compute: `out = left * right`, in each of the batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matmul {
    /// `[rows, summed]`.
    pub left: Matrix,
    /// `[summed, columns]`.
    pub right: Matrix,
    /// `[rows, columns]`, by rows.
    pub out: Matrix,
    /// Number of pairs of matrices, each at its stride.
    pub batches: usize,
    /// Precision of the sum.
    pub sums: Sums,
    /// The epilogue.
    pub epilogue: Epilogue,
    /// The address of matrices to which the product is added, before the epilogue: those of `out`, or others that lie in the same way.
    pub adds: Option<u64>,
    /// The addresses of two `f32` numbers by which the left and the right factor are multiplied: of factors in FP8 alone.
    pub scales: Option<[u64; 2]>,
}

impl Matmul {
    /// Whether the library multiplies these factors in FP8, of which it takes one in E5M2 at most, and sums along the rows of the left one and the
    /// columns of the right one, where elements lie side by side.
    fn is_of_fp8(&self) -> bool {
        let Matmul { left, right, out, .. } = self;
        right.element.is_fp8()
            && [left, right].iter().any(|m| m.element == MatrixElement::E4M3)
            && (out.element.is_half() || out.element == MatrixElement::F32)
            && (left.order, right.order) == (Order::Rows, Order::Columns)
    }

    /// The same with its result in other memory, to which it is added if it is added to anything.
    pub(super) fn at(&self, address: u64) -> Matmul {
        Matmul { out: Matrix { address, ..self.out }, adds: self.adds.map(|_| address), ..*self }
    }
}

/// Memory of the GPU that a product may use while it runs.
#[derive(Clone, Copy, Debug)]
pub struct Workspace {
    /// Its address: a multiple of 256.
    pub address: u64,
    /// Bytes.
    pub bytes: usize,
}

/// Size that makes all kernels of a Hopper GPU eligible, by NVIDIA's advice (cuBLAS, section 2.1.8 "Workspaces").
pub const WORKSPACE_BYTES: usize = 32 << 20;

/// Reason why a matmul cannot be computed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MatmulError {
    /// The library is missing or too old.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The driver failed.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// A function failed.
    #[error("`{function}` of cuBLASLt failed: {text}")]
    Call {
        /// The function that failed.
        function: &'static str,
        /// The library's name of the error.
        text: String,
    },
    /// The library knows no way.
    #[error("cuBLASLt has no kernel for a product of {0}")]
    NoKernel(String),
    /// The factors do not fit together.
    #[error("a product of {0} is none")]
    Shapes(String),
}

/// The properties on which the choice of a kernel depends, besides the GPU and the library.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MatmulKey {
    /// Layouts of left, right and out.
    matrices: [MatrixPlace; 3],
    batches: usize,
    sums: Sums,
    epilogue: (bool, FollowsKind, usize),
    adds: bool,
    workspace: usize,
}

/// Layout of a matrix, without its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct MatrixPlace {
    matrix: (MatrixElement, usize, usize, Order, usize, usize),
    alignment: u32,
}

impl MatrixPlace {
    fn of(m: &Matrix) -> MatrixPlace {
        MatrixPlace {
            matrix: (m.element, m.rows, m.columns, m.order, m.leading, m.batch_stride),
            alignment: alignment(m.address),
        }
    }
}

/// Alignment of an address, a power of two of at most 256: kernels use no larger one.
fn alignment(address: u64) -> u32 {
    1 << address.trailing_zeros().min(8)
}

impl MatmulKey {
    /// The key of a matmul; fails if factors and result do not fit together.
    pub fn of(product: &Matmul, workspace: usize) -> Result<MatmulKey, MatmulError> {
        let Matmul { left, right, out, batches, sums, epilogue, adds, scales } = *product;
        // The library has one layout for what is added and the result.
        let both = Matrix { address: out.address | adds.unwrap_or(0), ..out };
        let key = MatmulKey {
            matrices: [&left, &right, &both].map(MatrixPlace::of),
            batches,
            sums,
            epilogue: epilogue.kind(),
            adds: adds.is_some(),
            workspace,
        };
        let elements = match left.element.is_fp8() {
            true => product.is_of_fp8(),
            false => {
                let wider = left.element.is_half() && out.element == MatrixElement::F32;
                left.element == right.element && (out.element == left.element || wider)
            }
        };
        let fits = left.columns == right.rows
            && (left.rows, right.columns) == (out.rows, out.columns)
            && elements
            && scales.is_some() == left.element.is_fp8()
            && out.order == Order::Rows
            && epilogue.is_one(batches, &out)
            && [left.rows, left.columns, right.columns, batches].iter().all(|n| *n > 0);
        if fits { Ok(key) } else { Err(MatmulError::Shapes(key.to_string())) }
    }

    /// Its matrices, but for batches and addresses.
    pub(super) fn shapes(&self) -> String {
        let one = |p: &MatrixPlace| {
            let (_, rows, columns, order, leading, _) = p.matrix;
            format!("[{rows} {columns}]{}/{leading}", if order == Order::Columns { "'" } else { "" })
        };
        let [left, right, out] = &self.matrices;
        // Two formats of 8 bits may be multiplied with each other.
        let of_right =
            if right.matrix.0 == left.matrix.0 { String::new() } else { format!("{} ", right.matrix.0) };
        format!("{} {} x {of_right}{} -> {} {}", left.matrix.0, one(left), one(right), out.matrix.0, one(out))
    }

    /// Alignments of right, left, what is added, and the result.
    pub(super) fn alignments(&self) -> [u32; 4] {
        let [left, right, out] = &self.matrices;
        [right, left, out, out].map(|place| place.alignment)
    }
}

/// `bf16 [512 768]/768 x [768 3072]'/768 -> f32 [512 3072]/3072, 4 batches (393216 0 1572864), aligned to 256 256 256,
/// bias, relu, 33554432 bytes`: a mark for column order, and after the slash the stride from one row or column to the
/// next.
impl fmt::Display for MatmulKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.shapes())?;
        let strides = self.matrices.map(|p| p.matrix.5);
        if self.batches > 1 {
            write!(f, ", {} batches ({} {} {})", self.batches, strides[0], strides[1], strides[2])?;
        }
        let [a, b, c] = self.matrices.map(|p| p.alignment);
        write!(f, ", aligned to {a} {b} {c}")?;
        if self.sums == Sums::Tf32 {
            write!(f, ", tf32")?;
        }
        if self.adds {
            write!(f, ", added")?;
        }
        let (bias, then, apart) = self.epilogue;
        if bias {
            write!(f, ", bias")?;
        }
        match then {
            FollowsKind::Nothing => {}
            FollowsKind::Relu => write!(f, ", relu")?,
            FollowsKind::ReluKeeping(leading) => write!(f, ", relu with bits /{leading}")?,
            FollowsKind::ReluGrad(leading) => write!(f, ", gradient of relu by bits /{leading}")?,
            FollowsKind::GeluTanh => write!(f, ", gelu")?,
            FollowsKind::GeluTanhKeeping => write!(f, ", gelu beside its operand")?,
            FollowsKind::GeluTanhGrad => write!(f, ", gradient of gelu")?,
            FollowsKind::RightSums => write!(f, ", sums of right")?,
            FollowsKind::LeftSums => write!(f, ", sums of left")?,
        }
        if apart > 0 {
            write!(f, ", each {apart} apart")?;
        }
        write!(f, ", {} bytes", self.workspace)
    }
}
