//! From a Plan to what one device runs: segments of operations, and collectives between them.

use super::context::place;
use super::epilogues::{EpilogueKind, Epilogues};
use super::graph::{Segment, Table, TensorSlot};
use super::inlined::InlinedValues;
use super::lifetimes::Lifetimes;
use super::lowering::{Lowering, LoweringError, stored_as, stored_shape};
use super::masks::Masks;
use super::pieces::{CollectivePiece, Piece, RepeatPiece};
use super::residuals::{ResidualStep, Residuals, ended, load, store};
use super::row_groups::RowGroups;
use super::step_order::StepOrder;
use super::turns::Carried;
use crate::backend::{Backend, GroupKind, MOST_NESTED};
use crate::collective::Prepared;
use crate::collective::lower::{Arrival, pack, unpack};
use crate::error::ExecError;
use burn_ir::{OperationIr, TensorStatus};
use meshwright_plan::{BufId, Collective, DType, Dim, Operand, Plan, Prim, Step, StepLoop};
use std::collections::{BTreeMap, BTreeSet};

/// A loop whose body is being built.
struct OpenRepeat {
    step: usize,
    dim: Dim,
    reverse: bool,
    /// What each carry starts as, and whether that ends there; what it is in the body, and whether nothing reads that.
    begin: Vec<[(BufId, bool); 2]>,
    /// What stands before the loop.
    before: Vec<Piece>,
}

/// A program for one device, of a backend with kernels `K`.
pub(crate) struct Built<K> {
    pub(crate) pieces: Vec<Piece>,
    pub(crate) kernels: Vec<K>,
    pub(crate) tables: Vec<Table>,
    /// What the values of each buffer of pairs are.
    pub(crate) pairs: BTreeMap<BufId, DType>,
    /// Buffers that are alive at the end.
    pub(crate) left: BTreeSet<BufId>,
    /// By the last of several steps that are one operation, all of them.
    pub(crate) groups: BTreeMap<usize, Vec<usize>>,
    /// By step those that are done with it, in its place.
    pub(crate) beside: BTreeMap<usize, Vec<usize>>,
    /// Buffers of the Plan that this device never makes, and of those the ones in whose place it makes no other.
    pub(crate) never: BTreeSet<BufId>,
    pub(crate) absent: BTreeSet<BufId>,
}

/// Most steps of an operation, and most tensors: addresses of tensors are arguments of a kernel, which has room for 4 KiB of them.
const MOST_IN_GROUP: (usize, usize) = (32, 256);

/// Makes a Plan concrete for the device of that rank.
///
/// # Errors
/// Where the Plan contradicts itself, or a step cannot be lowered; the error names the step.
pub(crate) fn build<B: Backend>(
    backend: &B,
    plan: &Plan,
    rank: usize,
) -> Result<Built<B::Kernel>, ExecError> {
    backend.check(plan, rank)?;
    let mut lowering = Lowering::new(plan, rank, backend.capabilities());
    let (pieces, operations, open, in_flight) = (vec![], vec![], vec![], BTreeMap::new());
    let residuals = Residuals::of(plan);
    lowering.masks = Masks::of(plan, &residuals, |step, buf, by| B::draws(&lowering, step, buf, by));
    let groups = |s: &_| B::groups(&lowering, s).is_some();
    let beside = beside_products::<B>((backend, &lowering), plan, &residuals);
    lowering.rows = RowGroups::of(plan, (&residuals, &beside), |g| B::fuses(&lowering, g), groups);
    let (folds, writes) =
        (|i: &_, value| B::folds(&lowering, i, value), |s: &_| B::groups(&lowering, s).is_some());
    lowering.inlined = InlinedValues::of(plan, &lowering.rows, folds, writes);
    let order = StepOrder::of(plan, &lowering.rows, &lowering.inlined, backend.gathers());
    let taken = (&residuals, &lowering.masks, &lowering.rows, &lowering.inlined);
    lowering.epilogues = Epilogues::of(plan, taken, &order, |e| B::computes(&lowering, e));
    let mut builder = ProgramBuilder::<B> {
        lowering,
        pieces,
        operations,
        open,
        in_flight,
        residuals,
        waiting: vec![],
        waiting_for: GroupKind::Map,
        postponed: BTreeMap::new(),
        delayed: vec![],
        groups: BTreeMap::new(),
        order,
    };
    let mut lifetimes = Lifetimes::new(plan);
    let failed = |e, index| {
        let place = place(plan, rank, None, index);
        match e {
            LoweringError::Plan(problem) => ExecError::Plan { place, problem },
            LoweringError::Kernel(source) => ExecError::Kernel { place, source },
        }
    };
    for (index, step) in plan.steps.iter().enumerate() {
        let known = lifetimes.step(index, step).map_err(LoweringError::Plan);
        known.map_err(|e| failed(e, Some(index)))?;
    }
    for index in std::mem::take(&mut builder.order.steps) {
        builder.step(index, &plan.steps[index]).map_err(|e| failed(e, Some(index)))?;
    }
    builder.end_group().map_err(|e| failed(e, plan.steps.len().checked_sub(1)))?;
    builder.end_segment();
    let left = lifetimes.end(plan).map_err(|(step, problem)| {
        let place = place(plan, rank, None, step);
        ExecError::Plan { place, problem }
    })?;
    let (never, absent) = builder.absent();
    let Lowering { graph, kernels, pairs, epilogues, .. } = builder.lowering;
    let beside = epilogues.at.values().map(|e| (e.product, e.others().collect())).collect();
    let (pieces, groups) = (builder.pieces, builder.groups);
    let tables = graph.tables;
    Ok(Built { pieces, kernels, tables, pairs, left, groups, beside, never, absent })
}

