//! The live tensors of a device and their bytes of the arena. A segment tree over the arena answers whether bytes are taken, so
//! that no result is compared with each live tensor.

use crate::arena::{Arena, Spot};
use burn_ir::TensorId;
use meshwright_sorted::{SortedMap, SortedSet};
use std::ops::Range;

/// Bytes of the arena.
pub(super) type Stretch = Range<u64>;

/// Live tensors with their places.
pub(super) struct Occupancy {
    alive: SortedMap<TensorId, Vec<Stretch>>,
    taken: TakenBytes,
    /// Tensors that values are put into position by position.
    stacks: SortedSet<TensorId>,
    /// Places of live stacks.
    places_of_stacks: SortedMap<(u64, u64), u32>,
}

impl Occupancy {
    pub(super) fn new(arena: &Arena, stacks: SortedSet<TensorId>) -> Occupancy {
        let (alive, places_of_stacks) = (SortedMap::new(), SortedMap::new());
        Occupancy { alive, taken: TakenBytes::new(arena), stacks, places_of_stacks }
    }

    pub(super) fn tensors(&self) -> impl Iterator<Item = &TensorId> {
        self.alive.keys()
    }

    pub(super) fn is_stack(&self, id: TensorId) -> bool {
        self.stacks.contains(&id)
    }

    pub(super) fn places(&self, id: TensorId) -> Option<&Vec<Stretch>> {
        self.alive.get(&id)
    }

    /// Makes a tensor live. Gives the places that it had, if it was live before.
    pub(super) fn insert(&mut self, id: TensorId, places: Vec<Stretch>) -> Option<Vec<Stretch>> {
        let before = self.remove(id);
        self.count(id, &places, 1);
        self.alive.insert(id, places);
        before
    }

    /// Ends a tensor. Gives its places, if it was live.
    pub(super) fn remove(&mut self, id: TensorId) -> Option<Vec<Stretch>> {
        let places = self.alive.remove(&id)?;
        self.count(id, &places, -1);
        Some(places)
    }

    /// Takes the places of a result that is on its way.
    pub(super) fn begin_flight(&mut self, places: &[Stretch]) {
        places.iter().for_each(|place| self.taken.add(place, 1));
    }

    /// Gives back the places of a result that has arrived.
    pub(super) fn end_flight(&mut self, places: &[Stretch]) {
        places.iter().for_each(|place| self.taken.add(place, -1));
    }

    fn count(&mut self, id: TensorId, places: &[Stretch], by: i32) {
        for place in places {
            self.taken.add(place, by);
            if self.stacks.contains(&id) {
                let key = (place.start, place.end);
                let tensors = self.places_of_stacks.entry(key).or_default();
                *tensors = tensors.wrapping_add_signed(by);
                if *tensors == 0 {
                    self.places_of_stacks.remove(&key);
                }
            }
        }
    }

    /// Whether bytes overlap stacks that are live; false if nothing is live there.
    ///
    /// # Errors
    /// Another place that is in the way.
    pub(super) fn lies_in_stacks(&self, place: &Stretch) -> Result<bool, Stretch> {
        let taken = self.taken.most(place);
        if taken == 0 {
            return Ok(false);
        }
        // Places of stacks are apart but for names of one stack and stacks within stacks, which the search below finds.
        let nearest = self.places_of_stacks.range(..=(place.start, u64::MAX)).next_back();
        if nearest.is_some_and(|((_, end), tensors)| *end >= place.end && *tensors as i32 == taken) {
            return Ok(true);
        }
        let mut found = false;
        for (id, held) in &self.alive {
            let Some(other) = held.iter().find(|p| p.start < place.end && place.start < p.end) else {
                continue;
            };
            let holds = other.start <= place.start && place.end <= other.end;
            if !(holds && self.is_stack(*id)) {
                return Err(other.clone());
            }
            found = true;
        }
        // Else it is the place of a result on its way.
        if found { Ok(true) } else { Err(place.clone()) }
    }
}

/// Number of live tensors for each byte of the arena.
struct TakenBytes {
    /// Bytes at which places begin and end, in ascending order.
    borders: Vec<u64>,
    /// Tensors that have the whole range of a node, but not its parent's; by node of a segment tree over the stretches
    /// between borders.
    whole: Vec<i32>,
    /// Most tensors over one stretch, by node; tensors that `whole` counts at this node and below it.
    most: Vec<i32>,
}

impl TakenBytes {
    fn new(arena: &Arena) -> TakenBytes {
        let ends = |spot: &Spot| match spot {
            Spot::At { start, bytes } => vec![*start, start + bytes],
            _ => vec![],
        };
        let mut borders: Vec<u64> = arena.spots.iter().flat_map(ends).collect();
        borders.sort_unstable();
        borders.dedup();
        let nodes = vec![0; 2 * borders.len().next_power_of_two()];
        TakenBytes { borders, whole: nodes.clone(), most: nodes }
    }

    /// The stretches of a place, which begins and ends at borders.
    fn stretches(&self, place: &Stretch) -> (usize, usize) {
        let at = |byte: u64| self.borders.partition_point(|border| *border < byte);
        (at(place.start), at(place.end))
    }

    fn add(&mut self, place: &Stretch, by: i32) {
        let range = self.stretches(place);
        self.add_below((1, 0, self.whole.len() / 2), range, by);
    }

    fn add_below(&mut self, (node, from, to): (usize, usize, usize), range: (usize, usize), by: i32) {
        if range.1 <= from || to <= range.0 {
            return;
        }
        if range.0 <= from && to <= range.1 {
            self.whole[node] += by;
            self.most[node] += by;
            return;
        }
        let middle = from.midpoint(to);
        self.add_below((2 * node, from, middle), range, by);
        self.add_below((2 * node + 1, middle, to), range, by);
        self.most[node] = self.whole[node] + self.most[2 * node].max(self.most[2 * node + 1]);
    }

    /// Most tensors that have one byte of a place.
    fn most(&self, place: &Stretch) -> i32 {
        self.most_below((1, 0, self.whole.len() / 2), self.stretches(place))
    }

    fn most_below(&self, (node, from, to): (usize, usize, usize), range: (usize, usize)) -> i32 {
        if range.1 <= from || to <= range.0 {
            return 0;
        }
        if range.0 <= from && to <= range.1 {
            return self.most[node];
        }
        let middle = from.midpoint(to);
        let below = [(2 * node, from, middle), (2 * node + 1, middle, to)];
        self.whole[node] + below.map(|half| self.most_below(half, range)).into_iter().max().unwrap_or(0)
    }
}
