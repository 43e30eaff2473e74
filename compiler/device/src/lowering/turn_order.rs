//! The order of turns of a pipeline's loops over microbatches on one device: that of its schedule.

use crate::error::LoweringError;
use crate::launch::{Launch, LaunchKind, LoopLaunch};
use crate::slot::{LaunchId, Slots};
use crate::turns::Turn;
use burn_ir::{TensorId, TensorIr, TensorStatus};
use meshwright_plan::actions::{Pass, runs};
use meshwright_plan::{Axis, IdVec, Pipeline, Plan, Prim, Step};
use std::collections::BTreeSet;
use std::ops::Range;

/// The ranks of the stages to which a device belongs, in the order of the stages, and its place among them.
pub(super) fn stages(plan: &Plan, rank: usize, axes: &[Axis]) -> Result<(Vec<usize>, usize), LoweringError> {
    let ranks = plan.mesh.group(rank, axes);
    let at = ranks.iter().position(|r| *r == rank);
    at.map(|at| (ranks, at)).ok_or_else(|| LoweringError::Plan("a device is in no stage".into()))
}

/// Numbers that calls take on every device in a loop in which devices make different ones.
pub(super) fn numbers(plan: &Plan, steps: Range<usize>) -> Option<u64> {
    let differs = |s: &Step| match &s.prim {
        Prim::Repeat { axes, .. } => !axes.is_empty(),
        Prim::Receive { .. } | Prim::Send { .. } => true,
        _ => false,
    };
    plan.steps[steps.clone()].iter().any(differs).then(|| {
        // Pairs of value and index are two calls.
        let calls = |s: &Step| s.collective().map_or(0, |_| 2 * s.reads.len() as u64);
        let times = plan.times();
        steps.map(|at| times[at].saturating_mul(calls(&plan.steps[at]))).sum()
    })
}

/// The launches around all loops, with the loops over microbatches as one whose iterations are in the order of the schedule. A
/// Plan has them one behind the other, as GPipe does.
pub(super) fn in_order_of_schedule(
    plan: &Plan,
    rank: usize,
    (launches, slots): (&mut IdVec<LaunchId, Launch>, &Slots),
    body: Vec<LaunchId>,
) -> Result<Vec<LaunchId>, LoweringError> {
    let (Some(pipeline), Some(parts)) = (&plan.pipeline, plan.microbatches) else { return Ok(body) };
    let over = |id: &LaunchId| match &launches[*id].kind {
        LaunchKind::Loop(of) => of.dim == parts.over && of.numbers.is_some(),
        _ => false,
    };
    let found: Vec<usize> = (0..body.len()).filter(|at| over(&body[*at])).collect();
    let [forward, backward] = found[..] else { return Ok(body) };
    let turns = passes(plan, rank, pipeline)?;
    let free = std::mem::replace(&mut launches[body[forward]].kind, LaunchKind::Free);
    let (LaunchKind::Loop(forth), LaunchKind::Loop(back)) =
        (free, std::mem::replace(&mut launches[body[backward]].kind, LaunchKind::Free))
    else {
        return Ok(body);
    };
    // Of what stands between the loops, what the backward passes need comes before them all; what ends there ends behind them.
    let used = reads_of((launches, slots), &forth.body);
    let mut needed = reads_of((launches, slots), &back.body);
    needed.extend(back.carries.iter().flat_map(|c| slots.of_buffer(c.start)));
    let (mut before, mut after, mut frees) = (vec![], vec![], vec![]);
    for id in body[forward + 1..backward].iter().rev() {
        if !written_by(launches, *id).iter().any(|id| needed.contains(id)) {
            after.push(*id);
            continue;
        }
        needed.extend(reads_of((launches, slots), &[*id]));
        if let LaunchKind::Wait { start, .. } = launches[*id].kind {
            // So its start is needed, too.
            needed.extend(written_by(launches, start));
        }
        let launch = &mut launches[*id];
        frees.append(&mut launch.frees);
        let ends = |t: &TensorIr| t.status == TensorStatus::ReadWrite && used.contains(&t.id);
        if launch.reads.iter().any(ends) {
            return Err(LoweringError::Plan("a backward pass takes what a forward pass reads".into()));
        }
        before.push(*id);
    }
    if forth.carries.iter().flat_map(|c| slots.of_buffer(c.last)).any(|id| needed.contains(&id)) {
        return Err(LoweringError::Plan("a backward pass reads what only all forward passes give".into()));
    }
    let merged = merged(*forth, *back, &turns);
    frees.append(&mut launches[body[forward]].frees);
    let steps = launches[body[forward]].steps.clone();
    let launch = &mut launches[body[backward]];
    launch.kind = LaunchKind::Loop(Box::new(merged));
    launch.steps = [steps, std::mem::take(&mut launch.steps)].concat();
    launch.frees.append(&mut frees);
    let (first, rest) = (&body[..forward], &body[backward + 1..]);
    let middle = before.into_iter().rev().chain([body[backward]]).chain(after.into_iter().rev());
    Ok(first.iter().copied().chain(middle).chain(rest.iter().copied()).collect())
}

