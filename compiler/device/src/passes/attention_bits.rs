//! The truth values that attention draws, a bit for each score, from the step that draws them to the gradient that reads them
//! again.
//!
//! A forward pass draws them ahead, in a launch of its own. The gradient of the same attention needs the same bits: it
//! reads those of an earlier step in its iteration, or those that a loop over layers stored by position. Only without
//! either it draws them again.

use crate::decisions::def_use::DefUse;
use crate::kernels::attention::AttentionBitsKey;
use meshwright_plan::{Dim, Prim};
use meshwright_sorted::{SortedMap, SortedSet};

/// Most words that loops keep in all, 1 GiB: beyond, memory is worth more than the time to draw again.
const MOST_KEPT: usize = 1 << 28;

/// Bits that a loop keeps position by position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptBits {
    /// The step that draws them.
    pub by: usize,
    /// Dim of the loop.
    pub dim: Dim,
    /// The lowest position that is read. Bits of lower positions are not stored.
    pub from: usize,
}

/// The steps of a Plan that read random bits that another step has drawn.
#[derive(Clone, Debug, Default)]
pub struct AttentionBits {
    /// Bits that a step stores for a later loop, by step.
    pub stored: SortedMap<usize, KeptBits>,
    /// Bits that a step of the later loop loads, by step.
    pub loaded: SortedMap<usize, KeptBits>,
    /// Step of the same iteration whose bits a step reads, by that step.
    pub shared: SortedMap<usize, usize>,
}

impl AttentionBits {
    /// Finds them; `key` identifies the bits of a step, and is none if a step draws none ahead.
    pub(crate) fn of<'a>(
        uses: &DefUse<'a>,
        key: impl Fn(usize) -> Option<AttentionBitsKey<'a>>,
    ) -> AttentionBits {
        let mut found = AttentionBits::default();
        let attentions =
            uses.plan.steps.iter().enumerate().filter(|(_, s)| matches!(s.prim, Prim::Attention { .. }));
        let keyed: Vec<(usize, AttentionBitsKey<'a>)> =
            attentions.filter_map(|(step, _)| Some((step, key(step)?))).collect();
        if keyed.is_empty() {
            return found;
        }
        let (mut left, mut drawn) = (MOST_KEPT, SortedSet::new());
        for (step, key) in &keyed {
            let same = |(by, other): &&(usize, AttentionBitsKey<'a>)| {
                drawn.contains(by) && key.of_gradient && other.draws_as(key)
            };
            let before: Vec<usize> = keyed.iter().rev().filter(same).map(|k| k.0).collect();
            let here = before.iter().find(|by| uses.is_beside(**by, *step));
            let by = match here {
                Some(by) => {
                    found.shared.insert(*step, *by);
                    Some(*by)
                }
                None => before.into_iter().find(|by| found.store(uses, (*by, *step), key.words, &mut left)),
            };
            // One step alone consumes the bits, so that their lifetime ends there.
            match by {
                Some(by) => drop(drawn.remove(&by)),
                None => drop(drawn.insert(*step)),
            }
        }
        found
    }

    /// Makes a step read the bits of an earlier loop over the same dim, if memory is left for them.
    fn store(
        &mut self,
        uses: &DefUse<'_>,
        (by, step): (usize, usize),
        words: usize,
        left: &mut usize,
    ) -> bool {
        let plan = uses.plan;
        let over = |step: usize| {
            let begin = uses.within[step]?;
            let Prim::Repeat { dim, from, .. } = plan.steps[begin].prim else { return None };
            Some((begin, dim, from))
        };
        let (Some((drawn_in, drawn_over, first)), Some((begin, dim, from))) = (over(by), over(step)) else {
            return false;
        };
        let size = plan.dims.size(dim);
        let words = words * size.saturating_sub(from);
        let beside = drawn_in != begin && uses.within[drawn_in] == uses.within[begin];
        if !beside || drawn_over != dim || first > from || words > *left {
            return false;
        }
        *left -= words;
        let kept = KeptBits { by, dim, from };
        self.stored.insert(by, kept);
        self.loaded.insert(step, kept);
        true
    }
}
