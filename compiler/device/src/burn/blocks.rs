//! Copies, shifts, reversals, joins of arrays, cuts and joins of dims: ranges of one dim, put one after the other.

use super::lower::{Lower, Named};
use crate::error::LoweringError;
use crate::kernels::join::JoinCall;
use crate::lowering::graph::{GraphBuilder, Val};
use crate::lowering::local::Local;
use crate::slot::TensorSlot;
use crate::stored::{extents, stored_as};
use meshwright_plan::DType;
use meshwright_plan::{Dim, Prim, Step};
use std::ops::Range;

/// A range of an array's axis, and where it begins in the result.
struct BlockSource {
    val: Val,
    range: Range<usize>,
    at: usize,
}

impl Lower<'_> {
    /// See [`meshwright_plan::Prim::Copy`].
    pub(crate) fn copy(&mut self, step: &Step) -> Result<(), LoweringError> {
        let ([from], [out]) = self.locals(step)?;
        if from.dtype != out.dtype {
            return Err(LoweringError::Plan(format!("{} is copied to {}", from.dtype, out.dtype)));
        }
        let part = self.read(&from);
        let part = self.part(part, &from, &out)?;
        self.write(&part, &out);
        if from.dtype.is_pair() {
            let part = self.read_indices(&from);
            let part = self.part(part, &from, &out)?;
            self.write_indices(&part, &out);
        }
        Ok(())
    }

    /// The part of `from` in `out`, along the dims that both have.
    fn part(&mut self, tensor: Named, from: &Local, out: &Local) -> Result<Named, LoweringError> {
        let mut val = tensor.val;
        for (axis, (dim, range)) in from.dims.iter().zip(&from.ranges).enumerate() {
            let wanted = out.range(*dim)?;
            if wanted.start < range.start || wanted.end > range.end {
                return Err(LoweringError::Plan(format!("{wanted:?} is to be copied from {range:?}")));
            }
            val = self.graph.slice(val, axis, wanted.start - range.start..wanted.end - range.start);
        }
        Ok(Named { val, dims: tensor.dims })
    }

    /// See [`Prim::Shift`], [`Prim::Reverse`], [`Prim::Concat`], [`Prim::SplitDim`] and [`Prim::MergeDims`].
    pub(crate) fn blocks(&mut self, step: &Step) -> Result<(), LoweringError> {
        match &step.prim {
            Prim::Shift { dim, to, start, fill } => {
                let ([x], [out]) = self.locals(step)?;
                let wanted = out.range(*to)?.clone();
                let source = self.source(&x, *dim, -start, &wanted)?;
                self.concatenate(source.into_iter().collect(), &out, place(&out, *to)?, *fill, &out)
            }
            Prim::Reverse { dim } => {
                let ([x], [out]) = self.locals(step)?;
                let (wanted, size) = (out.range(*dim)?.clone(), self.context.plan.dims.size(*dim));
                let mirrored = size - wanted.end..size - wanted.start;
                let source = self.source(&x, *dim, 0, &mirrored)?;
                whole(source.as_ref(), &wanted)?;
                let axis = place(&out, *dim)?;
                let backward = source.map(|s| {
                    let part = self.graph.slice(s.val, axis, s.range.clone());
                    BlockSource { val: self.graph.flip(part, axis), range: 0..s.range.len(), at: 0 }
                });
                self.concatenate(backward.into_iter().collect(), &out, axis, 0.0, &out)
            }
            Prim::Concat { .. } if self.own_join(step)? => Ok(()),
            Prim::Concat { parts, to } => {
                let out = self.local(step.writes.first().ok_or("it writes nothing".to_string())?)?;
                let wanted = out.range(*to)?.clone();
                let mut sources = vec![];
                for (x, (dim, offset)) in step.reads.iter().zip(parts) {
                    let x = self.local(x)?;
                    sources.extend(self.source(&x, *dim, *offset as i64, &wanted)?);
                }
                let covered: usize = sources.iter().map(|s| s.range.len()).sum();
                if covered != wanted.len() {
                    let problem = format!("{covered} of {} elements are joined", wanted.len());
                    return Err(LoweringError::Plan(problem));
                }
                self.concatenate(sources, &out, place(&out, *to)?, 0.0, &out)
            }
            Prim::SplitDim { dim, to } => {
                let ([x], [out]) = self.locals(step)?;
                let (flat, _) = out.joined(to, &self.context.plan.dims)?;
                let wanted = flat.range(to[0])?.clone();
                let source = self.source(&x, *dim, 0, &wanted)?;
                whole(source.as_ref(), &wanted)?;
                self.concatenate(source.into_iter().collect(), &flat, place(&flat, to[0])?, 0.0, &out)
            }
            Prim::MergeDims { dims, to } => {
                let ([x], [out]) = self.locals(step)?;
                let (flat, _) = x.joined(dims, &self.context.plan.dims)?;
                let wanted = out.range(*to)?.clone();
                let source = self.source(&flat, dims[0], 0, &wanted)?;
                whole(source.as_ref(), &wanted)?;
                self.concatenate(source.into_iter().collect(), &out, place(&out, *to)?, 0.0, &out)
            }
            _ => Err(LoweringError::Plan(format!("`{}` copies no ranges", step.name()))),
        }
    }

    /// The part of `x` in `wanted`, if position `i` of it is the result's `i + offset`; none if it has none.
    fn source(
        &mut self,
        x: &Local,
        dim: Dim,
        offset: i64,
        wanted: &Range<usize>,
    ) -> Result<Option<BlockSource>, LoweringError> {
        let held = x.range(dim)?.clone();
        let moved = |i: usize| (i as i64 + offset).clamp(wanted.start as i64, wanted.end as i64) as usize;
        let (low, high) = (moved(held.start), moved(held.end));
        if low >= high || x.elements() == 0 {
            return Ok(None);
        }
        let start = (low as i64 - offset) as usize - held.start;
        let dtype = stored_as(x.dtype);
        // The buffer of merged dims has other extents: it is read with the whole buffer's, and merged.
        let shape = self.context.plan.buffer(x.buf).shape(self.context.mesh(), &self.context.coords);
        let val = self.graph.read(TensorSlot::Buffer(x.buf), &extents(&shape), dtype);
        let val = self.graph.reshape(val, &extents(&x.shape));
        Ok(Some(BlockSource { val, range: start..start + (high - low), at: low - wanted.start }))
    }

    /// Puts sources, which have the dims of `flat`, along one of its axes, `fill` between them, and writes that to a
    /// buffer of as many elements.
    fn concatenate(
        &mut self,
        mut sources: Vec<BlockSource>,
        flat: &Local,
        axis: usize,
        fill: f64,
        out: &Local,
    ) -> Result<(), LoweringError> {
        sources.sort_by_key(|s| s.at);
        let dtype = stored_as(out.dtype);
        if sources.iter().any(|s| self.graph.dtype(s.val) != dtype) {
            return Err(LoweringError::Plan(format!("another dtype is copied to {}", out.dtype)));
        }
        if let Some(val) = self.joined(&sources, (flat, axis), (out.dtype, fill)) {
            let val = self.graph.reshape(val, &extents(&out.shape));
            self.write_val(val, out);
            return Ok(());
        }
        let mut parts = vec![];
        let mut next = 0;
        let gap = |e: &mut GraphBuilder, n: usize| {
            let mut shape = flat.shape.clone();
            shape[axis] = n;
            e.full(&shape, dtype, fill)
        };
        for s in sources {
            if s.at > next {
                parts.push(gap(&mut self.graph, s.at - next));
            }
            next = s.at + s.range.len();
            parts.push(self.graph.slice(s.val, axis, s.range));
        }
        if next < flat.shape[axis] {
            parts.push(gap(&mut self.graph, flat.shape[axis] - next));
        }
        let val = self.graph.cat(parts, axis);
        let val = self.graph.reshape(val, &extents(&out.shape));
        self.write_val(val, out);
        Ok(())
    }
}

