//! The time of a Plan whose layers are stages of a pipeline: the launches of a device of each stage, played in the order of the
//! schedule.

use crate::kernels::work_of;
use crate::pipe::PipeEstimate;
use crate::pipeline::{Played, StageTimes, play};
use crate::rates::Rates;
use crate::timeline::{Spent, TimelineEvent, events, spent};
use crate::work::{DeviceWork, Loop, WorkItem};
use meshwright_device::launch::{DevicePlan, LaunchKind, LoopLaunch};
use meshwright_device::{CompileError, compile_launches};
use meshwright_plan::actions::{Pass, PassRun};
use meshwright_plan::{Extent, Pipeline, PipelinePasses, Plan, Prim, coords_along, positions};
use meshwright_sorted::SortedMap;

/// What devices of a pipeline do in a step.
pub(crate) struct StagesWork<'p> {
    plan: &'p Plan,
    passes: PipelinePasses<'p>,
    /// For each stage the position of its work.
    of_stage: Vec<usize>,
    /// The work of stages that differ.
    works: Vec<StageWork>,
}

/// What a device of a stage does.
struct StageWork {
    /// Before the first pass.
    before: DeviceWork,
    /// A microbatch in each pass, by pass and chunk.
    passes: Vec<Vec<DeviceWork>>,
    /// After the last pass.
    after: DeviceWork,
}

/// The same in seconds.
struct StageSpent {
    passes: Vec<Vec<Spent>>,
    outside: Spent,
}

