//! From a Plan to the launches of one device, and the collectives and loops between them.

use crate::arena::Arena;
use crate::collective::Prepared;
use crate::collective::lower::{Arrival, pack, unpack};
use crate::decisions::decide::decide;
use crate::decisions::def_use::ended;
use crate::decisions::fused::FusedCall;
use crate::decisions::{Decisions, Role};
use crate::error::{CompileError, LoweringError};
use crate::iteration::MOST_NESTED;
use crate::kernels::Kernel;
use crate::launch::{BurnGraph, CollectiveLaunch, DevicePlan, Launch, LaunchKind, LoopLaunch};
use crate::lowering::chunk::{Chunk, ChunkedSteps, chunked};
use crate::lowering::dispatch::GroupKind;
use crate::lowering::graph::Operation;
use crate::lowering::{Lowering, turn_order};
use crate::passes::epilogues::EpilogueKind;
use crate::slot::{LaunchId, TensorSlot};
use crate::target::Target;
use crate::turns::{self, Carried};
use burn_ir::GraphIr;
use meshwright_plan::{Axis, BufId, Collective, Dim, Extent, IdVec, Operand, Plan, Prim, Step, StepLoop};
use meshwright_sorted::{SortedMap, SortedSet};
use std::ops::Range;

/// A loop whose body is being built.
pub(super) struct OpenLoop {
    launch: LaunchId,
    step: usize,
    pub(super) dim: Dim,
    reverse: bool,
    from: usize,
    /// The positions that the device has.
    pub(super) positions: Range<usize>,
    /// The iterated range of them.
    runs: Range<usize>,
    /// For each carry its first buffer, and whether its lifetime ends there; its buffer in the body, and whether nothing reads
    /// it.
    begin: Vec<[(BufId, bool); 2]>,
    /// Launches before the loop.
    before: Vec<LaunchId>,
}

/// Most steps of an operation, and most tensors: addresses of tensors are arguments of a kernel, which has room for 4 KiB of
/// them.
const MOST_IN_GROUP: (usize, usize) = (32, 256);

/// The launches, without groups that run at the steps `apart`.
pub(super) fn launches(
    (plan, rank, target): (&Plan, usize, Target),
    apart: &SortedSet<usize>,
    verified: bool,
) -> Result<DevicePlan, CompileError> {
    let mut lowering = Lowering::new(plan, rank, target);
    lowering.apart.clone_from(apart);
    let left = decide(&mut lowering, verified)?;
    let (never, stored) = lowering.decisions.stored(&lowering.uses);
    let order = lowering.decisions.order.steps.clone();
    let (body, operations, open, in_flight) = (vec![], vec![], vec![], SortedMap::new());
    let mut builder = ProgramBuilder {
        lowering,
        launches: IdVec::new(),
        body,
        operations,
        open,
        in_flight,
        waiting: vec![],
        waiting_for: GroupKind::Map,
        postponed: SortedMap::new(),
        delayed: vec![],
        groups: SortedMap::new(),
        passes: 0..0,
        chunk: None,
        chunks: SortedMap::new(),
    };
    let failed = |source: LoweringError, step| CompileError { step, source };
    if let Some(passes) = plan.pipeline_passes() {
        let (first, last) = (passes.loops.first(), passes.loops.last());
        builder.passes = first.zip(last).map_or(0..0, |(first, last)| first.1.begin..last.1.end);
    }
    let chunked = chunked(plan);
    let mut at = 0;
    while let Some(index) = order.get(at).copied() {
        let of = chunked.iter().find(|of| of.range().contains(&index));
        let count = of.map_or(1, |of| order[at..].iter().take_while(|i| of.range().contains(i)).count());
        match of {
            None => builder.step(index, &plan.steps[index]).map_err(|e| failed(e, Some(index)))?,
            Some(of) => {
                let parts = builder.in_chunks(of, &order[at..at + count]);
                let parts = parts.map_err(|(e, step)| failed(e, Some(step)))?;
                if let (ChunkedSteps::Pass(_), Some(open)) = (of, builder.open.last()) {
                    builder.chunks.insert(open.launch, parts);
                }
            }
        }
        at += count;
    }
    builder.end_group().map_err(|e| failed(e, plan.steps.len().checked_sub(1)))?;
    builder.end_segment();
    let Lowering { graph, pairs, attention_without_kernel, decisions, .. } = builder.lowering;
    let (mut launches, body, chunks) = (builder.launches, builder.body, builder.chunks);
    let body = turn_order::in_order_of_schedule((plan, rank), (&mut launches, &graph.slots), body, &chunks)
        .map_err(|e| failed(e, None))?;
    Ok(DevicePlan {
        target,
        rank,
        launches,
        body,
        slots: graph.slots,
        tables: graph.tables,
        pairs,
        left,
        never,
        stored,
        attention_without_kernel,
        fp8_declined: decisions.fp8.declined,
        arena: Arena::default(),
    })
}

