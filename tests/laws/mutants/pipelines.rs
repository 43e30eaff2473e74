//! Faults in Plans whose layers are stages: messages, what runs on which stage, what is summed over the stages, and what passes
//! leave for later ones.
//!
//! The order of passes is no part of a Plan. Its faults are seeded in lists of actions (`plan/src/actions/transfers/tests.rs`)
//! and in device plans (`runs/devices/pass_order.rs`). All faults that pipelines have had somewhere, and where each is seeded:
//!
//! | fault | seeded as |
//! |---|---|
//! | exchanged actions | "two passes are exchanged" (device plans), `lists_that_are_wrong_are_found` (lists) |
//! | W before B | the same: of `zb_h1` |
//! | an action that is missing or is of another microbatch | "a pass is left out", "a pass is that of another microbatch" (device plans) |
//! | a wrong sender or receiver | "a message goes to the stage before", "a message is awaited from the stage behind" |
//! | a missing send or receive | "a message is not sent"; "a message is not received" (device plans); `lists_that_are_wrong_are_found` (lists) |
//! | messages in another order, or received too late to end | "two messages are received in another order", "a message is received at the end" (device plans), `lists_that_receive_later_do_not_end` (lists) |
//! | another microbatch's residual | "a pass takes what is kept for another microbatch" (device plans); of another value, "a pass takes what is kept for another value" |
//! | a wrong layer | "a stage leaves out its first layer", "layers are run from the other end" |
//! | what every stage has, summed as partial | "what the last stage computes is computed on all", "what the first stage computes is computed on all" |
//! | what the last stage has, read elsewhere | "a broadcast is from another stage", "all stages have what goes to all" |
//! | an unreduced gradient of an embedding | "a value of one stage is not summed over the stages" |
//! | an accumulator one action early | "an accumulator is taken one pass early" (device plans) |
//! | an error that names nothing | "a message that is sent has no cause", "a message that is received is of no value" |

use super::plans::{Fault, P, faults, seeded, steps};
use super::sites::Site;
use super::subjects::{planned_from, predicted_from};
use super::{By, Row, in_spmd, judge};
use meshwright_core::partition::{Instr, Reshard};
use meshwright_plan::{Axis, BufId, Collective, Dim, Monoid, Plan, Prim, Step};

const STACKED: &str = "
dim batch = 8, d = 3, e = 3, layers = 4
model m {
    input x[batch, d]: float
    param start[d] = normal(0, 1)
    let y = x * start
    repeat layers {
        param w[d, e] = normal(0, 0.5)
        param b[d] = normal(0, 1)
        y = y + tanh(sum[d](y * w)[e -> d] + b)
    }
    param head[d] = normal(0, 1)
    loss l = mean[batch, d](y * y * head * start)
}
train m {
    minimize l
    optimizer sgd(lr = 0.05, momentum = 0.9)
    clip global_norm = 1.0
}
";

/// A device does not end, or another number comes out.
const R: &[By] = &[By::PlanVerifier, By::Preparation, By::Run, By::Result, By::Replicas];

/// The dims of loops over stages, of which the longest is that of the layers.
fn stages(p: &Plan, i: usize) -> Option<(Dim, bool)> {
    let pipeline = p.pipeline.as_ref()?;
    match &p.steps[i].prim {
        Prim::Repeat { dim, axes, .. } if !axes.is_empty() => Some((*dim, *dim == pipeline.dim)),
        _ => None,
    }
}

