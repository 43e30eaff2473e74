//! How tiles of queries, keys and their operands lie in shared memory.
//!
//! If four warps multiply together (GPUs of compute capability 9.0), a tile is blocks of up to 64 columns with
//! contiguous rows, and the vectors of a row are permuted by its index: the vectors that a matmul reads, or that
//! threads write, at once lie in different banks (PTX ISA, section 9.7.15.5, "Shared Memory Matrix Layout"). Otherwise
//! a vector of padding separates rows, as in `kernel::tile`. Vectors have 16 bytes.

use crate::kernel::tile::{PLANES, ROWS, VECTOR};
use cubecl::prelude::*;

/// How a block multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Multiply {
    /// Four warps together on tensor cores, for half types at compute capability 9.0 (`wgmma`).
    Together,
    /// Each warp on tensor cores, for half types elsewhere (`mma.sync`).
    Warps,
    /// Each thread by fused multiply-adds, for `f32`: nothing is rounded before it is multiplied.
    Threads,
    /// Each warp on tensor cores, for `f32` that are rounded to TF32 (`mma.sync` of 16 x 8 x 8).
    Rounded,
}

impl Multiply {
    /// Whether four warps multiply together.
    pub(super) fn is_grouped(self) -> bool {
        self == Multiply::Together
    }

    /// True if threads multiply alone.
    pub(super) fn is_exact(self) -> bool {
        self == Multiply::Threads
    }

    /// True if factors are rounded to TF32.
    pub(super) fn is_rounded(self) -> bool {
        self == Multiply::Rounded
    }

    /// True if factors have 32 bits.
    pub(super) fn is_wide(self) -> bool {
        self.is_exact() || self.is_rounded()
    }

    /// Elements of a vector.
    pub(super) fn vector(self) -> usize {
        if self.is_wide() { VECTOR / 2 } else { VECTOR }
    }
}

/// A tile of these rows and columns, or several adjacent ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct TileShape {
    pub(super) rows: usize,
    pub(super) width: usize,
    pub(super) by: Multiply,
}

impl TileShape {
    /// Columns of a block.
    pub(super) fn block(self) -> usize {
        [64, 32].into_iter().find(|n| self.width.is_multiple_of(*n)).unwrap_or(ROWS)
    }

    /// Vectors of a row.
    pub(super) fn in_row(self) -> usize {
        self.width / self.by.vector()
    }

    /// Vectors from one row to the next, unless four warps multiply together.
    pub(super) fn pitch(self) -> usize {
        self.in_row() + 1
    }

    /// Vectors of the whole.
    pub(super) fn size(self) -> usize {
        match (self.width, self.by) {
            (0, _) => 0,
            (_, Multiply::Together) => self.rows * self.in_row(),
            (_, Multiply::Warps | Multiply::Threads | Multiply::Rounded) => self.rows * self.pitch(),
        }
    }

    /// Offsets of the vectors of each step over 16 columns from the first.
    pub(super) fn steps_over_columns(self) -> Vec<usize> {
        let at = |column: usize| {
            let (block, within) = (column / self.block(), column % self.block());
            (block * self.rows * self.block() + within) / VECTOR
        };
        (0..self.width).step_by(16).map(at).collect()
    }

    /// The same of 16 rows.
    pub(super) fn steps_over_rows(self) -> Vec<usize> {
        (0..self.rows).step_by(16).map(|row| row * self.block() / VECTOR).collect()
    }

    /// The constant bits of a tile's descriptor (PTX ISA, "Matrix Descriptor Format"): strides of blocks and of eight
    /// rows, in vectors, and the permutation of vectors.
    pub(super) fn described(self) -> u64 {
        let (block, eight) = (self.rows * self.block() / VECTOR, self.block());
        let permuted: u64 = match self.block() {
            64 => 1,
            32 => 2,
            _ => 3,
        };
        (block as u64) << 16 | (eight as u64) << 32 | permuted << 62
    }
}

/// Memory for `many` tiles; one vector without columns, since an empty allocation would share its address with the
/// next.
#[cube]
pub(super) fn new_tiles<E: Float, N: Size>(
    #[comptime] shape: TileShape,
    #[comptime] many: usize,
) -> Shared<[Vector<E, N>]> {
    let vectors = comptime!((many * shape.size()).max(1));
    let aligned = comptime!(if shape.by.is_grouped() { 1024usize } else { 16 });
    Shared::<[Vector<E, N>]>::new_aligned_slice(vectors, aligned)
}

/// Index of a vector of a row of a tile.
#[cube]
pub(super) fn place(row: u32, vector: u32, #[comptime] shape: TileShape) -> u32 {
    let mut at = row * comptime!(shape.pitch() as u32) + vector;
    if comptime!(shape.by.is_grouped()) {
        let in_block = comptime!((shape.block() / VECTOR) as u32);
        // Eight rows by 16 bytes go over all banks once, whatever a row of the block has.
        let by = row / comptime!(8 / in_block) % in_block;
        let (block, within) = (vector / in_block, vector % in_block);
        at = (block * comptime!(shape.rows as u32) + row) * in_block + (within ^ by);
    }
    at
}

/// The tile by which threads of a warp exchange the left factors of a product with `columns` rows; of no width where tensor
/// cores multiply.
pub(super) fn scratch_tile(columns: usize, by: Multiply) -> TileShape {
    TileShape { rows: PLANES * ROWS, width: if by.is_exact() { columns } else { 0 }, by }
}

/// Column of the first number of the `n`-th pair of sums that are as wide as queries or values.
#[cube]
pub(super) fn column(#[comptime] n: usize, #[comptime] by: Multiply) -> u32 {
    let lane = UNIT_POS % 4;
    if comptime!(by.is_exact()) {
        lane * 4u32 + comptime!((n / 2 * 16 + n % 2 * 2) as u32)
    } else {
        lane * 2u32 + comptime!((8 * n) as u32)
    }
}
