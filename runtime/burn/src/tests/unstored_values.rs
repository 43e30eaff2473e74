//! Masks and inlined values, which are never stored.

use super::plans::Builder;
use meshwright_device::decisions::def_use::DefUse;
use meshwright_device::decisions::fused::FusedGroups;
use meshwright_device::passes::inlined::InlinedValues;
use meshwright_device::passes::masks::Masks;
use meshwright_device::passes::residuals::Residuals;
use meshwright_plan::expr::{BinaryFn, Scalar};
use meshwright_plan::random::Distribution;
use meshwright_plan::{BufId, DType, Dim, Mesh, Monoid, Operand, Plan, Prim, ProgramInputKind};

fn dropped(b: &mut Builder, dim: Dim, x: &Operand, mask: &Operand) -> Operand {
    let out = b.whole(DType::F32, &[dim]);
    b.map("dropped", &[x, mask], &out, |e, r| {
        let zero = e.constant(0.0, DType::F32);
        e.select(r[1], r[0], zero)
    });
    out
}

/// Drops elements of `x` by a mask, once in a loop over layers and once in a second loop, which reads what the first has kept.
/// `summed` says whether something else reads the mask too.
fn with_mask(summed: bool) -> (Plan, BufId, BufId) {
    let mut b = Builder::new(&Mesh::new([] as [(&str, usize); 0]));
    let (layers, dim) = (b.dim("layers", 3), b.dim("n", 8));
    let x = b.whole(DType::F32, &[dim]);
    b.leaf(ProgramInputKind::Input, "x", &x);
    let stack = b.whole(DType::Bool, &[layers, dim]);
    let [stack_now, stack_next, stack_last] = [(); 3].map(|()| b.like(&stack));
    let [now, second] = [(); 2].map(|()| b.like(&x));
    b.step("kept", Prim::Blank { zero: false }, &[], &[&stack]);
    let repeat = || Prim::Repeat { dim: layers, reverse: false, from: 0, axes: vec![] };
    b.step("layers", repeat(), &[&x, &stack], &[&now, &stack_now]);
    let mask = b.whole(DType::Bool, &[dim]);
    let drawn = Prim::Random { stream: "d".into(), distribution: Distribution::Bernoulli { rate: 0.5 } };
    b.step("mask", drawn, &[], &[&mask]);
    b.step("kept", Prim::IterationUpdate { dim: layers }, &[&stack_now, &mask], &[&stack_next]);
    let mut next = dropped(&mut b, dim, &now, &mask);
    if summed {
        let seen = b.whole(DType::Bool, &[]);
        b.reduce("seen", Monoid::Or, &mask, &seen);
        let all = b.like(&next);
        b.map("all", &[&next, &seen], &all, |_, r| r[0]);
        next = all;
    }
    let first = b.like(&x);
    b.step("layers", Prim::EndRepeat, &[&next, &stack_next], &[&first, &stack_last]);
    let now = b.like(&x);
    b.step("back", repeat(), &[&first], &[&now]);
    let kept = b.whole(DType::Bool, &[dim]);
    b.step("kept", Prim::IterationSlice { dim: layers }, &[&stack_last], &[&kept]);
    let next = dropped(&mut b, dim, &now, &kept);
    b.step("back", Prim::EndRepeat, &[&next], &[&second]);
    b.output("out", &second);
    (b.finish(), mask.buf, kept.buf)
}

fn reads_maps(plan: &Plan, step: usize) -> bool {
    matches!(plan.steps[step].prim, Prim::Map { .. })
}

#[test]
fn a_mask_that_only_element_wise_steps_read_is_drawn_by_them_in_both_loops() {
    let (plan, mask, kept) = with_mask(false);
    let residuals = Residuals::of(&DefUse::of(&plan));
    let masks = Masks::of(&DefUse::of(&plan), &residuals, |step, _, _| reads_maps(&plan, step));
    let by = plan.steps.iter().position(|s| matches!(s.prim, Prim::Random { .. })).unwrap();
    assert_eq!(masks.drawn_by, [(mask, by), (kept, by)].into());
    // The steps that draw, store and load the mask.
    assert_eq!(masks.skipped.len(), 3);
    // If the second loop cannot draw the mask, no step does.
    let second = plan.steps.len() - 2;
    let none =
        Masks::of(&DefUse::of(&plan), &residuals, |step, _, _| reads_maps(&plan, step) && step != second);
    assert!(none.drawn_by.is_empty() && none.skipped.is_empty());
}

#[test]
fn a_mask_that_something_else_reads_is_stored() {
    let (plan, ..) = with_mask(true);
    let masks = Masks::of(&DefUse::of(&plan), &Residuals::of(&DefUse::of(&plan)), |step, _, _| {
        reads_maps(&plan, step)
    });
    assert!(masks.drawn_by.is_empty() && masks.skipped.is_empty());
}

