//! What is known of windows when a Plan is loaded.

use super::pool::PoolWork;
use super::window_map::WindowMapShape;
use crate::backend::burn::cube::folds::FoldCall;
use crate::backend::burn::cube::space::{WalkDim, counted};
use crate::backend::burn::cube::tile::UNITS;
use crate::backend::burn::spread::CUBES;
use meshwright_plan::{DType, Monoid};

/// How windows slide over a dim of the first operand: a row and a step meet what is at `(row * by_row + step * by_step + from) / divisor` of `len`.
#[derive(Clone, Debug)]
pub(crate) struct WindowSlide {
    pub(crate) axis: usize,
    pub(crate) row: usize,
    pub(crate) step: usize,
    pub(crate) by_row: i32,
    pub(crate) by_step: i32,
    pub(crate) from: i32,
    pub(crate) len: i32,
    pub(crate) divisor: u32,
}

impl WindowSlide {
    pub(super) fn shape(&self) -> WindowMapShape {
        WindowMapShape { row: self.row, step: self.step, divisor: self.divisor }
    }
}

/// A convolution on one device, as a product of matrices: windows of the first operand by the second. Dims of all three are groups. Dims say which one they are of
/// the operands and the result, in that order, where these do not slide along them.
#[derive(Clone, Debug)]
pub(crate) struct ConvolveCall {
    pub(super) groups: Vec<WalkDim>,
    pub(super) rows: Vec<WalkDim>,
    pub(super) columns: Vec<WalkDim>,
    pub(super) steps: Vec<WalkDim>,
    pub(super) slides: Vec<WindowSlide>,
    pub(super) tiles: ConvolveTiles,
    /// The sum over chunks of what is summed, where there are several.
    pub(super) fold: Option<FoldCall>,
}

/// What computes a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConvolveWay {
    TensorCores,
    Registers,
    /// Each unit has an element of the result, or a vector. Groups and columns are rows then.
    Each,
}

/// How a convolution is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConvolveTiles {
    pub(super) way: ConvolveWay,
    /// Rows and columns of the result that a cube computes, and the steps of its tiles.
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) steps: usize,
    /// Into how many chunks what is summed is cut, and the steps of each.
    pub(super) chunks: usize,
    pub(super) each: usize,
}

/// Least tiles of what is summed in a chunk; least steps of one where each unit has a result.
const LEAST_TILES: usize = 8;
const LEAST_STEPS: usize = 64;
/// So many units, each of which waits for what it reads, keep a large GPU busy, also where several results are one vector.
const MOST_UNITS: usize = 8 * CUBES * UNITS;
/// With so few columns tiles are mostly empty.
const FEW_COLUMNS: usize = 4;

impl ConvolveTiles {
    /// Of a result of so many groups, rows and columns, each a sum of so many steps, in that dtype.
    fn of(has_tensor_cores: bool, sum: DType, [groups, rows, columns, steps]: [usize; 4]) -> ConvolveTiles {
        let tile_columns = [16, 32].into_iter().find(|n| columns <= *n).unwrap_or(64);
        let (way, [rows_each, columns_each, tile_steps]) = match has_tensor_cores {
            _ if columns <= FEW_COLUMNS => (ConvolveWay::Each, [1, 1, 1]),
            // Planes of 32 rows, or of 16 where there are few.
            true => (ConvolveWay::TensorCores, [if rows > 64 { 128 } else { 64 }, tile_columns, 32]),
            // 128 units of 8 x 8 elements, and so few steps that what is on its way fits into registers.
            false => {
                (ConvolveWay::Registers, [8192 / tile_columns, tile_columns, tile_columns / sum.bytes()])
            }
        };
        let cubes = groups * rows.div_ceil(rows_each) * columns.div_ceil(columns_each);
        let tiles = steps.div_ceil(tile_steps);
        let most = match way {
            ConvolveWay::Each => MOST_UNITS.div_ceil(cubes).min(tiles / LEAST_STEPS),
            _ => CUBES.div_ceil(cubes).min(tiles / LEAST_TILES),
        };
        // Chunks are folded in `f32`.
        let wanted = if sum == DType::F64 { 1 } else { most.max(1) };
        let each = tiles.div_ceil(wanted) * tile_steps;
        let chunks = steps.div_ceil(each);
        ConvolveTiles { way, rows: rows_each, columns: columns_each, steps: tile_steps, chunks, each }
    }
}

