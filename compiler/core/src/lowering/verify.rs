//! Invariants of a Plan; all violations at once.
//!
//! 1. A buffer is written once, before it is read, and not after it has ended.
//! 2. Storage is handed on only where its buffer ends, once, to a buffer of the same shape and dtype, by a step that reads it
//!    in the order in which it writes the result.
//! 3. What outlives the step (outputs, next values, unchanged parameters) does not end in it; all else that it uses does.
//! 4. A step has as many operands and results as its primitive takes and gives, with the dims of their buffers; maps write one
//!    iteration space; sums have both factors.
//! 5. What a collective in flight reads and writes neither ends nor is handed on before it is waited for, and its results
//!    are not read; it is waited for once, with all its results. Flights are numbered in the order of starts.
//! 6. A collective's result is placed as its operand and its axes give.
//! 7. Dtypes of operands and results go together as the primitive has it.
//! 8. Bodies of loops end what they make, and nothing else; a current is stored as what it starts as and what is next for it.
//! 9. In the body of a loop a step reads what is made with its lag, or a current that is handed over: made with one lag less,
//!    started as a blank, and read by no one after the loop.
//! 10. A result is partial over the axes that the step and its operands give; program inputs, next values and outputs are
//!     finished. The dim of a row is whole on each device.
//! 11. A broadcast is from the device that alone has what it reads.
//! 12. Where keys go around the devices, the term of every shard counts once.
//! 13. What communicates names a value for each of its results, and what sends a message the one that it sends: errors name it.
//! 14. Stages meet in no collective within a microbatch, and the passes of a pipeline end in the order of its schedule.

use super::lifetimes::releases;
use super::per_buffer::PerBuffer;
use meshwright_plan::{
    Axis, BufId, Collective, Dim, Extent, Monoid, Operand, Plan, Prim, ProgramInput, ProgramInputKind, Step,
};
use meshwright_sorted::{SortedMap, SortedSet};

/// Every violation, in words; empty for a sound Plan.
pub fn verify_plan(plan: &Plan) -> Vec<String> {
    let mut v = check(plan, |i| (&plan.steps[i].aliases, &plan.steps[i].free));
    super::verify_passes::order(plan, &mut v);
    v
}

/// As [`verify_plan`], of a Plan whose steps do not say yet what ends in them: each buffer ends where it is used last, and no
/// storage is handed on yet.
pub fn verify_order(plan: &Plan) -> Vec<String> {
    let ends = releases(plan);
    check(plan, |i| (&ends[i].aliases, &ends[i].free))
}

/// Every violation, where `ends` says what ends in each step: storage that is handed on, and storage that is released.
fn check<'a>(plan: &Plan, ends: impl Fn(usize) -> (&'a Vec<(BufId, BufId)>, &'a Vec<BufId>)) -> Vec<String> {
    let mut v = Vec::new();
    let mut storage = Storage::new(plan);
    let mut flights = Flights::new(plan);
    let mut open: Vec<OpenLoop> = Vec::new();
    for (i, step) in plan.steps.iter().enumerate() {
        let (aliases, free) = ends(i);
        let mut found = Vec::new();
        flights.step(step, (aliases, free), &mut found);
        if step.fits() {
            storage.begin(plan, step, &mut found);
            shapes(plan, step, &mut found);
            dtypes(plan, step, &mut found);
            partial(plan, step, &mut found);
            storage.end(plan, step, (aliases, free), &mut found);
            repeats(plan, step, (&storage, &flights, free), &mut open, &mut found);
            links(plan, i, &mut found);
            named(step, &mut found);
        } else {
            found.push(format!("{} operands and {} results", step.reads.len(), step.writes.len()));
        }
        v.extend(found.into_iter().map(|f| format!("step {i} ({}): {f}", step.name())));
    }
    if !open.is_empty() {
        v.push("a loop does not end".into());
    }
    flights.finish(&mut v);
    super::verify_lag::lags(plan, &mut v);
    super::verify_root::roots(plan, &mut v);
    super::verify_passes::meetings(plan, &mut v);
    super::rings::verify::rings(plan, &mut v);
    storage.boundary(plan, &mut v);
    v
}

