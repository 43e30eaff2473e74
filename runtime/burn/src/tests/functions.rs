//! Scalar functions: every one of the table, of every dtype that it takes, on both backends. One that a backend forgets fails.

use super::plans::Builder;
use super::{HostBackend, cluster_on, no_inputs, tensor};
use meshwright_plan::expr::{BinaryFn, UnaryFn};
use meshwright_plan::{DType, Mesh, ProgramInputKind};
use std::sync::Arc;

/// What both kinds of numbers have: an exact value of `bf16`, and of integers.
const FLOATS: [f64; 10] = [-3.0, -1.5, -1.0, -0.25, 0.0, 0.125, 0.5, 1.0, 2.5, 7.0];
const INTEGERS: [f64; 5] = [-7.0, -1.0, 0.0, 1.0, 3.0];
const BYTES: [f64; 3] = [0.0, 1.0, 3.0];

fn given(dtype: DType) -> Vec<f64> {
    match dtype {
        DType::I32 => INTEGERS.to_vec(),
        DType::U8 => BYTES.to_vec(),
        DType::Bool => vec![0.0, 1.0],
        _ => FLOATS.to_vec(),
    }
}

/// What the table says, in this dtype. Bytes wrap around.
fn wanted(f: UnaryFn, dtype: DType, x: f64) -> f64 {
    let y = f.of(x);
    match dtype {
        DType::U8 => f64::from(y as i32 as u8),
        DType::I32 => f64::from(y as i32),
        _ => y,
    }
}

fn computed(f: UnaryFn, dtype: DType, backend: HostBackend) -> Vec<f64> {
    let mesh = Mesh::new([("a", 1)]);
    let mut b = Builder::new(&mesh);
    let x = given(dtype);
    let n = b.dim("n", x.len());
    let input = b.whole(dtype, &[n]);
    b.leaf(ProgramInputKind::Param, "x", &input);
    let out = b.like(&input);
    b.map("y", &[&input], &out, |e, r| e.unary(f, r[0]));
    b.output("y", &out);
    let mut cluster = cluster_on(&mesh, backend);
    let program = cluster.load(Arc::new(b.finish())).unwrap();
    cluster.set_state("x", &tensor(dtype, &[x.len()], x)).unwrap();
    cluster.run(program, 1, &no_inputs()).unwrap().outputs["y"].data.to_f64()
}

#[test]
fn every_backend_has_every_function_of_the_table() {
    for f in UnaryFn::ALL {
        let all = [DType::F64, DType::F32, DType::BF16, DType::F16, DType::I32, DType::U8, DType::Bool];
        let taken: Vec<DType> = all.into_iter().filter(|t| f.takes(*t)).collect();
        assert!(!taken.is_empty());
        for dtype in taken {
            for backend in [HostBackend::Native, HostBackend::Burn] {
                let tolerance = match (dtype, backend) {
                    // Of `f64` the kernels are the table.
                    (DType::F64, HostBackend::Native) => 0.0,
                    (DType::F64 | DType::F32, _) => 1e-5,
                    (DType::BF16, _) => 1e-2,
                    (DType::F16, _) => 1e-3,
                    _ => 0.0,
                };
                for (x, y) in given(dtype).into_iter().zip(computed(*f, dtype, backend)) {
                    let want = wanted(*f, dtype, x);
                    let same = y == want
                        || y.is_nan() && want.is_nan()
                        || (y - want).abs() <= tolerance * want.abs().max(1.0);
                    assert!(same, "{backend:?}: {}({x}) of {dtype} is {y}, not {want}", f.name());
                }
            }
        }
    }
}

/// Products below the least normal number are zero, whichever thread of a device computes them: enough elements that all do.
#[test]
#[cfg(target_arch = "x86_64")]
fn subnormal_results_are_zero() {
    const N: usize = 1 << 20;
    let mesh = Mesh::new([("a", 1)]);
    for (dtype, small) in [(DType::F32, 1e-20), (DType::F64, 1e-160)] {
        for backend in [HostBackend::Native, HostBackend::Burn] {
            let mut b = Builder::new(&mesh);
            let n = b.dim("n", N);
            let input = b.whole(dtype, &[n]);
            b.leaf(ProgramInputKind::Param, "x", &input);
            let out = b.like(&input);
            b.map("y", &[&input], &out, |e, r| e.binary(BinaryFn::Mul, r[0], r[0]));
            b.output("y", &out);
            let mut cluster = cluster_on(&mesh, backend);
            let program = cluster.load(Arc::new(b.finish())).unwrap();
            cluster.set_state("x", &tensor(dtype, &[N], vec![small; N])).unwrap();
            let y = cluster.run(program, 1, &no_inputs()).unwrap().outputs["y"].data.to_f64();
            assert!(small * small > 0.0 && y.iter().all(|y| *y == 0.0), "{backend:?}, {dtype}");
        }
    }
}
