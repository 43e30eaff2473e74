//! Devices of a Plan that differ: of a pipeline one of each stage, else one. Their blocks, their operations, and what they hold.

use crate::actions::{Pass, PassRun, most_kept};
use crate::in_flight::{KeptStack, kept_stacks, messages};
use crate::passes::PipelinePasses;
use crate::{Axis, BufId, Buffer, Extent, Plan, Prim, coords_along, positions};
use meshwright_sorted::SortedMap;

/// Bytes of an element of the buffers that a device stores otherwise than in their dtype of the Plan: 0 if it never makes them.
pub type StoredElements = SortedMap<BufId, u64>;

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
    /// Bytes of buffers of which the device holds another part than its block: of stacks over microbatches the ones in flight, of
    /// parts of these and of what only other stages make nothing.
    held: SortedMap<BufId, u64>,
    /// Bytes of messages on their way, by the buffers that are sent or received.
    messages: Vec<(BufId, u64)>,
    /// The steps during which there are messages.
    passes: (usize, usize),
}

impl Plan {
    /// A device of each stage of the pipeline, in order, or one device with the largest blocks.
    pub fn device_blocks(&self) -> Vec<DeviceBlocks<'_>> {
        let Some(passes) = self.pipeline_passes() else {
            return vec![DeviceBlocks::largest(self)];
        };
        let stacks = kept_stacks(self, &passes);
        let of = |(at, list): (usize, &Vec<PassRun>)| {
            let axes = &passes.pipeline.axes[..];
            let coords = coords_along(axes, &self.mesh).nth(at).unwrap_or_default();
            let stage = StageBlocks {
                axes,
                coords,
                held: SortedMap::new(),
                messages: vec![],
                passes: passes.steps(),
            };
            let mut on = DeviceBlocks { plan: self, stage: Some(stage) };
            let (mut held, messages) = (on.never_made(), messages(self, &passes, at, &|buf| on.size(buf)));
            let freed = on.freed_as_others_are_made(&passes, at, &stacks);
            for of in &stacks {
                let made = !held.contains_key(&of.value.0);
                held.extend(of.parts.iter().map(|buf| (*buf, 0)));
                for buf in &of.stack {
                    let most = if made { on.kept(&passes, (at, list), of, *buf) } else { 0 };
                    held.insert(*buf, most - freed.get(buf).copied().unwrap_or(0).min(most));
                }
            }
            if let Some(stage) = &mut on.stage {
                (stage.held, stage.messages) = (held, messages);
            }
            on
        };
        passes.runs.iter().enumerate().map(of).collect()
    }
}

