//! A step on two streams, as on a GPU: one computes, one communicates, both in the Plan's order.
//!
//! A collective that is async starts when its operands are made and the stream of communication is free; its wait blocks what
//! computes until it has ended. Kernels that run during a collective are slowed by the units that the collective takes
//! (contention).

use crate::step::Seconds;
use crate::work::{DeviceWork, KernelWork, Loop, Transfer, WorkItem};
use meshwright_plan::KernelFamily;
use meshwright_plan::{Axis, Phase};
use meshwright_sorted::SortedMap;

/// Costs of items.
pub trait Prices {
    /// Seconds of kernels.
    fn work(&self, work: &KernelWork) -> Seconds;
    /// Seconds of a collective, and the part of the device's units that it takes.
    fn transfer(&self, transfer: &Transfer) -> (f64, f64);
    /// True if collectives and kernels run at the same time.
    fn two_streams(&self) -> bool;
    /// True if collectives over other axes have a stream of their own.
    fn stream_for_axes(&self) -> bool {
        false
    }
}

/// Seconds of a step by what they are spent on; the sum is the step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Spent {
    /// By family, without the update.
    pub families: SortedMap<KernelFamily, f64>,
    /// The optimizer.
    pub update: f64,
    /// From one kernel to the next.
    pub launch: f64,
    /// Seconds that kernels lose to collectives that run at the same time.
    pub contention: f64,
    /// What computes waits for collectives over these axes.
    pub exposed: SortedMap<Vec<Axis>, f64>,
    /// Seconds of collectives over these axes during which kernels run. Not part of the step.
    pub hidden: SortedMap<Vec<Axis>, f64>,
    /// By step of the Plan, how often its collective ran, its seconds, and those of them that were waited for.
    pub collectives: SortedMap<usize, (f64, f64, f64)>,
    /// Kernels that were launched, and bytes that they read and wrote. Not part of the step.
    pub moved: (f64, f64),
}

impl Spent {
    /// Seconds of the step.
    pub fn seconds(&self) -> f64 {
        self.families.values().sum::<f64>()
            + self.update
            + self.launch
            + self.contention
            + self.exposed.values().sum::<f64>()
    }

    /// Adds `times` as much as `other`.
    pub fn plus(&mut self, times: f64, other: &Spent) {
        self.add(times, &Spent::default(), other);
    }

    /// `self + times * (to - from)`, for what repeats.
    fn add(&mut self, times: f64, from: &Spent, to: &Spent) {
        fn map<K: Ord + Clone>(
            own: &mut SortedMap<K, f64>,
            times: f64,
            from: &SortedMap<K, f64>,
            to: &SortedMap<K, f64>,
        ) {
            for (key, value) in to {
                *own.entry(key.clone()).or_default() +=
                    times * (value - from.get(key).copied().unwrap_or(0.0));
            }
        }
        map(&mut self.families, times, &from.families, &to.families);
        map(&mut self.exposed, times, &from.exposed, &to.exposed);
        map(&mut self.hidden, times, &from.hidden, &to.hidden);
        self.update += times * (to.update - from.update);
        self.launch += times * (to.launch - from.launch);
        self.contention += times * (to.contention - from.contention);
        self.moved.0 += times * (to.moved.0 - from.moved.0);
        self.moved.1 += times * (to.moved.1 - from.moved.1);
        for (step, value) in &to.collectives {
            let old = from.collectives.get(step).copied().unwrap_or_default();
            let own = self.collectives.entry(*step).or_default();
            own.0 += times * (value.0 - old.0);
            own.1 += times * (value.1 - old.1);
            own.2 += times * (value.2 - old.2);
        }
    }
}

/// Something that ran, for a picture: times in seconds from the start of the step.
#[derive(Clone, Debug, PartialEq)]
pub struct TimelineEvent {
    /// The step of the Plan.
    pub step: usize,
    /// Start.
    pub start: f64,
    /// End.
    pub end: f64,
    /// On the stream of communication.
    pub communicates: bool,
}

/// A collective under way.
#[derive(Clone, Debug)]
struct AsyncCollective {
    start: f64,
    end: f64,
    axes: Vec<Axis>,
    step: usize,
    /// Its stream.
    wire: Vec<Axis>,
}

/// Runs a program.
pub struct Timeline<'p> {
    prices: &'p dyn Prices,
    /// When the stream of computation is free, and those of communication by their axes; of one stream for all these are none.
    now: f64,
    wires: SortedMap<Vec<Axis>, f64>,
    /// The part of the units that collectives under way take.
    taken: f64,
    flights: SortedMap<u32, AsyncCollective>,
    /// Collectives that have not ended, in their order: whoever waits for one waits for those before it on its stream.
    queue: Vec<AsyncCollective>,
    spent: Spent,
    events: Option<Vec<TimelineEvent>>,
}

/// Two turns of a loop are equal if they begin in states that differ by less than this, relative to the time of a turn.
const EQUAL: f64 = 1e-9;

/// Seconds of a program by what they are spent on.
pub fn spent(program: &DeviceWork, prices: &dyn Prices) -> Spent {
    let mut line = Timeline::new(prices, false);
    line.run(&program.body);
    line.spent
}

/// The same with all that ran. No turn of a loop is left out.
pub fn events(program: &DeviceWork, prices: &dyn Prices) -> (Spent, Vec<TimelineEvent>) {
    let mut line = Timeline::new(prices, true);
    line.run(&program.body);
    (line.spent, line.events.unwrap_or_default())
}