/// A loop over stages receives right before it, and sends right behind it.
fn links(plan: &Plan, at: usize, v: &mut Vec<String>) {
    let blank = |s: &&Step| matches!(s.prim, Prim::Blank { .. });
    let next_to_loop = match plan.steps[at].prim {
        // Storage for what the loop carries by itself may be made in between.
        Prim::Receive { .. } => {
            let next = plan.steps[at + 1..].iter().find(|s| !blank(s));
            next.is_some_and(|s| matches!(s.prim, Prim::Repeat { .. }))
        }
        Prim::Send { .. } => at > 0 && matches!(plan.steps[at - 1].prim, Prim::EndRepeat),
        _ => true,
    };
    if !next_to_loop {
        v.push("is not next to the loop of its stages".into());
    }
}

/// What communicates is known by a value for each result, and by one at least.
fn named(step: &Step, v: &mut Vec<String>) {
    let link = matches!(step.prim, Prim::Receive { .. } | Prim::Send { .. });
    let causes = step.origin.iter().filter(|cause| !cause.path.is_empty()).count();
    if (link || step.collective().is_some()) && causes < step.writes.len().max(1) {
        v.push(format!("{causes} causes of {}", step.writes.len().max(1)));
    }
}

/// Which buffers there are.
struct Storage {
    alive: PerBuffer<bool>,
    written: PerBuffer<bool>,
    used: PerBuffer<bool>,
    /// Whether it has the storage of another.
    handed: PerBuffer<bool>,
    /// Begins and ends of contents, in order.
    turns: Vec<(BufId, bool)>,
}

impl Storage {
    fn new(plan: &Plan) -> Storage {
        let mut alive = PerBuffer::new(plan, false);
        plan.program_inputs.iter().for_each(|l| alive[l.buf] = true);
        let none = PerBuffer::new(plan, false);
        Storage { written: alive.clone(), alive, used: none.clone(), handed: none, turns: Vec::new() }
    }

    /// Notes whether a buffer is there from now on; gives whether it was.
    fn turn(&mut self, b: BufId, alive: bool) -> bool {
        let before = std::mem::replace(&mut self.alive[b], alive);
        if before != alive {
            self.turns.push((b, alive));
        }
        before
    }

    /// Buffers that have come or gone since a turn, each with whether it was there then.
    fn since(&self, turn: usize) -> SortedMap<BufId, bool> {
        self.turns[turn..].iter().rev().map(|(b, came)| (*b, !came)).collect()
    }

    /// A step reads and writes.
    fn begin(&mut self, plan: &Plan, step: &Step, v: &mut Vec<String>) {
        for o in &step.reads {
            if !self.alive[o.buf] {
                v.push(format!("reads buffer {} which is not there", o.buf.0));
            }
        }
        for o in step.all() {
            self.used[o.buf] = true;
            let b = plan.buffer(o.buf);
            if b.extents.len() != o.dims.len()
                || b.extents.iter().zip(&o.dims).any(|(e, d)| Some(e.size) != plan.dims.get(*d))
            {
                v.push(format!("buffer {} is read with dims that it does not have", o.buf.0));
            }
        }
        for o in &step.writes {
            if std::mem::replace(&mut self.written[o.buf], true) {
                v.push(format!("writes buffer {} again", o.buf.0));
            }
            self.turn(o.buf, true);
        }
    }

    /// Storage goes to results, or is released.
    fn end(
        &mut self,
        plan: &Plan,
        step: &Step,
        (aliases, free): (&[(BufId, BufId)], &[BufId]),
        v: &mut Vec<String>,
    ) {
        for (from, to) in aliases {
            let fits = plan.same_storage(*from, *to) && step.may_donate(*from, *to);
            let once = !std::mem::replace(&mut self.handed[*to], true);
            if !self.turn(*from, false) || !fits || !once {
                v.push(format!("storage of {} cannot go to {}", from.0, to.0));
            }
        }
        for b in free {
            if !self.turn(*b, false) {
                v.push(format!("frees buffer {} which is not there", b.0));
            }
        }
    }

