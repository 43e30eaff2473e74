//! What each axis costs by itself: programs in which one axis alone splits its set. However well the other axes of a mesh divide
//! such a program, a candidate takes as long as the longest of those of its axes.

use crate::base::BaseWork;
use crate::base_bound::{BaseBound, BasePlace};
use crate::compiled::{CandidateRefusal, CandidateResult, Subject};
use crate::space::{Space, Stored};
use crate::text::{Candidate, WrittenLayout};
use crate::work::ModelWork;
use meshwright_sorted::SortedMap;

/// Size of the axis that a set is first tried on.
const FIRST: usize = 2;

/// A set over an axis of some size.
pub type AxisOfSet = (usize, usize);

/// What is known of axes alone.
#[derive(Default)]
pub struct AxesAlone {
    known: SortedMap<AxisOfSet, Option<BaseWork>>,
    bounds: SortedMap<(AxisOfSet, BasePlace), f64>,
    /// Sets that no layout may have, with the reason.
    pub refused: SortedMap<usize, CandidateRefusal>,
}

impl AxesAlone {
    /// Compiles the program of a set alone over an axis.
    pub fn compiled(
        (space, work, subject): (&Space, &ModelWork, &Subject<'_>),
        of: AxisOfSet,
    ) -> CandidateResult<BaseWork> {
        let (text, devices) = (AxesAlone::program(space, of), space.choices.devices);
        if space.choices.kept.axes.is_empty() {
            return subject.alone(&text, work, (of.1, devices.max(of.1)));
        }
        subject.base(&text, work).map(|b| b.map(|b| b.1))
    }

    /// The layout of a set alone over an axis. Lines that are kept need their axes, and the set has its own besides: what they
    /// split over theirs may not go with it.
    fn program(space: &Space, (set, size): AxisOfSet) -> WrittenLayout {
        let kept = space.choices.kept.axes.len();
        let nothing = space.sets.iter().position(|s| s.dims.is_empty());
        let (mut mesh, mut sets) = (vec![FIRST; kept], Vec::new());
        sets.extend(std::iter::repeat_n(nothing, kept).flatten());
        if !space.sets[set].dims.is_empty() {
            mesh.push(size);
            sets.push(set);
        }
        let stored = vec![Stored::Whole; mesh.len()];
        space.written(&Candidate { mesh, sets, stored, ..Candidate::default() })
    }

    /// Keeps what a program has shown.
    pub fn take(&mut self, of: AxisOfSet, base: Result<BaseWork, CandidateRefusal>) {
        if let (FIRST, Err(why)) = (of.1, &base) {
            self.refused.insert(of.0, *why);
        }
        self.known.insert(of, base.ok());
        self.bounds.retain(|(known, _), _| *known != of);
    }

    /// Programs of the axes of a mesh that are not known: first programs that show whether sets are legal, then those of the very
    /// sizes.
    pub fn unknown(&self, space: &Space, c: &Candidate) -> Vec<AxisOfSet> {
        let missing = |of: &AxisOfSet| !self.known.contains_key(of);
        let first = self.unknown_sets(c);
        // With lines that are kept no program is of one axis alone, and what is the only axis of a mesh is the candidate itself.
        if !first.is_empty() || c.sets.len() == 1 || !space.choices.kept.axes.is_empty() {
            return first;
        }
        c.sets.iter().copied().zip(c.mesh.iter().copied()).filter(missing).collect()
    }

    /// Programs by which sets are seen to be legal.
    pub(crate) fn unknown_sets(&self, c: &Candidate) -> Vec<AxisOfSet> {
        c.sets.iter().map(|s| (*s, FIRST)).filter(|of| !self.known.contains_key(of)).collect()
    }

    /// The bound of what is known of the first axes of a mesh.
    pub fn least(
        &mut self,
        (space, work, subject): (&Space, &ModelWork, &Subject<'_>),
        (mesh, sets): (&[usize], &[usize]),
    ) -> f64 {
        let mut least: f64 = 0.0;
        // The only axis of a stage has all examples of a part; its program alone has fewer.
        let only = mesh.len() == 1 && space.stages(mesh) > 1;
        if only || !space.choices.kept.axes.is_empty() {
            return least;
        }
        // An axis that splits heads changes what the others compute.
        let splits_heads = |set: &usize| space.sets[*set].families & work.whole_heads != 0;
        let any = sets.iter().any(splits_heads);
        for (at, set) in sets.iter().enumerate().filter(|(_, set)| !any || splits_heads(set)) {
            let exact = (*set, mesh[at]);
            let of = if self.known.contains_key(&exact) { exact } else { (*set, FIRST) };
            let (Some(Some(base)), Some(rates)) = (self.known.get(&of), &work.rates) else { continue };
            let place = BasePlace::axis(mesh, at, of.1);
            let bound = || {
                let stored = if space.sets[*set].sums { Stored::Params } else { Stored::Whole };
                let bound = BaseBound::new(base, place.clone(), rates, subject.machine);
                bound.least(&[stored], space.parts.len())
            };
            least = least.max(*self.bounds.entry((of, place.clone())).or_insert_with(bound));
        }
        least / space.stages(mesh) as f64
    }
}
