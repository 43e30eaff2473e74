//! The map from positions to elements along a sliding dim.
#![expect(
    clippy::needless_range_loop,
    reason = "lists that are known when a kernel is compiled are counted, not iterated"
)]

use cubecl::prelude::*;
pub(super) use meshwright_device::kernels::windows::WindowMapShape;

/// The map of a dim: a position among rows and one among steps has the element `(row * by_row + step * by_step + from)
/// / divisor` of `len`, if there is no remainder. `stride` is the distance to the next element in memory.
#[derive(CubeType, CubeLaunch)]
pub(super) struct WindowMap {
    pub(super) by_row: i32,
    pub(super) by_step: i32,
    pub(super) from: i32,
    pub(super) len: i32,
    pub(super) stride: usize,
}

/// An element over which something slides, counted from the first, if there is one.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Covered {
    pub(super) is_there: bool,
    pub(super) place: usize,
}

/// The element at a position among rows and one among steps, along sliding dims.
#[cube]
pub(super) fn covered(
    row: &Sequence<u32>,
    step: &Sequence<u32>,
    slides: &Sequence<WindowMap>,
    #[comptime] shapes: Vec<WindowMapShape>,
) -> Covered {
    let mut sum = 0usize;
    let mut is_there = true.runtime();
    let many = comptime!(shapes.len());
    #[unroll]
    for i in 0..many {
        let slide = slides.index(i);
        let along_rows = *row.index(comptime!(shapes[i].row)) as i32 * slide.by_row;
        let along_steps = *step.index(comptime!(shapes[i].step)) as i32 * slide.by_step;
        let found = along(along_rows + along_steps + slide.from, slide, comptime!(shapes[i].divisor));
        is_there = is_there && found.is_there;
        sum += found.place;
    }
    Covered { is_there, place: sum }
}

/// The element at `sum / divisor` along a dim, if the division has no remainder.
#[cube]
pub(super) fn along(sum: i32, slide: &WindowMap, #[comptime] divisor: u32) -> Covered {
    let mut at = sum;
    let mut is_there = at >= 0i32;
    if comptime!(divisor > 1) {
        let divisor = comptime!(divisor as i32);
        is_there = is_there && at % divisor == 0i32;
        at /= divisor;
    }
    Covered { is_there: is_there && at < slide.len, place: at as usize * slide.stride }
}
