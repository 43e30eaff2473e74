use super::{Rng, dot, indices, same_for_all_pools};
use crate::kernels::instruction_set::Level;
use crate::kernels::{
    Access, Arg, CrossEntropyGradKernel, CrossEntropyKernel, LogSumExpKernel, Slice, SliceMut, SoftmaxKernel,
};
use meshwright_plan::DType;

/// Within a few roundings of results of at least `scale`.
fn near(got: f32, want: f64, scale: f64) -> bool {
    (f64::from(got) - want).abs() <= 1e-5 * want.abs().max(scale) || f64::from(got) == want
}

/// Log-sum-exp as it is defined, with f64.
fn lse(x: &[f64]) -> f64 {
    let m = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if m == f64::NEG_INFINITY { m } else { m + x.iter().map(|x| (x - m).exp()).sum::<f64>().ln() }
}

struct Case {
    shape: Vec<usize>,
    dim: usize,
    /// Logits, dense over the shape.
    x: Vec<f32>,
}

impl Case {
    fn new(rng: &mut Rng) -> Case {
        let mut shape = rng.shape(3);
        let classes = [1, 2, 10, 33, 700][rng.below(5)];
        let dim = rng.below(shape.len() + 1);
        shape.insert(dim, if rng.below(20) == 0 { 0 } else { classes });
        if shape.iter().product::<usize>() > 60_000 {
            shape = vec![3, 2500, 2];
            return Case { x: (0..15_000).map(|_| (rng.unit() * 40.0) as f32).collect(), shape, dim: 1 };
        }
        let x = (0..shape.iter().product()).map(|_| (rng.unit() * 40.0) as f32).collect();
        Case { shape, dim, x }
    }

    /// Position of the first class and all logits of each row, in the order of the dims but `dim`.
    fn rows(&self) -> (Vec<usize>, Vec<Vec<f64>>) {
        let strides = super::dense_strides(&self.shape);
        let mut others = self.shape.clone();
        let n = others.remove(self.dim);
        let mut rest = strides.clone();
        let step = rest.remove(self.dim);
        let starts: Vec<usize> = indices(&others).iter().map(|i| dot(i, &rest)).collect();
        let row = |s: &usize| (0..n).map(|c| f64::from(self.x[s + c * step])).collect();
        let rows = starts.iter().map(row).collect();
        (starts, rows)
    }
}

#[test]
fn softmax_along_any_dim() {
    let mut rng = Rng(17);
    for _ in 0..150 {
        let c = Case::new(&mut rng);
        let step = super::dense_strides(&c.shape)[c.dim];
        let (starts, rows) = c.rows();
        for level in Level::available() {
            for log in [false, true] {
                let kernel = SoftmaxKernel::new(DType::F32, &c.shape, c.dim, log).unwrap().with_level(level);
                let mut out = vec![5.0; c.x.len()];
                kernel.run(Arg::Slice(Slice::F32(&c.x)), SliceMut::F32(&mut out)).unwrap();
                for (start, row) in starts.iter().zip(&rows) {
                    let total = lse(row);
                    for (k, x) in row.iter().enumerate() {
                        let want = if log { x - total } else { (x - total).exp() };
                        let got = out[start + k * step];
                        assert!(
                            near(got, want, if log { 0.25 } else { 1e-30 }),
                            "{got} is not {want}: {:?} {} {log}",
                            c.shape,
                            c.dim
                        );
                    }
                }
                let mut place = c.x.clone();
                kernel.run(Arg::Out(0), SliceMut::F32(&mut place)).unwrap();
                assert_eq!(place, out);
            }
        }
    }
}

