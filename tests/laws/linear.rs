//! Claims of linearity, with oracles alone: where an op allows unfinished sums, f of sums is the sum of f; where it denies
//! them, the two differ.

use crate::oracle::{Bound, close, walk};
use crate::rng::Rng;
use crate::subject::{Arrival, build, subjects};
use meshwright_ops::{F64Tensor, Graph, Id};
use meshwright_plan::DType;
use meshwright_sorted::SortedSet;

/// Summands of each operand.
const SUMMANDS: usize = 3;

/// Draws of random summands for each set of operands.
const ROUNDS: usize = 4;

/// Denials of what is linear: right, but more careful than need be. The op, the operands, and why.
const EXCUSED: &[(&str, &[usize], &str)] = &[
    ("where", &[1, 2], "linear in both branches together but in neither alone, which no claim can say"),
    (
        "dynamic_update_slice",
        &[0, 1],
        "linear in the whole and the part together but in neither alone, as `where` is",
    ),
    ("straight_through", &[0, 1], "linear in the first, whatever the second is, which no claim can say"),
    ("attention_grad", &[3, 5], "linear in the values and what they give together, in neither alone"),
    ("attention_grad", &[5, 6], "linear in the cotangent and what it gives together, in neither alone"),
];

/// Tests all claims and denials of one op at values like those that its operands have: a claim must hold in every round, a
/// denial must be needed in one. Gives the number of sets of operands.
pub(crate) fn claims(g: &Graph, values: &[F64Tensor], id: Id, rng: &mut Rng) -> Result<usize, String> {
    let node = g.node(id);
    let roles = node.op.roles(&g.input_types(id), &node.ty, &g.dims);
    let n = node.inputs.len();
    let summable = |slot: &usize| {
        let ty = g.ty(node.inputs[*slot]);
        ty.dtype.is_float() || (ty.dtype == DType::I32 && ty.range.is_none())
    };
    let slots: Vec<usize> = (0..n).filter(summable).collect();
    let mut sets = 0;
    for chosen in 1u32..1 << slots.len() {
        let set: SortedSet<usize> =
            slots.iter().enumerate().filter(|(k, _)| chosen >> k & 1 == 1).map(|x| *x.1).collect();
        let allowed = roles.linear_in(&set, n);
        let excused = EXCUSED.iter().any(|(op, s, _)| node.op.name() == *op && set.iter().eq(s.iter()));
        let at = || format!("`{}` and sums in the operands {set:?}", node.op.name());
        let mut differs = false;
        for round in 0..ROUNDS {
            // In every other round elements are multiples of a half: comparisons then meet equal numbers.
            match (allowed, round_of(g, values, id, &set, round % 2 == 1, rng)) {
                (true, Err(e)) => {
                    return Err(format!("{} are allowed, but f of sums is not the sum of f: {e}", at()));
                }
                (_, found) => differs |= found.is_err(),
            }
        }
        match (allowed, differs) {
            (false, false) if !excused => return Err(format!("{} are denied without need", at())),
            (false, true) if excused => return Err(format!("{} are excused without need", at())),
            _ => sets += 1,
        }
    }
    Ok(sets)
}

/// Compares f of sums with the sum of f once.
fn round_of(
    g: &Graph,
    values: &[F64Tensor],
    id: Id,
    set: &SortedSet<usize>,
    halves: bool,
    rng: &mut Rng,
) -> Result<(), String> {
    let node = g.node(id);
    let mut whole: Vec<F64Tensor> = Vec::new();
    let mut parts: Vec<Vec<F64Tensor>> = Vec::new();
    for (slot, input) in node.inputs.iter().enumerate() {
        let (base, dtype) = (&values[input.0 as usize], g.ty(*input).dtype);
        if set.contains(&slot) {
            let p = summands(base, dtype, halves, rng);
            whole.push(sum_of(&p));
            parts.push(p);
        } else {
            let mut base = base.clone();
            if halves && dtype.is_float() {
                base.data.iter_mut().for_each(|v| *v = half(*v));
            }
            parts.push(vec![base.clone(); SUMMANDS]);
            whole.push(base);
        }
    }
    let f = |x: Vec<&F64Tensor>| node.op.oracle(&x, &node.ty, &g.dims);
    let of_sums = f(whole.iter().collect());
    let of_each: Vec<F64Tensor> = (0..SUMMANDS).map(|k| f(parts.iter().map(|p| &p[k]).collect())).collect();
    close(&sum_of(&of_each).data, &of_sums.data, 1e-12)
}

fn sum_of(parts: &[F64Tensor]) -> F64Tensor {
    let mut sum = parts[0].clone();
    for (k, x) in sum.data.iter_mut().enumerate() {
        *x = parts.iter().map(|t| t.data[k]).sum();
    }
    sum
}

/// The nearest multiple of a half that is not 0.
fn half(v: f64) -> f64 {
    let h = (2.0 * v).round() / 2.0;
    if h == 0.0 { 0.5_f64.copysign(v) } else { h }
}

/// Random summands like a value: of both signs unless all of it is positive, whole numbers if it is.
fn summands(like: &F64Tensor, dtype: DType, halves: bool, rng: &mut Rng) -> Vec<F64Tensor> {
    let low = like.data.iter().copied().fold(f64::INFINITY, f64::min);
    let high = like.data.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let positive = low > 0.0 && dtype.is_float();
    let mut draw = || match (positive, dtype.is_float()) {
        (true, _) => rng.float(low / 4.0, high / 2.0),
        (_, true) => rng.float(-2.0, 2.0),
        _ => rng.float(-3.0, 4.0).floor(),
    };
    let mut element = || if halves && dtype.is_float() { half(draw()) } else { draw() };
    (0..SUMMANDS)
        .map(|_| F64Tensor { data: like.data.iter().map(|_| element()).collect(), ..like.clone() })
        .collect()
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