    /// The live buffers after the last step, and the placements of program inputs, next values and outputs.
    fn boundary(&self, plan: &Plan, v: &mut Vec<String>) {
        let keeps =
            |l: &ProgramInput| matches!(l.kind, ProgramInputKind::Param | ProgramInputKind::OptimizerState);
        let mut stays = PerBuffer::new(plan, false);
        plan.outputs.iter().for_each(|o| stays[o.buf] = true);
        plan.program_inputs.iter().filter_map(|l| l.next).for_each(|b| stays[b] = true);
        let unchanged = plan.program_inputs.iter().filter(|l| keeps(l) && l.next.is_none());
        unchanged.for_each(|l| stays[l.buf] = true);
        for (b, _) in self.alive.iter().filter(|(b, alive)| **alive && self.used[*b] && !stays[*b]) {
            v.push(format!("buffer {} never ends", b.0));
        }
        let ends = plan.program_inputs.iter().flat_map(|l| l.next.into_iter().chain([l.buf]));
        for b in ends.chain(plan.outputs.iter().map(|o| o.buf)) {
            if !plan.buffer(b).partial.is_empty() {
                v.push(format!("buffer {} is partial where the step begins or ends", b.0));
            }
        }
        for o in &plan.outputs {
            if !self.alive[o.buf] {
                v.push(format!("output `{}` has ended", o.name));
            }
        }
        for l in &plan.program_inputs {
            if keeps(l) && !self.alive[l.next.unwrap_or(l.buf)] {
                v.push(format!("`{}` has ended", l.name));
            }
            if let Some(n) = l.next
                && plan.buffer(n) != plan.buffer(l.buf)
            {
                v.push(format!("the next value of `{}` is stored otherwise", l.name));
            }
        }
    }
}

/// A loop whose body is being checked.
struct OpenLoop {
    dim: Dim,
    /// The axes that split the dim.
    axes: Vec<Axis>,
    currents: Vec<BufId>,
    /// Its begin among the turns of the storage.
    turn: usize,
    in_flight: Vec<u32>,
}

/// A value from around a loop is live in each iteration; a value of the body, except for next values, ends in it. A
/// current is stored like its initial value and its next value.
fn repeats(
    plan: &Plan,
    step: &Step,
    (storage, flights, free): (&Storage, &Flights, &[BufId]),
    open: &mut Vec<OpenLoop>,
    v: &mut Vec<String>,
) {
    let bufs = |operands: &[Operand]| operands.iter().map(|o| o.buf).collect::<Vec<_>>();
    let in_flight = || flights.open.iter().map(|f| f.number).collect::<Vec<_>>();
    match &step.prim {
        Prim::Repeat { dim, axes, .. } => {
            let (axes, currents) = (axes.clone(), bufs(&step.writes));
            if open.iter().any(|l| l.dim == *dim) {
                v.push("is in the body of a loop over the same dim".into());
            }
            open.push(OpenLoop {
                dim: *dim,
                axes,
                currents,
                turn: storage.turns.len(),
                in_flight: in_flight(),
            });
        }
        Prim::EndRepeat => {
            let Some(l) = open.pop() else { return v.push("no loop is open that could end".into()) };
            let (nexts, lasts) = (bufs(&step.reads), bufs(&step.writes));
            let stored = |a: &BufId, b: &BufId| plan.buffer(*a) == plan.buffer(*b);
            if nexts.len() != l.currents.len() || !nexts.iter().zip(&l.currents).all(|(n, c)| stored(n, c)) {
                v.push("what is next is not stored as the currents are".into());
            }
            let before = storage.since(l.turn);
            let was_there = |b: &BufId| before.get(b).copied().unwrap_or(storage.alive[*b]);
            let around = |b: &BufId| was_there(b) && !l.currents.contains(b);
            if nexts.iter().any(around) || nexts.iter().collect::<SortedSet<_>>().len() < nexts.len() {
                v.push("what is next is not made in the body, once for each current".into());
            }
            let now = |b: &BufId| (storage.alive[*b] || free.contains(b)) && !lasts.contains(b);
            // All others are as they were.
            let changed: SortedSet<BufId> =
                before.keys().chain(&l.currents).chain(free).chain(&lasts).copied().collect();
            for b in changed.iter().filter(|b| around(b) && !now(b)) {
                v.push(format!("buffer {} is around the loop and ends in its body", b.0));
            }
            for b in changed.iter().filter(|b| !around(b) && now(b) && !nexts.contains(b)) {
                v.push(format!("buffer {} is made in the body of the loop and does not end in it", b.0));
            }
            let summed = |next: &BufId, last: &BufId| {
                let (next, last) = (&plan.buffer(*next).partial, &plan.buffer(*last).partial);
                let mut sum = next.clone();
                sum.extend(l.axes.iter().map(|a| (*a, Monoid::Sum)));
                last == next || *last == sum
            };
            if !nexts.iter().zip(&lasts).all(|(next, last)| summed(next, last)) {
                v.push("what is after the loop is partial otherwise than what is next".into());
            }
            if in_flight() != l.in_flight {
                v.push("a collective that the body starts does not end in it".into());
            }
        }
        Prim::IterationSlice { dim }
        | Prim::IterationUpdate { dim }
        | Prim::DynamicUpdateSlice { iteration: Some(dim), .. } => {
            let all = if matches!(step.prim, Prim::IterationSlice { .. }) {
                &step.reads[0]
            } else {
                &step.writes[0]
            };
            let split = plan.buffer(all.buf).extents.first().map(|e| &e.axes);
            let here = |l: &OpenLoop| l.dim == *dim && Some(&l.axes) == split;
            if !open.iter().any(here) || all.dims.first() != Some(dim) {
                v.push("is in no loop over its dim, or the dim is not the first".into());
            }
        }
        _ => {}
    }
}