#[test]
fn cross_entropy_and_its_gradient() {
    let mut rng = Rng(23);
    for _ in 0..150 {
        let c = Case::new(&mut rng);
        let (starts, rows) = c.rows();
        let strides = super::dense_strides(&c.shape);
        let (classes, step) = (c.shape[c.dim], strides[c.dim]);
        let mut others = c.shape.clone();
        others.remove(c.dim);
        let mut rest = strides.clone();
        rest.remove(c.dim);
        let logits = Access { dtype: DType::F32, offset: 0, strides: [rest, vec![step]].concat() };
        // Labels lack some dims, and may be no class.
        let lack: Vec<usize> = (0..others.len()).filter(|_| rng.below(4) == 0).collect();
        let (label_strides, n) = rng.strides(&others, &lack);
        let label: Vec<i32> = (0..n).map(|_| rng.below(classes + 1) as i32 - rng.below(2) as i32).collect();
        let label_access = Access { dtype: DType::I32, offset: 0, strides: label_strides.clone() };
        let row_labels: Vec<i32> = indices(&others).iter().map(|i| label[dot(i, &label_strides)]).collect();
        let (scale_strides, n) = rng.strides(&others, &lack);
        let scale: Vec<f32> = (0..n).map(|_| rng.unit() as f32).collect();
        let over_shape = |s: &[usize], dtype| {
            let mut strides = s.to_vec();
            strides.insert(c.dim, 0);
            Access { dtype, offset: 0, strides }
        };
        for level in Level::available() {
            let kernel = LogSumExpKernel::new(&others, classes, &logits).unwrap().with_level(level);
            let mut out = vec![5.0; rows.len()];
            kernel.run(Slice::F32(&c.x), SliceMut::F32(&mut out)).unwrap();
            assert!(out.iter().zip(&rows).all(|(o, r)| near(*o, lse(r), 1.0)));

            let kernel = CrossEntropyKernel::new(&others, classes, &logits, &label_access).unwrap();
            kernel
                .with_level(level)
                .run(Slice::F32(&c.x), Slice::I32(&label), SliceMut::F32(&mut out))
                .unwrap();
            for ((o, r), l) in out.iter().zip(&rows).zip(&row_labels) {
                let logit = usize::try_from(*l).ok().and_then(|l| r.get(l)).copied().unwrap_or(0.0);
                let want = lse(r) - logit;
                assert!((f64::from(*o) - want).abs() <= 5e-6 * want.abs().max(1.0) || f64::from(*o) == want);
            }

            let kernel = CrossEntropyGradKernel::new(
                DType::F32,
                &c.shape,
                c.dim,
                &over_shape(&label_strides, DType::I32),
                &over_shape(&scale_strides, DType::F32),
            );
            let kernel = kernel.unwrap().with_level(level);
            let mut grad = vec![5.0; c.x.len()];
            let out = SliceMut::F32(&mut grad);
            kernel.run(Arg::Slice(Slice::F32(&c.x)), Slice::I32(&label), Slice::F32(&scale), out).unwrap();
            for (((start, row), l), i) in starts.iter().zip(&rows).zip(&row_labels).zip(indices(&others)) {
                let (total, by) = (lse(row), f64::from(scale[dot(&i, &scale_strides)]));
                for (k, x) in row.iter().enumerate() {
                    let want = ((x - total).exp() - f64::from(u8::from(*l == k as i32))) * by;
                    assert!((f64::from(grad[start + k * step]) - want).abs() <= 1e-6);
                }
            }
        }
    }
}

#[test]
fn infinities_and_huge_logits() {
    let x = [1000.0, 1000.0, f32::NEG_INFINITY, f32::NEG_INFINITY, f32::NEG_INFINITY, 1.0];
    let access = Access::dense(DType::F32, &[3, 2]);
    let mut out = [0.0; 3];
    LogSumExpKernel::new(&[3], 2, &access).unwrap().run(Slice::F32(&x), SliceMut::F32(&mut out)).unwrap();
    assert_eq!(out, [1000.0 + 2f32.ln(), f32::NEG_INFINITY, 1.0]);
    let mut y = [0.0; 6];
    let kernel = SoftmaxKernel::new(DType::F32, &[3, 2], 1, false).unwrap();
    kernel.run(Arg::Slice(Slice::F32(&x)), SliceMut::F32(&mut y)).unwrap();
    assert!(y[..2] == [0.5, 0.5] && y[2].is_nan() && y[4..] == [0.0, 1.0]);
    let mut y = [0.0; 1];
    let nothing = Access::dense(DType::F32, &[1, 0]);
    LogSumExpKernel::new(&[1], 0, &nothing).unwrap().run(Slice::F32(&[]), SliceMut::F32(&mut y)).unwrap();
    assert_eq!(y, [f32::NEG_INFINITY]);
}

