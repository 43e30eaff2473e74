//! Seconds below which no candidate comes whose rules split no more than those of a program that was compiled, and others over
//! other axes.
//!
//! Such a candidate does all that the program does. Other axes divide each kernel and each collective at most by their sizes;
//! kernels of the optimizer, and those of parameters that are stored split, may be divided among the axes that store; a gradient
//! that is summed may be left in shards. So it takes at least the time of
//!
//! - the program with all this divided, in its order, without collectives of gradients: their time depends on buckets;
//! - its kernels, and what concurrent collectives take from them. Where caches make the kernels of parts faster, of parts this
//!   alone counts;
//! - the forward pass of a part, and then the collectives of gradients.

use crate::base::{Axes, BaseWork, bits};
use crate::space::Stored;
use meshwright_cost::collective::{CollectiveTime, TierGroup, over};
use meshwright_cost::machine::{DeviceKind, Machine};
use meshwright_cost::step::{DeviceRates, Seconds};
use meshwright_cost::timeline::{Prices, spent};
use meshwright_cost::work::{KernelWork, Transfer};
use meshwright_plan::{CollectiveKind, Phase};
use meshwright_sorted::{SortedMap, SortedSet};

/// Where the axes of a program are on a mesh.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BasePlace {
    /// Of each axis its size, and how far its neighbors are apart in ranks.
    axes: Vec<(usize, usize)>,
    /// The same of other axes.
    rest: Vec<(usize, usize)>,
    /// Devices of the program, and of the mesh.
    devices: (usize, usize),
}

impl BasePlace {
    /// All axes of a mesh.
    pub fn whole(mesh: &[usize]) -> BasePlace {
        let all = mesh.iter().product();
        BasePlace { axes: apart(mesh), rest: Vec::new(), devices: (all, all) }
    }

    /// One axis of a mesh, as the only one of a program, where it has `size` devices.
    pub fn axis(mesh: &[usize], at: usize, size: usize) -> BasePlace {
        let mut rest = apart(mesh);
        let own = rest.remove(at);
        BasePlace { axes: vec![own], rest, devices: (size, mesh.iter().product()) }
    }

    /// By how much other axes divide a program.
    fn others(&self) -> f64 {
        self.devices.1 as f64 / self.devices.0 as f64
    }

    /// The groups of a collective over some axes: other axes may take part.
    fn groups(&self, machine: &Machine, axes: Axes) -> Vec<TierGroup> {
        let own = self.axes.iter().enumerate().filter(|(at, _)| axes & (1 << at) != 0).map(|(_, a)| *a);
        let mut all = vec![ranks(&[0], own)];
        for axis in &self.rest {
            let more: Vec<Vec<usize>> = all.iter().map(|r| ranks(r, [*axis])).collect();
            all.extend(more);
        }
        all.iter().map(|ranks| TierGroup::new(machine, ranks)).collect()
    }
}

fn apart(mesh: &[usize]) -> Vec<(usize, usize)> {
    (0..mesh.len()).map(|at| (mesh[at], mesh[at + 1..].iter().product())).collect()
}

/// The ranks that differ from some along axes only, ascending.
fn ranks(from: &[usize], axes: impl IntoIterator<Item = (usize, usize)>) -> Vec<usize> {
    let along = |ranks: Vec<usize>, (size, by): (usize, usize)| {
        ranks.iter().flat_map(|r| (0..size).map(move |k| r + k * by)).collect()
    };
    let mut ranks: Vec<usize> = axes.into_iter().fold(from.to_vec(), along);
    ranks.sort_unstable();
    ranks
}

/// Collectives of one kind over equal axes in the same loop.
#[derive(Clone, Copy, Debug)]
struct BaseWire {
    axes: Axes,
    /// Whether it adds up what the backward pass has made.
    of_gradients: bool,
    /// Seconds where each turn of the loop has its own, and where one does all.
    each: WireSeconds,
    once: WireSeconds,
}

#[derive(Clone, Copy, Debug)]
struct WireSeconds {
    whole: f64,
    /// Where only shards of the sums are needed.
    shards: f64,
}