impl<'p> StagesWork<'p> {
    /// Of a Plan with a device plan of the first stage; none where layers are no stages. Stages with as many layers are compiled
    /// once.
    ///
    /// # Errors
    /// Where a device plan cannot be compiled.
    pub(crate) fn of(plan: &'p Plan, first: &DevicePlan) -> Result<Option<StagesWork<'p>>, CompileError> {
        let Some(passes) = plan.pipeline_passes() else { return Ok(None) };
        let ranks = plan.mesh.group(first.rank, &passes.pipeline.axes);
        let mut known: SortedMap<Vec<usize>, usize> = SortedMap::new();
        let (mut of_stage, mut works) = (vec![], vec![]);
        for (stage, rank) in ranks.into_iter().enumerate() {
            let at = known.entry(iterations(plan, &passes, stage)).or_insert(works.len());
            of_stage.push(*at);
            if *at == works.len() {
                let other = (rank != first.rank).then(|| compile_launches(plan, rank, first.target));
                let own = other.transpose()?;
                let Some(work) = StageWork::of(plan, own.as_ref().unwrap_or(first)) else { return Ok(None) };
                works.push(work);
            }
        }
        Ok(Some(StagesWork { plan, passes, of_stage, works }))
    }

    /// The same of the [Plan of other chunks](Plan::in_chunks), without a compilation: chunks run the launches of their device,
    /// with their own iterations of the loops over stages.
    pub(crate) fn in_chunks<'q>(&self, plan: &'q Plan) -> Option<StagesWork<'q>> {
        let passes = plan.pipeline_passes()?;
        let mut known: SortedMap<Vec<usize>, usize> = SortedMap::new();
        let (mut of_stage, mut works) = (vec![], vec![]);
        for (stage, base) in self.of_stage.iter().enumerate() {
            let at = known.entry(iterations(plan, &passes, stage)).or_insert(works.len());
            of_stage.push(*at);
            if *at == works.len() {
                works.push(self.works[*base].in_chunks(plan, passes.pipeline, stage));
            }
        }
        Some(StagesWork { plan, passes, of_stage, works })
    }

    /// The rule that makes stages: `layers -> pipe`.
    pub(crate) fn described(&self) -> String {
        let (of, plan) = (&self.passes.pipeline, self.plan);
        let axes: Vec<&str> = of.axes.iter().map(|a| plan.mesh.name(*a)).collect();
        format!("`{} -> {}`", plan.dims.name(of.dim), axes.join(", "))
    }

    /// Seconds of the step of the busiest device, and the pipeline.
    ///
    /// # Errors
    /// Where the lists of the schedule wait for each other.
    pub(crate) fn spent(&self, rates: &Rates<'_>) -> Result<(Spent, PipeEstimate), String> {
        let each: Vec<StageSpent> = self.works.iter().map(|w| w.spent(rates)).collect();
        let played = self.played(&each, rates)?;
        let end = played.ends.iter().copied().fold(0.0, f64::max);
        let of = &self.passes;
        let busiest = (0..of.stages).max_by(|a, b| played.busy[*a].total_cmp(&played.busy[*b])).unwrap_or(0);
        let own = &each[self.of_stage[busiest]];
        let mut all = Spent::default();
        own.passes.iter().flatten().for_each(|pass| all.plus(of.microbatches as f64, pass));
        let bubble = (end - all.seconds()).max(0.0);
        all.plus(1.0, &own.outside);
        let schedule = of.pipeline.schedule.name().to_string();
        let (stages, chunks) = (of.stages, of.pipeline.chunks);
        let (microbatches, projected) = (of.microbatches, false);
        Ok((all, PipeEstimate { stages, schedule, chunks, microbatches, bubble, projected }))
    }

    /// All that the device of the first stage runs. While it waits for other stages it runs nothing.
    ///
    /// # Errors
    /// Where the lists of the schedule wait for each other.
    pub(crate) fn events(&self, rates: &Rates<'_>) -> Result<Vec<TimelineEvent>, String> {
        let each: Vec<StageSpent> = self.works.iter().map(|w| w.spent(rates)).collect();
        let played = self.played(&each, rates)?;
        let first = &self.works[self.of_stage[0]];
        let mut all = vec![];
        let mut begin = 0.0;
        let mut add = |work: &DeviceWork, at: f64| {
            let (spent, events) = events(work, rates);
            let moved = |e: TimelineEvent| TimelineEvent { start: e.start + at, end: e.end + at, ..e };
            all.extend(events.into_iter().map(moved));
            spent.seconds()
        };
        begin += add(&first.before, begin);
        let end = played.ends.iter().copied().fold(0.0, f64::max);
        for (run, (start, _)) in self.passes.runs[0].iter().zip(&played.spans[0]) {
            add(&first.passes[run.pass as usize][run.chunk], begin + start);
        }
        add(&first.after, begin + end);
        Ok(all)
    }

    /// All items, for a list of the collectives.
    pub(crate) fn items(&self) -> impl Iterator<Item = &[WorkItem]> {
        self.works.iter().flat_map(StageWork::all).map(|work| &work.body[..])
    }

    fn played(&self, each: &[StageSpent], rates: &Rates<'_>) -> Result<Played, String> {
        let of = &self.passes;
        let times = (0..of.stages * of.pipeline.chunks).map(|k| {
            let passes = &each[self.of_stage[k % of.stages]].passes;
            let seconds = |pass: Pass| {
                let chunk = passes.get(pass as usize).and_then(|p| p.get(k / of.stages));
                chunk.map_or(0.0, Spent::seconds)
            };
            StageTimes { forward: seconds(Pass::F), backward: seconds(Pass::B), weight: seconds(Pass::W) }
        });
        let lists: &[Vec<PassRun>] = &of.runs;
        play(lists, &times.collect::<Vec<_>>(), self.hop(rates), false)
    }

    /// Seconds of the slowest message between neighbors.
    fn hop(&self, rates: &Rates<'_>) -> f64 {
        let (first, last) = self.passes.steps();
        let sends = self.plan.steps[first..=last].iter().filter(|s| matches!(s.prim, Prim::Send { .. }));
        let bytes = |b| self.plan.buffer(b).largest_bytes(&self.plan.mesh) as f64;
        let messages = sends.map(|s| s.reads.iter().map(|o| bytes(o.buf)).sum::<f64>());
        let most = messages.fold(0.0, f64::max);
        let ranks = self.plan.mesh.group(0, &self.passes.pipeline.axes);
        ranks.windows(2).map(|ends| rates.link(most, [ends[0], ends[1]])).fold(0.0, f64::max)
    }
}

