//! Steps of one attention become one step: the greatest scores, the sums and the weighted values of one pass over the keys, and
//! the three gradients, which need the same products.
//!
//! The greatest scores and what is computed by them stay two steps where a collective stands between: keys that are split.

use super::stretches::stretches;
use meshwright_plan::{AttentionOperands, AttentionPart, BufId, Operand, Plan, Prim, Step};

/// How many steps of attention before one are compared with it: those of one attention are near each other.
const NEAR: usize = 8;

/// Merges steps of attention.
pub(super) fn merge(plan: &mut Plan) {
    let stretch = stretches(&plan.steps);
    let mut steps: Vec<Option<Step>> = plan.steps.drain(..).map(Some).collect();
    let mut known: Vec<usize> = Vec::new();
    for at in 0..steps.len() {
        if !steps[at].as_ref().is_some_and(|s| matches!(s.prim, Prim::Attention { .. })) {
            continue;
        }
        let mut place = at;
        for from in known.clone().into_iter().rev().take(NEAR).filter(|from| stretch[*from] == stretch[at]) {
            let (Some(first), Some(second)) = (&steps[from], &steps[place]) else { continue };
            let Some(merged) = merged(plan, first, second) else { continue };
            let written = |b: BufId| first.writes.iter().any(|o| o.buf == b);
            let reads = |s: &Option<Step>| s.as_ref().is_some_and(|s| s.reads.iter().any(|o| written(o.buf)));
            let early = steps[from + 1..place].iter().any(reads);
            let same = second.reads.iter().all(|o| first.reads.contains(o));
            let to = match (early, same) {
                (false, _) => place,
                (true, true) => from,
                (true, false) => continue,
            };
            (steps[from], steps[place]) = (None, None);
            steps[to] = Some(merged);
            place = to;
        }
        known.retain(|k| steps[*k].is_some());
        if !known.contains(&place) {
            known.push(place);
        }
    }
    plan.steps = steps.into_iter().flatten().collect();
}

/// One step that gives what both give; `None` where they are not of one attention on the same operands.
fn merged(plan: &Plan, first: &Step, second: &Step) -> Option<Step> {
    let (Prim::Attention { spec, parts: a }, Prim::Attention { spec: other, parts: b }) =
        (&first.prim, &second.prim)
    else {
        return None;
    };
    let direction = |parts: &[AttentionPart]| parts.iter().any(|p| p.is_gradient());
    let whole = first.reads.iter().chain(&second.reads).all(|o| plan.buffer(o.buf).partial.is_empty());
    if spec != other || direction(a) != direction(b) || a.iter().any(|p| b.contains(p)) || !whole {
        return None;
    }
    let (x, y) = (AttentionOperands::of(a), AttentionOperands::of(b));
    let at = |s: &Step, i: Option<usize>| i.map(|i| s.reads[i].clone());
    let tail = |s: &Step, o: &AttentionOperands| s.reads[o.extras..].to_vec();
    let (max, other_max) = (at(first, x.max), at(second, y.max));
    let found = |s: &Step, parts: &[AttentionPart]| {
        parts.iter().position(|p| *p == AttentionPart::Max).map(|i| s.writes[i].clone())
    };
    let alike = match (found(first, a), found(second, b)) {
        (Some(made), None) => Some(&made) == other_max.as_ref(),
        (None, None) => max == other_max,
        _ => false,
    };
    let (values, other_values) = (at(first, x.values), at(second, y.values));
    let (delta, other_delta) = (at(first, x.delta), at(second, y.delta));
    // Of what only one of them reads.
    let agree = |a: &Option<Operand>, b: &Option<Operand>| a.is_none() || b.is_none() || a == b;
    let same = first.reads[..2] == second.reads[..2]
        && tail(first, &x) == tail(second, &y)
        && at(first, x.scale) == at(second, y.scale)
        && at(first, x.cotangent) == at(second, y.cotangent);
    if !(alike && agree(&values, &other_values) && agree(&delta, &other_delta) && same) {
        return None;
    }
    let mut parts: Vec<(AttentionPart, Operand)> =
        a.iter().chain(b).copied().zip(first.writes.iter().chain(&second.writes).cloned()).collect();
    parts.sort_by_key(|p| p.0);
    let (parts, writes): (Vec<AttentionPart>, Vec<Operand>) = parts.into_iter().unzip();
    let mut reads = first.reads[..2].to_vec();
    reads.extend(max.filter(|_| !parts.contains(&AttentionPart::Max)));
    reads.extend(values.or(other_values));
    reads.extend(at(first, x.scale));
    reads.extend(delta.or(other_delta));
    reads.extend(at(first, x.cotangent));
    reads.extend(tail(first, &x));
    let mut origin = first.origin.clone();
    origin.extend(second.origin.iter().filter(|o| !first.origin.contains(o)).cloned());
    Some(Step {
        origin,
        reads,
        writes,
        prim: Prim::Attention { spec: spec.clone(), parts },
        ..second.clone()
    })
}