/// The bound of a program in a place.
#[derive(Clone, Debug)]
pub struct BaseBound<'a> {
    of: &'a BaseWork,
    rates: &'a DeviceRates,
    machine: Machine,
    place: BasePlace,
    groups: SortedMap<Axes, Vec<TierGroup>>,
    wires: Vec<BaseWire>,
    /// The least part of a device's units that a collective takes.
    taken: f64,
}

impl<'a> BaseBound<'a> {
    /// On a machine.
    pub fn new(
        of: &'a BaseWork,
        place: BasePlace,
        rates: &'a DeviceRates,
        machine: &Machine,
    ) -> BaseBound<'a> {
        let mut machine = machine.clone();
        // Without lines that are for few bytes alone, no number of collectives is faster than one with all of their bytes.
        machine.tier.iter_mut().flat_map(|t| &mut t.line).for_each(|l| l.up_to = None);
        let all = of.transfers.keys().map(|k| bits(&k.2));
        let alone =
            all.clone().flat_map(|axes| (0..Axes::BITS).map(|a| 1 << a).filter(move |a| axes & a != 0));
        let groups: SortedSet<Axes> = all.chain(alone).collect();
        let groups = groups.into_iter().map(|axes| (axes, place.groups(&machine, axes))).collect();
        let (wires, taken) = (Vec::new(), f64::INFINITY);
        let mut bound = BaseBound { of, rates, machine, place, groups, wires, taken };
        for ((phase, kind, axes, _), (bytes, times)) in &of.transfers {
            let (bytes, axes) = (bytes / bound.place.others(), bits(axes));
            let (each, once) = (bound.wire(*kind, axes, bytes), bound.wire(*kind, axes, bytes * times));
            let each = WireSeconds { whole: times * each.whole, shards: times * each.shards };
            let of_gradients = kind.folds() && *phase != Phase::Forward;
            bound.wires.push(BaseWire { axes, of_gradients, each, once });
            bound.taken = bound.taken.min(bound.time(*kind, axes, bytes).1);
        }
        bound
    }

    /// The least seconds of a collective over some axes, and the part of the device's units that it takes.
    fn time(&self, kind: CollectiveKind, axes: Axes, bytes: f64) -> (f64, f64) {
        let times = self.groups.get(&axes).into_iter().flatten().map(|g| over(&self.machine, kind, bytes, g));
        let units = f64::from(self.machine.device.units);
        let least = |a: (f64, f64), t: CollectiveTime| (a.0.min(t.seconds), a.1.min(t.units / units));
        let least = times.fold((f64::INFINITY, f64::INFINITY), least);
        if least.0.is_finite() { least } else { (0.0, 0.0) }
    }

    /// The least seconds of collectives with this number of bytes together. Of sums that are left in shards, each axis adds up at
    /// least what the others leave to it.
    fn wire(&self, kind: CollectiveKind, axes: Axes, bytes: f64) -> WireSeconds {
        let whole = self.time(kind, axes, bytes).0;
        if kind != CollectiveKind::AllReduce {
            return WireSeconds { whole, shards: whole };
        }
        let least = |axes: Axes, bytes: f64| {
            let shards = self.time(CollectiveKind::ReduceScatter, axes, bytes).0;
            shards.min(self.time(kind, axes, bytes).0)
        };
        let size = |a: &usize| self.place.axes[*a].0 as f64;
        let among = || (0..self.place.axes.len()).filter(|a| axes & (1 << a) != 0);
        let all: f64 = among().map(|a| size(&a)).product();
        let apart = among().map(|a| least(1 << a, bytes * size(&a) / all)).fold(f64::INFINITY, f64::min);
        WireSeconds { whole, shards: least(axes, bytes).min(apart) }
    }

    /// By how much the axes that store divide what is split over some axes already.
    fn among(&self, stored: &[Stored], phase: Phase, axes: Axes) -> f64 {
        let least = if phase == Phase::Update { Stored::Moments } else { Stored::Params };
        let own = stored.iter().enumerate().filter(|(a, s)| **s >= least && axes & (1 << a) == 0);
        own.map(|(a, _)| self.place.axes[a].0 as f64).product()
    }

    /// The bound where this is stored over each axis, the batch is taken in the number of parts at this position, and kernels
    /// take `again` seconds for what is computed again.
    pub fn seconds(&self, stored: &[Stored], parts: usize, again: f64) -> f64 {
        self.in_order(stored, parts, again, self.ordered(stored))
    }

    /// The same, given the seconds of the program in its order with this stored over each axis.
    pub fn in_order(&self, stored: &[Stored], parts: usize, again: f64, ordered: f64) -> f64 {
        let Some(compute) = self.of.compute.get(parts) else { return 0.0 };
        let (mut all, mut forward) = (again, 0.0);
        for ((phase, axes), (work, least, launch)) in compute {
            let among = self.among(stored, *phase, *axes) * self.place.others();
            let seconds = launch + if among > 1.0 { least / among } else { *work };
            all += seconds;
            forward += if *phase == Phase::Forward { seconds } else { 0.0 };
        }
        let kept: Axes =
            stored.iter().enumerate().filter(|(_, s)| **s > Stored::Whole).map(|(a, _)| 1 << a).sum();
        let (mut wire, mut later) = (0.0, 0.0);
        for w in &self.wires {
            let of = if parts > 0 { w.once } else { w.each };
            let seconds = if w.axes & kept == 0 { of.whole } else { of.shards };
            wire += seconds;
            later += if w.of_gradients { seconds } else { 0.0 };
        }
        let ordered = if parts > 0 && !self.parts_keep_order() { 0.0 } else { again + ordered };
        let beside = match (self.two_streams(), self.wires.is_empty()) {
            (false, _) => all + wire,
            (true, true) => all,
            (true, false) => (all + self.taken * wire).max(later + if parts > 0 { 0.0 } else { forward }),
        };
        self.of.waits * beside.max(ordered)
    }

    /// The least bound of all numbers of parts up to this one, with this stored over each axis.
    pub fn least(&self, stored: &[Stored], parts: usize) -> f64 {
        let ordered = self.ordered(stored);
        (0..parts).map(|p| self.in_order(stored, p, 0.0, ordered)).fold(f64::INFINITY, f64::min)
    }

    /// As [`Prices::two_streams`].
    fn two_streams(&self) -> bool {
        self.machine.device.kind == DeviceKind::Gpu
    }

    /// Whether a program in parts takes as long as a whole one does in its order: parts run one after the other, no kernel of a
    /// part takes less than its part of the time, and no collective that a later kernel of the same part waits for runs during
    /// another part. Caches make small kernels faster.
    fn parts_keep_order(&self) -> bool {
        self.two_streams() && self.machine.device.stream.rates.len() == 1
    }

    /// Seconds of the program in its order.
    pub fn ordered(&self, stored: &[Stored]) -> f64 {
        spent(&self.of.run, &OrderedPrices { bound: self, stored }).seconds()
    }
}

/// Prices of the program in its order.
struct OrderedPrices<'a> {
    bound: &'a BaseBound<'a>,
    stored: &'a [Stored],
}

impl Prices for OrderedPrices<'_> {
    fn work(&self, work: &KernelWork) -> Seconds {
        let bound = self.bound;
        let axes = bound.of.split.get(&work.step).copied().unwrap_or(0);
        let among = bound.among(self.stored, work.phase, axes) * bound.place.others();
        if among > 1.0 {
            let least = bound.rates.least(work);
            return Seconds { work: least.work / among, ..least };
        }
        bound.rates.seconds(work)
    }

    fn transfer(&self, transfer: &Transfer) -> (f64, f64) {
        let bytes = transfer.bytes / self.bound.place.others();
        self.bound.time(transfer.kind, bits(&transfer.axes), bytes)
    }

    fn two_streams(&self) -> bool {
        self.bound.two_streams()
    }
}
