//! Steps along rows that are not one launch: see [`meshwright_device::kernels::rows::row_groups`].

use super::{Base, Reason};
use meshwright_plan::Arithmetic;

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
    count: |_, decided| decided.fused.at.values().map(|group| group.steps.len()).max().unwrap_or(0),
};

const REASONS: &[Reason] = &[(
    "a collective frees an operand of the group",
    &[("s[b] = sum (e)", "g[b n] = all_reduce (x)\n s[b] = sum (e)"), ("output y", "output g\n output y")],
    2,
)];

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
    count: |_, decided| decided.fused.at.values().map(|group| group.steps.len()).max().unwrap_or(0),
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
