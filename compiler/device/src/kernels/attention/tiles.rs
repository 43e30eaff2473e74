//! Extents of the tiles of an attention's kernels, and the shared memory that they take.
//!
//! A block has 64 queries, or 64 keys, and 128 threads. So a thread has `width / 2` sums of a gradient of that width, and
//! `columns / 2` of the scores of `columns` keys, each in a register of the 255 that it may have.

use crate::error::NoAttentionKernel;
use serde::{Deserialize, Serialize};

/// Queries and keys of a tile that positions may decide.
pub const DECIDED: usize = 64;

/// Widest row of queries, keys or values, in bytes: 256 elements of a half type, or 128 of `f32`. The gradient of keys needs
/// four tiles of 64 rows, and one of scores: 141 or 149 KiB with such rows, of the 163 KiB that a block may have at compute
/// capability 8.0.
const WIDEST: usize = 512;

/// Elements of a row of queries, keys or values in a vector of 16 bytes, which separates two rows of a tile.
const VECTOR: usize = 16;

/// Bytes of shared memory for an operand of the scores: two buffers of 64 `f32`.
const OPERAND: usize = 2 * DECIDED * 4;

/// Bytes of shared memory for votes and lists without elements.
const OTHERS: usize = 256;

/// Rows of queries, keys and values, in elements and bytes of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AttentionWidths {
    /// Elements of a query or a key.
    pub width: usize,
    /// Elements of a value; 0 if there are none.
    pub values: usize,
    /// Bytes of an element.
    pub bytes: usize,
}

/// The kernels of a pass that a device has to have shared memory for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AttentionPasses {
    pub forward: bool,
    pub query_grad: bool,
    pub key_grad: bool,
    pub bias_grad: bool,
}

/// Tiles of an attention's kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttentionTiles {
    /// Keys that the forward pass processes at a time: 64, or 32 where rows are so wide that 64 keys with two buffers would
    /// take most of the shared memory of a multiprocessor: 256 bytes of a half type, all of `f32`.
    pub forward: usize,
    /// Keys that the gradient of queries processes at a time: 64, or 32 beyond 64 elements, whose sums leave fewer registers
    /// for scores, and for `f32`.
    pub query_grad: usize,
    /// Keys whose scores the gradients of keys and values have in registers at a time, by the same rule.
    pub key_grad: usize,
    /// Buffers of queries and cotangents in that kernel: 2, so that a tile is copied while another is processed, or 1 where two
    /// do not fit.
    pub buffers: usize,
    /// The gradients of keys and of values are two launches: their sums together would be more than 128 registers of a thread,
    /// or their tiles of `f32` more than the shared memory of a block.
    pub apart: bool,
}

impl AttentionWidths {
    /// Bytes of a tile of `rows` rows of so many elements.
    fn tile(self, rows: usize, elements: usize) -> usize {
        if elements == 0 { 0 } else { rows * (elements * self.bytes + VECTOR) }
    }

    /// Bytes of a tile as wide as queries and one as wide as values.
    fn pair(self, rows: usize) -> usize {
        self.tile(rows, self.width) + self.tile(rows, self.values)
    }

    /// Bytes of two buffers of keys and values, and of the factors of a product with these by which threads that multiply alone
    /// share rows.
    fn streamed(self, keys: usize) -> usize {
        2 * self.pair(keys) + if self.is_exact() { self.tile(DECIDED, keys) } else { 0 }
    }

    /// True if factors are `f32`, which threads multiply without tensor cores unless they are rounded to TF32.
    fn is_exact(self) -> bool {
        self.bytes == 4
    }

    /// True if rows of so many elements have kernels: multiples of `step`.
    pub(crate) fn takes(self, elements: usize, step: usize) -> bool {
        elements.is_multiple_of(step) && elements * self.bytes <= WIDEST
    }

    /// Widest row in elements.
    pub(crate) fn widest(self) -> usize {
        WIDEST / self.bytes
    }
}

