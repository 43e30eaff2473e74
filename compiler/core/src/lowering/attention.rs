//! Steps of one attention become one step: the greatest scores, the sums and the weighted values of one pass over the keys,
//! which it divides by the sums; and the three gradients, which need the same products.
//!
//! The greatest scores and what is computed by them stay two steps where a collective stands between: keys that are split.

use super::stretches::stretches;
use meshwright_plan::expr::{BinaryFn, Scalar, UnaryFn};
use meshwright_plan::{AttentionOperands, AttentionPart, BufId, Expr, Operand, Plan, Prim, Step};
use meshwright_sorted::{SortedMap, SortedSet};

/// How many steps of attention before one are compared with it: those of one attention are near each other.
const NEAR: usize = 8;

/// Merges steps of attention.
pub(super) fn merge(plan: &mut Plan) {
    if !plan.steps.iter().any(|s| matches!(s.prim, Prim::Attention { .. })) {
        return;
    }
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
            let Some(to) = join(&mut steps[from..=place], merged) else { continue };
            place = from + to;
            let attends = |i: &usize| matches!(&steps[*i], Some(Step { prim: Prim::Attention { .. }, .. }));
            known.retain(|k| *k < from);
            known.extend((from..at).filter(|i| attends(i) && *i != place));
        }
        known.push(place);
        known.sort_unstable();
    }
    divide(plan, &mut steps, &stretch);
    plan.steps = steps.into_iter().flatten().collect();
}

/// Puts one step in place of the first and the last of these, and says where: in the place of the first where others read that
/// and the last one reads nothing more, else in that of the last, and what reads the first behind it. None where the last one
/// reads what others make of the first.
fn join(steps: &mut [Option<Step>], merged: Step) -> Option<usize> {
    let last = steps.len() - 1;
    let mut made: SortedSet<BufId> = steps[0].iter().flat_map(|s| &s.writes).map(|o| o.buf).collect();
    let own = made.clone();
    let mut after = SortedSet::new();
    for (i, step) in steps.iter().enumerate().take(last).skip(1) {
        if let Some(step) = step.as_ref().filter(|s| s.reads.iter().any(|o| made.contains(&o.buf))) {
            made.extend(step.writes.iter().map(|o| o.buf));
            after.insert(i);
        }
    }
    let reads = |i: usize| steps[i].iter().flat_map(|s| &s.reads);
    if !after.is_empty() && reads(last).all(|o| reads(0).any(|first| first == o)) {
        (steps[0], steps[last]) = (Some(merged), None);
        return Some(0);
    }
    let waits = |o: &Operand| made.contains(&o.buf) && !own.contains(&o.buf);
    if steps[last].iter().flat_map(|s| &s.reads).any(waits) {
        return None;
    }
    (steps[0], steps[last]) = (Some(merged), None);
    let (mut before, mut behind) = (Vec::new(), vec![steps[0].take()]);
    for (i, step) in steps.iter_mut().enumerate().skip(1) {
        let to = if after.contains(&i) { &mut behind } else { &mut before };
        to.extend(step.take().map(Some));
    }
    let to = before.len();
    before.append(&mut behind);
    steps.iter_mut().zip(before).for_each(|(slot, step)| *slot = step);
    Some(to)
}

/// Where a step gives the sums of the weights and of the values, and these are but divided by each other, it gives the quotient.
fn divide(plan: &Plan, steps: &mut [Option<Step>], stretch: &[usize]) {
    let kept = plan.program_inputs.iter().filter_map(|l| l.next);
    let kept: SortedSet<BufId> = plan.outputs.iter().map(|o| o.buf).chain(kept).collect();
    let mut readers: SortedMap<BufId, Vec<usize>> = SortedMap::new();
    for (i, step) in steps.iter().enumerate() {
        for o in step.iter().flat_map(|s| &s.reads) {
            readers.entry(o.buf).or_default().push(i);
        }
    }
    let read_by =
        |o: &Operand| readers.get(&o.buf).filter(|_| !kept.contains(&o.buf)).map_or(&[][..], Vec::as_slice);
    for at in 0..steps.len() {
        let Some(Step { prim: Prim::Attention { parts, .. }, writes, .. }) = &steps[at] else { continue };
        let place = |of| parts.iter().position(|p| *p == of);
        let (Some(sum), Some(values)) = (place(AttentionPart::Sum), place(AttentionPart::Values)) else {
            continue;
        };
        let [product] = *read_by(&writes[values]) else { continue };
        let Some((result, scale)) = steps[product].as_ref().and_then(|s| scaled(plan, s, &writes[values]))
        else {
            continue;
        };
        let inverse = read_by(&writes[sum]).iter().copied().find(|i| {
            steps[*i].as_ref().is_some_and(|s| s.writes[..] == [scale.clone()] && is_inverse(s, &writes[sum]))
        });
        let Some(inverse) = inverse.filter(|i| [*i, product].iter().all(|i| stretch[*i] == stretch[at]))
        else {
            continue;
        };
        if read_by(&scale) == [product] {
            steps[inverse] = None;
        }
        steps[product] = None;
        if let Some(Step { prim: Prim::Attention { parts, .. }, writes, .. }) = &mut steps[at] {
            (parts[values], writes[values]) = (AttentionPart::Result, result);
        }
    }
}

/// What a step gives that multiplies values by something that has fewer dims, and this; it may round the product.
fn scaled(plan: &Plan, step: &Step, values: &Operand) -> Option<(Operand, Operand)> {
    let (Prim::Map { expr, regs }, [result]) = (&step.prim, &step.writes[..]) else { return None };
    let [a, b] = &step.reads[..] else { return None };
    let load = |reg: u16| matches!(expr.nodes[usize::from(reg)].scalar, Scalar::Load(_));
    let product = match function(expr, regs[0]) {
        Scalar::Binary(BinaryFn::Mul, a, b) => a != b && load(a) && load(b),
        _ => false,
    };
    let alike =
        values.dims == result.dims && plan.buffer(values.buf).extents == plan.buffer(result.buf).extents;
    let other = if a == values { b } else { a };
    (product && alike && (a == values) != (b == values)).then(|| (result.clone(), other.clone()))
}

fn is_inverse(step: &Step, of: &Operand) -> bool {
    let Prim::Map { expr, regs } = &step.prim else { return false };
    step.reads[..] == [of.clone()]
        && matches!(function(expr, regs[0]), Scalar::Unary(UnaryFn::Recip, x) if matches!(expr.nodes[usize::from(x)].scalar, Scalar::Load(_)))
}

/// What a register is but for a rounding of it.
fn function(expr: &Expr, reg: u16) -> Scalar {
    match expr.nodes[usize::from(reg)].scalar {
        Scalar::Cast(from) => expr.nodes[usize::from(from)].scalar,
        other => other,
    }
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
