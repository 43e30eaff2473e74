//! Times of the own kernels, in milliseconds: the least of several runs on one thread.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a program for people who tune kernels")]

use meshwright_cpu::kernels::{
    Access, Arg, CopyKernel, CrossEntropyKernel, MapKernel, ReduceKernel, Slice, SliceMut, SoftmaxKernel,
};
use meshwright_plan::expr::{BinaryFn, Expr, Reg, Scalar, UnaryFn};
use meshwright_plan::{DType, Monoid};
use std::hint::black_box;
use std::time::Instant;

const N: usize = 4096 * 1024;

fn time(name: &str, repeats: usize, mut f: impl FnMut()) {
    let least = (0..repeats)
        .map(|_| {
            let start = Instant::now();
            f();
            start.elapsed()
        })
        .min()
        .unwrap_or_default();
    println!("{name:44} {:10.4}", least.as_secs_f64() * 1e3);
}

fn map(e: &Expr, shape: &[usize], inputs: &[Access], outs: &[Reg]) -> MapKernel {
    MapKernel::new(e, shape, inputs, &vec![0; shape.len()], outs).unwrap()
}

fn unary(name: &str, build: impl Fn(&mut Expr, Reg) -> Reg) {
    let mut e = Expr::default();
    let a = e.push(Scalar::Load(0), DType::F32);
    let r = build(&mut e, a);
    let kernel = map(&e, &[N], &[Access::dense(DType::F32, &[N])], &[r]);
    let x: Vec<f32> = (0..N).map(|i| (i % 1000) as f32 * 0.01 - 5.0).collect();
    let mut y = vec![0.0f32; N];
    time(name, 9, || {
        kernel.run(&[Arg::Slice(Slice::F32(&x))], &mut [SliceMut::F32(&mut y)]).unwrap();
        black_box(&y);
    });
}

/// `0.5 x (1 + erf(x / sqrt 2))`
fn gelu(e: &mut Expr, x: Reg) -> Reg {
    let c = e.constant(std::f64::consts::FRAC_1_SQRT_2, DType::F32);
    let z = e.binary(BinaryFn::Mul, x, c);
    let z = e.unary(UnaryFn::Erf, z);
    let one = e.constant(1.0, DType::F32);
    let z = e.binary(BinaryFn::Add, z, one);
    let half = e.constant(0.5, DType::F32);
    let y = e.binary(BinaryFn::Mul, x, half);
    e.binary(BinaryFn::Mul, y, z)
}

fn sgd(n: usize, name: &str) {
    let mut e = Expr::default();
    let (p, g) = (e.push(Scalar::Load(0), DType::F32), e.push(Scalar::Load(1), DType::F32));
    let lr = e.constant(1e-3, DType::F32);
    let step = e.binary(BinaryFn::Mul, lr, g);
    let r = e.binary(BinaryFn::Sub, p, step);
    let dense = Access::dense(DType::F32, &[n]);
    let kernel = map(&e, &[n], &[dense.clone(), dense], &[r]);
    let (mut p, g) = (vec![1.0f32; n], vec![0.5f32; n]);
    let batch = (1 << 16) / n.min(1 << 16);
    time(&format!("{name}, {batch} times"), 15, || {
        for _ in 0..batch {
            kernel.run(&[Arg::Out(0), Arg::Slice(Slice::F32(&g))], &mut [SliceMut::F32(&mut p)]).unwrap();
            black_box(&p);
        }
    });
}

fn adam(n: usize, name: &str) {
    let mut e = Expr::default();
    let [p, m, v, g, t] = [0, 1, 2, 3, 4].map(|k| e.push(Scalar::Load(k), DType::F32));
    use BinaryFn::{Add, Div, Mul, Pow, Sub};
    let constants = [0.9, 0.999, 0.1, 0.001, 1.0, 1e-8, 1e-3, 1e-2];
    let [b1, b2, c1, c2, one, eps, lr, decay] = constants.map(|x| e.constant(x, DType::F32));
    let (x, y) = (e.binary(Mul, b1, m), e.binary(Mul, c1, g));
    let m2 = e.binary(Add, x, y);
    let gg = e.binary(Mul, g, g);
    let (x, y) = (e.binary(Mul, b2, v), e.binary(Mul, c2, gg));
    let v2 = e.binary(Add, x, y);
    let correct = |e: &mut Expr, b, x| {
        let power = e.binary(Pow, b, t);
        let rest = e.binary(Sub, one, power);
        e.binary(Div, x, rest)
    };
    let (mh, vh) = (correct(&mut e, b1, m2), correct(&mut e, b2, v2));
    let root = e.unary(UnaryFn::Sqrt, vh);
    let below = e.binary(Add, root, eps);
    let step = e.binary(Div, mh, below);
    let shrink = e.binary(Mul, decay, p);
    let step = e.binary(Add, step, shrink);
    let step = e.binary(Mul, lr, step);
    let p2 = e.binary(Sub, p, step);
    let dense = Access::dense(DType::F32, &[n]);
    let scalar = Access { dtype: DType::F32, offset: 0, strides: vec![0] };
    let kernel = map(&e, &[n], &[dense.clone(), dense.clone(), dense.clone(), dense, scalar], &[p2, m2, v2]);
    let (mut p, mut m, mut v, g) = (vec![1.0f32; n], vec![0.1f32; n], vec![0.1f32; n], vec![0.5f32; n]);
    time(name, 9, || {
        let args = [Arg::Out(0), Arg::Out(1), Arg::Out(2), Slice::F32(&g).into(), Slice::F32(&[7.0]).into()];
        let outs = &mut [SliceMut::F32(&mut p), SliceMut::F32(&mut m), SliceMut::F32(&mut v)];
        kernel.run(&args, outs).unwrap();
        black_box(&p);
    });
}