/// A collective in flight: its number, its operands (except for those that ended at its start), and its results.
struct InFlight {
    number: u32,
    operands: SortedSet<BufId>,
    results: Vec<BufId>,
}

/// All that is in flight.
struct Flights {
    open: Vec<InFlight>,
    /// The flight that gives each buffer.
    giving: PerBuffer<Option<u32>>,
    /// The flights that read or give each buffer.
    using: PerBuffer<Vec<u32>>,
    started: u32,
}

impl Flights {
    fn new(plan: &Plan) -> Flights {
        let (giving, using) = (PerBuffer::new(plan, None), PerBuffer::new(plan, Vec::new()));
        Flights { open: Vec::new(), giving, using, started: 0 }
    }

    fn step(&mut self, step: &Step, (aliases, free): (&[(BufId, BufId)], &[BufId]), v: &mut Vec<String>) {
        let reads = || step.reads.iter().map(|o| o.buf);
        let writes = || step.writes.iter().map(|o| o.buf);
        let donated = || aliases.iter().map(|r| r.0);
        if matches!(step.prim, Prim::Wait) {
            match self.open.iter().position(|f| Some(f.number) == step.async_id) {
                Some(i) => {
                    let flight = self.open.remove(i);
                    for b in flight.operands.iter().chain(&flight.results) {
                        self.giving[*b] = None;
                        self.using[*b].retain(|f| *f != flight.number);
                    }
                    if !flight.results.iter().copied().eq(reads()) {
                        v.push("waits for other results than those of its collective".into());
                    }
                }
                None => v.push("nothing is in flight that it could wait for".into()),
            }
        }
        for b in reads() {
            if let Some(flight) = self.giving[b] {
                v.push(format!("reads buffer {}, which is in flight ({flight})", b.0));
            }
        }
        for b in free.iter().copied().chain(donated()) {
            for flight in &self.using[b] {
                v.push(format!("ends buffer {}, which is in flight ({flight})", b.0));
            }
        }
        match (&step.prim, step.async_id) {
            (Prim::Wait, _) | (_, None) => {}
            (Prim::Collective(_), Some(flight)) => {
                if flight != self.started {
                    v.push(format!("starts flight {flight}, where {} is next", self.started));
                }
                self.started += 1;
                let sent: SortedSet<BufId> = reads().chain(writes()).collect();
                if let Some(b) = free.iter().find(|b| sent.contains(b)) {
                    v.push(format!("ends buffer {}, which it has just sent off", b.0));
                }
                let donated: SortedSet<BufId> = donated().collect();
                let operands: SortedSet<BufId> = reads().filter(|b| !donated.contains(b)).collect();
                writes().for_each(|b| self.giving[b] = Some(flight));
                for b in operands.iter().copied().chain(writes()) {
                    self.using[b].push(flight);
                }
                self.open.push(InFlight { number: flight, operands, results: writes().collect() });
            }
            (_, Some(_)) => v.push("is no collective and has a flight".into()),
        }
    }

