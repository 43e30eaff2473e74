//! Factors that are not known to be rounded: see [`meshwright_device::passes::rounded_factors`].

use super::{Base, Reason};
use meshwright_device::kernels::matmul::FactorDigits;
use meshwright_plan::{Arithmetic, Prim};

/// Both factors are rounded.
const ROUNDED: Base = Base {
    float: Arithmetic::TF32,
    sizes: "batch 16 d 64 h 128 k 3",
    text: "
        x[batch d] = input
        w[d h] = param
        u[batch d] = map tf32($0) (x)
        v[d h] = map tf32($0) (w)
        y[batch h] = contract (u, v)
        output y
    ",
    // Matmuls on tensor cores.
    count: |plan, decided| {
        let contracts = plan.steps.iter().filter(|s| matches!(s.prim, Prim::Contract));
        let factors = contracts.map(|s| [s.reads[0].buf, s.reads[1].buf]);
        factors.filter(|both| decided.digits(*both) == FactorDigits::Tf32).count()
    },
};

const REASONS: &[Reason] = &[
    (
        "a sum of rounded numbers over devices",
        &[("v[d h] =", "r[d h] ="), ("y[batch h] =", "v[d h] = all_reduce (r)\n y[batch h] =")],
        0,
    ),
    (
        "a shift fills in another number than 0",
        &[("v[d h] =", "r[d h] ="), ("y[batch h] =", "v[d h] = shift d 0.3 (r)\n y[batch h] =")],
        0,
    ),
    ("another function writes it", &[("v[d h] = map tf32($0) (w)", "v[d h] = map mul($0, 2) (w)")], 0),
];

#[test]
fn numbers_are_rounded_if_all_that_write_them_round() {
    ROUNDED.check(1, REASONS);
}

/// What moves rounded numbers keeps them so.
#[test]
fn what_moves_numbers_keeps_them_rounded() {
    let through = |step: &str| {
        let step = format!("{step}\n y[batch h] =");
        ROUNDED.decided("moved", &[("v[d h] =", "r[d h] ="), ("y[batch h] =", &step)])
    };
    assert_eq!(through("v[d h] = shift d 0 (r)"), 1);
    assert_eq!(through("v[d h] = copy (r)"), 1);
}

/// A program of `f32` that rounds a number keeps all digits of products.
#[test]
fn matmuls_of_other_programs_have_all_digits() {
    assert_eq!(Base { float: Arithmetic::F32, ..ROUNDED }.decided("f32", &[]), 0);
}
