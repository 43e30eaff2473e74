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

/// What happens to the elements of a product before they are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epilogue {
    /// The address of a vector that is added to each row, with elements of the result's type.
    pub bias: Option<u64>,
    /// Whether what is below 0 becomes 0, after the sum.
    pub relu: bool,
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
    bias: bool,
    relu: bool,
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
        let MatrixProduct { left, right, out, batches, sums, epilogue: Epilogue { bias, relu } } = *product;
        let key = ProductKey {
            matrices: [&left, &right, &out].map(MatrixPlace::of),
            batches,
            sums,
            bias: bias.is_some(),
            relu,
            workspace,
        };
        let fits = left.columns == right.rows
            && (left.rows, right.columns) == (out.rows, out.columns)
            && left.element == right.element
            && (out.element == left.element || left.element.is_half() && out.element == MatrixElement::F32)
            && out.order == Order::Rows
            && [left.rows, left.columns, right.columns, batches].iter().all(|n| *n > 0);
        if fits { Ok(key) } else { Err(ProductError::Shapes(key.to_string())) }
    }

    pub(super) fn alignment(&self, matrix: &Matrix) -> u32 {
        alignment(matrix.address)
    }
}

/// `bf16 [512 768]/768 x [768 3072]'/768 -> f32 [512 3072]/3072, 4 batches (393216 0 1572864), aligned to 256 256 256, bias,
/// relu, 33554432 bytes`: a mark for what lies by columns, and after the slash the step from one row or column to the next.
impl fmt::Display for ProductKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let one = |p: &MatrixPlace| {
            let (_, rows, columns, order, leading, _) = p.matrix;
            format!("[{rows} {columns}]{}/{leading}", if order == Order::Columns { "'" } else { "" })
        };
        let [left, right, out] = &self.matrices;
        write!(f, "{} {} x {} -> {} {}", left.matrix.0, one(left), one(right), out.matrix.0, one(out))?;
        let strides = self.matrices.map(|p| p.matrix.5);
        if self.batches > 1 {
            write!(f, ", {} batches ({} {} {})", self.batches, strides[0], strides[1], strides[2])?;
        }
        let [a, b, c] = self.matrices.map(|p| p.alignment);
        write!(f, ", aligned to {a} {b} {c}")?;
        if self.sums == Sums::Tf32 {
            write!(f, ", tf32")?;
        }
        if self.bias {
            write!(f, ", bias")?;
        }
        if self.relu {
            write!(f, ", relu")?;
        }
        write!(f, ", {} bytes", self.workspace)
    }
}
