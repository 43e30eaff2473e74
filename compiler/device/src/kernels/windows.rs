//! Descriptions of kernels with windows.

use super::call::KernelCall;
use super::dims::{WalkDim, counted};
use super::fold::FoldCall;
use super::fold_blocks::BLOCKS;
use meshwright_plan::{DType, Monoid};
use serde::{Deserialize, Serialize};

/// Threads of a block on tensor cores: four warps.
const THREADS: usize = 128;

/// Limit of the positions along a sliding dim.
pub const NEAR: i32 = 1 << 29;

/// Computation of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum PoolWork {
    /// The sum, maximum or minimum of a window.
    Fold(Monoid),
    /// The kernel position of the maximum or minimum; of equal ones the first.
    Tap(Monoid),
    /// The gradient of a pool: the sum of the cotangents whose kernel position is the stored one.
    Choose,
}

/// The part of a [`WindowSlide`] for which a kernel is compiled.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct WindowMapShape {
    /// Index of the dim of the rows.
    pub row: usize,
    /// Index of the dim of the steps.
    pub step: usize,
    /// Divisor of the position.
    pub divisor: u32,
}

/// Windows along a dim of the first operand. A row and a step read position `(row * by_row + step * by_step + from) / divisor`.
/// They read nothing if the division has a remainder, or if the position is not in `0..len`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WindowSlide {
    /// Index of the dim in the first operand.
    pub axis: usize,
    /// Index of the dim of the rows along which the window slides.
    pub row: usize,
    /// Index of the dim of the steps along which the window slides.
    pub step: usize,
    /// Distance from one row to the next, in units of 1 / `divisor` of a position.
    pub by_row: i32,
    /// Distance from one step to the next, in the same units.
    pub by_step: i32,
    /// Offset of the first row and step, in the same units.
    pub from: i32,
    /// Number of positions that the device holds.
    pub len: i32,
    /// The stride of the windows if they go from positions back to elements, else 1.
    pub divisor: u32,
}

impl WindowSlide {
    /// The part for which a kernel is compiled.
    pub fn shape(&self) -> WindowMapShape {
        WindowMapShape { row: self.row, step: self.step, divisor: self.divisor }
    }

    /// True if all rows and steps stay within the positions that kernels can represent.
    fn is_near(&self, rows: usize, steps: usize) -> bool {
        let reach = |many: usize, by: i32| many as i64 * i64::from(by.abs());
        let far = [reach(rows, self.by_row) + i64::from(self.from.abs()), reach(steps, self.by_step)];
        far.iter().all(|far| *far < i64::from(NEAR)) && self.len < NEAR
    }
}

/// A convolution on one device, as a matmul of windows of the first operand by the second operand. The axes of a dim are for the
/// first operand, the second operand and the result; none where a window slides along the dim.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConvolveCall {
    /// Dims of both operands and the result.
    pub groups: Vec<WalkDim>,
    /// Dims of the first operand and the result; windows slide along those of the result.
    pub rows: Vec<WalkDim>,
    /// Dims of the second operand and the result.
    pub columns: Vec<WalkDim>,
    /// Summed dims: of both operands, or of the second one and along windows.
    pub steps: Vec<WalkDim>,
    /// Windows of the first operand.
    pub slides: Vec<WindowSlide>,
    /// Kernel and tiles.
    pub tiles: ConvolveTiles,
    /// The sum over chunks; none if there is one chunk.
    pub fold: Option<FoldCall>,
}

/// Kernel of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConvolveWay {
    /// Tiles on tensor cores, for half types.
    TensorCores,
    /// Tiles in registers.
    Registers,
    /// Each thread computes an element of the result, or a vector. Groups and columns are rows then.
    Each,
}

/// Tiles of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConvolveTiles {
    /// Kernel.
    pub way: ConvolveWay,
    /// Rows of the result that a block computes.
    pub rows: usize,
    /// Columns of the result that a block computes.
    pub columns: usize,
    /// Steps of a tile.
    pub steps: usize,
    /// Number of chunks into which the steps are cut.
    pub chunks: usize,
    /// Steps of a chunk, a multiple of `steps`; the last chunk may have fewer.
    pub each: usize,
}

/// Least tiles of a chunk of the sum; least steps of a chunk if each thread has a result.
const LEAST_TILES: usize = 8;
const LEAST_STEPS: usize = 64;
/// Number of blocks with which a GPU is hardly idle while the last ones run.
const MANY_BLOCKS: usize = 4 * BLOCKS;
/// Number of threads that keep a large GPU busy while each waits for its loads; enough also if vectors combine several results.
const MOST_THREADS: usize = 8 * BLOCKS * THREADS;
/// Up to this number of columns each thread computes an element: tiles would be mostly empty.
const FEW_COLUMNS: usize = 4;

