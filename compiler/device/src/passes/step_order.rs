//! Order of the steps on a device, and the end of each buffer's lifetime. Fused groups run as one ([`crate::decisions::fused`]),
//! reductions compute their operands ([`super::inlined`]), and steps move next to each other.

use super::fp8_matmuls::Fp8Matmuls;
use super::inlined::InlinedValues;
use crate::decisions::def_use::{DefUse, ended, takes};
use crate::decisions::fused::FusedGroups;
use meshwright_plan::{BufId, Operand, Plan, Prim, Step};
use meshwright_sorted::{SortedMap, SortedSet};

/// Order of the steps of a Plan on one device, with the ends of lifetimes in that order.
#[derive(Clone, Debug, Default)]
pub struct StepOrder {
    /// Steps of the Plan in the order of the device.
    pub steps: Vec<usize>,
    /// Position at which each step runs: its index in `steps`, or that of the last step of its group.
    pub place: Vec<usize>,
    /// The step that frees a buffer, by step and buffer, if it is not the Plan's.
    pub ends: SortedMap<(usize, BufId), usize>,
}

impl StepOrder {
    /// `gathers` says whether several steps that stand next to each other may be one launch.
    pub fn of(uses: &DefUse<'_>, groups: &FusedGroups, inlined: &InlinedValues, gathers: bool) -> StepOrder {
        let plan = uses.plan;
        let mut order = order(plan, groups);
        if gathers {
            Gatherer { uses, groups, inlined }.gather(&mut order);
        }
        let mut place = vec![0; plan.steps.len()];
        order.iter().enumerate().for_each(|(n, step)| place[*step] = n);
        // A group reads all operands when its last step runs.
        let runs = |step: usize| groups.members.get(&step).copied().unwrap_or(step);
        // Last consumer of each buffer.
        let mut last: Vec<Option<usize>> = vec![None; plan.buffers.len()];
        let mut read = |buf: BufId, by: usize| {
            let of = last[buf.0 as usize].get_or_insert(by);
            if place[by] > place[*of] {
                *of = by;
            }
        };
        for (at, step) in plan.steps.iter().enumerate() {
            step.reads.iter().for_each(|o| read(o.buf, runs(at)));
        }
        for value in inlined.values.values() {
            value.reads.iter().for_each(|o| read(o.buf, runs(value.by)));
        }
        let mut ends = SortedMap::new();
        for (at, step) in plan.steps.iter().enumerate() {
            for buf in ended(step) {
                let by = last[buf.0 as usize].filter(|by| place[*by] > place[runs(at)]).unwrap_or(runs(at));
                if by != at {
                    ends.insert((at, buf), by);
                }
            }
        }
        let place = (0..place.len()).map(|step| place[runs(step)]).collect();
        StepOrder { steps: order, place, ends }
    }

    /// The same where the scale of each factor that is stored as codes lives as long as the factor: matmuls read it.
    pub fn with_scales(mut self, uses: &DefUse<'_>, fp8: &Fp8Matmuls) -> StepOrder {
        for (buf, factor) in &fp8.factors {
            let scale = factor.inverse.buf;
            let (Some(end), Some(own)) = (uses.end(*buf), uses.end(scale)) else { continue };
            let last = self.end_of(*buf, end);
            if self.place[last] > self.place[self.end_of(scale, own)] {
                self.ends.insert((own, scale), last);
            }
        }
        self
    }

    /// The step that frees a buffer on the device, if the step `at` of the Plan does.
    pub fn end_of(&self, buf: BufId, at: usize) -> usize {
        self.ends.get(&(at, buf)).copied().unwrap_or(at)
    }
}

fn order(plan: &Plan, groups: &FusedGroups) -> Vec<usize> {
    let mut order: Vec<usize> = (0..plan.steps.len()).collect();
    // Where each step is: groups may begin between the steps of others.
    let mut place = order.clone();
    for group in groups.at.values() {
        let (Some(first), last) = (group.steps.iter().map(|step| place[*step]).min(), place[group.last()])
        else {
            continue;
        };
        let late = |step: &usize| group.steps.contains(step) || group.after.contains(step);
        let stays = order[first..=last].iter().filter(|step| !late(step));
        let all: Vec<usize> = stays.chain(&group.steps).chain(&group.after).copied().collect();
        all.iter().zip(first..).for_each(|(step, at)| place[*step] = at);
        order[first..=last].copy_from_slice(&all);
    }
    order
}

/// Moves loads from stacks of loops to the begin of the body, and stores to its end.
struct Gatherer<'a> {
    uses: &'a DefUse<'a>,
    groups: &'a FusedGroups,
    inlined: &'a InlinedValues,
}