fn rows() {
    let x: Vec<f32> = (0..N).map(|i| (i % 1013) as f32 * 0.01).collect();
    let mut y = vec![0.0f32; N];
    for (rows, classes, log) in
        [(4096, 1024, false), (4096, 1024, true), (N / 10, 10, false), (80, 50_000, true)]
    {
        let n = rows * classes;
        let kernel = SoftmaxKernel::new(DType::F32, &[rows, classes], 1, log).unwrap();
        let name = if log { "log-softmax" } else { "softmax" };
        time(&format!("{name} of {rows} rows of {classes}"), 7, || {
            kernel.run(Arg::Slice(Slice::F32(&x[..n])), SliceMut::F32(&mut y[..n])).unwrap();
            black_box(&y);
        });
    }
    let kernel = CrossEntropyKernel::new(
        &[100],
        10,
        &Access::dense(DType::F32, &[100, 10]),
        &Access::dense(DType::I32, &[100]),
    );
    let (kernel, label) = (kernel.unwrap(), [3; 100]);
    time("cross-entropy of 100 rows of 10", 100, || {
        kernel.run(Slice::F32(&x[..1000]), Slice::I32(&label), SliceMut::F32(&mut y[..100])).unwrap();
        black_box(&y);
    });
}

fn main() {
    println!("{:44} {:>10}", "[4096, 1024] f32 unless said otherwise", "ms");
    let (a, mut b) = (vec![1.0f32; N], vec![0.0f32; N]);
    time("memcpy", 9, || {
        b.copy_from_slice(&a);
        black_box(&b);
    });
    for (name, f) in [
        ("exp", UnaryFn::Exp),
        ("log", UnaryFn::Log),
        ("tanh", UnaryFn::Tanh),
        ("sin", UnaryFn::Sin),
        ("sigmoid", UnaryFn::Sigmoid),
        ("erf", UnaryFn::Erf),
        ("relu", UnaryFn::Relu),
    ] {
        unary(name, |e, a| e.unary(f, a));
    }
    unary("gelu", gelu);
    sgd(N, "sgd, 4M");
    sgd(1_000_000, "sgd, 1M");
    sgd(16, "sgd, 16 elements");
    adam(N, "adamw, 4M");
    adam(1_000_000, "adamw, 1M");
    rows();
    for (name, shape, strides) in [
        ("transposed copy to [4096, 1024]", [4096, 1024], vec![1, 4096]),
        ("transposed copy to [1024, 4096]", [1024, 4096], vec![1, 1024]),
        ("column slice [4096, 512]", [4096, 512], vec![1024, 1]),
    ] {
        let kernel = CopyKernel::new(&shape, &Access { dtype: DType::F32, offset: 0, strides }).unwrap();
        let n = shape[0] * shape[1];
        time(name, 9, || {
            kernel.run(Slice::F32(&a), SliceMut::F32(&mut b[..n])).unwrap();
            black_box(&b);
        });
    }
    for (name, keep, fold, strides) in [
        ("sum of all", vec![], vec![N], vec![1]),
        ("sum of rows", vec![4096], vec![1024], vec![1024, 1]),
        ("sum of columns", vec![1024], vec![4096], vec![1, 1024]),
        ("max of rows", vec![4096], vec![1024], vec![1024, 1]),
        ("argmax of rows", vec![4096], vec![1024], vec![1024, 1]),
    ] {
        let monoid = match name.split(' ').next() {
            Some("sum") => Monoid::Sum,
            Some("max") => Monoid::Max,
            _ => Monoid::ArgMax,
        };
        let access = Access { dtype: DType::F32, offset: 0, strides };
        let kernel = ReduceKernel::new(monoid, &keep, &fold, &access, 0).unwrap();
        let mut out = vec![0.0f32; keep.iter().product()];
        let mut pairs = vec![Default::default(); out.len()];
        time(name, 9, || {
            let into = if monoid == Monoid::ArgMax {
                SliceMut::PairF32(&mut pairs)
            } else {
                SliceMut::F32(&mut out)
            };
            kernel.run(Slice::F32(&a), into).unwrap();
            black_box(&out);
        });
    }
    // A bias along short and long rows.
    for (rows, columns) in [(N / 10, 10), (4096, 1024)] {
        let mut e = Expr::default();
        let (x, y) = (e.push(Scalar::Load(0), DType::F32), e.push(Scalar::Load(1), DType::F32));
        let r = e.binary(BinaryFn::Add, x, y);
        let shape = [rows, columns];
        let bias = Access { dtype: DType::F32, offset: 0, strides: vec![0, 1] };
        let kernel = map(&e, &shape, &[Access::dense(DType::F32, &shape), bias], &[r]);
        let bias = vec![1.0f32; columns];
        time(&format!("bias along rows of {columns}"), 9, || {
            let args = [Slice::F32(&a[..rows * columns]).into(), Slice::F32(&bias).into()];
            kernel.run(&args, &mut [SliceMut::F32(&mut b[..rows * columns])]).unwrap();
            black_box(&b);
        });
    }
}
