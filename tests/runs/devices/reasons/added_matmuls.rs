//! Matmuls that are not added to a value in its memory: see [`meshwright_device::passes::epilogues`].

use super::Base;
use super::epilogues::SIZES;
use meshwright_plan::Arithmetic;

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
            (
                "the sum is part of a group of rows",
                &[
                    ("p[batch h] = map tanh($0) (z)", "y[batch d] = input\n p[batch h] = contract (y, w)"),
                    (
                        "r[batch h] = map tanh($0) (s)",
                        "m[batch] = max (s)\n r[batch h] = map sub($0, $1) (s, m)",
                    ),
                ],
                0,
            ),
            ("the sum is transposed", &[("s[batch h] =", "s[h batch] =")], 0),
            ("the value is an output", &[("output r", "output p\n output r")], 0),
            ("the matmul is an output", &[("output r", "output a\n output r")], 0),
        ],
    );
}

/// A matmul is added to a value, and sums a factor.
#[test]
fn a_matmul_that_is_added_sums_one_factor() {
    let base = Base {
        float: Arithmetic::F32,
        sizes: SIZES,
        text: "
            x[batch d] = input
            g[batch h] = input
            z[d h] = input
            p[d h] = map tanh($0) (z)
            a[d h] = contract (x, g)
            s[d h] = map add($0, $1) (a, p)
            r[d h] = map tanh($0) (s)
            t[h] = sum (g)
            output r
            output t
        ",
        count: |_, decided| decided.epilogues.at.values().map(|e| e.others().count()).sum(),
    };
    assert_eq!(base.decided("one sum", &[]), 2);
    assert_eq!(base.decided("two sums", &[("output r", "u[d] = sum (x)\n output u\n output r")]), 2);
}

/// In a loop a matmul is added to a slice behind it.
const ADDED_SLICE: Base = Base {
    float: Arithmetic::F32,
    sizes: SIZES,
    text: "
        x[batch d] = input
        t[seq batch h] = input
        w[d h] = param
        u[h d] = param
        x0[batch d] = repeat seq (x)
            a[batch h] = contract (x0, w)
            v[batch h] = slice seq (t)
            s[batch h] = map add($0, $1) (a, v)
            c[batch d] = contract (s, u)
            x1[batch d] = all_reduce (c)
        x2[batch d] = end (x1)
        output x2
    ",
    count: |_, decided| decided.epilogues.added.len(),
};

#[test]
fn a_matmul_is_added_to_a_slice_that_is_there_before() {
    ADDED_SLICE.check(
        1,
        &[
            (
                "the stack arrives after the matmul",
                &[
                    ("a[batch h] =", "g[seq batch h] = start 0 all_reduce (t)\n a[batch h] ="),
                    ("v[batch h] = slice seq (t)", "wait 0 (g)\n v[batch h] = slice seq (g)"),
                ],
                0,
            ),
            (
                "the stack is computed after the matmul",
                &[("v[batch h] = slice seq (t)", "g[seq batch h] = map tanh($0) (t)\n v[batch h] = slice seq (g)")],
                0,
            ),
            (
                "an earlier loop has left the values",
                &[
                    ("t[seq batch h] = input", "z[batch h] = input\n t0[seq batch h] = blank\n z0[batch h], t1[seq batch h] = repeat seq (z, t0)\n z1[batch h] = map tanh($0) (z0)\n t2[seq batch h] = update seq (t1, z1)\n z2[batch h], t[seq batch h] = end (z1, t2)"),
                    ("output x2", "output z2\n output x2"),
                ],
                0,
            ),
        ],
    );
}