/// Steps that products would do beside their own if there were no groups.
fn beside_products<B: Backend>(
    (backend, lowering): (&B, &Lowering<'_, B::Kernel>),
    plan: &Plan,
    residuals: &Residuals,
) -> BTreeSet<usize> {
    let (rows, inlined) = (RowGroups::default(), InlinedValues::default());
    let order = StepOrder::of(plan, &rows, &inlined, backend.gathers());
    let taken = (residuals, &lowering.masks, &rows, &inlined);
    let all = Epilogues::of(plan, taken, &order, |e| B::computes(lowering, e));
    all.moved.keys().copied().collect()
}

struct ProgramBuilder<'a, B: Backend> {
    lowering: Lowering<'a, B::Kernel>,
    pieces: Vec<Piece>,
    /// The segment that is being built: operations, each with its step.
    operations: Vec<(OperationIr, usize)>,
    /// Loops whose bodies are being built, outermost first.
    open: Vec<OpenRepeat>,
    /// By id of the collective, the piece that starts it and what is left to do.
    in_flight: BTreeMap<u32, (usize, Arrival)>,
    residuals: Residuals,
    /// Steps that will be one operation, each with what it ends.
    waiting: Vec<(usize, Vec<TensorSlot>)>,
    waiting_for: GroupKind,
    /// What ends at a step though the Plan ends it before.
    postponed: BTreeMap<usize, Vec<TensorSlot>>,
    /// Steps that are done after an epilogue, each with what it ends.
    delayed: Vec<(usize, Vec<TensorSlot>)>,
    /// See [`Built::groups`].
    groups: BTreeMap<usize, Vec<usize>>,
    order: StepOrder,
}