impl AttentionTiles {
    /// Tiles for these widths, on a device whose blocks may have `shared` bytes of shared memory; the scores have `operands`
    /// besides queries and keys.
    ///
    /// # Errors
    /// If the tiles of one of the kernels take more.
    pub(crate) fn of(
        of: AttentionWidths,
        passes: AttentionPasses,
        operands: usize,
        shared: usize,
    ) -> Result<AttentionTiles, NoAttentionKernel> {
        let (widest, exact) = (of.width.max(of.values), of.is_exact());
        let columns = if widest > 64 || exact { 32 } else { 64 };
        let mut tiles = AttentionTiles {
            forward: if widest > 128 || exact { 32 } else { 64 },
            query_grad: columns,
            key_grad: columns,
            buffers: 2,
            apart: (of.width + of.values) * of.bytes > WIDEST,
        };
        let besides = operands * OPERAND + OTHERS;
        if tiles.of_key_grad(of) + besides > shared {
            tiles.buffers = 1;
        }
        let needs = [
            (passes.forward, of.tile(DECIDED, of.width) + of.streamed(tiles.forward)),
            (passes.query_grad, of.pair(DECIDED) + of.streamed(tiles.query_grad)),
            (passes.key_grad, tiles.of_key_grad(of)),
            (passes.bias_grad, 2 * of.pair(DECIDED)),
        ];
        if needs.into_iter().any(|(is, bytes)| is && bytes + besides > shared) {
            return Err(NoAttentionKernel::SharedMemory(shared));
        }
        Ok(tiles)
    }

    /// Bytes of the gradients of keys and values: these, queries and cotangents, and slopes and weights for all of them.
    fn of_key_grad(&self, of: AttentionWidths) -> usize {
        let scores = if self.apart { 1 } else { 2 };
        of.pair(DECIDED) * (1 + self.buffers) + scores * of.tile(DECIDED, DECIDED)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    const ALL: AttentionPasses =
        AttentionPasses { forward: true, query_grad: true, key_grad: true, bias_grad: true };
    /// Bytes of a block at compute capabilities 8.0, 8.6 and 9.0.
    const SHARED: [usize; 3] = [163 << 10, 99 << 10, 227 << 10];

    fn halves(width: usize, values: usize, shared: usize) -> Result<AttentionTiles, NoAttentionKernel> {
        AttentionTiles::of(AttentionWidths { width, values, bytes: 2 }, ALL, 8, shared)
    }

    #[test]
    fn tiles_fit_in_registers_and_shared_memory() {
        for shared in [SHARED[0], SHARED[2]] {
            for width in (16..=256).step_by(16) {
                for values in (16..=256).step_by(16) {
                    let tiles = halves(width, values, shared).unwrap();
                    let widest = width.max(values);
                    let both = if tiles.apart { widest } else { width + values };
                    let sums = [
                        values / 2 + tiles.forward / 2,
                        width / 2 + tiles.query_grad,
                        both / 2 + tiles.key_grad,
                    ];
                    assert!(sums.iter().all(|n| *n <= 160), "{width} and {values}: {sums:?} registers");
                }
            }
        }
    }

    #[test]
    fn widths_up_to_128_have_two_buffers_and_one_launch_for_keys_and_values() {
        for shared in [SHARED[0], SHARED[2]] {
            for width in (16..=128).step_by(16) {
                let columns = if width > 64 { 32 } else { 64 };
                let tiles = AttentionTiles {
                    forward: 64,
                    query_grad: columns,
                    key_grad: columns,
                    buffers: 2,
                    apart: false,
                };
                assert_eq!(halves(width, width, shared), Ok(tiles), "{width}");
            }
        }
        let wide = AttentionTiles { forward: 32, query_grad: 32, key_grad: 32, buffers: 2, apart: true };
        assert_eq!(halves(256, 256, SHARED[2]), Ok(wide));
        assert_eq!(halves(256, 256, SHARED[0]), Ok(AttentionTiles { buffers: 1, ..wide }));
    }

    #[test]
    fn tiles_of_f32_fit_up_to_128() {
        for shared in [SHARED[0], SHARED[2]] {
            for width in (16..=128).step_by(16) {
                for values in (16..=128).step_by(16) {
                    let of = AttentionWidths { width, values, bytes: 4 };
                    let tiles = AttentionTiles::of(of, ALL, 8, shared).unwrap();
                    assert_eq!(tiles.apart, width + values > 128, "{width} and {values}");
                    assert_eq!([tiles.forward, tiles.query_grad, tiles.key_grad], [32; 3]);
                }
            }
        }
    }

    #[test]
    fn what_does_not_fit_says_so() {
        assert_eq!(halves(128, 128, SHARED[1]).map(|t| t.buffers), Ok(1));
        let no = |shared| Err(NoAttentionKernel::SharedMemory(shared));
        assert_eq!(halves(256, 256, SHARED[1]), no(SHARED[1]));
        // Four tiles of 64 rows with 16 bytes between two, and one of scores.
        let least = 4 * 64 * 528 + 64 * 144 + 8 * OPERAND + OTHERS;
        assert_eq!(halves(256, 256, least).map(|t| t.buffers), Ok(1));
        assert_eq!(halves(256, 256, least - 1), no(least - 1));
    }
}