/// A tile for 128 threads of 8 x 8 elements each. Rows are split into as few parts as leave less than an eighth of them
/// empty and give a GPU enough blocks to hide the last ones, unless more parts leave few tiles. Threads share the steps
/// between parts, few enough that loads in flight fit in registers.
fn in_registers([groups, rows, columns, steps]: [usize; 4], across: usize, sum: DType) -> [usize; 3] {
    let (all, each) = (THREADS * 64 / across, across / sum.bytes());
    let is_enough = |parts: &usize| {
        let tile = all / parts;
        let blocks = groups * rows.div_ceil(tile) * columns.div_ceil(across);
        let next_has_few = steps.div_ceil(2 * parts * each) < LEAST_TILES;
        8 * (rows.next_multiple_of(tile) - rows) <= rows && (blocks >= MANY_BLOCKS || next_has_few)
    };
    let parts = [1, 2].into_iter().find(is_enough).unwrap_or(4);
    [all / parts, across, each * parts]
}

impl ConvolveTiles {
    /// Choice by the groups, rows and columns of the result, the steps of each sum, and the dtype.
    fn of(has_tensor_cores: bool, sum: DType, [groups, rows, columns, steps]: [usize; 4]) -> ConvolveTiles {
        let tile_columns = [16, 32].into_iter().find(|n| columns <= *n).unwrap_or(64);
        let (way, [rows_each, columns_each, tile_steps]) = match has_tensor_cores {
            _ if columns <= FEW_COLUMNS => (ConvolveWay::Each, [1, 1, 1]),
            // 32 rows for each warp, or 16 if there are few.
            true => (ConvolveWay::TensorCores, [if rows > 64 { 128 } else { 64 }, tile_columns, 32]),
            false => {
                let lens = [groups, rows, columns, steps];
                (ConvolveWay::Registers, in_registers(lens, tile_columns, sum))
            }
        };
        let blocks = groups * rows.div_ceil(rows_each) * columns.div_ceil(columns_each);
        let tiles = steps.div_ceil(tile_steps);
        let most = match way {
            ConvolveWay::Each => MOST_THREADS.div_ceil(blocks).min(tiles / LEAST_STEPS),
            _ => BLOCKS.div_ceil(blocks).min(tiles / LEAST_TILES),
        };
        // Chunks are folded in `f32`.
        let wanted = if sum == DType::F64 { 1 } else { most.max(1) };
        let each = tiles.div_ceil(wanted) * tile_steps;
        let chunks = steps.div_ceil(each);
        ConvolveTiles { way, rows: rows_each, columns: columns_each, steps: tile_steps, chunks, each }
    }
}

/// The dims of a convolution: see [`ConvolveCall`].
pub(crate) struct ConvolveDims {
    pub groups: Vec<WalkDim>,
    pub rows: Vec<WalkDim>,
    pub columns: Vec<WalkDim>,
    pub steps: Vec<WalkDim>,
}

impl KernelCall for ConvolveCall {
    const NAME: &'static str = "convolve";
}

impl ConvolveCall {
    /// Describes a convolution; none if there is no kernel for it. `has_tensor_cores` says whether the device multiplies half
    /// types on them, and `out` is the shape of the result.
    pub(crate) fn new(
        dims: ConvolveDims,
        slides: Vec<WindowSlide>,
        dtypes: [DType; 3],
        (has_tensor_cores, out): (bool, &[usize]),
    ) -> Option<ConvolveCall> {
        let ConvolveDims { mut groups, mut rows, mut columns, steps } = dims;
        let has_tensor_cores = has_tensor_cores && dtypes[0].is_half() && dtypes[0] == dtypes[1];
        let mut slides = slides;
        let size = |dims: &[WalkDim], at: usize| dims.get(at).map_or(1, |dim| dim.size);
        if !slides.iter().all(|s| s.is_near(size(&rows, s.row), size(&steps, s.step))) {
            return None;
        }
        let lens = [counted(&groups)?, counted(&rows)?, counted(&columns)?, counted(&steps)?];
        let tiles = ConvolveTiles::of(has_tensor_cores, dtypes[0].wide(), lens);
        let blocks = lens[0] * lens[1].div_ceil(tiles.rows) * lens[2].div_ceil(tiles.columns) * tiles.chunks;
        i32::try_from(blocks).ok()?;
        counted(&rows)?.checked_mul(lens[0])?.checked_mul(lens[2]).and_then(|n| i32::try_from(n).ok())?;
        let fold = if tiles.chunks > 1 {
            Some(FoldCall::sum_of_chunks(tiles.chunks, out, dtypes[2])?)
        } else {
            None
        };
        if tiles.way == ConvolveWay::Each {
            // In the order of the result; sliding dims keep their place.
            let all = rows.drain(..).chain(groups.drain(..)).chain(columns.drain(..)).enumerate();
            let mut all: Vec<(usize, WalkDim)> = all.collect();
            all.sort_by_key(|(_, dim)| (dim.size > 1, dim.axes[2]));
            for slide in &mut slides {
                slide.row = all.iter().position(|(before, _)| *before == slide.row).unwrap_or(slide.row);
            }
            rows = all.into_iter().map(|(_, dim)| dim).collect();
        }
        Some(ConvolveCall { groups, rows, columns, steps, slides, tiles, fold })
    }
}

