//! Claims of linearity, with oracles alone: where an op allows unfinished sums, f of sums is the sum of f; where it denies
//! them, the two differ.

use crate::rng::Rng;
use crate::subject::{Arrival, build, subjects};
use crate::walk::{Bound, close, walk};
use meshwright_ops::{F64Tensor, Graph, Id};
use meshwright_plan::DType;
use std::collections::BTreeSet;

/// Summands of each operand.
const SUMMANDS: usize = 3;

/// Denials of what is linear: right, but more careful than need be. The op, the operands, and why.
const EXCUSED: &[(&str, &[usize], &str)] =
    &[("where", &[1, 2], "linear in both branches together but in neither alone, which no claim can say")];

/// Tests all claims and denials of one op at the values its operands have. Gives the number of sets of operands.
pub(crate) fn claims(g: &Graph, values: &[F64Tensor], id: Id, rng: &mut Rng) -> Result<usize, String> {
    let node = g.node(id);
    let roles = node.op.roles(&g.input_types(id), &node.ty);
    let n = node.inputs.len();
    let summable = |slot: &usize| {
        let ty = g.ty(node.inputs[*slot]);
        ty.dtype.is_float() || (ty.dtype == DType::I32 && ty.range.is_none())
    };
    let slots: Vec<usize> = (0..n).filter(summable).collect();
    let base: Vec<&F64Tensor> = node.inputs.iter().map(|i| &values[i.0 as usize]).collect();
    let mut sets = 0;
    for chosen in 1u32..1 << slots.len() {
        let set: BTreeSet<usize> = slots.iter().enumerate().filter(|(k, _)| chosen >> k & 1 == 1).map(|x| *x.1).collect();
        let parts: Vec<Vec<F64Tensor>> = (0..n)
            .map(|slot| match set.contains(&slot) {
                true => summands(base[slot], g.ty(node.inputs[slot]).dtype, rng),
                false => vec![base[slot].clone(); SUMMANDS],
            })
            .collect();
        let sum_of = |p: &[F64Tensor]| {
            let mut s = p[0].clone();
            for (k, x) in s.data.iter_mut().enumerate() {
                *x = p.iter().map(|t| t.data[k]).sum();
            }
            s
        };
        let whole: Vec<F64Tensor> =
            (0..n).map(|s| if set.contains(&s) { sum_of(&parts[s]) } else { base[s].clone() }).collect();
        let of_sums = node.op.oracle(&whole.iter().collect::<Vec<_>>(), &node.ty);
        let of_each: Vec<F64Tensor> = (0..SUMMANDS)
            .map(|k| node.op.oracle(&parts.iter().map(|p| &p[k]).collect::<Vec<_>>(), &node.ty))
            .collect();
        let sum = sum_of(&of_each);
        let allowed = roles.linear_in(&set, n);
        let excused = EXCUSED.iter().any(|(op, s, _)| node.op.name() == *op && set.iter().eq(s.iter()));
        let at = || format!("`{}` and sums in the operands {set:?}", node.op.name());
        match (allowed, close(&sum.data, &of_sums.data, if allowed { 1e-12 } else { 1e-6 })) {
            (true, Err(e)) => return Err(format!("{} are allowed, but f of sums is not the sum of f: {e}", at())),
            (false, Ok(())) if !excused => return Err(format!("{} are denied without need", at())),
            (false, Err(_)) if excused => return Err(format!("{} are excused without need", at())),
            _ => sets += 1,
        }
    }
    Ok(sets)
}

/// Random summands like a value: of both signs unless all of it is positive, whole numbers if it is.
fn summands(like: &F64Tensor, dtype: DType, rng: &mut Rng) -> Vec<F64Tensor> {
    let low = like.data.iter().copied().fold(f64::INFINITY, f64::min);
    let high = like.data.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let positive = low > 0.0 && dtype.is_float();
    let mut draw = || match (positive, dtype.is_float()) {
        (true, _) => rng.float(low / 4.0, high / 2.0),
        (_, true) => rng.float(-2.0, 2.0),
        _ => rng.float(-3.0, 4.0).floor(),
    };
    (0..SUMMANDS).map(|_| F64Tensor::build(&like.dims, |_| draw())).collect()
}

/// The claims of every value that a program computes.
pub(crate) fn all_claims(g: &Graph, bound: &Bound, seed: u64) -> Result<usize, String> {
    let values = walk(g, bound);
    let mut rng = Rng::new(seed);
    let mut sets = 0;
    for id in g.ids().filter(|i| !g.node(*i).inputs.is_empty()) {
        sets += claims(g, &values, id, &mut rng)?;
    }
    Ok(sets)
}

#[test]
fn claims_of_linearity_hold_and_denials_are_needed() {
    let (mut sets, mut wrong) = (0, Vec::new());
    for subject in subjects() {
        let arrivals = vec![Arrival::Input; subject.inputs.len()];
        let found = build(&subject, &arrivals, 7).and_then(|b| all_claims(&b.graph, &b.bound, 11));
        match found {
            Ok(n) => sets += n,
            Err(e) => wrong.push(format!("{}: {e}", subject.name)),
        }
    }
    crate::report(&format!("linearity: {sets} sets of operands"));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