impl<'p> Timeline<'p> {
    fn new(prices: &'p dyn Prices, records: bool) -> Timeline<'p> {
        let (flights, spent) = (SortedMap::new(), Spent::default());
        Timeline {
            prices,
            now: 0.0,
            wires: SortedMap::new(),
            taken: 0.0,
            flights,
            queue: Vec::new(),
            spent,
            events: records.then(Vec::new),
        }
    }

    fn run(&mut self, items: &[WorkItem]) {
        items.iter().for_each(|item| self.item(item));
    }

    fn item(&mut self, item: &WorkItem) {
        match item {
            WorkItem::Work(work) => self.work(work),
            WorkItem::Start(transfer) => self.start(transfer),
            WorkItem::Wait(flight) => self.wait(*flight),
            WorkItem::Loop(of) => self.repeat(of),
        }
    }

    fn record(&mut self, step: usize, start: f64, end: f64, communicates: bool) {
        if let Some(events) = &mut self.events {
            events.push(TimelineEvent { step, start, end, communicates });
        }
    }

    fn work(&mut self, work: &KernelWork) {
        let Seconds { work: seconds, launch } = self.prices.work(work);
        // While `seconds` of work are done at the lower rate, a collective goes on for longer.
        let beside = self.under_way().min((seconds + launch) / (1.0 - self.taken));
        let lost = self.taken * beside;
        match work.phase {
            Phase::Update => self.spent.update += seconds,
            _ => *self.spent.families.entry(work.family).or_default() += seconds,
        }
        self.spent.launch += launch;
        self.spent.contention += lost;
        self.spent.moved.0 += work.kernels;
        self.spent.moved.1 += work.bytes;
        let start = self.now;
        self.now += seconds + launch + lost;
        self.record(work.step, start, self.now, false);
    }

    fn start(&mut self, transfer: &Transfer) {
        let (whole, taken) = self.prices.transfer(transfer);
        let seconds = whole * (1.0 - transfer.pieces.unwrap_or(0.0));
        let key = if self.prices.stream_for_axes() { transfer.axes.clone() } else { vec![] };
        let start = self.now.max(self.wires.get(&key).copied().unwrap_or(0.0));
        let end = start + seconds;
        let of = self.spent.collectives.entry(transfer.step).or_default();
        (of.0, of.1) = (of.0 + 1.0, of.1 + whole);
        *self.spent.hidden.entry(transfer.axes.clone()).or_default() += whole;
        self.wires.insert(key.clone(), end);
        self.taken = taken;
        self.record(transfer.step, start, end, true);
        let (axes, step) = (transfer.axes.clone(), transfer.step);
        let flight = AsyncCollective { start, end, axes, step, wire: key };
        self.queue.retain(|c| c.end > self.now);
        self.queue.push(flight.clone());
        match transfer.flight {
            Some(id) if self.prices.two_streams() => {
                self.flights.insert(id, flight);
            }
            _ => self.arrive(&flight),
        }
    }

    fn wait(&mut self, id: u32) {
        if let Some(flight) = self.flights.remove(&id) {
            self.arrive(&flight);
        }
    }

    /// Waits until a collective has ended. Each that runs meanwhile on its stream is exposed for as long.
    fn arrive(&mut self, flight: &AsyncCollective) {
        for c in self.queue.iter().filter(|c| c.wire == flight.wire) {
            let waited = (c.end.min(flight.end) - c.start.max(self.now)).max(0.0);
            *self.spent.exposed.entry(c.axes.clone()).or_default() += waited;
            *self.spent.hidden.entry(c.axes.clone()).or_default() -= waited;
            self.spent.collectives.entry(c.step).or_default().2 += waited;
        }
        self.now = self.now.max(flight.end);
    }

    /// Seconds for which some collective is under way.
    fn under_way(&self) -> f64 {
        self.wires.values().map(|end| end - self.now).fold(0.0, f64::max)
    }

    /// What decides the next turn: what is under way, relative to now.
    fn state(&self) -> Vec<f64> {
        let ends = self.flights.values().map(|f| (f.end - self.now).max(0.0));
        let wires = self.wires.values().map(|end| (end - self.now).max(0.0));
        let queue = self.queue.iter().filter(|c| c.end > self.now).map(|c| c.end - self.now);
        ends.chain(wires).chain(queue).chain([self.taken]).collect()
    }

    fn repeat(&mut self, of: &Loop) {
        let longest = of.body.iter().map(|(_, lag)| *lag).max().unwrap_or(0);
        let turns = of.size + longest;
        let mut turn = 0;
        while turn < turns {
            // All items run from the turn in which the last begins until the one in which the first ends.
            let steady = turn >= longest && turn < of.size;
            let (from, state, before) = (self.now, self.state(), steady.then(|| self.spent.clone()));
            for (item, lag) in &of.body {
                if turn.checked_sub(*lag).is_some_and(|k| k < of.size) {
                    self.item(item);
                }
            }
            turn += 1;
            let Some(before) = before.filter(|_| self.events.is_none()) else { continue };
            let taken = self.now - from;
            let equal = |(a, b): (&f64, &f64)| (a - b).abs() <= EQUAL * taken.max(f64::MIN_POSITIVE);
            let after = self.state();
            let left = of.size.saturating_sub(turn) as f64;
            if left > 0.0 && after.len() == state.len() && after.iter().zip(&state).all(equal) {
                let now = self.spent.clone();
                self.spent.add(left, &before, &now);
                self.shift(left * taken);
                turn = of.size;
            }
        }
    }

    /// Moves all that is under way.
    fn shift(&mut self, by: f64) {
        self.now += by;
        self.wires.values_mut().for_each(|end| *end += by);
        self.flights
            .values_mut()
            .chain(&mut self.queue)
            .for_each(|c| (c.start, c.end) = (c.start + by, c.end + by));
    }
}
