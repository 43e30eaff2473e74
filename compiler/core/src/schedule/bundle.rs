//! All-reduces of the same axes in one bucket: each collective costs a launch, so small ones travel together.
//!
//! A bucket stands where its last member stood; an all-reduce joins an open bucket unless something in between reads
//! what the bucket gives.

use meshwright_plan::{Axis, BufId, Collective, DType, Monoid, Operand, Plan, Step, StepKind};

/// A bucket takes no more once it holds this many bytes: large ones gain nothing, and would wait for the last gradient.
const BUCKET_BYTES: usize = 32 << 20;

struct Bucket {
    at: usize,
    bytes: usize,
    gives: Vec<BufId>,
}

/// Joins all-reduces of equal axes, monoid and dtype.
pub fn bundle(mut plan: Plan) -> Plan {
    let mut steps: Vec<Option<Step>> = plan.steps.drain(..).map(Some).collect();
    let mut open: Vec<((Vec<Axis>, Monoid, DType), Bucket)> = Vec::new();
    for at in 0..steps.len() {
        let Some(step) = &steps[at] else { continue };
        // A bucket that something reads is closed.
        let reads: Vec<BufId> = step.kind.reads().iter().map(|o| o.buf).collect();
        open.retain(|(_, b)| !b.gives.iter().any(|g| reads.contains(g)));
        let StepKind::Collective(Collective::AllReduce { axes, monoid, from, to }) = &step.kind else { continue };
        let dtype = plan.buffers[from[0].buf.0 as usize].dtype;
        let key = (axes.clone(), *monoid, dtype);
        let bytes: usize = from.iter().map(|o| plan.buffers[o.buf.0 as usize].largest_bytes(&plan.mesh)).sum();
        let gives: Vec<BufId> = to.iter().map(|o| o.buf).collect();
        let found = open.iter().position(|(k, b)| *k == key && b.bytes + bytes <= BUCKET_BYTES);
        let Some(i) = found else {
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

/// Puts the parts of an earlier all-reduce in front of those of a later one.
fn join(earlier: Step, now: &mut Step) {
    let StepKind::Collective(Collective::AllReduce { from: f0, to: t0, .. }) = earlier.kind else { return };
    let StepKind::Collective(Collective::AllReduce { from, to, .. }) = &mut now.kind else { return };
    let before = |mut first: Vec<Operand>, rest: &mut Vec<Operand>| {
        first.append(rest);
        *rest = first;
    };
    before(f0, from);
    before(t0, to);
    now.origin.splice(0..0, earlier.origin);
}
