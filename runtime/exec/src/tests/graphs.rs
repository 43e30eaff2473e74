//! The graphs of devices as text.

use super::plans::Builder;
use crate::{CpuBackend, burn_graphs};
use meshwright_plan::{Axis, DType, Mesh, Monoid, ProgramInputKind};

#[test]
fn a_product_its_partial_sum_and_what_ends_are_shown() {
    let mesh = Mesh::new([("a", 2)]);
    let a = [Axis(0)];
    let mut b = Builder::new(&mesh);
    let [rows, inner, columns] = [b.dim("rows", 4), b.dim("inner", 6), b.dim("columns", 3)];
    let x = b.split(DType::F32, &[(rows, &[]), (inner, &a)]);
    let w = b.split(DType::F32, &[(inner, &a), (columns, &[])]);
    let partial = b.whole(DType::F32, &[rows, columns]);
    b.leaf(ProgramInputKind::Param, "x", &x);
    b.leaf(ProgramInputKind::Param, "w", &w);
    b.contract("product", &x, &w, &partial);
    let sum = b.all_reduce("sum", Monoid::Sum, &a, &[&partial]).remove(0);
    let twice = b.like(&sum);
    b.map("twice", &[&sum], &twice, |e, loads| {
        e.binary(meshwright_plan::expr::BinaryFn::Add, loads[0], loads[0])
    });
    b.output("y", &twice);
    let plan = b.finish();
    assert_eq!(
        burn_graphs(&plan, 1, CpuBackend::Native).unwrap(),
        "\
rank 1 of 2: 2 segments with 2 operations (2 kernels), 1 collective
b: buffer of the plan, t: temporary, *: ends here

b0 f32[4, 3] = x
b1 f32[3, 3] = w

segment 0: 1 operation
  step 0: contract of product, line 10
      product(b0 f32[4, 3], b1 f32[3, 3]) -> b2 f32[4, 3]

collective 1: all_reduce of ranks [0, 1]
  step 1: all_reduce of sum, line 11
      all_reduce sum(b2* f32[4, 3]) -> b3 f32[4, 3]

segment 2: 1 operation
  step 2: map of twice, line 12
      map(b3* f32[4, 3]) -> b4 f32[4, 3]
"
    );
}
