//! A program as it runs, with tensors that only say how long somebody holds them.

use super::packing::ALIGNMENT;
use super::{GivenResult, ResultMemory, result_bytes, views};
use crate::backend::{Backend, Iteration};
use crate::engine::graph::{Segment, TensorSlot};
use crate::engine::pieces::{CollectivePiece, Piece, RepeatPiece};
use crate::engine::residuals::{LOAD, STORE, described};
use crate::engine::turns::Turn;
use burn_ir::{CustomOpIr, OperationIr, TensorId, TensorIr, TensorStatus};
use meshwright_plan::{BufId, Plan};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Memory that was asked for.
pub(super) enum AskedMemory {
    /// Of what is made there.
    New { number: usize },
    /// Of what is written over something that was made, or of what no kernel has made.
    Over { number: Option<usize> },
}

/// What is known of what was made.
#[derive(Clone, Copy)]
pub(super) struct Lifetime {
    pub(super) bytes: u64,
    pub(super) from: u32,
    /// The last moment at which somebody holds it; none where it outlives the run.
    pub(super) to: Option<u32>,
    /// When it was read last.
    pub(super) read: u32,
    /// What it is put into in the end, and from which byte on, where it can be made there.
    pub(super) part_of: Option<(usize, u64)>,
}

/// What a run asks for.
pub(super) struct Walked {
    /// In order.
    pub(super) results: Vec<AskedMemory>,
    /// What is made, by number.
    pub(super) made: Vec<Lifetime>,
    /// The step of each moment.
    pub(super) steps: Vec<usize>,
}

pub(super) fn walk<B: Backend>(
    backend: &B,
    plan: &Plan,
    (pieces, left): (&[Piece], &BTreeSet<BufId>),
    kernels: &[B::Kernel],
) -> Walked {
    let mut walk = ArenaWalk {
        backend,
        plan,
        kernels,
        left: left.iter().map(|buf| TensorSlot::Buffer(*buf).id()).collect(),
        held: BTreeMap::new(),
        in_flight: BTreeMap::new(),
        clock: Rc::default(),
        steps: vec![0],
        results: vec![],
    };
    walk.pieces(pieces, Iteration::default());
    let ArenaWalk { held, in_flight, steps, results, clock, .. } = walk;
    // What is still held outlives the run.
    let end = clock.moment.get();
    drop((held, in_flight));
    let mut made = clock.made.take();
    made.iter_mut().for_each(|m| m.to = m.to.filter(|to| *to < end));
    Walked { results, made, steps }
}

/// Counts operations, and knows what was made.
#[derive(Default)]
struct Clock {
    moment: Cell<u32>,
    made: RefCell<Vec<Lifetime>>,
}

/// What a kernel has made, as long as somebody holds it.
struct MadeResult {
    number: usize,
    clock: Rc<Clock>,
}

impl Drop for MadeResult {
    fn drop(&mut self) {
        self.clock.made.borrow_mut()[self.number].to = Some(self.clock.moment.get());
    }
}

/// A tensor, by what it may be a part or another form of.
#[derive(Clone, Default)]
struct HeldTensor {
    of: Vec<Rc<MadeResult>>,
    /// Whether it is all of the one, row by row.
    whole: bool,
}

impl HeldTensor {
    /// What it is, where nobody else holds it.
    fn alone(&self) -> Option<usize> {
        match &self.of[..] {
            [one] if self.whole && Rc::strong_count(one) == 1 => Some(one.number),
            _ => None,
        }
    }
}

/// What a collective holds until it is waited for.
#[derive(Default)]
struct InFlight {
    sent: Vec<HeldTensor>,
    received: Vec<(TensorId, HeldTensor)>,
}

struct ArenaWalk<'a, B: Backend> {
    backend: &'a B,
    plan: &'a Plan,
    kernels: &'a [B::Kernel],
    held: BTreeMap<TensorId, HeldTensor>,
    /// By collective what is sent, and what is received.
    in_flight: BTreeMap<u32, InFlight>,
    clock: Rc<Clock>,
    steps: Vec<usize>,
    results: Vec<AskedMemory>,
    /// What is kept when the run has ended.
    left: BTreeSet<TensorId>,
}

