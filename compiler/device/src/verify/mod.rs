//! Checks a device plan by running it on tensors that are nothing but names and places.
//!
//! A tensor is written once and read while it is live; no launch has a tensor that is fused away; collectives start in
//! the Plan's order; live tensors do not overlap in the arena; exactly the buffers that outlive the program are live at
//! its end.

mod occupancy;

use crate::arena::{Spot, views};
use crate::iteration::Iteration;
use crate::kernels::Kernel;
use crate::kernels::call::SpacedTensors;
use crate::kernels::result::ResultMemory;
use crate::launch::{
    CollectiveLaunch, DevicePlan, Launch, LaunchKind, LinkEnd, LoopLaunch, most_ahead, most_sent,
};
use crate::slot::{LaunchId, Residual, TensorSlot};
use crate::turns::Turn;
use burn_ir::{OperationIr, TensorId, TensorIr, TensorStatus};
use meshwright_plan::{BufId, Plan};
use meshwright_sorted::{SortedMap, SortedSet};
use occupancy::{Occupancy, Stretch};
use std::collections::VecDeque;

/// Checks a device plan.
///
/// # Errors
/// The first launch that breaks an invariant, and which.
pub fn verify(plan: &Plan, device: &DevicePlan) -> Result<(), String> {
    let fused = |slot: &TensorSlot| matches!(slot, TensorSlot::Buffer(buf) if device.never.contains(buf));
    let mut verifier = Verifier {
        plan,
        device,
        fused: device.slots.all().iter().map(fused).collect(),
        alive: Occupancy::new(&device.arena, stacks(device)),
        in_flight: SortedMap::new(),
        sent: VecDeque::new(),
        parts: vec![],
        slices: SortedMap::new(),
        asked: 0,
        last_collective: None,
    };
    device.launches.iter().try_for_each(|launch| in_order(device, &launch.kind))?;
    verifier.begin();
    for id in &device.body {
        verifier.launch(*id, Iteration::default())?;
    }
    verifier.end()
}

/// The tensors that values are put into position by position.
fn stacks(device: &DevicePlan) -> SortedSet<TensorId> {
    let updates = |launch: &&Launch| matches!(launch.kind, LaunchKind::Kernel(Kernel::IterationUpdate(_)));
    // Before and after the update: the next value is made while the stack still has its name from this iteration.
    let names = |launch: &Launch| [launch.reads.first(), launch.writes.first()].map(|t| t.map(|t| t.id));
    let mut all: SortedSet<TensorId> =
        device.launches.iter().filter(updates).flat_map(names).flatten().collect();
    // In front of the loop too: the first value of another carry may be overwritten by one that is put there.
    let tensors = |buf| device.slots.of_buffer(buf);
    let loops = device.launches.iter().filter_map(|launch| match &launch.kind {
        LaunchKind::Loop(of) => Some(of),
        _ => None,
    });
    let carries: Vec<_> = loops.flat_map(|of| &of.carries).collect();
    loop {
        let known = all.len();
        let carried = carries.iter().filter(|c| tensors(c.current).any(|id| all.contains(&id)));
        let starts: Vec<TensorId> = carried.flat_map(|c| tensors(c.start)).collect();
        all.extend(starts);
        if all.len() == known {
            return all;
        }
    }
}

/// Stored values of a stack lie at their positions, in order within a chunk.
fn in_order(device: &DevicePlan, kind: &LaunchKind) -> Result<(), String> {
    let LaunchKind::Kernel(Kernel::Store(residual) | Kernel::Load { residual, .. }) = kind else {
        return Ok(());
    };
    let place = |id: &TensorId| match device.slots.get(*id) {
        Some(TensorSlot::Residual(stack, at)) => Some((stack.0 as usize, at)),
        Some(TensorSlot::DrawnBits(step, at)) => Some((step, at)),
        _ => None,
    };
    let places: Vec<Option<(usize, usize)>> = residual.tensors.iter().map(place).collect();
    let next = |pair: &[Option<(usize, usize)>]| matches!(pair, [Some((of, at)), Some((same, next))] if of == same && at < next);
    match places.windows(2).all(next) {
        true => Ok(()),
        false => Err(format!("`{}` is of another position", kind.name())),
    }
}

/// The tensors that a collective fills, with their places.
type Received = Vec<(TensorId, Vec<Stretch>)>;

