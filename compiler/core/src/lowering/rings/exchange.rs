//! Gathers of keys come last. What is stored in more parts than a ring has, such as heads of learned keys, is gathered along its
//! other dims too; after a gather of all keys that would need all of them. The same gathers in the other order give shards for
//! the ring.

use super::collectives::leave_out;
use meshwright_plan::{BufId, Collective, Dim, Operand, Plan, Prim, Provenance, Step};
use meshwright_sorted::{SortedMap, SortedSet};

/// A gather of one value among those of a step.
struct Single {
    gather: Collective,
    reads: Operand,
    writes: Operand,
    origin: Provenance,
}

fn single(step: &Step, buf: BufId) -> Option<Single> {
    let Some(Collective::AllGather { axis, dims }) = step.collective() else { return None };
    let k = step.writes.iter().position(|o| o.buf == buf)?;
    let gather = Collective::AllGather { axis: *axis, dims: vec![dims[k]] };
    let (reads, writes) = (step.reads[k].clone(), step.writes[k].clone());
    Some(Single { gather, reads, writes, origin: step.origin[k].clone() })
}

fn along(gather: &Collective) -> Option<Dim> {
    if let Collective::AllGather { dims, .. } = gather { dims.first().copied() } else { None }
}

/// A Plan in which no gather of other dims follows one of keys.
pub(super) fn keys_last(mut plan: Plan, is_key: impl Fn(Dim) -> bool) -> Plan {
    while let Some((at, [first, second])) = next(&plan, &is_key) {
        let gone = SortedSet::from([first.writes.buf, second.writes.buf]);
        // The shard of the keys, with all of the other dim.
        let mut shard = plan.buffer(second.writes.buf).clone();
        let key = second.writes.dims.iter().position(|d| Some(*d) == along(&first.gather));
        let held = first.reads.dims.iter().position(|d| Some(*d) == along(&first.gather));
        if let (Some(key), Some(held)) = (key, held) {
            shard.extents[key] = plan.buffer(first.reads.buf).extents[held].clone();
        }
        plan.buffers.push(shard);
        let shard = Operand { buf: BufId(plan.buffers.len() as u32 - 1), dims: second.writes.dims.clone() };
        let phase = plan.steps[at].phase;
        let step = |gather, reads, writes, origin| Step {
            phase,
            origin: vec![origin],
            ..Step::new(Prim::Collective(gather), vec![reads], vec![writes])
        };
        let new = [
            step(second.gather, first.reads, shard.clone(), second.origin),
            step(first.gather, shard, second.writes, first.origin),
        ];
        plan.steps.splice(at + 1..at + 1, new);
        let stay: Vec<bool> = (plan.steps.iter_mut().enumerate())
            .map(|(i, step)| (at + 1..at + 3).contains(&i) || leave_out(step, &gone))
            .collect();
        let mut stay = stay.into_iter();
        plan.steps.retain(|_| stay.next().unwrap_or(true));
    }
    plan
}

/// The next gather of keys that one along another dim follows, and the step of that.
fn next(plan: &Plan, is_key: &impl Fn(Dim) -> bool) -> Option<(usize, [Single; 2])> {
    let mut readers = SortedMap::<BufId, usize>::new();
    let results = plan.outputs.iter().map(|o| o.buf).chain(plan.program_inputs.iter().filter_map(|l| l.next));
    let read = plan.steps.iter().flat_map(|s| &s.reads).map(|o| o.buf);
    read.chain(results).for_each(|b| *readers.entry(b).or_default() += 1);
    let mut made = SortedMap::new();
    for (at, step) in plan.steps.iter().enumerate() {
        let Some(Collective::AllGather { .. }) = step.collective() else { continue };
        for out in &step.writes {
            let second = single(step, out.buf)?;
            let before = made.get(&second.reads.buf).filter(|_| readers.get(&second.reads.buf) == Some(&1));
            let first = before.and_then(|i: &usize| single(&plan.steps[*i], second.reads.buf));
            let keys = first.filter(|f| along(&f.gather).is_some_and(is_key));
            if let Some(first) = keys.filter(|_| !along(&second.gather).is_some_and(is_key)) {
                return Some((at, [first, second]));
            }
            made.insert(out.buf, at);
        }
    }
    None
}
