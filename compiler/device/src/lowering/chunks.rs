//! Several stages of a pipeline on one device: the launches of a stage are lowered once for each of them.
//!
//! A device with the chunks `0..v` is v devices that take turns. The body of a pass over microbatches has launches for each
//! chunk, in which loops over stages run the iterations of that chunk; the order of turns takes the launches of the chunk that is
//! due. Everything else in the body is lowered for each chunk too: a value of one stage is a sum to which the others add zeros,
//! so that the sum over chunks is the same. Outside of passes, chunk follows chunk.

use super::build::ProgramBuilder;
use super::chunk::{AloneLoop, Chunk, ChunkedSteps};
use super::turn_order::stages;
use crate::error::LoweringError;
use meshwright_plan::{Axis, BufId, Dim, Extent, Prim, Step};
use std::ops::Range;

impl ProgramBuilder<'_> {
    /// Lowers steps for each chunk. Gives where the launches of each are in the body that is open.
    pub(super) fn in_chunks(
        &mut self,
        of: &ChunkedSteps,
        order: &[usize],
    ) -> Result<Vec<Range<usize>>, (LoweringError, usize)> {
        let plan = self.lowering.context.plan;
        let count = plan.pipeline.as_ref().map_or(1, |p| p.chunks);
        let alone = if let ChunkedSteps::Alone(_, alone) = of { Some(alone.clone()) } else { None };
        let mut parts = vec![];
        let mut numbers: Vec<usize> = (0..count).collect();
        if alone.as_ref().is_some_and(|a| a.of.reverse) {
            numbers.reverse();
        }
        for (nth, number) in numbers.into_iter().enumerate() {
            let first = order.first().copied().unwrap_or(0);
            self.end_group().map_err(|e| (e, first))?;
            self.end_segment();
            let begin = self.body.len();
            self.chunk =
                Some(Chunk { number, count, ends: [nth == 0, nth + 1 == count], alone: alone.clone() });
            for index in order {
                if !self.runs_again(*index)? {
                    continue;
                }
                self.step(*index, &plan.steps[*index]).map_err(|e| (e, *index))?;
            }
            self.end_group().map_err(|e| (e, first))?;
            self.end_segment();
            parts.push(begin..self.body.len());
        }
        self.chunk = None;
        Ok(parts)
    }

    /// The chunk of the pass that is lowered, and the number of chunks.
    pub(super) fn chunk_of_pass(&self) -> (usize, usize) {
        let chunk = self.chunk.as_ref().filter(|c| c.alone.is_none());
        chunk.map_or((0, 1), |c| (c.number, c.count))
    }

    /// The chunk before this one outside of passes, with the loop; none of the first one.
    fn chunk_before(&self) -> Option<(usize, &AloneLoop)> {
        let Chunk { number, ends: [false, _], alone: Some(alone), .. } = self.chunk.as_ref()? else {
            return None;
        };
        Some((if alone.of.reverse { number + 1 } else { number - 1 }, alone))
    }

    /// Outside of passes a loop continues after the first chunk with its results, except for the carries that it
    /// receives.
    pub(super) fn after_chunk_before(
        &self,
        begin: usize,
        carries: &mut [[(BufId, bool); 2]],
    ) -> Result<(), LoweringError> {
        let Some((before, alone)) = self.chunk_before().filter(|(_, alone)| alone.of.begin == begin) else {
            return Ok(());
        };
        for (k, last) in self.left_by(before, alone)? {
            carries[k][0] = (last, true);
        }
        Ok(())
    }

    /// The live carries of a loop after a chunk, with their values then, except for those that each chunk receives.
    fn left_by(&self, chunk: usize, alone: &AloneLoop) -> Result<Vec<(usize, BufId)>, LoweringError> {
        let plan = self.lowering.context.plan;
        let [begin, end] = [&plan.steps[alone.of.begin], &plan.steps[alone.of.end]];
        let (_, stage) = stages(plan, self.lowering.context.rank, self.axes())?;
        let idle = plan.dims.cuts(alone.of.dim).is_some_and(|cuts| cuts.chunk(stage, chunk).is_empty());
        let lags = plan.lags(&alone.of);
        let lag_of = |found: &dyn Fn(&Step) -> bool| {
            lags.iter().find(|(s, _)| found(&plan.steps[*s])).map(|(_, lag)| *lag)
        };
        // A value that is passed from turn to turn has been read when the last one has run.
        let stays = |k: usize| {
            let (current, next) = (begin.writes[k].buf, end.reads[k].buf);
            let made = lag_of(&|s| s.writes_buf(next)).unwrap_or(0);
            idle || lag_of(&|s| s.reads_buf(current)).is_none_or(|read| read == made)
        };
        let received = |k: usize| plan.steps[alone.receive].writes_buf(begin.reads[k].buf);
        let all = (0..begin.reads.len()).filter(|k| !received(*k) && stays(*k));
        Ok(all.map(|k| (k, end.writes[k].buf)).collect())
    }

    /// A step runs for the chunk, too, unless it makes a start, between a receive and its loop, that the chunk before has left.
    fn runs_again(&self, step: usize) -> Result<bool, (LoweringError, usize)> {
        let Some((before, alone)) = self.chunk_before().filter(|(_, alone)| !alone.has(step)) else {
            return Ok(true);
        };
        let left = self.left_by(before, alone).map_err(|e| (e, step))?;
        let steps = &self.lowering.context.plan.steps;
        let starts = steps[alone.of.begin].reads.iter().enumerate();
        let made = starts.filter(|(_, start)| steps[step].writes_buf(start.buf));
        Ok(made.into_iter().any(|(k, _)| !left.iter().any(|l| l.0 == k)))
    }

    fn axes(&self) -> &[Axis] {
        self.lowering.context.plan.pipeline.as_ref().map_or(&[], |p| &p.axes)
    }

    /// Stacks that the chunks of a pass fill in part, and whose parts are added, begin as zeros.
    pub(super) fn zeroed(&self, step: &Step) -> Option<Step> {
        let zeroed = self.chunk_of_pass().1 > 1 && matches!(step.prim, Prim::Blank { zero: false });
        zeroed.then(|| Step { prim: Prim::Blank { zero: true }, ..step.clone() })
    }

    /// The iterated positions of a loop: those of the chunk if the loop is over stages.
    pub(super) fn iterated(
        &self,
        dim: Dim,
        axes: &[Axis],
        own: &Range<usize>,
    ) -> Result<Range<usize>, LoweringError> {
        let context = &self.lowering.context;
        let (Some(chunk), Some(pipeline), false) = (&self.chunk, &context.plan.pipeline, axes.is_empty())
        else {
            return Ok(own.clone());
        };
        if dim == pipeline.dim {
            let (_, stage) = stages(context.plan, context.rank, &pipeline.axes)?;
            let cuts = Extent::of(&context.plan.dims, dim, &pipeline.axes).cuts;
            return Ok(cuts.map_or_else(|| own.clone(), |cuts| cuts.chunk(stage, chunk.number)));
        }
        // The steps in front of the stages have one position, those behind them one for each rank, and run on the last one.
        let first = context.plan.dims.size(dim) == 1;
        let runs = if first { chunk.number == 0 } else { chunk.number + 1 == chunk.count };
        Ok(if runs { own.clone() } else { own.start..own.start })
    }
}
