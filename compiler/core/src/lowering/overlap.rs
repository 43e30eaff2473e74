//! Collectives go on while later steps run: each starts right after the last producer of its operands, and is waited for right
//! before the first reader of its results, or at the end.
//!
//! The order of what computes stays as it is, but for the update: parameters whose gradients come first are updated first.
//!
//! Starts are in one order on all devices, since all run this Plan. A collective whose wait would follow at once keeps one
//! step. What flies takes memory: results that begin earlier than they would, operands that end later. An all-reduce that
//! takes its operands' storage needs none of it; for all others together the sum stays below an eighth of the Plan's peak, but
//! not below 4 MiB, and below [`FLIGHT_BYTES`]. The peak grows by no more than that.

use super::lifetimes::{ends, measured, outlives};
use super::per_buffer::PerBuffer;
use super::stretches::in_stretches;
use meshwright_plan::{BufId, Collective, Phase, Plan, Prim, Step};
use meshwright_sorted::{SortedMap, SortedSet};

/// Most bytes, on the device with the largest blocks, that a Plan holds at a time only because collectives are in flight.
pub const FLIGHT_BYTES: usize = 128 << 20;
/// Bytes below which memory is no reason against an early start.
const FREE_BYTES: usize = 4 << 20;
/// Otherwise no more than this part of what the Plan holds at its peak without flights.
const PART_OF_PEAK: u64 = 8;

/// Takes collectives apart into a start and a wait.
pub fn overlap(plan: Plan) -> Plan {
    let limit = flight_limit(&plan);
    let stays = outlives(&plan);
    let mut plan = in_stretches(plan, |stretch| within(stretch, &stays, limit));
    let mut started: u32 = 0;
    let mut numbers: SortedMap<u32, u32> = SortedMap::new();
    for step in &mut plan.steps {
        let waits = matches!(step.prim, Prim::Wait);
        if let Some(flight) = step.async_id.filter(|_| !waits) {
            numbers.insert(flight, started);
            started += 1;
        }
        step.async_id = step.async_id.and_then(|flight| numbers.get(&flight).copied());
    }
    plan
}

/// Most bytes that this Plan may hold for collectives to be in flight.
pub(super) fn flight_limit(plan: &Plan) -> usize {
    let peak = measured(plan, &ends(plan)).peak_bytes / PART_OF_PEAK;
    usize::try_from(peak).unwrap_or(FLIGHT_BYTES).clamp(FREE_BYTES, FLIGHT_BYTES)
}

/// Facts on a collective by its place, its position among the steps before the pass.
struct Known {
    /// The place before which it can start.
    earliest: usize,
    /// Bytes held from the start to its place, where it starts earlier.
    early: usize,
    /// Bytes held from its place to the wait, where it ends later.
    late: usize,
}

/// Collectives whose operands are made, by their places.
#[derive(Default)]
struct Ready {
    /// Collectives that would hold memory from an early start.
    holding: SortedSet<usize>,
    /// Collectives that would not.
    free: SortedSet<usize>,
}

impl Ready {
    fn insert(&mut self, place: usize, early: usize) {
        if early > 0 {
            self.holding.insert(place)
        } else {
            self.free.insert(place)
        };
    }

    fn remove(&mut self, place: usize) {
        self.holding.remove(&place);
        self.free.remove(&place);
    }
}

struct StepOrder {
    /// Steps by their place, until they are in order.
    steps: Vec<Option<Step>>,
    out: Vec<Step>,
    /// Places of collectives in flight and of their starts among `out`, in the order of their starts.
    flying: Vec<(usize, usize)>,
    /// The place of the collective in flight that gives a buffer.
    results: SortedMap<BufId, usize>,
    /// Bytes held by place, and all of them together.
    held: SortedMap<usize, usize>,
    held_in_all: usize,
    /// Number of finished waits.
    ended: usize,
}