impl<'p> DeviceBlocks<'p> {
    /// The device with the largest blocks of all, which holds all microbatches.
    pub fn largest(plan: &'p Plan) -> DeviceBlocks<'p> {
        DeviceBlocks { plan, stage: None }
    }

    /// The first such device.
    pub fn rank(&self) -> usize {
        self.stage.as_ref().map_or(0, |s| self.plan.mesh.rank(&s.coords))
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

    /// Bytes of the device's block of a buffer.
    pub fn size(&self, buf: BufId) -> u64 {
        let buffer = self.plan.buffer(buf);
        (self.elements(buffer) * buffer.dtype.bytes()) as u64
    }

    /// Bytes that the device holds of a buffer: of a stack over microbatches those of the ones that are in flight.
    pub fn bytes(&self, buf: BufId) -> u64 {
        let held = self.stage.as_ref().and_then(|s| s.held.get(&buf));
        held.copied().unwrap_or_else(|| self.size(buf))
    }

    /// The same where some buffers are stored otherwise.
    pub fn stored_bytes(&self, buf: BufId, stored: &StoredElements) -> u64 {
        let (bytes, planned) = (self.bytes(buf), self.plan.buffer(buf).dtype.bytes() as u64);
        stored.get(&buf).map_or(bytes, |each| bytes / planned * each)
    }

    /// Bytes that messages take while microbatches pass the stages, beside the buffers of a pass: by the buffer that is sent or
    /// received.
    pub fn messages(&self) -> &[(BufId, u64)] {
        self.stage.as_ref().map_or(&[], |s| &s.messages)
    }

    /// The steps during which microbatches pass the stages.
    pub(crate) fn passes(&self) -> (usize, usize) {
        self.stage.as_ref().map_or((0, 0), |s| s.passes)
    }

    /// The buffers that only other stages make: a loop writes them that has no iteration here.
    fn never_made(&self) -> SortedMap<BufId, u64> {
        let mut made: SortedMap<BufId, bool> = SortedMap::new();
        for (step, times) in self.plan.steps.iter().zip(self.times()) {
            step.writes.iter().for_each(|o| *made.entry(o.buf).or_default() |= times > 0);
        }
        made.into_iter().filter(|(_, made)| !made).map(|(buf, _)| (buf, 0)).collect()
    }

    /// Where gradients of weights are apart, a backward pass frees values of each layer as it makes others: bytes by which the
    /// stacks of these are smaller when those of the others are largest.
    fn freed_as_others_are_made(
        &self,
        passes: &PipelinePasses<'_>,
        stage: usize,
        stacks: &[KeptStack],
    ) -> SortedMap<BufId, u64> {
        let layers = Extent::of(&self.plan.dims, passes.pipeline.dim, &passes.pipeline.axes);
        let own = self.len(&layers);
        let lengths: Vec<usize> =
            layers.cuts.as_ref().map_or_else(|| vec![own], |cuts| cuts.of_stage(stage).collect());
        let Some(least) = lengths.into_iter().filter(|n| *n > 0).min() else { return SortedMap::new() };
        let of_layer = |buf: BufId| self.size(buf) / (passes.microbatches * own) as u64;
        let between = |from: Pass, until: Pass| {
            let layered = move |s: &&KeptStack| {
                (s.from, s.until, s.value.1) == (from, until, Some(passes.pipeline.dim))
            };
            stacks.iter().filter(layered)
        };
        let sum = |from, until| -> u64 {
            between(from, until).filter_map(|s| s.stack.first()).map(|buf| of_layer(*buf)).sum()
        };
        let (freed, made) = (sum(Pass::F, Pass::B), sum(Pass::B, Pass::W));
        // In the first layer all of the others are there, in the last one all that are made.
        let less = (least as u64 - 1) * freed.min(made);
        let buffers = between(Pass::B, Pass::W).flat_map(|s| &s.stack);
        buffers.map(|buf| (*buf, less * of_layer(*buf) / made.max(1))).collect()
    }

    /// Most bytes that the device, which is that of a stage, holds of a stack over microbatches.
    fn kept(
        &self,
        passes: &PipelinePasses<'_>,
        (stage, list): (usize, &[PassRun]),
        of: &KeptStack,
        buf: BufId,
    ) -> u64 {
        let chunks = passes.pipeline.chunks;
        let of_microbatch = self.size(buf) / passes.microbatches as u64;
        let staged = |e: &&Extent| e.axes.iter().any(|a| passes.pipeline.axes.contains(a));
        let along = self.plan.buffer(buf).extents.iter().find(staged);
        let of_chunk = |chunk: usize| match along {
            // Each chunk has its own, as another device would.
            None => of_microbatch,
            Some(Extent { cuts: Some(cuts), .. }) => {
                let (own, all) = (cuts.chunk(stage, chunk).len(), cuts.stored(stage).len());
                of_microbatch / all.max(1) as u64 * own as u64
            }
            // What is in front of the stages has one position, and belongs to the first chunk.
            Some(e) if chunks > 1 && chunk != (if e.size == 1 { 0 } else { chunks - 1 }) => 0,
            Some(_) => of_microbatch,
        };
        most_kept(list, (of.from, of.until), &(0..chunks).map(of_chunk).collect::<Vec<_>>())
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
