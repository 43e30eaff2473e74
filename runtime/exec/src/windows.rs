//! What kernels need to know of operands over which something slides.

use crate::kernels::{ConvolveKernel, INPUT, KERNEL, PoolKernel, PoolWork, RESULT, Shape, Shared, Sliding};
use crate::local::{Here, Local};
use crate::own::Unprepared;
use meshwright_plan::{Dim, Part, SlidingWindow};

/// The kernel for a convolution of `[x, w, y]`, and which of these are read, in order, and written.
pub(crate) fn convolve(
    here: &Here<'_>,
    all: &[Local; 3],
    slides: &[SlidingWindow],
    gives: Part,
) -> Result<(ConvolveKernel, [usize; 3]), Unprepared> {
    let [x, w, y] = all;
    let sliding: Vec<Dim> = slides.iter().flat_map(|s| [s.wide, s.narrow, s.tap]).collect();
    here.check_aligned(&[x, w, y], &sliding)?;
    if all.iter().any(|l| l.dtype != x.dtype) {
        return Err(Unprepared::Plan("the tensors of a convolution differ in dtype".into()));
    }
    // What is walked last lies side by side in what is written, or else in what is read.
    let image = if gives == Part::Input { x } else { y };
    let mut shape = Shape::default();
    for (of, list) in [(image, 0), (x, 1), (y, 2)] {
        for d in of.dims.iter().filter(|d| !sliding.contains(d)) {
            let shared = || shared(all, *d);
            match (all.each_ref().map(|l| l.at(*d).is_some()), list) {
                ([true, false, true], 0) => shape.batch.push(shared()?),
                ([true, true, true], 0) => shape.groups.push(shared()?),
                ([true, true, false], 1) => shape.ins.push(shared()?),
                ([false, true, true], 2) => shape.outs.push(shared()?),
                _ => {}
            }
        }
    }
    for l in all {
        for d in l.dims.iter().filter(|d| !sliding.contains(d)) {
            if all.iter().filter(|l| l.at(*d).is_some()).count() < 2 {
                return Err(Unprepared::Plan(format!(
                    "the dim {} is in one tensor of a convolution only",
                    d.0
                )));
            }
        }
    }
    let place = |s: &SlidingWindow| image.at(if gives == Part::Input { s.wide } else { s.narrow });
    let mut ordered: Vec<&SlidingWindow> = slides.iter().collect();
    ordered.sort_by_key(|s| place(s));
    for s in ordered {
        shape.slides.push(slide(here, [x, y], s, Some(w))?);
    }
    let kernel = ConvolveKernel::new(x.dtype, gives, &shape, all.each_ref().map(Local::elements))?;
    let order = match gives {
        Part::Result => [INPUT, KERNEL, RESULT],
        Part::Input => [KERNEL, RESULT, INPUT],
        Part::Kernel => [INPUT, RESULT, KERNEL],
    };
    Ok((kernel, order))
}

/// A dim that does not slide.
fn shared(all: &[Local; 3], dim: Dim) -> Result<Shared, String> {
    let held = all.iter().find(|l| l.at(dim).is_some());
    let len = held.map_or(Ok(0), |l| l.range(dim).map(ExactSizeIterator::len))?;
    Ok(Shared { len, strides: all.each_ref().map(|l| l.stride(dim)) })
}

/// How a dim slides between the tensor of the elements and that of the positions.
fn slide(
    here: &Here<'_>,
    [wide, narrow]: [&Local; 2],
    s: &SlidingWindow,
    kernel: Option<&Local>,
) -> Result<Sliding, String> {
    let taps = here.plan.dims.size(s.tap);
    if let Some(w) = kernel
        && w.range(s.tap)?.len() != taps
    {
        return Err(format!("the taps {} of a kernel are not whole", s.tap.0));
    }
    Ok(Sliding {
        stride: s.stride,
        dilation: s.dilation,
        low: s.low,
        elements: wide.range(s.wide)?.clone(),
        taps,
        positions: narrow.range(s.narrow)?.clone(),
        strides: [wide.stride(s.wide), kernel.map_or(0, |w| w.stride(s.tap)), narrow.stride(s.narrow)],
    })
}

/// The kernel for a pool from `input` (with `spread` the positions, else the elements) to `out`.
pub(crate) fn pool(
    here: &Here<'_>,
    work: PoolWork,
    [input, out]: [&Local; 2],
    slides: &[SlidingWindow],
) -> Result<PoolKernel, Unprepared> {
    let sliding: Vec<Dim> = slides.iter().flat_map(|s| [s.wide, s.narrow]).collect();
    here.check_aligned(&[input, out], &sliding)?;
    let back = matches!(work, PoolWork::Spread | PoolWork::Choose);
    let images = if back { [out, input] } else { [input, out] };
    let mut plain = Vec::new();
    for d in out.dims.iter().filter(|d| !sliding.contains(d)) {
        plain.push((out.range(*d)?.len(), [input.stride(*d), out.stride(*d)]));
    }
    if input.dims.iter().any(|d| !sliding.contains(d) && out.at(*d).is_none()) {
        return Err(Unprepared::Plan("a pool reads a dim that it does not write".into()));
    }
    let slides: Vec<Sliding> =
        slides.iter().map(|s| slide(here, images, s, None)).collect::<Result<_, _>>()?;
    let dtype = if matches!(work, PoolWork::Tap(_)) { input.dtype } else { out.dtype };
    Ok(PoolKernel::new(work, dtype, &plain, &slides, [input.elements(), out.elements()])?)
}
