//! Steps that a matmul does not compute: see [`meshwright_device::passes::epilogues`].

use super::{Base, Reason};
use meshwright_device::decisions::Decisions;
use meshwright_device::passes::epilogues::EpilogueKind;
use meshwright_plan::{Arithmetic, Plan};

const SIZES: &str = "batch 16 d 64 e 64 h 128 k 3 seq 8";

fn count(_: &Plan, decided: &Decisions) -> usize {
    decided.epilogues.at.len()
}

/// A bias and `relu`.
const BIAS: Base = Base {
    float: Arithmetic::F32,
    sizes: SIZES,
    text: "
        x[batch d] = input
        q0[batch h] = input
        w[d h] = param
        b[h] = param
        a[batch h] = contract (x, w)
        y[batch h] = map relu(add($0, $1)) (a, b)
        q1[batch h] = map mul($0, $1) (q0, y)
        output q1
    ",
    count,
};

#[test]
fn a_matmul_adds_a_bias_in_its_own_iteration() {
    BIAS.check(
        1,
        &[(
            "a loop adds the bias in each iteration",
            &[
                ("y[batch h] =", "p0[batch h] = repeat k (q0)\n y[batch h] ="),
                ("(q0, y)", "(p0, y)"),
                ("output q1", "q2[batch h] = end (q1)\n output q2"),
            ],
            0,
        )],
    );
}

/// A loop slices an operand of the epilogue behind the matmul. The sum over devices keeps the steps in the order of the Plan.
const SLICED: Base = Base {
    float: Arithmetic::F32,
    sizes: SIZES,
    text: "
        x[batch d] = input
        s[seq h] = input
        w[d h] = param
        u[h d] = param
        x0[batch d] = repeat seq (x)
            a[batch h] = contract (x0, w)
            v[h] = slice seq (s)
            y[batch h] = map relu(add($0, $1)) (a, v)
            c[batch d] = contract (y, u)
            x1[batch d] = all_reduce (c)
        x2[batch d] = end (x1)
        output x2
    ",
    count,
};

#[test]
fn a_slice_comes_before_a_matmul_that_reads_it() {
    SLICED.check(
        1,
        &[
            (
                "something else reads the stack, and may end it",
                &[("output x2", "t[seq] = sum (s)\n output t\n output x2")],
                0,
            ),
            (
                "something else reads the slice",
                &[(
                    "x1[batch d] = all_reduce (c)",
                    "z[] = sum (v)\n o[batch d] = map add($0, $1) (c, z)\n x1[batch d] = all_reduce (o)",
                )],
                0,
            ),
            (
                "the stack is computed after the matmul",
                &[("v[h] = slice seq (s)", "m[seq h] = map mul($0, 2) (s)\n v[h] = slice seq (m)")],
                0,
            ),
        ],
    );
}

/// `gelu` of a matmul with a bias, whose sum the output reads too.
const KEPT: Base = Base {
    float: Arithmetic::F32,
    sizes: SIZES,
    text: "
        x[batch d] = input
        q0[batch h] = input
        w[d h] = param
        b[h] = param
        a[batch h] = contract (x, w)
        p[batch h] = map add($0, $1) (a, b)
        g[batch h] = map mul(mul(0.5, $0), add(1, tanh(mul(0.7978845608, add($0, mul(mul(mul($0, $0), $0), 0.044715)))))) (p)
        q1[batch h] = map mul($0, $1) (q0, g)
        r[batch] = max (p)
        output r
        output q1
    ",
    count: |_, decided| {
        let keeps = |kind: &EpilogueKind| matches!(kind, EpilogueKind::GeluKeeping { .. });
        decided.epilogues.at.values().filter(|e| keeps(&e.does)).count()
    },
};

#[test]
fn a_gelu_is_computed_with_its_sum_in_one_iteration() {
    KEPT.check(
        1,
        &[
            (
                "a loop computes the gelu in each iteration",
                &[
                    ("g[batch h] =", "p0[batch h] = repeat k (q0)\n g[batch h] ="),
                    ("(q0, g)", "(p0, g)"),
                    ("r[batch] =", "q2[batch h] = end (q1)\n r[batch] ="),
                    ("output q1", "output q2"),
                ],
                0,
            ),
            ("another function of the sum", &[("mul(mul($0, $0), $0)", "mul($0, $0)")], 0),
        ],
    );
}

