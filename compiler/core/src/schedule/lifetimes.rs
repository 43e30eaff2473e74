//! When each buffer ends, which takes the storage of which, and the most that is alive at once.

use meshwright_plan::{BufId, Collective, Operand, Plan, ProgramInputKind, StepKind};
use std::collections::{BTreeMap, BTreeSet};

/// Adds lifetimes and sizes to a Plan whose steps are in their final order.
pub fn lifetimes(mut plan: Plan) -> Plan {
    let mut last: BTreeMap<BufId, usize> = BTreeMap::new();
    for (i, s) in plan.steps.iter().enumerate() {
        for o in s.kind.reads().into_iter().chain(s.kind.writes()) {
            last.insert(o.buf, i);
        }
    }
    let stays = outlives(&plan);
    // Operands of a collective in flight stay until its end, but for those whose storage a result takes at the start.
    for i in 0..plan.steps.len() {
        let (step, end) = (&plan.steps[i], plan.end_of(i));
        let reads: Vec<BufId> = step.kind.reads().iter().map(|o| o.buf).collect();
        if !matches!(step.kind, StepKind::Collective(_)) || end == i {
            continue;
        }
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

/// Which results take the storage of which operands: of a map, results of the same shape and dtype whose operand is read
/// position by position; of an all-reduce, each result its operand's; of a softmax and of the gradient of a cross-entropy,
/// the result its logits'. The verifier's [`super::verify::may_donate`] says the same of one pair.
fn pairs(plan: &Plan, at: usize, ends: &[BufId], next: &BTreeMap<BufId, BufId>) -> Vec<(BufId, BufId)> {
    let mut out: Vec<(BufId, BufId)> = Vec::new();
    let same = |a: &Operand, b: &Operand| a.dims == b.dims && plan.buffer(a.buf) == plan.buffer(b.buf);
    match &plan.steps[at].kind {
        StepKind::Map { inputs, outs, .. } => {
            let free = |b: BufId, out: &[(BufId, BufId)]| ends.contains(&b) && !out.iter().any(|p| p.0 == b);
            let aligned = |b: BufId, o: &Operand| inputs.iter().filter(|i| i.buf == b).all(|i| same(i, o));
            // First a parameter's next value in the parameter's place, then whatever fits.
            for first in [true, false] {
                for (_, o) in outs {
                    if out.iter().any(|p| p.1 == o.buf) {
                        continue;
                    }
                    let fits = inputs.iter().find(|i| {
                        let own = next.get(&i.buf) == Some(&o.buf);
                        (own || !first) && free(i.buf, &out) && aligned(i.buf, o)
                    });
                    if let Some(i) = fits {
                        out.push((i.buf, o.buf));
                    }
                }
            }
        }
        StepKind::Softmax { input, out: result, .. }
        | StepKind::CrossEntropyGrad { logits: input, out: result, .. } => {
            let once = plan.steps[at].kind.reads().iter().filter(|o| o.buf == input.buf).count() == 1;
            if ends.contains(&input.buf) && once && same(input, result) {
                out.push((input.buf, result.buf));
            }
        }
        StepKind::Collective(Collective::AllReduce { from, to, .. }) => {
            for (f, t) in from.iter().zip(to) {
                let once = from.iter().filter(|o| o.buf == f.buf).count() == 1;
                if ends.contains(&f.buf) && once {
                    out.push((f.buf, t.buf));
                }
            }
        }
        _ => {}
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
        for o in step.kind.writes() {
            if !step.aliases.iter().any(|r| r.1 == o.buf) {
                live += bytes(o.buf);
            }
        }
        s.peak_bytes = s.peak_bytes.max(live);
        for b in &step.free {
            live -= bytes(*b);
        }
        if let StepKind::Collective(c) = &step.kind {
            s.collective_bytes += c.bytes(plan).iter().sum::<usize>() as u64;
        }
    }
    s.activation_bytes = s.peak_bytes - s.parameter_bytes - s.optimizer_state_bytes;
    plan.summary = s;
}
