//! Pools and their transposes: each thread folds the elements that one element of the result, or a vector of them,
//! meets.

use super::window_map::{WindowMap, WindowMapShape, covered};
use crate::kernel::space::{DimWalk, place, positions};
use cubecl::prelude::*;
pub(crate) use meshwright_device::kernels::windows::PoolWork;
use meshwright_plan::Monoid;

/// The compile-time parameters of a kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct PoolShape {
    pub(super) work: PoolWork,
    pub(super) slides: Vec<WindowMapShape>,
    /// Elements of a vector, along the last dim of the result.
    pub(super) width: usize,
}

/// Dims of the result, the last one in vectors, and taps; strides in the operand, in the taps that choose, and in the
/// result.
#[derive(CubeType, CubeLaunch)]
pub(super) struct PoolSpace {
    rows: DimWalk,
    taps: DimWalk,
    slides: Sequence<WindowMap>,
    by_row: Sequence<usize>,
    chosen_slides: Sequence<WindowMap>,
    chosen_by_row: Sequence<usize>,
    out_by_row: Sequence<usize>,
}

#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn pool_windows<T: Float, O: Numeric, S: Float, N: Size>(
    input: &Tensor<Vector<T, N>>,
    chosen: &Tensor<Vector<i32, N>>,
    out: &mut Tensor<Vector<O, N>>,
    space: PoolSpace,
    #[comptime] shape: PoolShape,
    #[define(T)] _read_type: ElemType,
    #[define(O)] _written_type: ElemType,
    #[define(S)] _folded_type: ElemType,
) {
    let width = comptime!(shape.width);
    if ABSOLUTE_POS < space.rows.len as usize {
        let at = positions(&space.rows, ABSOLUTE_POS as u32);
        let (from, to) = (place(&at, &space.by_row), place(&at, &space.out_by_row));
        let mut values = Array::<S>::new(width);
        let mut places = Array::<i32>::new(width);
        #[unroll]
        for lane in 0..width {
            values[lane] = nothing::<S>(comptime!(shape.work));
            places[lane] = 0i32;
        }
        let mut any = false;
        for tap in 0..space.taps.len {
            let step = positions(&space.taps, tap);
            let found = covered(&at, &step, &space.slides, comptime!(shape.slides.clone()));
            if found.is_there {
                let read = (from + found.place) / width;
                #[unroll]
                for lane in 0..width {
                    let x = S::cast_from(input[read].extract(lane));
                    match comptime!(shape.work) {
                        PoolWork::Choose => {
                            let slides = comptime!(shape.slides.clone());
                            let other = covered(&at, &step, &space.chosen_slides, slides);
                            let from = place(&at, &space.chosen_by_row) + other.place;
                            let is_chosen = chosen[from / width].extract(lane) == tap as i32;
                            values[lane] += select(is_chosen, x, S::from_int(0));
                        }
                        PoolWork::Fold(Monoid::Sum) => {
                            values[lane] += x;
                        }
                        PoolWork::Fold(monoid) => {
                            let better = is_beyond::<S>(x, values[lane], monoid);
                            values[lane] = select(better, x, values[lane]);
                        }
                        PoolWork::Tap(monoid) => {
                            let better = !any || is_beyond::<S>(x, values[lane], monoid);
                            values[lane] = select(better, x, values[lane]);
                            places[lane] = select(better, tap as i32, places[lane]);
                        }
                    }
                }
                any = true;
            }
        }
        let mut vector = Vector::<O, N>::new(O::from_int(0));
        #[unroll]
        for lane in 0..width {
            let value = match comptime!(shape.work) {
                PoolWork::Tap(_) => O::cast_from(places[lane]),
                _ => O::cast_from(values[lane]),
            };
            vector.insert(lane, value);
        }
        out[to / width] = vector;
    }
}

/// The initial value of a fold.
#[cube]
fn nothing<S: Float>(#[comptime] work: PoolWork) -> S {
    match work {
        PoolWork::Fold(Monoid::Max) => S::cast_from(comptime!(f32::NEG_INFINITY).runtime()),
        PoolWork::Fold(Monoid::Min) => S::cast_from(comptime!(f32::INFINITY).runtime()),
        _ => S::from_int(0),
    }
}

/// Whether `x` replaces `old`: it is beyond it, or the first NaN.
#[cube]
fn is_beyond<S: Float>(x: S, old: S, #[comptime] monoid: Monoid) -> bool {
    let further = match monoid {
        Monoid::Min => x < old,
        _ => x > old,
    };
    // NaN is neither below 0 nor not.
    let zero = S::from_int(0);
    let (is_number, was_number) = (x >= zero || x < zero, old >= zero || old < zero);
    further || !is_number && was_number
}
