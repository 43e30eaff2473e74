//! A simulated run of a program, whose tensors have lifetimes instead of values.

use super::packing::ALIGNMENT;
use super::{result_bytes, views};
use crate::iteration::Iteration;
use crate::kernels::Kernel;
use crate::kernels::call::SpacedTensors;
use crate::kernels::result::{GivenResult, ResultMemory};
use crate::launch::{CollectiveLaunch, DevicePlan, Launch, LaunchKind, LinkEnd, LoopLaunch, most_sent};
use crate::slot::{LaunchId, TensorSlot};
use crate::turns::Turn;
use burn_ir::{TensorId, TensorIr, TensorStatus};
use meshwright_plan::{BufId, Plan};
use meshwright_sorted::{SortedMap, SortedSet};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

/// Memory that was asked for.
pub(super) enum AskedMemory {
    /// A new result.
    New { number: usize },
    /// A result that overwrites another one, or a tensor that no kernel wrote.
    Over { number: Option<usize> },
}

/// Size and lifetime of a result.
#[derive(Clone, Copy)]
pub(super) struct Lifetime {
    pub bytes: u64,
    pub from: u32,
    /// The last time at which it is live; none if it outlives the run.
    pub to: Option<u32>,
    /// When it was read last.
    pub read: u32,
    /// The stack that the result is part of, with its offset there in bytes, if it can be computed in place.
    pub part_of: Option<(usize, u64)>,
    /// Stack and offset of the slice from which the result is computed element by element, if its kernel reads nothing else from
    /// that stack.
    pub of_slice: Option<(usize, u64)>,
}

/// A request for memory in a run.
pub(super) struct Walked {
    /// In order, each with its launch.
    pub results: Vec<(LaunchId, AskedMemory)>,
    /// Results, by number.
    pub made: Vec<Lifetime>,
    /// The step of each moment.
    pub steps: Vec<usize>,
    /// Launches that move a value into a stack.
    pub moves: SortedSet<LaunchId>,
    /// Results, by number, that are to lie at equal distances, each with the launch for which they do; none where a tensor is no
    /// whole result.
    pub spaced: Vec<(LaunchId, Option<Vec<usize>>)>,
}

pub(super) fn walk(plan: &Plan, device: &DevicePlan) -> Walked {
    let updates = |launch: &&Launch| matches!(launch.kind, LaunchKind::Kernel(Kernel::IterationUpdate(_)));
    let mut walk = ArenaWalk {
        plan,
        device,
        placed: device.launches.iter().flat_map(placed).collect(),
        left: device.left.iter().filter_map(|buf| device.slots.id(TensorSlot::Buffer(*buf))).collect(),
        put: device.launches.iter().filter(updates).filter_map(|l| l.reads.get(1)).map(|t| t.id).collect(),
        held: SortedMap::new(),
        in_flight: SortedMap::new(),
        sent: VecDeque::new(),
        clock: Rc::default(),
        steps: vec![0],
        results: vec![],
        at: LaunchId(0),
        moves: SortedSet::new(),
        spaced: vec![],
    };
    walk.launches(&device.body, Iteration::default());
    walk.delivered(0);
    walk.tick(walk.steps.last().copied().unwrap_or(0));
    let ArenaWalk { held, in_flight, steps, results, clock, moves, spaced, .. } = walk;
    // Tensors that are still live outlive the run.
    let end = clock.moment.get();
    drop((held, in_flight));
    let mut made = clock.made.take();
    made.iter_mut().for_each(|m| m.to = m.to.filter(|to| *to < end));
    Walked { results, made, steps, moves, spaced }
}

/// The operands of a launch that are to lie at equal distances.
fn placed(launch: &Launch) -> Vec<TensorId> {
    let LaunchKind::Kernel(kernel) = &launch.kind else { return vec![] };
    let operands = |of: SpacedTensors| match of {
        SpacedTensors::Reads(range) => launch.reads[range].iter().map(|t| t.id).collect(),
        SpacedTensors::Writes(_) => vec![],
    };
    kernel.spaced().into_iter().flat_map(operands).collect()
}

