//! All-reduces of the same axes in one bucket: each collective costs a launch, so small ones travel together.
//!
//! A bucket stands where its last member stood. What reads a bucket waits for another all-reduce that does not depend on
//! it, if one is near: of `q = all_reduce(a); r = f(q); s = all_reduce(b)` the second step goes behind the third.

use meshwright_plan::{Axis, BufId, Collective, DType, Monoid, Plan, Prim, Step};

/// A bucket takes no more once it holds this many bytes: larger ones gain nothing.
const BUCKET_BYTES: usize = 32 << 20;
/// No bucket is closed before it holds this many bytes: below, a launch costs as much as what it moves.
const LEAST_BYTES: usize = 4 << 20;
/// What could share a bucket fills at least so many, so that the first can fly while what goes into the last is computed.
const BUCKETS: usize = 4;
/// How many steps ahead another all-reduce is sought before something reads a bucket. What waits meanwhile takes memory.
const NEAR: usize = 32;

type Key = (Vec<Axis>, Monoid, DType);

struct Bucket {
    at: usize,
    bytes: usize,
    gives: Vec<BufId>,
}

/// Joins all-reduces of equal axes, monoid and dtype.
pub fn bucket(mut plan: Plan) -> Plan {
    let mut steps: Vec<Option<Step>> = plan.steps.drain(..).map(Some).collect();
    let most = most_bytes(&plan, &steps);
    let most = |key: &Key| most.iter().find(|m| m.0 == *key).map_or(BUCKET_BYTES, |m| m.1);
    let mut open: Vec<(Key, Bucket)> = Vec::new();
    for at in 0..steps.len() {
        // Each bucket makes this place wait once: two of different axes could else wait for each other in turn, for ever.
        let mut waited: Vec<usize> = Vec::new();
        while let Some(i) = open.iter().position(|(_, b)| reads_any(&steps[at], &b.gives)) {
            let (key, bucket) = &open[i];
            if waited.contains(&i) || !postpone(&plan, &mut steps, at, (key, most(key)), bucket) {
                break;
            }
            waited.push(i);
        }
        let Some(step) = &steps[at] else { continue };
        // A bucket that something reads is closed.
        let reads: Vec<BufId> = step.reads.iter().map(|o| o.buf).collect();
        open.retain(|(_, b)| !b.gives.iter().any(|g| reads.contains(g)));
        let Some((key, bytes)) = all_reduce(&plan, step) else { continue };
        let gives: Vec<BufId> = step.writes.iter().map(|o| o.buf).collect();
        let found = open.iter().position(|(k, b)| *k == key && b.bytes + bytes <= most(&key));
        let Some(i) = found else {
            // A full one is closed: what is small and comes late would else draw it down to its own place.
            open.retain(|(k, _)| *k != key);
            open.push((key, Bucket { at, bytes, gives }));
            continue;
        };
        let bucket = &mut open[i].1;
        let earlier = steps[bucket.at].take();
        bucket.at = at;
        bucket.bytes += bytes;
        bucket.gives.extend(gives);
        if let (Some(earlier), Some(now)) = (earlier, &mut steps[at]) {
            join(earlier, now);
        }
    }
    plan.steps = steps.into_iter().flatten().collect();
    plan
}

/// For each key the bytes at which a bucket is full.
fn most_bytes(plan: &Plan, steps: &[Option<Step>]) -> Vec<(Key, usize)> {
    let mut totals: Vec<(Key, usize)> = Vec::new();
    for (key, bytes) in steps.iter().flatten().filter_map(|s| all_reduce(plan, s)) {
        match totals.iter_mut().find(|t| t.0 == key) {
            Some(t) => t.1 += bytes,
            None => totals.push((key, bytes)),
        }
    }
    totals.into_iter().map(|(k, t)| (k, (t / BUCKETS).clamp(LEAST_BYTES, BUCKET_BYTES))).collect()
}

/// What an all-reduce shares with those that it may join, and the bytes that go in; `None` for other steps.
fn all_reduce(plan: &Plan, step: &Step) -> Option<(Key, usize)> {
    let Prim::Collective(Collective::AllReduce { axes, monoid }) = &step.prim else { return None };
    let dtype = plan.buffer(step.reads.first()?.buf).dtype;
    Some(((axes.clone(), *monoid, dtype), step.collective_bytes(plan).iter().sum()))
}

fn reads_any(step: &Option<Step>, buffers: &[BufId]) -> bool {
    step.as_ref().is_some_and(|s| s.reads.iter().any(|o| buffers.contains(&o.buf)))
}

/// Moves what depends on a bucket, from the step `at` on, behind the next all-reduce that may join it and does not depend
/// on it. False where there is none near in the same phase.
fn postpone(
    plan: &Plan,
    steps: &mut [Option<Step>],
    at: usize,
    (key, most): (&Key, usize),
    bucket: &Bucket,
) -> bool {
    let phase = |s: &Option<Step>| s.as_ref().map(|s| s.phase);
    let mut made = bucket.gives.clone();
    let mut waits = Vec::new();
    for i in at..steps.len().min(at + NEAR) {
        if phase(&steps[i]) != phase(&steps[at]) {
            return false;
        }
        let Some(step) = &steps[i] else { continue };
        if reads_any(&steps[i], &made) {
            made.extend(step.writes.iter().map(|o| o.buf));
            waits.push(i);
        } else if all_reduce(plan, step).is_some_and(|(k, b)| k == *key && bucket.bytes + b <= most) {
            let (mut first, mut later) = (Vec::new(), Vec::new());
            for (k, step) in steps.iter_mut().enumerate().take(i + 1).skip(at) {
                if waits.contains(&k) { later.push(step.take()) } else { first.push(step.take()) }
            }
            for (place, step) in steps[at..=i].iter_mut().zip(first.into_iter().chain(later)) {
                *place = step;
            }
            return true;
        }
    }
    false
}

/// Puts the parts of an earlier all-reduce in front of those of a later one.
fn join(earlier: Step, now: &mut Step) {
    now.reads.splice(0..0, earlier.reads);
    now.writes.splice(0..0, earlier.writes);
    now.origin.splice(0..0, earlier.origin);
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshwright_plan::{Buffer, Expr, Mesh, Operand};

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
            float: DType::F64,
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
