//! Chains of collectives before and after an attention: what gathers its keys, an axis at a time, and what scatters their
//! gradients.

use super::super::stretches::stretches;
use meshwright_plan::{Axis, BufId, Collective, Dim, Extent, Operand, Plan, Prim, Provenance, Step};
use meshwright_sorted::{SortedMap, SortedSet};

/// Steps of a Plan by the buffers that they write and read.
pub(super) struct Uses<'a> {
    pub(super) plan: &'a Plan,
    producer: SortedMap<BufId, usize>,
    readers: SortedMap<BufId, Vec<usize>>,
    /// Results of the program, and next values of its inputs.
    kept: SortedSet<BufId>,
    /// See [`stretches`].
    pub(super) stretch: Vec<usize>,
    /// Dims that the layout lets be gathered.
    pub(super) gathers: &'a SortedSet<Dim>,
}

/// Keys or values that are gathered.
pub(super) struct Gathered {
    /// Over which axes, major first.
    pub(super) axes: Vec<Axis>,
    /// The device's own shard.
    pub(super) own: Operand,
    /// The cause of the first gather.
    pub(super) origin: Provenance,
    /// The results of the gathers, the last one first.
    pub(super) passed: Vec<BufId>,
}

impl Gathered {
    /// Its gathers.
    pub(super) fn gathers(&self) -> Vec<(u32, Axis)> {
        self.axes.iter().map(|a| (self.origin.id, *a)).collect()
    }
}

/// A gradient that devices sum.
pub(super) struct Scattered {
    /// The sum: the device's own shard, or all shards where the layout has a `gather` for the dim.
    pub(super) sum: Operand,
    /// Whether it is all shards.
    pub(super) whole: bool,
    /// The cause of the last collective.
    pub(super) origin: Provenance,
    /// The results of all steps that make it.
    pub(super) passed: Vec<BufId>,
}

