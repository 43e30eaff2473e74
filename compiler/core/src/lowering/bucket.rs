//! Collectives of one kind over the same axes in one bucket: each costs a launch, so small ones travel together.
//!
//! A fold (all-reduce, reduce-scatter) is placed at the last member of its bucket, since operands come late. The
//! consumer of a bucket waits for another member that does not depend on it, if one is near: in `q = all_reduce(a); r =
//! f(q); s = all_reduce(b)` the second step moves behind the third.
//!
//! An all-gather stands where the first member of its bucket stood, if its operands are there by then, as those of parameters
//! are; they may be cast on the way. So a bucket holds results that are needed later, and no other does: one is full before
//! the next begins. All-gathers whose operands come later, as those of updated parameters, go to the place of the last one.

use super::stretches::in_stretches;
use meshwright_plan::{Axis, BufId, CollectiveKind, DType, Monoid, Phase, Plan, Prim, Step};
use meshwright_sorted::{SortedMap, SortedSet};

/// A bucket takes no more once it holds this many bytes: larger ones gain nothing.
const BUCKET_BYTES: usize = 32 << 20;
/// No bucket is closed before it holds this many bytes: below, a launch costs as much as what it moves.
const LEAST_BYTES: usize = 4 << 20;
/// Least number of buckets into which the members of a kind are divided, so that the first is in flight while operands
/// of the last are computed.
const BUCKETS: usize = 4;
/// The same for collectives between whole values and shards: the whole values of a bucket are in memory together, and
/// those of the next one while it is used.
const SHARD_BUCKETS: usize = 16;
/// Number of steps within which another member is sought before the consumer of a bucket. Delayed values take memory.
const NEAR: usize = 32;

/// Common properties of a bucket's members.
#[derive(Clone, PartialEq, Eq)]
struct Key {
    kind: CollectiveKind,
    axes: Vec<Axis>,
    monoid: Option<Monoid>,
    root: Option<usize>,
    dtype: DType,
    /// Of a gather, so that what backward needs is not held through forward.
    phase: Option<Phase>,
}

struct Bucket {
    key: Key,
    at: usize,
    bytes: usize,
    gives: SortedSet<BufId>,
    /// Whether a result was read, so that the bucket cannot go to a later place.
    read: bool,
    /// The place before which operands are cast: that of the bucket before, so that a gather can start while that one is used.
    casts: usize,
}

struct Buckets<'a> {
    plan: &'a Plan,
    steps: Vec<Option<Step>>,
    /// Casts that go in front of a place.
    before: SortedMap<usize, Vec<Step>>,
    /// The place after which a buffer is there.
    made: SortedMap<BufId, usize>,
    /// For each key the bytes at which a bucket is full.
    most: Vec<(Key, usize)>,
    open: Vec<Bucket>,
}

/// Joins all-reduces, reduce-scatters and all-gathers, each of equal axes, monoid and dtype.
pub fn bucket(plan: Plan) -> Plan {
    in_stretches(plan, straight)
}

fn straight(mut plan: Plan) -> Plan {
    let steps: Vec<Option<Step>> = plan.steps.drain(..).map(Some).collect();
    let most = most_bytes(&plan, &steps);
    let (before, made, open) = (SortedMap::new(), SortedMap::new(), Vec::new());
    let mut buckets = Buckets { plan: &plan, steps, before, made, most, open };
    for at in 0..buckets.steps.len() {
        buckets.visit(at);
    }
    let Buckets { steps, mut before, .. } = buckets;
    let mut out = Vec::with_capacity(steps.len());
    for (at, step) in steps.into_iter().enumerate() {
        out.extend(before.remove(&at).unwrap_or_default());
        out.extend(step);
    }
    plan.steps = out;
    plan
}

