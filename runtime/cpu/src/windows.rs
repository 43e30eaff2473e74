//! Shapes and strides of convolutions and pools.

use super::kernel::{KernelWork, exactly};
use super::kernels::{ConvolveKernel, ConvolveShape, PoolKernel, PoolWork, Shared, Sliding};
use super::moves::same_dims;
use meshwright_device::LoweringError;
use meshwright_device::lowering::local::{DeviceContext, Local};
use meshwright_plan::{Dim, Monoid, Part, SlidingWindow};

pub(super) fn convolve(
    context: &DeviceContext<'_>,
    windows: &[SlidingWindow],
    computes: Part,
    reads: &[Local],
    writes: &[Local],
) -> Result<KernelWork, LoweringError> {
    let ([a, b], [out]) = (exactly(reads)?, exactly(writes)?);
    let all = computes.arrange([a, b], out);
    let [x, w, y] = all;
    let sliding: Vec<Dim> = windows.iter().flat_map(|s| [s.wide, s.narrow, s.tap]).collect();
    context.check_aligned(&all, &sliding)?;
    if all.iter().any(|l| l.dtype != x.dtype) {
        return Err(LoweringError::Plan("the tensors of a convolution differ in dtype".into()));
    }
    // The innermost dim is contiguous in the result, or otherwise in the operand.
    let image = if computes == Part::Input { x } else { y };
    let mut shape = ConvolveShape::default();
    for (of, list) in [(image, 0), (x, 1), (y, 2)] {
        for d in of.dims.iter().filter(|d| !sliding.contains(d)) {
            let shared = || shared(all, *d);
            match (all.map(|l| l.at(*d).is_some()), list) {
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
                let problem = format!("the dim {} is in one tensor of a convolution only", d.0);
                return Err(LoweringError::Plan(problem));
            }
        }
    }
    let place = |s: &SlidingWindow| image.at(if computes == Part::Input { s.wide } else { s.narrow });
    let mut ordered: Vec<&SlidingWindow> = windows.iter().collect();
    ordered.sort_by_key(|s| place(s));
    for s in ordered {
        shape.slides.push(slide(context, [x, y], s, Some(w))?);
    }
    let kernel = ConvolveKernel::new(x.dtype, computes, &shape, all.map(Local::elements))?;
    // A gradient of the input takes the kernel and the result; the others have input first.
    Ok(KernelWork::to_one(move |args, out| kernel.run(args.read(0)?, args.read(1)?, out)))
}

/// A dim that does not slide.
fn shared(all: [&Local; 3], dim: Dim) -> Result<Shared, String> {
    let held = all.iter().find(|l| l.at(dim).is_some());
    let len = held.map_or(Ok(0), |l| l.range(dim).map(ExactSizeIterator::len))?;
    Ok(Shared { len, strides: all.map(|l| l.stride(dim)) })
}

/// The sliding of a dim between the tensor of elements and the tensor of positions.
fn slide(
    context: &DeviceContext<'_>,
    [wide, narrow]: [&Local; 2],
    s: &SlidingWindow,
    kernel: Option<&Local>,
) -> Result<Sliding, String> {
    let taps = context.plan.dims.size(s.tap);
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

pub(super) fn pool(
    context: &DeviceContext<'_>,
    windows: &[SlidingWindow],
    monoid: Monoid,
    spread: bool,
    reads: &[Local],
    writes: &[Local],
) -> Result<KernelWork, LoweringError> {
    let ([input], [out]) = (exactly(reads)?, exactly(writes)?);
    let work = if spread { PoolWork::Spread } else { PoolWork::Fold(monoid) };
    let kernel = pool_kernel(context, work, [input, out], windows)?;
    Ok(KernelWork::to_one(move |args, out| kernel.run(args.read(0)?, None, out)))
}

pub(super) fn argmax_pool(
    context: &DeviceContext<'_>,
    windows: &[SlidingWindow],
    monoid: Monoid,
    reads: &[Local],
    writes: &[Local],
) -> Result<KernelWork, LoweringError> {
    let ([input], [out]) = (exactly(reads)?, exactly(writes)?);
    let kernel = pool_kernel(context, PoolWork::Tap(monoid), [input, out], windows)?;
    Ok(KernelWork::to_one(move |args, out| kernel.run(args.read(0)?, None, out)))
}

pub(super) fn unpool(
    context: &DeviceContext<'_>,
    windows: &[SlidingWindow],
    reads: &[Local],
    writes: &[Local],
) -> Result<KernelWork, LoweringError> {
    let ([tap, values], [out]) = (exactly(reads)?, exactly(writes)?);
    same_dims(tap, values)?;
    context.check_aligned(&[tap, values], &[])?;
    let kernel = pool_kernel(context, PoolWork::Choose, [values, out], windows)?;
    Ok(KernelWork::to_one(move |args, out| kernel.run(args.read(0)?, Some(args.read(1)?), out)))
}

/// The kernel for a pool from `input` (with `spread` the positions, else the elements) to `out`.
fn pool_kernel(
    context: &DeviceContext<'_>,
    work: PoolWork,
    [input, out]: [&Local; 2],
    slides: &[SlidingWindow],
) -> Result<PoolKernel, LoweringError> {
    let sliding: Vec<Dim> = slides.iter().flat_map(|s| [s.wide, s.narrow]).collect();
    context.check_aligned(&[input, out], &sliding)?;
    let back = matches!(work, PoolWork::Spread | PoolWork::Choose);
    let images = if back { [out, input] } else { [input, out] };
    let mut plain = Vec::new();
    for d in out.dims.iter().filter(|d| !sliding.contains(d)) {
        plain.push((out.range(*d)?.len(), [input.stride(*d), out.stride(*d)]));
    }
    if input.dims.iter().any(|d| !sliding.contains(d) && out.at(*d).is_none()) {
        return Err(LoweringError::Plan("a pool reads a dim that it does not write".into()));
    }
    let slides: Vec<Sliding> =
        slides.iter().map(|s| slide(context, images, s, None)).collect::<Result<_, _>>()?;
    let dtype = if matches!(work, PoolWork::Tap(_)) { input.dtype } else { out.dtype };
    Ok(PoolKernel::new(work, dtype, &plain, &slides, [input.elements(), out.elements()])?)
}
