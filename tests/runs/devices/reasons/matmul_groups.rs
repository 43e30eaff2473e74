//! Matmuls that stay apart although they share a factor: see [`meshwright_device::kernels::matmul_group::matmul_groups`].

use super::{Base, Reason};
use meshwright_device::decisions::Decisions;
use meshwright_device::kernels::Kernel;
use meshwright_plan::{Arithmetic, Plan};

/// Two matmuls of one factor.
const PAIR: Base = Base {
    float: Arithmetic::F32,
    sizes: SIZES,
    text: "
        x[b d] = input
        z[b h] = input
        w[d h] = param
        u[d h] = param
        v1[d h] = map tanh($0) (w)
        v2[d h] = map tanh($0) (u)
        p[b h] = contract (x, v1)
        q[b h] = contract (x, v2)
        y[b h] = map mul($0, $1) (p, q)
        m[b] = max (y)
        output m
    ",
    count,
};

const SIZES: &str = "b 64 d 64 h 64 k 3 seq 8";

fn count(_: &Plan, decided: &Decisions) -> usize {
    let all = decided.fused.at.values();
    all.filter(|group| matches!(group.call.kernel, Kernel::MatmulGroup(_))).count()
}

const REASONS: &[Reason] = &[
    (
        "a loop is in between",
        &[
            (
                "q[b h] =",
                "l0[b h] = repeat k (z)\n l1[b h] = map tanh($0) (l0)\n l2[b h] = end (l1)\n q[b h] =",
            ),
            ("mul($0, $1) (p, q)", "mul(mul($0, $1), $2) (p, q, l2)"),
        ],
        0,
    ),
    (
        "a wait is in between",
        &[
            ("p[b h] =", "g[b h] = start 0 all_reduce (z)\n p[b h] ="),
            ("q[b h] =", "wait 0 (g)\n q[b h] ="),
            ("mul($0, $1) (p, q)", "mul(mul($0, $1), $2) (p, q, g)"),
        ],
        0,
    ),
    (
        "a collective frees a factor",
        &[("q[b h] =", "g[d h] = all_reduce (v1)\n q[b h] ="), ("output m", "output g\n output m")],
        0,
    ),
    (
        "a loop computes one of them",
        &[
            ("q[b h] =", "l0[b h] = repeat k (z)\n q[b h] ="),
            ("map mul($0, $1) (p, q)", "map mul(mul($0, $1), $2) (p, q, l0)"),
            ("m[b] =", "l1[b h] = end (y)\n m[b] ="),
            ("max (y)", "max (l1)"),
        ],
        0,
    ),
    ("factors have different dtypes", &[("v1[d h] =", "v1:bf16[d h] ="), ("v2[d h] =", "v2:bf16[d h] =")], 0),
    (
        "a group of rows reads one of them before the other",
        &[
            (
                "q[b h] =",
                "m0[b] = max (p)\n e[b h] = map sub($0, $1) (p, m0)\n t[h b] = map tanh($0) (e)\n q[b h] =",
            ),
            ("(p, q)", "(t, q)"),
        ],
        0,
    ),
    (
        "what reads one of them waits for a group of rows",
        &[
            (
                "q[b h] =",
                "m0[b] = max (z)\n t[h b] = map mul($0, $1) (p, m0)\n e[b h] = map sub($0, $1) (z, m0)\n q[b h] =",
            ),
            ("map mul($0, $1) (p, q)", "map mul(mul($0, $1), $2) (t, q, e)"),
        ],
        0,
    ),
    (
        "a collective gives a factor",
        &[("v1[d h] = map tanh($0) (w)", "v[d h] = map tanh($0) (w)\n v1[d h] = all_reduce (v)")],
        0,
    ),
    ("results are rounded", &[("p[b h] =", "p:bf16[b h] ="), ("q[b h] =", "q:bf16[b h] =")], 0),
    (
        "one of them multiplies the factor with itself",
        &[
            ("x[b d] = input", "i[b d] = input\n x[b d] = map tanh($0) (i)"),
            ("p[b h] = contract (x, v1)", "p[b h] = contract (x, x[h d])"),
            ("v1[d h] = map tanh($0) (w)", ""),
            ("v2[d h] =", "v2[h d] ="),
            ("u[d h] =", "u[h d] ="),
            ("w[d h] = param", ""),
        ],
        0,
    ),
    (
        "factors are rounded to 8 bits",
        &[
            (
                "x[b d] = input",
                "i:bf16[b d] = input\n o[] = input\n x:bf16[b d] = map bf16(mul(round_e4m3(mul(f32($0), $1)), $1)) (i, o)",
            ),
            (
                "v1[d h] = map tanh($0) (w)",
                "v1:bf16[d h] = map bf16(mul(round_e4m3(mul($0, $1)), $1)) (w, o)",
            ),
            (
                "v2[d h] = map tanh($0) (u)",
                "v2:bf16[d h] = map bf16(mul(round_e4m3(mul($0, $1)), $1)) (u, o)",
            ),
        ],
        0,
    ),
];

