//! In which order a device runs the steps of a Plan, and after which one a buffer ends, where groups of steps along rows run as one
//! ([`super::row_groups`]), and where values are computed by the step that folds them ([`super::inlined`]).

use super::inlined::InlinedValues;
use super::residuals::ended;
use super::row_groups::RowGroups;
use meshwright_plan::{BufId, Plan};
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(crate) struct StepOrder {
    /// The steps of the Plan.
    pub(crate) steps: Vec<usize>,
    /// For each step when it runs: where it stands in the order, or the last step of its group.
    pub(crate) place: Vec<usize>,
    /// By a step that ends a buffer and the buffer, the step that does in its place.
    ends: BTreeMap<(usize, BufId), usize>,
}

impl StepOrder {
    pub(crate) fn of(plan: &Plan, groups: &RowGroups, inlined: &InlinedValues) -> StepOrder {
        let order = order(plan, groups);
        let mut place = vec![0; plan.steps.len()];
        order.iter().enumerate().for_each(|(n, step)| place[*step] = n);
        // A group reads what its steps read when the last of them runs.
        let runs = |step: usize| groups.members.get(&step).copied().unwrap_or(step);
        // Where each buffer is read last.
        let mut last: BTreeMap<BufId, usize> = BTreeMap::new();
        let mut read = |buf: BufId, by: usize| {
            let of = last.entry(buf).or_insert(by);
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
        let mut ends = BTreeMap::new();
        for (at, step) in plan.steps.iter().enumerate() {
            for buf in ended(step) {
                let by =
                    last.get(&buf).copied().filter(|by| place[*by] > place[runs(at)]).unwrap_or(runs(at));
                if by != at {
                    ends.insert((at, buf), by);
                }
            }
        }
        let place = (0..place.len()).map(|step| place[runs(step)]).collect();
        StepOrder { steps: order, place, ends }
    }

    /// After which step a buffer ends that a step of the Plan ends.
    pub(crate) fn end_of(&self, buf: BufId, at: usize) -> usize {
        self.ends.get(&(at, buf)).copied().unwrap_or(at)
    }
}

fn order(plan: &Plan, groups: &RowGroups) -> Vec<usize> {
    let mut order: Vec<usize> = (0..plan.steps.len()).collect();
    for (last, group) in &groups.at {
        let Some(first) = group.steps.first() else { continue };
        let late = |step: &usize| group.steps.contains(step) || group.after.contains(step);
        let stays = (*first..=*last).filter(|step| !late(step));
        let all: Vec<usize> = stays.chain(group.steps.iter().chain(&group.after).copied()).collect();
        order[*first..=*last].copy_from_slice(&all);
    }
    order
}
