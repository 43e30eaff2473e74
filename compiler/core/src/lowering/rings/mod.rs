//! Attention whose keys are gathered takes the shards one after the other while they go around the devices: no device holds all of them.
//!
//! Forward, a device begins with its own shard and then takes that of the device after it, and so on; each step goes on with the maximum,
//! the sum and the values of the one before. A shard is on its way while attention computes on the one before it. Backward, a device begins with the
//! shard of the device after it and ends with its own: what flows back to keys and values travels with them, and each device adds its part.
//! So the bytes are those of the gathers and of the reduce-scatter that they replace.
//!
//! What is beside queries and keys, such as a mask, is cut where it is.

mod turns;
pub(super) mod verify;

use super::stretches::stretches;
use meshwright_diag::Span;
use meshwright_plan::{
    AttentionOperands, AttentionPart, Axis, BufId, Collective, Dim, Operand, Plan, Prim, Step,
};
use std::collections::{BTreeMap, BTreeSet};
use turns::{Ring, Shard};

/// Steps of a Plan by the buffers that they write and read.
struct Uses {
    producer: BTreeMap<BufId, usize>,
    readers: BTreeMap<BufId, Vec<usize>>,
}

impl Uses {
    fn of(steps: &[Step]) -> Uses {
        let (mut producer, mut readers) = (BTreeMap::new(), BTreeMap::<BufId, Vec<usize>>::new());
        for (i, step) in steps.iter().enumerate() {
            producer.extend(step.writes.iter().map(|o| (o.buf, i)));
            step.reads.iter().for_each(|o| readers.entry(o.buf).or_default().push(i));
        }
        Uses { producer, readers }
    }
}

/// Puts rings in the place of gathers along these dims, where attention alone reads what they give.
pub fn rings(mut plan: Plan, dims: &BTreeMap<Dim, Span>) -> Plan {
    if dims.is_empty() {
        return plan;
    }
    let (uses, stretch) = (Uses::of(&plan.steps), stretches(&plan.steps));
    let mut found: BTreeMap<usize, Ring> = BTreeMap::new();
    for (at, step) in plan.steps.iter().enumerate() {
        let Prim::Attention { spec, .. } = &step.prim else { continue };
        if dims.contains_key(&spec.key)
            && let Some(ring) = ring_at(&plan, &uses, &stretch, at)
        {
            found.insert(at, ring);
        }
    }
    // What something else reads too is gathered for all of its readers.
    let kept: BTreeSet<BufId> = plan.outputs.iter().map(|o| o.buf).collect();
    loop {
        let alone = |b: BufId| {
            !kept.contains(&b)
                && uses.readers.get(&b).is_some_and(|all| all.iter().all(|i| found.contains_key(i)))
        };
        let others: Vec<usize> = found
            .iter()
            .filter(|(_, ring)| !ring.gathered.iter().all(|b| alone(*b)))
            .map(|(at, _)| *at)
            .collect();
        if others.is_empty() {
            break;
        }
        others.iter().for_each(|at| drop(found.remove(at)));
    }
    let gone: BTreeSet<BufId> = found.values().flat_map(Ring::replaced).collect();
    let mut out = Vec::with_capacity(plan.steps.len());
    for (at, mut step) in std::mem::take(&mut plan.steps).into_iter().enumerate() {
        if let Some(ring) = found.get(&at) {
            out.extend(ring.steps(&mut plan, &step));
        } else if leave_out(&mut step, &gone) {
            out.push(step);
        }
    }
    plan.steps = out;
    plan
}

/// Takes results that nothing needs any more out of a bucket; whether anything is left of it.
fn leave_out(step: &mut Step, gone: &BTreeSet<BufId>) -> bool {
    let keep: Vec<bool> = step.writes.iter().map(|o| !gone.contains(&o.buf)).collect();
    if keep.iter().all(|k| *k) {
        return true;
    }
    let Prim::Collective(c) = &mut step.prim else { return true };
    c.retain(&keep);
    retain(&mut step.reads, &keep);
    retain(&mut step.writes, &keep);
    retain(&mut step.origin, &keep);
    !step.writes.is_empty()
}

fn retain<T>(all: &mut Vec<T>, keep: &[bool]) {
    let mut keep = keep.iter();
    all.retain(|_| keep.next().copied().unwrap_or(true));
}

/// The ring that takes the place of a step of attention.
fn ring_at(plan: &Plan, uses: &Uses, stretch: &[usize], at: usize) -> Option<Ring> {
    let step = &plan.steps[at];
    let Prim::Attention { spec, parts } = &step.prim else { return None };
    let gradient = parts.iter().any(|p| p.is_gradient());
    // A pass of its own for the maximum would need rings of its own.
    if !gradient && (parts.len() != 3 || !parts.contains(&AttentionPart::Max)) {
        return None;
    }
    let operands = AttentionOperands::of(parts);
    let (mut axis, mut shards, mut gathered) = (None, Vec::new(), Vec::new());
    for position in [Some(1), operands.values].into_iter().flatten() {
        let whole = &step.reads[position];
        let from = *uses.producer.get(&whole.buf)?;
        let gather = &plan.steps[from];
        let Some(Collective::AllGather { axis: over, .. }) = gather.collective() else { return None };
        let k = gather.writes.iter().position(|o| o.buf == whole.buf)?;
        let shard = Operand { buf: gather.reads[k].buf, dims: whole.dims.clone() };
        let along = whole.dims.iter().position(|d| *d == spec.key)?;
        let extent = &plan.buffer(shard.buf).extents[along];
        let alike = axis.is_none_or(|a| a == *over) && extent.axes == [*over] && extent.window.is_none();
        if !alike || stretch[from] != stretch[at] || !plan.buffer(shard.buf).partial.is_empty() {
            return None;
        }
        axis = Some(*over);
        gathered.push(whole.buf);
        shards.push(Shard { position, own: shard, origin: gather.origin[k].clone() });
    }
    let beside =
        step.reads.iter().enumerate().filter(|(i, _)| shards.iter().all(|s: &Shard| s.position != *i));
    let split = |o: &Operand| {
        let along = o.dims.iter().position(|d| *d == spec.key);
        along.is_some_and(|k| !plan.buffer(o.buf).extents[k].axes.is_empty())
    };
    let of_queries = |a: Axis| plan.buffer(step.reads[0].buf).is_split_over(a);
    if beside.into_iter().any(|(_, o)| split(o)) || !axis.is_some_and(of_queries) {
        return None;
    }
    let mut scattered = BTreeMap::new();
    for (i, part) in parts.iter().enumerate() {
        if !matches!(part, AttentionPart::Key | AttentionPart::Value) {
            continue;
        }
        let [to] = uses.readers.get(&step.writes[i].buf)?[..] else { return None };
        let scatter = &plan.steps[to];
        let c = scatter.collective()?.spec();
        let [over] = c.axes else { return None };
        if c.monoid.is_none() || c.split.is_empty() {
            return None;
        }
        let k = scatter.reads.iter().position(|o| o.buf == step.writes[i].buf)?;
        let out = scatter.writes[k].buf;
        let alike = plan.buffer(out).dtype == plan.buffer(step.writes[i].buf).dtype;
        let key = step.writes[i].dims.iter().position(|d| *d == spec.key)?;
        let split = plan.buffer(out).extents[key].axes == [*over];
        if Some(*over) != axis || stretch[to] != stretch[at] || !alike || !split {
            return None;
        }
        scattered.insert(i, (out, scatter.origin[k].clone()));
    }
    Some(Ring { axis: axis?, key: spec.key, shards, gathered, scattered })
}
