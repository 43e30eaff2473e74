//! Steps that a matmul does not compute: see [`meshwright_device::passes::epilogues`].

use super::{Base, Reason};
use meshwright_device::decisions::Decisions;
use meshwright_device::passes::epilogues::EpilogueKind;
use meshwright_plan::{Arithmetic, Plan};

pub(super) const SIZES: &str = "batch 16 d 64 e 64 h 128 k 3 seq 8";

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
        &[
            ("factors have different dtypes", &[("w[d h] =", "w:bf16[d h] =")], 0),
            ("the result has another dtype", &[("y[batch h] =", "y:bf16[batch h] =")], 0),
            ("the matmul has another dtype", &[("a[batch h] =", "a:bf16[batch h] =")], 0),
            ("the result is transposed", &[("y[batch h] =", "y[h batch] =")], 0),
            ("the function is none", &[("map relu(add($0, $1)) (a, b)", "map $0 (a)")], 0),
            (
                "the function is applied to both operands",
                &[("map relu(add($0, $1)) (a, b)", "map relu(add($0, $1)) (a, a)")],
                0,
            ),
            (
                "a loop adds the bias in each iteration",
                &[
                    ("y[batch h] =", "p0[batch h] = repeat k (q0)\n y[batch h] ="),
                    ("(q0, y)", "(p0, y)"),
                    ("output q1", "q2[batch h] = end (q1)\n output q2"),
                ],
                0,
            ),
        ],
    );
}

#[test]
fn a_matmul_applies_a_function_before_it_is_copied_to_another_order() {
    let base = Base {
        float: Arithmetic::F32,
        sizes: "batch 16 d 64 e 8 h 64",
        text: "
            x[batch e d] = input
            w[d h] = param
            a[batch e h] = contract (x, w)
            y[batch e h] = map relu($0) (a)
            o[batch e h] = map tanh($0) (y)
            output o
        ",
        count,
    };
    let copied = &[
        ("a[batch e h]", "a[batch h e]"),
        ("y[batch e h]", "y[batch h e]"),
        ("o[batch e h]", "o[batch h e]"),
    ];
    base.check(1, &[("rows are on both sides of the columns", copied, 0)]);
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
            (
                "the gelu has another dtype",
                &[
                    ("x[batch d] =", "x:bf16[batch d] ="),
                    ("w[d h] =", "w:bf16[d h] ="),
                    ("g[batch h] =", "g:bf16[batch h] ="),
                    ("mul($0, $1) (q0, g)", "mul($0, f32($1)) (q0, g)"),
                ],
                0,
            ),
            (
                "the gelu is part of a group of rows",
                &[
                    ("g[batch h] =", "k0[batch h] = repeat k (q0)\n k1[batch h] = map tanh($0) (k0)\n k2[batch h] = end (k1)\n g[batch h] ="),
                    ("q1[batch h] = map mul($0, $1) (q0, g)", "m[batch] = max (g)\n q1[batch h] = map mul(sub($0, $1), $2) (g, m, k2)"),
                ],
                0,
            ),
            ("the gelu is transposed", &[("g[batch h] =", "g[h batch] =")], 0),
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
    ("the sum is added to another value than a slice", &[("c[h] = slice seq (b1)", "c[h] = max (b1)")], 0),
    (
        "the sum goes into another stack",
        &[
            ("b0[seq h] = zeros", "b0[seq h] = zeros\n e0[seq h] = zeros"),
            (
                "f1[batch d], b1[seq h] = repeat seq (f0, b0)",
                "f1[batch d], b1[seq h], e1[seq h] = repeat seq (f0, b0, e0)",
            ),
            ("b2[seq h] = update seq (b1, s)", "e2[seq h] = update seq (e1, s)"),
            ("f3[batch d], b3[seq h] = end (f2, b2)", "f3[batch d], b3[seq h], e3[seq h] = end (f2, b1, e2)"),
            ("output b3", "output b3\n output e3"),
        ],
        0,
    ),
    (
        "something else reads what is stacked",
        &[
            ("i[d] = max (y)", "i[d] = max (y)\n l[] = max (s)"),
            ("mul($0, $1) (f1, i)", "mul(mul($0, $1), $2) (f1, i, l)"),
        ],
        0,
    ),
    (
        "a later loop reads each position",
        &[
            ("b0[seq h] = zeros", "b0[seq h] = blank"),
            ("c[h] = slice seq (b1)", ""),
            ("s[h] = map add($0, $1) (c, z)", ""),
            ("update seq (b1, s)", "update seq (b1, z)"),
            (
                "output b3",
                "l0[batch d] = repeat seq (f3)\n c[h] = slice seq (b3)\n l[] = max (c)\n l1[batch d] = map mul($0, $1) (l0, l)\n l2[batch d] = end (l1)\n output l2",
            ),
        ],
        0,
    ),
];

