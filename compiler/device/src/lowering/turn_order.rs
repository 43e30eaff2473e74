//! The order of turns of a pipeline's loops over microbatches on one device: that of its schedule.

use crate::error::LoweringError;
use crate::launch::{Launch, LaunchKind, LoopLaunch};
use crate::slot::{LaunchId, Slots};
use crate::turns::Turn;
use burn_ir::{TensorId, TensorStatus};
use meshwright_plan::actions::Action;
use meshwright_plan::{Axis, IdVec, Plan, Prim, Step};
use meshwright_sorted::{SortedMap, SortedSet};
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
    (plan, rank): (&Plan, usize),
    (launches, slots): (&mut IdVec<LaunchId, Launch>, &Slots),
    body: Vec<LaunchId>,
    chunks: &SortedMap<LaunchId, Vec<Range<usize>>>,
) -> Result<Vec<LaunchId>, LoweringError> {
    let (Some(passes), Some(parts)) = (plan.pipeline_passes(), plan.microbatches) else { return Ok(body) };
    let over = |id: &LaunchId| match &launches[*id].kind {
        LaunchKind::Loop(of) => of.dim == parts.over && of.numbers.is_some(),
        _ => false,
    };
    let found: Vec<usize> = (0..body.len()).filter(|at| over(&body[*at])).collect();
    let (Some(first), Some(last)) = (found.first().copied(), found.last().copied()) else { return Ok(body) };
    let actions = passes.actions(stages(plan, rank, &passes.pipeline.axes)?.1);
    let (loops, parts) = taken(launches, found.iter().map(|at| body[*at]), chunks);
    // Launches between the loops that later passes need come before all loops; lifetimes that end there end after them.
    let used: SortedSet<TensorId> =
        loops.iter().flat_map(|of| reads_of((launches, slots), &of.body)).collect();
    let mut needed = SortedSet::new();
    for of in &loops[1..] {
        needed.extend(reads_of((launches, slots), &of.body));
        needed.extend(of.carries.iter().flat_map(|c| slots.of_buffer(c.start)));
    }
    let (mut before, mut after, mut frees) = (vec![], vec![], vec![]);
    let mut started = false;
    for at in (first + 1..last).rev().filter(|at| !found.contains(at)) {
        let id = body[at];
        // Collectives start in the order of the Plan, on all devices.
        let starts = matches!(launches[id].kind, LaunchKind::Collective(_));
        let early = starts && started;
        if !early && !written_by((launches, slots), id).iter().any(|id| needed.contains(id)) {
            after.push(id);
            continue;
        }
        started |= starts;
        needed.extend(reads_of((launches, slots), &[id]));
        if let LaunchKind::Wait { start, .. } = launches[id].kind {
            // So its start is needed, too.
            needed.extend(written_by((launches, slots), start));
        }
        frees.append(&mut launches[id].frees);
        frees.extend(lent(launches, slots, id, &used));
        before.push(id);
    }
    let given = |of: &LoopLaunch| of.carries.iter().flat_map(|c| slots.of_buffer(c.last)).collect::<Vec<_>>();
    if loops[..loops.len() - 1].iter().flat_map(given).any(|id| needed.contains(&id)) {
        return Err(LoweringError::Plan("a pass reads what only all passes before it give".into()));
    }
    let mut steps = vec![];
    for at in &found {
        let launch = &mut launches[body[*at]];
        frees.append(&mut launch.frees);
        steps.append(&mut launch.steps);
    }
    let merged = merged(loops, parts, (&actions, launches))?;
    let launch = &mut launches[body[last]];
    launch.kind = LaunchKind::Loop(Box::new(merged));
    (launch.steps, launch.frees) = (steps, frees);
    let (begin, rest) = (&body[..first], &body[last + 1..]);
    let middle = before.into_iter().rev().chain([body[last]]).chain(after.into_iter().rev());
    Ok(begin.iter().copied().chain(middle).chain(rest.iter().copied()).collect())
}

/// Takes loops out of their launches, each with where the launches of each chunk are in its body.
fn taken(
    launches: &mut IdVec<LaunchId, Launch>,
    ids: impl Iterator<Item = LaunchId>,
    chunks: &SortedMap<LaunchId, Vec<Range<usize>>>,
) -> (Vec<LoopLaunch>, Vec<Vec<Range<usize>>>) {
    let loops = ids.filter_map(|id| match std::mem::replace(&mut launches[id].kind, LaunchKind::Free) {
        LaunchKind::Loop(of) => {
            let whole = 0..of.body.len();
            Some((*of, chunks.get(&id).cloned().unwrap_or_else(|| vec![whole])))
        }
        _ => None,
    });
    loops.unzip()
}

