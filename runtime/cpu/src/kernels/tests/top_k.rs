use super::{Rng, dot, indices, same_for_all_pools};
use crate::kernels::{Access, Slice, SliceMut, TopKKernel};
use meshwright_plan::DType;

/// The ranks of a row, by what comes before each element.
fn naive(row: &[f32]) -> Vec<i32> {
    let before = |i: usize, j: usize| match (row[i].is_nan(), row[j].is_nan()) {
        (true, true) => i < j,
        (false, false) => row[i] > row[j] || row[i] == row[j] && i < j,
        (nan, _) => nan,
    };
    let mut out = vec![0; row.len()];
    for j in 0..row.len() {
        out[(0..row.len()).filter(|i| before(*i, j)).count()] = j as i32;
    }
    out
}

#[test]
fn the_greatest_of_random_rows() {
    let mut rng = Rng(31);
    for _ in 0..300 {
        let mut shape = rng.shape(2);
        let rows = shape.clone();
        let count = 1 + rng.below(40);
        shape.push(count);
        let (strides, n) = rng.strides(&shape, &[]);
        // Few different values, so that there are ties; both zeros are equal.
        let x: Vec<f32> = (0..n)
            .map(|_| [0.0, -0.0, 1.5, -2.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 7.0][rng.below(8)])
            .collect();
        let end = 1 + rng.below(count);
        let start = rng.below(end);
        let access = Access { dtype: DType::F32, offset: 0, strides: strides.clone() };
        let kernel = TopKKernel::new(&rows, count, &access, start..end).unwrap();
        let mut want: Vec<i32> = vec![];
        for index in indices(&rows) {
            let at = dot(&index, &strides[..rows.len()]);
            let row: Vec<f32> = (0..count).map(|k| x[at + k * strides[rows.len()]]).collect();
            want.extend(&naive(&row)[start..end]);
        }
        let mut out = vec![-1; want.len()];
        kernel.run(Slice::F32(&x), SliceMut::I32(&mut out)).unwrap();
        assert_eq!(out, want, "{shape:?} {strides:?} {start}..{end}");
    }
}

#[test]
fn many_rows_are_the_same_for_any_pool() {
    let mut rng = Rng(7);
    let (rows, count, k) = (500, 301, 5);
    let x: Vec<i32> = (0..rows * count).map(|_| rng.below(90) as i32).collect();
    let kernel = TopKKernel::new(&[rows], count, &Access::dense(DType::I32, &[rows, count]), 0..k).unwrap();
    let found = same_for_all_pools(|| {
        let mut out = vec![-1; rows * k];
        kernel.run(Slice::I32(&x), SliceMut::I32(&mut out)).unwrap();
        out
    });
    for (row, found) in x.chunks(count).zip(found.chunks(k)) {
        let row: Vec<f32> = row.iter().map(|x| *x as f32).collect();
        assert_eq!(found, &naive(&row)[..k]);
    }
}

#[test]
fn what_does_not_fit_is_an_error() {
    let dense = |dtype| Access::dense(dtype, &[2, 3]);
    assert!(TopKKernel::new(&[2], 3, &dense(DType::F32), 0..4).is_err());
    assert!(TopKKernel::new(&[2], 3, &dense(DType::Bool), 0..2).is_err());
    assert!(TopKKernel::new(&[2, 2], 3, &dense(DType::F32), 0..2).is_err());
    let kernel = TopKKernel::new(&[2], 3, &dense(DType::F32), 0..2).unwrap();
    let (x, mut out) = ([0.0f32; 6], [0; 4]);
    assert!(kernel.run(Slice::F32(&x[..5]), SliceMut::I32(&mut out)).is_err());
    assert!(kernel.run(Slice::F32(&x), SliceMut::I32(&mut out[..3])).is_err());
    assert!(kernel.run(Slice::F32(&x), SliceMut::I32(&mut out)).is_ok());
}