#[test]
fn what_adds_a_sum_to_a_stack_waits_for_the_matmul() {
    SUMS.check(1, SUM_REASONS);
    let first = SUMS.decided(
        "the sum is stacked as it is",
        &[
            ("c[h] = slice seq (b1)", ""),
            ("s[h] = map add($0, $1) (c, z)", ""),
            ("update seq (b1, s)", "update seq (b1, z)"),
        ],
    );
    assert_eq!(first, 1);
}

/// The gradient of a `relu` that a matmul computes.
const RELU: Base = Base {
    float: Arithmetic::F32,
    sizes: "batch 64 d 64 h 64 o 64 k 3",
    text: "
        x[batch d] = input
        g[batch o] = input
        w[d h] = param
        v[h o] = param
        u[h d] = param
        a[batch h] = contract (x, w)
        y[batch h] = map relu($0) (a)
        p[batch o] = contract (y, v)
        c[batch h] = contract (g, v)
        r[batch h] = map mul(f32(gt($1, 0)), $0) (c, y)
        q[batch d] = contract (r, u)
        output p
        output q
    ",
    count: |_, decided| {
        let reads_bits = |kind: &EpilogueKind| matches!(kind, EpilogueKind::ReluGrad { .. });
        decided.epilogues.at.values().filter(|e| reads_bits(&e.does)).count()
    },
};

#[test]
fn a_gradient_reads_the_bits_of_its_relu() {
    RELU.check(
        1,
        &[
            (
                "the matmul only adds a bias",
                &[
                    ("map relu($0) (a)", "map add($0, $1) (a, b)"),
                    ("w[d h] = param", "w[d h] = param\n b[h] = param"),
                ],
                0,
            ),
            ("another function of the result", &[("mul(f32(gt($1, 0)), $0)", "mul($1, $0)")], 0),
            ("the result is read under other names of dims", &[("(c, y)", "(c, y[h batch])")], 0),
            (
                "a loop computes the gradient in each iteration",
                &[
                    ("c[batch h] =", "g0[batch o] = repeat k (g)\n c[batch h] ="),
                    ("contract (g, v)", "contract (g0, v)"),
                    ("q[batch d] =", "z[batch o] = contract (r, v)\n g1[batch o] = end (z)\n q[batch d] ="),
                    ("contract (r, u)", "contract (g1, v[d o])"),
                ],
                0,
            ),
        ],
    );
    let two = RELU.decided(
        "two gradients",
        &[
            ("q[batch d] =", "e[batch h] = contract (p, v)\n s[batch h] = map mul(f32(gt($1, 0)), $0) (e, y)\n t[batch d] = contract (s, u)\n q[batch d] ="),
            ("output p", "output t"),
        ],
    );
    assert_eq!(two, 1, "the bits end with the first gradient");
}

