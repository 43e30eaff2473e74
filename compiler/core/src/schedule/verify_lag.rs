//! What must hold of steps of a loop that run in other turns than the rest of its body.

use meshwright_plan::{BufId, Plan, Prim, StepLoop};
use std::collections::BTreeMap;

/// Every violation, in words.
pub(super) fn lags(plan: &Plan, v: &mut Vec<String>) {
    let loops = plan.loops();
    let mut around = vec![None; plan.steps.len()];
    for l in &loops {
        around[l.begin + 1..l.end].fill(Some(*l));
    }
    for (i, step) in plan.steps.iter().enumerate() {
        if around[i].is_none() && step.lag > 0 {
            v.push(format!("step {i} ({}): is in no loop and has a lag", step.name()));
        }
        if plan.steps[plan.end_of(i)].lag != step.lag {
            v.push(format!("step {i} ({}): is waited for with another lag", step.name()));
        }
    }
    for l in &loops {
        if plan.steps[l.begin].lag != plan.steps[l.end].lag {
            v.push(format!("step {} (repeat): ends with another lag", l.begin));
        }
        within(plan, l, v);
    }
}

/// Of one loop.
fn within(plan: &Plan, of: &StepLoop, v: &mut Vec<String>) {
    let lags = plan.lags(of);
    let made: BTreeMap<BufId, u8> =
        lags.iter().flat_map(|(s, lag)| plan.steps[*s].writes.iter().map(|o| (o.buf, *lag))).collect();
    let (begin, end) = (&plan.steps[of.begin], &plan.steps[of.end]);
    for (s, lag) in lags {
        for o in &plan.steps[s].reads {
            let mut wrong = |what: &str| {
                let name = plan.steps[s].name();
                v.push(format!("step {s} ({name}): reads buffer {} {what}", o.buf.0));
            };
            if made.get(&o.buf).is_some_and(|made| *made != lag) {
                wrong("which is made with another lag");
            }
            let Some(k) = begin.writes.iter().position(|c| c.buf == o.buf) else { continue };
            let (Some(next), Some(last)) = (end.reads.get(k), end.writes.get(k)) else { continue };
            match made.get(&next.buf) {
                Some(made) if *made == lag => {}
                Some(made) if made + 1 == lag => {
                    if !starts_blank(plan, begin.reads[k].buf, of.begin) || read_after(plan, last.buf) {
                        wrong(
                            "which is handed over, and of which is read what it starts as or is in the end",
                        );
                    }
                }
                _ => wrong("which is made neither in its turn nor in the one before"),
            }
        }
    }
}

/// Whether only a loop reads a buffer, which nothing has written.
fn starts_blank(plan: &Plan, buf: BufId, begin: usize) -> bool {
    let blank = |s: &meshwright_plan::Step| matches!(s.prim, Prim::Blank { .. }) && s.writes_buf(buf);
    plan.steps.iter().any(blank)
        && plan.steps.iter().enumerate().all(|(s, step)| s == begin || !step.reads_buf(buf))
}

fn read_after(plan: &Plan, buf: BufId) -> bool {
    plan.steps.iter().any(|s| s.reads_buf(buf))
        || plan.outputs.iter().any(|o| o.buf == buf)
        || plan.program_inputs.iter().any(|l| l.next == Some(buf))
}
