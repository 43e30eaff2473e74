//! The passes of a pipeline: loops over microbatches among the steps of a Plan, and the order of each stage.

use crate::actions::{Action, Pass, PassRun, PipelineSchedule, actions, most_ahead, runs};
use crate::{Cuts, Extent, Pipeline, Plan, Prim, StepLoop, piece};

/// The loops over the microbatches of a pipeline, and the passes of each stage in order.
#[derive(Clone, Debug)]
pub struct PipelinePasses<'p> {
    /// The pipeline.
    pub pipeline: &'p Pipeline,
    /// Number of stages.
    pub stages: usize,
    /// Number of microbatches.
    pub microbatches: usize,
    /// The loop over the microbatches for each pass, in the order of the Plan.
    pub loops: Vec<(Pass, StepLoop)>,
    /// The passes of each stage in the order in which it runs them.
    pub runs: Vec<Vec<PassRun>>,
}

impl Plan {
    /// The passes of a step whose layers are stages: of an evaluation forward passes alone. `None` if microbatches pass no
    /// stages.
    pub fn pipeline_passes(&self) -> Option<PipelinePasses<'_>> {
        let (pipeline, parts) = (self.pipeline.as_ref()?, self.microbatches?);
        let stages = pipeline.axes.iter().map(|a| self.mesh.size(*a)).product();
        let microbatches = self.dims.size(parts.over);
        // Other loops over microbatches count what the whole batch has, on all devices alike.
        let staged = |l: &StepLoop| {
            self.steps[l.begin..l.end]
                .iter()
                .any(|s| matches!(&s.prim, Prim::Repeat { axes, .. } if !axes.is_empty()))
        };
        let over = self.loops().into_iter().filter(|l| l.dim == parts.over && staged(l));
        let loops: Vec<_> = [Pass::F, Pass::B, Pass::W].into_iter().zip(over).collect();
        let mut runs = runs(pipeline.schedule, stages, pipeline.chunks, microbatches).ok()?;
        let made = |pass: Pass| loops.iter().any(|l| l.0 == pass);
        runs.iter_mut().for_each(|list| list.retain(|run| made(run.pass)));
        (!loops.is_empty()).then_some(PipelinePasses { pipeline, stages, microbatches, loops, runs })
    }

    /// The Plan of the same layout with so many stages on a device, of equal length, whose microbatches pass in this order. The
    /// steps of a Plan depend on neither, as long as the same passes are apart. None without a pipeline.
    pub fn in_chunks(&self, schedule: PipelineSchedule, chunks: usize) -> Option<Plan> {
        let pipeline = self.pipeline.as_ref()?;
        if chunks == pipeline.chunks && schedule == pipeline.schedule {
            return Some(self.clone());
        }
        let mut plan = self.clone();
        plan.pipeline = Some(Pipeline { schedule, chunks, ..pipeline.clone() });
        if chunks == pipeline.chunks {
            return Some(plan);
        }
        let (dim, axes) = (pipeline.dim, pipeline.axes.clone());
        let stages = chunks * axes.iter().map(|a| self.mesh.size(*a)).product::<usize>();
        let size = self.dims.size(dim);
        let lengths = (0..stages).map(|at| piece(size, stages, at).len()).collect();
        plan.dims.cut(dim, Cuts { axes, lengths, chunks });
        let operands = self.steps.iter().flat_map(|s| s.reads.iter().chain(&s.writes));
        let inputs = self.program_inputs.iter().map(|i| (i.buf, &i.dims));
        for (buf, dims) in operands.map(|o| (o.buf, &o.dims)).chain(inputs) {
            for (extent, _) in
                plan.buffers[buf.0 as usize].extents.iter_mut().zip(dims).filter(|e| *e.1 == dim)
            {
                extent.cuts = Extent::of(&plan.dims, dim, &extent.axes).cuts;
            }
        }
        Some(plan)
    }
}

impl Pipeline {
    /// Most messages that a device has on their way when it goes on after a send: it waits until the oldest one has arrived.
    /// Their memory stays as it is until then; at the end of a program it waits for all.
    pub fn most_sent(&self) -> usize {
        self.chunks + 1
    }

    /// Most messages that a device has begun to receive before it reads them.
    pub fn most_ahead(&self) -> usize {
        most_ahead(self.chunks)
    }
}

impl PipelinePasses<'_> {
    /// The passes of a stage with what it receives and sends, in order.
    pub fn actions(&self, stage: usize) -> Vec<Action> {
        let list = self.runs.get(stage).map_or(&[][..], Vec::as_slice);
        actions(list, (stage, self.stages), self.pipeline.chunks)
    }

    /// The steps of the loops over microbatches, with those between them: a schedule runs their iterations in turns.
    pub fn steps(&self) -> (usize, usize) {
        let begin = self.loops.first().map_or(0, |(_, l)| l.begin);
        (begin, self.loops.last().map_or(0, |(_, l)| l.end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Axis, Dim};

    #[test]
    fn messages_on_their_way_are_one_more_than_chunks() {
        let of = |chunks| Pipeline {
            dim: Dim(0),
            axes: vec![Axis(0)],
            schedule: PipelineSchedule::OneForwardOneBackward,
            chunks,
        };
        let most = [1, 2, 3, 4].map(|chunks| (of(chunks).most_sent(), of(chunks).most_ahead()));
        assert_eq!(most, [(2, 1), (3, 2), (4, 2), (5, 2)]);
    }
}
