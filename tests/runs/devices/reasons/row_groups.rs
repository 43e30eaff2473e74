//! Steps along rows that are not one launch: see [`meshwright_device::kernels::rows::row_groups`].

use super::{Base, Reason};
use meshwright_device::decisions::Decisions;
use meshwright_plan::{Arithmetic, Monoid, Plan, Prim};

/// A softmax in four steps.
const SOFTMAX: Base = Base {
    float: Arithmetic::F32,
    sizes: "b 16 n 64 o 64 k 3 seq 8",
    text: "
        x[b n] = input
        m[b] = max (x)
        e[b n] = map exp(sub($0, $1)) (x, m)
        s[b] = sum (e)
        y[b n] = map div($0, $1) (e, s)
        output y
    ",
    count: largest,
};

const REASONS: &[Reason] = &[
    (
        "a collective frees an operand of the group",
        &[
            ("s[b] = sum (e)", "g[b n] = all_reduce (x)\n s[b] = sum (e)"),
            ("output y", "output g\n output y"),
        ],
        2,
    ),
    (
        "a fold of no dims has no rows",
        &[("m[b] = max (x)", "m[b n] = max (x)"), ("s[b] = sum (e)", "s[b n] = sum (e)")],
        0,
    ),
];

#[test]
fn a_group_of_rows_ends_where_something_would_break() {
    SOFTMAX.check(4, REASONS);
}

/// A loop whose values of one turn could be read in the next one: `t` is in the group, too.
const TURNS: Base = Base {
    float: Arithmetic::F32,
    sizes: "b 16 n 64 seq 8",
    text: "
        x[b n] = input
        p0[b n] = input
        v[b n] = input
        f0[b n], p1[b n] = repeat seq (x, p0)
            t[b] = sum (v)
            m[b] = max (v)
            e[b n] = map exp(sub($0, $1)) (v, m)
            s[b] = sum (e)
            q[b n] = map div($0, $1) (e, s)
            f1[b n] = map mul(mul($0, $1), $2) (f0, p1, t)
        f2[b n], p2[b n] = end (f1, q)
        output f2
    ",
    count: largest,
};

#[test]
fn a_group_of_rows_is_in_one_turn() {
    TURNS.check(
        6,
        &[
            (
                "the next turn reads an operand of the group",
                &[("t[b] = sum (v)", "t[b] = sum (v) lag 1"), ("(f0, p1, t)", "(f0, p1, t) lag 1")],
                4,
            ),
            (
                "a step of the next turn is in between",
                &[
                    ("s[b] = sum (e)", "u[n b] = map $0 (p1) lag 1\n s[b] = sum (e)"),
                    ("q[b n] = map div($0, $1) (e, s)", "q[b n] = map mul(div($0, $1), $2) (e, s, t)"),
                    ("(f0, p1, t)", "(f0, p1, u) lag 1"),
                ],
                3,
            ),
        ],
    );
}

/// Number of steps of the largest group.
fn largest(_: &Plan, decided: &Decisions) -> usize {
    decided.fused.at.values().map(|group| group.steps.len()).max().unwrap_or(0)
}

/// Values of other dims than the rows have.
#[test]
fn steps_of_a_group_have_the_dims_of_its_rows() {
    let rows = Base {
        float: Arithmetic::F32,
        sizes: "a 16 b 16 n 64",
        text: "
            x[a b n] = input
            m[a b] = max (x)
            e[a b n] = map exp(sub($0, $1)) (x, m)
            s[a b] = sum (e)
            y[a b n] = map div($0, $1) (e, s)
            output y
        ",
        count: largest,
    };
    rows.check(
        4,
        &[
            (
                "an element-wise step writes its dims in another order",
                &[
                    ("s[a b] = sum (e)", "t[b a n] = map tanh($0) (e)\n s[a b] = sum (t)"),
                    ("(e, s)", "(t, s)"),
                ],
                2,
            ),
            ("a sum goes along other rows", &[("s[a b] =", "s[a] =")], 2),
        ],
    );
}

/// Dims of a group that begins with an element-wise step: those of the first fold along a row that follows. Without one, of a sum
/// over all rows, which is part of the group then: `c`.
#[test]
fn a_group_has_the_dims_of_the_fold_that_follows() {
    let first = Base {
        float: Arithmetic::F32,
        sizes: "a 16 b 16 n 64 k 3",
        text: "
            x[a b n] = input
            z[a b n] = input
            q[a b] = input
            y[a b n] = map tanh($0) (x)
            t[a b n] = map mul($0, $1) (y, z)
            f[a b] = max (t)
            c[b n] = sum (y)
            o[a b] = map mul($0, $1) (q, f)
            output c
            output o
        ",
        // Groups that the sum over rows is part of.
        count: |plan, decided| {
            let sums = |step: &usize| matches!(&plan.steps[*step].prim, Prim::Reduce { monoid: Monoid::Sum });
            decided
                .fused
                .at
                .values()
                .filter(|group| group.steps.len() > 1 && group.steps.iter().any(sums))
                .count()
        },
    };
    first.check(
        0,
        &[
            (
                "the fold is in a loop",
                &[
                    ("f[a b] = max (t)\n", ""),
                    ("o[a b] = map mul($0, $1) (q, f)", "q0[a b] = repeat k (q)\n f[a b] = max (t)\n q1[a b] = map mul($0, $1) (q0, f)\n o[a b] = end (q1)"),
                ],
                1,
            ),
            ("the value is read under other names of dims", &[("(y, z)", "(y[b a n], z)")], 1),
            (
                "the fold is of the transposed value",
                &[("t[a b n] = map mul($0, $1) (y, z)", "t[b a n] = map mul($0, $1) (y, z)"), ("max (t)", "max (t[a b n])")],
                1,
            ),
        ],
    );
}

/// A step that reads what the group reads joins it if it could begin a group of the same rows.
#[test]
fn a_step_of_the_same_rows_shares_an_operand() {
    let shared = Base {
        float: Arithmetic::F32,
        sizes: "a 16 b 16 n 64",
        text: "
            x[a b n] = input
            m[a b] = max (x)
            t[a b n] = map tanh($0) (x)
            f[a b] = sum (t)
            e[a b n] = map exp(sub($0, $1)) (x, m)
            output e
            output f
        ",
        count: largest,
    };
    shared.check(4, &[("it leads to other rows", &[("f[a b] =", "f[a] =")], 2)]);
}
