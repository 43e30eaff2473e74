//! Windows by kernels of our own, where the backend has them.

use crate::burn::lower::Lower;
use crate::error::LoweringError;
use crate::kernels::dims::WalkDim;
use crate::kernels::windows::{ConvolveCall, ConvolveDims, PoolCall, PoolWork, WindowSlide};
use crate::lowering::local::Local;
use crate::stored::extents;
use meshwright_plan::{Dim, Dims, Part, SlidingWindow};

/// A dim of a walk, with its window if it slides.
type Walked = (WalkDim, Option<usize>);

/// Blocks on this device under the windows.
struct HeldBlocks<'a> {
    dims: &'a Dims,
    /// The tensor of the elements, and that of the positions.
    elements: &'a Local,
    positions: &'a Local,
}

impl Lower<'_> {
    /// Records a convolution if there is a kernel for it.
    pub(crate) fn own_convolution(
        &mut self,
        windows: &[SlidingWindow],
        gives: Part,
        [a, b, out]: [&Local; 3],
    ) -> Result<bool, LoweringError> {
        let target = self.graph.target;
        let [x, _, y] = gives.arrange([a, b], out);
        // Windows slide over the first operand: the elements, or in a transpose the positions.
        let back = gives == Part::Input;
        let (windowed, other) = if back { (b, a) } else { (a, b) };
        let held = HeldBlocks { dims: &self.context.plan.dims, elements: x, positions: y };
        let dims = plain_dims(windows, [windowed, other, out])?;
        let ConvolveDims { groups, rows, columns, steps } = dims;
        let (mut rows, mut steps): (Vec<Walked>, Vec<Walked>) =
            (rows.into_iter().map(|d| (d, None)).collect(), steps.into_iter().map(|d| (d, None)).collect());
        for (i, s) in windows.iter().enumerate() {
            let (row, step) = match gives {
                Part::Input => (s.wide, s.tap),
                Part::Kernel => (s.tap, s.narrow),
                Part::Result => (s.narrow, s.tap),
            };
            rows.push((
                WalkDim { axes: vec![None, None, out.at(row)], size: out.range(row)?.len() },
                Some(i),
            ));
            steps.push((
                WalkDim { axes: vec![None, other.at(step), None], size: other.range(step)?.len() },
                Some(i),
            ));
        }
        // In the order of results and operands, except that the contiguous dim of the windows comes last, for vectors.
        let last = windowed.shape.iter().rposition(|size| *size > 1);
        let is_last = |dim: &WalkDim| dim.axes[0].is_some() && dim.axes[0] == last;
        rows.sort_by_key(|(dim, _)| (dim.size > 1, is_last(dim), dim.axes[2]));
        steps.sort_by_key(|(dim, _)| (dim.size > 1, is_last(dim), dim.axes[1]));
        let slides = (windows.iter().enumerate())
            .map(|(i, s)| held.slide(s, (at(&rows, i)?, at(&steps, i)?), (back, gives == Part::Kernel)))
            .collect::<Result<Vec<_>, _>>()?;
        let without = |dims: Vec<Walked>| dims.into_iter().map(|d| d.0).collect();
        let dims = ConvolveDims { groups, rows: without(rows), columns, steps: without(steps) };
        let dtypes = [windowed, other, out].map(|local| local.dtype);
        let has_tensor_cores = target.tensor_cores;
        let call = ConvolveCall::new(dims, slides, dtypes, (has_tensor_cores, &extents(&out.shape)));
        let call = call.filter(|_| target.blocks);
        let Some(call) = call else { return Ok(false) };
        self.record(call, [windowed, other], std::slice::from_ref(out));
        Ok(true)
    }

    /// Records a pool if there is a kernel for it: `back` is true from positions to elements.
    pub(crate) fn own_pool(
        &mut self,
        windows: &[SlidingWindow],
        (work, back): (PoolWork, bool),
        reads: &[&Local],
        out: &Local,
    ) -> Result<bool, LoweringError> {
        let [.., input] = reads else { return Ok(false) };
        let (elements, positions) = if back { (out, *input) } else { (*input, out) };
        let held = HeldBlocks { dims: &self.context.plan.dims, elements, positions };
        let along = |s: &SlidingWindow| if back { s.wide } else { s.narrow };
        let mut rows: Vec<Walked> = (out.dims.iter().zip(&out.shape).enumerate())
            .map(|(axis, (dim, size))| {
                let window = windows.iter().position(|s| along(s) == *dim);
                let read = if window.is_some() { None } else { input.at(*dim) };
                (WalkDim { size: *size, axes: vec![read, Some(axis)] }, window)
            })
            .collect();
        // Vectors go along the last one.
        rows.sort_by_key(|(dim, _)| dim.size > 1);
        let tap = |s: &SlidingWindow| WalkDim { size: held.dims.size(s.tap), axes: vec![] };
        let slides = (windows.iter().enumerate())
            .map(|(i, s)| held.slide(s, (at(&rows, i)?, i), (back, false)))
            .collect::<Result<Vec<_>, _>>()?;
        let taps = windows.iter().map(tap).collect();
        let rows = rows.into_iter().map(|d| d.0).collect();
        let call = PoolCall::new(rows, taps, slides, work, input.dtype);
        let call = call.filter(|_| self.graph.target.blocks);
        let Some(call) = call else { return Ok(false) };
        self.record(call, reads.iter().copied(), std::slice::from_ref(out));
        Ok(true)
    }
}