const FAULTS: &[Fault] = faults![
    "a message is not sent", R, |p, k| {
        steps(p, k, |p, i| {
            matches!(p.steps[i].prim, Prim::Send { .. }).then_some(())?;
            let sent = p.steps.remove(i);
            p.steps[i - 1].free.extend(sent.free);
            Some(())
        })
    };
    "a message goes to the stage before", R, |p, k| {
        steps(p, k, |p, i| match &mut p.steps[i].prim {
            Prim::Send { reverse, .. } => {
                *reverse = !*reverse;
                Some(())
            }
            _ => None,
        })
    };
    "a message that is sent has no cause", P, |p, k| {
        steps(p, k, |p, i| {
            matches!(p.steps[i].prim, Prim::Send { .. }).then(|| p.steps[i].origin.clear())
        })
    };
    "a message that is received is of no value", P, |p, k| {
        steps(p, k, |p, i| {
            matches!(p.steps[i].prim, Prim::Receive { .. }).then(|| p.steps[i].origin[0].path = "".into())
        })
    };
    "a message is awaited from the stage behind", R, |p, k| {
        steps(p, k, |p, i| match &mut p.steps[i].prim {
            Prim::Receive { reverse, .. } => {
                *reverse = !*reverse;
                Some(())
            }
            _ => None,
        })
    };
    "a stage leaves out its first layer", R, |p, k| {
        steps(p, k, |p, i| {
            stages(p, i)?.1.then_some(())?;
            let Prim::Repeat { from, .. } = &mut p.steps[i].prim else { return None };
            *from += 1;
            Some(())
        })
    };
    "layers are run from the other end", R, |p, k| {
        steps(p, k, |p, i| {
            // Gradients of weights may be made in any order.
            let begins = i > 0 && matches!(p.steps[i - 1].prim, Prim::Receive { .. });
            (begins && stages(p, i)?.1).then_some(())?;
            let Prim::Repeat { reverse, .. } = &mut p.steps[i].prim else { return None };
            *reverse = !*reverse;
            Some(())
        })
    };
    "what the last stage computes is computed on all", R, |p, k| {
        // Forward and backward: of what a stage has not made, it computes nothing.
        let last = |s: &Step| matches!(&s.prim, Prim::Repeat { from, axes, .. } if *from > 0 && !axes.is_empty());
        steps(p, k, |p, i| {
            (last(&p.steps[i]) && !p.steps[..i].iter().any(last)).then_some(())?;
            for step in &mut p.steps[i..] {
                if let (true, Prim::Repeat { from, .. }) = (last(step), &mut step.prim) {
                    *from = 0;
                }
            }
            Some(())
        })
    };
    "what the first stage computes is computed on all", R, |p, k| {
        steps(p, k, |p, i| {
            let (dim, layers) = stages(p, i)?;
            (!layers && p.dims.size(dim) == 1).then_some(())?;
            let Prim::Repeat { axes, .. } = &mut p.steps[i].prim else { return None };
            axes.clear();
            Some(())
        })
    };
    "a value of one stage is not summed over the stages", R, |p, k| {
        // Gradients of what the first stage embeds with among them.
        let over = |p: &Plan, s: &Step| {
            matches!(s.collective(), Some(Collective::AllReduce { axes, .. }) if Some(axes) == p.pipeline.as_ref().map(|of| &of.axes))
        };
        let all = (0..p.steps.len()).filter(|i| over(p, &p.steps[*i]));
        let part = all.flat_map(|i| (0..p.steps[i].reads.len()).map(move |part| (i, part))).nth(k);
        let Some((i, part)) = part else { return Site::End };
        if p.steps[i].reads.len() < 2 {
            return Site::Skipped;
        }
        let step = &mut p.steps[i];
        let (from, to) = (step.reads.remove(part).buf, step.writes.remove(part).buf);
        step.origin.remove(part);
        step.aliases.retain(|(_, result)| *result != to);
        let same = |b: &mut BufId| {
            if *b == to {
                *b = from;
            }
        };
        for step in &mut p.steps[i + 1..] {
            step.reads.iter_mut().chain(&mut step.writes).for_each(|o| same(&mut o.buf));
            step.free.iter_mut().for_each(same);
            step.aliases.iter_mut().for_each(|(a, _)| same(a));
        }
        p.program_inputs.iter_mut().filter_map(|l| l.next.as_mut()).for_each(same);
        p.outputs.iter_mut().for_each(|o| same(&mut o.buf));
        Site::Seeded
    };
    "a pass takes what is kept for another value", R, |p, k| {
        let over = p.microbatches.map(|m| m.over);
        steps(p, k, |p, i| {
            let kept = |s: &Step| {
                let slices = matches!(s.prim, Prim::IterationSlice { dim } if Some(dim) == over);
                slices.then(|| s.reads[0].clone())
            };
            let here = kept(&p.steps[i])?;
            let same = |s: &Step| {
                kept(s).is_some_and(|o| o.buf != here.buf && o.dims == here.dims)
            };
            let other = (0..i).rev().take_while(|at| !matches!(p.steps[*at].prim, Prim::EndRepeat));
            let other = other.into_iter().find(|at| same(&p.steps[*at]))?;
            let theirs = p.steps[other].reads[0].clone();
            p.steps[other].reads[0] = here;
            p.steps[i].reads[0] = theirs;
            Some(())
        })
    };
    "passes of all stages are of one layer more", P, |p, k| {
        steps(p, k, |p, i| {
            let over = p.pipeline.as_ref()?.dim;
            let Prim::IterationSlice { dim } = p.steps[i].prim else { return None };
            (dim == over).then_some(())?;
            let result = p.steps[i].writes[0].buf;
            p.buffers[result.0 as usize].extents.first_mut()?.size += 1;
            Some(())
        })
    };
];

