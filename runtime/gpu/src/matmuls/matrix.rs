//! Matrices as cuBLASLt takes them, found in tensors of any strides.

use super::api::data;
use std::fmt;

/// Type of a matrix's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MatrixElement {
    /// 64 bits.
    F64,
    /// 32 bits.
    F32,
    /// 16 bits, 8 of them for the exponent.
    BF16,
    /// 16 bits, 5 of them for the exponent.
    F16,
    /// 8 bits, 4 of them for the exponent.
    E4M3,
    /// 8 bits, 5 of them for the exponent.
    E5M2,
}

impl MatrixElement {
    /// Bytes of one.
    pub fn bytes(self) -> usize {
        match self {
            MatrixElement::F64 => 8,
            MatrixElement::F32 => 4,
            MatrixElement::BF16 | MatrixElement::F16 => 2,
            MatrixElement::E4M3 | MatrixElement::E5M2 => 1,
        }
    }

    /// `cudaDataType_t`.
    pub(super) fn code(self) -> i32 {
        match self {
            MatrixElement::F64 => data::F64,
            MatrixElement::F32 => data::F32,
            MatrixElement::BF16 => data::BF16,
            MatrixElement::F16 => data::F16,
            MatrixElement::E4M3 => data::E4M3,
            MatrixElement::E5M2 => data::E5M2,
        }
    }

    /// Whether it has 16 bits.
    pub fn is_half(self) -> bool {
        matches!(self, MatrixElement::BF16 | MatrixElement::F16)
    }

    /// Whether it has 8 bits.
    pub fn is_fp8(self) -> bool {
        matches!(self, MatrixElement::E4M3 | MatrixElement::E5M2)
    }
}

impl fmt::Display for MatrixElement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MatrixElement::F64 => "f64",
            MatrixElement::F32 => "f32",
            MatrixElement::BF16 => "bf16",
            MatrixElement::F16 => "f16",
            MatrixElement::E4M3 => "e4m3",
            MatrixElement::E5M2 => "e5m2",
        })
    }
}

/// The contiguous dim of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Order {
    /// Elements of a row are contiguous.
    Rows,
    /// Elements of a column are contiguous.
    Columns,
}

/// Matrices of one shape in the memory of a GPU, one for each batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matrix {
    /// Address of the first element.
    pub address: u64,
    /// Type of the elements.
    pub element: MatrixElement,
    /// Its rows.
    pub rows: usize,
    /// Its columns.
    pub columns: usize,
    /// The contiguous dim.
    pub order: Order,
    /// Elements from one row to the next, or from one column to the next.
    pub leading: usize,
    /// Elements from one matrix to the next; 0 where all batches have the same.
    pub batch_stride: usize,
    /// Padding after each row, or column, that nothing reads; 0 if unknown.
    pub spare: usize,
}

/// The matrices `[.., rows, columns]` of a tensor, and their number; none if no [`Matrix`] describes the strides, so
/// that the tensor must be copied first. `strides` are in elements.
pub fn matrix_of(
    address: u64,
    element: MatrixElement,
    shape: &[usize],
    strides: &[usize],
) -> Option<(Matrix, usize)> {
    let [outer @ .., rows, columns] = shape else { return None };
    let [outer_strides @ .., down, right] = strides else { return None };
    let (rows, columns) = (*rows, *columns);
    let by_rows = (columns == 1 || *right == 1) && (rows == 1 || *down >= columns);
    let by_columns = (rows == 1 || *down == 1) && (columns == 1 || *right >= rows);
    let (order, leading) = match (by_rows, by_columns) {
        (true, _) => (Order::Rows, if rows == 1 { columns } else { *down }),
        (_, true) => (Order::Columns, if columns == 1 { rows } else { *right }),
        _ => return None,
    };
    // The dims before are one, if each goes on where the one after it ends.
    let mut batches = 1;
    let mut batch_stride = None;
    for (size, stride) in outer.iter().zip(outer_strides).rev().filter(|(size, _)| **size != 1) {
        if *stride != batch_stride.map_or(*stride, |inner: usize| inner * batches) {
            return None;
        }
        batch_stride = batch_stride.or(Some(*stride));
        batches *= size;
    }
    let batch_stride = batch_stride.unwrap_or(0);
    Some((Matrix { address, element, rows, columns, order, leading, batch_stride, spare: 0 }, batches))
}
