//! The results of a program that have a place in the arena, and their offsets.

use super::lifetimes::{AskedMemory, Lifetime, Walked, walk};
use super::packing::{Needed, most, pack};
use super::spacing::ResultRows;
use super::{Arena, Spot};
use crate::kernels::Kernel;
use crate::launch::{DevicePlan, Launch, LaunchKind};
use crate::slot::LaunchId;
use meshwright_plan::Plan;
use meshwright_sorted::{SortedMap, SortedSet};

/// Arena of a device plan: the offsets of its results, found by a walk through its launches as they run.
///
/// # Errors
/// The launches whose tensors cannot lie at equal distances.
pub fn arena_of(plan: &Plan, device: &DevicePlan) -> Result<Arena, SortedSet<LaunchId>> {
    let mut walked = walk(plan, device);
    let (mut all, uneven) = ArenaLayout::of(&mut walked);
    if !uneven.is_empty() {
        return Err(uneven);
    }
    for number in 0..all.made.len() {
        all.needs(number);
    }
    let (starts, bytes) = pack(&all.needed, &all.rows());
    let (_, moment) = most(&all.needed);
    let spots = walked.results.iter().map(|(_, result)| all.spot(result, &starts)).collect();
    let of = walked.results.iter().map(|(launch, _)| *launch).collect();
    let fullest = walked.steps.get(moment as usize).copied().unwrap_or(0);
    let updates = device.launches.ids().filter(|id| {
        let kind = &device.launches[*id].kind;
        matches!(kind, LaunchKind::Kernel(Kernel::IterationUpdate(_))) && !walked.moves.contains(id)
    });
    Ok(Arena { bytes, spots, of, in_place: updates.collect(), fullest })
}

/// The launches whose tensors cannot lie at equal distances, without places for any.
pub(crate) fn uneven(plan: &Plan, device: &DevicePlan) -> SortedSet<LaunchId> {
    let spaced =
        |launch: &Launch| matches!(&launch.kind, LaunchKind::Kernel(kernel) if !kernel.spaced().is_empty());
    match device.target.has_arena() && device.launches.iter().any(spaced) {
        true => ArenaLayout::of(&mut walk(plan, device)).1,
        false => SortedSet::new(),
    }
}

/// The results that need a place of their own.
#[derive(Default)]
struct ArenaLayout {
    made: Vec<Lifetime>,
    needed: Vec<Needed>,
    /// Indices of the needed results, by number.
    places: SortedMap<usize, usize>,
    /// Results that lie one after the other.
    rows: ResultRows,
}

impl ArenaLayout {
    /// The results of a run with the rows that they lie in, and the launches for which they cannot.
    fn of(walked: &mut Walked) -> (ArenaLayout, SortedSet<LaunchId>) {
        let mut all = ArenaLayout { made: std::mem::take(&mut walked.made), ..ArenaLayout::default() };
        let spaced = walked.spaced.iter().filter(|(_, of)| !all.lie_evenly(of.as_deref()));
        let uneven = spaced.map(|(id, _)| *id).collect();
        (all, uneven)
    }

    /// The outermost stack that has a result as a part, and the first byte there; `None` if the result outlives the run, and so
    /// has no place.
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

    /// Places results, or the stacks that they are parts of, at equal distances. Returns false if that is impossible.
    fn lie_evenly(&mut self, numbers: Option<&[usize]>) -> bool {
        let roots = numbers.and_then(|of| of.iter().map(|n| self.root(*n)).collect::<Option<Vec<_>>>());
        let Some(roots) = roots else { return false };
        let alike = |pair: &[(usize, u64)]| {
            pair[0].1 == pair[1].1 && self.made[pair[0].0].bytes == self.made[pair[1].0].bytes
        };
        roots.windows(2).all(alike) && self.rows.add(&roots.iter().map(|r| r.0).collect::<Vec<_>>())
    }

    /// The rows, by indices of the needed results.
    fn rows(&self) -> Vec<Vec<usize>> {
        let places =
            |row: &Vec<usize>| row.iter().filter_map(|number| self.places.get(number).copied()).collect();
        self.rows.rows.iter().map(places).collect()
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
