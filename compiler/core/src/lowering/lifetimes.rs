//! Lifetimes of buffers, donations of storage, and the peak of live bytes.

use super::per_buffer::PerBuffer;
use meshwright_plan::{BufId, Donation, Plan, Prim, ProgramInputKind, StoredElements, Summary};
use meshwright_sorted::SortedMap;

/// The ends in a step.
#[derive(Clone, Debug, Default)]
pub(super) struct Ends {
    /// Operands with the result that takes their storage.
    pub(super) aliases: Vec<(BufId, BufId)>,
    /// Buffers whose storage is released.
    pub(super) free: Vec<BufId>,
}

/// Adds lifetimes and sizes to a Plan whose steps are in their final order.
pub fn lifetimes(mut plan: Plan) -> Plan {
    let ends = ends(&plan);
    plan.summary = measured(&plan, &ends);
    for (step, Ends { aliases, free }) in plan.steps.iter_mut().zip(ends) {
        (step.aliases, step.free) = (aliases, free);
    }
    if plan.pipeline.is_some() {
        // Stages hold residuals of the microbatches that are in flight, and other parts of a stack.
        let on = plan.fullest();
        let bound =
            |kind| plan.program_inputs.iter().filter(move |i| i.kind == kind).map(|i| on.bytes(i.buf)).sum();
        let mut s = plan.summary.clone();
        s.peak_bytes = plan.peak_on(&on, &StoredElements::new());
        s.parameter_bytes = bound(ProgramInputKind::Param);
        s.optimizer_state_bytes = bound(ProgramInputKind::OptimizerState);
        s.step_bytes = s.peak_bytes - s.parameter_bytes - s.optimizer_state_bytes;
        plan.summary = s;
    }
    plan
}

/// The ends in each step of a Plan whose steps are in their final order.
pub(super) fn ends(plan: &Plan) -> Vec<Ends> {
    ends_with(plan, true)
}

/// The same where all storage is released, and none goes on to a result.
pub(super) fn releases(plan: &Plan) -> Vec<Ends> {
    ends_with(plan, false)
}

fn ends_with(plan: &Plan, hands_on: bool) -> Vec<Ends> {
    let mut last = last_uses(plan);
    let stays = outlives(plan);
    let waits = plan.steps.iter().enumerate().filter(|(_, s)| matches!(s.prim, Prim::Wait));
    let waits: SortedMap<u32, usize> = waits.filter_map(|(i, s)| Some((s.async_id?, i))).collect();
    let (none, mut handed) = (PerBuffer::new(plan, None), Handed::new(plan));
    // Operands of a collective in flight stay until its end, but for those whose storage a result takes at the start.
    for (i, step) in plan.steps.iter().enumerate() {
        let Some(end) = step.async_id.and_then(|f| waits.get(&f)).copied().filter(|end| *end > i) else {
            continue;
        };
        if hands_on {
            pairs(plan, i, |b| last[b] == Some(i) && !stays[b], &none, &mut handed);
        }
        for b in step.reads.iter().map(|o| o.buf).filter(|b| !handed.on[*b]) {
            last[b] = last[b].max(Some(end));
        }
    }
    let mut ending: Vec<Vec<BufId>> = vec![Vec::new(); plan.steps.len()];
    for (b, at) in last.iter().filter(|(b, _)| !stays[*b]) {
        if let Some(at) = at {
            ending[*at].push(b);
        }
    }
    let mut next: PerBuffer<Option<BufId>> = PerBuffer::new(plan, None);
    for l in &plan.program_inputs {
        next[l.buf] = l.next;
    }
    let mut handed = Handed::new(plan);
    let step = |(i, mut free): (usize, Vec<BufId>)| {
        if !hands_on {
            return Ends { aliases: Vec::new(), free };
        }
        let aliases = pairs(plan, i, |b| last[b] == Some(i) && !stays[b], &next, &mut handed);
        free.retain(|b| !handed.on[*b]);
        Ends { aliases, free }
    };
    ending.into_iter().enumerate().map(step).collect()
}

