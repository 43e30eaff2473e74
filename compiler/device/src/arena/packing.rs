//! Packing of tensors with lifetimes into one allocation: dynamic storage allocation, which is NP-hard (Garey and Johnson, 1979,
//! problem SR2). The largest tensor goes first, each to the lowest offset that is free during its lifetime. The result is within
//! a few percent of the peak of live bytes.

use meshwright_sorted::SortedSet;
use std::cmp::Reverse;

/// Alignment of tensors: the widest accesses require it, and CubeCL's own allocations have it.
pub(super) const ALIGNMENT: u64 = 512;

/// Size in bytes and lifetime of a tensor, first and last moment included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Needed {
    pub from: u32,
    pub to: u32,
    pub bytes: u64,
}

/// The first byte of each, and how many bytes that takes in all. Those of a row, which are of one size, lie one after the other.
pub(super) fn pack(all: &[Needed], rows: &[Vec<usize>]) -> (Vec<u64>, u64) {
    let in_rows: SortedSet<usize> = rows.iter().flatten().copied().collect();
    let singles = (0..all.len()).filter(|i| !in_rows.contains(i)).map(|i| vec![i]);
    let mut order: Vec<Vec<usize>> = rows.iter().cloned().chain(singles).collect();
    let key = |row: &Vec<usize>| {
        let bytes: u64 = row.iter().map(|i| all[*i].bytes).sum();
        (Reverse(bytes), row.iter().map(|i| all[*i].from).min(), row.first().copied())
    };
    order.sort_by_key(key);
    let mut placed = PlacedByTime::new(all);
    let (mut starts, mut end) = (vec![0; all.len()], 0);
    for row in order {
        let needed: Vec<&Needed> = row.iter().map(|i| &all[*i]).collect();
        let first = placed.lowest(&needed);
        for (place, i) in (0..).zip(row) {
            let bytes = all[i].bytes.next_multiple_of(ALIGNMENT);
            let start = first + place * bytes;
            placed.insert(&all[i], (start, start + bytes));
            starts[i] = start;
            end = end.max(start + bytes);
        }
    }
    (starts, end)
}

/// Most that is needed at once, and the first moment at which it is.
pub(super) fn most(all: &[Needed]) -> (u64, u32) {
    let mut changes: Vec<(u32, bool, u64)> = vec![];
    for n in all {
        let bytes = n.bytes.next_multiple_of(ALIGNMENT);
        changes.extend([(n.from, true, bytes), (n.to + 1, false, bytes)]);
    }
    changes.sort_unstable();
    let (mut now, mut most) = (0, (0, 0));
    for (at, begins, bytes) in changes {
        now = if begins { now + bytes } else { now - bytes };
        if now > most.0 {
            most = (now, at);
        }
    }
    most
}

/// Bytes that are taken: stretches that do not touch, in ascending order.
#[derive(Clone, Default)]
struct TakenBytes(Vec<(u64, u64)>);

impl TakenBytes {
    fn insert(&mut self, (mut from, mut to): (u64, u64)) {
        let first = self.0.partition_point(|taken| taken.1 < from);
        let last = first + self.0[first..].partition_point(|taken| taken.0 <= to);
        if let [begin, ..] = self.0[first..last] {
            from = from.min(begin.0);
            to = to.max(self.0[last - 1].1);
        }
        self.0.splice(first..last, [(from, to)]);
    }

    /// The end of memory taken within `bytes` bytes from `start`; none if they are free.
    fn end_of_taken(&self, start: u64, bytes: u64) -> Option<u64> {
        let first = self.0.get(self.0.partition_point(|taken| taken.1 <= start))?;
        (first.0 < start + bytes).then_some(first.1)
    }
}

/// Placed tensors in a segment tree over time, so that a search meets no tensor by itself: a node stands for a range of moments,
/// its children for the halves of it.
struct PlacedByTime {
    /// Moments of the root, a power of two.
    moments: u32,
    /// Bytes of tensors that live during the whole range of a node, but not of its parent's, by node.
    through: Vec<TakenBytes>,
    /// Bytes of tensors in `through` of the node and of its descendants, by node.
    within: Vec<TakenBytes>,
}

/// A node and its range of moments, the last one included.
type TimeNode = (usize, u32, u32);

fn halves((node, from, to): TimeNode) -> [TimeNode; 2] {
    let middle = from + (to - from) / 2;
    [(2 * node, from, middle), (2 * node + 1, middle + 1, to)]
}

impl PlacedByTime {
    fn new(all: &[Needed]) -> PlacedByTime {
        let moments = all.iter().map(|n| n.to).max().map_or(1, |last| (last + 1).next_power_of_two());
        let nodes = vec![TakenBytes::default(); 2 * moments as usize];
        PlacedByTime { moments, through: nodes.clone(), within: nodes }
    }

    fn root(&self) -> TimeNode {
        (1, 0, self.moments - 1)
    }

    /// The lowest offset from which on tensors can lie one after the other, each during its lifetime.
    fn lowest(&self, row: &[&Needed]) -> u64 {
        let taken: Vec<Vec<&TakenBytes>> = row
            .iter()
            .map(|needed| {
                let mut taken = vec![];
                self.beside(self.root(), needed, &mut taken);
                taken
            })
            .collect();
        let bytes = row.first().map_or(0, |needed| needed.bytes.next_multiple_of(ALIGNMENT));
        let (mut start, mut place, mut free) = (0, 0, 0);
        // Bytes before the end of any stretch that is in the way of one are in its way, too.
        while free < row.len() {
            let at = place as u64 * bytes;
            match taken[place].iter().filter_map(|of| of.end_of_taken(start + at, bytes)).max() {
                Some(end) => (start, free) = (end - at, 0),
                None => (place, free) = ((place + 1) % row.len(), free + 1),
            }
        }
        start
    }

