//! Distribution of a fold over the threads and blocks of a GPU.

/// Threads of a block.
pub const UNITS: usize = 256;
/// Number of blocks that keeps a large GPU busy: two for each multiprocessor of an H100.
pub const CUBES: usize = 264;
/// Results next to each other, or vectors of results, of a cube: a plane of units, or where there are few, as many as memory
/// gives at a time.
const BESIDE: [usize; 2] = [32, 8];
/// Least elements, or vectors, of a chunk for each thread: below it chunks cost more than they save.
const LEAST_EACH: usize = 32;

/// Blocks of a fold. A block has `results * folded` threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoldBlocks {
    /// Threads of a block along the results, a power of two.
    pub results: usize,
    /// Threads of a block along the reduced dims, a power of two.
    pub folded: usize,
    /// Blocks along the results.
    pub cubes: usize,
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
            // A plane for short rows, or as much of one as has something to do: a cube then has several rows.
            true if steps <= 4 * 32 => steps.next_power_of_two().min(32),
            true => UNITS,
            false => {
                let [many, few] = BESIDE;
                let beside = if results.div_ceil(many) < CUBES / 4 { few } else { many };
                UNITS / results.next_power_of_two().min(beside)
            }
        };
        let beside = UNITS / folded;
        let cubes = results.div_ceil(beside);
        let wanted = CUBES.div_ceil(cubes);
        let chunks = wanted.min(steps / (folded * LEAST_EACH)).max(1);
        let each = steps.div_ceil(chunks);
        FoldBlocks { results: beside, folded, cubes, chunks: steps.div_ceil(each), each }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_all_used_and_nothing_is_left_out() {
        for results in [1, 3, 32, 768, 50_000] {
            for steps in [1, 31, 128, 1000, 65_536, 1_000_001] {
                for by_rows in [true, false] {
                    let b = FoldBlocks::of(results, steps, by_rows);
                    assert_eq!(b.results * b.folded, UNITS);
                    assert!(b.folded.is_power_of_two() && b.cubes * b.results >= results);
                    assert!(b.chunks * b.each >= steps && (b.chunks - 1) * b.each < steps);
                }
            }
        }
        // A norm of a large parameter is spread over the GPU; rows of activations are not cut.
        assert!(FoldBlocks::of(1, 1 << 22, true).chunks > 100);
        assert_eq!(FoldBlocks::of(32_768, 96, true).chunks, 1);
        // Heads of 64 elements in vectors of eight: no unit is idle.
        assert_eq!(FoldBlocks::of(196_608, 8, true).results, 32);
    }
}
