//! Inlined values: a reduction or a join computes its operand itself, so that the operand is never stored. Examples are the
//! squares of a norm, the terms of a scale's gradient, and both halves of what rotary positions turn.
//!
//! An inlined value is written by an element-wise step, and one reduction, one sum of products or one join is its only consumer.
//! If the step writes other values from which it can be computed, it is computed from those.

use crate::decisions::def_use::{DefUse, ended, takes};
use crate::decisions::fused::FusedGroups;
use meshwright_plan::{BufId, Computed, Operand, Prim, Step, subexpression};
use meshwright_sorted::{SortedMap, SortedSet};

/// A value that is computed where it is folded or joined.
#[derive(Clone, Debug)]
pub struct Inlined {
    /// Expression that computes the value.
    pub of: Computed,
    /// Operands of the expression, in the order in which it loads them.
    pub reads: Vec<Operand>,
    /// The step that folds or joins it.
    pub by: usize,
}

/// The inlined values of a Plan.
#[derive(Clone, Debug, Default)]
pub struct InlinedValues {
    /// Values by the buffer that is not written.
    pub values: SortedMap<BufId, Inlined>,
    /// Steps that write nothing but inlined values.
    pub skipped: SortedSet<usize>,
}

impl InlinedValues {
    /// Finds them; `computes` says whether a step can compute its operand, and `writes` whether the producer can leave out
    /// a result.
    pub fn of(
        uses: &DefUse<'_>,
        fused: &FusedGroups,
        computes: impl Fn(&Inlined, BufId) -> bool,
        writes: impl Fn(&Step) -> bool,
    ) -> InlinedValues {
        let (plan, mut all) = (uses.plan, InlinedValues::default());
        let mut folding = SortedSet::new();
        for (at, step) in plan.steps.iter().enumerate() {
            let Prim::Map { expr, regs } = &step.prim else { continue };
            if fused.members.contains_key(&at) {
                continue;
            }
            let by: Vec<Option<usize>> =
                step.writes.iter().map(|o| uses.taken_by(at, o).filter(|_| !uses.leaves(o.buf))).collect();
            let (once, stays): (Vec<usize>, Vec<usize>) = (0..by.len()).partition(|k| by[*k].is_some());
            if once.is_empty() || !stays.is_empty() && !writes(step) {
                continue;
            }
            // One of two factors of a sum of products stays an operand; a join computes all its parts.
            let mut folded = SortedSet::new();
            let joins = |by: usize| matches!(plan.steps[by].prim, Prim::Concat { .. });
            let mut second = |by: usize| folding.contains(&by) || !folded.insert(by);
            if by.iter().flatten().any(|by| fused.members.contains_key(by) || !joins(*by) && second(*by)) {
                continue;
            }
            let found = once.iter().map(|k| {
                let others = stays.iter().map(|s| (regs[*s], &step.writes[*s]));
                let (of, reads) = subexpression(expr, regs[*k], others.collect(), &step.reads);
                let by = by[*k]?;
                let inlined = Inlined { of, reads, by };
                let pays = stays.is_empty() || uses.pays(&inlined, &step.writes[*k]);
                // The consumer may be delayed after a group.
                let runs = fused.waiting.get(&by).copied().unwrap_or(by);
                let taken = |o: &Operand| {
                    plan.steps[by..=runs].iter().any(|s| takes(s) && ended(s).any(|b| b == o.buf))
                };
                // Parts of a join are computed of the same operands, which the step of another part may be the last to read.
                let by_map =
                    |buf| uses.end(buf).is_some_and(|end| matches!(plan.steps[end].prim, Prim::Map { .. }));
                let live = |buf| uses.lasts(buf, at, by) || joins(by) && by_map(buf);
                let lasts = |o: &Operand| live(o.buf) && !taken(o);
                (pays && inlined.reads.iter().all(lasts) && computes(&inlined, step.writes[*k].buf))
                    .then_some((step.writes[*k].buf, inlined))
            });
            // All or none: the operands of an inlined value must be stored.
            let Some(found) = found.collect::<Option<Vec<_>>>() else { continue };
            folding.extend(found.iter().map(|(_, inlined)| inlined.by));
            all.values.extend(found);
            if stays.is_empty() {
                all.skipped.insert(at);
            }
        }
        all
    }
}

impl DefUse<'_> {
    /// The only consumer of a value, if it is a reduction in the same iteration and reads the value once under the same
    /// dims.
    pub(crate) fn folded_by(&self, at: usize, written: &Operand) -> Option<usize> {
        self.taken_by(at, written).filter(|by| !matches!(self.plan.steps[*by].prim, Prim::Concat { .. }))
    }

    /// The same for a reduction or a join.
    fn taken_by(&self, at: usize, written: &Operand) -> Option<usize> {
        let by = self.only(written.buf)?;
        let step = self.plan.steps.get(by)?;
        let mut reads = step.reads.iter().filter(|o| o.buf == written.buf);
        let once = reads.next() == Some(written) && reads.next().is_none();
        let computes = matches!(step.prim, Prim::Reduce { .. } | Prim::Contract | Prim::Concat { .. });
        (computes && once && self.is_beside(by, at)).then_some(by)
    }

    /// Whether reading the operands of a value again moves fewer bytes than writing and reading the value.
    fn pays(&self, inlined: &Inlined, written: &Operand) -> bool {
        let bytes = |o: &Operand| {
            let buffer = self.plan.buffer(o.buf);
            buffer.extents.iter().map(|e| e.size).product::<usize>() * buffer.dtype.bytes()
        };
        inlined.reads.iter().map(bytes).sum::<usize>() < 2 * bytes(written)
    }
}