/// Counts operations, and collects results.
#[derive(Default)]
struct Clock {
    moment: Cell<u32>,
    made: RefCell<Vec<Lifetime>>,
}

/// The result of a kernel, while it is live.
struct MadeResult {
    number: usize,
    clock: Rc<Clock>,
}

impl Drop for MadeResult {
    fn drop(&mut self) {
        self.clock.made.borrow_mut()[self.number].to = Some(self.clock.moment.get());
    }
}

/// A tensor, and the results whose memory it uses: as a part, or in another form.
#[derive(Clone, Default)]
struct HeldTensor {
    of: Vec<Rc<MadeResult>>,
    /// Whether it is the whole result, row by row.
    whole: bool,
    /// Offset in bytes, for a slice of a stack.
    slice: Option<u64>,
}

impl HeldTensor {
    /// Number of the result that it is.
    fn result(&self) -> Option<usize> {
        match &self.of[..] {
            [one] if self.whole => Some(one.number),
            _ => None,
        }
    }

    /// Number of the result, if this is its only holder.
    fn alone(&self) -> Option<usize> {
        match &self.of[..] {
            [one] if self.whole && Rc::strong_count(one) == 1 => Some(one.number),
            _ => None,
        }
    }
}

/// Tensors that an async collective holds until its wait.
#[derive(Default)]
struct InFlight {
    sent: Vec<HeldTensor>,
    received: Vec<(TensorId, HeldTensor)>,
}

struct ArenaWalk<'a> {
    plan: &'a Plan,
    device: &'a DevicePlan,
    held: SortedMap<TensorId, HeldTensor>,
    /// Sent and received tensors, by collective; of messages that are received ahead the oldest first.
    in_flight: SortedMap<u32, VecDeque<InFlight>>,
    /// Sent tensors of messages that may be on their way, the oldest first.
    sent: VecDeque<Vec<HeldTensor>>,
    clock: Rc<Clock>,
    steps: Vec<usize>,
    results: Vec<(LaunchId, AskedMemory)>,
    /// The launch that runs.
    at: LaunchId,
    /// Launches that move a value into a stack.
    moves: SortedSet<LaunchId>,
    /// See [`Walked`].
    spaced: Vec<(LaunchId, Option<Vec<usize>>)>,
    /// Tensors that outlive the run.
    left: SortedSet<TensorId>,
    /// Tensors that are put into stacks.
    put: SortedSet<TensorId>,
    /// Operands that are to lie at equal distances.
    placed: SortedSet<TensorId>,
}

