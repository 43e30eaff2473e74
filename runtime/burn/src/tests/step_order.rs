//! Orders of steps that let several become one launch.

use super::plans::Builder;
use meshwright_device::decisions::def_use::DefUse;
use meshwright_device::decisions::fused::FusedGroups;
use meshwright_device::passes::inlined::InlinedValues;
use meshwright_device::passes::step_order::StepOrder;
use meshwright_plan::expr::BinaryFn;
use meshwright_plan::{Axis, DType, Mesh, Monoid, Plan, Prim, ProgramInputKind};

/// Another step in the body of a loop.
#[derive(Clone, Copy, PartialEq)]
enum Inside {
    Nothing,
    /// A sum over devices.
    Sum,
    /// A loop that begins with what is kept.
    Loop,
}

/// A loop over layers: `x = x * w` of two parameters, each of which is converted first; the first product is stored.
fn layers(inside: Inside) -> Plan {
    let mut b = Builder::new(&Mesh::new([("a", 2)]));
    let (layers, n) = (b.dim("layers", 3), b.dim("n", 8));
    let x = b.whole(DType::F32, &[n]);
    b.leaf(ProgramInputKind::Input, "x", &x);
    let stacks = ["v", "w"].map(|name| {
        let stack = b.whole(DType::F32, &[layers, n]);
        b.leaf(ProgramInputKind::Param, name, &stack);
        stack
    });
    let kept = b.whole(DType::F32, &[layers, n]);
    b.step("kept", Prim::Blank { zero: false }, &[], &[&kept]);
    let [now, current, next, last, after] = [&x, &kept, &kept, &x, &kept].map(|o| b.like(o));
    b.step(
        "layers",
        Prim::Repeat { dim: layers, reverse: false, from: 0, axes: vec![] },
        &[&x, &kept],
        &[&now, &current],
    );
    let mut value = now;
    for (k, stack) in stacks.iter().enumerate() {
        let (one, half, made) = (b.like(&x), b.whole(DType::BF16, &[n]), b.like(&x));
        b.step("w", Prim::IterationSlice { dim: layers }, &[stack], &[&one]);
        b.map("half", &[&one], &half, |e, r| e.cast(r[0], DType::BF16));
        b.map("x", &[&value, &half], &made, |e, r| {
            let wide = e.cast(r[1], DType::F32);
            e.binary(BinaryFn::Mul, r[0], wide)
        });
        value = made;
        if k == 0 {
            b.step("kept", Prim::IterationUpdate { dim: layers }, &[&current, &value], &[&next]);
        }
    }
    if inside == Inside::Loop {
        let (now, last) = (b.like(&value), b.like(&value));
        b.step(
            "inner",
            Prim::Repeat { dim: layers, reverse: false, from: 0, axes: vec![] },
            &[&value],
            &[&now],
        );
        let next = b.like(&value);
        b.map("next", &[&now], &next, |e, r| e.binary(BinaryFn::Mul, r[0], r[0]));
        b.step("inner", Prim::EndRepeat, &[&next], &[&last]);
        value = last;
    }
    if inside == Inside::Sum {
        value = b.all_reduce("sum", Monoid::Sum, &[Axis(0)], &[&value]).remove(0);
    }
    b.step("layers", Prim::EndRepeat, &[&value, &next], &[&last, &after]);
    b.output("last", &last);
    b.output("kept", &after);
    b.finish()
}

#[test]
fn conversions_of_what_a_loop_takes_out_of_stacks_stand_next_to_each_other() {
    let plan = layers(Inside::Nothing);
    let of = |plan: &Plan, gathers| {
        StepOrder::of(&DefUse::of(plan), &FusedGroups::default(), &InlinedValues::default(), gathers)
    };
    let order = of(&plan, true);
    // Slices, conversions, products, what is kept.
    assert_eq!(order.steps, [0, 1, 2, 6, 3, 7, 4, 8, 5, 9]);
    // A buffer that another step freed now ends with its consumer, which runs later.
    let product = plan.steps[4].writes[0].buf;
    let ends = |s: &usize| {
        let step = &plan.steps[*s];
        step.free.contains(&product) || step.aliases.iter().any(|(from, _)| *from == product)
    };
    let end = (0..plan.steps.len()).find(ends).unwrap();
    assert_eq!((end, order.end_of(product, end)), (8, 5));
    assert_eq!(of(&plan, false).steps, (0..10).collect::<Vec<_>>());
    // Operands of other steps keep their position, and so does the operand of an inner loop.
    for (inside, many) in [(Inside::Sum, 11), (Inside::Loop, 13)] {
        let plan = layers(inside);
        assert_eq!(of(&plan, true).steps, (0..many).collect::<Vec<_>>());
    }
}