/// `gelu` by `tanh` and its gradient: of the cotangent `$0` and the operand `$1`.
const GELU_GRAD: &str = "add(add(mul(mul(mul(0.3989422804014327, $0), $1), SLOPE), mul(mul(mul(mul(mul(0.053516112204450184, $0), $1), SLOPE), $1), $1)), mul(mul(0.5, $0), add(1, TANH)))";
const SLOPE: &str = "add(1, neg(mul(TANH, TANH)))";
const TANH: &str = "tanh(mul(0.7978845608028654, add($1, mul(mul(mul(0.044715, $1), $1), $1))))";

#[test]
fn a_gradient_of_gelu_reads_its_operand() {
    let gradient = GELU_GRAD.replace("SLOPE", SLOPE).replace("TANH", TANH).replace("$1", "f32($1)");
    let text = "
        g[batch o] = input
        z[batch h] = input
        v[h o] = param
        c[batch h] = contract (g, v)
        r[batch h] = map GRADIENT (c, z)
        q[batch o] = contract (r, v)
        output q
    ";
    let text = text.replace("GRADIENT", &gradient);
    let base = Base { float: Arithmetic::F32, sizes: "batch 64 o 64 h 64", text: text.leak(), count };
    base.check(
        1,
        &[
            ("the operand lacks a dim", &[("z[batch h] =", "z[h] =")], 0),
            ("the operand is read under other names of dims", &[("(c, z)", "(c, z[h batch])")], 0),
            ("the operand has another dtype", &[("z[batch h] =", "z:bf16[batch h] =")], 0),
            ("the matmul is its own operand", &[("(c, z)", "(c, c)")], 0),
        ],
    );
}

/// A matmul of codes of FP8 has no gradient of `gelu`.
#[test]
fn a_matmul_of_codes_has_few_epilogues() {
    let gradient = GELU_GRAD.replace("SLOPE", SLOPE).replace("TANH", TANH);
    let text = "
        g[batch o] = input
        z[batch h] = input
        v[h o] = param
        i[] = input
        k:bf16[batch o] = map mul($0, $1) (g, i)
        l:bf16[h o] = map mul($0, $1) (v, i)
        c[batch h] = contract (k, l)
        r[batch h] = map GRADIENT (c, z)
        q[batch o] = contract (r, v)
        output q
    ";
    let text = text.replace("GRADIENT", &gradient);
    let base = Base { float: Arithmetic::FP8, sizes: "batch 64 o 64 h 64", text: text.leak(), count };
    let rounds = |at: &str| format!("map bf16(mul(round_e4m3(mul($0, $1)), $1)) {at}");
    let (k, l) = (rounds("(g, i)"), rounds("(v, i)"));
    let codes = [("map mul($0, $1) (g, i)", &k[..]), ("map mul($0, $1) (v, i)", &l[..])];
    assert_eq!([base.decided("numbers", &[]), base.decided("codes", &codes)], [1, 0]);
}

/// A matmul sums a factor after it has run.
#[test]
fn a_matmul_sums_its_factor_in_its_iteration_and_its_order() {
    let base = Base {
        float: Arithmetic::F32,
        sizes: SIZES,
        text: "
            x[batch d k] = input
            g[batch h] = input
            q[d k] = input
            y[d k h] = contract (x, g)
            z[d k] = sum (x)
            o[d k] = map mul($0, $1) (q, z)
            output y
            output o
        ",
        count,
    };
    base.check(
        1,
        &[
            (
                "a loop sums it in each iteration",
                &[
                    ("z[d k] =", "q0[d k] = repeat seq (q)\n z[d k] ="),
                    ("(q, z)", "(q0, z)"),
                    ("output o", "o1[d k] = end (o)\n output o1"),
                ],
                0,
            ),
            ("the sums have another order of dims", &[("z[d k] =", "z[k d] =")], 0),
            ("the sums have another dtype", &[("z[d k] =", "z:bf16[d k] =")], 0),
        ],
    );
}