impl ArenaWalk<'_> {
    fn launches(&mut self, ids: &[LaunchId], around: Iteration) {
        ids.iter().for_each(|id| self.launch(*id, around));
    }

    fn tick(&mut self, step: usize) {
        self.clock.moment.set(self.clock.moment.get() + 1);
        self.steps.push(step);
    }

    fn launch(&mut self, id: LaunchId, around: Iteration) {
        let launch = &self.device.launches[id];
        self.at = id;
        match &launch.kind {
            LaunchKind::Kernel(kernel) => {
                self.tick(launch.step);
                self.kernel(kernel, launch, around);
            }
            LaunchKind::Burn(burn) => {
                for (operation, step) in burn.graph.operations.iter().zip(&burn.steps) {
                    self.tick(*step);
                    self.other(operation.inputs(), operation.outputs(), &views::result_memory(operation));
                }
            }
            LaunchKind::Free => {}
            LaunchKind::Collective(collective) => self.collective(collective, around),
            LaunchKind::Wait { start, unpack } => {
                let LaunchKind::Collective(collective) = &self.device.launches[*start].kind else { return };
                let in_flight = collective.async_id.and_then(|id| self.in_flight.get_mut(&id)?.pop_front());
                self.received(in_flight.unwrap_or_default(), (unpack, around));
            }
            LaunchKind::Loop(of) => self.iterate(of, around),
        }
        for id in &launch.frees {
            self.tick(launch.step);
            let held = self.take(*id, true);
            self.note_read(&held);
        }
    }

    fn iterate(&mut self, of: &LoopLaunch, around: Iteration) {
        for turn in &of.turns {
            match *turn {
                Turn::Carry { carry, made } => {
                    let c = &of.carries[carry];
                    let (from, ends) = if made { (c.next, true) } else { (c.start, c.ends) };
                    self.carry(from, ends, (!c.unread).then_some(c.current));
                }
                Turn::Run { launch, position } => {
                    let at =
                        around.within(self.plan, (of.dim, of.of_one_stage), position, of.positions.start);
                    self.launch(of.body[launch], at);
                }
                Turn::Skip { carry } => {
                    let c = &of.carries[carry];
                    self.carry(c.start, c.ends, Some(c.last));
                }
                Turn::End { carry, made } => {
                    let c = &of.carries[carry];
                    self.carry(if made { c.next } else { c.current }, true, Some(c.last));
                }
            }
        }
    }

    /// Moves the tensors of a buffer to another buffer, or ends them.
    fn carry(&mut self, from: BufId, ends: bool, to: Option<BufId>) {
        let mut to = to.into_iter().flat_map(|to| self.device.slots.of_buffer(to));
        for from in self.device.slots.of_buffer(from) {
            let held = self.take(from, ends);
            if let Some(to) = to.next() {
                self.held.insert(to, held);
            }
        }
    }

    /// The tensor of a slot; empty for a tensor that no kernel wrote.
    fn take(&mut self, id: TensorId, ends: bool) -> HeldTensor {
        let held = if ends { self.held.remove(&id) } else { self.held.get(&id).cloned() };
        held.unwrap_or_default()
    }

    fn operand(&mut self, tensor: &TensorIr) -> HeldTensor {
        self.take(tensor.id, tensor.status == TensorStatus::ReadWrite)
    }

    /// The tensor of an operand.
    fn read(&mut self, tensor: &TensorIr) -> HeldTensor {
        let held = self.operand(tensor);
        self.note_read(&held);
        held
    }

    fn note_read(&self, held: &HeldTensor) {
        let mut made = self.clock.made.borrow_mut();
        held.of.iter().for_each(|of| made[of.number].read = self.clock.moment.get());
    }

    fn kernel(&mut self, kernel: &Kernel, launch: &Launch, at: Iteration) {
        match kernel {
            Kernel::Store(residual) => {
                let held = launch.reads.iter().map(|value| self.operand(value)).next_back();
                self.held.extend(residual.tensor(at).ok().flatten().zip(held));
            }
            Kernel::Load { residual, last } => {
                let Ok(Some(value)) = residual.tensor(at) else { return };
                let held = self.take(value, *last);
                launch.writes.iter().for_each(|out| drop(self.held.insert(out.id, held.clone())));
            }
            Kernel::IterationSlice(dim) => self.slice(launch, at.position(*dim).ok()),
            kernel => match kernel.result_memory(&launch.writes) {
                ResultMemory::Given(results) => self.make((launch, kernel), &results),
                ResultMemory::Update(dim) => self.update(launch, at.position(dim).ok()),
                memory => self.other(launch.reads.iter(), launch.writes.iter(), &memory),
            },
        }
    }

    /// An operation whose results have memory of their own, or that of operands.
    fn other<'t>(
        &mut self,
        reads: impl Iterator<Item = &'t TensorIr>,
        writes: impl Iterator<Item = &'t TensorIr>,
        memory: &ResultMemory,
    ) {
        let mut held: Vec<HeldTensor> = reads.map(|t| self.read(t)).collect();
        let result = match (memory, &mut held[..]) {
            (ResultMemory::Own, _) => HeldTensor::default(),
            (ResultMemory::Operand, [one]) => std::mem::take(one),
            _ => HeldTensor { of: held.drain(..).flat_map(|h| h.of).collect(), ..HeldTensor::default() },
        };
        writes.for_each(|out| drop(self.held.insert(out.id, result.clone())));
    }

    /// A kernel, with the memory of each of its results.
    fn make(&mut self, (op, kernel): (&Launch, &Kernel), results: &[GivenResult]) {
        assert_eq!(op.writes.len(), results.len(), "results of `{}`", op.kind.name());
        let mut read: Vec<HeldTensor> = op.reads.iter().map(|t| self.read(t)).collect();
        for (out, GivenResult { over, gaps, alike }) in op.writes.iter().zip(results) {
            let bytes = result_bytes(&out.shape.to_vec(), out.dtype.size(), *gaps);
            let ends = |i: &&usize| op.reads[**i].status == TensorStatus::ReadWrite;
            // A result that must lie at equal distances from others takes no donated memory.
            let placed = self.placed.contains(&out.id);
            let put = self.put.contains(&out.id) && !placed;
            let of_slice = over.iter().filter(ends).find_map(|i| slice_of(&read, *i)).filter(|_| put);
            let fits = |number: usize| !alike || self.clock.made.borrow()[number].bytes == bytes;
            let alone = |i: &&usize| read[**i].alone().is_some_and(fits);
            // A tensor that outlives the run takes no memory from the arena.
            let own = placed || self.left.contains(&out.id);
            let found = over.iter().filter(ends).find(alone).filter(|_| !own);
            let held = match found.filter(|_| of_slice.is_none()) {
                Some(i) => std::mem::take(&mut read[*i]),
                None => self.new_one(bytes, of_slice),
            };
            let number = held.of.first().map_or(0, |made| made.number);
            self.results.push((self.at, AskedMemory::New { number }));
            self.held.insert(out.id, held);
        }
        for of in kernel.spaced() {
            let numbers = match of {
                SpacedTensors::Reads(range) => read[range].iter().map(HeldTensor::result).collect(),
                SpacedTensors::Writes(range) => {
                    op.writes[range].iter().map(|out| self.held.get(&out.id)?.result()).collect()
                }
            };
            self.spaced.push((self.at, numbers));
        }
    }

    fn new_one(&self, bytes: u64, of_slice: Option<(usize, u64)>) -> HeldTensor {
        let (moment, mut made) = (self.clock.moment.get(), self.clock.made.borrow_mut());
        let number = made.len();
        made.push(Lifetime { bytes, from: moment, to: None, read: moment, part_of: None, of_slice });
        let of = vec![Rc::new(MadeResult { number, clock: self.clock.clone() })];
        HeldTensor { of, whole: true, slice: None }
    }

    /// A slice at one position of a stack: a view.
    fn slice(&mut self, op: &Launch, position: Option<usize>) {
        let ([all], [out]) = (&op.reads[..], &op.writes[..]) else { return };
        let held = self.read(all);
        let bytes = (out.shape.num_elements() * out.dtype.size()) as u64;
        let slice = position.filter(|_| held.whole).map(|position| position as u64 * bytes);
        self.held.insert(out.id, HeldTensor { of: held.of, whole: false, slice });
    }

    /// Stores a value into the stack of a loop. If nothing has read the stack since the value was computed, but for the slice
    /// that it was computed of, it can be computed in the stack.
    fn update(&mut self, op: &Launch, position: Option<usize>) {
        let ([all, value], [out]) = (&op.reads[..], &op.writes[..]) else { return };
        let bytes = (value.shape.num_elements() * value.dtype.size()) as u64;
        let (stack, held) = (self.operand(all), self.operand(value));
        let stays = stack.alone().filter(|_| all.status == TensorStatus::ReadWrite);
        let into = stays.zip(position).map(|(whole, position)| (whole, position as u64 * bytes));
        let alone = held.alone().filter(|_| value.status == TensorStatus::ReadWrite);
        let mut moves = true;
        if let (Some((whole, at)), Some(part)) = (into, alone) {
            let mut made = self.clock.made.borrow_mut();
            let fits = at.is_multiple_of(PART_BYTES) && made[part].bytes == bytes;
            let (read, from) = (made[whole].read, made[part].from);
            let of_itself = read == from && made[part].of_slice == Some((whole, at));
            if fits && whole != part && (read < from || of_itself) {
                made[part].part_of = Some((whole, at));
                moves = false;
            }
        }
        if moves {
            self.moves.insert(self.at);
        }
        self.note_read(&held);
        self.results.push((self.at, AskedMemory::Over { number: stays }));
        let result = if stays.is_some() { stack } else { HeldTensor::default() };
        self.held.insert(out.id, result);
    }

    fn collective(&mut self, piece: &CollectiveLaunch, at: Iteration) {
        let id = self.at;
        self.launches(&piece.pack, at);
        self.at = id;
        let mut in_flight = InFlight::default();
        for call in &piece.calls {
            for (sent, received) in call.send.iter().zip(&call.receive) {
                let held = sent.tensor.map(|id| self.take(id, sent.ends)).unwrap_or_default();
                self.note_read(&held);
                let Some(into) = received.tensor else {
                    in_flight.sent.push(held);
                    continue;
                };
                let over = call.in_place() && sent.ends;
                let result = match (held.alone().filter(|_| over), &held.of[..]) {
                    (Some(number), _) => {
                        self.results.push((self.at, AskedMemory::Over { number: Some(number) }));
                        held
                    }
                    // Whether a tensor with memory of its own may be overwritten.
                    (None, []) if over => {
                        self.results.push((self.at, AskedMemory::Over { number: None }));
                        HeldTensor::default()
                    }
                    _ => {
                        in_flight.sent.push(held);
                        let bytes = (received.elements() * received.dtype.bytes()) as u64;
                        let made = self.new_one(bytes, None);
                        self.results.push((self.at, AskedMemory::New { number: made.of[0].number }));
                        made
                    }
                };
                in_flight.received.push((into, result));
            }
        }
        if piece.link == Some(LinkEnd::Send) {
            self.sent.push_back(in_flight.sent);
            return self.delivered(most_sent(self.plan));
        }
        match piece.async_id {
            Some(id) => self.in_flight.entry(id).or_default().push_back(in_flight),
            None => self.received(in_flight, (&piece.unpack, at)),
        }
    }

    /// Ends the lifetimes of sent values until at most `most` messages are in flight.
    fn delivered(&mut self, most: usize) {
        while self.sent.len() > most {
            self.sent.pop_front().into_iter().flatten().for_each(|held| self.note_read(&held));
        }
    }

    fn received(&mut self, in_flight: InFlight, (unpack, at): (&[LaunchId], Iteration)) {
        let InFlight { sent, received } = in_flight;
        // The transport has read and written them until now.
        sent.iter().chain(received.iter().map(|r| &r.1)).for_each(|held| self.note_read(held));
        drop(sent);
        self.held.extend(received);
        self.launches(unpack, at);
    }
}

/// The stack and the offset of a slice among operands, if no other operand lies in that stack.
fn slice_of(read: &[HeldTensor], at: usize) -> Option<(usize, u64)> {
    let [stack] = &read[at].of[..] else { return None };
    let others = read.iter().enumerate().filter(|(k, _)| *k != at).flat_map(|(_, held)| &held.of);
    let apart = others.into_iter().all(|other| other.number != stack.number);
    read[at].slice.filter(|_| apart).map(|offset| (stack.number, offset))
}

/// Alignment of parts of a stack, in bytes: the largest for which cuBLASLt has kernels of its own.
const PART_BYTES: u64 = 256;
const _: () = assert!(ALIGNMENT.is_multiple_of(PART_BYTES));
