//! Values that are stored and steps that stay where they are: see [`meshwright_device::passes::inlined`],
//! [`meshwright_device::passes::step_order`] and [`meshwright_device::passes::masks`].

use super::{Base, Reason};
use meshwright_plan::{Arithmetic, Prim};

/// A sum computes its operand.
const INLINED: Base = Base {
    float: Arithmetic::F32,
    sizes: "b 16 n 64 k 3",
    text: "
        x[n b] = input
        e[n b] = map exp($0) (x)
        s[] = sum (e)
        output s
    ",
    count: |_, decided| decided.inlined.values.len(),
};

const INLINED_REASONS: &[Reason] = &[
    (
        "a collective takes the operand before",
        &[("s[] =", "g[n b] = all_reduce (x)\n s[] ="), ("output s", "output g\n output s")],
        0,
    ),
    (
        "the sum is part of a group of rows, and its operand is computed before a loop",
        &[
            (
                "s[] = sum (e)",
                "k0[n] = repeat k (y)\n k1[n] = map tanh($0) (k0)\n k2[n] = end (k1)\n s[n] = sum (e)\n o[n b] = map mul(mul($0, $1), $2) (x, s, k2)",
            ),
            ("x[n b] = input", "x[n b] = input\n y[n] = input"),
            ("output s", "output o"),
        ],
        0,
    ),
    (
        "the sum is part of a group of rows",
        &[
            (
                "s[] = sum (e)",
                "s[n] = sum (e)\n m[n] = max (x)\n o[n b] = map mul($0, add($1, $2)) (x, m, s)",
            ),
            ("output s", "output o"),
        ],
        0,
    ),
];

#[test]
fn a_sum_computes_what_stays() {
    INLINED.check(1, INLINED_REASONS);
}

/// A sum that waits for a group of rows, `m` and `y`. A collective in between does not need its operand.
const DELAYED: Base = Base {
    float: Arithmetic::F32,
    sizes: "b 16 n 64",
    text: "
        u[b] = input
        t[b] = input
        z[b n] = input
        e[b] = map exp($0) (u)
        m[b] = max (z)
        s[] = contract (e, m)
        g[b] = all_reduce (t)
        y[b n] = map sub($0, $1) (z, m)
        output s
        output g
        output y
    ",
    count: |_, decided| decided.inlined.values.len(),
};

#[test]
fn a_sum_that_waits_computes_what_stays() {
    DELAYED.check(
        1,
        &[("the collective takes it", &[("all_reduce (t)", "all_reduce (u)"), ("t[b] = input\n", "")], 0)],
    );
}

/// The body of a loop converts what it slices and stores what it computes: steps that move.
const MOVED: Base = Base {
    float: Arithmetic::F32,
    sizes: "seq 8 n 64 m 4",
    text: "
        x[n] = input
        v[seq n] = input
        k0[seq n] = zeros
        x0[n], k1[seq n] = repeat seq (x, k0)
            t[n] = map tanh($0) (x0)
            k2[seq n] = update seq (k1, t)
            o[n] = slice seq (v)
            c[n] = map exp($0) (o)
            x1[n] = map mul($0, $1) (t, c)
        x2[n], k3[seq n] = end (x1, k2)
        output x2
        output k3
    ",
    // Steps before the first function of a carry, and updates behind all functions.
    count: |plan, decided| {
        let order = &decided.order.steps;
        let is_map = |step: &usize| matches!(plan.steps[*step].prim, Prim::Map { .. });
        let first = (0..plan.steps.len()).find(is_map).unwrap();
        let begin = order.iter().position(|s| matches!(plan.steps[*s].prim, Prim::Repeat { .. })).unwrap();
        let ahead = order.iter().position(|s| *s == first).unwrap() - begin - 1;
        let behind = &order[order.iter().rposition(is_map).unwrap()..];
        let is_update = |s: &&usize| matches!(plan.steps[**s].prim, Prim::IterationUpdate { .. });
        ahead + behind.iter().filter(is_update).count()
    },
};

const MOVED_REASONS: &[Reason] = &[
    (
        "the loop reads what it stores",
        &[(
            "x1[n] = map mul($0, $1) (t, c)",
            "r[n] = slice seq (k2)\n x1[n] = map mul(mul($0, $1), $2) (t, c, r)",
        )],
        2,
    ),
    (
        "the conversion is part of a group of rows",
        &[
            ("o[n] = slice seq (v)", "o[m n] = slice seq (v)"),
            ("v[seq n] = input", "v[seq m n] = input"),
            (
                "c[n] = map exp($0) (o)",
                "c[m n] = map exp($0) (o)\n l[m] = sum (c)\n y[m n] = map div($0, $1) (c, l)\n z[n] = sum (y)",
            ),
            ("(t, c)", "(t, z)"),
        ],
        2,
    ),
    (
        "the conversion is computed by the sum that reads it",
        &[("c[n] = map exp($0) (o)", "c[n] = map exp($0) (o)\n z[] = sum (c)"), ("(t, c)", "(t, z)")],
        2,
    ),
];

#[test]
fn steps_of_a_loop_move_if_nothing_else_needs_them() {
    MOVED.check(3, MOVED_REASONS);
    // A conversion may read what is there before the loop.
    let outside = MOVED.decided(
        "an operand from outside",
        &[
            ("map exp($0) (o)", "map mul(exp($0), $1) (o, u)"),
            ("k0[seq n] = zeros", "u[n] = input\n k0[seq n] = zeros"),
        ],
    );
    assert_eq!(outside, 3);
}

/// A mask that each consumer draws.
const MASK: Base = Base {
    float: Arithmetic::F32,
    sizes: "b 16 n 64 k 3",
    text: "
        x[b n] = input
        d:bool[b n] = random 0.1
        y[b n] = map mul($0, f32($1)) (x, d)
        output y
    ",
    count: |_, decided| decided.masks.drawn_by.len(),
};

const MASK_REASONS: &[Reason] = &[
    ("the mask is an output", &[("output y", "output d\n output y")], 0),
    (
        "a loop reads the same mask in each iteration",
        &[
            (
                "y[b n] = map mul($0, f32($1)) (x, d)",
                "x0[b n] = repeat k (x)\n y[b n] = map mul($0, f32($1)) (x0, d)",
            ),
            ("output y", "x1[b n] = end (y)\n output x1"),
        ],
        0,
    ),
];

#[test]
fn a_mask_is_drawn_in_its_iteration() {
    MASK.check(1, MASK_REASONS);
}