    fn finish(self, v: &mut Vec<String>) {
        for flight in self.open {
            v.push(format!("flight {} is never waited for", flight.number));
        }
    }
}

fn extent<'a>(plan: &'a Plan, o: &Operand, dim: Dim) -> Option<&'a Extent> {
    o.dims.iter().position(|d| *d == dim).map(|i| &plan.buffer(o.buf).extents[i])
}

fn dtypes(plan: &Plan, step: &Step, v: &mut Vec<String>) {
    v.extend(step.prim.dtype_fault(&step.reads, &step.writes, |o| plan.buffer(o.buf).dtype));
}

fn shapes(plan: &Plan, step: &Step, v: &mut Vec<String>) {
    match &step.prim {
        Prim::Map { .. } => {
            let extents = |o: &Operand| &plan.buffer(o.buf).extents;
            let first = &step.writes[0];
            for o in &step.writes {
                if o.dims != first.dims || extents(o) != extents(first) {
                    v.push("writes two iteration spaces".into());
                }
            }
            for i in &step.reads {
                for d in &i.dims {
                    if extent(plan, i, *d) != extent(plan, &step.writes[0], *d) {
                        v.push(format!("buffer {} is split otherwise than the result", i.buf.0));
                    }
                }
            }
        }
        Prim::Repeat { .. } | Prim::EndRepeat | Prim::Receive { .. } => {
            let pairs = || step.reads.iter().zip(&step.writes);
            if step.reads.len() != step.writes.len()
                || pairs().any(|(a, b)| a.dims != b.dims || !plan.same_storage(a.buf, b.buf))
            {
                v.push("what crosses the boundary of a loop is stored otherwise behind it".into());
            }
        }
        Prim::DynamicUpdateSlice { dim, from, iteration } => {
            let ([all, value, start], [out]) = (&step.reads[..], &step.writes[..]) else { return };
            let stored = all.dims == out.dims && plan.buffer(all.buf) == plan.buffer(out.buf);
            let of_row = |d: &Dim| *d != *dim && Some(*d) != *iteration && out.dims.contains(d);
            let part = value.dims.iter().all(|d| d == from || of_row(d)) && value.dims.contains(from);
            if !stored || !part || !out.dims.contains(dim) || !start.dims.iter().all(of_row) {
                v.push("is no update of positions of what it reads".into());
            }
            for o in [value, start] {
                for d in o.dims.iter().filter(|d| *d != from) {
                    if extent(plan, o, *d) != extent(plan, out, *d) {
                        v.push(format!("buffer {} is split otherwise than the result", o.buf.0));
                    }
                }
            }
        }
        Prim::Contract => {
            for d in step.all().flat_map(|o| &o.dims) {
                let mut all = step.all().filter_map(|o| extent(plan, o, *d));
                let (first, mut others) = (all.next(), all.peekable());
                if others.peek().is_none() || others.any(|e| Some(e) != first) {
                    v.push("a dim does not match over the operands".into());
                }
            }
        }
        Prim::Collective(c) => {
            for (k, (from, to)) in step.reads.iter().zip(&step.writes).enumerate() {
                collective(plan, (c, k), [from, to], v);
            }
        }
        _ => {}
    }
}

fn partial(plan: &Plan, step: &Step, v: &mut Vec<String>) {
    if let Some(dim) = step.prim.spec().row
        && step.all().filter_map(|o| extent(plan, o, dim)).any(|e| !e.axes.is_empty())
    {
        v.push("needs all of a dim that is split".into());
    }
    if !step.computes() {
        return;
    }
    match step.partial(plan) {
        Err(why) => v.push(why),
        Ok(inferred) => {
            for (o, p) in step.writes.iter().zip(inferred) {
                if plan.buffer(o.buf).partial != p {
                    v.push(format!("buffer {} is partial otherwise than the step makes it", o.buf.0));
                }
            }
        }
    }
}

fn collective(
    plan: &Plan,
    (c, operand): (&Collective, usize),
    [from, to]: [&Operand; 2],
    v: &mut Vec<String>,
) {
    if from.dims != to.dims {
        v.push("operand and result have other dims".into());
        return;
    }
    if c.apply_to(operand, &plan.placement(from)) != Some(plan.placement(to)) {
        v.push("the result is not placed as the collective leaves it".into());
    }
}