struct Verifier<'a> {
    plan: &'a Plan,
    device: &'a DevicePlan,
    /// True for each tensor, by id, that is a buffer which fusion has removed.
    fused: Vec<bool>,
    /// The tensors that hold something, with their places.
    alive: Occupancy,
    /// Received tensors, by collective; of messages that are received ahead perhaps several times, the oldest first.
    in_flight: SortedMap<u32, VecDeque<Received>>,
    /// Places of messages that may be on their way, the oldest first.
    sent: VecDeque<Vec<Stretch>>,
    /// Values that are made within a stack before they are put there.
    parts: Vec<Stretch>,
    /// Where slices of stacks lie.
    slices: SortedMap<TensorId, Stretch>,
    /// Number of kernel results so far with a place in the arena.
    asked: usize,
    last_collective: Option<usize>,
}

fn overlap(a: &Stretch, b: &Stretch) -> bool {
    a.start < b.end && b.start < a.end
}

/// Fails unless tensors lie in one piece each, at equal distances.
fn lie_evenly(all: &[Vec<Stretch>]) -> Result<(), String> {
    let one = |places: &Vec<Stretch>| match &places[..] {
        [place] => Some(place.start),
        _ => None,
    };
    let starts: Option<Vec<u64>> = all.iter().map(one).collect();
    let starts = starts.ok_or("a tensor of several has no place in the arena")?;
    let distances: Vec<Option<u64>> = starts.windows(2).map(|pair| pair[1].checked_sub(pair[0])).collect();
    match distances.windows(2).all(|pair| pair[0] == pair[1]) && distances.iter().all(Option::is_some) {
        true => Ok(()),
        false => Err(format!("tensors at {starts:?} of the arena do not lie at equal distances")),
    }
}