/// With more kernel positions a thread takes long, and other kernels are faster for few results.
const MANY_TAPS: usize = 1024;

/// A pool on one device, or the transpose of one. The axes of a dim are for the input and the result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PoolCall {
    /// Dims of the result.
    pub rows: Vec<WalkDim>,
    /// Dims of the kernel positions, one for each window. They are dims of no tensor.
    pub taps: Vec<WalkDim>,
    /// Windows of the input.
    pub slides: Vec<WindowSlide>,
    /// The computation.
    pub work: PoolWork,
}

impl KernelCall for PoolCall {
    const NAME: &'static str = "pool";
}

impl PoolCall {
    /// Describes a pool of an input of that dtype; none if there is no kernel for it.
    pub fn new(
        rows: Vec<WalkDim>,
        taps: Vec<WalkDim>,
        slides: Vec<WindowSlide>,
        work: PoolWork,
        dtype: DType,
    ) -> Option<PoolCall> {
        let (results, taps_each) = (counted(&rows)?, counted(&taps)?);
        if taps_each > MANY_TAPS && results < BLOCKS * THREADS {
            return None;
        }
        let folds = match work {
            PoolWork::Fold(monoid) => matches!(monoid, Monoid::Sum | Monoid::Max | Monoid::Min),
            PoolWork::Tap(monoid) => matches!(monoid, Monoid::Max | Monoid::Min),
            PoolWork::Choose => true,
        };
        (folds && dtype.is_float()).then_some(PoolCall { rows, taps, slides, work })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_few_tiles_is_cut_into_chunks() {
        for [groups, rows, columns, steps] in
            [[1, 25, 32, 200_000], [1, 100_000, 32, 25], [4, 65, 17, 9], [1, 1, 1, 1], [1, 576, 64, 4_097]]
        {
            for has_tensor_cores in [false, true] {
                let t = ConvolveTiles::of(has_tensor_cores, DType::F32, [groups, rows, columns, steps]);
                assert!(t.chunks * t.each >= steps && (t.chunks - 1) * t.each < steps, "{t:?}");
                assert!(t.each.is_multiple_of(t.steps));
                let blocks = groups * rows.div_ceil(t.rows) * columns.div_ceil(t.columns);
                let most = if t.way == ConvolveWay::Each { MOST_THREADS } else { BLOCKS };
                assert!(t.chunks == 1 || blocks * (t.chunks - 1) < most, "{t:?}");
            }
        }
        assert!(ConvolveTiles::of(true, DType::F32, [1, 25, 32, 200_000]).chunks > 100);
        assert_eq!(ConvolveTiles::of(false, DType::F64, [1, 25, 32, 200_000]).chunks, 1);
    }

    #[test]
    fn threads_share_steps_where_rows_are_few() {
        for (rows, columns, steps, tile) in [
            (156_800, 16, 81, [256, 16, 8]),
            (156_800, 16, 1296, [128, 16, 16]),
            (1_000_000, 16, 1296, [512, 16, 4]),
            (256, 16, 81, [256, 16, 8]),
            (81, 16, 156_800, [128, 16, 16]),
            (1296, 16, 156_800, [128, 16, 16]),
            (1024, 24, 36, [256, 32, 8]),
            (1024, 40, 36, [128, 64, 16]),
            (9, 40, 36, [32, 64, 64]),
        ] {
            let t = ConvolveTiles::of(false, DType::F32, [1, rows, columns, steps]);
            assert_eq!([t.rows, t.columns, t.steps], tile, "{rows} rows");
        }
        let of_f64 = ConvolveTiles::of(false, DType::F64, [1, 1024, 24, 36]);
        assert_eq!([of_f64.rows, of_f64.columns, of_f64.steps], [256, 32, 4]);
    }
}
