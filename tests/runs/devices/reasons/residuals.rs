//! Stacks that no other form may have: see [`meshwright_device::passes::residuals`].

use super::{Base, Reason};
use meshwright_device::passes::residuals::ResidualStep;
use meshwright_plan::Arithmetic;

/// A loop fills the stack `z`, and another one slices it.
const LEFT: Base = Base {
    float: Arithmetic::F32,
    sizes: "seq 8 rev 8 outer 2 batch 16 d 64",
    text: "
        x[batch d] = input
        z0[seq batch d] = blank
        y0[batch d], z1[seq batch d] = repeat seq (x, z0)
            y1[batch d] = map tanh($0) (y0)
            z2[seq batch d] = update seq (z1, y1)
        y2[batch d], z3[seq batch d] = end (y1, z2)
        s0[batch d] = repeat seq (y2)
            v[batch d] = slice seq (z3)
            s1[batch d] = map add(mul($0, 0.5), $1) (s0, v)
        s2[batch d] = end (s1)
        output s2
    ",
    count: |_, decided| decided.residuals.stacks.len(),
};

const REASONS: &[Reason] = &[
    (
        "another loop begins with the same blank",
        &[(
            "s0[batch d] = repeat seq (y2)",
            "q0[seq batch d] = repeat seq (z0)
                q1[seq batch d] = update seq (q0, y2)
            q2[seq batch d] = end (q1)
            q3[batch d] = sum (q2)
            s[batch d] = map add($0, $1) (y2, q3)
            s0[batch d] = repeat seq (s)",
        )],
        0,
    ),
    (
        "the loop reads what it has stacked",
        &[
            (
                "y2[batch d], z3",
                "r[batch d] = slice seq (z2)\ny3[batch d] = map add($0, $1) (y1, r)\ny2[batch d], z3",
            ),
            ("end (y1, z2)", "end (y3, z2)"),
        ],
        0,
    ),
    (
        "a position is updated twice",
        &[(
            "z2[seq batch d] = update seq (z1, y1)",
            "z[seq batch d] = update seq (z1, y0)
            z2[seq batch d] = update seq (z, y1)",
        )],
        0,
    ),
    ("the stack begins with zeros", &[("= blank", "= zeros")], 0),
    ("the stack begins with values", &[("= blank", "= map tanh($0) (x)")], 0),
    ("values are added up", &[("= update seq (z1, y1)", "= map add($0, $1) (z1, y1)")], 0),
    (
        "an inner loop updates a position of the outer one",
        &[
            (
                "y0[batch d], z1[seq batch d] = repeat seq (x, z0)",
                "t0[batch d], w0[seq batch d] = repeat seq (x, z0)\n y0[batch d], z1[seq batch d] = repeat outer (t0, w0)",
            ),
            (
                "y2[batch d], z3[seq batch d] = end (y1, z2)",
                "t1[batch d], w1[seq batch d] = end (y1, z2)\n y2[batch d], z3[seq batch d] = end (t1, w1)",
            ),
        ],
        0,
    ),
    ("a loop reads all of it", &[("v[batch d] = slice seq (z3)", "v[batch d] = sum (z3)")], 0),
    (
        "another loop begins at another position",
        &[(
            "output s2",
            "p0[batch d] = repeat seq from 1 (s2)
                u[batch d] = slice seq (z3)
                p1[batch d] = map mul($0, $1) (p0, u)
            p2[batch d] = end (p1)
            output p2",
        )],
        0,
    ),
    (
        "another dim counts its positions",
        &[("repeat seq (y2)", "repeat rev (y2)"), ("slice seq (z3)", "slice rev (z3[rev batch d])")],
        0,
    ),
];

#[test]
fn stacks_are_left_in_one_form() {
    LEFT.check(1, REASONS);
}

/// Both loops are in the iteration of a third one.
const AROUND: Base = Base {
    float: Arithmetic::F32,
    sizes: "outer 8 seq 8 batch 16 d 64",
    text: "
        x[batch d] = input
        g0[batch d] = repeat outer (x)
            z0[seq batch d] = blank
            y0[batch d], z1[seq batch d] = repeat seq (g0, z0)
                y1[batch d] = map tanh($0) (y0)
                z2[seq batch d] = update seq (z1, y1)
            y2[batch d], z3[seq batch d] = end (y1, z2)
            s0[batch d] = repeat seq (y2)
                v[batch d] = slice seq (z3)
                s1[batch d] = map add(mul($0, 0.5), $1) (s0, v)
            s2[batch d] = end (s1)
        g1[batch d] = end (s2)
        output g1
    ",
    count: |_, decided| decided.residuals.stacks.len(),
};

