//! Distribution of a fold over the threads and blocks of a GPU.

use serde::{Deserialize, Serialize};

/// Threads of a block.
pub const THREADS: usize = 256;
/// Number of blocks that keeps a large GPU busy: two for each multiprocessor of an H100.
pub const BLOCKS: usize = 264;
/// Adjacent results, or vectors of results, of a block: one for each thread of a warp, or, if there are few, as many as one
/// memory transaction reads.
const BESIDE: [usize; 2] = [32, 8];
/// Least elements, or vectors, of a chunk for each thread: below it chunks cost more than they save.
const LEAST_EACH: usize = 32;

/// Blocks of a fold. A block has `results * folded` threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoldBlocks {
    /// Threads of a block along the results, a power of two.
    pub results: usize,
    /// Threads of a block along the reduced dims, a power of two.
    pub folded: usize,
    /// Blocks along the results.
    pub result_blocks: usize,
    /// Number of chunks into which the reduced elements are cut.
    pub chunks: usize,
    /// Elements, or vectors of elements, of a chunk; the last one may have fewer.
    pub each: usize,
}

impl FoldBlocks {
    /// Blocks for a number of results, or vectors of results, each a fold of `steps` elements, or vectors of elements. With
    /// `by_rows`, the reduced elements are contiguous.
    pub fn of(results: usize, steps: usize, by_rows: bool) -> FoldBlocks {
        let folded = match by_rows {
            // A warp, or a part of one, for short rows; a block then has several rows.
            true if steps <= 4 * 32 => steps.next_power_of_two().min(32),
            true => THREADS,
            false => {
                let [many, few] = BESIDE;
                let beside = if results.div_ceil(many) < BLOCKS / 4 { few } else { many };
                THREADS / results.next_power_of_two().min(beside)
            }
        };
        let beside = THREADS / folded;
        let result_blocks = results.div_ceil(beside);
        let wanted = BLOCKS.div_ceil(result_blocks);
        let chunks = wanted.min(steps / (folded * LEAST_EACH)).max(1);
        let each = steps.div_ceil(chunks);
        FoldBlocks { results: beside, folded, result_blocks, chunks: steps.div_ceil(each), each }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_threads_are_used_and_all_elements_are_folded() {
        for results in [1, 3, 32, 768, 50_000] {
            for steps in [1, 31, 128, 1000, 65_536, 1_000_001] {
                for by_rows in [true, false] {
                    let b = FoldBlocks::of(results, steps, by_rows);
                    assert_eq!(b.results * b.folded, THREADS);
                    assert!(b.folded.is_power_of_two() && b.result_blocks * b.results >= results);
                    assert!(b.chunks * b.each >= steps && (b.chunks - 1) * b.each < steps);
                }
            }
        }
        // A norm of a large parameter is spread over the GPU; rows of activations are not cut.
        assert!(FoldBlocks::of(1, 1 << 22, true).chunks > 100);
        assert_eq!(FoldBlocks::of(32_768, 96, true).chunks, 1);
        // Heads of 64 elements in vectors of eight: no thread is idle.
        assert_eq!(FoldBlocks::of(196_608, 8, true).results, 32);
    }
}
