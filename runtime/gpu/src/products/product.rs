//! What a product is, and what of it the choice of a kernel depends on.

use super::matrix::{Matrix, MatrixElement, Order};
use crate::driver::DriverError;
use crate::load::LoadError;
use std::fmt;

/// In what the terms of a product of `f32` are summed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Sums {
    /// In `f32`, of the factors as they are.
    #[default]
    Exact,
    /// Of factors rounded to TF32 (10 bits after the point): many times as fast where a GPU has units for it.
    Tf32,
}

/// What a product does beside multiplying: with its elements before they are written, or with a factor that it reads anyway.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epilogue {
    /// The address of a vector that is added to each row, with elements of the result's type.
    pub bias: Option<u64>,
    /// What comes after the bias.
    pub then: Follows,
}

/// What comes last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Follows {
    /// Nothing.
    #[default]
    Nothing,
    /// What is below 0 becomes 0.
    Relu,
    /// The same, and which elements were above 0 is written.
    ReluKeeping(Bits),
    /// What was not above 0 there becomes 0: the gradient of `relu`. Without a bias.
    ReluGrad(Bits),
    /// `x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2`, the approximation of `gelu`.
    GeluTanh,
    /// The same, and what it was applied to is written to this address, lying as the result.
    GeluTanhKeeping(u64),
    /// Times the derivative of that at the elements of this address, which lie as those of the result: the gradient of `gelu`. Without a bias.
    GeluTanhGrad(u64),
    /// The sums of the right factor over what the product sums are written to this address, one for each column: the gradient of a
    /// bias. Elements are of the result's type. Without a bias.
    RightSums(u64),
    /// Those of the left factor, one for each row.
    LeftSums(u64),
}

/// A bit for each element of a product, in an order of the library's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bits {
    /// Where they are: a multiple of 16.
    pub address: u64,
    /// Bits from one row to the next.
    pub leading: usize,
}

impl Bits {
    /// What rows of bits are multiples of, as the library wants it (`CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD`).
    pub(super) const UNIT: usize = 128;

    /// At an address, for rows of so many elements.
    pub fn of(address: u64, columns: usize) -> Bits {
        Bits { address, leading: columns.next_multiple_of(Bits::UNIT) }
    }

    /// How many bytes those of so many rows are.
    pub fn bytes(&self, rows: usize) -> usize {
        rows * self.leading / 8
    }
}

impl Epilogue {
    /// All but addresses.
    fn kind(&self) -> (bool, FollowsKind) {
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
        (self.bias.is_some(), then)
    }

    /// Whether there is such a one for a product of so many batches with such a result.
    fn is_one(&self, batches: usize, out: &Matrix) -> bool {
        let alone = self.bias.is_none() && batches == 1;
        let has_room = |bits: Bits| bits.leading >= out.columns && bits.leading.is_multiple_of(Bits::UNIT);
        // As the library wants it of rows beside the result's.
        let beside = out.leading.is_multiple_of(8);
        match self.then {
            Follows::Nothing | Follows::Relu | Follows::GeluTanh => true,
            Follows::ReluKeeping(bits) => batches == 1 && has_room(bits),
            Follows::ReluGrad(bits) => alone && has_room(bits),
            Follows::GeluTanhKeeping(_) => batches == 1 && beside,
            Follows::GeluTanhGrad(_) => alone && beside,
            Follows::RightSums(_) | Follows::LeftSums(_) => alone,
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
pub struct MatrixProduct {
    /// `[rows, summed]`.
    pub left: Matrix,
    /// `[summed, columns]`.
    pub right: Matrix,
    /// `[rows, columns]`, by rows.
    pub out: Matrix,
    /// Of how many pairs of matrices, each at its stride.
    pub batches: usize,
    /// In what it is summed.
    pub sums: Sums,
    /// What follows.
    pub epilogue: Epilogue,
    /// Whether the product is added to what `out` holds, before what follows.
    pub adds: bool,
}

/// Memory of the GPU that a product may use while it runs.
#[derive(Clone, Copy, Debug)]
pub struct Workspace {
    /// Where it is: a multiple of 256.
    pub address: u64,
    /// Bytes.
    pub bytes: usize,
}

/// How much of it makes all kernels of a Hopper GPU eligible, by NVIDIA's advice (cuBLAS, section 2.1.8 "Workspaces").
pub const WORKSPACE_BYTES: usize = 32 << 20;

/// Why there is no product.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProductError {
    /// The library is missing or too old.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The driver failed.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// A function failed.
    #[error("`{function}` of cuBLASLt failed: {text}")]
    Call {
        /// Which.
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

/// All that the choice of a kernel depends on, but for the GPU and the library.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProductKey {
    /// Of left, right and out.
    matrices: [MatrixPlace; 3],
    batches: usize,
    sums: Sums,
    epilogue: (bool, FollowsKind),
    adds: bool,
    workspace: usize,
}

/// How a matrix lies, wherever that is.
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

/// Of which power of two an address is a multiple; more than 256 do not matter to any kernel.
fn alignment(address: u64) -> u32 {
    1 << address.trailing_zeros().min(8)
}

impl ProductKey {
    /// Of a product; fails where the factors and the result do not fit together.
    pub fn of(product: &MatrixProduct, workspace: usize) -> Result<ProductKey, ProductError> {
        let MatrixProduct { left, right, out, batches, sums, epilogue, adds } = *product;
        let key = ProductKey {
            matrices: [&left, &right, &out].map(MatrixPlace::of),
            batches,
            sums,
            epilogue: epilogue.kind(),
            adds,
            workspace,
        };
        let fits = left.columns == right.rows
            && (left.rows, right.columns) == (out.rows, out.columns)
            && left.element == right.element
            && (out.element == left.element || left.element.is_half() && out.element == MatrixElement::F32)
            && out.order == Order::Rows
            && epilogue.is_one(batches, &out)
            && [left.rows, left.columns, right.columns, batches].iter().all(|n| *n > 0);
        if fits { Ok(key) } else { Err(ProductError::Shapes(key.to_string())) }
    }

    /// Its matrices, but for batches and addresses.
    pub(super) fn shapes(&self) -> String {
        let one = |p: &MatrixPlace| {
            let (_, rows, columns, order, leading, _) = p.matrix;
            format!("[{rows} {columns}]{}/{leading}", if order == Order::Columns { "'" } else { "" })
        };
        let [left, right, out] = &self.matrices;
        format!("{} {} x {} -> {} {}", left.matrix.0, one(left), one(right), out.matrix.0, one(out))
    }

    pub(super) fn alignment(&self, matrix: &Matrix) -> u32 {
        alignment(matrix.address)
    }
}

/// `bf16 [512 768]/768 x [768 3072]'/768 -> f32 [512 3072]/3072, 4 batches (393216 0 1572864), aligned to 256 256 256, bias,
/// relu, 33554432 bytes`: a mark for what lies by columns, and after the slash the step from one row or column to the next.
impl fmt::Display for ProductKey {
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
        let (bias, then) = self.epilogue;
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
        write!(f, ", {} bytes", self.workspace)
    }
}