#[test]
fn positions_are_those_of_the_innermost_loop() {
    AROUND.check(
        1,
        &[
            (
                "the position of the loop around is updated",
                &[
                    (
                        "z2[seq batch d] = update seq (z1, y1)",
                        "z2[outer batch d] = update outer (z1[outer batch d], y1)",
                    ),
                    ("end (y1, z2)", "end (y1, z2[seq batch d])"),
                ],
                0,
            ),
            (
                "the position of the loop around is sliced",
                &[("slice seq (z3)", "slice outer (z3[outer batch d])")],
                0,
            ),
        ],
    );
}

/// A slice that runs one turn behind the others ends the values, although it comes earlier in the Plan.
const BEHIND: Base = Base {
    float: Arithmetic::F32,
    sizes: "seq 8 batch 16 d 64",
    text: "
        x[batch d] = input
        z0[seq batch d] = blank
        y0[batch d], z1[seq batch d] = repeat seq (x, z0)
            y1[batch d] = map tanh($0) (y0)
            z2[seq batch d] = update seq (z1, y1)
        y2[batch d], z3[seq batch d] = end (y1, z2)
        r0[batch d], s0[batch d] = repeat seq (x, y2)
            u[batch d] = slice seq (z3)
            r1[batch d] = map add(mul($0, 0.5), $1) (r0, u)
            v[batch d] = slice seq (z3)
            s1[batch d] = map add(mul($0, 0.5), $1) (s0, v)
        r2[batch d], s2[batch d] = end (r1, s1)
        output r2
        output s2
    ",
    // The step that ends the values.
    count: |_, decided| {
        let last = |how: &ResidualStep| matches!(how, ResidualStep::Load { last: true, .. });
        decided.residuals.steps.iter().find(|(_, how)| last(how)).map_or(0, |(step, _)| *step)
    },
};

#[test]
fn the_last_slice_in_the_order_of_turns_ends_a_value() {
    BEHIND.check(
        8,
        &[(
            "the first slice runs a turn later",
            &[
                ("u[batch d] = slice seq (z3)", "u[batch d] = slice seq (z3) lag 1"),
                ("(r0, u)", "(r0, u) lag 1"),
            ],
            6,
        )],
    );
}

/// Loops in loops fill the stack `o`, and loops in loops slice it.
const NESTED: Base = Base {
    float: Arithmetic::F32,
    sizes: "outer 2 k 3 seq 8 batch 16 d 64",
    text: "
        x[batch d] = input
        o0[outer seq batch d] = blank
        t0[batch d], o1[outer seq batch d] = repeat outer (x, o0)
            z0[seq batch d] = blank
            y0[batch d], z1[seq batch d] = repeat seq (t0, z0)
                y1[batch d] = map tanh($0) (y0)
                z2[seq batch d] = update seq (z1, y1)
            y2[batch d], z3[seq batch d] = end (y1, z2)
            o2[outer seq batch d] = update outer (o1, z3)
        t1[batch d], o3[outer seq batch d] = end (y2, o2)
        p0[batch d] = repeat outer (t1)
            so[seq batch d] = slice outer (o3)
            q0[batch d] = repeat seq (p0)
                v[batch d] = slice seq (so)
                q1[batch d] = map add(mul($0, 0.5), $1) (q0, v)
            q2[batch d] = end (q1)
        p1[batch d] = end (q2)
        output p1
    ",
    count: |_, decided| decided.residuals.buffers.len(),
};

const NESTED_REASONS: &[Reason] = &[
    (
        "a loop in between reads it again",
        &[
            ("q0[batch d] = repeat seq (p0)", "k0[batch d] = repeat k (p0)\n q0[batch d] = repeat seq (k0)"),
            ("q2[batch d] = end (q1)", "k1[batch d] = end (q1)\n q2[batch d] = end (k1)"),
        ],
        4,
    ),
    (
        "two loops read other positions of the inner one",
        &[(
            "output p1",
            "e0[batch d] = repeat outer (p1)
                se[seq batch d] = slice outer (o3)
                f0[batch d] = repeat seq from 1 (e0)
                    w[batch d] = slice seq (se)
                    f1[batch d] = map mul($0, $1) (f0, w)
                f2[batch d] = end (f1)
            e1[batch d] = end (f2)
            output e1",
        )],
        4,
    ),
];

#[test]
fn stacks_of_stacks_are_left_in_one_form() {
    NESTED.check(9, NESTED_REASONS);
}
