//! What a stage of a pipeline holds of microbatches on their way: values that passes leave to later ones, and messages.

use crate::actions::Pass;
use crate::passes::PipelinePasses;
use crate::{BufId, Dim, Plan, Prim, StepLoop};
use meshwright_sorted::{SortedMap, SortedSet};

/// A stack over microbatches that no device allocates: each value stays where it was made, until a pass has read it last.
pub(crate) struct KeptStack {
    /// The buffers of the stack.
    pub stack: SortedSet<BufId>,
    /// Buffers whose storage is that of a value in the stack, or of a part of one.
    pub parts: SortedSet<BufId>,
    /// A value that a pass computes once, or in each iteration of a loop; and the dim of that loop.
    pub value: (BufId, Option<Dim>),
    /// The pass that makes the values.
    pub from: Pass,
    /// The last pass that reads them.
    pub until: Pass,
}

/// Steps by the buffers that they read and write.
struct StepUses<'p> {
    plan: &'p Plan,
    readers: SortedMap<BufId, Vec<usize>>,
    writers: SortedMap<BufId, Vec<usize>>,
    loops: Vec<StepLoop>,
    /// Outputs, and values for the next step.
    leaving: SortedSet<BufId>,
}

/// All stacks of a Plan that passes fill and later passes slice.
pub(crate) fn kept_stacks(plan: &Plan, passes: &PipelinePasses<'_>) -> Vec<KeptStack> {
    let uses = StepUses::of(plan);
    let found = passes.loops.iter().flat_map(|(pass, of)| {
        plan.carries(of).filter_map(|chain| uses.kept((*pass, of), chain, passes)).collect::<Vec<_>>()
    });
    found.collect()
}