/// `c = bf16(x + y)`, its square, and the sum of the squares; `twice` says whether something else reads the squares.
fn squares(twice: bool) -> (Plan, [BufId; 3]) {
    let mut b = Builder::new(&Mesh::new([] as [(&str, usize); 0]));
    let (row, n) = (b.dim("row", 4), b.dim("n", 8));
    let x = b.whole(DType::F32, &[row, n]);
    b.leaf(ProgramInputKind::Input, "x", &x);
    let (c, square) = (b.whole(DType::BF16, &[row, n]), b.whole(DType::F32, &[row, n]));
    let (mut expr, regs) = meshwright_plan::Expr::of_operands([DType::F32]);
    let half = expr.cast(regs[0], DType::BF16);
    let wide = expr.cast(half, DType::F32);
    let product = expr.binary(BinaryFn::Mul, wide, wide);
    b.step("c", Prim::Map { expr, regs: vec![half, product] }, &[&x], &[&c, &square]);
    let sum = b.whole(DType::F32, &[row]);
    b.reduce("sum", Monoid::Sum, &square, &sum);
    if twice {
        b.output("square", &square);
    }
    b.output("c", &c);
    b.output("sum", &sum);
    (b.finish(), [c.buf, square.buf, sum.buf])
}

#[test]
fn what_is_only_folded_is_computed_from_what_is_written_beside_it() {
    let (plan, [c, square, _]) = squares(false);
    let found = InlinedValues::of(&DefUse::of(&plan), &FusedGroups::default(), |_, _| true, |_| true);
    let inlined = &found.values[&square];
    assert_eq!(inlined.reads.iter().map(|o| o.buf).collect::<Vec<_>>(), [c]);
    assert_eq!((inlined.by, inlined.of.expr.nodes[0].scalar), (1, Scalar::Load(0)));
    // It is `f32(c) * f32(c)`: what made `c` is not computed again.
    assert_eq!(inlined.of.expr.nodes.len(), 3);
    // `c` is written.
    assert!(found.skipped.is_empty());
}

#[test]
fn what_something_else_needs_is_stored() {
    let (plan, _) = squares(true);
    assert!(
        InlinedValues::of(&DefUse::of(&plan), &FusedGroups::default(), |_, _| true, |_| true)
            .values
            .is_empty()
    );
    let (plan, _) = squares(false);
    assert!(
        InlinedValues::of(&DefUse::of(&plan), &FusedGroups::default(), |_, _| false, |_| true)
            .values
            .is_empty()
    );
    assert!(
        InlinedValues::of(&DefUse::of(&plan), &FusedGroups::default(), |_, _| true, |_| false)
            .values
            .is_empty()
    );
}

/// A sum along `n` of the product of two `factors`, chosen among `x`, `s = x + y` and `t = x * y`; with `one`, one step computes
/// `s` and `t`.
fn scaled_sum(one: bool, factors: fn([&Operand; 3]) -> [&Operand; 2]) -> (Plan, [BufId; 2]) {
    let mut b = Builder::new(&Mesh::new([] as [(&str, usize); 0]));
    let (row, n) = (b.dim("row", 4), b.dim("n", 8));
    let [x, y, s, t] = [(); 4].map(|()| b.whole(DType::F32, &[row, n]));
    for (name, value) in [("x", &x), ("y", &y)] {
        b.leaf(ProgramInputKind::Input, name, value);
    }
    let (mut expr, regs) = meshwright_plan::Expr::of_operands([DType::F32, DType::F32]);
    let sum = expr.binary(BinaryFn::Add, regs[0], regs[1]);
    let product = expr.binary(BinaryFn::Mul, regs[0], regs[1]);
    let mut map =
        |regs, made: &[&Operand]| b.step("map", Prim::Map { expr: expr.clone(), regs }, &[&x, &y], made);
    if one {
        map(vec![sum, product], &[&s, &t]);
    } else {
        map(vec![sum], &[&s]);
        map(vec![product], &[&t]);
    }
    let out = b.whole(DType::F32, &[row]);
    b.step("out", Prim::Contract, &factors([&x, &s, &t]), &[&out]);
    // Read by others too, they last.
    b.output("x", &x);
    b.output("y", &y);
    b.output("out", &out);
    (b.finish(), [s.buf, t.buf])
}

#[test]
fn a_factor_of_a_sum_of_products_is_computed_there_but_not_both() {
    let inlined =
        |plan: &Plan| InlinedValues::of(&DefUse::of(plan), &FusedGroups::default(), |_, _| true, |_| true);
    let (plan, [s, _]) = scaled_sum(false, |[x, s, _]| [s, x]);
    let found = inlined(&plan);
    assert_eq!((found.values[&s].by, found.values[&s].reads.len()), (2, 2));
    // If both factors could be inlined, the first one is.
    let (plan, [s, t]) = scaled_sum(false, |[_, s, t]| [s, t]);
    let found = inlined(&plan);
    assert!(found.values.contains_key(&s) && !found.values.contains_key(&t));
    assert_eq!(found.skipped, [0].into());
    // Made by one step, neither.
    let (plan, _) = scaled_sum(true, |[_, s, t]| [s, t]);
    assert!(inlined(&plan).values.is_empty());
    let (plan, _) = scaled_sum(false, |[_, s, _]| [s, s]);
    assert!(inlined(&plan).values.is_empty());
}