/// The dims of a convolution by what they are of it.
pub(crate) struct ConvolveDims {
    pub(crate) groups: Vec<WalkDim>,
    pub(crate) rows: Vec<WalkDim>,
    pub(crate) columns: Vec<WalkDim>,
    pub(crate) steps: Vec<WalkDim>,
}

impl ConvolveCall {
    /// None where there is no kernel for it. `has_tensor_cores` says whether the device multiplies half types on them, and `out` is the shape of the result.
    pub(crate) fn new(
        dims: ConvolveDims,
        slides: Vec<WindowSlide>,
        dtypes: [DType; 3],
        (has_tensor_cores, out): (bool, &[usize]),
    ) -> Option<ConvolveCall> {
        let ConvolveDims { mut groups, mut rows, mut columns, steps } = dims;
        let has_tensor_cores = has_tensor_cores && dtypes[0].is_half() && dtypes[0] == dtypes[1];
        let mut slides = slides;
        let lens = [counted(&groups)?, counted(&rows)?, counted(&columns)?, counted(&steps)?];
        let tiles = ConvolveTiles::of(has_tensor_cores, dtypes[0].wide(), lens);
        let cubes = lens[0] * lens[1].div_ceil(tiles.rows) * lens[2].div_ceil(tiles.columns) * tiles.chunks;
        i32::try_from(cubes).ok()?;
        counted(&rows)?.checked_mul(lens[0])?.checked_mul(lens[2]).and_then(|n| i32::try_from(n).ok())?;
        let fold = if tiles.chunks > 1 {
            Some(FoldCall::sum_of_chunks(tiles.chunks, out, dtypes[2])?)
        } else {
            None
        };
        if tiles.way == ConvolveWay::Each {
            // In the order of the result; what slides stays what it was.
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

/// With more taps a unit is busy for long, and other ways are faster where there are few results.
const MANY_TAPS: usize = 1024;

/// A pool on one device, or the transpose of one. Dims say which one they are of what is folded, and of the result.
#[derive(Clone, Debug)]
pub(crate) struct PoolCall {
    pub(super) rows: Vec<WalkDim>,
    pub(super) taps: Vec<WalkDim>,
    pub(super) slides: Vec<WindowSlide>,
    pub(super) work: PoolWork,
}

impl PoolCall {
    /// Of dims of the result in its order, and taps; what is folded has that dtype. None where there is no kernel for it.
    pub(crate) fn new(
        rows: Vec<WalkDim>,
        taps: Vec<WalkDim>,
        slides: Vec<WindowSlide>,
        work: PoolWork,
        dtype: DType,
    ) -> Option<PoolCall> {
        let (results, taps_each) = (counted(&rows)?, counted(&taps)?);
        if taps_each > MANY_TAPS && results < CUBES * UNITS {
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
                let cubes = groups * rows.div_ceil(t.rows) * columns.div_ceil(t.columns);
                let most = if t.way == ConvolveWay::Each { MOST_UNITS } else { CUBES };
                assert!(t.chunks == 1 || cubes * (t.chunks - 1) < most, "{t:?}");
            }
        }
        assert!(ConvolveTiles::of(true, DType::F32, [1, 25, 32, 200_000]).chunks > 100);
        assert_eq!(ConvolveTiles::of(false, DType::F64, [1, 25, 32, 200_000]).chunks, 1);
    }
}