/// Position of a window's dim in a walk.
fn at(walked: &[Walked], window: usize) -> Result<usize, LoweringError> {
    let found = walked.iter().position(|d| d.1 == Some(window));
    found.ok_or_else(|| LoweringError::Plan(format!("a result lacks the dim of window {window}")))
}

/// Dims that do not slide, by the tensors that have them: windows, second operand, result.
fn plain_dims(windows: &[SlidingWindow], all: [&Local; 3]) -> Result<ConvolveDims, LoweringError> {
    let sliding: Vec<Dim> = windows.iter().flat_map(|s| [s.wide, s.narrow, s.tap]).collect();
    let mut dims: Vec<Dim> = vec![];
    // In the order of the result, then of the second operand.
    for dim in [all[2], all[1], all[0]].into_iter().flat_map(|local| &local.dims) {
        if !sliding.contains(dim) && !dims.contains(dim) {
            dims.push(*dim);
        }
    }
    let mut of = ConvolveDims { groups: vec![], rows: vec![], columns: vec![], steps: vec![] };
    for dim in dims {
        let axes = all.map(|local| local.at(dim));
        let size = all.iter().find_map(|local| local.at(dim).map(|axis| local.shape[axis])).unwrap_or(1);
        let list = match axes.map(|axis| axis.is_some()) {
            [true, true, true] => &mut of.groups,
            [true, false, true] => &mut of.rows,
            [false, true, true] => &mut of.columns,
            [true, true, false] => &mut of.steps,
            _ => {
                let problem = format!("the dim {} is in one tensor of a convolution only", dim.0);
                return Err(LoweringError::Plan(problem));
            }
        };
        if size > 1 {
            list.push(WalkDim { size, axes: axes.to_vec() });
        }
    }
    Ok(of)
}

impl HeldBlocks<'_> {
    /// Slide of a window along a dim of the rows and one of the steps: from positions to elements if `back`. `swapped`
    /// means that rows are taps.
    fn slide(
        &self,
        s: &SlidingWindow,
        (row, step): (usize, usize),
        (back, swapped): (bool, bool),
    ) -> Result<WindowSlide, LoweringError> {
        let (elements, positions) = (self.elements.range(s.wide)?, self.positions.range(s.narrow)?);
        // Position `n` and tap `t` meet element `n * stride + t * dilation - low`, all counted from the device's own.
        let (stride, dilation) = (s.stride as i64, s.dilation as i64);
        let from = (positions.start * s.stride) as i64 - s.low as i64 - elements.start as i64;
        let (axis, len) = match back {
            true => (self.positions.position(s.narrow)?, positions.len()),
            false => (self.elements.position(s.wide)?, elements.len()),
        };
        let ([by_row, by_step], from, divisor) = match (back, swapped) {
            (true, _) => ([1, -dilation], -from, s.stride),
            (false, true) => ([dilation, stride], from, 1),
            (false, false) => ([stride, dilation], from, 1),
        };
        let number = |n: i64| {
            i32::try_from(n).map_err(|_| LoweringError::Plan(format!("{n} is no offset of a window")))
        };
        Ok(WindowSlide {
            axis,
            row,
            step,
            by_row: number(by_row)?,
            by_step: number(by_step)?,
            from: number(from)?,
            len: number(len as i64)?,
            divisor: divisor as u32,
        })
    }
}