/// The tensors that a launch outside of loops writes. A wait and its collective both write what arrives.
fn written_by(launches: &IdVec<LaunchId, Launch>, id: LaunchId) -> Vec<TensorId> {
    let launch = &launches[id];
    let mut all: Vec<TensorId> = launch.writes.iter().map(|t| t.id).collect();
    match &launch.kind {
        LaunchKind::Burn(burn) => {
            all.extend(burn.graph.operations.iter().flat_map(|o| o.outputs()).map(|t| t.id));
        }
        LaunchKind::Collective(of) => {
            all.extend(of.calls.iter().flat_map(|c| &c.receive).filter_map(|p| p.tensor));
            all.extend(of.unpack.iter().flat_map(|id| written_by(launches, *id)));
        }
        LaunchKind::Wait { start, unpack } => {
            all.extend(written_by(launches, *start));
            all.extend(unpack.iter().flat_map(|id| written_by(launches, *id)));
        }
        LaunchKind::Kernel(_) | LaunchKind::Free | LaunchKind::Loop(_) => {}
    }
    all
}

/// What some launches, and those in them, read.
fn reads_of((launches, slots): (&IdVec<LaunchId, Launch>, &Slots), ids: &[LaunchId]) -> BTreeSet<TensorId> {
    let (mut all, mut todo) = (BTreeSet::new(), ids.to_vec());
    while let Some(id) = todo.pop() {
        let launch = &launches[id];
        all.extend(launch.reads.iter().map(|t| t.id));
        match &launch.kind {
            LaunchKind::Loop(of) => {
                all.extend(of.carries.iter().flat_map(|c| slots.of_buffer(c.start)));
                todo.extend(&of.body);
            }
            LaunchKind::Collective(of) => {
                all.extend(of.calls.iter().flat_map(|c| &c.send).filter_map(|p| p.tensor));
                todo.extend(of.pack.iter().chain(&of.unpack));
            }
            LaunchKind::Wait { unpack, .. } => todo.extend(unpack),
            LaunchKind::Burn(burn) => {
                all.extend(burn.graph.operations.iter().flat_map(|o| o.inputs()).map(|t| t.id));
            }
            LaunchKind::Kernel(_) | LaunchKind::Free => {}
        }
    }
    all
}

/// The passes of a device in the order of its schedule: forward or not, and the microbatch.
fn passes(plan: &Plan, rank: usize, pipeline: &Pipeline) -> Result<Vec<(bool, usize)>, LoweringError> {
    let (ranks, at) = stages(plan, rank, &pipeline.axes)?;
    let parts = plan.microbatches.map_or(1, |m| plan.dims.size(m.over));
    let mut all = runs(pipeline.schedule, ranks.len(), 1, parts).map_err(LoweringError::Plan)?;
    Ok(all.swap_remove(at).into_iter().map(|run| (run.pass == Pass::F, run.micro)).collect())
}

/// Two loops over the same dim as one, whose iterations are in that order.
fn merged(forth: LoopLaunch, back: LoopLaunch, passes: &[(bool, usize)]) -> LoopLaunch {
    let loops = [(0, 0, forth.carries.len(), forth.body.len()), {
        let (carries, body) = (forth.carries.len(), forth.body.len());
        (carries, body, carries + back.carries.len(), body + back.body.len())
    }];
    let numbers = forth.numbers.zip(back.numbers).map(|(a, b)| a + b);
    let mut turns = vec![];
    let mut begun = [false; 2];
    for (forward, micro) in passes {
        let which = usize::from(!forward);
        let (first_carry, first_launch, carries, launches) = loops[which];
        let made = std::mem::replace(&mut begun[which], true);
        turns.extend((first_carry..carries).map(|carry| Turn::Carry { carry, made }));
        turns.extend((first_launch..launches).map(|launch| Turn::Run { launch, position: *micro }));
    }
    let carries = [forth.carries, back.carries].concat();
    turns.extend((0..carries.len()).map(|carry| Turn::End { carry, made: true }));
    let body = [forth.body, back.body].concat();
    LoopLaunch {
        dim: forth.dim,
        reverse: false,
        from: forth.from,
        positions: forth.positions,
        numbers,
        carries,
        body,
        turns,
    }
}
