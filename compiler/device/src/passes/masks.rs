//! Truth values that are drawn at random, and that a device draws where it reads them: they are never in memory.
//!
//! Element-wise steps of the forward pass and of the backward pass read a mask of dropout; a loop over layers stores it
//! for the latter by position. A counter-based generator gives the same bits everywhere, so a device with kernels that
//! draw while they compute needs neither the mask nor its stack.

use super::residuals::{ResidualStep, Residuals};
use crate::decisions::def_use::DefUse;
use meshwright_plan::random::Distribution;
use meshwright_plan::{BufId, Prim};
use meshwright_sorted::{SortedMap, SortedSet};

/// The random values of a Plan that each consumer draws itself.
#[derive(Clone, Debug, Default)]
pub struct Masks {
    /// Step of the Plan that draws a buffer, or the values that a stack holds, by buffer.
    pub drawn_by: SortedMap<BufId, usize>,
    /// Steps without work: no consumer reads their results.
    pub skipped: SortedSet<usize>,
}

impl Masks {
    /// Finds them; `draws` says whether a step can draw the random values of a buffer instead of its producer.
    pub fn of(
        uses: &DefUse<'_>,
        residuals: &Residuals,
        draws: impl Fn(usize, BufId, usize) -> bool,
    ) -> Masks {
        let mut masks = Masks::default();
        for (at, step) in uses.plan.steps.iter().enumerate() {
            let (Prim::Random { distribution: Distribution::Bernoulli { .. }, .. }, [out]) =
                (&step.prim, &step.writes[..])
            else {
                continue;
            };
            let Some(found) = uses.mask((at, out.buf), residuals, &draws) else { continue };
            if found.drawn_by.keys().all(|buf| !uses.leaves(*buf)) {
                masks.drawn_by.extend(found.drawn_by);
                masks.skipped.extend(found.skipped);
            }
        }
        masks
    }
}

impl DefUse<'_> {
    /// The mask that a step draws into a buffer, if all its consumers can draw it.
    fn mask(
        &self,
        (at, buf): (usize, BufId),
        residuals: &Residuals,
        draws: &impl Fn(usize, BufId, usize) -> bool,
    ) -> Option<Masks> {
        let mut found = Masks::default();
        found.drawn_by.insert(buf, at);
        found.skipped.insert(at);
        // Another loop would draw other values.
        let draws_here = |reader: &usize, of: BufId, near: usize| {
            self.within[*reader] == self.within[near] && draws(*reader, of, at)
        };
        for reader in self.readers.get(&buf)? {
            let Some(ResidualStep::Store { stack, .. }) = residuals.steps.get(reader) else {
                if draws_here(reader, buf, at) {
                    continue;
                }
                return None;
            };
            found.skipped.insert(*reader);
            for (load, how) in &residuals.steps {
                if !matches!(how, ResidualStep::Load { stack: of, .. } if of == stack) {
                    continue;
                }
                let kept = self.plan.steps[*load].writes.first()?.buf;
                let readers = self.readers.get(&kept).map_or(&[][..], Vec::as_slice);
                if !readers.iter().all(|reader| draws_here(reader, kept, *load)) {
                    return None;
                }
                found.drawn_by.insert(kept, at);
                found.skipped.insert(*load);
            }
        }
        Some(found)
    }
}
