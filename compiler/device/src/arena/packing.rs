//! Packing of tensors with lifetimes into one allocation: dynamic storage allocation, which is NP-hard (Garey and Johnson, 1979, problem
//! SR2). The largest tensor goes first, each to the lowest offset that is free during its lifetime. The result is within a few percent of
//! the peak of live bytes.

/// Multiples at which tensors begin: what the widest accesses ask for, and what CubeCL gives its own.
pub(super) const ALIGNMENT: u64 = 512;

/// Size in bytes and lifetime of a tensor, first and last moment included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Needed {
    pub from: u32,
    pub to: u32,
    pub bytes: u64,
}

/// The first byte of each, and how many bytes that takes in all.
pub(super) fn pack(all: &[Needed]) -> (Vec<u64>, u64) {
    let mut order: Vec<usize> = (0..all.len()).collect();
    order.sort_by_key(|i| (std::cmp::Reverse(all[*i].bytes), all[*i].from));
    let mut placed = PlacedByTime::new(all);
    let (mut starts, mut end) = (vec![0; all.len()], 0);
    for i in order {
        let bytes = all[i].bytes.next_multiple_of(ALIGNMENT);
        let start = placed.lowest(&all[i], bytes);
        placed.insert(&all[i], (start, start + bytes));
        starts[i] = start;
        end = end.max(start + bytes);
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

/// What has its place, by stretches of time, so that one that is needed for a short time is held against few others.
struct PlacedByTime {
    /// How many moments a stretch has.
    stretch: u32,
    by_stretch: Vec<Vec<Placed>>,
}

#[derive(Clone, Copy)]
struct Placed {
    from: u32,
    to: u32,
    bytes: (u64, u64),
}

/// How many stretches there are, at most.
const STRETCHES: u32 = 512;

impl PlacedByTime {
    fn new(all: &[Needed]) -> PlacedByTime {
        let moments = all.iter().map(|n| n.to).max().map_or(1, |last| last + 1);
        let stretch = moments.div_ceil(STRETCHES);
        PlacedByTime { stretch, by_stretch: vec![vec![]; moments.div_ceil(stretch) as usize] }
    }

    fn stretches(&self, needed: &Needed) -> std::ops::RangeInclusive<usize> {
        (needed.from / self.stretch) as usize..=(needed.to / self.stretch) as usize
    }

    /// The lowest offset that is free for a number of bytes during a lifetime.
    fn lowest(&self, needed: &Needed, bytes: u64) -> u64 {
        let beside = |p: &Placed| p.from <= needed.to && needed.from <= p.to;
        let mut taken: Vec<(u64, u64)> = vec![];
        for at in self.stretches(needed) {
            // One that is in several of these stretches counts in the first.
            let counts = |p: &&Placed| beside(p) && (p.from.max(needed.from) / self.stretch) as usize == at;
            taken.extend(self.by_stretch[at].iter().filter(counts).map(|p| p.bytes));
        }
        taken.sort_unstable();
        let mut start = 0;
        for (from, to) in taken {
            if start + bytes <= from {
                break;
            }
            start = start.max(to);
        }
        start
    }

    fn insert(&mut self, needed: &Needed, bytes: (u64, u64)) {
        let placed = Placed { from: needed.from, to: needed.to, bytes };
        let stretches = self.stretches(needed);
        self.by_stretch[stretches].iter_mut().for_each(|all| all.push(placed));
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
        // A generator of its own: what is needed when is the same in every run.
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
        let (starts, bytes) = pack(&all);
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

    #[test]
    fn one_after_the_other_takes_the_place_of_the_largest() {
        let all = [needed(0, 1, 3), needed(2, 3, 5), needed(4, 4, 1)];
        assert_eq!(pack(&all), (vec![0, 0, 0], 5 * 1024));
        assert_eq!(most(&all), (5 * 1024, 2));
    }

    #[test]
    fn nothing_takes_nothing() {
        assert_eq!((pack(&[]), most(&[])), ((vec![], 0), (0, 0)));
    }
}