impl<B: Backend> ProgramBuilder<'_, B> {
    fn step(&mut self, index: usize, step: &Step) -> Result<(), LoweringError> {
        let mut ending = vec![];
        let steps = &self.lowering.context.plan.steps;
        let inlined = &self.lowering.inlined;
        let epilogues = &self.lowering.epilogues;
        let moved = epilogues.moved.get(&index).copied();
        let rows = &self.lowering.rows;
        let skipped = [&self.lowering.masks.skipped, &inlined.skipped];
        let fused = rows.members.get(&index).is_some_and(|last| *last != index);
        let idle = moved.is_some() || fused || skipped.iter().any(|s| s.contains(&index));
        let own = epilogues.at.contains_key(&index) || rows.at.contains_key(&index);
        let apart = idle || own || self.residuals.steps.contains_key(&index);
        let group = if apart { None } else { B::groups(&self.lowering, step) };
        if !(group.is_some_and(|kind| self.takes(kind, step)) || idle) {
            self.end_group()?;
        }
        if self.operations.last().is_some_and(|(_, before)| steps[*before].lag != step.lag) {
            self.end_segment();
        }
        // What crosses the boundary of a loop is handed over by the loop itself.
        let crosses = matches!(step.prim, Prim::Repeat { .. } | Prim::EndRepeat);
        let never = |b: &BufId| self.residuals.buffers.contains(b) || self.is_never_made(b);
        let made = |b: &BufId| !never(b) && (!crosses || !step.reads_buf(*b));
        for buf in ended(step).filter(made).collect::<Vec<_>>() {
            let slots = self.lowering.slots(buf)?;
            match self.order.end_of(buf, index) {
                at if at == index => ending.extend(slots),
                later => self.postponed.entry(later).or_default().extend(slots),
            }
        }
        ending.extend(self.postponed.remove(&index).unwrap_or_default());
        match moved {
            Some(to) if self.lowering.epilogues.is_after(index, to) => {
                self.delayed.push((index, std::mem::take(&mut ending)));
            }
            Some(to) if self.order.place[to] > self.order.place[index] => {
                self.postponed.entry(to).or_default().append(&mut ending)
            }
            _ => {}
        }
        if let Some(kind) = group {
            self.waiting_for = kind;
            self.waiting.push((index, ending));
            return Ok(());
        }
        if idle {
            if !ending.is_empty() {
                self.end_group()?;
                self.finish_step(index, &ending);
            }
            return Ok(());
        }
        if let Some(how) = self.residuals.steps.get(&index).copied() {
            return self.residual(index, step, how, ending);
        }
        if self.lowering.epilogues.at.contains_key(&index) {
            return self.epilogue(index, ending);
        }
        if let Some(group) = self.lowering.rows.at.get(&index).cloned() {
            B::lower_rows(&mut self.lowering, &group)?;
            if group.steps.len() > 1 {
                self.groups.insert(index, group.steps);
            }
            self.finish_step(index, &ending);
            return Ok(());
        }
        match &step.prim {
            Prim::Repeat { dim, reverse } => self.begin_loop(index, step, (*dim, *reverse)),
            Prim::EndRepeat => self.end_loop(index, step, ending),
            Prim::Collective(collective) => self.collective(index, step, collective, ending),
            Prim::Wait => self.wait(index, step, ending),
            _ => {
                B::lower(&mut self.lowering, step)?;
                self.finish_step(index, &ending);
                Ok(())
            }
        }
    }

    fn is_never_made(&self, buf: &BufId) -> bool {
        let Lowering { masks, inlined, epilogues, rows, .. } = &self.lowering;
        masks.drawn_by.contains_key(buf)
            || inlined.values.contains_key(buf)
            || epilogues.never.contains(buf)
            || rows.never.contains(buf)
    }

    /// Buffers that are never made, and of those the ones in whose place no other is, with the stacks in which a loop would keep masks that are
    /// drawn again.
    fn absent(&self) -> (BTreeSet<BufId>, BTreeSet<BufId>) {
        let plan = self.lowering.context.plan;
        let all = (0..plan.buffers.len()).map(|b| BufId(b as u32));
        let never: BTreeSet<BufId> = all.filter(|b| self.is_never_made(b)).collect();
        let Lowering { masks, inlined, rows, .. } = &self.lowering;
        // What would be in the place of something else leaves that there until its group has run.
        let shares: BTreeSet<BufId> =
            plan.steps.iter().flat_map(|s| &s.aliases).flat_map(|(from, to)| [*from, *to]).collect();
        let alone = rows.never.iter().filter(|b| !shares.contains(b));
        let computed = masks.drawn_by.keys().chain(inlined.values.keys()).chain(alone);
        let mut absent: BTreeSet<BufId> = computed.copied().collect();
        for at in &self.lowering.masks.skipped {
            let step = &plan.steps[*at];
            if let Some(ResidualStep::Store { stack, .. }) = self.residuals.steps.get(at) {
                absent.insert(*stack);
                absent.extend(step.writes.iter().chain(step.reads.first()).map(|o| o.buf));
            }
            if let Some(ResidualStep::Load { .. }) = self.residuals.steps.get(at) {
                absent.extend(step.reads.iter().map(|o| o.buf));
            }
        }
        (never, absent)
    }

    /// A product with what is done beside it, which is a step of its own in the Plan.
    fn epilogue(&mut self, index: usize, mut ending: Vec<TensorSlot>) -> Result<(), LoweringError> {
        let Some(epilogue) = self.lowering.epilogues.at.get(&index).cloned() else { return Ok(()) };
        let plan = self.lowering.context.plan;
        for before in &epilogue.before {
            let step = &plan.steps[*before];
            match self.residuals.steps.get(before).copied() {
                Some(how) => self.residual(*before, step, how, vec![])?,
                None => {
                    B::lower(&mut self.lowering, step)?;
                    self.finish_step(*before, &[]);
                }
            }
        }
        B::lower_epilogue(&mut self.lowering, &epilogue)?;
        if let EpilogueKind::ReluGrad { of, .. } = epilogue.does {
            ending.extend(self.lowering.bits.get(&of).map(|(slot, _)| *slot));
        }
        self.finish_step(index, &ending);
        let delayed = std::mem::take(&mut self.delayed).into_iter();
        let (now, later) = delayed.partition(|(step, _)| epilogue.after.contains(step));
        self.delayed = later;
        now.into_iter().try_for_each(|(step, ending): (usize, Vec<TensorSlot>)| {
            B::lower(&mut self.lowering, &plan.steps[step])?;
            self.finish_step(step, &ending);
            Ok(())
        })
    }

    /// Whether a step can be one operation with those that wait for it.
    fn takes(&self, kind: GroupKind, step: &Step) -> bool {
        let steps = &self.lowering.context.plan.steps;
        let waiting = || self.waiting.iter().map(|(index, _)| &steps[*index]);
        let inlined = |o: &Operand| self.lowering.inlined.values.get(&o.buf).map_or(1, |i| i.reads.len());
        let tensors = |s: &Step| s.reads.iter().map(inlined).sum::<usize>() + s.writes.len();
        let (most, most_tensors) = MOST_IN_GROUP;
        (self.waiting.is_empty() || self.waiting_for == kind)
            && self.waiting.len() < most
            && waiting().map(tensors).sum::<usize>() + tensors(step) <= most_tensors
            && waiting().all(|w| w.lag == step.lag && !w.writes.iter().any(|o| self.reads(step, o.buf)))
    }

    /// Whether the operation of a step reads a buffer: itself, or for a value that it computes.
    fn reads(&self, step: &Step, buf: BufId) -> bool {
        let inlined = step.reads.iter().filter_map(|o| self.lowering.inlined.values.get(&o.buf));
        step.reads_buf(buf) || inlined.flat_map(|i| &i.reads).any(|o| o.buf == buf)
    }

    /// Adds the operation of the steps that wait for it.
    fn end_group(&mut self) -> Result<(), LoweringError> {
        let waiting = std::mem::take(&mut self.waiting);
        let Some((last, _)) = waiting.last() else { return Ok(()) };
        let last = *last;
        let plan = self.lowering.context.plan;
        let steps: Vec<&Step> = waiting.iter().map(|(index, _)| &plan.steps[*index]).collect();
        B::lower_group(&mut self.lowering, self.waiting_for, &steps)?;
        if waiting.len() > 1 {
            self.groups.insert(last, waiting.iter().map(|w| w.0).collect());
        }
        let ending: Vec<TensorSlot> = waiting.into_iter().flat_map(|w| w.1).collect();
        self.finish_step(last, &ending);
        Ok(())
    }

    /// A step of a stack that is kept position by position.
    fn residual(
        &mut self,
        index: usize,
        step: &Step,
        how: ResidualStep,
        mut ending: Vec<TensorSlot>,
    ) -> Result<(), LoweringError> {
        let operand = match how {
            ResidualStep::Blank => None,
            ResidualStep::Store { .. } => step.reads.get(1),
            ResidualStep::Load { .. } => step.writes.first(),
        };
        let local = operand.map(|o| self.lowering.context.local(o)).transpose()?;
        let local = local.filter(|l| self.lowering.exists(l.elements()));
        if let Some(local) = local {
            let slot = TensorSlot::Buffer(local.buf);
            let tensor = |status| {
                slot.tensor(&stored_shape(local.dtype, &local.shape), stored_as(local.dtype), status)
            };
            let operation = match how {
                ResidualStep::Blank => None,
                ResidualStep::Store { stack, dim } => {
                    let ends = ending.iter().position(|s| *s == slot);
                    ending.retain(|s| *s != slot);
                    let status =
                        if ends.is_some() { TensorStatus::ReadWrite } else { TensorStatus::ReadOnly };
                    Some(store(stack, dim, tensor(status)))
                }
                ResidualStep::Load { stack, dim, last } => {
                    Some(load(stack, dim, last, tensor(TensorStatus::NotInit)))
                }
            };
            self.operations.extend(operation.map(|o| (o, index)));
        }
        self.finish_step(index, &ending);
        Ok(())
    }

    fn begin_loop(
        &mut self,
        index: usize,
        step: &Step,
        (dim, reverse): (Dim, bool),
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
        let begin = begin.collect();
        let before = std::mem::take(&mut self.pieces);
        self.open.push(OpenRepeat { step: index, dim, reverse, begin, before });
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
        let OpenRepeat { step: begun, dim, reverse, begin, before } = open;
        let plan = self.lowering.context.plan;
        let lags = plan.lags(&StepLoop { begin: begun, end: index, dim, reverse });
        let lag_of = |found: &dyn Fn(&Step) -> bool| {
            lags.iter().find(|(s, _)| found(&plan.steps[*s])).map(|(_, lag)| usize::from(*lag))
        };
        let mut carries = Vec::with_capacity(step.reads.len());
        for ([(start, ends), (current, unread)], (next, last)) in begin.into_iter().zip(across) {
            let (next, last) = (next.buf, last.buf);
            let lag = lag_of(&|s| s.writes_buf(next)).unwrap_or(0);
            // What is handed over from turn to turn has been read when the loop ends.
            if lag_of(&|s| s.reads_buf(current)).is_some_and(|read| read != lag) {
                let ended = self.lowering.slots(last)?;
                ending.retain(|s| !ended.contains(s));
            }
            if !self.residuals.buffers.contains(&current) {
                carries.push(Carried { start, ends, current, unread, next, last, lag });
            }
        }
        let body = std::mem::replace(&mut self.pieces, before);
        let lags: Vec<usize> = body.iter().map(|piece| usize::from(plan.steps[piece.step()].lag)).collect();
        let over = (dim, plan.dims.size(dim), reverse);
        let piece = RepeatPiece::new(begun, over, carries, (body, &lags));
        self.pieces.push(Piece::Repeat(Box::new(piece)));
        self.finish_step(index, &ending);
        Ok(())
    }

    /// Adds the operations of a step that has been lowered.
    fn finish_step(&mut self, index: usize, ending: &[TensorSlot]) {
        let operations = self.lowering.graph.finish(ending);
        self.operations.extend(operations.into_iter().map(|o| (o, index)));
    }

    fn end_segment(&mut self) {
        if !self.operations.is_empty() {
            self.pieces.push(Piece::Segment(Segment::new(std::mem::take(&mut self.operations))));
        }
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
        let (calls, arrival) = pack::<B>(&mut self.lowering, &prepared)?;
        // What the calls take themselves is not dropped before; what the unpacking reads, or nobody at all, ends with that.
        let taken = |s: &TensorSlot| calls.iter().flat_map(|c| &c.send).any(|p| p.ends && p.slot == Some(*s));
        ending.retain(|s| !taken(s));
        let mut reads = arrival.reads.clone();
        for result in &step.writes {
            reads.extend(self.lowering.slots(result.buf)?);
        }
        let (later, ending): (Vec<TensorSlot>, Vec<TensorSlot>) =
            ending.into_iter().partition(|s| reads.contains(s));
        let pack = Segment::of_step(self.lowering.graph.finish(&ending), index);
        let unpack = match step.async_id {
            None => self.unpack(index, &arrival, later),
            Some(_) if !later.is_empty() => {
                let problem = "what is needed at the end of a collective ends at its start".to_string();
                return Err(problem.into());
            }
            Some(id) => {
                self.in_flight.insert(id, (self.pieces.len(), arrival));
                Segment::of_step(vec![], index)
            }
        };
        let async_id = step.async_id;
        let piece = CollectivePiece { prepared, step: index, async_id, pack, calls, unpack };
        self.pieces.push(Piece::Collective(Box::new(piece)));
        Ok(())
    }

    fn wait(&mut self, index: usize, step: &Step, ending: Vec<TensorSlot>) -> Result<(), LoweringError> {
        let Some((start, arrival)) = step.async_id.and_then(|id| self.in_flight.remove(&id)) else {
            return Err(LoweringError::Plan("nothing is in flight that it could wait for".into()));
        };
        self.end_segment();
        let unpack = self.unpack(index, &arrival, ending);
        self.pieces.push(Piece::Wait { start, step: index, unpack });
        Ok(())
    }

    fn unpack(&mut self, step: usize, arrival: &Arrival, mut ending: Vec<TensorSlot>) -> Segment {
        unpack::<B>(&mut self.lowering, arrival);
        ending.extend(&arrival.ending);
        Segment::of_step(self.lowering.graph.finish(&ending), step)
    }
}