/// Takes those of a stretch apart. Many loops have many stretches: nothing here is of the size of the whole Plan.
fn within(mut plan: Plan, stays: &PerBuffer<bool>, limit: usize) -> Plan {
    updates_as_gradients_come(&mut plan);
    let known = known(&plan, stays);
    let mut opens: SortedMap<usize, Vec<usize>> = SortedMap::new();
    for (place, k) in &known {
        opens.entry(k.earliest).or_default().push(*place);
    }
    let mut s = StepOrder {
        steps: plan.steps.drain(..).map(Some).collect(),
        out: Vec::new(),
        flying: Vec::new(),
        results: SortedMap::new(),
        held: SortedMap::new(),
        held_in_all: 0,
        ended: 0,
    };
    // Collectives whose operands are made, by their places: what is needed first starts first.
    let mut ready = Ready::default();
    // The free collectives and those in flight at the last look: until one of these changes, no further one can start.
    let mut looked = (usize::MAX, usize::MAX);
    for at in 0..s.steps.len() {
        let opened = opens.remove(&at).unwrap_or_default();
        let now = (s.held_in_all, s.ended);
        if !opened.is_empty() || now != looked {
            opened.into_iter().for_each(|place| ready.insert(place, known[&place].early));
            s.start_early(&mut ready, &known, at, limit);
            looked = (s.held_in_all, s.ended);
        }
        s.emit(at);
        let Some(k) = known.get(&at) else { continue };
        ready.remove(at);
        s.hold(at, 0);
        // Its operands would end here. Where they cannot stay, others are waited for, the oldest first, or this one.
        while s.held_in_all + k.late > limit {
            let oldest =
                s.flying.iter().map(|f| f.0).find(|p| *p < at && s.held.get(p).is_some_and(|b| *b > 0));
            match oldest {
                Some(place) if k.late <= limit => s.wait(place),
                _ => {
                    s.wait(at);
                    break;
                }
            }
        }
        if s.flying.iter().any(|f| f.0 == at) {
            s.hold(at, k.late);
        }
    }
    while let Some((place, _)) = s.flying.first() {
        let place = *place;
        s.wait(place);
    }
    plan.steps = number(s.out);
    plan
}

/// Orders the steps of the update by when the collectives before it can start that they depend on: of the gradients that come
/// first, the parameters are first, and the collective of the last ones has the most time. What depends on the same stays in
/// its order.
fn updates_as_gradients_come(plan: &mut Plan) {
    let first = plan.steps.iter().rposition(|s| s.phase != Phase::Update).map_or(0, |i| i + 1);
    // The time of each buffer, if collectives took no time; of buffers that collectives write also by themselves.
    let mut made: SortedMap<BufId, usize> = SortedMap::new();
    let mut last: SortedMap<BufId, usize> = SortedMap::new();
    for (i, step) in plan.steps[..first].iter().enumerate() {
        let of_reads = || step.reads.iter().filter_map(|o| made.get(&o.buf)).max().copied().unwrap_or(0);
        let at = if step.collective().is_some() { of_reads() } else { i + 1 };
        made.extend(step.writes.iter().map(|o| (o.buf, at)));
        if step.collective().is_some() {
            last.extend(step.writes.iter().map(|o| (o.buf, at)));
        }
    }
    let mut update: Vec<(usize, Step)> = Vec::new();
    for step in plan.steps.drain(first..) {
        // No less than those of the steps that it depends on, so these stay before it.
        let after = step.reads.iter().filter_map(|o| last.get(&o.buf)).max().copied().unwrap_or(0);
        last.extend(step.writes.iter().map(|o| (o.buf, after)));
        update.push((after, step));
    }
    update.sort_by_key(|u| u.0);
    plan.steps.extend(update.into_iter().map(|u| u.1));
}

impl StepOrder {
    /// Sets the bytes that a place holds.
    fn hold(&mut self, place: usize, bytes: usize) {
        let before = if bytes == 0 { self.held.remove(&place) } else { self.held.insert(place, bytes) };
        self.held_in_all = self.held_in_all + bytes - before.unwrap_or(0);
    }

    /// Starts those of the collectives behind a place that are ready, that read nothing in flight and that memory allows. What
    /// is needed first comes first: where it does not fit, no later one takes the memory.
    fn start_early(&mut self, ready: &mut Ready, known: &SortedMap<usize, Known>, at: usize, limit: usize) {
        let mut started = Vec::new();
        let mut holding = ready.holding.range(at + 1..).peekable();
        let mut free = ready.free.range(at + 1..).peekable();
        loop {
            let place = match (holding.peek(), free.peek()) {
                (None, None) => break,
                (Some(a), b) if b.is_none_or(|b| a < b) => holding.next(),
                _ => free.next(),
            };
            let Some(place) = place.copied() else { break };
            let early = known[&place].early;
            if early > 0 && self.held_in_all + early > limit {
                holding = ready.holding.range(usize::MAX..).peekable();
            } else if !self.waits(place) {
                self.hold(place, early);
                self.emit(place);
                started.push(place);
            }
        }
        for place in started {
            ready.remove(place);
        }
    }

    /// Whether a step reads what is in flight.
    fn waits(&self, place: usize) -> bool {
        let Some(step) = &self.steps[place] else { return false };
        step.reads.iter().any(|o| self.results.contains_key(&o.buf))
    }

