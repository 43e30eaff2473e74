//! Matmuls of one shape that share a factor, in the same iteration of the same loop: queries, keys and values of one activation,
//! the two matmuls of a gated layer, and the gradients of their weights. Their tiles fill a device together, and one launch
//! reads what they share.
//!
//! The launch runs at the position of the last one; steps between them that only store or convert its results run after it.

use super::form::FormedMatmul;
use crate::decisions::Decisions;
use crate::decisions::def_use::{ended, takes};
use crate::decisions::fused::FusedGroup;
use crate::lowering::Lowering;
use crate::passes::epilogues::Epilogues;
use crate::passes::step_order::StepOrder;
use meshwright_plan::{BufId, Operand, Prim, Step};
use meshwright_sorted::SortedSet;

/// Longest span of a group, in steps of the Plan.
const FARTHEST: usize = 64;

/// Most matmuls of a group: what each reads and writes is live at once.
const MOST: usize = 4;

/// The groups of the pass on a device.
pub(crate) fn groups(lowering: &Lowering<'_>) -> Vec<FusedGroup> {
    if !lowering.graph.target.joined_products {
        return vec![];
    }
    // Epilogues that matmuls would have if there were no groups.
    let Decisions { residuals, masks, fused, inlined, .. } = &lowering.decisions;
    let order = StepOrder::of(&lowering.uses, fused, inlined, lowering.graph.target.maps);
    let taken = (residuals, masks, fused, inlined);
    let epilogues = Epilogues::of(&lowering.uses, taken, &order, |e| lowering.has_epilogue(e));
    let mut finder = JoinFinder { lowering, found: vec![] };
    let steps = lowering.context.plan.steps.iter().enumerate();
    let contracts = steps.filter(|(_, step)| matches!(step.prim, Prim::Contract)).map(|(at, _)| at);
    let free = |at: &usize| !finder.is_taken(*at);
    let formed = |at| lowering.formed_product(at, epilogues.at.get(&at));
    let products: Vec<FormedMatmul> = contracts.filter(free).filter_map(formed).collect();
    let (mut all, mut used) = (vec![], SortedSet::new());
    for (n, first) in products.iter().enumerate() {
        if used.contains(&first.product) {
            continue;
        }
        let others = || products[n + 1..].iter().filter(|p| !used.contains(&p.product));
        let grown = [true, false].map(|left| finder.grown(first, left, others()));
        let Some((members, group)) = grown.into_iter().flatten().max_by_key(|(members, _)| members.len())
        else {
            continue;
        };
        used.extend(members);
        let moved = finder.moved(&group.steps, &group.after);
        finder.found.push(moved);
        all.push(group);
    }
    all.retain(|group| !lowering.apart.contains(&group.last()));
    all
}

struct JoinFinder<'l, 'a> {
    lowering: &'l Lowering<'a>,
    found: Vec<MovedSteps>,
}

/// The steps that run at the position of the last matmul of a group, and their buffers.
struct MovedSteps {
    steps: SortedSet<usize>,
    last: usize,
    reads: SortedSet<BufId>,
    writes: SortedSet<BufId>,
}

impl MovedSteps {
    /// Whether both can be: a step is in one of them, and what one reads of the other is there.
    fn agrees(&self, other: &MovedSteps) -> bool {
        let disjoint = |a: &SortedSet<BufId>, b: &SortedSet<BufId>| a.iter().all(|buf| !b.contains(buf));
        self.steps.iter().all(|at| !other.steps.contains(at))
            && (self.last > other.last || disjoint(&self.reads, &other.writes))
            && (other.last > self.last || disjoint(&other.reads, &self.writes))
    }
}

impl JoinFinder<'_, '_> {
    fn step(&self, at: usize) -> &Step {
        &self.lowering.context.plan.steps[at]
    }

    fn result(&self, at: usize) -> BufId {
        self.step(at).writes.first().map_or(BufId(0), |o| o.buf)
    }

    /// True if another launch decides where a step runs.
    fn is_taken(&self, at: usize) -> bool {
        let Decisions { fused, .. } = &self.lowering.decisions;
        fused.members.contains_key(&at) || fused.waiting.contains_key(&at)
    }

