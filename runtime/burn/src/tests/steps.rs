//! Steps with global indices, pairs, and slices, on split values.

use super::plans::Builder;
use super::{close, cluster, no_inputs, noise, noise_tensor, tensor, whole_inputs};
use crate::dtypes::check as check_dtypes;
use meshwright_exec::HostData;
use meshwright_plan::expr::{BinaryFn, Scalar};
use meshwright_plan::{Axis, DType, Mesh, Monoid, Plan, Prim, ProgramInputKind};
use meshwright_sorted::SortedMap;
use std::sync::Arc;

const A: [Axis; 1] = [Axis(0)];

#[test]
fn argmax_over_a_split_dim_gives_the_lowest_global_index() {
    for devices in [1, 2, 3, 5] {
        let mesh = Mesh::new([("a", devices)]);
        let mut b = Builder::new(&mesh);
        let (n, c) = (b.dim("n", 3), b.dim("c", 4));
        let x = b.split(DType::F32, &[(n, &[]), (c, &A)]);
        let pairs = b.whole(DType::PairF32, &[n]);
        b.leaf(ProgramInputKind::Param, "x", &x);
        b.reduce("best", Monoid::ArgMax, &x, &pairs);
        let best = b.all_reduce("best", Monoid::ArgMax, &A, &[&pairs]).remove(0);
        b.output("best", &best);
        let mut cluster = cluster(&mesh);
        let program = cluster.load(Arc::new(b.finish())).unwrap();
        let values = vec![1., 2., 2., 0., 9., 9., 9., 9., -3., -4., -2., -2.];
        cluster.set_state("x", &tensor(DType::F32, &[3, 4], values)).unwrap();
        let outputs = cluster.run(program, 1, &no_inputs()).unwrap().outputs;
        let HostData::PairF32(found) = &outputs["best"].data else { panic!("pairs") };
        let found: Vec<_> = found.iter().map(|p| (p.value, p.index)).collect();
        assert_eq!(found, [(2., 1), (9., 0), (-2., 2)], "{devices} devices");
    }
}

/// An embedding whose table is split: lookups outside of a device's part give zeros, which are summed; its gradient.
#[test]
fn lookup_and_scatter_in_a_split_table() {
    let (vocab, width) = (5, 3);
    let table = noise_tensor(DType::F64, &[vocab, width], 1);
    let ids = [4.0, 0.0, 2.0, 2.0, 4.0, 1.0];
    let seed = noise(2, 6 * width);
    let mut rows = vec![0.0; vocab * width];
    let mut looked_up = vec![];
    for (i, id) in ids.iter().enumerate() {
        for k in 0..width {
            looked_up.push(table.data.to_f64()[*id as usize * width + k]);
            rows[*id as usize * width + k] += seed[i * width + k];
        }
    }
    for devices in [1, 2, 3, 6] {
        let mesh = Mesh::new([("a", devices)]);
        let mut b = Builder::new(&mesh);
        let (n, v, w) = (b.dim("n", 6), b.dim("v", vocab), b.dim("w", width));
        let t = b.split(DType::F64, &[(v, &A), (w, &[])]);
        let (index, g) = (b.whole(DType::I32, &[n]), b.whole(DType::F64, &[n, w]));
        b.leaf(ProgramInputKind::Param, "t", &t);
        b.leaf(ProgramInputKind::Input, "ids", &index);
        b.leaf(ProgramInputKind::Input, "g", &g);
        let part = b.whole(DType::F64, &[n, w]);
        b.step("e", Prim::Lookup { dims: vec![v] }, &[&t, &index], &[&part]);
        let e = b.all_reduce("e", Monoid::Sum, &A, &[&part]).remove(0);
        let dt = b.like(&t);
        b.step("dt", Prim::ScatterAdd { dims: vec![v] }, &[&g, &index], &[&dt]);
        b.output("e", &e);
        b.output("dt", &dt);
        let mut cluster = cluster(&mesh);
        let program = cluster.load(Arc::new(b.finish())).unwrap();
        cluster.set_state("t", &table).unwrap();
        let data = whole_inputs(SortedMap::from([
            ("ids".to_string(), tensor(DType::I32, &[6], ids.to_vec())),
            ("g".to_string(), tensor(DType::F64, &[6, width], seed.clone())),
        ]));
        for step in 1..=2 {
            let outputs = cluster.run(program, step, &data).unwrap().outputs;
            close(&outputs["e"], &tensor(DType::F64, &[6, width], looked_up.clone()), 1e-14, "lookup");
            close(&outputs["dt"], &tensor(DType::F64, &[vocab, width], rows.clone()), 1e-14, "scatter");
        }
    }
}

