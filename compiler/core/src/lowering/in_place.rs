//! A cache of all iterations of a loop is updated where it lies.
//!
//! Before: each iteration takes its slice of what is kept from step to step, replaces some positions of it, and puts all of it
//! into a stack, which is kept in its place. After: the loop carries what is kept, each iteration replaces these positions there,
//! and then takes its slice, which is a view. So a step writes its new positions alone.

use super::add_in_place::add_in_place;
use meshwright_plan::{BufId, Operand, Plan, Prim, Step};
use meshwright_sorted::SortedMap;

/// A stack that is filled by updates of slices of one buffer.
struct Updated {
    /// The step that makes the stack; it goes.
    blank: usize,
    /// The beginning of the loop, and the position of the stack among what it carries.
    begin: (usize, usize),
    /// The step that takes the slice of the buffer; it goes.
    slice: usize,
    /// The step that replaces positions of the slice.
    update: usize,
    /// The step that puts the slice into the stack; it goes.
    stack: usize,
}

/// Carries what loops update through them, in place of stacks that are filled with copies, or that are then added to a sum.
pub fn in_place(plan: Plan) -> Plan {
    let mut plan = add_in_place(plan);
    // A rewrite moves the steps behind it.
    while let Some(found) = first(&plan) {
        plan = carried(plan, &found);
    }
    plan
}

/// The steps that read each buffer, and those that write it.
struct Users {
    readers: SortedMap<BufId, Vec<usize>>,
    writers: SortedMap<BufId, usize>,
}

impl Users {
    fn of(plan: &Plan) -> Users {
        let mut users = Users { readers: SortedMap::new(), writers: SortedMap::new() };
        for (i, step) in plan.steps.iter().enumerate() {
            step.reads.iter().for_each(|o| users.readers.entry(o.buf).or_default().push(i));
            users.writers.extend(step.writes.iter().map(|o| (o.buf, i)));
        }
        users
    }

    /// The only step that reads a buffer.
    fn only(&self, buf: BufId) -> Option<usize> {
        match self.readers.get(&buf).map(Vec::as_slice) {
            Some([one]) => Some(*one),
            _ => None,
        }
    }
}

fn first(plan: &Plan) -> Option<Updated> {
    let users = Users::of(plan);
    let outlives = |b: BufId| plan.outputs.iter().any(|o| o.buf == b);
    plan.loops().iter().find_map(|l| {
        let (begin, end) = (&plan.steps[l.begin], &plan.steps[l.end]);
        (0..begin.reads.len()).find_map(|k| {
            let (start, current) = (begin.reads.get(k)?, begin.writes.get(k)?);
            let (next, last) = (end.reads.get(k)?, end.writes.get(k)?);
            let blank = *users.writers.get(&start.buf)?;
            let stack = users.only(current.buf)?;
            let filled = matches!(plan.steps[blank].prim, Prim::Blank { zero: false })
                && users.only(start.buf) == Some(l.begin)
                && plan.steps[stack].prim == Prim::IterationUpdate { dim: l.dim }
                && plan.steps[stack].writes[0].buf == next.buf;
            let ([_, value], true) = (&plan.steps[stack].reads[..], filled) else { return None };
            let update = *users.writers.get(&value.buf)?;
            let Prim::DynamicUpdateSlice { iteration: None, .. } = plan.steps[update].prim else {
                return None;
            };
            let before = &plan.steps[update].reads[0];
            let slice = *users.writers.get(&before.buf)?;
            let all = plan.steps[slice].reads.first()?;
            // Nobody else may see what is replaced, and the stack must be what is kept next.
            let own = users.only(before.buf) == Some(update) && users.only(all.buf) == Some(slice);
            let kept = plan.program_inputs.iter().any(|i| i.buf == all.buf && i.next == Some(last.buf));
            let same = plan.buffer(all.buf) == plan.buffer(start.buf) && all.dims == start.dims;
            let together = [slice, update, stack].iter().all(|s| within(plan, *s) == Some(l.begin));
            let takes = plan.steps[slice].prim == Prim::IterationSlice { dim: l.dim };
            let fits = before.dims == value.dims && plan.buffer(before.buf) == plan.buffer(value.buf);
            let found = Updated { blank, begin: (l.begin, k), slice, update, stack };
            (own && kept && same && together && takes && fits && !outlives(all.buf)).then_some(found)
        })
    })
}

/// The beginning of the innermost loop whose body a step is in.
fn within(plan: &Plan, step: usize) -> Option<usize> {
    plan.loops().iter().rev().find(|l| l.contains(step)).map(|l| l.begin)
}

fn carried(mut plan: Plan, found: &Updated) -> Plan {
    let (begin, k) = found.begin;
    let Prim::Repeat { dim, .. } = plan.steps[begin].prim else { return plan };
    let all = plan.steps[found.slice].reads[0].clone();
    let current = plan.steps[begin].writes[k].clone();
    let next = plan.steps[found.stack].writes[0].clone();
    plan.steps[begin].reads[k] = all;
    let replaced = plan.steps[found.update].clone();
    let stacked = plan.steps[found.stack].clone();
    let (reads, writes) = (
        [&[current][..], &replaced.reads[1..]].concat(),
        vec![Operand { buf: next.buf, dims: next.dims.clone() }],
    );
    let Prim::DynamicUpdateSlice { dim: along, from, .. } = replaced.prim else { return plan };
    let prim = Prim::DynamicUpdateSlice { dim: along, from, iteration: Some(dim) };
    let update = Step { prim, reads, writes, origin: stacked.origin.clone(), ..replaced.clone() };
    let view = Step { prim: Prim::IterationSlice { dim }, reads: vec![next], ..replaced };
    let gone = [found.blank, found.slice, found.stack];
    let steps = std::mem::take(&mut plan.steps).into_iter().enumerate();
    plan.steps = steps
        .filter(|(i, _)| !gone.contains(i))
        .flat_map(|(i, step)| if i == found.update { vec![update.clone(), view.clone()] } else { vec![step] })
        .collect();
    plan
}