#[test]
fn matmuls_of_one_factor_are_one_launch_unless_something_is_in_between() {
    PAIR.check(1, REASONS);
    let other = |sizes, text: String| Base { sizes, text: text.leak(), ..PAIR }.decided("other", &[]);
    assert_eq!(other(SIZES, PAIR.text.replace('[', ":f64[")), 0, "numbers are `f64`");
    let turned = PAIR.text.replace("d h]", "h d]");
    assert_eq!(other(SIZES, turned.clone()), 1, "factors lie by columns");
    assert_eq!(other("b 16 d 64 h 6", turned), 0, "rows of the results have 24 bytes");
}

/// Two groups.
#[test]
fn a_step_waits_for_one_group() {
    let two = Base {
        float: Arithmetic::F32,
        sizes: SIZES,
        text: "
            x[b d] = input
            z[b d] = input
            w[d h] = param
            v1[d h] = map tanh($0) (w)
            v2[d h] = map exp($0) (w)
            v3[d h] = map sin($0) (w)
            v4[d h] = map cos($0) (w)
            p1[b h] = contract (x, v1)
            q1[b h] = contract (z, v3)
            t[b h] = map mul($0, $0) (p1)
            p2[b h] = contract (x, v2)
            q2[b h] = contract (z, v4)
            y[b h] = map add(add($0, $1), add($2, $3)) (t, q1, p2, q2)
            m[b] = max (y)
            output m
        ",
        count,
    };
    two.check(2, &[("it reads results of both", &[("mul($0, $0) (p1)", "mul($0, $1) (p1, q1)")], 1)]);
}

/// In the body of a loop.
#[test]
fn matmuls_of_a_group_are_in_one_turn_and_have_computed_factors() {
    let inside = Base {
        float: Arithmetic::F32,
        sizes: SIZES,
        text: "
            x[b d] = input
            z[b h] = input
            w[seq d h] = param
            u[seq d h] = param
            z0[b h], e0[b h] = repeat seq (z, z)
                k1[d h] = slice seq (w)
                v1[d h] = map tanh($0) (k1)
                k2[d h] = slice seq (u)
                v2[d h] = map tanh($0) (k2)
                p[b h] = contract (x, v1)
                z1[b h] = map mul($0, $1) (z0, p)
                q[b h] = contract (x, v2)
                e1[b h] = map mul($0, $1) (e0, q)
            z2[b h], e2[b h] = end (z1, e1)
            output z2
            output e2
        ",
        count,
    };
    inside.check(
        1,
        &[
            (
                "factors are slices",
                &[
                    ("(x, v1)", "(x, k1)"),
                    ("(x, v2)", "(x, k2)"),
                    ("v1[d h] = map tanh($0) (k1)", ""),
                    ("v2[d h] = map tanh($0) (k2)", ""),
                ],
                0,
            ),
            (
                "one of them runs a turn later",
                &[
                    ("k2[d h] = slice seq (u)", "k2[d h] = slice seq (u) lag 1"),
                    ("map tanh($0) (k2)", "map tanh($0) (k2) lag 1"),
                    ("contract (x, v2)", "contract (x, v2) lag 1"),
                    ("(e0, q)", "(e0, q) lag 1"),
                ],
                0,
            ),
            (
                "a step in between runs a turn later",
                &[
                    (
                        "q[b h] = contract (x, v2)",
                        "f[b h] = map tanh($0) (e0) lag 1\n q[b h] = contract (x, v2)",
                    ),
                    ("e1[b h] = map mul($0, $1) (e0, q)", "e1[b h] = map mul($0, $0) (f) lag 1"),
                    (
                        "z2[b h], e2[b h] = end (z1, e1)",
                        "z3[b h] = map mul($0, $1) (z1, q)\n z2[b h], e2[b h] = end (z3, e1)",
                    ),
                ],
                0,
            ),
        ],
    );
}

