//! Fusion of steps along rows: reductions of a row, element-wise functions of its elements and these reductions, and
//! sums over all rows. A norm is two sums and a function of them; cross-entropy a maximum, a sum, and the gradient; the
//! gradient of a norm has sums over all rows for its scale, its shift, and the bias of the layer below. The fused
//! kernel reads a row once, and values between its steps are never in memory.
//!
//! The steps of a group need not be adjacent in the Plan. The kernel runs at the position of the last one; steps
//! between them that consume its results run after it ([`crate::passes::step_order`]).

use crate::decisions::Decisions;
use crate::decisions::def_use::{DefUse, ended, takes};
use crate::decisions::fused::{FusedCall, FusedGroup};
use crate::lowering::Lowering;
use crate::passes::epilogues::Epilogues;
use crate::passes::step_order::StepOrder;
use meshwright_plan::{BufId, Dim, Monoid, Operand, Prim, Step};
use meshwright_sorted::SortedSet;

/// Longest span of a group, in steps of the Plan.
const FARTHEST: usize = 64;

/// Dims of steps along rows, in the order of the values that have all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowGroupDims {
    /// Dims of the rows.
    pub rows: Vec<Dim>,
    /// Dims along a row.
    pub along: Vec<Dim>,
}

impl RowGroupDims {
    /// All dims.
    pub fn dims(&self) -> Vec<Dim> {
        [&self.rows[..], &self.along].concat()
    }
}

/// Steps along rows.
#[derive(Clone, Debug)]
pub struct RowSteps {
    /// Their dims.
    pub space: RowGroupDims,
    /// The steps, in the order of the Plan.
    pub steps: Vec<usize>,
    /// Values without other consumers.
    pub inner: SortedSet<BufId>,
}

/// The groups of the pass on a device.
pub(crate) fn groups(lowering: &Lowering<'_>) -> Vec<FusedGroup> {
    // Steps that matmuls would compute if there were no groups.
    let Decisions { residuals, masks, fused, inlined, .. } = &lowering.decisions;
    let order = StepOrder::of(&lowering.uses, fused, inlined, lowering.graph.target.maps);
    let taken = (residuals, masks, fused, inlined);
    let all = Epilogues::of(&lowering.uses, taken, &order, |e| lowering.has_epilogue(e));
    let beside = all.moved.keys().copied().collect();
    let rounds = |at: &usize| lowering.rounded_to_bytes(&lowering.context.plan.steps[*at]).is_some();
    let call = |group: &RowSteps| match group.steps.iter().any(rounds) {
        true => None,
        false => lowering.row_call(group).ok().flatten(),
    };
    row_groups(&lowering.uses, &beside, call, |s| lowering.may_wait(s))
}

/// Finds groups, in the order of the Plan; `call` gives the kernel that the device has for steps, if it has one, and `waits` says
/// whether delaying another step until after the group costs nothing. A sum over rows that a matmul's epilogue computes
/// (`beside`) begins no group.
pub fn row_groups(
    uses: &DefUse<'_>,
    beside: &SortedSet<usize>,
    call: impl Fn(&RowSteps) -> Option<FusedCall>,
    waits: impl Fn(&Step) -> bool,
) -> Vec<FusedGroup> {
    let finder = Finder { uses, beside, call, waits };
    let (mut all, mut at) = (vec![], 0);
    while at < uses.plan.steps.len() {
        let found = finder.dims_of(at).and_then(|dims| finder.grown(at, dims.space));
        // The stretches of groups do not overlap.
        at = found.as_ref().map_or(at, FusedGroup::last) + 1;
        all.extend(found);
    }
    all
}

struct Finder<'a, C, W> {
    uses: &'a DefUse<'a>,
    beside: &'a SortedSet<usize>,
    call: C,
    waits: W,
}

/// The dims of rows and those along a row, and the step that folds them.
struct RowDims {
    space: RowGroupDims,
    by: usize,
}

/// A growing group.
struct Growth {
    group: RowSteps,
    /// Its kernel, once it has a step.
    call: Option<FusedCall>,
    /// Steps between its own that run after it.
    after: Vec<usize>,
    /// Results of its steps, results that depend on a reduction, and other values that depend on the group.
    made: SortedSet<BufId>,
    of_folds: SortedSet<BufId>,
    waiting: SortedSet<BufId>,
    /// Operands of these steps.
    held: SortedSet<BufId>,
    /// Whether it sums over rows, and whether the fused kernel is faster than its steps.
    sums: bool,
    pays: bool,
}