impl Verifier<'_> {
    fn begin(&mut self) {
        for buf in self.plan.program_inputs.iter().map(|input| input.buf) {
            if let Some(id) = self.device.slots.id(TensorSlot::Buffer(buf)).filter(|_| self.exists(buf)) {
                self.alive.insert(id, vec![]);
            }
        }
        for (_, id) in self.device.slots.tables() {
            self.alive.insert(id, vec![]);
        }
    }

    fn end(self) -> Result<(), String> {
        if self.asked != self.device.arena.spots.len() {
            let (asked, spots) = (self.asked, self.device.arena.spots.len());
            return Err(format!("{asked} results ask for a place in the arena, which has {spots}"));
        }
        if let Some((id, _)) = self.in_flight.iter().find(|(_, received)| !received.is_empty()) {
            return Err(format!("the collective {id} is never waited for"));
        }
        let lives = |slot: &TensorSlot| match slot {
            TensorSlot::Buffer(b) | TensorSlot::Indices(b) => self.device.left.contains(b),
            TensorSlot::Table(_) => true,
            TensorSlot::Turned(_)
            | TensorSlot::Temporary(_)
            | TensorSlot::Residual(..)
            | TensorSlot::DrawnBits(..) => false,
        };
        match self.alive.tensors().filter_map(|id| self.device.slots.get(*id)).find(|slot| !lives(slot)) {
            Some(slot) => Err(format!("{slot} is never freed")),
            None => Ok(()),
        }
    }

    /// Fails if a tensor has no slot, or if fusion has removed it; `done` says what is done with it.
    fn check_slot(&self, id: TensorId, done: &str) -> Result<(), String> {
        match self.fused.get(id.value() as usize) {
            Some(false) => Ok(()),
            Some(true) => Err(format!("{} is {done}, which is fused away", self.device.slots.name(id))),
            None => Err(format!("the tensor {} is {done}, which has no slot", id.value())),
        }
    }

    /// Whether the device has a tensor of a buffer: GPUs have none without elements.
    fn exists(&self, buf: BufId) -> bool {
        let coords = self.plan.mesh.coords(self.device.rank);
        let shape = self.plan.buffer(buf).shape(&self.plan.mesh, &coords);
        self.device.target.host_kernels || !shape.contains(&0)
    }

    fn launch(&mut self, id: LaunchId, at: Iteration) -> Result<(), String> {
        let device = self.device;
        let launch = &device.launches[id];
        let told = |problem: String| format!("launch {} ({}): {problem}", id.0, launch.kind.name());
        match &launch.kind {
            LaunchKind::Kernel(kernel) => self.kernel((id, launch), kernel, at).map_err(told)?,
            LaunchKind::Burn(burn) => {
                burn.graph.operations.iter().try_for_each(|o| self.operation(o)).map_err(told)?;
            }
            LaunchKind::Free => {}
            LaunchKind::Collective(of) => self.collective((id, launch), of, at)?,
            LaunchKind::Wait { start, unpack } => {
                let LaunchKind::Collective(of) = &device.launches[*start].kind else {
                    return Err(told(format!("it waits for {}, which is no collective", start.0)));
                };
                let received = of.async_id.and_then(|id| self.in_flight.get_mut(&id)?.pop_front());
                let received = received.ok_or_else(|| told(format!("{} is not in flight", start.0)))?;
                for (id, places) in received {
                    self.alive.end_flight(&places);
                    self.write(id, places).map_err(told)?;
                }
                unpack.iter().try_for_each(|id| self.launch(*id, at))?;
            }
            LaunchKind::Loop(of) => self.iterate(of, at)?,
        }
        launch.frees.iter().try_for_each(|id| self.take(*id, true).map(drop)).map_err(told)
    }

    /// Passes of a pipeline run in the order of the schedule, each with its own launches, for its microbatch, and messages are
    /// received as far ahead as lists end with.
    fn passes(&self, of: &LoopLaunch) -> Result<(), String> {
        let Some(passes) = self.plan.pipeline_passes().filter(|_| !of.passes.is_empty()) else {
            return Ok(());
        };
        let ranks = self.plan.mesh.group(self.device.rank, &passes.pipeline.axes);
        let stage = ranks.iter().position(|r| *r == self.device.rank);
        let actions = stage.map_or(vec![], |at| passes.actions(at));
        let expected = actions.iter().flat_map(|action| of.turns_of(action, &self.device.launches));
        let found = of.turns.iter().filter_map(|turn| match turn {
            Turn::Run { launch, position } => Some((*launch, *position)),
            _ => None,
        });
        let kind = passes.pipeline.schedule.name();
        match expected.eq(found) {
            true => Ok(()),
            false => Err(format!("passes are not in the order of the schedule {kind}")),
        }
    }

    fn iterate(&mut self, of: &LoopLaunch, at: Iteration) -> Result<(), String> {
        self.passes(of)?;
        for turn in &of.turns {
            match *turn {
                Turn::Carry { carry, made } => {
                    let c = &of.carries[carry];
                    let (from, ends) = if made { (c.next, true) } else { (c.start, c.ends) };
                    self.carry(from, ends, (!c.unread).then_some(c.current));
                }
                Turn::Run { launch, position } => {
                    self.launch(
                        of.body[launch],
                        at.within(self.plan, (of.dim, of.of_one_stage), position, of.positions.start),
                    )?;
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
        Ok(())
    }

    /// A carry, whose buffer may be empty on a device.
    fn carry(&mut self, from: BufId, ends: bool, to: Option<BufId>) {
        let mut to = to.into_iter().flat_map(|to| self.device.slots.of_buffer(to));
        for id in self.device.slots.of_buffer(from) {
            let held = if ends { self.alive.remove(id) } else { self.alive.places(id).cloned() };
            if let (Some(to), Some(held)) = (to.next(), held) {
                self.alive.insert(to, held);
            }
        }
    }

    /// The places of a tensor that is read.
    fn take(&mut self, id: TensorId, ends: bool) -> Result<Vec<Stretch>, String> {
        self.check_slot(id, "read")?;
        let held = if ends { self.alive.remove(id) } else { self.alive.places(id).cloned() };
        held.ok_or_else(|| format!("{} is read while it holds nothing", self.device.slots.name(id)))
    }

    fn read(&mut self, tensor: &TensorIr) -> Result<Vec<Stretch>, String> {
        self.take(tensor.id, tensor.status == TensorStatus::ReadWrite)
    }

    fn write(&mut self, id: TensorId, places: Vec<Stretch>) -> Result<(), String> {
        self.check_slot(id, "written")?;
        match self.alive.insert(id, places) {
            Some(_) => Err(format!("{} is written while it holds something", self.device.slots.name(id))),
            None => Ok(()),
        }
    }

    fn operation(&mut self, operation: &OperationIr) -> Result<(), String> {
        let read = operation.inputs().map(|t| self.read(t)).collect::<Result<Vec<_>, _>>()?.concat();
        let places = match views::result_memory(operation) {
            ResultMemory::Own => vec![],
            // It may show its operands in another form.
            _ => read,
        };
        operation.outputs().try_for_each(|t| self.write(t.id, places.clone()))
    }

    fn kernel(
        &mut self,
        (id, launch): (LaunchId, &Launch),
        kernel: &Kernel,
        at: Iteration,
    ) -> Result<(), String> {
        let kept = |residual: &Residual| residual.tensor(at).map_err(|e| e.to_string());
        match kernel {
            Kernel::Store(residual) => {
                let places =
                    launch.reads.iter().map(|t| self.read(t)).collect::<Result<Vec<_>, _>>()?.concat();
                return kept(residual)?.map_or(Ok(()), |id| self.write(id, places));
            }
            Kernel::Load { residual, last } => {
                let id = kept(residual)?.ok_or("no value of this position is kept")?;
                let places = self.take(id, *last)?;
                return launch.writes.iter().try_for_each(|t| self.write(t.id, places.clone()));
            }
            _ => {}
        }
        let read = launch.reads.iter().map(|t| self.read(t)).collect::<Result<Vec<_>, _>>()?;
        match kernel.result_memory(&launch.writes) {
            ResultMemory::Given(results) if self.device.target.has_arena() => {
                self.no_part_is_read(launch, &read)?;
                let mut written = vec![];
                for (out, given) in launch.writes.iter().zip(results) {
                    let spot = self.spot(id)?;
                    let over =
                        |k: &usize| launch.reads.get(*k).is_some_and(|t| t.status == TensorStatus::ReadWrite);
                    let own: Vec<usize> = given.over.into_iter().filter(over).collect();
                    let others = read.iter().enumerate().filter(|(k, _)| !own.contains(k)).flat_map(|r| r.1);
                    let place = self.free_place(spot, &others.collect::<Vec<_>>())?;
                    own.iter()
                        .try_for_each(|k| self.is_where_it_was(launch.reads[*k].id, &read[*k], &place))?;
                    written.push(place.clone());
                    self.write(out.id, place)?;
                }
                kernel.spaced().into_iter().try_for_each(|of| {
                    lie_evenly(match of {
                        SpacedTensors::Reads(range) => &read[range],
                        SpacedTensors::Writes(range) => &written[range],
                    })
                })
            }
            ResultMemory::Update(dim) if self.device.target.has_arena() => {
                let place = match self.spot(id)? {
                    Spot::Operand => {
                        let position = at.position(dim).map_err(|e| e.to_string())?;
                        self.no_slice_changes(&launch.reads[1], &read[0], position)?;
                        read[0].clone()
                    }
                    // A copy of the stack.
                    Spot::Own => vec![],
                    Spot::At { .. } => return Err("a stack is updated at another place".into()),
                };
                // The value lies in the stack now.
                self.parts.retain(|part| !read[1].contains(part));
                launch.writes.iter().try_for_each(|t| self.write(t.id, place.clone()))
            }
            ResultMemory::Own => launch.writes.iter().try_for_each(|t| self.write(t.id, vec![])),
            _ => {
                let places = read.concat();
                if let (Kernel::IterationSlice(dim), [stack], [out]) =
                    (kernel, &places[..], &launch.writes[..])
                {
                    let bytes = (out.shape.num_elements() * out.dtype.size()) as u64;
                    let start = stack.start + at.position(*dim).map_err(|e| e.to_string())? as u64 * bytes;
                    self.slices.insert(out.id, start..start + bytes);
                }
                launch.writes.iter().try_for_each(|t| self.write(t.id, places.clone()))
            }
        }
    }

    /// Fails if a result lies elsewhere in a stack than the slice of it that it is computed of, element by element.
    fn is_where_it_was(&self, id: TensorId, stack: &[Stretch], places: &[Stretch]) -> Result<(), String> {
        let Some(slice) = self.slices.get(&id) else { return Ok(()) };
        let within = |p: &&Stretch| *p != slice && stack.iter().any(|stack| overlap(p, stack));
        match places.iter().find(within) {
            Some(place) => {
                Err(format!("a result lies at {place:?} of a stack, and what it is computed of at {slice:?}"))
            }
            None => Ok(()),
        }
    }

    /// Fails where a stack is updated in place while a slice of that position is live, which is to stay as it was.
    fn no_slice_changes(&self, value: &TensorIr, stack: &[Stretch], position: usize) -> Result<(), String> {
        let [stack] = stack else { return Ok(()) };
        let bytes = (value.shape.num_elements() * value.dtype.size()) as u64;
        let start = stack.start + position as u64 * bytes;
        let changes = |(id, slice): &(&TensorId, &Stretch)| {
            self.alive.places(**id).is_some() && overlap(slice, &(start..start + bytes))
        };
        match self.slices.iter().find(changes) {
            Some((id, _)) => {
                let slice = self.device.slots.name(*id);
                Err(format!("{slice} is a live slice of a stack, which is updated there in place"))
            }
            None => Ok(()),
        }
    }

    /// The place of the next result.
    fn spot(&mut self, id: LaunchId) -> Result<Spot, String> {
        let arena = &self.device.arena;
        let found = arena.of.get(self.asked).zip(arena.spots.get(self.asked));
        self.asked += 1;
        match found {
            Some((launch, spot)) if *launch == id => Ok(*spot),
            _ => Err("a result has no place of its own in the arena".into()),
        }
    }

    /// The place of a result. Fails if it overlaps one of `others`, or a live tensor; it may lie in a stack, which will store it.
    fn free_place(&mut self, spot: Spot, others: &[&Stretch]) -> Result<Vec<Stretch>, String> {
        let Spot::At { start, bytes } = spot else { return Ok(vec![]) };
        let place = start..start + bytes;
        if place.end > self.device.arena.bytes {
            return Err(format!(
                "a result ends at byte {} of the arena's {}",
                place.end, self.device.arena.bytes
            ));
        }
        let taken = |other: &Stretch| {
            Err(format!("a result lies at {place:?} of the arena, where {other:?} is taken"))
        };
        if let Some(other) = others.iter().find(|p| overlap(p, &place)) {
            return taken(other);
        }
        let within = match self.alive.lies_in_stacks(&place) {
            Ok(within) => within,
            Err(other) => return taken(&other),
        };
        if within {
            self.parts.push(place.clone());
        }
        Ok(vec![place])
    }

    /// Fails where a stack is read while a value is being made in it.
    fn no_part_is_read(&self, launch: &Launch, read: &[Vec<Stretch>]) -> Result<(), String> {
        // A value that is computed in a stack may be read before it is stored there; if it is a stack, so may its parts.
        let lies_in = |p: &Stretch, part: &Stretch| part.start <= p.start && p.end <= part.end;
        let wrong = |stack: bool, p: &Stretch| {
            self.parts.iter().any(|part| overlap(p, part) && (stack || !lies_in(p, part)))
        };
        let mut all =
            launch.reads.iter().zip(read).flat_map(|(t, places)| places.iter().map(move |p| (t.id, p)));
        match all.find(|(id, place)| wrong(self.alive.is_stack(*id), place)).map(|(_, place)| place) {
            Some(place) => Err(format!("the stack at {place:?} is read while a value is made in it")),
            None => Ok(()),
        }
    }

    fn collective(
        &mut self,
        (id, launch): (LaunchId, &Launch),
        of: &CollectiveLaunch,
        at: Iteration,
    ) -> Result<(), String> {
        let told = |problem: String| format!("launch {} ({}): {problem}", id.0, launch.kind.name());
        // In a loop the first one repeats, and so do messages with the next chunk of a stage.
        if at.depth() == 0
            && of.link.is_none()
            && self.last_collective.replace(launch.step).is_some_and(|last| last > launch.step)
        {
            return Err(told("it starts before one that the Plan starts earlier".into()));
        }
        of.pack.iter().try_for_each(|id| self.launch(*id, at))?;
        let (mut received, mut sending) = (vec![], vec![]);
        for (sent, into) in of.calls.iter().flat_map(|call| call.send.iter().zip(&call.receive)) {
            let held = sent.tensor.map(|id| self.take(id, sent.ends)).transpose().map_err(told)?;
            let Some(result) = into.tensor else {
                sending.extend(held.unwrap_or_default());
                continue;
            };
            let spot = if self.device.target.has_arena() { self.spot(id).map_err(told)? } else { Spot::Own };
            let places = match spot {
                Spot::Operand => held.unwrap_or_default(),
                spot => self.free_place(spot, &held.iter().flatten().collect::<Vec<_>>()).map_err(told)?,
            };
            received.push((result, places));
        }
        if of.link == Some(LinkEnd::Send) {
            self.alive.begin_flight(&sending);
            self.sent.push_back(sending);
            while self.sent.len() > most_sent(self.plan) {
                let arrived = self.sent.pop_front().unwrap_or_default();
                self.alive.end_flight(&arrived);
            }
            return Ok(());
        }
        if let Some(number) = of.async_id {
            received.iter().for_each(|(_, places)| self.alive.begin_flight(places));
            let most = if of.link.is_some() { most_ahead(self.plan) } else { 1 };
            let in_flight = self.in_flight.entry(number).or_default();
            in_flight.push_back(received);
            return match in_flight.len() <= most {
                false => Err(told(format!("{number} is in flight already"))),
                true => Ok(()),
            };
        }
        received.into_iter().try_for_each(|(id, place)| self.write(id, place)).map_err(told)?;
        of.unpack.iter().try_for_each(|id| self.launch(*id, at))
    }
}
