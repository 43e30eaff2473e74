//! When each buffer ends, which takes the storage of which, and the most that is alive at once.

use meshwright_plan::{BufId, Plan, Prim, ProgramInputKind};
use std::collections::{BTreeMap, BTreeSet};

/// Adds lifetimes and sizes to a Plan whose steps are in their final order.
pub fn lifetimes(mut plan: Plan) -> Plan {
    let mut last: BTreeMap<BufId, usize> = BTreeMap::new();
    for (i, s) in plan.steps.iter().enumerate() {
        for o in s.all() {
            last.insert(o.buf, i);
        }
    }
    let stays = outlives(&plan);
    let waits = plan.steps.iter().enumerate().filter(|(_, s)| matches!(s.prim, Prim::Wait));
    let waits: BTreeMap<u32, usize> = waits.filter_map(|(i, s)| Some((s.async_id?, i))).collect();
    // Operands of a collective in flight stay until its end, but for those whose storage a result takes at the start.
    for i in 0..plan.steps.len() {
        let step = &plan.steps[i];
        let Some(end) = step.async_id.and_then(|f| waits.get(&f)).copied().filter(|end| *end > i) else {
            continue;
        };
        let reads: Vec<BufId> = step.reads.iter().map(|o| o.buf).collect();
        let ends: Vec<BufId> =
            reads.iter().copied().filter(|b| last.get(b) == Some(&i) && !stays.contains(b)).collect();
        let donated = pairs(&plan, i, &ends, &BTreeMap::new());
        for b in reads.into_iter().filter(|b| !donated.iter().any(|p| p.0 == *b)) {
            last.entry(b).and_modify(|l| *l = end.max(*l));
        }
    }
    let mut ending: BTreeMap<usize, Vec<BufId>> = BTreeMap::new();
    for (b, i) in last.into_iter().filter(|(b, _)| !stays.contains(b)) {
        ending.entry(i).or_default().push(b);
    }
    let next: BTreeMap<BufId, BufId> =
        plan.program_inputs.iter().filter_map(|l| Some((l.buf, l.next?))).collect();
    for i in 0..plan.steps.len() {
        let ends = ending.remove(&i).unwrap_or_default();
        let reuse = pairs(&plan, i, &ends, &next);
        let step = &mut plan.steps[i];
        step.free = ends.into_iter().filter(|b| !reuse.iter().any(|r| r.0 == *b)).collect();
        step.aliases = reuse;
    }
    measure(&mut plan);
    plan
}

/// What outlives the step: outputs, next values, and parameters that the step does not change.
pub(super) fn outlives(plan: &Plan) -> BTreeSet<BufId> {
    let mut stays: BTreeSet<BufId> = plan.outputs.iter().map(|o| o.buf).collect();
    for l in &plan.program_inputs {
        stays.extend(l.next);
        if l.next.is_none() && matches!(l.kind, ProgramInputKind::Param | ProgramInputKind::OptimizerState) {
            stays.insert(l.buf);
        }
    }
    stays
}

/// Which results take the storage of which operands that end here. First a parameter's next value in the parameter's place,
/// then whatever may be donated.
fn pairs(plan: &Plan, at: usize, ends: &[BufId], next: &BTreeMap<BufId, BufId>) -> Vec<(BufId, BufId)> {
    let step = &plan.steps[at];
    let mut out: Vec<(BufId, BufId)> = Vec::new();
    for first in [true, false] {
        for to in step.writes.iter().map(|o| o.buf) {
            if out.iter().any(|p| p.1 == to) {
                continue;
            }
            let fits = |from: &BufId| {
                (!first || next.get(from) == Some(&to))
                    && ends.contains(from)
                    && !out.iter().any(|p| p.0 == *from)
                    && plan.same_storage(*from, to)
                    && step.may_donate(*from, to)
            };
            let found = step.reads.iter().map(|o| o.buf).find(fits);
            out.extend(found.map(|from| (from, to)));
        }
    }
    out
}

/// Sizes on the device with the largest blocks.
fn measure(plan: &mut Plan) {
    let mesh = plan.mesh.clone();
    let bytes = |b: BufId| plan.buffer(b).largest_bytes(&mesh) as u64;
    let mut s = plan.summary.clone();
    (s.parameter_bytes, s.optimizer_state_bytes, s.collective_bytes) = (0, 0, 0);
    let mut live: u64 = 0;
    for l in &plan.program_inputs {
        live += bytes(l.buf);
        match l.kind {
            ProgramInputKind::Param => s.parameter_bytes += bytes(l.buf),
            ProgramInputKind::OptimizerState => s.optimizer_state_bytes += bytes(l.buf),
            _ => {}
        }
    }
    s.peak_bytes = live;
    for step in &plan.steps {
        for o in &step.writes {
            if !step.aliases.iter().any(|r| r.1 == o.buf) {
                live += bytes(o.buf);
            }
        }
        s.peak_bytes = s.peak_bytes.max(live);
        for b in &step.free {
            live -= bytes(*b);
        }
        s.collective_bytes += step.collective_bytes(plan).iter().sum::<usize>() as u64;
    }
    s.activation_bytes = s.peak_bytes - s.parameter_bytes - s.optimizer_state_bytes;
    plan.summary = s;
}