impl<B: Backend> ArenaWalk<'_, B> {
    fn pieces(&mut self, pieces: &[Piece], around: Iteration) {
        pieces.iter().for_each(|piece| self.piece(piece, pieces, around));
        self.tick(self.steps.last().copied().unwrap_or(0));
    }

    fn tick(&mut self, step: usize) {
        self.clock.moment.set(self.clock.moment.get() + 1);
        self.steps.push(step);
    }

    fn piece(&mut self, piece: &Piece, pieces: &[Piece], around: Iteration) {
        match piece {
            Piece::Segment(segment) => self.segment(segment, around),
            Piece::Collective(collective) => self.collective(collective, around),
            Piece::Wait { start, unpack, .. } => {
                let Some(Piece::Collective(collective)) = pieces.get(*start) else { return };
                let in_flight = collective.async_id.and_then(|id| self.in_flight.remove(&id));
                self.received(in_flight.unwrap_or_default(), (unpack, around));
            }
            Piece::Repeat(repeat) => self.repeat(repeat, around),
        }
    }

    fn repeat(&mut self, repeat: &RepeatPiece, around: Iteration) {
        for turn in &repeat.turns {
            match *turn {
                Turn::Carry { carry, made } => {
                    let c = &repeat.carries[carry];
                    let (from, ends) = if made { (c.next, true) } else { (c.start, c.ends) };
                    self.carry(from, ends, (!c.unread).then_some(c.current));
                }
                Turn::Run { piece, position } => {
                    let at = around.within(self.plan, repeat.dim, position);
                    self.piece(&repeat.body[piece], &repeat.body, at);
                }
                Turn::End { carry, made } => {
                    let c = &repeat.carries[carry];
                    self.carry(if made { c.next } else { c.current }, true, Some(c.last));
                }
            }
        }
    }

    /// What is held as a buffer goes to another, or to nobody.
    fn carry(&mut self, from: BufId, ends: bool, to: Option<BufId>) {
        for slot in [TensorSlot::Buffer, TensorSlot::Indices] {
            let held = self.take(slot(from).id(), ends);
            if let Some(to) = to {
                self.held.insert(slot(to).id(), held);
            }
        }
    }

    /// What is held there; of what no kernel has made, nothing.
    fn take(&mut self, id: TensorId, ends: bool) -> HeldTensor {
        let held = if ends { self.held.remove(&id) } else { self.held.get(&id).cloned() };
        held.unwrap_or_default()
    }

    fn operand(&mut self, tensor: &TensorIr) -> HeldTensor {
        self.take(tensor.id, tensor.status == TensorStatus::ReadWrite)
    }

    /// The same of what is read.
    fn read(&mut self, tensor: &TensorIr) -> HeldTensor {
        let held = self.operand(tensor);
        self.note_read(&held);
        held
    }

    fn note_read(&self, held: &HeldTensor) {
        let mut made = self.clock.made.borrow_mut();
        held.of.iter().for_each(|of| made[of.number].read = self.clock.moment.get());
    }

    fn segment(&mut self, segment: &Segment, at: Iteration) {
        for (operation, step) in segment.graph.operations.iter().zip(&segment.steps) {
            self.tick(*step);
            self.operation(operation, at);
        }
    }

    fn operation(&mut self, operation: &OperationIr, at: Iteration) {
        let memory = match operation {
            OperationIr::Custom(op) if op.id == STORE || op.id == LOAD => return self.store_or_load(op, at),
            OperationIr::Custom(op) => self.backend.result_memory(self.kernels, op),
            of_burn => views::result_memory(of_burn),
        };
        match (operation, memory) {
            (OperationIr::Custom(op), ResultMemory::Given(results)) => self.make(op, &results),
            (OperationIr::Custom(op), ResultMemory::Update(dim)) => self.update(op, at.position(dim).ok()),
            (_, memory) => self.other(operation, &memory),
        }
    }

    fn store_or_load(&mut self, op: &CustomOpIr, at: Iteration) {
        let Some((stack, dim, last)) = described(op) else { return };
        let Ok(position) = at.position(dim) else { return };
        let slot = TensorSlot::Residual(stack, position).id();
        match (&op.inputs[..], &op.outputs[..]) {
            ([value], []) => {
                let held = self.operand(value);
                self.held.insert(slot, held);
            }
            (_, outs) => {
                let held = self.take(slot, last);
                outs.iter().for_each(|out| drop(self.held.insert(out.id, held.clone())));
            }
        }
    }

    /// An operation whose results have memory of their own, or that of operands.
    fn other(&mut self, operation: &OperationIr, memory: &ResultMemory) {
        let mut held: Vec<HeldTensor> = operation.inputs().map(|t| self.read(t)).collect();
        let result = match (memory, &mut held[..]) {
            (ResultMemory::Own, _) => HeldTensor::default(),
            (ResultMemory::Operand, [one]) => std::mem::take(one),
            _ => HeldTensor { of: held.drain(..).flat_map(|h| h.of).collect(), whole: false },
        };
        operation.outputs().for_each(|out| drop(self.held.insert(out.id, result.clone())));
    }

    /// A kernel, with what may be done with each of its results.
    fn make(&mut self, op: &CustomOpIr, results: &[GivenResult]) {
        assert_eq!(op.outputs.len(), results.len(), "results of `{}`", op.id);
        let mut read: Vec<HeldTensor> = op.inputs.iter().map(|t| self.read(t)).collect();
        for (out, GivenResult { over, gaps }) in op.outputs.iter().zip(results) {
            let ends =
                |i: &&usize| op.inputs[**i].status == TensorStatus::ReadWrite && read[**i].alone().is_some();
            // What outlives the run takes no memory from the arena.
            let over = over.iter().find(ends).filter(|_| !self.left.contains(&out.id));
            let held = match over {
                Some(i) => std::mem::take(&mut read[*i]),
                None => self.new_one(result_bytes(&out.shape.to_vec(), out.dtype.size(), *gaps)),
            };
            let number = held.of.first().map_or(0, |made| made.number);
            self.results.push(AskedMemory::New { number });
            self.held.insert(out.id, held);
        }
    }

    fn new_one(&self, bytes: u64) -> HeldTensor {
        let (moment, mut made) = (self.clock.moment.get(), self.clock.made.borrow_mut());
        let number = made.len();
        made.push(Lifetime { bytes, from: moment, to: None, read: moment, part_of: None });
        HeldTensor { of: vec![Rc::new(MadeResult { number, clock: self.clock.clone() })], whole: true }
    }

    /// A value is put into what a loop stacks. Where nobody has read the stack since the value was made, it can be made there.
    fn update(&mut self, op: &CustomOpIr, position: Option<usize>) {
        let ([all, value], [out]) = (&op.inputs[..], &op.outputs[..]) else { return };
        let bytes = (value.shape.num_elements() * value.dtype.size()) as u64;
        let (stack, held) = (self.operand(all), self.operand(value));
        let stays = stack.alone().filter(|_| all.status == TensorStatus::ReadWrite);
        let into = stays.zip(position).map(|(whole, position)| (whole, position as u64 * bytes));
        let alone = held.alone().filter(|_| value.status == TensorStatus::ReadWrite);
        if let (Some((whole, at)), Some(part)) = (into, alone) {
            let mut made = self.clock.made.borrow_mut();
            let fits = at.is_multiple_of(PART_BYTES) && made[part].bytes == bytes;
            if fits && whole != part && made[whole].read < made[part].from {
                made[part].part_of = Some((whole, at));
            }
        }
        self.note_read(&held);
        self.results.push(AskedMemory::Over { number: stays });
        let result = if stays.is_some() { stack } else { HeldTensor::default() };
        self.held.insert(out.id, result);
    }

    fn collective(&mut self, piece: &CollectivePiece, at: Iteration) {
        self.segment(&piece.pack, at);
        let mut in_flight = InFlight::default();
        for call in &piece.calls {
            for (sent, received) in call.send.iter().zip(&call.receive) {
                let held = sent.slot.map(|slot| self.take(slot.id(), sent.ends)).unwrap_or_default();
                self.note_read(&held);
                let Some(slot) = received.slot else {
                    in_flight.sent.push(held);
                    continue;
                };
                let over = call.in_place() && sent.ends;
                let result = match (held.alone().filter(|_| over), &held.of[..]) {
                    (Some(number), _) => {
                        self.results.push(AskedMemory::Over { number: Some(number) });
                        held
                    }
                    // What has memory of its own may be written over, or not.
                    (None, []) if over => {
                        self.results.push(AskedMemory::Over { number: None });
                        HeldTensor::default()
                    }
                    _ => {
                        in_flight.sent.push(held);
                        let bytes = (received.elements() * received.dtype.bytes()) as u64;
                        let made = self.new_one(bytes);
                        self.results.push(AskedMemory::New { number: made.of[0].number });
                        made
                    }
                };
                in_flight.received.push((slot.id(), result));
            }
        }
        match piece.async_id {
            Some(id) => drop(self.in_flight.insert(id, in_flight)),
            None => self.received(in_flight, (&piece.unpack, at)),
        }
    }

    fn received(&mut self, in_flight: InFlight, (unpack, at): (&Segment, Iteration)) {
        let InFlight { sent, received } = in_flight;
        // Until now they were read and written.
        sent.iter().chain(received.iter().map(|r| &r.1)).for_each(|held| self.note_read(held));
        drop(sent);
        self.held.extend(received);
        self.segment(unpack, at);
    }
}

/// What begins at a multiple of it is as good as what has a place of its own: cuBLASLt has kernels for up to so many bytes.
const PART_BYTES: u64 = 256;
const _: () = assert!(ALIGNMENT.is_multiple_of(PART_BYTES));
