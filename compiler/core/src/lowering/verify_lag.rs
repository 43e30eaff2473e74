//! What must hold of steps of a loop that run in other turns than the rest of its body.

use super::per_buffer::PerBuffer;
use meshwright_plan::{BufId, Plan, Prim, StepLoop};
use meshwright_sorted::SortedMap;

/// Every violation, in words.
pub(super) fn lags(plan: &Plan, v: &mut Vec<String>) {
    // Then each step reads what is made in its own turn.
    if plan.steps.iter().all(|step| step.lag == 0) {
        return;
    }
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
    let uses = Uses::of(plan);
    for l in &loops {
        if plan.steps[l.begin].lag != plan.steps[l.end].lag {
            v.push(format!("step {} (repeat): ends with another lag", l.begin));
        }
        within(plan, &uses, l, v);
    }
}

/// Of one loop.
fn within(plan: &Plan, uses: &Uses, of: &StepLoop, v: &mut Vec<String>) {
    let lags = plan.lags(of);
    let made: SortedMap<BufId, u8> =
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
                    let start = begin.reads[k].buf;
                    let blank = uses.blank[start] && uses.readers[start] == [of.begin];
                    if !blank || uses.stays[last.buf] || !uses.readers[last.buf].is_empty() {
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

/// Who uses each buffer.
struct Uses {
    /// Whether nothing has written it.
    blank: PerBuffer<bool>,
    /// The steps that read it, each once.
    readers: PerBuffer<Vec<usize>>,
    /// Whether it is an output, or next for what the program keeps.
    stays: PerBuffer<bool>,
}

impl Uses {
    fn of(plan: &Plan) -> Uses {
        let (mut blank, mut stays) = (PerBuffer::new(plan, false), PerBuffer::new(plan, false));
        let mut readers: PerBuffer<Vec<usize>> = PerBuffer::new(plan, Vec::new());
        for (i, step) in plan.steps.iter().enumerate() {
            for o in step.reads.iter() {
                if readers[o.buf].last() != Some(&i) {
                    readers[o.buf].push(i);
                }
            }
            if let Prim::Blank { .. } = step.prim {
                step.writes.iter().for_each(|o| blank[o.buf] = true);
            }
        }
        plan.outputs.iter().for_each(|o| stays[o.buf] = true);
        plan.program_inputs.iter().filter_map(|l| l.next).for_each(|b| stays[b] = true);
        Uses { blank, readers, stays }
    }
}