pub(super) struct ProgramBuilder<'a> {
    pub(super) lowering: Lowering<'a>,
    pub(super) launches: IdVec<LaunchId, Launch>,
    /// The launches so far outside of loops, or in the innermost open one.
    pub(super) body: Vec<LaunchId>,
    /// Operations outside of any launch so far, each with its step.
    pub(super) operations: Vec<(Operation, usize)>,
    /// Loops whose bodies are being built, outermost first.
    pub(super) open: Vec<OpenLoop>,
    /// Collectives in flight by id: the launch that starts it, and its unpacking.
    in_flight: SortedMap<u32, (LaunchId, Arrival)>,
    /// Steps of the next shared launch, each with the slots whose lifetime it ends.
    waiting: Vec<(usize, Vec<TensorSlot>)>,
    waiting_for: GroupKind,
    /// Tensors whose lifetime ends later than in the Plan, by the step that ends it.
    postponed: SortedMap<usize, Vec<TensorSlot>>,
    /// Steps that follow an epilogue, each with the slots whose lifetime it ends.
    delayed: Vec<(usize, Vec<TensorSlot>)>,
    /// The steps of a shared launch, by the last of them.
    groups: SortedMap<usize, Vec<usize>>,
    /// The steps of a pipeline's loops over microbatches, and those between.
    passes: Range<usize>,
    /// The chunk for which steps are lowered, where a device has several stages.
    pub(super) chunk: Option<Chunk>,
    /// Ranges of each chunk's launches in the body of each loop over microbatches.
    chunks: SortedMap<LaunchId, Vec<Range<usize>>>,
}