    /// The largest group that begins with a matmul, with its matmuls; `others` are those that come later.
    fn grown<'p>(
        &self,
        first: &FormedMatmul,
        left: bool,
        others: impl Iterator<Item = &'p FormedMatmul>,
    ) -> Option<(Vec<usize>, FusedGroup)> {
        let [shared, own] = if left { [0, 1] } else { [1, 0] };
        let fits = |p: &FormedMatmul| {
            let near = p.product - first.product < FARTHEST
                && self.lowering.uses.is_beside(first.product, p.product);
            near && p.form == first.form && p.factors[shared] == first.factors[shared]
        };
        let made = |p: &FormedMatmul| self.is_computed(&p.factors[own], p.product) && !self.leaves(p);
        if !first.can_share(left) || !made(first) {
            return None;
        }
        let (mut members, mut after) = (vec![first.clone()], vec![]);
        for other in others.filter(|p| fits(p) && made(p)) {
            if members.len() == MOST {
                break;
            }
            if members.iter().any(|m| m.factors[own].buf == other.factors[own].buf) {
                continue;
            }
            let more = [&members[..], std::slice::from_ref(other)].concat();
            if let Some(found) = self.after(&more) {
                (members, after) = (more, found);
            }
        }
        if members.len() < 2 {
            return None;
        }
        let call = self.lowering.products_call(&members, left).ok().flatten()?;
        let biased =
            members.iter().filter(|m| m.epilogue.as_ref().is_some_and(|e| e.does.product().is_some()));
        let inner = biased.map(|m| self.result(m.product)).collect();
        let group = FusedGroup { steps: steps_of(&members), after, inner, call };
        Some((members.iter().map(|m| m.product).collect(), group))
    }

    /// True if a result outlives the run, so that it has no place in the arena.
    fn leaves(&self, of: &FormedMatmul) -> bool {
        of.steps().iter().flat_map(|at| &self.step(*at).writes).any(|o| self.lowering.uses.leaves(o.buf))
    }

    /// Whether a kernel computes an operand in this run, so that the arena may place it; parameters and views of them have fixed
    /// addresses.
    fn is_computed(&self, operand: &Operand, before: usize) -> bool {
        let by = self.lowering.uses.written_by(operand.buf, before);
        by.is_some_and(|by| {
            let step = self.step(by);
            let moves = matches!(
                step.prim,
                Prim::Copy | Prim::Repeat { .. } | Prim::EndRepeat | Prim::IterationSlice { .. } | Prim::Wait
            );
            !moves && !step.communicates()
        })
    }

    /// The steps between those of some matmuls that run after all of them; none where they cannot be one launch.
    fn after(&self, members: &[FormedMatmul]) -> Option<Vec<usize>> {
        let (uses, steps) = (&self.lowering.uses, steps_of(members));
        let (first, last) = (*steps.first()?, *steps.last()?);
        let written: SortedSet<BufId> =
            steps.iter().flat_map(|at| &self.step(*at).writes).map(|o| o.buf).collect();
        let mut held: SortedSet<BufId> =
            steps.iter().flat_map(|at| &self.step(*at).reads).map(|o| o.buf).collect();
        let (mut after, mut late) = (vec![], SortedSet::new());
        for at in first..=last {
            let step = self.step(at);
            let reads = |of: &SortedSet<BufId>| step.reads.iter().any(|o| of.contains(&o.buf));
            if let Some(member) = members.iter().find(|m| m.steps().contains(&at)) {
                // An epilogue reads its own matmul.
                let own = |o: &&Operand| at != member.product && o.buf == self.result(member.product);
                let others = step.reads.iter().filter(|o| !own(o));
                if reads(&late) || { others }.any(|o| written.contains(&o.buf)) {
                    return None;
                }
                continue;
            }
            let depends = reads(&written) || reads(&late);
            let ends = takes(step) && ended(step).any(|buf| held.contains(&buf));
            // What is in flight would be waited for before any of them.
            let stops = matches!(step.prim, Prim::Repeat { .. } | Prim::EndRepeat | Prim::Wait);
            if stops || ends || !uses.is_beside(first, at) {
                return None;
            }
            if !depends {
                continue;
            }
            let fused = &self.lowering.decisions.fused;
            if fused.members.get(&at).is_some_and(|runs| *runs > last) {
                continue;
            }
            if self.is_taken(at) || !self.waits(step) {
                return None;
            }
            after.push(at);
            late.extend(step.writes.iter().map(|o| o.buf));
            held.extend(step.reads.iter().map(|o| o.buf));
        }
        let moved = self.moved(&steps, &after);
        let mut near = self.found.iter().rev().filter(|other| other.last >= first);
        near.all(|other| moved.agrees(other)).then_some(after)
    }

    /// The steps of a group and those behind it, which run at the position of the last matmul.
    fn moved(&self, group: &[usize], after: &[usize]) -> MovedSteps {
        let steps: SortedSet<usize> = group.iter().chain(after).copied().collect();
        let operands = |of: fn(&Step) -> &[Operand]| -> SortedSet<BufId> {
            steps.iter().flat_map(|at| of(self.step(*at))).map(|o| o.buf).collect()
        };
        let (reads, writes) = (operands(|s| &s.reads), operands(|s| &s.writes));
        MovedSteps { last: group.last().copied().unwrap_or(0), reads, writes, steps }
    }

    /// Whether a step only moves or converts a value, and may be delayed.
    fn waits(&self, step: &Step) -> bool {
        let moves = matches!(
            step.prim,
            Prim::IterationUpdate { .. } | Prim::Copy | Prim::SplitDim { .. } | Prim::MergeDims { .. }
        );
        moves || self.lowering.may_wait(step)
    }
}

fn steps_of(members: &[FormedMatmul]) -> Vec<usize> {
    let mut steps: Vec<usize> = members.iter().flat_map(FormedMatmul::steps).collect();
    steps.sort_unstable();
    steps
}