impl Buckets<'_> {
    fn visit(&mut self, at: usize) {
        // Each bucket makes this place wait once: two of different axes could else wait for each other in turn, for ever.
        let mut waited: Vec<usize> = Vec::new();
        while let Some(i) =
            self.open.iter().position(|b| b.key.folds() && reads_any(&self.steps[at], &b.gives))
        {
            if waited.contains(&i) || !self.postpone(at, i) {
                break;
            }
            waited.push(i);
        }
        let Some(step) = &self.steps[at] else { return };
        for b in self.open.iter_mut().filter(|b| step.reads.iter().any(|o| b.gives.contains(&o.buf))) {
            b.read = true;
        }
        // A fold is at its last place when its result is read, and later members come too late.
        while let Some(i) = self.open.iter().position(|b| b.read && b.key.folds()) {
            self.close(i);
        }
        let joins = self.steps[at].as_ref().and_then(|step| member(self.plan, step));
        if let Some((key, bytes)) = joins {
            self.place(at, key, bytes);
        }
        // The place of a fold's results is known when it is closed, and not read before.
        let moves = self.open.iter().any(|b| b.at == at && b.key.folds());
        if let Some(step) = self.steps[at].as_ref().filter(|_| !moves) {
            self.made.extend(step.writes.iter().map(|o| (o.buf, at)));
        }
    }

    /// Takes no more into an open bucket; gives its place.
    fn close(&mut self, i: usize) -> usize {
        let bucket = self.open.remove(i);
        if bucket.key.folds() {
            self.made.extend(bucket.gives.iter().map(|b| (*b, bucket.at)));
        }
        bucket.at
    }

    /// Puts a collective into the open bucket of its key, or into a new one.
    fn place(&mut self, at: usize, key: Key, bytes: usize) {
        let found = self.open.iter().position(|b| b.key == key);
        let most = self.most(&key);
        if let Some(i) = found
            && self.open[i].bytes + bytes <= most
            && (self.rises(at, i) || self.sinks(at, i))
        {
            self.open[i].bytes += bytes;
            return;
        }
        // A full one is closed: what is small and comes late would else draw it down to its own place.
        let casts = found.map_or(at, |i| self.close(i));
        if !key.folds() {
            self.cast_before(at, casts);
        }
        let gives = self.writes(at);
        self.open.push(Bucket { key, at, bytes, gives, read: false, casts });
    }

    fn writes(&self, at: usize) -> SortedSet<BufId> {
        self.steps[at].iter().flat_map(|s| s.writes.iter().map(|o| o.buf)).collect()
    }

    fn most(&self, key: &Key) -> usize {
        self.most.iter().find(|m| m.0 == *key).map_or(BUCKET_BYTES, |m| m.1)
    }

    /// Moves a gather up to its bucket, if its operands are there by then.
    fn rises(&mut self, at: usize, i: usize) -> bool {
        let (place, casts) = (self.open[i].at, self.open[i].casts);
        if self.open[i].key.folds() {
            return false;
        }
        self.cast_before(at, casts);
        let Some(step) = &self.steps[at] else { return false };
        if step.reads.iter().any(|o| self.made.get(&o.buf).is_some_and(|m| *m >= place)) {
            return false;
        }
        let gives = self.writes(at);
        let joined = self.steps[place].take().zip(self.steps[at].take()).map(|(a, b)| join(a, b));
        self.steps[place] = joined;
        self.made.extend(gives.iter().map(|b| (*b, place)));
        self.open[i].gives.extend(gives);
        true
    }

    /// Moves a bucket down to its newest member, if nothing reads it before.
    fn sinks(&mut self, at: usize, i: usize) -> bool {
        if self.open[i].read {
            return false;
        }
        let gives = self.writes(at);
        let joined = self.steps[self.open[i].at].take().zip(self.steps[at].take()).map(|(a, b)| join(a, b));
        self.steps[at] = joined;
        let bucket = &mut self.open[i];
        bucket.at = at;
        bucket.gives.extend(gives);
        true
    }

    /// Moves slices and casts of a gather's operands in front of a place, where what they read is there.
    fn cast_before(&mut self, at: usize, place: usize) {
        let reads: Vec<BufId> = self.steps[at].iter().flat_map(|s| s.reads.iter().map(|o| o.buf)).collect();
        reads.into_iter().for_each(|buf| self.made_before(buf, place));
    }

    fn made_before(&mut self, buf: BufId, place: usize) {
        let Some(from) = self.made.get(&buf).copied().filter(|m| *m >= place) else { return };
        let Some(step) = &self.steps[from] else { return };
        let read = match (&step.prim, &step.reads[..], &step.writes[..]) {
            (Prim::Map { .. } | Prim::IterationSlice { .. }, [read], [_]) => read.buf,
            _ => return,
        };
        self.made_before(read, place);
        if self.made.get(&read).is_some_and(|m| *m >= place) {
            return;
        }
        self.before.entry(place).or_default().extend(self.steps[from].take());
        match place.checked_sub(1) {
            Some(before) => self.made.insert(buf, before),
            None => self.made.remove(&buf),
        };
    }

    /// Moves what depends on a bucket, from the step `at` on, behind the next member that does not depend on it. False where
    /// there is none near in the same phase.
    fn postpone(&mut self, at: usize, i: usize) -> bool {
        let phase = |s: &Option<Step>| s.as_ref().map(|s| s.phase);
        let bucket = &self.open[i];
        let most = self.most(&bucket.key);
        // Descendants of its results.
        let mut made = SortedSet::new();
        let mut waits = Vec::new();
        for later in at..self.steps.len().min(at + NEAR) {
            if phase(&self.steps[later]) != phase(&self.steps[at]) {
                return false;
            }
            let Some(step) = &self.steps[later] else { continue };
            if reads_any(&self.steps[later], &bucket.gives) || reads_any(&self.steps[later], &made) {
                made.extend(step.writes.iter().map(|o| o.buf));
                waits.push(later);
            } else if member(self.plan, step)
                .is_some_and(|(k, b)| k == bucket.key && bucket.bytes + b <= most)
            {
                let (mut first, mut last) = (Vec::new(), Vec::new());
                for (k, step) in self.steps.iter_mut().enumerate().take(later + 1).skip(at) {
                    if waits.contains(&k) { last.push(step.take()) } else { first.push(step.take()) }
                }
                for (place, step) in self.steps[at..=later].iter_mut().zip(first.into_iter().chain(last)) {
                    *place = step;
                }
                return true;
            }
        }
        false
    }
}