/// The step that uses each buffer last. What the body of a loop reads of what is around it is used until the loop ends.
fn last_uses(plan: &Plan) -> PerBuffer<Option<usize>> {
    let mut last: PerBuffer<Option<usize>> = PerBuffer::new(plan, None);
    let mut made: PerBuffer<Option<usize>> = PerBuffer::new(plan, None);
    let loops = plan.loops();
    // The loops that are open, outermost first: where each begins and ends.
    let mut open: Vec<(usize, usize)> = Vec::new();
    for (i, s) in plan.steps.iter().enumerate() {
        let begins = loops.binary_search_by_key(&i, |l| l.begin).ok().map(|k| loops[k]);
        for o in &s.reads {
            let around = |begin: usize| made[o.buf].is_none_or(|m| m < begin);
            let end = open.iter().find(|(begin, _)| around(*begin)).map_or(i, |l| l.1);
            last[o.buf] = last[o.buf].max(Some(end));
        }
        open.extend(begins.map(|l| (l.begin, l.end)));
        if matches!(s.prim, Prim::EndRepeat) {
            open.pop();
        }
        for o in &s.writes {
            made[o.buf] = Some(i);
            last[o.buf] = last[o.buf].max(Some(i));
        }
    }
    last
}

/// Buffers that outlive the step: outputs, next values, and parameters that the step does not change.
pub(super) fn outlives(plan: &Plan) -> PerBuffer<bool> {
    let mut stays = PerBuffer::new(plan, false);
    for o in &plan.outputs {
        stays[o.buf] = true;
    }
    for l in &plan.program_inputs {
        let kept = matches!(l.kind, ProgramInputKind::Param | ProgramInputKind::OptimizerState);
        match l.next {
            Some(next) => stays[next] = true,
            None => stays[l.buf] |= kept,
        }
    }
    stays
}

/// Storage that has found its next buffer. A buffer is written once and ends once, so it gives and takes once.
struct Handed {
    /// Whether a buffer's storage goes on to another.
    on: PerBuffer<bool>,
    /// Whether a buffer has the storage of another.
    over: PerBuffer<bool>,
}

impl Handed {
    fn new(plan: &Plan) -> Handed {
        Handed { on: PerBuffer::new(plan, false), over: PerBuffer::new(plan, false) }
    }
}

/// Results with the storage of operands that end here. First a parameter's next value in the parameter's storage, then
/// other donations.
fn pairs(
    plan: &Plan,
    at: usize,
    ends: impl Fn(BufId) -> bool,
    next: &PerBuffer<Option<BufId>>,
    handed: &mut Handed,
) -> Vec<(BufId, BufId)> {
    let step = &plan.steps[at];
    let mut out: Vec<(BufId, BufId)> = Vec::new();
    let donation = step.prim.spec().donation;
    if donation == Donation::Never || !step.reads.iter().any(|o| ends(o.buf)) {
        return out;
    }
    for first in [true, false] {
        for (k, to) in step.writes.iter().map(|o| o.buf).enumerate() {
            if handed.over[to] {
                continue;
            }
            let fits = |from: &BufId| {
                ends(*from)
                    && (!first || next[*from] == Some(to))
                    && !handed.on[*from]
                    && plan.same_storage(*from, to)
                    && step.may_donate(*from, to)
            };
            // The operand of the result's position where they are paired, else any.
            let mut all = step.reads.iter().map(|o| o.buf);
            let found = match donation {
                Donation::Paired => all.nth(k).filter(fits),
                _ => all.find(fits),
            };
            if let Some(from) = found {
                (handed.on[from], handed.over[to]) = (true, true);
                out.push((from, to));
            }
        }
    }
    out
}

/// Sizes on the device with the largest blocks, if the steps end what is given.
pub(super) fn measured(plan: &Plan, ends: &[Ends]) -> Summary {
    let mut bytes = PerBuffer::new(plan, 0u64);
    for (i, buffer) in plan.buffers.iter().enumerate() {
        bytes[BufId(i as u32)] = buffer.largest_bytes(&plan.mesh) as u64;
    }
    let mut s = plan.summary.clone();
    (s.parameter_bytes, s.optimizer_state_bytes) = (0, 0);
    s.collective_bytes = plan.communication().iter().map(|t| t.bytes).fold(0, u64::saturating_add);
    let mut live: u64 = 0;
    for l in &plan.program_inputs {
        live += bytes[l.buf];
        match l.kind {
            ProgramInputKind::Param => s.parameter_bytes += bytes[l.buf],
            ProgramInputKind::OptimizerState => s.optimizer_state_bytes += bytes[l.buf],
            _ => {}
        }
    }
    s.peak_bytes = live;
    let mut taken = PerBuffer::new(plan, false);
    for (step, Ends { aliases, free }) in plan.steps.iter().zip(ends) {
        aliases.iter().for_each(|(_, to)| taken[*to] = true);
        live += step.writes.iter().filter(|o| !taken[o.buf]).map(|o| bytes[o.buf]).sum::<u64>();
        s.peak_bytes = s.peak_bytes.max(live);
        for b in free {
            live -= bytes[*b];
        }
    }
    s.step_bytes = s.peak_bytes - s.parameter_bytes - s.optimizer_state_bytes;
    s
}
