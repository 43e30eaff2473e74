//! What a loop sums or stacks is added where a loop around it keeps the sum.
//!
//! Before: a loop in another loop fills a stack, or sums on its own, and what it gives is then added to a sum that the outer loop
//! carries: the gradients of all layers are there twice, those of one microbatch and the sum. After: the inner loop carries the
//! outer loop's sum, and each iteration adds to its position. So gradients of all layers are there once. A sum of its own may go
//! through several loops, as where the last stage of a pipeline begins the gradient of tied embeddings and the first one goes on
//! with it.

use super::lower_repeat::addition;
use super::per_buffer::PerBuffer;
use meshwright_plan::{BufId, Operand, Plan, Prim, Step, StepLoop};
use meshwright_sorted::{SortedMap, SortedSet};

/// A carry of a loop whose last value is added to a sum.
struct Added {
    /// The loop, and the position of the carry; then those of loops that go on with it.
    of: Vec<(StepLoop, usize)>,
    /// The step that makes what it starts as; it goes.
    blank: usize,
    /// The step that makes its next value, in the first loop.
    update: usize,
    /// The step that adds its last value to the sum; it goes.
    add: usize,
}

/// Lets inner loops add to the sums of outer ones. Where a loop goes on with the sum of another one, this shows once it does.
pub(super) fn add_in_place(mut plan: Plan) -> Plan {
    loop {
        let found = found(&plan);
        if found.is_empty() {
            return plan;
        }
        plan = added(plan, &found);
    }
}

fn added(mut plan: Plan, found: &[Added]) -> Plan {
    let mut gone = SortedSet::new();
    let mut added: SortedMap<usize, [Step; 2]> = SortedMap::new();
    for each in found {
        gone.extend([each.blank, each.add]);
        carry(&mut plan, each);
        if let Some(steps) = at_position(&mut plan, each) {
            added.insert(each.update, steps);
        }
    }
    let mut steps = Vec::with_capacity(plan.steps.len());
    for (i, step) in std::mem::take(&mut plan.steps).into_iter().enumerate() {
        steps.extend(added.remove(&i).into_iter().flatten());
        steps.extend((!gone.contains(&i)).then_some(step));
    }
    plan.steps = steps;
    plan
}

fn found(plan: &Plan) -> Vec<Added> {
    let mut readers: PerBuffer<Vec<usize>> = PerBuffer::new(plan, Vec::new());
    let mut writer: PerBuffer<Option<usize>> = PerBuffer::new(plan, None);
    for (i, step) in plan.steps.iter().enumerate() {
        step.reads.iter().for_each(|o| readers[o.buf].push(i));
        step.writes.iter().for_each(|o| writer[o.buf] = Some(i));
    }
    // What outlives the step is read by others than its steps.
    plan.outputs.iter().for_each(|o| readers[o.buf].push(usize::MAX));
    plan.program_inputs.iter().filter_map(|i| i.next).for_each(|b| readers[b].push(usize::MAX));
    let loops = plan.loops();
    let within = |step: usize| loops.iter().rev().find(|l| l.contains(step)).map(|l| l.begin);
    let only = |buf: BufId| match readers[buf][..] {
        [one] => Some(one),
        _ => None,
    };
    let one = |l: &StepLoop, k: usize| -> Option<Added> {
        // Passes of a pipeline start together: none may start from what another one gives.
        if plan.pipeline.is_some() && plan.microbatches.is_some_and(|m| m.over == l.dim) {
            return None;
        }
        let (begin, end) = (&plan.steps[l.begin], &plan.steps[l.end]);
        let [start, current] = [begin.reads.get(k)?, begin.writes.get(k)?];
        let [next, last] = [end.reads.get(k)?, end.writes.get(k)?];
        let (blank, update, add) = (writer[start.buf]?, writer[next.buf]?, only(last.buf)?);
        let (Prim::Blank { zero }, Some(_)) = (&plan.steps[blank].prim, only(start.buf)) else { return None };
        let alone = only(current.buf) == Some(update) && only(next.buf) == Some(l.end);
        let (mut of, mut last, mut add) = (vec![(*l, k)], last, add);
        let maps = matches!(plan.steps[update].prim, Prim::Map { .. });
        while let Some((on, at)) = goes_on(plan, &loops, add, last).filter(|_| maps) {
            let (begin, end) = (&plan.steps[on.begin], &plan.steps[on.end]);
            let (current, next) = (&begin.writes[at], end.reads.get(at)?);
            let update = writer[next.buf]?;
            let sums = fits(plan, [current, plan.steps[update].reads.get(1)?], update)
                && only(current.buf) == Some(update)
                && only(next.buf) == Some(on.end)
                && within(update) == Some(on.begin)
                && within(on.begin) == within(l.begin);
            sums.then_some(())?;
            of.push((on, at));
            last = end.writes.get(at)?;
            add = only(last.buf)?;
        }
        let [sum, stacked] = &plan.steps.get(add)?.reads[..] else { return None };
        let [total] = &plan.steps[add].writes[..] else { return None };
        let held = |o: &Operand| plan.buffer(o.buf);
        let adds = match plan.steps[update].prim {
            Prim::IterationUpdate { dim } => dim == l.dim,
            // What begins as zeros of its own may begin as the sum.
            Prim::Map { .. } => *zero && fits(plan, [current, plan.steps[update].reads.get(1)?], update),
            _ => false,
        };
        let same = matches!(plan.steps[update].prim, Prim::IterationUpdate { .. })
            || held(sum).dtype == held(last).dtype;
        let together = within(update) == Some(l.begin) && within(add) == within(l.begin);
        let ready = writer[sum.buf].is_none_or(|w| w < l.begin) && only(sum.buf) == Some(add);
        let alike = sum.dims == last.dims
            && total.dims == sum.dims
            && held(total) == held(sum)
            && held(sum).extents == held(last).extents
            && held(sum).partial == held(last).partial;
        let added = stacked.buf == last.buf && fits(plan, [sum, last], add);
        let found = Added { of, blank, update, add };
        (alone && adds && same && together && ready && alike && added).then_some(found)
    };
    loops
        .iter()
        .flat_map(|l| (0..plan.steps[l.begin].reads.len()).filter_map(|k| one(l, k)).collect::<Vec<_>>())
        .collect()
}