impl Gatherer<'_> {
    /// In the body of each innermost loop slices of stacks come first, then conversions of single slices, and updates
    /// of stacks last. So independent folds and element-wise steps are adjacent, and share a launch: the conversions of
    /// all parameters of a layer, and the sums for their gradients. Element-wise steps that read the same meet.
    fn gather(&self, order: &mut [usize]) {
        for (end, begin) in &self.uses.begins {
            let body = &mut order[begin + 1..*end];
            // Collectives and inner loops keep their position, so a body with one keeps its order.
            // Steps run in another turn than their neighbors only around a collective.
            let stays =
                |step: &Step| takes(step) || matches!(step.prim, Prim::Repeat { .. } | Prim::EndRepeat);
            if body.iter().any(|s| stays(&self.uses.plan.steps[*s])) {
                continue;
            }
            let (slices, others): (Vec<usize>, Vec<usize>) =
                body.iter().partition(|s| self.is_slice(**s, *begin));
            let taken: SortedSet<BufId> =
                slices.iter().flat_map(|s| &self.uses.plan.steps[*s].writes).map(|o| o.buf).collect();
            let (conversions, others): (Vec<usize>, Vec<usize>) =
                others.into_iter().partition(|s| self.converts(*s, *begin, &taken));
            let (updates, mut others): (Vec<usize>, Vec<usize>) =
                others.into_iter().partition(|s| self.is_update(*s, *end));
            self.meet(&mut others);
            let all = slices.into_iter().chain(conversions).chain(others).chain(updates);
            body.iter_mut().zip(all).for_each(|(place, step)| *place = step);
        }
    }

    /// Moves element-wise steps behind the first that reads one of their operands, and has as many elements: a launch of both
    /// reads it once. What a step gives may live longer where it is no larger than what then ends.
    fn meet(&self, order: &mut [usize]) {
        let steps = &self.uses.plan.steps;
        let bytes = |buf: BufId| self.uses.plan.buffer(buf).largest_bytes(&self.uses.plan.mesh);
        for at in 1..order.len() {
            let step = &steps[order[at]];
            let grows =
                step.writes.iter().map(|o| bytes(o.buf)).sum::<usize>() > ended(step).map(bytes).sum();
            if grows || !self.is_alone(order[at]) {
                continue;
            }
            let gives = |before: &usize| steps[*before].writes.iter().any(|o| step.reads_buf(o.buf));
            let first = order[..at].iter().rposition(gives).map_or(0, |last| last + 1);
            let meets = |other: &usize| self.is_alone(*other) && reads_with(&steps[*other], step);
            if let Some(with) = order[first..at].iter().position(meets) {
                order[first + with + 1..=at].rotate_right(1);
            }
        }
    }

    /// An element-wise step in no group, whose results are stored.
    fn is_alone(&self, at: usize) -> bool {
        let step = &self.uses.plan.steps[at];
        matches!(step.prim, Prim::Map { .. })
            && !self.groups.members.contains_key(&at)
            && !step.writes.iter().any(|o| self.inlined.values.contains_key(&o.buf))
    }

    /// Whether it is live before a loop.
    fn is_outside(&self, buf: BufId, begin: usize) -> bool {
        self.uses.written_by(buf, usize::MAX).is_none_or(|by| by < begin)
    }

    fn is_slice(&self, at: usize, begin: usize) -> bool {
        let step = &self.uses.plan.steps[at];
        matches!(step.prim, Prim::IterationSlice { .. })
            && step.reads.iter().all(|o| self.is_outside(o.buf, begin))
    }

    /// An element-wise step that is the only consumer of a slice, and whose result is not larger: the result may live
    /// until it is read.
    fn converts(&self, at: usize, begin: usize, taken: &SortedSet<BufId>) -> bool {
        let step = &self.uses.plan.steps[at];
        let bytes = |operands: &mut dyn Iterator<Item = &Operand>| -> usize {
            operands.map(|o| self.uses.plan.buffer(o.buf).largest_bytes(&self.uses.plan.mesh)).sum()
        };
        let alone = |o: &Operand| taken.contains(&o.buf) && self.uses.only(o.buf) == Some(at);
        let known = |o: &Operand| alone(o) || self.is_outside(o.buf, begin);
        self.is_alone(at)
            && step.reads.iter().all(known)
            && bytes(&mut step.writes.iter())
                <= bytes(&mut step.reads.iter().filter(|o| taken.contains(&o.buf)))
    }

    /// Whether only the end of the loop reads the result of a stack's update.
    fn is_update(&self, at: usize, end: usize) -> bool {
        let step = &self.uses.plan.steps[at];
        let last = |o: &Operand| self.uses.only(o.buf) == Some(end);
        matches!(step.prim, Prim::IterationUpdate { .. }) && step.writes.iter().all(last)
    }
}

/// True if two steps have results with the same dims, and an operand with all of them in common.
fn reads_with(one: &Step, other: &Step) -> bool {
    let dims = |step: &Step| step.writes.first().map(|out| out.dims.clone());
    let whole = |read: &&Operand| dims(one).is_some_and(|dims| read.dims.len() == dims.len());
    dims(one) == dims(other) && one.reads.iter().filter(whole).any(|read| other.reads.contains(read))
}
