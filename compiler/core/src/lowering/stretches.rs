//! Stretches of steps between the beginnings and ends of loops: no pass moves a step out of the one where it is. Messages between
//! stages of a pipeline bound them too: nothing comes between a loop and what it receives and sends, for a stage that waits in
//! between would wait for one that waits for it.

use meshwright_plan::{Plan, Prim, Step};

fn bounds(step: &Step) -> bool {
    matches!(step.prim, Prim::Repeat { .. } | Prim::EndRepeat | Prim::Receive { .. } | Prim::Send { .. })
}

/// The stretch that each step belongs to, by number; what bounds one is a stretch by itself.
pub(super) fn stretches(steps: &[Step]) -> Vec<usize> {
    let mut number = 0;
    let mut after_bound = false;
    let each = steps.iter().map(|step| {
        number += usize::from(after_bound || bounds(step));
        after_bound = bounds(step);
        number
    });
    each.collect()
}

/// Runs a pass over each stretch that has a collective by itself, of a Plan with its buffers and only these steps.
pub(super) fn in_stretches(mut plan: Plan, pass: impl Fn(Plan) -> Plan) -> Plan {
    if !plan.steps.iter().any(bounds) {
        return pass(plan);
    }
    let (mut out, mut stretch) = (Vec::with_capacity(plan.steps.len()), Vec::new());
    for step in std::mem::take(&mut plan.steps).into_iter().map(Some).chain([None]) {
        if let Some(step) = step.as_ref().filter(|s| !bounds(s)) {
            stretch.push(step.clone());
            continue;
        }
        plan.steps = std::mem::take(&mut stretch);
        if plan.steps.iter().any(|s| s.collective().is_some()) {
            plan = pass(plan);
        }
        out.append(&mut plan.steps);
        out.extend(step);
    }
    plan.steps = out;
    plan
}