impl ProgramBuilder<'_> {
    pub(super) fn step(&mut self, index: usize, step: &Step) -> Result<(), LoweringError> {
        self.lowering.graph.step = index;
        let steps = &self.lowering.context.plan.steps;
        let role = self.lowering.decisions.role(index);
        let group = if role == Role::Single { self.lowering.groups(step) } else { None };
        let joins = |kind| !self.is_between_passes(index) && self.takes(kind, step);
        if !(group.is_some_and(joins) || role == Role::Fused) {
            self.end_group()?;
        }
        if self.operations.last().is_some_and(|(_, before)| steps[*before].lag != step.lag) {
            self.end_segment();
        }
        let ending = self.ending(index, step)?;
        if let Some(kind) = group {
            self.waiting_for = kind;
            self.waiting.push((index, ending));
            return Ok(());
        }
        match role {
            Role::Fused => {
                if !ending.is_empty() {
                    self.end_group()?;
                    self.finish_step(index, &ending);
                }
                Ok(())
            }
            Role::Residual(how) => self.residual(index, step, how, ending),
            Role::Epilogue => self.epilogue(index, ending),
            Role::Group => {
                self.fused_group(index, &ending);
                Ok(())
            }
            Role::Single => self.single(index, step, ending),
        }
    }

    /// The tensors whose lifetime ends with a step on this device.
    fn ending(&mut self, index: usize, step: &Step) -> Result<Vec<TensorSlot>, LoweringError> {
        if self.chunk.as_ref().is_some_and(|chunk| !chunk.ends(index)) {
            return Ok(vec![]);
        }
        let Decisions { residuals, order, epilogues, .. } = &self.lowering.decisions;
        // The loop itself passes values across its boundary.
        let crosses = matches!(step.prim, Prim::Repeat { .. } | Prim::EndRepeat);
        let elsewhere = |b: &BufId| residuals.buffers.contains(b) || epilogues.added.contains_key(b);
        let never = |b: &BufId| elsewhere(b) || self.lowering.decisions.is_never_made(*b);
        let made = |b: &BufId| !never(b) && (!crosses || !step.reads_buf(*b));
        let mut ending = vec![];
        for buf in ended(step).filter(made) {
            let slots = self.lowering.slots(buf)?;
            match order.end_of(buf, index) {
                at if at == index => ending.extend(slots),
                later => self.postponed.entry(later).or_default().extend(slots),
            }
        }
        ending.extend(self.postponed.remove(&index).unwrap_or_default());
        match epilogues.moved.get(&index) {
            Some(to) if epilogues.is_after(index, *to) => {
                self.delayed.push((index, std::mem::take(&mut ending)));
            }
            Some(to) if order.place[*to] > order.place[index] => {
                self.postponed.entry(*to).or_default().append(&mut ending);
            }
            _ => {}
        }
        Ok(ending)
    }

    /// A step without fusion.
    fn single(
        &mut self,
        index: usize,
        step: &Step,
        mut ending: Vec<TensorSlot>,
    ) -> Result<(), LoweringError> {
        match &step.prim {
            Prim::Repeat { dim, reverse, from, axes } => {
                self.begin_loop(index, step, (*dim, *reverse, *from), axes)
            }
            Prim::Receive { axes, reverse } => self.receive(index, step, (axes, *reverse), ending),
            Prim::Send { axes, reverse } => self.send(index, step, (axes, *reverse), ending),
            Prim::EndRepeat => self.end_loop(index, step, ending),
            Prim::Collective(collective) => self.collective(index, step, collective, ending),
            Prim::Wait => self.wait(index, step, ending),
            _ => {
                self.lowering.lower(self.zeroed(step).as_ref().unwrap_or(step))?;
                ending.extend(self.lowering.bits_that_end(index));
                self.finish_step(index, &ending);
                Ok(())
            }
        }
    }

    /// The kernel of a fused group, at the position of its last step.
    fn fused_group(&mut self, index: usize, ending: &[TensorSlot]) {
        let Some(group) = self.lowering.decisions.fused.at.get(&index).cloned() else { return };
        let FusedCall { kernel, reads, writes } = group.call;
        match kernel {
            Kernel::MatmulGroup(call) => self.lowering.products(&call, &reads, &writes),
            kernel => self.lowering.record(kernel, &reads, &writes),
        }
        if group.steps.len() > 1 {
            self.groups.insert(index, group.steps);
        }
        self.finish_step(index, ending);
    }

    /// A matmul with its epilogue, which is a step of its own in the Plan.
    fn epilogue(&mut self, index: usize, mut ending: Vec<TensorSlot>) -> Result<(), LoweringError> {
        let Some(epilogue) = self.lowering.decisions.epilogues.at.get(&index).cloned() else { return Ok(()) };
        let plan = self.lowering.context.plan;
        for before in &epilogue.before {
            let step = &plan.steps[*before];
            match self.lowering.decisions.residuals.steps.get(before).cloned() {
                Some(how) => self.residual(*before, step, how, vec![])?,
                None => {
                    self.lowering.lower(step)?;
                    self.finish_step(*before, &[]);
                }
            }
        }
        self.lowering.epilogue(&epilogue)?;
        if let EpilogueKind::ReluGrad { of, .. } = epilogue.does {
            ending.extend(self.lowering.bits.get(&of).copied());
        }
        if let EpilogueKind::Adds { product, .. } = epilogue.does {
            ending.extend(self.lowering.slots(plan.steps[epilogue.other].reads[1 - product].buf)?);
        }
        self.finish_step(index, &ending);
        let delayed = std::mem::take(&mut self.delayed).into_iter();
        let (now, later) = delayed.partition(|(step, _)| epilogue.after.contains(step));
        self.delayed = later;
        now.into_iter().try_for_each(|(step, ending): (usize, Vec<TensorSlot>)| {
            match self.lowering.groups(&plan.steps[step]) {
                Some(kind) => self.lowering.lower_group(kind, &[&plan.steps[step]])?,
                None => self.lowering.lower(&plan.steps[step])?,
            }
            self.finish_step(step, &ending);
            Ok(())
        })
    }

    /// Whether a step stands between the loops of a pipeline: some of these run before all loops, and others behind.
    fn is_between_passes(&self, step: usize) -> bool {
        self.open.is_empty() && self.passes.contains(&step)
    }

    /// Whether a step can join the shared launch.
    fn takes(&self, kind: GroupKind, step: &Step) -> bool {
        let steps = &self.lowering.context.plan.steps;
        let waiting = || self.waiting.iter().map(|(index, _)| &steps[*index]);
        let inlined =
            |o: &Operand| self.lowering.decisions.inlined.values.get(&o.buf).map_or(1, |i| i.reads.len());
        let tensors = |s: &Step| s.reads.iter().map(inlined).sum::<usize>() + s.writes.len();
        let (most, most_tensors) = MOST_IN_GROUP;
        (self.waiting.is_empty() || self.waiting_for == kind)
            && self.waiting.len() < most
            && waiting().map(tensors).sum::<usize>() + tensors(step) <= most_tensors
            && waiting().all(|w| w.lag == step.lag && !w.writes.iter().any(|o| self.reads(step, o.buf)))
    }

    /// Whether the launch of a step reads a buffer, directly or for an inlined value.
    fn reads(&self, step: &Step, buf: BufId) -> bool {
        let inlined = step.reads.iter().filter_map(|o| self.lowering.decisions.inlined.values.get(&o.buf));
        step.reads_buf(buf) || inlined.flat_map(|i| &i.reads).any(|o| o.buf == buf)
    }

    /// Adds the operation of the steps that wait for it.
    pub(super) fn end_group(&mut self) -> Result<(), LoweringError> {
        let waiting = std::mem::take(&mut self.waiting);
        let Some((last, _)) = waiting.last() else { return Ok(()) };
        let last = *last;
        let plan = self.lowering.context.plan;
        let steps: Vec<&Step> = waiting.iter().map(|(index, _)| &plan.steps[*index]).collect();
        self.lowering.lower_group(self.waiting_for, &steps)?;
        if waiting.len() > 1 {
            self.groups.insert(last, waiting.iter().map(|w| w.0).collect());
        }
        let ending: Vec<TensorSlot> = waiting.into_iter().flat_map(|w| w.1).collect();
        self.finish_step(last, &ending);
        Ok(())
    }

    fn begin_loop(
        &mut self,
        index: usize,
        step: &Step,
        (dim, reverse, from): (Dim, bool, usize),
        axes: &[Axis],
    ) -> Result<(), LoweringError> {
        if self.open.len() == MOST_NESTED {
            return Err(LoweringError::Plan(format!("more than {MOST_NESTED} loops are in each other")));
        }
        self.end_segment();
        // Several carries may start as one buffer, which ends with the last of them.
        let ends = |k: usize, o: &Operand| {
            let again = step.reads[k + 1..].iter().any(|r| r.buf == o.buf);
            !again && (step.free.contains(&o.buf) || step.aliases.iter().any(|r| r.0 == o.buf))
        };
        let pairs = step.reads.iter().zip(&step.writes).enumerate();
        let unread = |o: &Operand| step.free.contains(&o.buf);
        let begin =
            pairs.map(|(k, (start, current))| [(start.buf, ends(k, start)), (current.buf, unread(current))]);
        let mut begin: Vec<[(BufId, bool); 2]> = begin.collect();
        self.after_chunk_before(index, &mut begin)?;
        let context = &self.lowering.context;
        let positions = Extent::of(&context.plan.dims, dim, axes).range(context.mesh(), &context.coords);
        let runs = self.iterated(dim, axes, &positions)?;
        let launch = self.launch(LaunchKind::Free, index);
        let before = std::mem::take(&mut self.body);
        self.open.push(OpenLoop { launch, step: index, dim, reverse, from, positions, runs, begin, before });
        Ok(())
    }

    fn end_loop(
        &mut self,
        index: usize,
        step: &Step,
        mut ending: Vec<TensorSlot>,
    ) -> Result<(), LoweringError> {
        self.end_segment();
        let Some(open) = self.open.pop() else {
            return Err(LoweringError::Plan("no loop is open that could end".into()));
        };
        if open.begin.len() != step.reads.len() || step.reads.len() != step.writes.len() {
            return Err(LoweringError::Plan("a loop ends with other carries than it begins with".into()));
        }
        let across = step.reads.iter().zip(&step.writes);
        let OpenLoop { launch, step: begun, dim, reverse, from, positions, runs, begin, before } = open;
        let plan = self.lowering.context.plan;
        let lags = plan.lags(&StepLoop { begin: begun, end: index, dim, reverse, from, most: runs.len() });
        let lag_of = |found: &dyn Fn(&Step) -> bool| {
            lags.iter().find(|(s, _)| found(&plan.steps[*s])).map(|(_, lag)| usize::from(*lag))
        };
        let own = runs.start.max(from)..runs.end.max(from);
        let mut carries = Vec::with_capacity(step.reads.len());
        for ([(start, ends), (current, unread)], (next, last)) in begin.into_iter().zip(across) {
            let (next, last) = (next.buf, last.buf);
            let lag = lag_of(&|s| s.writes_buf(next)).unwrap_or(0);
            // A value that is passed from turn to turn has been read when the loop ends.
            if !own.is_empty() && lag_of(&|s| s.reads_buf(current)).is_some_and(|read| read != lag) {
                let ended = self.lowering.slots(last)?;
                ending.retain(|s| !ended.contains(s));
            }
            if !self.lowering.decisions.residuals.buffers.contains(&current) {
                carries.push(Carried { start, ends, current, unread, next, last, lag });
            }
        }
        let body = std::mem::replace(&mut self.body, before);
        let lags: Vec<usize> =
            body.iter().map(|id| usize::from(plan.steps[self.launches[*id].step].lag)).collect();
        let turns = turns::turns(own.clone(), reverse, &carries, &lags);
        let numbers = turn_order::numbers(plan, begun..index);
        let is_split = matches!(&plan.steps[begun].prim, Prim::Repeat { axes, .. } if !axes.is_empty());
        self.launches[launch].kind = LaunchKind::Loop(Box::new(LoopLaunch {
            dim,
            reverse,
            from,
            positions,
            runs: own,
            of_one_stage: is_split && plan.pipeline.as_ref().is_none_or(|p| p.dim != dim),
            numbers,
            carries,
            body,
            turns,
            passes: vec![],
        }));
        self.launches[launch].steps = vec![begun, index];
        self.body.push(launch);
        self.finish_step(index, &ending);
        Ok(())
    }

    /// Adds the operations of a step that has been lowered.
    pub(super) fn finish_step(&mut self, index: usize, ending: &[TensorSlot]) {
        let operations = self.lowering.graph.finish(ending);
        self.operations.extend(operations.into_iter().map(|o| (o, index)));
    }

    /// Makes launches of the operations recorded since the last one.
    pub(super) fn end_segment(&mut self) {
        let operations = std::mem::take(&mut self.operations);
        let made = self.launches_of(operations);
        self.body.extend(made);
    }

    /// A launch that reads and writes no tensors itself.
    pub(super) fn launch(&mut self, kind: LaunchKind, step: usize) -> LaunchId {
        let steps = self.steps_of(step);
        self.launches.push(Launch { kind, step, steps, reads: vec![], writes: vec![], frees: vec![] })
    }

    /// The steps that the launch of a step computes.
    fn steps_of(&self, step: usize) -> Vec<usize> {
        if let Some(group) = self.groups.get(&step) {
            return group.clone();
        }
        let epilogue = self.lowering.decisions.epilogues.at.get(&step);
        std::iter::once(step).chain(epilogue.into_iter().flat_map(|e| e.others())).collect()
    }

    /// Operations as launches: a kernel is one, and so are operations of Burn that follow each other. A tensor that ends after a
    /// kernel ends with its launch. A step is computed by the last kernel among its operations, or the last of them.
    fn launches_of(&mut self, operations: Vec<(Operation, usize)>) -> Vec<LaunchId> {
        let mut by: SortedMap<usize, (bool, usize)> = SortedMap::new();
        for (at, (operation, step)) in operations.iter().enumerate() {
            let is_kernel = matches!(operation, Operation::Kernel(..));
            if !matches!(operation, Operation::Free(_)) && by.get(step).is_none_or(|b| is_kernel >= b.0) {
                by.insert(*step, (is_kernel, at));
            }
        }
        let mut made: Vec<LaunchId> = vec![];
        for (at, (operation, step)) in operations.into_iter().enumerate() {
            let between = self.is_between_passes(step);
            let computes = by.get(&step).is_some_and(|b| b.1 == at);
            let steps = if computes { self.steps_of(step) } else { vec![] };
            let last = made.last().map(|id| &mut self.launches[*id]);
            let slots = &mut self.lowering.graph.slots;
            match (operation, last) {
                (Operation::Kernel(kernel, reads, writes), _) => {
                    let id = self.launch(LaunchKind::Kernel(kernel), step);
                    let launch = &mut self.launches[id];
                    (launch.steps, launch.reads, launch.writes) = (steps, reads, writes);
                    made.push(id);
                }
                (Operation::Free(slot), Some(launch)) => launch.frees.push(slots.insert(slot)),
                (Operation::Free(slot), None) => {
                    let freed = slots.insert(slot);
                    let id = self.launch(LaunchKind::Free, step);
                    let launch = &mut self.launches[id];
                    (launch.steps, launch.frees) = (vec![], vec![freed]);
                    made.push(id);
                }
                (Operation::Burn(operation), Some(launch @ Launch { kind: LaunchKind::Burn(_), .. }))
                    if launch.frees.is_empty() && (launch.step == step || !between) =>
                {
                    launch.steps.extend(steps);
                    launch.step = step;
                    if let LaunchKind::Burn(burn) = &mut launch.kind {
                        burn.push(*operation, step);
                    }
                }
                (Operation::Burn(operation), _) => {
                    let burn = BurnGraph { graph: GraphIr::new(vec![*operation]), steps: vec![step] };
                    let id = self.launch(LaunchKind::Burn(burn), step);
                    self.launches[id].steps = steps;
                    made.push(id);
                }
            }
        }
        made
    }

    fn collective(
        &mut self,
        index: usize,
        step: &Step,
        collective: &Collective,
        mut ending: Vec<TensorSlot>,
    ) -> Result<(), LoweringError> {
        self.end_segment();
        let prepared = Prepared::new(&self.lowering.context, step, collective)?;
        let (calls, arrival) = pack(&mut self.lowering, &prepared)?;
        // The calls end the lifetimes of their operands; tensors that only the unpacking or nothing reads end with it.
        let slots = &self.lowering.graph.slots;
        let sent = calls.iter().flat_map(|c| &c.send).filter(|p| p.ends);
        let sent: Vec<TensorSlot> = sent.filter_map(|p| slots.get(p.tensor?)).collect();
        ending.retain(|s| !sent.contains(s));
        let mut reads = arrival.reads.clone();
        for result in &step.writes {
            reads.extend(self.lowering.slots(result.buf)?);
        }
        let (later, ending): (Vec<TensorSlot>, Vec<TensorSlot>) =
            ending.into_iter().partition(|s| reads.contains(s));
        let pack = self.finished(index, &ending);
        let mut starts = None;
        let unpack = match step.async_id {
            None => self.unpack(index, &arrival, later),
            Some(_) if !later.is_empty() => {
                let problem = "what is needed at the end of a collective ends at its start".to_string();
                return Err(problem.into());
            }
            Some(id) => {
                starts = Some((id, arrival));
                vec![]
            }
        };
        let async_id = step.async_id;
        let collective = CollectiveLaunch { prepared, async_id, pack, calls, unpack, link: None };
        let launch = self.launch(LaunchKind::Collective(Box::new(collective)), index);
        self.body.push(launch);
        self.in_flight.extend(starts.map(|(id, arrival)| (id, (launch, arrival))));
        Ok(())
    }

    fn wait(&mut self, index: usize, step: &Step, ending: Vec<TensorSlot>) -> Result<(), LoweringError> {
        let Some((start, arrival)) = step.async_id.and_then(|id| self.in_flight.remove(&id)) else {
            return Err(LoweringError::Plan("nothing is in flight that it could wait for".into()));
        };
        self.end_segment();
        let unpack = self.unpack(index, &arrival, ending);
        let launch = self.launch(LaunchKind::Wait { start, unpack }, index);
        self.body.push(launch);
        Ok(())
    }

    fn unpack(&mut self, step: usize, arrival: &Arrival, mut ending: Vec<TensorSlot>) -> Vec<LaunchId> {
        unpack(&mut self.lowering, arrival);
        ending.extend(&arrival.ending);
        self.finished(step, &ending)
    }

    /// The launches of the operations that a step recorded.
    pub(super) fn finished(&mut self, step: usize, ending: &[TensorSlot]) -> Vec<LaunchId> {
        let operations = self.lowering.graph.finish(ending);
        self.launches_of(operations.into_iter().map(|operation| (operation, step)).collect())
    }
}
