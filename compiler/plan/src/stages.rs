//! Devices of a Plan that differ: of a pipeline one of each stage, else one. Their blocks, their operations, and what they hold.

use crate::actions::{Pass, PassRun, held_at_once, runs};
use crate::{Axis, BufId, Buffer, Extent, Pipeline, Plan, Prim, StepLoop, coords_along, positions};
use std::collections::{BTreeMap, BTreeSet};

/// The device with the largest blocks: of all, or of a stage of a pipeline.
#[derive(Clone, Debug)]
pub struct DeviceBlocks<'p> {
    plan: &'p Plan,
    stage: Option<StageBlocks<'p>>,
}

/// A stage, and what its devices keep of microbatches.
#[derive(Clone, Debug)]
struct StageBlocks<'p> {
    axes: &'p [Axis],
    coords: Vec<usize>,
    /// Stacks of what passes keep for later ones, and how many microbatches of `all` are in them at once.
    stacks: BTreeMap<BufId, u64>,
    all: u64,
}

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
    /// The passes of a step whose layers are stages: of an evaluation forward passes alone. `None` if microbatches pass no stages.
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

    /// A device of each stage of the pipeline, in order, or one device with the largest blocks.
    pub fn device_blocks(&self) -> Vec<DeviceBlocks<'_>> {
        let Some(passes) = self.pipeline_passes() else {
            return vec![DeviceBlocks::largest(self)];
        };
        let stacks = passes.stacks(self);
        let all = (passes.microbatches * passes.pipeline.chunks) as u64;
        let of = |(at, list): (usize, &Vec<PassRun>)| {
            let axes = &passes.pipeline.axes[..];
            let coords = coords_along(axes, &self.mesh).nth(at).unwrap_or_default();
            let held =
                |(buf, from, until): &(BufId, Pass, Pass)| (*buf, held_at_once(list, *from, *until) as u64);
            let stacks = stacks.iter().map(held).collect();
            DeviceBlocks { plan: self, stage: Some(StageBlocks { axes, coords, stacks, all }) }
        };
        passes.runs.iter().enumerate().map(of).collect()
    }
}

/// Some buffers, with those that have the storage of one of them.
fn same_storage(plan: &Plan, mut known: BTreeSet<BufId>) -> BTreeSet<BufId> {
    loop {
        let before = known.len();
        for (from, to) in plan.steps.iter().flat_map(|s| &s.aliases) {
            if known.contains(from) || known.contains(to) {
                known.extend([*from, *to]);
            }
        }
        if known.len() == before {
            return known;
        }
    }
}

impl PipelinePasses<'_> {
    /// The buffers in which passes keep something of each microbatch, the pass that makes it and the last one that reads it.
    fn stacks(&self, plan: &Plan) -> Vec<(BufId, Pass, Pass)> {
        let over = plan.microbatches.map(|m| m.over);
        let mut all = vec![];
        for (pass, of) in &self.loops {
            let (begin, end) = (&plan.steps[of.begin], &plan.steps[of.end]);
            let chains = begin.reads.iter().zip(&begin.writes).zip(end.reads.iter().zip(&end.writes));
            for ((start, current), (next, last)) in chains {
                if !last.dims.iter().any(|d| Some(*d) == over) {
                    continue;
                }
                let reads = |l: &StepLoop| plan.steps[l.begin..l.end].iter().any(|s| s.reads_buf(last.buf));
                let until = self.loops.iter().rev().find(|(_, l)| reads(l)).map_or(*pass, |(pass, _)| *pass);
                let chain = BTreeSet::from([start, current, next, last].map(|o| o.buf));
                all.extend(same_storage(plan, chain).into_iter().map(|buf| (buf, *pass, until)));
            }
        }
        all
    }

    /// The steps of the loops over microbatches, with those between them: a schedule runs their iterations in turns.
    pub fn steps(&self) -> (usize, usize) {
        let begin = self.loops.first().map_or(0, |(_, l)| l.begin);
        (begin, self.loops.last().map_or(0, |(_, l)| l.end))
    }
}

impl<'p> DeviceBlocks<'p> {
    /// The device with the largest blocks of all, which holds all microbatches.
    pub fn largest(plan: &'p Plan) -> DeviceBlocks<'p> {
        DeviceBlocks { plan, stage: None }
    }

    /// Elements along an extent.
    pub fn len(&self, extent: &Extent) -> usize {
        match &self.stage {
            Some(s) if extent.axes.iter().any(|a| s.axes.contains(a)) => {
                extent.range(&self.plan.mesh, &s.coords).len()
            }
            _ => extent.largest(&self.plan.mesh),
        }
    }

    /// Elements of a buffer.
    pub fn elements(&self, buffer: &Buffer) -> usize {
        buffer.extents.iter().map(|e| self.len(e)).product()
    }

    /// Bytes that the device holds of a buffer: of a stack over microbatches those of the ones that are in flight.
    pub fn bytes(&self, buf: BufId) -> u64 {
        let buffer = self.plan.buffer(buf);
        let bytes = (self.elements(buffer) * buffer.dtype.bytes()) as u64;
        match &self.stage {
            Some(s) => s.stacks.get(&buf).map_or(bytes, |held| bytes / s.all * held.min(&s.all)),
            None => bytes,
        }
    }

    /// How often the device runs each step in a run of the Plan.
    pub fn times(&self) -> Vec<u64> {
        let Some(stage) = &self.stage else { return self.plan.times() };
        let mut now = vec![1u64];
        let each = self.plan.steps.iter().map(|step| {
            if let Prim::EndRepeat = step.prim {
                now.pop();
            }
            let times = now.last().copied().unwrap_or(1);
            if let Prim::Repeat { dim, from, axes, .. } = &step.prim {
                let of = Extent::of(&self.plan.dims, *dim, axes);
                let own = positions(&of, *from, &self.plan.mesh, &stage.coords).len();
                now.push(times.saturating_mul(own as u64));
            }
            times
        });
        each.collect()
    }
}