    /// Adds the step of a place, if it was not added before, and in front of it the waits that it needs.
    fn emit(&mut self, place: usize) {
        let Some(mut step) = self.steps[place].take() else { return };
        let needed: SortedSet<usize> =
            step.reads.iter().filter_map(|o| self.results.get(&o.buf)).copied().collect();
        if !needed.is_empty() {
            let in_order: Vec<usize> =
                self.flying.iter().map(|f| f.0).filter(|p| needed.contains(p)).collect();
            in_order.into_iter().for_each(|p| self.wait(p));
        }
        if step.collective().is_some() {
            // Numbered anew at the end.
            step.async_id = Some(place as u32);
            self.flying.push((place, self.out.len()));
            self.results.extend(step.writes.iter().map(|o| (o.buf, place)));
        }
        self.out.push(step);
    }

    /// Ends the collective of a place, if it is in flight.
    fn wait(&mut self, place: usize) {
        let Some(i) = self.flying.iter().position(|f| f.0 == place) else { return };
        let (_, start) = self.flying.remove(i);
        self.hold(place, 0);
        self.ended += 1;
        let start = &self.out[start];
        for o in &start.writes {
            self.results.remove(&o.buf);
        }
        let (phase, origin) = (self.out.last().map_or(start.phase, |s| s.phase), start.origin.clone());
        let lag = start.lag;
        let wait = Step::new(Prim::Wait, start.writes.clone(), Vec::new());
        self.out.push(Step { phase, origin, async_id: Some(place as u32), lag, ..wait });
    }
}

/// Numbers flights in the order of starts. A flight without steps in between becomes one step.
fn number(steps: Vec<Step>) -> Vec<Step> {
    let mut out: Vec<Step> = Vec::with_capacity(steps.len());
    for step in steps {
        let waits = matches!(step.prim, Prim::Wait);
        match out.last_mut() {
            Some(start) if waits && start.async_id == step.async_id => start.async_id = None,
            _ => out.push(step),
        }
    }
    let mut numbers: SortedMap<u32, u32> = SortedMap::new();
    for step in &mut out {
        let next = numbers.len() as u32;
        step.async_id = step.async_id.map(|f| *numbers.entry(f).or_insert(next));
    }
    out
}