/// A local slice with another order of dims, a repeated dim, global indices and the number of the step.
#[test]
fn copies_indices_and_the_step_number() {
    for devices in [1, 2, 4] {
        let mesh = Mesh::new([("a", devices)]);
        let mut b = Builder::new(&mesh);
        let (i, j, k) = (b.dim("i", 3), b.dim("j", 5), b.dim("k", 2));
        let x = b.whole(DType::F64, &[i, j]);
        let step = b.whole(DType::F64, &[]);
        b.leaf(ProgramInputKind::Param, "x", &x);
        b.leaf(ProgramInputKind::StepNumber, "step", &step);
        let part = b.split(DType::F64, &[(j, &A), (k, &[]), (i, &[])]);
        b.step("part", Prim::Copy, &[&x], &[&part]);
        let out = b.like(&part);
        b.map("out", &[&part, &step], &out, |e, r| {
            let at = e.push(Scalar::Index(0), DType::I32);
            let at = e.cast(at, DType::F64);
            let sum = e.binary(BinaryFn::Add, r[0], at);
            e.binary(BinaryFn::Mul, sum, r[1])
        });
        b.output("out", &out);
        let mut cluster = cluster(&mesh);
        let program = cluster.load(Arc::new(b.finish())).unwrap();
        let x = noise_tensor(DType::F64, &[3, 5], 9);
        cluster.set_state("x", &x).unwrap();
        for number in [1, 17] {
            let outputs = cluster.run(program, number, &no_inputs()).unwrap().outputs;
            let mut want = vec![];
            for j in 0..5 {
                for _k in 0..2 {
                    want.extend((0..3).map(|i| (x.data.to_f64()[i * 5 + j] + j as f64) * number as f64));
                }
            }
            close(&outputs["out"], &tensor(DType::F64, &[5, 2, 3], want), 1e-15, "out");
        }
    }
}

/// A device without `f64`: what is given so is named, else the first step that computes so, also within an expression.
#[test]
fn a_dtype_that_the_device_lacks_is_named() {
    let lacking = |plan: &Plan| {
        let without = |dtype| dtype != burn_backend::DType::F64;
        check_dtypes(plan, 1, without).map_err(|e| e.to_string())
    };
    let of = |given: DType, within: DType| {
        let mut b = Builder::new(&Mesh::new([("a", 2)]));
        let n = b.dim("n", 4);
        let x = b.whole(given, &[n]);
        b.leaf(ProgramInputKind::Param, "x", &x);
        let y = b.like(&x);
        b.map("y", &[&x], &y, |e, r| {
            let wide = e.cast(r[0], within);
            let sum = e.binary(BinaryFn::Add, wide, wide);
            e.cast(sum, given)
        });
        b.output("y", &y);
        b.finish()
    };
    assert_eq!(lacking(&of(DType::F32, DType::F32)), Ok(()));
    let said = |value: &str| format!("rank 1: {value} is f64, which the device does not compute with");
    assert_eq!(lacking(&of(DType::F64, DType::F64)), Err(said("`x`")));
    let within = lacking(&of(DType::F32, DType::F64)).unwrap_err();
    assert!(within.starts_with("rank 1: `y`"), "{within}");
}