impl<'p> StepUses<'p> {
    fn of(plan: &'p Plan) -> StepUses<'p> {
        let (mut readers, mut writers) = (SortedMap::new(), SortedMap::new());
        let add = |to: &mut SortedMap<BufId, Vec<usize>>, buf, at| to.entry(buf).or_default().push(at);
        for (at, step) in plan.steps.iter().enumerate() {
            step.reads.iter().for_each(|o| add(&mut readers, o.buf, at));
            step.writes.iter().for_each(|o| add(&mut writers, o.buf, at));
        }
        let next = plan.program_inputs.iter().filter_map(|i| i.next);
        let leaving = plan.outputs.iter().map(|o| o.buf).chain(next).collect();
        StepUses { plan, readers, writers, loops: plan.loops(), leaving }
    }

    fn reads(&self, buf: BufId) -> &[usize] {
        self.readers.get(&buf).map_or(&[], |list| list)
    }

    /// The only step that reads a buffer.
    fn only(&self, buf: BufId) -> Option<usize> {
        if let [one] = self.reads(buf) { Some(*one) } else { None }
    }

    /// The step that fills a stack position by position, if nothing else touches it within the loop.
    fn filled(&self, of: &StepLoop, [start, current, next, last]: [BufId; 4]) -> Option<usize> {
        let steps = &self.plan.steps;
        let blank = *self.writers.get(&start)?.iter().rfind(|at| **at < of.begin)?;
        let update = self.only(current)?;
        let fills = matches!(steps[blank].prim, Prim::Blank { zero: false })
            && matches!(steps[update].prim, Prim::IterationUpdate { dim } if dim == of.dim)
            && steps[update].reads.first().is_some_and(|o| o.buf == current)
            && steps[update].writes_buf(next)
            && self.only(start) == Some(of.begin)
            && self.only(next) == Some(of.end)
            && !self.plan.buffer(start).dtype.is_pair()
            && !self.leaving.contains(&last);
        fills.then_some(update)
    }

    /// The results of the slices of a stack along a dim; none if something else reads it.
    fn slices(&self, stack: BufId, over: Dim) -> Option<Vec<BufId>> {
        let result = |at: &usize| {
            let step = &self.plan.steps[*at];
            let slices = matches!(step.prim, Prim::IterationSlice { dim } if dim == over);
            slices.then(|| step.writes.first().map(|o| o.buf)).flatten()
        };
        self.reads(stack).iter().map(result).collect()
    }

    fn kept(
        &self,
        (from, of): (Pass, &StepLoop),
        chain: [BufId; 4],
        passes: &PipelinePasses<'_>,
    ) -> Option<KeptStack> {
        let last = chain[3];
        let value = self.plan.steps[self.filled(of, chain)?].reads.get(1)?.buf;
        let slices = self.slices(last, of.dim)?;
        let within = |at: &usize| passes.loops.iter().find(|(_, l)| l.contains(*at)).map(|(pass, _)| *pass);
        let reads: Vec<Pass> = self.reads(last).iter().map(within).collect::<Option<_>>()?;
        let until = reads.into_iter().max().unwrap_or(from);
        let inner = self.parts_of(value, &slices);
        let innermost = inner.as_ref().map_or((value, None), |(part, dim, _)| (*part, Some(*dim)));
        let inner = inner.map(|(.., parts)| parts).unwrap_or_default();
        let parts = inner.into_iter().chain([value]).chain(slices).collect();
        Some(KeptStack { stack: chain.into(), parts, value: innermost, from, until })
    }

    /// Where the value of a stack is a stack itself, and its slices are sliced again: its own value, the dim of its loop, and all
    /// buffers of the stack, of its values and of its slices.
    fn parts_of(&self, value: BufId, slices: &[BufId]) -> Option<(BufId, Dim, Vec<BufId>)> {
        self.only(value)?;
        let inner = self.loops.iter().find(|l| self.plan.steps[l.end].writes_buf(value))?;
        let chain = self.plan.carries(inner).find(|c| c[3] == value)?;
        let part = self.plan.steps[self.filled(inner, chain)?].reads.get(1)?.buf;
        let sliced: Vec<Vec<BufId>> =
            slices.iter().map(|s| self.slices(*s, inner.dim)).collect::<Option<_>>()?;
        let all = chain.into_iter().chain([part]).chain(sliced.into_iter().flatten());
        Some((part, inner.dim, all.collect()))
    }
}

/// Memory of messages on a stage besides the buffers of the pass that runs: sent ones that may not have arrived, and ones that
/// are received ahead.
pub(crate) fn messages(
    plan: &Plan,
    passes: &PipelinePasses<'_>,
    at: usize,
    size: &dyn Fn(BufId) -> u64,
) -> Vec<(BufId, u64)> {
    let chunks = passes.pipeline.chunks;
    let (mut sent, mut received) = (vec![], vec![]);
    for (_, of) in &passes.loops {
        for step in &plan.steps[of.begin..of.end] {
            // The last stage in the direction of a loop sends nothing but from chunk to chunk, and the first one receives
            // nothing.
            let (first, last) = (at == 0, at + 1 == passes.stages);
            let (operands, ends, into) = match step.prim {
                Prim::Send { reverse, .. } => (&step.reads, if reverse { first } else { last }, &mut sent),
                Prim::Receive { reverse, .. } => {
                    (&step.writes, if reverse { last } else { first }, &mut received)
                }
                _ => continue,
            };
            if !ends || chunks > 1 {
                into.push(operands.iter().map(|o| (o.buf, size(o.buf))).collect::<Vec<_>>());
            }
        }
    }
    let largest = |list: Vec<Vec<(BufId, u64)>>| {
        list.into_iter().max_by_key(|m| m.iter().map(|(_, bytes)| *bytes).sum::<u64>()).unwrap_or_default()
    };
    let times = |list, most: usize| {
        let most = most.min(passes.microbatches * chunks) as u64;
        largest(list).into_iter().map(move |(buf, bytes)| (buf, bytes * most))
    };
    let sent = times(sent, passes.pipeline.most_sent());
    let received = times(received, passes.pipeline.most_ahead());
    sent.chain(received).filter(|(_, bytes)| *bytes > 0).collect()
}