/// Both matmuls have a bias.
const BIASED: Base = Base {
    float: Arithmetic::BF16,
    sizes: SIZES,
    text: "
        x:bf16[b d] = input
        w[d h] = param
        b1[h] = input
        b2[h] = input
        v1:bf16[d h] = map tanh($0) (w)
        v2:bf16[d h] = map exp($0) (w)
        p[b h] = contract (x, v1)
        y1[b h] = map add($0, $1) (p, b1)
        q[b h] = contract (x, v2)
        y2[b h] = map add($0, $1) (q, b2)
        y[b h] = map mul(f32($0), f32($1)) (y1, y2)
        m[b] = max (y)
        output m
    ",
    count,
};

#[test]
fn biases_of_a_group_have_the_dtype_of_the_results() {
    BIASED.check(
        1,
        &[(
            "sums have another dtype",
            &[("y1[b h] =", "y1:bf16[b h] ="), ("y2[b h] =", "y2:bf16[b h] =")],
            0,
        )],
    );
}

/// A matmul of a group with biases has no other epilogue.
#[test]
fn a_matmul_of_a_group_sums_no_factor_besides() {
    let count = |_: &Plan, decided: &Decisions| decided.epilogues.at.len();
    let sums = Base { count, ..BIASED };
    assert_eq!(sums.decided("sums", &[("output m", "s[b] = sum (x)\n output s\n output m")]), 0);
}

/// A loop slices the biases.
#[test]
fn biases_of_a_group_are_there_before_it() {
    let sliced = Base {
        float: Arithmetic::F32,
        sizes: SIZES,
        text: "
            x[b d] = input
            w[d h] = param
            u[h d] = param
            b1[seq h] = input
            b2[seq h] = input
            v1[d h] = map tanh($0) (w)
            v2[d h] = map exp($0) (w)
            x0[b d] = repeat seq (x)
                c1[h] = slice seq (b1)
                c2[h] = slice seq (b2)
                p[b h] = contract (x0, v1)
                q[b h] = contract (x0, v2)
                y1[b h] = map add($0, $1) (p, c1)
                y2[b h] = map add($0, $1) (q, c2)
                y[b h] = map mul($0, $1) (y1, y2)
                f[b d] = contract (y, u)
                x1[b d] = all_reduce (f)
            x2[b d] = end (x1)
            output x2
        ",
        count,
    };
    sliced.check(
        1,
        &[(
            "slices come after the matmuls",
            &[
                ("c1[h] = slice seq (b1)\n", ""),
                ("c2[h] = slice seq (b2)\n", ""),
                ("y1[b h] =", "c1[h] = slice seq (b1)\n c2[h] = slice seq (b2)\n y1[b h] ="),
            ],
            0,
        )],
    );
}

/// A factor of both that each sums would be summed twice.
#[test]
fn matmuls_sum_no_factor_that_they_share() {
    let shared = Base {
        float: Arithmetic::F32,
        // Rows of so many numbers are not one launch with their sums.
        sizes: "b 64 d 64 h 65536",
        text: "
            x[b d] = input
            g[b h] = input
            x1[b d] = map tanh($0) (x)
            x2[b d] = map exp($0) (x)
            p[d h] = contract (x1, g)
            q[d h] = contract (x2, g)
            y[d h] = map mul($0, $1) (p, q)
            m[d] = max (y)
            output m
        ",
        count,
    };
    shared.check(1, &[("both sum it", &[("output m", "s[h] = sum (g)\n t[h] = sum (g)\n n[] = max (s)\n o[] = max (t)\n output n\n output o\n output m")], 0)]);
}