fn known(plan: &Plan, stays: &PerBuffer<bool>) -> SortedMap<usize, Known> {
    // The place after which a buffer is there, after which it was read, and of its last reader.
    let mut made: SortedMap<BufId, usize> = SortedMap::new();
    let mut read: SortedMap<BufId, usize> = SortedMap::new();
    let mut last: SortedMap<BufId, usize> = SortedMap::new();
    for (i, s) in plan.steps.iter().enumerate() {
        last.extend(s.reads.iter().map(|o| (o.buf, i)));
    }
    let bytes = |b: BufId| plan.buffer(b).largest_bytes(&plan.mesh);
    let mut out = SortedMap::new();
    for (i, step) in plan.steps.iter().enumerate() {
        let reads = || step.reads.iter().map(|o| o.buf);
        let writes = || step.writes.iter().map(|o| o.buf);
        if let Some(c) = step.collective() {
            let after = |places: &SortedMap<BufId, usize>| {
                reads().filter_map(|b| places.get(&b)).max().copied().unwrap_or(0)
            };
            let ends = |b: &BufId| last.get(b) == Some(&i) && !stays[*b];
            let in_place = matches!(c, Collective::AllReduce { .. } | Collective::Broadcast { .. })
                && reads().all(|b| ends(&b));
            // Before its last reader it could not take the storage of its operand.
            let earliest = if in_place { after(&made).max(after(&read)) } else { after(&made) };
            let (early, late) = match in_place {
                true => (0, 0),
                false => (writes().map(bytes).sum(), reads().filter(ends).map(bytes).sum()),
            };
            out.insert(i, Known { earliest, early, late });
        }
        read.extend(reads().map(|b| (b, i + 1)));
        made.extend(writes().map(|b| (b, i + 1)));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::{lifetimes, verify_plan};
    use super::*;
    use meshwright_plan::Arithmetic;
    use meshwright_plan::{
        Axis, Buffer, DType, Dim, Dims, Expr, Extent, Mesh, Monoid, Operand, OutputDecl, ProgramInput,
        ProgramInputKind, Provenance,
    };

    const SIZE: usize = 64;

    /// The buffer that a fold reads, behind those of every plan.
    const WIDE: u32 = 9;

    fn operand(buf: u32) -> Operand {
        Operand { buf: BufId(buf), dims: vec![Dim(0)] }
    }

    fn step(prim: Prim, from: &[u32], to: u32) -> Step {
        let reads = from.iter().map(|b| operand(*b)).collect();
        let cause = Provenance { path: format!("b{to}").into(), ..Provenance::default() };
        Step { origin: vec![cause], ..Step::new(prim, reads, vec![operand(to)]) }
    }

    fn sum(from: u32, to: u32) -> Step {
        let all = Collective::AllReduce { axes: vec![Axis(0)], monoid: Monoid::Sum };
        step(Prim::Collective(all), &[from], to)
    }

    /// The sum over a split dim: what each device writes is a part.
    fn fold(to: u32) -> Step {
        let mut step = step(Prim::Reduce { monoid: Monoid::Sum }, &[WIDE], to);
        step.reads[0].dims.push(Dim(1));
        step
    }

    fn gather(from: u32, to: u32) -> Step {
        let all = Collective::AllGather { axis: Axis(0), dims: vec![Dim(0)] };
        step(Prim::Collective(all), &[from], to)
    }

    fn map(from: &[u32], to: u32) -> Step {
        let mut expr = Expr::default();
        expr.push(meshwright_plan::expr::Scalar::Load(0), DType::F32);
        step(Prim::Map { expr, regs: vec![0] }, from, to)
    }

    /// Buffers in `split` are split over the axis; buffer 0 and those are leaves.
    fn plan(buffers: usize, split: &[u32], steps: Vec<Step>) -> Plan {
        let whole = Extent { size: SIZE, axes: Vec::new(), window: None, rotated: 0, cuts: None };
        let cut = Extent { axes: vec![Axis(0)], ..whole.clone() };
        let extents = |b: usize| vec![if split.contains(&(b as u32)) { cut.clone() } else { whole.clone() }];
        let leaf = |b: u32| ProgramInput {
            kind: ProgramInputKind::Input,
            name: format!("x{b}"),
            buf: BufId(b),
            dims: operand(b).dims,
            init: None,
            next: None,
        };
        let mut wide = leaf(WIDE);
        wide.dims.push(Dim(1));
        let mut stored: Vec<Buffer> = (0..10).map(|b| Buffer::new(DType::F32, extents(b))).collect();
        stored[9].extents.push(Extent { size: 2, ..cut.clone() });
        let last = buffers as u32 - 1;
        let mut plan = Plan {
            version: Plan::VERSION,
            model: String::new(),
            program: String::new(),
            mesh: Mesh::new([("a", 2)]),
            dims: {
                let mut dims = Dims::default();
                dims.add("d", SIZE);
                dims.add("wide", 2);
                dims
            },
            float: Arithmetic::F32,
            microbatches: None,
            pipeline: None,
            inputs: Vec::new(),
            buffers: stored,
            program_inputs: std::iter::once(0).chain(split.iter().copied()).map(leaf).chain([wide]).collect(),
            steps,
            outputs: vec![OutputDecl { name: "y".into(), buf: BufId(last), dims: operand(last).dims }],
            summary: Default::default(),
        };
        for i in 0..plan.steps.len() {
            let step = &plan.steps[i];
            if let Ok(Some(partial)) = step.partial(&plan).map(|mut p| p.pop()) {
                let buf = step.writes[0].buf;
                plan.buffers[buf.0 as usize].partial = partial;
            }
        }
        plan
    }

    /// The pass over a Plan of one stretch.
    fn in_one(before: Plan, limit: usize) -> Plan {
        let stays = outlives(&before);
        within(before, &stays, limit)
    }

    /// Names of the steps, with flights, of a Plan that holds.
    fn ordered(before: Plan, limit: usize) -> (Vec<String>, Plan) {
        let after = lifetimes(in_one(before, limit));
        let found = verify_plan(&after);
        assert!(found.is_empty(), "{found:?}\n{}", crate::print::plan(&after));
        let name = |s: &Step| match s.async_id {
            Some(f) => format!("{} {f}", s.name()),
            None => s.name().to_string(),
        };
        (after.steps.iter().map(name).collect(), after)
    }

    #[test]
    fn a_collective_starts_after_its_producer_and_ends_before_its_reader() {
        let steps = vec![fold(1), map(&[0], 2), sum(1, 3), map(&[2], 4), map(&[3, 4], 5)];
        let (names, after) = ordered(plan(6, &[], steps), FLIGHT_BYTES);
        assert_eq!(names, ["reduce", "all_reduce 0", "map", "map", "wait 0", "map"]);
        // It takes its operand's storage where it starts: that is not held twice.
        assert_eq!(after.steps[1].aliases, [(BufId(1), BufId(3))]);
    }

    #[test]
    fn what_is_read_at_once_keeps_one_step() {
        let steps = vec![fold(1), sum(1, 2), map(&[2], 3)];
        let (names, _) = ordered(plan(4, &[], steps), FLIGHT_BYTES);
        assert_eq!(names, ["reduce", "all_reduce", "map"]);
    }

    #[test]
    fn an_operand_that_others_read_is_kept_until_the_end_of_the_flight() {
        let steps = vec![fold(1), sum(1, 2), map(&[1], 3), map(&[3], 4), sum(4, 5), map(&[2, 5], 6)];
        let (names, after) = ordered(plan(7, &[], steps), FLIGHT_BYTES);
        let all = ["reduce", "all_reduce 0", "map", "map", "all_reduce 1", "wait 0", "wait 1", "map"];
        assert_eq!(names, all);
        assert!(after.steps[1].aliases.is_empty() && after.steps[5].free == [BufId(1)], "{after:?}");
    }

    #[test]
    fn what_is_gathered_early_stays_within_the_limit() {
        let steps = || vec![map(&[0], 3), gather(1, 4), map(&[3, 4], 5), gather(2, 6), map(&[5, 6], 7)];
        let bytes = SIZE * 4;
        let (names, both) = ordered(plan(8, &[1, 2], steps()), 2 * bytes);
        assert_eq!(names, ["all_gather 0", "all_gather 1", "map", "wait 0", "map", "wait 1", "map"]);
        let (names, one) = ordered(plan(8, &[1, 2], steps()), bytes + bytes / 2);
        assert_eq!(names, ["all_gather 0", "map", "all_gather 1", "wait 0", "map", "wait 1", "map"]);
        let (names, none) = ordered(plan(8, &[1, 2], steps()), 0);
        assert_eq!(names, ["map", "all_gather", "map", "all_gather", "map"]);
        let peak = |p: &Plan| p.summary.peak_bytes as usize;
        assert!(peak(&one) <= peak(&none) + bytes && peak(&both) <= peak(&none) + 2 * bytes);
    }

    #[test]
    fn parameters_are_updated_in_the_order_in_which_their_gradients_come() {
        let update = |s: Step| Step { phase: Phase::Update, ..s };
        let steps = vec![
            fold(1),
            sum(1, 2),
            fold(3),
            sum(3, 4),
            update(map(&[4], 5)),
            update(map(&[2], 6)),
            update(map(&[0], 7)),
            update(map(&[5, 6, 7], 8)),
        ];
        let (names, after) = ordered(plan(9, &[], steps), FLIGHT_BYTES);
        let all = [
            "reduce",
            "all_reduce 0",
            "reduce",
            "all_reduce 1",
            "map",
            "wait 0",
            "map",
            "wait 1",
            "map",
            "map",
        ];
        assert_eq!(names, all);
        let made = |i: usize| after.steps[i].writes[0].buf.0;
        assert_eq!([made(4), made(6), made(8), made(9)], [7, 6, 5, 8]);
    }

    /// Also where collectives stand in another order, behind all that computes.
    #[test]
    fn gradients_come_when_they_are_computed() {
        let update = |s: Step| Step { phase: Phase::Update, ..s };
        let steps = vec![
            fold(1),
            fold(2),
            sum(2, 3),
            sum(1, 4),
            update(map(&[3], 5)),
            update(map(&[4], 6)),
            update(map(&[5, 6], 7)),
        ];
        let (names, after) = ordered(plan(8, &[], steps), FLIGHT_BYTES);
        let all =
            ["reduce", "all_reduce 0", "reduce", "all_reduce 1", "wait 0", "map", "wait 1", "map", "map"];
        assert_eq!(names, all);
        let made = |i: usize| after.steps[i].writes[0].buf.0;
        assert_eq!([made(5), made(7), made(8)], [6, 5, 7]);
    }

    #[test]
    fn what_reads_a_collective_is_not_drawn_before_its_end() {
        // The gather is of what is scattered: where it stands, that has had two steps.
        let scatter = Collective::ReduceScatter { axis: Axis(0), monoid: Monoid::Sum, dims: vec![Dim(0)] };
        let scatter = step(Prim::Collective(scatter), &[1], 2);
        let steps = vec![fold(1), scatter, map(&[0], 3), map(&[3], 4), gather(2, 5), map(&[4, 5], 6)];
        let mut plan = plan(7, &[], steps);
        plan.buffers[2].extents[0].axes.push(Axis(0));
        let (names, _) = ordered(plan, FLIGHT_BYTES);
        assert_eq!(names, ["reduce", "reduce_scatter 0", "map", "map", "wait 0", "all_gather", "map"]);
    }
}
