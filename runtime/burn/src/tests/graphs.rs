//! The graphs of devices as text.

use super::plans::Builder;
use meshwright_device::target::Target;
use meshwright_device::text::text;
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
        text(&plan, &meshwright_device::compile(&plan, 1, Target::cpu()).unwrap(), true),
        "\
rank 1 of 2 on cpu: 2 kernels (0 operations of Burn), 1 collective
132 bytes read, 96 written, 84 flops; arena 0 bytes, peak 132
b: buffer of the plan, i: indices, k: constant, t: temporary, *: ends, @: place in the arena

b0 f32[4, 3] = x
b1 f32[3, 3] = w

0 matmul [0 contract of product, line 10] b0 f32[4, 3], b1 f32[3, 3] -> b2 f32[4, 3] | 84 + 48 bytes, 72 flops
1 all_reduce [1 all_reduce of sum, line 11] of ranks [0, 1]
    all_reduce sum b2* f32[4, 3] -> b3 f32[4, 3]
2 map [2 map of twice, line 12] b3* f32[4, 3] -> b4 f32[4, 3] | 48 + 48 bytes, 12 flops
"
    );
}