impl<C: Fn(&RowSteps) -> Option<FusedCall>, W: Fn(&Step) -> bool> Finder<'_, C, W> {
    /// The dims of the rows of a group that begins at a step.
    fn dims_of(&self, at: usize) -> Option<RowDims> {
        let step = &self.uses.plan.steps[at];
        if !matches!(step.prim, Prim::Map { .. }) {
            return split(step, at);
        }
        // The dims of the first fold that an element-wise step leads to; without one, of a sum over rows.
        let dims = &step.writes.first()?.dims;
        let mut reached: SortedSet<BufId> = step.writes.iter().map(|o| o.buf).collect();
        let end = self.uses.plan.steps.len().min(at + FARTHEST);
        let near = (at + 1..end).filter(|s| self.uses.is_beside(at, *s));
        let mut sums = None;
        for (number, later) in near.map(|s| (s, &self.uses.plan.steps[s])) {
            if !later.reads.iter().any(|o| reached.contains(&o.buf) && o.dims == *dims) {
                continue;
            }
            match &later.prim {
                Prim::Map { .. } if later.writes.iter().all(|o| o.dims == *dims) => {
                    reached.extend(later.writes.iter().map(|o| o.buf));
                }
                _ => match split(later, number).filter(|found| found.space.dims() == *dims) {
                    Some(found) if found.sums_columns(later) => sums = sums.or(Some(found)),
                    Some(found) => return Some(found),
                    None => {}
                },
            }
        }
        sums.filter(|_| !self.beside.contains(&at))
    }

    /// The group that a step begins, if it is worth one.
    fn grown(&self, first: usize, space: RowGroupDims) -> Option<FusedGroup> {
        let mut growth = Growth::new(space);
        if !self.joins(&mut growth, first) {
            return None;
        }
        let end = self.uses.plan.steps.len().min(first + FARTHEST);
        for at in first + 1..end {
            let step = &self.uses.plan.steps[at];
            let reads = |of: &SortedSet<BufId>| step.reads.iter().any(|o| of.contains(&o.buf));
            let depends = reads(&growth.made) || reads(&growth.waiting);
            let wanted = depends || self.shares(&growth, at);
            if !reads(&growth.waiting) && wanted && self.joins(&mut growth, at) {
                continue;
            }
            if !self.passes(&growth, (first, at), depends) {
                break;
            }
            if depends {
                growth.after.push(at);
                growth.waiting.extend(step.writes.iter().map(|o| o.buf));
                growth.held.extend(step.reads.iter().map(|o| o.buf));
            }
        }
        let Growth { group: RowSteps { steps, inner, .. }, call: Some(call), mut after, pays: true, .. } =
            growth
        else {
            return None;
        };
        after.retain(|at| steps.last().is_some_and(|last| at < last));
        Some(FusedGroup { steps, after, inner, call })
    }

    /// Whether a step could begin a group of the same rows and shares an operand with this group, or leads to a fold
    /// that does: the fused kernel reads the operand once.
    fn shares(&self, growth: &Growth, at: usize) -> bool {
        let RowSteps { space, steps, .. } = &growth.group;
        let dims = space.dims();
        let reads = |of: usize| self.uses.plan.steps[of].reads.iter().filter(|o| o.dims == dims);
        let read =
            |o: &Operand| growth.made.contains(&o.buf) || steps.iter().any(|s| reads(*s).any(|r| r == o));
        self.dims_of(at).is_some_and(|found| {
            found.space == *space && [at, found.by].into_iter().any(|s| reads(s).any(read))
        })
    }

    /// True if a group that began at a step may continue behind another step, which is not part of it.
    fn passes(&self, growth: &Growth, (first, at): (usize, usize), depends: bool) -> bool {
        let step = &self.uses.plan.steps[at];
        let moves = matches!(
            step.prim,
            Prim::IterationUpdate { .. } | Prim::IterationSlice { .. } | Prim::Copy | Prim::Blank { .. }
        );
        let ends = ended(step).any(|b| growth.held.contains(&b));
        match &step.prim {
            Prim::Repeat { .. } | Prim::EndRepeat => false,
            _ if !self.uses.is_beside(first, at) => false,
            // Work that overlaps a collective is not delayed until its wait.
            Prim::Wait if growth.pays => false,
            _ if takes(step) => !depends && !ends,
            _ if depends => moves || (self.waits)(step),
            _ => true,
        }
    }

    /// True if one fold alone, which cannot join the group, consumes a value: it computes the value of what is stored anyway.
    fn is_folded(&self, growth: &Growth, at: usize) -> bool {
        let step = &self.uses.plan.steps[at];
        let (Prim::Map { .. }, [from], [out]) = (&step.prim, &step.reads[..], &step.writes[..]) else {
            return false;
        };
        let by = self.uses.folded_by(at, out);
        let joins = |by: usize| {
            split(&self.uses.plan.steps[by], by).is_some_and(|found| found.space == growth.group.space)
        };
        let stored = |buf| self.uses.leaves(buf) || self.uses.only(buf).is_none();
        let stored = !growth.made.contains(&from.buf) || stored(from.buf);
        by.is_some_and(|by| !joins(by)) && stored && !self.uses.leaves(out.buf)
    }

    /// Adds a step, if the device has a kernel for the group with it.
    fn joins(&self, growth: &mut Growth, at: usize) -> bool {
        let step = &self.uses.plan.steps[at];
        let space = growth.group.space.clone();
        let (dims, RowGroupDims { rows, along }) = (space.dims(), &space);
        let first = growth.group.steps.first().copied().unwrap_or(at);
        let fits = match &step.prim {
            Prim::Map { .. } => {
                let all = |of: &[Dim]| step.writes.iter().all(|o| o.dims == *of);
                all(&dims) || all(rows)
            }
            _ => split(step, at).is_some_and(|found| found.space == space),
        };
        let sums_columns = step.writes.iter().any(|o| o.dims == *along);
        // Under other names of dims it is another tensor.
        let same = |o: &Operand| {
            !growth.made.contains(&o.buf) || o.dims.len() == dims.len() && o.dims == dims || o.dims == *rows
        };
        if !fits
            || !step.reads.iter().all(same)
            || !self.uses.is_beside(first, at)
            || self.is_folded(growth, at)
        {
            return false;
        }
        let mut group = growth.group.clone();
        group.steps.push(at);
        let alone = |b: &BufId| {
            let by = self.uses.readers.get(b).into_iter().flatten();
            !self.uses.leaves(*b) && by.into_iter().all(|reader| group.steps.contains(reader))
        };
        let written = group.steps.iter().flat_map(|s| &self.uses.plan.steps[*s].writes);
        group.inner = written.map(|o| o.buf).filter(alone).collect();
        let Some(call) = (self.call)(&group) else { return false };
        (growth.group, growth.call) = (group, Some(call));
        let folds = matches!(step.prim, Prim::Reduce { .. } | Prim::Contract);
        let of_rows = !folds && !matches!(step.prim, Prim::Map { .. });
        // A value that is summed over rows is read once for the sum and its other consumers.
        growth.sums |= sums_columns;
        growth.pays |= growth.sums && growth.group.steps.len() > 1;
        let late = of_rows || folds || step.reads.iter().any(|o| growth.of_folds.contains(&o.buf));
        let writes = || step.writes.iter().map(|o| o.buf);
        growth.pays |= of_rows || late && !folds && step.writes.iter().any(|o| o.dims == dims);
        growth.made.extend(writes());
        growth.of_folds.extend(writes().filter(|_| late));
        growth.held.extend(step.reads.iter().map(|o| o.buf));
        true
    }
}

