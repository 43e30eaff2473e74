//! Shifts, joins of arrays, cuts and joins of dims: all of them copy ranges of one dim.

use crate::kernels::{BlockCopy, Source};
use crate::local::{Here, Local};
use crate::own::Unprepared;
use crate::pack::Around;
use meshwright_plan::{Dim, Prim, Step};
use std::ops::Range;

/// A copy of ranges with what it reads and writes.
pub(crate) struct Moves {
    pub(crate) kernel: BlockCopy,
    pub(crate) from: Vec<Local>,
    pub(crate) out: Local,
}

/// The copy that a step is on this device.
pub(crate) fn prepare(here: &Here<'_>, step: &Step) -> Result<Moves, Unprepared> {
    let mut from = vec![];
    let mut sources = vec![];
    let (out, at, fill) = match &step.prim {
        Prim::Shift { dim, to, start, fill } => {
            let ([x], [out]) = step.operands()?;
            let (x, out) = (here.local(x)?, here.local(out)?);
            sources.push(source(&x, *dim, -start, out.range(*to)?)?);
            from.push(x);
            let at = around(&out, *to)?;
            (out, at, *fill)
        }
        Prim::Concat { parts, to } => {
            let out = here.local(step.writes.first().ok_or("it writes nothing".to_string())?)?;
            for (x, (dim, offset)) in step.reads.iter().zip(parts) {
                let x = here.local(x)?;
                sources.push(source(&x, *dim, *offset as i64, out.range(*to)?)?);
                from.push(x);
            }
            let covered: usize = sources.iter().map(|s| s.range.len()).sum();
            let at = around(&out, *to)?;
            if covered != at.size {
                return Err(Unprepared::Plan(format!("{covered} of {} elements are joined", at.size)));
            }
            (out, at, 0.0)
        }
        Prim::SplitDim { dim, to } => {
            let ([x], [out]) = step.operands()?;
            let (x, out) = (here.local(x)?, here.local(out)?);
            let (flat, inner) = out.joined(to, &here.plan.dims)?;
            let wanted = flat.range(to[0])?.clone();
            sources.push(source(&x, *dim, 0, &wanted)?);
            whole(&sources[0], wanted.len(), inner)?;
            from.push(x);
            let at = around(&flat, to[0])?;
            (out, at, 0.0)
        }
        Prim::MergeDims { dims, to } => {
            let ([x], [out]) = step.operands()?;
            let (x, out) = (here.local(x)?, here.local(out)?);
            let (flat, inner) = x.joined(dims, &here.plan.dims)?;
            let wanted = out.range(*to)?.clone();
            sources.push(source(&flat, dims[0], 0, &wanted)?);
            whole(&sources[0], wanted.len(), inner)?;
            from.push(x);
            let at = around(&out, *to)?;
            (out, at, 0.0)
        }
        _ => return Err(Unprepared::Plan(format!("`{}` copies no ranges", step.name()))),
    };
    if let Some(x) = from.iter().find(|x| x.dtype != out.dtype) {
        return Err(Unprepared::Plan(format!("{} is copied to {}", x.dtype, out.dtype)));
    }
    let dtype = out.dtype;
    Ok(Moves { kernel: BlockCopy::new(dtype, at, sources, fill)?, from, out })
}

/// What `x` has of `wanted`, where its position `i` is the result's `i + offset`.
fn source(x: &Local, dim: Dim, offset: i64, wanted: &Range<usize>) -> Result<Source, Unprepared> {
    let held = x.range(dim)?.clone();
    let moved = |i: usize| (i as i64 + offset).clamp(wanted.start as i64, wanted.end as i64) as usize;
    let (low, high) = (moved(held.start), moved(held.end));
    let range = if low < high {
        let start = (low as i64 - offset) as usize - held.start;
        start..start + (high - low)
    } else {
        0..0
    };
    Ok(Source { from: around(x, dim)?, range, at: low.min(high) - wanted.start })
}

fn whole(source: &Source, wanted: usize, inner: usize) -> Result<(), Unprepared> {
    if source.range.len() == wanted {
        return Ok(());
    }
    let found = source.range.len();
    Err(Unprepared::Plan(format!("{found} of {wanted} elements are there, {inner} to a position")))
}

fn around(local: &Local, dim: Dim) -> Result<Around, String> {
    let at = local.at(dim).ok_or_else(|| format!("an operand lacks the dim {}", dim.0))?;
    Ok(Around::new(&local.shape, at))
}
