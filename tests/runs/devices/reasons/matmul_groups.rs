//! Matmuls that stay apart although they share a factor: see [`meshwright_device::kernels::matmul_group::matmul_groups`].

use super::{Base, Reason};
use meshwright_device::kernels::Kernel;
use meshwright_plan::Arithmetic;

/// Two matmuls of one factor.
const PAIR: Base = Base {
    float: Arithmetic::F32,
    sizes: "b 16 d 64 h 64 k 3 one 1 seq 8",
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
    count: |_, decided| {
        let all = decided.fused.at.values();
        all.filter(|group| matches!(group.call.kernel, Kernel::MatmulGroup(_))).count()
    },
};

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
];

#[test]
fn matmuls_of_one_factor_are_one_launch_unless_something_is_in_between() {
    PAIR.check(1, REASONS);
}