impl Growth {
    fn new(space: RowGroupDims) -> Growth {
        Growth {
            group: RowSteps { space, steps: vec![], inner: SortedSet::new() },
            call: None,
            after: vec![],
            made: SortedSet::new(),
            of_folds: SortedSet::new(),
            waiting: SortedSet::new(),
            held: SortedSet::new(),
            sums: false,
            pays: false,
        }
    }
}

impl RowDims {
    /// Whether a fold with these dims sums over the rows.
    fn sums_columns(&self, fold: &Step) -> bool {
        fold.writes.iter().any(|o| o.dims == self.space.along)
    }
}

/// The operand's dims of a step along rows, and the dims of the result, or of the rows.
fn along_of(step: &Step) -> Option<(&Vec<Dim>, Vec<Dim>)> {
    let dims = &step.reads.first()?.dims;
    match &step.prim {
        Prim::Reduce { .. } => Some((dims, step.writes.first()?.dims.clone())),
        Prim::Contract if step.reads.iter().all(|o| o.dims == *dims) => {
            Some((dims, step.writes.first()?.dims.clone()))
        }
        Prim::Softmax { dim, .. }
        | Prim::LogSumExp { dim }
        | Prim::CrossEntropy { dim }
        | Prim::CrossEntropyGrad { dim } => Some((dims, dims.iter().copied().filter(|d| d != dim).collect())),
        _ => None,
    }
}

/// The dims of rows and along a row of a step, if the latter come last: it reduces these, or sums the former. A
/// reduction to one number has no rows: the norm of a parameter is spread over a whole device, in one launch with other
/// norms.
fn split(step: &Step, by: usize) -> Option<RowDims> {
    let (dims, kept) = along_of(step)?;
    let folds = matches!(step.prim, Prim::Reduce { .. } | Prim::Contract);
    if let Some(along) = dims.strip_prefix(&kept[..]) {
        let none = along.is_empty() || folds && kept.is_empty();
        return (!none).then(|| RowDims { space: RowGroupDims { rows: kept, along: along.to_vec() }, by });
    }
    let sums = matches!(step.prim, Prim::Reduce { monoid: Monoid::Sum } | Prim::Contract);
    let rows = dims.strip_suffix(&kept[..]).filter(|rows| sums && !rows.is_empty() && !kept.is_empty())?;
    Some(RowDims { space: RowGroupDims { rows: rows.to_vec(), along: kept }, by })
}
