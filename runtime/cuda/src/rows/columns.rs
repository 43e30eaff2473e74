//! Sums over all rows of a block, for the places of a thread's elements.

use super::shape::{RowShape, RowSpace, RowState};
use cubecl::prelude::*;

/// Writes the block's sum of a value: over all its rows, parallel ones first.
#[cube]
pub(super) fn store_columns<N: Size>(
    out: &mut OwnedTensor<Vector<f32, N>>,
    state: &mut RowState,
    space: &RowSpace,
    own: u32,
    #[comptime] value: usize,
    #[comptime] shape: RowShape,
) {
    let (threads, beside, width) = comptime!((shape.threads, shape.beside, shape.pace.width));
    let mut shared = Shared::<[f32]>::new_slice(comptime!(threads * beside * width));
    #[unroll]
    for i in 0..comptime!(shape.each) {
        if comptime!(beside > 1) {
            // All threads have read the earlier values.
            sync_cube();
            #[unroll]
            for lane in 0..width {
                let from = comptime!(shape.held_at(value, i, lane));
                shared[UNIT_POS as usize * width + lane] = state.columns[from];
            }
            sync_cube();
        }
        let vector = own as usize + comptime!(i * threads);
        if UNIT_POS < comptime!(threads as u32) && vector < space.vectors {
            let mut all = Vector::<f32, N>::new(0.0f32);
            #[unroll]
            for lane in 0..width {
                let mut sum = state.columns[comptime!(shape.held_at(value, i, lane))];
                #[unroll]
                for other in 1..beside {
                    sum += shared[(own as usize + comptime!(other * threads)) * width + lane];
                }
                all.insert(lane, sum);
            }
            out[CUBE_POS_X as usize * space.vectors + vector] = all;
        }
    }
}
