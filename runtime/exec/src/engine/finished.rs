//! Rows that are written as what comes of them: the gradient of cross-entropy in the half type, and scaled, in which a product reads it.
//!
//! A step along rows gives `f32`, and one element-wise step alone reads that. A device whose kernel of the one can compute the other leaves
//! out a pass over what is often the largest value of a step.

use super::inlined::InlinedValues;
use super::residuals::{Readers, Residuals};
use meshwright_plan::{BufId, Plan, Prim};
use std::collections::{BTreeMap, BTreeSet};

/// All of a Plan.
#[derive(Debug, Default)]
pub(crate) struct FinishedRows {
    /// By the step along rows the element-wise one that is done with it.
    pub(crate) by: BTreeMap<usize, usize>,
    /// The latter.
    pub(crate) skipped: BTreeSet<usize>,
    /// What is between them.
    pub(crate) never: BTreeSet<BufId>,
}

impl FinishedRows {
    /// Finds them; `finishes` says whether the device can do the second of two steps with the first.
    pub(crate) fn of(
        plan: &Plan,
        (residuals, inlined): (&Residuals, &InlinedValues),
        finishes: impl Fn(usize, usize) -> bool,
    ) -> FinishedRows {
        let (readers, mut all) = (Readers::of(plan), FinishedRows::default());
        for (at, step) in plan.steps.iter().enumerate() {
            let (Prim::CrossEntropyGrad { .. }, [between]) = (&step.prim, &step.writes[..]) else { continue };
            let Some(map) = readers.only(between.buf).filter(|map| readers.is_beside(at, *map)) else {
                continue;
            };
            let other = &plan.steps[map];
            let ([read], [written]) = (&other.reads[..], &other.writes[..]) else { continue };
            let fits = matches!(other.prim, Prim::Map { .. }) && read == between && written.dims == read.dims;
            let computed = inlined.skipped.contains(&map) || inlined.values.contains_key(&written.buf);
            let taken = computed || residuals.steps.contains_key(&map) || readers.leaves(between.buf);
            if fits && !taken && finishes(at, map) {
                all.by.insert(at, map);
                all.skipped.insert(map);
                all.never.insert(between.buf);
            }
        }
        all
    }
}
