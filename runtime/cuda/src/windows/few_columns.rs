//! Convolutions with few columns, which fill no tile: of channels that are convolved alone, or to a few channels. Each thread has
//! one element of the result, or a vector of them.

use super::gather::{FactorBlock, FactorSpace, element};
use super::window_map::WindowMapShape;
use crate::kernel::space::{place, positions};
use cubecl::prelude::*;

/// The compile-time parameters of a kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct EachShape {
    pub(super) slides: Vec<WindowMapShape>,
    /// Elements of a vector of the result, along its last dim.
    pub(super) width: usize,
    /// Whether the windows, and the other factor, have such vectors; otherwise single elements.
    pub(super) are_vectors: [bool; 2],
}

/// The factors, whose rows are all dims of the result, of the last one vectors; how far the next one is in the result; steps of a
/// chunk, how many chunks there are, and how far the result of each is from that of the one before.
#[derive(CubeType, CubeLaunch)]
pub(super) struct EachSpace {
    windowed: FactorSpace,
    other: FactorSpace,
    out_by_row: Sequence<usize>,
    each: u32,
    chunks: u32,
    apart: usize,
}

#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn convolve_each<T: Float, U: Float, O: Float, S: Float, A: Size, B: Size, M: Size>(
    windowed: &Tensor<Vector<T, A>>,
    other: &Tensor<Vector<U, B>>,
    out: &mut Tensor<Vector<O, M>>,
    space: EachSpace,
    #[comptime] shape: EachShape,
    #[define(T)] _windowed_type: ElemType,
    #[define(U)] _other_type: ElemType,
    #[define(O)] _result_type: ElemType,
    #[define(S)] _sum_type: ElemType,
) {
    let rows = space.windowed.rows.len;
    let width = comptime!(shape.width);
    let widths = comptime!(shape.are_vectors.map(|is| if is { shape.width } else { 1 }));
    if ABSOLUTE_POS < rows as usize * space.chunks as usize {
        let (chunk, row) = (ABSOLUTE_POS as u32 / rows, ABSOLUTE_POS as u32 % rows);
        let end = min(chunk * space.each + space.each, space.windowed.steps.len);
        let block = FactorBlock { row, end, first: 0usize };
        let mut sums = Array::<S>::new(width);
        #[unroll]
        for lane in 0..width {
            sums[lane] = S::from_int(0);
        }
        for step in chunk * space.each..end {
            let found = element(&space.windowed, &block, row, step, comptime!(shape.slides.clone()));
            if found.is_there {
                let at = element(&space.other, &block, row, step, comptime!(Vec::new()));
                let left = windowed[found.place / comptime!(widths[0])];
                let right = other[at.place / comptime!(widths[1])];
                #[unroll]
                for lane in 0..width {
                    let a = S::cast_from(left.extract(comptime!(if widths[0] > 1 { lane } else { 0 })));
                    let b = S::cast_from(right.extract(comptime!(if widths[1] > 1 { lane } else { 0 })));
                    sums[lane] = fma(a, b, sums[lane]);
                }
            }
        }
        let mut vector = Vector::<O, M>::new(O::from_int(0));
        #[unroll]
        for lane in 0..width {
            vector.insert(lane, O::cast_from(sums[lane]));
        }
        let to =
            place(&positions(&space.windowed.rows, row), &space.out_by_row) + chunk as usize * space.apart;
        out[to / width] = vector;
    }
}