impl Uses<'_> {
    pub(super) fn of<'a>(plan: &'a Plan, gathers: &'a SortedSet<Dim>) -> Uses<'a> {
        let (mut producer, mut readers) = (SortedMap::new(), SortedMap::<BufId, Vec<usize>>::new());
        for (i, step) in plan.steps.iter().enumerate() {
            producer.extend(step.writes.iter().map(|o| (o.buf, i)));
            step.reads.iter().for_each(|o| readers.entry(o.buf).or_default().push(i));
        }
        let next = plan.program_inputs.iter().filter_map(|l| l.next);
        let kept = plan.outputs.iter().map(|o| o.buf).chain(next).collect();
        Uses { plan, producer, readers, kept, stretch: stretches(&plan.steps), gathers }
    }

    /// The steps that read a buffer, each as often as it does.
    pub(super) fn readers(&self, buf: BufId) -> &[usize] {
        self.readers.get(&buf).map_or(&[], Vec::as_slice)
    }

    /// The step that alone reads a buffer, once; the program gives it to nobody.
    pub(super) fn only_reader(&self, buf: BufId) -> Option<usize> {
        if let [only] = self.readers(buf) { Some(*only).filter(|_| !self.kept.contains(&buf)) } else { None }
    }

    pub(super) fn step(&self, at: usize) -> &Step {
        &self.plan.steps[at]
    }

    pub(super) fn extent(&self, buf: BufId, along: usize) -> &Extent {
        &self.plan.buffer(buf).extents[along]
    }

    /// What gathers make an operand along one of its dims; none where it is not gathered. Gathers of what is stored in more parts
    /// than `queries` are not of a ring over the others.
    pub(super) fn gathered(&self, whole: &Operand, along: usize, queries: BufId) -> Option<Gathered> {
        let mut found: Option<Gathered> = None;
        let mut buf = whole.buf;
        while let Some(from) = self.producer.get(&buf) {
            let step = self.step(*from);
            let Some(Collective::AllGather { axis, dims }) = step.collective() else { break };
            let k = step.writes.iter().position(|o| o.buf == buf)?;
            let splits = |a: &Axis| self.plan.buffer(queries).is_split_over(*a);
            let is_ring = found.as_ref().is_some_and(|f| f.axes.iter().all(splits));
            if step.writes[k].dims.get(along) != dims.get(k) || is_ring && !splits(axis) {
                break;
            }
            let own = Operand { buf: step.reads[k].buf, dims: whole.dims.clone() };
            let origin = step.origin[k].clone();
            let all = found.get_or_insert_with(|| Gathered {
                axes: Vec::new(),
                own: own.clone(),
                origin: origin.clone(),
                passed: Vec::new(),
            });
            all.axes.push(*axis);
            all.passed.push(buf);
            buf = own.buf;
            (all.own, all.origin) = (own, origin);
        }
        found
    }

    /// What becomes of a gradient that is summed over these axes, if nothing else reads it: its shard over them along one of its
    /// dims, by reduce-scatters, or by all-reduces of which each device takes its part.
    pub(super) fn scattered(&self, at: usize, of: BufId, along: usize, axes: &[Axis]) -> Option<Scattered> {
        let (mut buf, mut passed, mut last) = (of, Vec::new(), None);
        loop {
            let held = self.plan.buffer(buf);
            let summed = !axes.iter().any(|a| held.partial.contains_key(a));
            if let Some((sum, origin)) = last.clone().filter(|_| summed && held.extents[along].axes == axes) {
                return Some(Scattered { sum, whole: false, origin, passed });
            }
            // Parameters in another order have all of it looked up, under a name of its own.
            let permits = |d: Dim| self.gathers.contains(&d) && held.extents[along].axes.is_empty();
            let whole = last.clone().filter(|(sum, _): &(Operand, _)| summed && permits(sum.dims[along]));
            let Some(to) = self.only_reader(buf).filter(|to| self.is_sum((*to, at), buf, along, axes)) else {
                return whole.map(|(sum, origin)| Scattered { sum, whole: true, origin, passed });
            };
            let step = self.step(to);
            let k = step.reads.iter().position(|o| o.buf == buf)?;
            buf = step.writes[k].buf;
            passed.push(buf);
            let before = last.filter(|_| step.collective().is_none()).map(|l: (_, Provenance)| l.1);
            last = Some((step.writes[k].clone(), before.or_else(|| step.origin.get(k).cloned())?));
        }
    }

    /// Whether a step sums a buffer over some of these axes, or takes parts of the sum that they split.
    fn is_sum(&self, (to, at): (usize, usize), buf: BufId, along: usize, axes: &[Axis]) -> bool {
        let step = self.step(to);
        let Some(k) = step.reads.iter().position(|o| o.buf == buf) else { return false };
        let Some(next) = step.writes.get(k) else { return false };
        let (held, after) = (self.plan.buffer(buf), self.plan.buffer(next.buf));
        let same_rank = held.extents.len() == after.extents.len();
        let Some(extent) = after.extents.get(along).filter(|_| same_rank) else { return false };
        // A device may take its part of what is stored in more parts before the sum.
        let is_part = |a: &Extent, b: &Extent| {
            step.prim == Prim::Copy
                && b.axes.starts_with(&a.axes)
                && Extent { axes: a.axes.clone(), ..b.clone() } == *a
        };
        let others = (held.extents.iter().zip(&after.extents).enumerate())
            .all(|(i, (a, b))| i == along || a == b || is_part(a, b));
        let mut summed = held.partial.keys().filter(|a| !after.partial.contains_key(a)).peekable();
        let sums = match &step.prim {
            Prim::Collective(_) => summed.peek().is_some() && summed.all(|a| axes.contains(a)),
            Prim::Copy => summed.peek().is_none() && step.reads[k].dims == next.dims,
            _ => false,
        };
        let alike =
            after.dtype == held.dtype && extent.window.is_none() && self.stretch[to] == self.stretch[at];
        sums && others && alike && axes.starts_with(&extent.axes)
    }
}

/// Takes results that nothing needs any more out of a step; whether anything is left of it.
pub(super) fn leave_out(step: &mut Step, gone: &SortedSet<BufId>) -> bool {
    let keep: Vec<bool> = step.writes.iter().map(|o| !gone.contains(&o.buf)).collect();
    if keep.iter().all(|k| *k) {
        return true;
    }
    let Prim::Collective(c) = &mut step.prim else { return keep.contains(&true) };
    c.retain(&keep);
    retain(&mut step.reads, &keep);
    retain(&mut step.writes, &keep);
    retain(&mut step.origin, &keep);
    !step.writes.is_empty()
}

fn retain<T>(all: &mut Vec<T>, keep: &[bool]) {
    let mut keep = keep.iter();
    all.retain(|_| keep.next().copied().unwrap_or(true));
}