/// A view of less than this part of a tensor is copied, since a view keeps the memory of the whole tensor.
const LEAST_PART: usize = 4;

impl Lower<'_> {
    /// The same by a kernel of our own, where the backend has one; none where nothing is joined.
    fn joined(
        &mut self,
        sources: &[BlockSource],
        (flat, axis): (&Local, usize),
        (dtype, fill): (DType, f64),
    ) -> Option<Val> {
        // A view of all of a tensor, or of much of it, is not copied.
        let seen = |s: &BlockSource| {
            s.range.len() == flat.shape[axis] && LEAST_PART * s.range.len() >= self.graph.shape(s.val)[axis]
        };
        if !self.graph.target.maps || sources.iter().any(seen) {
            return None;
        }
        let ranges: Vec<(Range<usize>, usize)> = sources.iter().map(|s| (s.range.clone(), s.at)).collect();
        let call = JoinCall::new((&flat.shape, axis), (dtype, fill), &ranges)?;
        let read = sources.iter().map(|s| s.val).collect();
        let made = (flat.shape.clone(), stored_as(dtype));
        self.graph.kernel(call, read, [made]).pop()
    }
}

fn place(local: &Local, dim: Dim) -> Result<usize, LoweringError> {
    local.at(dim).ok_or_else(|| LoweringError::Plan(format!("an operand lacks the dim {}", dim.0)))
}

fn whole(source: Option<&BlockSource>, wanted: &Range<usize>) -> Result<(), LoweringError> {
    let found = source.map_or(0, |s| s.range.len());
    if found == wanted.len() {
        return Ok(());
    }
    Err(LoweringError::Plan(format!("{found} of {} elements are there", wanted.len())))
}