    /// Finds the bytes that are taken during a lifetime, below a node.
    fn beside<'t>(&'t self, node: TimeNode, needed: &Needed, taken: &mut Vec<&'t TakenBytes>) {
        let (at, from, to) = node;
        if from > needed.to || needed.from > to || self.within[at].0.is_empty() {
            return;
        }
        if needed.from <= from && to <= needed.to {
            taken.push(&self.within[at]);
            return;
        }
        taken.push(&self.through[at]);
        halves(node).into_iter().for_each(|half| self.beside(half, needed, taken));
    }

    fn insert(&mut self, needed: &Needed, bytes: (u64, u64)) {
        self.insert_below(self.root(), needed, bytes);
    }

    fn insert_below(&mut self, node: TimeNode, needed: &Needed, bytes: (u64, u64)) {
        let (at, from, to) = node;
        if from > needed.to || needed.from > to {
            return;
        }
        self.within[at].insert(bytes);
        if needed.from <= from && to <= needed.to {
            self.through[at].insert(bytes);
        } else {
            halves(node).into_iter().for_each(|half| self.insert_below(half, needed, bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needed(from: u32, to: u32, kib: u64) -> Needed {
        Needed { from, to, bytes: kib * 1024 }
    }

    #[test]
    fn what_is_needed_at_once_lies_apart() {
        // A generator of its own, so that the lifetimes are the same in every run.
        let mut state = 1_u64;
        let mut draw = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let all: Vec<Needed> = (0..600)
            .map(|i| {
                let (from, long) = (i, if draw(5) == 0 { draw(400) } else { draw(4) });
                Needed { from, to: from + long as u32, bytes: 1 + draw(1 << 20) }
            })
            .collect();
        let (starts, bytes) = pack(&all, &[]);
        for (i, a) in all.iter().enumerate() {
            assert!(starts[i].is_multiple_of(ALIGNMENT) && starts[i] + a.bytes <= bytes);
            for (k, b) in all.iter().enumerate().skip(i + 1) {
                let at_once = a.from <= b.to && b.from <= a.to;
                let apart = starts[i] + a.bytes <= starts[k] || starts[k] + b.bytes <= starts[i];
                assert!(!at_once || apart, "{a:?} at {} and {b:?} at {}", starts[i], starts[k]);
            }
        }
        let (at_once, _) = most(&all);
        assert!(at_once <= bytes && bytes * 20 <= at_once * 23, "{bytes} for {at_once}");
    }

    /// Each tensor lies at the lowest offset at which nothing that was placed before it lies during its lifetime.
    #[test]
    fn places_are_the_lowest_that_are_free() {
        let mut state = 7_u64;
        let mut draw = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let all: Vec<Needed> = (0..400)
            .map(|_| {
                let from = draw(300) as u32;
                Needed { from, to: from + draw(120) as u32, bytes: 1 + draw(9000) }
            })
            .collect();
        let (starts, _) = pack(&all, &[]);
        let size = |i: usize| all[i].bytes.next_multiple_of(ALIGNMENT);
        let mut order: Vec<usize> = (0..all.len()).collect();
        order.sort_by_key(|i| (std::cmp::Reverse(all[*i].bytes), all[*i].from));
        for (n, i) in order.iter().enumerate() {
            let at_once = |k: &&usize| all[**k].from <= all[*i].to && all[*i].from <= all[**k].to;
            let before: Vec<(u64, u64)> =
                order[..n].iter().filter(at_once).map(|k| (starts[*k], starts[*k] + size(*k))).collect();
            let fits = |start: u64| before.iter().all(|(from, to)| start + size(*i) <= *from || *to <= start);
            let lowest = std::iter::once(0).chain(before.iter().map(|b| b.1)).filter(|s| fits(*s)).min();
            assert_eq!(Some(starts[*i]), lowest);
        }
    }

    #[test]
    fn one_after_the_other_takes_the_place_of_the_largest() {
        let all = [needed(0, 1, 3), needed(2, 3, 5), needed(4, 4, 1)];
        assert_eq!(pack(&all, &[]), (vec![0, 0, 0], 5 * 1024));
        assert_eq!(most(&all), (5 * 1024, 2));
    }

    /// A row begins where each of it is free during its own lifetime, and another tensor may lie where one of it has ended.
    #[test]
    fn rows_lie_one_after_the_other() {
        let all = [needed(0, 3, 5), needed(2, 9, 2), needed(0, 9, 2), needed(1, 1, 2), needed(4, 9, 2)];
        let (starts, bytes) = pack(&all, &[vec![1, 2, 3]]);
        let kib = |n: u64| n * 1024;
        // The row of six is placed first, and the one of five after what lives with it.
        assert_eq!(starts, [kib(6), 0, kib(2), kib(4), kib(4)]);
        assert_eq!(bytes, kib(11));
    }

    #[test]
    fn nothing_takes_nothing() {
        assert_eq!((pack(&[], &[]), most(&[])), ((vec![], 0), (0, 0)));
    }
}
