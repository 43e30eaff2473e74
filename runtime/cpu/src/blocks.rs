//! Shifts, reversals, joins of arrays, cuts and joins of dims: all of them copy ranges of one dim.

use super::kernel::{KernelWork, exactly};
use super::kernels::{BlockCopy, CopySource};
use meshwright_device::LoweringError;
use meshwright_device::collective::pack::StridedView;
use meshwright_device::lowering::local::{DeviceContext, Local};
use meshwright_plan::{Dim, Prim, Step};
use std::ops::Range;

/// The copy that a step is on this device.
pub(super) fn prepare(
    context: &DeviceContext<'_>,
    step: &Step,
    reads: &[Local],
    writes: &[Local],
) -> Result<KernelWork, LoweringError> {
    let [out] = exactly(writes)?;
    let (at, sources, fill) = match (&step.prim, reads) {
        (Prim::Shift { dim, to, start, fill }, [x]) => {
            (view(out, *to)?, vec![source(x, *dim, -start, out.range(*to)?)?], *fill)
        }
        (Prim::Reverse { dim }, [x]) => {
            let wanted = out.range(*dim)?;
            let size = context.plan.dims.size(*dim);
            let mirrored = size - wanted.end..size - wanted.start;
            let source = CopySource { backward: true, ..source(x, *dim, 0, &mirrored)? };
            whole(&source, wanted.len(), 1)?;
            (view(out, *dim)?, vec![source], 0.0)
        }
        (Prim::Concat { parts, to }, _) => {
            let parts = reads.iter().zip(parts);
            let sources = parts.map(|(x, (dim, offset))| source(x, *dim, *offset as i64, out.range(*to)?));
            let sources: Vec<CopySource> = sources.collect::<Result<_, LoweringError>>()?;
            let covered: usize = sources.iter().map(|s| s.range.len()).sum();
            let at = view(out, *to)?;
            if covered != at.size {
                return Err(LoweringError::Plan(format!("{covered} of {} elements are joined", at.size)));
            }
            (at, sources, 0.0)
        }
        (Prim::SplitDim { dim, to }, [x]) => {
            let (flat, inner) = out.joined(to, &context.plan.dims)?;
            let wanted = flat.range(to[0])?;
            let source = source(x, *dim, 0, wanted)?;
            whole(&source, wanted.len(), inner)?;
            (view(&flat, to[0])?, vec![source], 0.0)
        }
        (Prim::MergeDims { dims, to }, [x]) => {
            let (flat, inner) = x.joined(dims, &context.plan.dims)?;
            let wanted = out.range(*to)?;
            let source = source(&flat, dims[0], 0, wanted)?;
            whole(&source, wanted.len(), inner)?;
            (view(out, *to)?, vec![source], 0.0)
        }
        _ => {
            return Err(LoweringError::Plan(format!(
                "`{}` copies no ranges of {}",
                step.name(),
                reads.len()
            )));
        }
    };
    if let Some(x) = reads.iter().find(|x| x.dtype != out.dtype) {
        return Err(LoweringError::Plan(format!("{} is copied to {}", x.dtype, out.dtype)));
    }
    let kernel = BlockCopy::new(out.dtype, at, sources, fill)?;
    Ok(KernelWork::to_one(move |args, out| {
        let from = (0..args.len()).map(|k| args.read(k)).collect::<Result<Vec<_>, _>>()?;
        kernel.run(&from, out)
    }))
}

/// The part of `wanted` that `x` holds. Position `i` of `x` is position `i + offset` of the result.
fn source(x: &Local, dim: Dim, offset: i64, wanted: &Range<usize>) -> Result<CopySource, LoweringError> {
    let held = x.range(dim)?.clone();
    let moved = |i: usize| (i as i64 + offset).clamp(wanted.start as i64, wanted.end as i64) as usize;
    let (low, high) = (moved(held.start), moved(held.end));
    let range = if low < high {
        let start = (low as i64 - offset) as usize - held.start;
        start..start + (high - low)
    } else {
        0..0
    };
    Ok(CopySource { from: view(x, dim)?, range, at: low.min(high) - wanted.start, backward: false })
}

fn whole(source: &CopySource, wanted: usize, inner: usize) -> Result<(), LoweringError> {
    if source.range.len() == wanted {
        return Ok(());
    }
    let found = source.range.len();
    Err(LoweringError::Plan(format!("{found} of {wanted} elements are there, {inner} to a position")))
}

fn view(local: &Local, dim: Dim) -> Result<StridedView, String> {
    Ok(StridedView::new(&local.shape, local.position(dim)?))
}
