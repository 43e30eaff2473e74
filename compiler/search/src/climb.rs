//! Steps from the best candidates to better ones.

use crate::text::Candidate;
use meshwright_sorted::SortedSet;

/// The best candidates whose neighbors are looked at.
const STARTS: usize = 4;

/// Candidates whose neighbors come before those with the lowest bounds.
#[derive(Default)]
pub(crate) struct Climb {
    /// Candidates whose neighbors were asked for, without their pipelines.
    from: SortedSet<Candidate>,
    /// Neighbors that were compiled.
    asked: SortedSet<Candidate>,
    /// Neighbors of the last candidate that are left, the next one last.
    left: Vec<Candidate>,
}

impl Climb {
    /// The candidate whose neighbors come next: a new best one at once, one of the next best where no neighbors are left. Where
    /// none is found, with its seconds, it is that which misses least.
    pub(crate) fn start<'a>(
        &self,
        found: impl Iterator<Item = (f64, &'a Candidate)>,
        nearest: Option<&'a Candidate>,
    ) -> Option<Candidate> {
        let mut best: Vec<(f64, &Candidate)> = found.collect();
        best.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.cmp(b.1)));
        let mut starts: Vec<Candidate> = Vec::new();
        for c in best.into_iter().map(|(_, c)| c).chain(nearest) {
            let whole = Candidate { pipe: None, ..c.clone() };
            if starts.len() == STARTS {
                break;
            }
            if !starts.contains(&whole) {
                starts.push(whole);
            }
        }
        let fresh = |c: &Candidate| !self.from.contains(c);
        match self.left.is_empty() {
            true => starts.into_iter().find(fresh),
            false => starts.into_iter().next().filter(fresh),
        }
    }

    /// True if a neighbor was compiled.
    pub(crate) fn has_asked(&self, c: &Candidate) -> bool {
        self.asked.contains(c)
    }

    /// Goes on from a candidate to its neighbors, each with its bound: those without a new set, which are few and seldom refused,
    /// come first, then those with the lowest bounds.
    pub(crate) fn set_off(&mut self, from: Candidate, mut to: Vec<(f64, Candidate)>) {
        let is_new = |c: &Candidate| c.sets.iter().any(|s| !from.sets.contains(s));
        to.sort_by(|(b, of), (a, with)| {
            let sets = is_new(with).cmp(&is_new(of));
            sets.then_with(|| a.total_cmp(b)).then_with(|| with.cmp(of))
        });
        self.left = to.into_iter().map(|(_, c)| c).collect();
        self.from.insert(from);
    }

    /// The next neighbor.
    pub(crate) fn next(&mut self) -> Option<Candidate> {
        self.left.pop()
    }

    /// Notes that a neighbor is compiled.
    pub(crate) fn ask(&mut self, c: &Candidate) {
        self.asked.insert(c.clone());
    }

    /// Gives back neighbors that come later, in their order.
    pub(crate) fn put_back(&mut self, later: Vec<Candidate>) {
        self.left.extend(later.into_iter().rev());
    }
}