/// A matmul sums its factor. Its sum is added to a stack before the matmul runs.
const SUMS: Base = Base {
    float: Arithmetic::F32,
    sizes: SIZES,
    text: "
        x[batch d] = input
        g[batch h] = input
        f0[batch d] = input
        b0[seq h] = zeros
        f1[batch d], b1[seq h] = repeat seq (f0, b0)
            z[h] = sum (g)
            c[h] = slice seq (b1)
            s[h] = map add($0, $1) (c, z)
            b2[seq h] = update seq (b1, s)
            y[d h] = contract (x, g)
            i[d] = max (y)
            f[batch d] = map mul($0, $1) (f1, i)
            f2[batch d] = all_reduce (f)
        f3[batch d], b3[seq h] = end (f2, b2)
        output f3
        output b3
    ",
    count,
};

const SUM_REASONS: &[Reason] = &[
    (
        "the sum is in a loop, and the matmul is not",
        &[
            ("z[h] = sum (g)", "c0[h] = slice seq (b1)\n k0[h] = repeat k (c0)\n z[h] = sum (g)"),
            ("c[h] = slice seq (b1)\n", ""),
            ("s[h] = map add($0, $1) (c, z)", "k1[h] = map add($0, $1) (k0, z)\n s[h] = end (k1)"),
        ],
        0,
    ),
    (
        "what the sum is added to ends before the matmul",
        &[
            ("b2[seq h] =", "l[] = max (c)\n b2[seq h] ="),
            ("mul($0, $1) (f1, i)", "mul(mul($0, $1), $2) (f1, i, l)"),
        ],
        0,
    ),
    (
        "something reads the stack before the matmul",
        &[
            ("y[d h] =", "l[h] = slice seq (b2)\n l0[] = max (l)\n y[d h] ="),
            ("mul($0, $1) (f1, i)", "mul(mul($0, $1), $2) (f1, i, l0)"),
        ],
        0,
    ),
    ("the sum is added to another value than a slice", &[("c[h] = slice seq (b1)", "c[h] = max (x)")], 0),
];

#[test]
fn what_adds_a_sum_to_a_stack_waits_for_the_matmul() {
    SUMS.check(1, SUM_REASONS);
}

/// A matmul is added to a value that ends there.
const ADDED: Base = Base {
    float: Arithmetic::F32,
    sizes: SIZES,
    text: "
        x[batch d] = input
        z[batch h] = input
        w[d h] = param
        p[batch h] = map tanh($0) (z)
        a[batch h] = contract (x, w)
        s[batch h] = map add($0, $1) (a, p)
        r[batch h] = map tanh($0) (s)
        output r
    ",
    count: |_, decided| decided.epilogues.added.len(),
};

#[test]
fn a_matmul_is_added_to_what_is_there() {
    ADDED.check(
        1,
        &[
            (
                "the value arrives after the matmul",
                &[
                    (
                        "p[batch h] = map tanh($0) (z)",
                        "p0[batch h] = map tanh($0) (z)\n p[batch h] = start 0 all_reduce (p0)",
                    ),
                    ("s[batch h] =", "wait 0 (p)\n s[batch h] ="),
                ],
                0,
            ),
            (
                "the value is computed after the matmul",
                &[
                    ("p[batch h] = map tanh($0) (z)\n", ""),
                    ("s[batch h] =", "p[batch h] = map tanh($0) (z)\n s[batch h] ="),
                ],
                0,
            ),
            (
                "a loop adds it in each iteration",
                &[
                    ("p[batch h] = map tanh($0) (z)\n", ""),
                    (
                        "s[batch h] =",
                        "q0[batch h] = repeat k (z)\n p[batch h] = map tanh($0) (q0)\n s[batch h] =",
                    ),
                    ("output r", "q1[batch h] = end (r)\n output q1"),
                ],
                0,
            ),
            ("the value is an output", &[("output r", "output p\n output r")], 0),
            ("the matmul is an output", &[("output r", "output a\n output r")], 0),
        ],
    );
}