/// Whether a step adds the second of these to the first.
fn fits(plan: &Plan, of: [&Operand; 2], step: usize) -> bool {
    let [a, b] = of.map(|o| plan.buffer(o.buf).dtype);
    plan.steps[step].prim == addition([a, b], a) && plan.steps[step].reads[0].buf == of[0].buf
}

/// The loop that begins at a step with a value, and the position of the carry that starts as it.
fn goes_on(plan: &Plan, loops: &[StepLoop], step: usize, value: &Operand) -> Option<(StepLoop, usize)> {
    let begun = loops.iter().find(|l| l.begin == step)?;
    let at = plan.steps[step].reads.iter().position(|o| o.buf == value.buf)?;
    Some((*begun, at))
}

/// Lets the loops carry the sum, in its dtype.
fn carry(plan: &mut Plan, found: &Added) {
    let (sum, total) = (plan.steps[found.add].reads[0].clone(), plan.steps[found.add].writes[0].clone());
    let whole = plan.buffer(sum.buf).clone();
    for (l, k) in &found.of {
        let mut held = whole.clone();
        if let Prim::Repeat { axes, .. } = &plan.steps[l.begin].prim {
            // In the body of a loop that is split, a device has its own part of the sum.
            held.partial.retain(|a, _| !axes.contains(a));
        }
        for buf in [plan.steps[l.begin].writes[*k].buf, plan.steps[l.end].reads[*k].buf] {
            plan.buffers[buf.0 as usize] = held.clone();
        }
        // Of the last one it is the total.
        plan.buffers[plan.steps[l.end].writes[*k].buf.0 as usize] = whole.clone();
    }
    let ends = found.of.first().zip(found.of.last());
    if let Some(((first, at), (last, k))) = ends {
        plan.steps[first.begin].reads[*at] = sum;
        plan.steps[last.end].writes[*k] = total;
    }
}

/// The steps in front of the update of a stack: what lies at the position of the iteration, and its sum with the value, which the
/// update then puts there.
fn at_position(plan: &mut Plan, found: &Added) -> Option<[Step; 2]> {
    let Prim::IterationUpdate { dim } = plan.steps[found.update].prim else { return None };
    let update = plan.steps[found.update].clone();
    let (all, value) = (update.reads[0].clone(), update.reads[1].clone());
    let (wide, stored) = (plan.buffer(all.buf).dtype, plan.buffer(value.buf).clone());
    let [before, sum] = [(); 2].map(|()| {
        plan.buffers.push(meshwright_plan::Buffer { dtype: wide, ..stored.clone() });
        Operand { buf: BufId(plan.buffers.len() as u32 - 1), dims: value.dims.clone() }
    });
    plan.steps[found.update].reads[1] = sum.clone();
    let step = |prim, reads, writes: Operand| Step { prim, reads, writes: vec![writes], ..update.clone() };
    let slice = step(Prim::IterationSlice { dim }, vec![all], before.clone());
    // The value comes first: its storage may go on to the sum, that of the view may not.
    let add = step(addition([stored.dtype, wide], wide), vec![value, before], sum);
    Some([slice, add])
}