impl StageWork {
    /// Of the device of a device plan; none where its loops over microbatches are not one that a schedule orders.
    fn of(plan: &Plan, device: &DevicePlan) -> Option<StageWork> {
        let ordered = |of: &LoopLaunch| !of.passes.is_empty();
        let found = device.body.iter().enumerate().find_map(|(at, id)| match &device.launches[*id].kind {
            LaunchKind::Loop(of) if ordered(of) => Some((at, of)),
            _ => None,
        });
        let (at, of) = found?;
        let work = |ids: &[_]| work_of(plan, device, ids);
        let chunks = |pass: &Vec<std::ops::Range<usize>>| {
            pass.iter().map(|chunk| work(&of.body[chunk.clone()])).collect::<Vec<_>>()
        };
        Some(StageWork {
            before: work(&device.body[..at]),
            passes: of.passes.iter().map(chunks).collect(),
            after: work(&device.body[at + 1..]),
        })
    }

    /// Of a device with the layers of each chunk in the place of all of them.
    fn in_chunks(&self, plan: &Plan, pipeline: &Pipeline, stage: usize) -> StageWork {
        let own = |chunk: usize, work: &DeviceWork| {
            let body = work.body.iter().map(|item| of_chunk(plan, pipeline, (stage, chunk), item));
            DeviceWork { body: body.collect() }
        };
        let passes = self
            .passes
            .iter()
            .map(|pass| (0..pipeline.chunks).filter_map(|chunk| Some(own(chunk, pass.first()?))).collect());
        StageWork { before: self.before.clone(), passes: passes.collect(), after: self.after.clone() }
    }

    fn all(&self) -> impl Iterator<Item = &DeviceWork> {
        [&self.before, &self.after].into_iter().chain(self.passes.iter().flatten())
    }

    fn spent(&self, rates: &Rates<'_>) -> StageSpent {
        let mut outside = spent(&self.before, rates);
        outside.plus(1.0, &spent(&self.after, rates));
        let chunks = |pass: &Vec<DeviceWork>| pass.iter().map(|work| spent(work, rates)).collect();
        StageSpent { passes: self.passes.iter().map(chunks).collect(), outside }
    }
}

/// What a device with several stages does for one of its chunks, given what one with a single stage does. What is in front of the
/// layers belongs to the first chunk, what is behind them to the last.
fn of_chunk(plan: &Plan, pipeline: &Pipeline, at: (usize, usize), item: &WorkItem) -> WorkItem {
    let WorkItem::Loop(of) = item else { return item.clone() };
    let body = of.body.iter().map(|(item, lag)| (of_chunk(plan, pipeline, at, item), *lag)).collect();
    let (stage, chunk) = at;
    let size = match &plan.steps[of.step].prim {
        Prim::Repeat { dim, axes, .. } if !axes.is_empty() => match plan.dims.cuts(*dim) {
            Some(cuts) => cuts.chunk(stage, chunk).len(),
            None if chunk == (if plan.dims.size(*dim) == 1 { 0 } else { pipeline.chunks - 1 }) => of.size,
            None => 0,
        },
        _ => of.size,
    };
    WorkItem::Loop(Loop { size, body, ..of.clone() })
}

/// How often a device of a stage runs the loops over stages, chunk by chunk: devices that run them as often do the same.
fn iterations(plan: &Plan, passes: &PipelinePasses<'_>, stage: usize) -> Vec<usize> {
    let axes = &passes.pipeline.axes[..];
    let coords = coords_along(axes, &plan.mesh).nth(stage).unwrap_or_default();
    let chunks = plan.dims.cuts(passes.pipeline.dim).map_or(vec![], |cuts| cuts.of_stage(stage).collect());
    let of = |prim: &Prim| match prim {
        Prim::Repeat { dim, from, axes, .. } if !axes.is_empty() => {
            Some(positions(&Extent::of(&plan.dims, *dim, axes), *from, &plan.mesh, &coords).len())
        }
        _ => None,
    };
    chunks.into_iter().chain(plan.steps.iter().filter_map(|s| of(&s.prim))).collect()
}
