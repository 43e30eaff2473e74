//! Matmuls that are added to a value in the memory of the value, such as the gradient of a parameter that a loop over parts of
//! the batch sums. A matmul that is stored, and a step that adds it, would write and read it once more.
//!
//! The step that adds is the last consumer of the value, so nothing reads the value after the sum has replaced it. A slice of a
//! stack is read in the stack; if nothing else reads the stack, the sum is written there (`arena/lifetimes.rs`).
//!
//! In half types the sum is rounded once; the Plan rounds the matmul before.

use super::canonical::canonical;
use super::epilogues::{Epilogue, EpilogueKind, Finder, applied};
use super::residuals::Residuals;
use crate::kernels::matmul::EpilogueFunction;
use meshwright_plan::{Operand, Prim};

impl Finder<'_> {
    /// A matmul and the step that adds it to a value, if nothing else reads the one or the other.
    pub(super) fn adds(&self, at: usize, residuals: &Residuals) -> Option<Epilogue> {
        let step = &self.uses.plan.steps[at];
        let (Prim::Map { expr, regs }, [_, _], [written]) = (&step.prim, &step.reads[..], &step.writes[..])
        else {
            return None;
        };
        let form = canonical(expr, *regs.first()?)?;
        (0..2).find_map(|product| {
            let (made, value) = (&step.reads[product], &step.reads[1 - product]);
            let by = self.uses.written_by(made.buf, at)?;
            let alone = |o: &Operand| {
                self.uses.only(o.buf) == Some(at) && !self.uses.leaves(o.buf) && o.dims == written.dims
            };
            let is_sum =
                applied(EpilogueFunction::Identity, product, Some(1 - product)).as_ref() == Some(&form);
            let fits = is_sum && alone(made) && alone(value) && self.uses.ends_with(value.buf, at);
            if !fits || !self.is_free_product(by) || !self.uses.is_beside(by, at) {
                return None;
            }
            let before = self.before(value, (at, by), residuals)?;
            let does = EpilogueKind::Adds { product, sums: None };
            Some(Epilogue { product: by, other: at, before, after: vec![], does })
        })
    }

    /// Steps to move before a matmul, so that the value exists by then: the slice of a stack that reads it, or no step. `None` if
    /// the value is computed too late.
    fn before(&self, value: &Operand, (at, by): (usize, usize), residuals: &Residuals) -> Option<Vec<usize>> {
        let place = |step: usize| self.order.place[step];
        let runs =
            |step: usize| self.all.moved.get(&step).map_or(place(step), |to| place(step).max(place(*to)));
        let is_early = |buf| self.uses.written_by(buf, at).is_none_or(|w| runs(w) < place(by));
        // The result of a collective exists only after its wait.
        let arrives = self.uses.plan.steps[by..at].iter().any(|s| matches!(s.prim, Prim::Wait));
        if arrives {
            return None;
        }
        if is_early(value.buf) {
            return Some(vec![]);
        }
        let slice = self.uses.written_by(value.buf, at)?;
        let taken = residuals.steps.contains_key(&slice) || self.all.moved.contains_key(&slice);
        let step = &self.uses.plan.steps[slice];
        let (Prim::IterationSlice { .. }, [stack]) = (&step.prim, &step.reads[..]) else { return None };
        let fits = !taken && self.uses.is_beside(slice, by) && is_early(stack.buf);
        fits.then(|| vec![slice])
    }
}