#[test]
fn f64_is_accurate() {
    let mut rng = Rng(2);
    let x: Vec<f64> = (0..3000).map(|_| rng.unit() * 30.0).collect();
    let mut out = vec![0.0; 3000];
    let kernel = SoftmaxKernel::new(DType::F64, &[3, 1000], 1, true).unwrap();
    kernel.run(Arg::Slice(Slice::F64(&x)), SliceMut::F64(&mut out)).unwrap();
    for r in 0..3 {
        let total = lse(&x[r * 1000..][..1000]);
        assert!((0..1000).all(|k| (out[r * 1000 + k] - (x[r * 1000 + k] - total)).abs() < 1e-13));
    }
}

#[test]
fn large_softmax_with_any_pool() {
    let mut rng = Rng(8);
    for (shape, dim) in [([700, 301], 1), ([20_000, 10], 1), ([40, 50_000 / 10], 0)] {
        let x: Vec<f32> = (0..shape[0] * shape[1]).map(|_| rng.unit() as f32).collect();
        let kernel = SoftmaxKernel::new(DType::F32, &shape, dim, true).unwrap();
        same_for_all_pools(|| {
            let mut out = vec![0.0; x.len()];
            kernel.run(Arg::Slice(Slice::F32(&x)), SliceMut::F32(&mut out)).unwrap();
            out
        });
        let classes = shape[1];
        let access = Access::dense(DType::F32, &shape);
        let kernel = LogSumExpKernel::new(&shape[..1], classes, &access).unwrap();
        same_for_all_pools(|| {
            let mut out = vec![0.0; shape[0]];
            kernel.run(Slice::F32(&x), SliceMut::F32(&mut out)).unwrap();
            out
        });
    }
}

/// As JAX has them: less an infinite maximum nothing is a number, but of a logarithm of a sum it is the result.
#[test]
fn infinite_rows() {
    const INF: f32 = f32::INFINITY;
    for (row, lse) in [
        ([-INF, -INF, -INF], -INF),
        ([INF, 1.0, -INF], INF),
        ([INF, INF, 0.0], INF),
        ([f32::NAN, INF, 0.0], f32::NAN),
    ] {
        let access = Access { dtype: DType::F32, offset: 0, strides: vec![3, 1] };
        let mut out = vec![5.0];
        let kernel = LogSumExpKernel::new(&[1], 3, &access).unwrap();
        kernel.run(Slice::F32(&row), SliceMut::F32(&mut out)).unwrap();
        assert!(out[0] == lse || out[0].is_nan() && lse.is_nan(), "{row:?}: {}", out[0]);
        for log in [false, true] {
            let kernel = SoftmaxKernel::new(DType::F32, &[1, 3], 1, log).unwrap();
            let mut out = row.to_vec();
            kernel.run(Arg::Out(0), SliceMut::F32(&mut out)).unwrap();
            assert!(out.iter().all(|x| x.is_nan()), "{row:?}, log: {log}: {out:?}");
        }
    }
}

#[test]
fn sums_of_long_rows_keep_their_digits() {
    let n = 4_000_000;
    let mut rng = Rng(3);
    let x: Vec<f32> = (0..n).map(|_| rng.unit() as f32).collect();
    let want = lse(&x.iter().map(|x| f64::from(*x)).collect::<Vec<_>>());
    let access = Access { dtype: DType::F32, offset: 0, strides: vec![0, 1] };
    for level in Level::available() {
        let kernel = SoftmaxKernel::new(DType::F32, &[n], 0, false).unwrap().with_level(level);
        let mut out = x.clone();
        kernel.run(Arg::Out(0), SliceMut::F32(&mut out)).unwrap();
        let total: f64 = out.iter().map(|x| f64::from(*x)).sum();
        assert!((total - 1.0).abs() < 5e-7, "probabilities sum to {total}");
        let mut out = vec![5.0];
        let kernel = LogSumExpKernel::new(&[1], n, &access).unwrap().with_level(level);
        kernel.run(Slice::F32(&x), SliceMut::F32(&mut out)).unwrap();
        assert!((f64::from(out[0]) - want).abs() < 2e-6, "{} is not {want}", out[0]);
    }
}