impl Key {
    /// Whether members fold: what comes early waits for what comes late.
    fn folds(&self) -> bool {
        self.kind.folds()
    }
}

/// For each key the bytes at which a bucket is full.
fn most_bytes(plan: &Plan, steps: &[Option<Step>]) -> Vec<(Key, usize)> {
    let mut totals: Vec<(Key, usize)> = Vec::new();
    for (key, bytes) in steps.iter().flatten().filter_map(|s| member(plan, s)) {
        match totals.iter_mut().find(|t| t.0 == key) {
            Some(t) => t.1 += bytes,
            None => totals.push((key, bytes)),
        }
    }
    for (key, bytes) in &mut totals {
        let buckets = if key.kind == CollectiveKind::AllReduce { BUCKETS } else { SHARD_BUCKETS };
        *bytes = (*bytes / buckets).clamp(LEAST_BYTES, BUCKET_BYTES);
    }
    totals
}

/// The key and bytes of a collective that may join others; `None` for other steps. Pairs are gathered and scattered
/// alone, since a backend may store them in two parts.
fn member(plan: &Plan, step: &Step) -> Option<(Key, usize)> {
    let c = step.collective()?;
    let dtype = plan.buffer(step.reads.first()?.buf).dtype;
    let spec = c.spec();
    let moves = !(spec.join.is_empty() && spec.split.is_empty());
    if !spec.is_bucketable() || moves && dtype.is_pair() {
        return None;
    }
    let phase = spec.monoid.is_none().then_some(step.phase);
    let (kind, axes, monoid, root) = (spec.kind, spec.axes.to_vec(), spec.monoid, spec.root);
    let key = Key { kind, axes, monoid, root, dtype, phase };
    Some((key, step.collective_bytes(plan).iter().sum()))
}

fn reads_any(step: &Option<Step>, buffers: &SortedSet<BufId>) -> bool {
    step.as_ref().is_some_and(|s| s.reads.iter().any(|o| buffers.contains(&o.buf)))
}

/// A collective with the operands of two.
fn join(mut first: Step, second: Step) -> Step {
    if let (Prim::Collective(a), Prim::Collective(b)) = (&mut first.prim, second.prim) {
        a.extend(b);
    }
    first.reads.extend(second.reads);
    first.writes.extend(second.writes);
    first.origin.extend(second.origin);
    first.phase = second.phase;
    first
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshwright_plan::Arithmetic;
    use meshwright_plan::{Buffer, Collective, Expr, Mesh, Operand};

    fn operand(buf: u32) -> Operand {
        Operand { buf: BufId(buf), dims: Vec::new() }
    }

    fn sum(axis: u8, from: u32, to: u32) -> Step {
        let all = Collective::AllReduce { axes: vec![Axis(axis)], monoid: Monoid::Sum };
        Step::new(Prim::Collective(all), vec![operand(from)], vec![operand(to)])
    }

    fn map(from: u32, to: u32) -> Step {
        let prim = Prim::Map { expr: Expr::default(), regs: vec![0] };
        Step::new(prim, vec![operand(from)], vec![operand(to)])
    }

    /// Each of two chains could wait for the all-reduce at the end of the other.
    #[test]
    fn two_buckets_do_not_wait_for_each_other() {
        let plan = Plan {
            version: Plan::VERSION,
            model: String::new(),
            program: String::new(),
            mesh: Mesh::new([("a", 2), ("b", 2)]),
            dims: Default::default(),
            float: Arithmetic::F64,
            microbatches: None,
            pipeline: None,
            inputs: Vec::new(),
            buffers: vec![Buffer::new(DType::F64, Vec::new()); 8],
            program_inputs: Vec::new(),
            steps: vec![sum(0, 0, 2), sum(1, 1, 3), map(2, 4), map(3, 5), sum(1, 4, 6), sum(0, 5, 7)],
            outputs: Vec::new(),
            summary: Default::default(),
        };
        let after = bucket(plan);
        let mut made = vec![BufId(0), BufId(1)];
        for s in &after.steps {
            assert!(s.reads.iter().all(|o| made.contains(&o.buf)), "{after:?}");
            made.extend(s.writes.iter().map(|o| o.buf));
        }
        assert_eq!(made.len(), 8);
        // One of the two pairs travels together.
        assert_eq!(after.steps.len(), 5);
    }
}