#[test]
fn every_wrong_pipeline_is_caught() {
    let subjects = [
        planned_from("two stages", STACKED, "p=2", "layers -> p; microbatches 4; schedule zb_h1"),
        planned_from("uneven stages", STACKED, "p=3", "layers -> p; microbatches 2"),
        planned_from("and examples", STACKED, "b=2,p=2", "batch -> b; layers -> p; microbatches 2"),
        planned_from("two chunks", STACKED, "p=2", "layers -> p; microbatches 2; chunks 2"),
    ];
    // A message that does not come is waited for until the time is over.
    let of = |fault: &Fault| if fault.what.starts_with("a message") { &subjects[..1] } else { &subjects[..] };
    let rows: Vec<Row> = FAULTS.iter().map(|fault| seeded(fault, of(fault))).collect();
    judge("pipelines", &rows);
}

/// A model whose layers give what all devices read on.
const GIVEN: &str = "
dim batch = 4, d = 3, e = 3, layers = 4
model m {
    input x[batch, d]: float
    let y = x
    repeat layers {
        param w[d, e] = normal(0, 0.5)
        y = y + tanh(sum[d](y * w)[e -> d])
    }
    output z = tanh(y)
    output total = sum[d](z)
}
";

/// The broadcast at a step.
fn broadcast(p: &mut Plan, i: usize) -> Option<(&mut Vec<Axis>, &mut usize)> {
    match &mut p.steps[i].prim {
        Prim::Collective(Collective::Broadcast { axes, root }) => Some((axes, root)),
        _ => None,
    }
}

const GIVEN_FAULTS: &[Fault] = faults![
    "a broadcast is from another stage", P, |p, k| {
        steps(p, k, |p, i| {
            let (_, root) = broadcast(p, i)?;
            *root = root.checked_sub(1)?;
            Some(())
        })
    };
    "a broadcast is over another axis", P, |p, k| {
        let all: Vec<Axis> = p.mesh.iter().collect();
        steps(p, k, |p, i| {
            let (axes, _) = broadcast(p, i)?;
            *axes = vec![*all.iter().find(|a| !axes.contains(a))?];
            Some(())
        })
    };
    "a broadcast is of what several devices have a part of", P, |p, k| {
        steps(p, k, |p, i| {
            let Prim::Collective(c) = &mut p.steps[i].prim else { return None };
            let Collective::AllReduce { axes, monoid: Monoid::Sum } = c else { return None };
            *c = Collective::Broadcast { axes: axes.clone(), root: 0 };
            Some(())
        })
    };
    "all stages have what goes to all", P, |p, k| {
        steps(p, k, |p, i| {
            broadcast(p, i)?;
            let end = (0..i).rev().find(|at| matches!(p.steps[*at].prim, Prim::EndRepeat))?;
            let begin = (0..end).rev().find(|at| matches!(p.steps[*at].prim, Prim::Repeat { .. }))?;
            let Prim::Repeat { from, .. } = &mut p.steps[begin].prim else { return None };
            *from = from.checked_sub(1)?;
            Some(())
        })
    };
];

/// Where stages run one after the other, one of them has what their loop gives.
#[test]
fn every_wrong_broadcast_is_caught() {
    let subjects = [
        predicted_from("two stages", GIVEN, "p=2", "layers -> p"),
        predicted_from("uneven stages", GIVEN, "b=2,p=3", "batch -> b; layers -> p"),
        predicted_from("split sums", GIVEN, "p=2,m=2", "layers -> p; d -> m"),
    ];
    let rows: Vec<Row> = GIVEN_FAULTS.iter().map(|fault| seeded(fault, &subjects)).collect();
    judge("broadcasts", &rows);
    for subject in &subjects {
        let mut spmd = subject.spmd.clone();
        let mut changed = 0;
        for instr in &mut spmd.instrs {
            if let Instr::Reshard { kind: Reshard::Collective(Collective::Broadcast { root, .. }), .. } =
                instr
            {
                (*root, changed) = (0, changed + 1);
            }
        }
        assert_eq!(changed, 1, "{}", subject.name);
        assert!(matches!(in_spmd(subject, &spmd), Some((By::Verifier, _))), "{}", subject.name);
    }
}
