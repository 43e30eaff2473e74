//! The results of a program that have a place in the arena, and their offsets.

use super::lifetimes::{AskedMemory, Lifetime, walk};
use super::packing::{Needed, most, pack};
use super::{Arena, Spot};
use crate::kernels::Kernel;
use crate::launch::{DevicePlan, LaunchKind};
use meshwright_plan::Plan;
use meshwright_sorted::SortedMap;

/// Arena of a device plan: the offsets of its results, found by a walk through its launches as they run.
pub fn arena_of(plan: &Plan, device: &DevicePlan) -> Arena {
    let walked = walk(plan, device);
    let mut all = ArenaLayout { made: walked.made, ..ArenaLayout::default() };
    for number in 0..all.made.len() {
        all.needs(number);
    }
    let (starts, bytes) = pack(&all.needed);
    let (_, moment) = most(&all.needed);
    let spots = walked.results.iter().map(|(_, result)| all.spot(result, &starts)).collect();
    let of = walked.results.iter().map(|(launch, _)| *launch).collect();
    let fullest = walked.steps.get(moment as usize).copied().unwrap_or(0);
    let updates = device.launches.ids().filter(|id| {
        let kind = &device.launches[*id].kind;
        matches!(kind, LaunchKind::Kernel(Kernel::IterationUpdate(_))) && !walked.moves.contains(id)
    });
    Arena { bytes, spots, of, in_place: updates.collect(), fullest }
}

/// The results that need a place of their own.
#[derive(Default)]
struct ArenaLayout {
    made: Vec<Lifetime>,
    needed: Vec<Needed>,
    /// Indices of the needed results, by number.
    places: SortedMap<usize, usize>,
}

impl ArenaLayout {
    /// The tensor of which a result is a part in the end, and the first byte; none if it outlives the run, and so has
    /// no place.
    fn root(&self, number: usize) -> Option<(usize, u64)> {
        match self.made[number].part_of.and_then(|(whole, at)| Some((self.root(whole)?, at))) {
            Some(((root, start), at)) => Some((root, start + at)),
            None => self.made[number].to.map(|_| (number, 0)),
        }
    }

    fn needs(&mut self, number: usize) {
        let Lifetime { bytes, from, to: Some(to), .. } = self.made[number] else { return };
        if self.root(number) == Some((number, 0)) {
            self.places.insert(number, self.needed.len());
            self.needed.push(Needed { from, to, bytes });
        }
    }

    fn spot(&self, asked: &AskedMemory, starts: &[u64]) -> Spot {
        match asked {
            AskedMemory::New { number } => {
                let place = |(root, at): (usize, u64)| Some(starts[*self.places.get(&root)?] + at);
                let at = |start| Spot::At { start, bytes: self.made[*number].bytes };
                self.root(*number).and_then(place).map_or(Spot::Own, at)
            }
            AskedMemory::Over { number: Some(number) } if self.root(*number).is_some() => Spot::Operand,
            AskedMemory::Over { .. } => Spot::Own,
        }
    }
}