/// Makes a launch read what it takes of some tensors, whose lifetime ends later: these.
fn lent(
    launches: &mut IdVec<LaunchId, Launch>,
    slots: &Slots,
    id: LaunchId,
    used: &SortedSet<TensorId>,
) -> Vec<TensorId> {
    let (launch, mut all) = (&mut launches[id], vec![]);
    for read in launch.reads.iter_mut().filter(|t| used.contains(&t.id)) {
        if std::mem::replace(&mut read.status, TensorStatus::ReadOnly) == TensorStatus::ReadWrite {
            all.push(read.id);
        }
    }
    let mut inner = vec![];
    match &mut launch.kind {
        LaunchKind::Burn(burn) => {
            let used: Vec<TensorId> = used.iter().copied().collect();
            let marked = burn.graph.operations.iter_mut().flat_map(|o| o.mark_read_only(&used));
            all.extend(marked.map(|t| t.id));
        }
        LaunchKind::Loop(of) => {
            for carry in of.carries.iter_mut().filter(|c| c.ends) {
                let own: Vec<TensorId> =
                    slots.of_buffer(carry.start).filter(|id| used.contains(id)).collect();
                carry.ends = own.is_empty();
                all.extend(own);
            }
        }
        LaunchKind::Collective(of) => {
            inner.extend(of.pack.iter().chain(&of.unpack).copied());
            for piece in of.calls.iter_mut().flat_map(|c| &mut c.send).filter(|p| p.ends) {
                let own = piece.tensor.filter(|id| used.contains(id));
                piece.ends = own.is_none();
                all.extend(own);
            }
        }
        LaunchKind::Wait { unpack, .. } => inner.extend(unpack.iter().copied()),
        LaunchKind::Kernel(_) | LaunchKind::Free => {}
    }
    for id in inner {
        all.extend(lent(launches, slots, id, used));
    }
    all
}

/// The tensors that a launch outside of loops writes. A wait and its collective both write the received tensor.
fn written_by((launches, slots): (&IdVec<LaunchId, Launch>, &Slots), id: LaunchId) -> Vec<TensorId> {
    let launch = &launches[id];
    let mut all: Vec<TensorId> = launch.writes.iter().map(|t| t.id).collect();
    match &launch.kind {
        LaunchKind::Burn(burn) => {
            all.extend(burn.graph.operations.iter().flat_map(|o| o.outputs()).map(|t| t.id));
        }
        LaunchKind::Collective(of) => {
            all.extend(of.calls.iter().flat_map(|c| &c.receive).filter_map(|p| p.tensor));
            all.extend(of.unpack.iter().flat_map(|id| written_by((launches, slots), *id)));
        }
        LaunchKind::Wait { start, unpack } => {
            all.extend(written_by((launches, slots), *start));
            all.extend(unpack.iter().flat_map(|id| written_by((launches, slots), *id)));
        }
        LaunchKind::Loop(of) => all.extend(of.carries.iter().flat_map(|c| slots.of_buffer(c.last))),
        LaunchKind::Kernel(_) | LaunchKind::Free => {}
    }
    all
}

/// The operands of some launches, and of those in them.
fn reads_of((launches, slots): (&IdVec<LaunchId, Launch>, &Slots), ids: &[LaunchId]) -> SortedSet<TensorId> {
    let (mut all, mut todo) = (SortedSet::new(), ids.to_vec());
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

/// Loops over the same dim, of forward passes, backward passes and weights, as one, whose iterations are in that order.
/// `chunks` has the ranges of each chunk's launches in the body of each loop.
fn merged(
    loops: Vec<LoopLaunch>,
    chunks: Vec<Vec<Range<usize>>>,
    (actions, launches): (&[Action], &IdVec<LaunchId, Launch>),
) -> Result<LoopLaunch, LoweringError> {
    let mut all: Option<LoopLaunch> = None;
    // The carries of each loop, and whether a pass of it has run.
    let mut parts = vec![];
    for (of, chunks) in loops.into_iter().zip(chunks) {
        let known = all.get_or_insert_with(|| LoopLaunch {
            dim: of.dim,
            reverse: false,
            from: of.from,
            positions: of.positions.clone(),
            runs: of.runs.clone(),
            of_one_stage: of.of_one_stage,
            numbers: Some(0),
            carries: vec![],
            body: vec![],
            turns: vec![],
            passes: vec![],
        });
        let (carries, launches) = (known.carries.len(), known.body.len());
        known.carries.extend(of.carries);
        known.body.extend(of.body);
        let numbers = of.numbers.map(|n| n.saturating_mul(chunks.len() as u64));
        known.numbers = known.numbers.zip(numbers).map(|(a, b)| a.saturating_add(b));
        known.passes.push(chunks.iter().map(|c| launches + c.start..launches + c.end).collect());
        parts.push((carries..known.carries.len(), false));
    }
    let mut all = all.ok_or_else(|| LoweringError::Plan("a pipeline has no passes".into()))?;
    let (mut turns, mut open) = (vec![], None);
    for action in actions {
        if let Action::Await(run) | Action::PassRun(run) = action
            && open.replace(*run) != Some(*run)
        {
            let lacks = || LoweringError::Plan("a pass of a schedule has no loop".into());
            let (carries, begun) = parts.get_mut(run.pass as usize).ok_or_else(lacks)?;
            let made = std::mem::replace(begun, true);
            turns.extend(carries.clone().map(|carry| Turn::Carry { carry, made }));
        }
        let own = all.turns_of(action, launches).into_iter();
        turns.extend(own.map(|(launch, position)| Turn::Run { launch, position }));
    }
    all.turns = turns;
    all.turns.extend((0..all.carries.len()).map(|carry| Turn::End { carry, made: true }));
    Ok(all)
}
