use super::{Rng, indices, same_for_all_pools};
use crate::kernels::instruction_set::Level;
use crate::kernels::{Arg, CumSumKernel, Slice, SliceMut, dense_strides};
use meshwright_plan::DType;

#[test]
fn running_sums_of_random_shapes() {
    let mut rng = Rng(23);
    for _ in 0..200 {
        let mut shape = rng.shape(3);
        shape.push(1 + rng.below(9));
        let (dim, n) = (rng.below(shape.len()), shape.iter().product());
        let (reverse, exclusive) = (rng.below(2) == 0, rng.below(2) == 0);
        let x: Vec<i32> = (0..n).map(|_| (rng.unit() * 9.0) as i32).collect();
        let strides = dense_strides(&shape);
        let mut want: Vec<i32> = vec![];
        for index in indices(&shape) {
            let at: usize = index.iter().zip(&strides).map(|(i, s)| i * s).sum();
            let start = at - index[dim] * strides[dim];
            let (low, high) = match (reverse, exclusive) {
                (false, false) => (0, index[dim] + 1),
                (false, true) => (0, index[dim]),
                (true, false) => (index[dim], shape[dim]),
                (true, true) => (index[dim] + 1, shape[dim]),
            };
            want.push((low..high).map(|i| x[start + i * strides[dim]]).sum::<i32>());
        }
        for level in Level::available() {
            let kernel =
                CumSumKernel::new(DType::I32, &shape, dim, reverse, exclusive).unwrap().with_level(level);
            let mut out = vec![7; n];
            kernel.run(Arg::Slice(Slice::I32(&x)), SliceMut::I32(&mut out)).unwrap();
            assert_eq!(out, want, "{shape:?} along {dim}, {reverse} {exclusive}");
            let kernel =
                CumSumKernel::new(DType::F32, &shape, dim, reverse, exclusive).unwrap().with_level(level);
            let mut floats: Vec<f32> = x.iter().map(|x| *x as f32).collect();
            kernel.run(Arg::Out(0), SliceMut::F32(&mut floats)).unwrap();
            assert_eq!(
                floats.iter().map(|x| *x as i32).collect::<Vec<_>>(),
                want,
                "in place, {shape:?} along {dim}"
            );
        }
    }
}

#[test]
fn long_running_sums_keep_their_digits_for_any_pool() {
    let (rows, n) = (3, 100_000);
    let x = vec![0.1f32; rows * n];
    let y = same_for_all_pools(|| {
        let mut y = vec![0.0; rows * n];
        let kernel = CumSumKernel::new(DType::F32, &[rows, n], 1, false, false).unwrap();
        kernel.run(Arg::Slice(Slice::F32(&x)), SliceMut::F32(&mut y)).unwrap();
        y
    });
    for (i, y) in y.iter().enumerate() {
        let want = f64::from(0.1f32) * (i % n + 1) as f64;
        assert!((f64::from(*y) - want).abs() <= want * 6e-8, "{i}: {y}");
    }
}

#[test]
fn what_does_not_fit_is_an_error() {
    assert!(CumSumKernel::new(DType::Bool, &[3], 0, false, false).is_err());
    assert!(CumSumKernel::new(DType::F32, &[3], 1, false, false).is_err());
    let kernel = CumSumKernel::new(DType::F32, &[3], 0, false, false).unwrap();
    let mut out = [0.0f32; 3];
    assert!(kernel.run(Arg::Slice(Slice::F32(&[1.0; 2])), SliceMut::F32(&mut out)).is_err());
    assert!(kernel.run(Arg::Slice(Slice::F32(&[1.0; 3])), SliceMut::F32(&mut out[..2])).is_err());
    assert!(kernel.run(Arg::Out(1), SliceMut::F32(&mut out)).is_err());
}
