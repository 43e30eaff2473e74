//! Bounds of the candidates that have the rules of a base, in two levels of which each is no lower than the one before.

use crate::base::BaseWork;
use crate::base_bound::{BaseBound, BasePlace};
use crate::space::{Space, Stored};
use crate::text::Candidate;
use crate::work::ModelWork;
use meshwright_cost::machine::Machine;
use meshwright_sorted::SortedMap;

/// Seconds below which a candidate is not.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Levels {
    /// By what the model computes.
    pub b0: f64,
    /// By the program of its rules too. `B0` may say more of parameters that are stored split: it knows what the update does of
    /// each.
    pub b1: f64,
}

/// Bounds of the candidates with the rules of a base.
pub struct RuleBounds<'a> {
    space: &'a Space,
    work: &'a ModelWork,
    base: Option<BaseBound<'a>>,
    /// Seconds of the program in its order, by what is stored.
    ordered: SortedMap<Vec<Stored>, f64>,
}

impl<'a> RuleBounds<'a> {
    /// Of a base on a mesh that was compiled.
    pub fn new(
        (space, work): (&'a Space, &'a ModelWork),
        (base, mesh): (&'a BaseWork, &[usize]),
        machine: &Machine,
    ) -> RuleBounds<'a> {
        let bound = |rates| BaseBound::new(base, BasePlace::whole(mesh), rates, machine);
        RuleBounds { space, work, base: work.rates.as_ref().map(bound), ordered: SortedMap::new() }
    }

    /// The bounds of a candidate.
    pub fn of(&mut self, c: &Candidate) -> Levels {
        let with = |again| b0(self.space, self.work, c, again);
        let (none, b0) = (with(0), with(c.recompute));
        let Some(base) = &self.base else { return Levels { b0, b1: b0 } };
        let stages = self.space.stages(&c.mesh) as f64;
        let ordered = *self.ordered.entry(c.stored.clone()).or_insert_with(|| base.ordered(&c.stored));
        let own = base.in_order(&c.stored, c.parts, (b0 - none) * stages, ordered);
        Levels { b0, b1: b0.max(own / stages) }
    }
}

/// `B0` of a candidate, with another choice of what is computed again.
fn b0(space: &Space, work: &ModelWork, c: &Candidate, again: usize) -> f64 {
    space.roofline(work, (&c.mesh, &c.sets), &c.stored, (again, &(c.parts..c.parts + 1)))
}

impl Candidate {
    /// Its `B0`, for which nothing is compiled.
    pub fn b0(&self, space: &Space, work: &ModelWork) -> f64 {
        b0(space, work, self, self.recompute)
    }
}

impl Space {
    /// All candidates with the rules of a base, but for their pipelines.
    pub fn variants<'s>(&'s self, base: &'s Candidate) -> impl Iterator<Item = Candidate> + 's {
        let stored = |parts: usize| {
            self.stored(&base.sets, self.parts[parts]).into_iter().map(move |stored| (parts, stored))
        };
        let each = self.parts_of(&base.mesh, &base.sets).flat_map(stored);
        each.flat_map(move |(parts, stored)| {
            (0..self.recompute.len()).flat_map(move |recompute| {
                let stored = stored.clone();
                self.trades(&stored, parts).map(move |trades| Candidate {
                    stored: stored.clone(),
                    parts,
                    recompute,
                    trades,
                    ..base.clone()
                })
            })
        })
    }
}
