use super::{Rng, dot, indices, same_for_all_pools};
use crate::kernels::instruction_set::Level;
use crate::kernels::{
    Access, Along, CopyKernel, LookupKernel, ScatterAddKernel, Slice, SliceMut, ValueIndexF64,
};
use meshwright_plan::DType;

#[test]
fn copies_of_random_layouts() {
    let mut rng = Rng(21);
    for round in 0..400 {
        let mut shape = rng.shape(4);
        if round % 10 == 0 {
            shape = vec![1 + rng.below(60), 1 + rng.below(3), 1 + rng.below(60)];
        }
        let lack: Vec<usize> = (0..shape.len()).filter(|_| rng.below(5) == 0).collect();
        let (strides, n) = rng.strides(&shape, &lack);
        let offset = rng.below(2) * 4;
        let x: Vec<f32> = (0..n + offset).map(|i| i as f32).collect();
        let pairs: Vec<ValueIndexF64> =
            x.iter().map(|x| ValueIndexF64 { value: f64::from(*x), index: 1 }).collect();
        let want: Vec<f32> = indices(&shape).iter().map(|i| x[offset + dot(i, &strides)]).collect();
        let access = Access { dtype: DType::F32, offset, strides };
        for level in Level::available() {
            let mut out = vec![-1.0; want.len()];
            let kernel = CopyKernel::new(&shape, &access).unwrap().with_level(level);
            kernel.run(Slice::F32(&x), SliceMut::F32(&mut out)).unwrap();
            assert_eq!(out, want, "{shape:?} {access:?}");
        }
        let mut out = vec![ValueIndexF64::default(); want.len()];
        let kernel = CopyKernel::new(&shape, &Access { dtype: DType::PairF64, ..access }).unwrap();
        kernel.run(Slice::PairF64(&pairs), SliceMut::PairF64(&mut out)).unwrap();
        assert!(out.iter().zip(&want).all(|(a, b)| a.value == f64::from(*b) && a.index == 1));
    }
}

#[test]
fn large_transpositions_with_any_pool() {
    for shape in [vec![700, 311], vec![3, 130, 5, 131], vec![33, 2, 2000]] {
        let n: usize = shape.iter().product();
        let x: Vec<i32> = (0..n as i32).collect();
        // The first dim but one, or the first, is contiguous in the source.
        let order: Vec<usize> = (0..shape.len()).rev().collect();
        let mut strides = vec![0; shape.len()];
        let mut s = 1;
        for d in order.iter().rev() {
            strides[*d] = s;
            s *= shape[*d];
        }
        let want: Vec<i32> = indices(&shape).iter().map(|i| x[dot(i, &strides)]).collect();
        let kernel = CopyKernel::new(&shape, &Access { dtype: DType::I32, offset: 0, strides }).unwrap();
        let got = same_for_all_pools(|| {
            let mut out = vec![-1; n];
            kernel.run(Slice::I32(&x), SliceMut::I32(&mut out)).unwrap();
            out
        });
        assert!(got == want, "{shape:?}");
    }
}

/// A table `[positions, rest]` or `[rest, positions]`, an index `[own]`, an output or values with both in either order.
struct Case {
    along: Along,
    table: Vec<usize>,
    shape: Vec<usize>,
    own: usize,
    rest: usize,
    own_first: bool,
}

fn case(rng: &mut Rng) -> Case {
    let (own, rest, len) = (rng.below(40), 1 + rng.below(40), rng.below(20));
    let (own_first, rows) = (rng.below(3) > 0, rng.below(3) > 0);
    let stride = if rows { rest } else { 1 };
    let rest_stride = if rows { 1 } else { len.max(1) };
    let along = Along { stride, start: 10, len };
    let (shape, table) = if own_first {
        (vec![own, rest], vec![0, rest_stride])
    } else {
        (vec![rest, own], vec![rest_stride, 0])
    };
    Case { along, table, shape, own, rest, own_first }
}

#[test]
fn lookups_and_their_transpose() {
    let mut rng = Rng(31);
    for _ in 0..300 {
        let c = case(&mut rng);
        let index: Vec<i32> = (0..c.own).map(|_| rng.below(40) as i32 - 3).collect();
        let index_strides = if c.own_first { vec![1, 0] } else { vec![0, 1] };
        let at = |i: &[usize]| index[dot(i, &index_strides)];
        let held = |i: i32| usize::try_from(i - 10).ok().filter(|p| *p < c.along.len);
        let index_access = Access { dtype: DType::I32, offset: 0, strides: index_strides.clone() };
        let table_access = Access { dtype: DType::F32, offset: 0, strides: c.table.clone() };
        let size = c.along.len * c.rest;

        let table: Vec<f32> = (0..size).map(|i| 1.0 + i as f32).collect();
        let want: Vec<f32> = indices(&c.shape)
            .iter()
            .map(|i| held(at(i)).map_or(0.0, |p| table[dot(i, &c.table) + p * c.along.stride]))
            .collect();
        let kernel = LookupKernel::new(&c.shape, &table_access, c.along, &index_access).unwrap();
        let mut out = vec![-1.0; want.len()];
        kernel.run(Slice::F32(&table), Slice::I32(&index), SliceMut::F32(&mut out)).unwrap();
        assert_eq!(out, want);

        let values: Vec<f32> = (0..want.len()).map(|_| rng.below(64) as f32).collect();
        let mut want = vec![0.0; size];
        for (i, v) in indices(&c.shape).iter().zip(&values) {
            if let Some(p) = held(at(i)) {
                want[dot(i, &c.table) + p * c.along.stride] += v;
            }
        }
        let values_access = Access::dense(DType::F32, &c.shape);
        let kernel =
            ScatterAddKernel::new(&c.shape, &values_access, &index_access, &table_access, c.along).unwrap();
        let mut out = vec![5.0; size];
        kernel.run(Slice::F32(&values), Slice::I32(&index), SliceMut::F32(&mut out)).unwrap();
        assert_eq!(out, want);
    }
}

#[test]
fn large_lookups_and_scatters_with_any_pool() {
    let (own, rest, len) = (3000, 64, 500);
    let mut rng = Rng(1);
    let index: Vec<i32> = (0..own).map(|_| rng.below(600) as i32).collect();
    let values: Vec<f32> = (0..own * rest).map(|_| rng.unit() as f32).collect();
    let shape = [own, rest];
    let index_access = Access { dtype: DType::I32, offset: 0, strides: vec![1, 0] };
    let table = Access { dtype: DType::F32, offset: 0, strides: vec![0, 1] };
    let along = Along { stride: rest, start: 20, len };
    let dense = Access::dense(DType::F32, &shape);
    let scatter = ScatterAddKernel::new(&shape, &dense, &index_access, &table, along).unwrap();
    let sums = same_for_all_pools(|| {
        let mut out = vec![0.0; len * rest];
        scatter.run(Slice::F32(&values), Slice::I32(&index), SliceMut::F32(&mut out)).unwrap();
        out
    });
    let mut want = vec![0.0f32; len * rest];
    for (i, at) in index.iter().enumerate() {
        if let Some(p) = usize::try_from(*at - 20).ok().filter(|p| *p < len) {
            (0..rest).for_each(|j| want[p * rest + j] += values[i * rest + j]);
        }
    }
    assert!(sums == want, "sums are made in ascending order of the source");
    let lookup = LookupKernel::new(&shape, &table, along, &index_access).unwrap();
    same_for_all_pools(|| {
        let mut out = vec![0.0; own * rest];
        lookup.run(Slice::F32(&sums), Slice::I32(&index), SliceMut::F32(&mut out)).unwrap();
        out
    });
}

#[test]
fn dims_of_the_index_that_the_output_lacks_are_summed() {
    // values[i, j], index[i, j], out[position]: a histogram.
    let shape = [3, 4];
    let values: Vec<i32> = (1..=12).collect();
    let index = [0, 1, 2, 0, 1, 2, 0, 1, -1, 3, 0, 1];
    let dense = Access::dense(DType::I32, &shape);
    let out_access = Access { dtype: DType::I32, offset: 0, strides: vec![0, 0] };
    let along = Along { stride: 1, start: 0, len: 3 };
    let kernel = ScatterAddKernel::new(&shape, &dense, &dense, &out_access, along).unwrap();
    let mut out = [9; 3];
    kernel.run(Slice::I32(&values), Slice::I32(&index), SliceMut::I32(&mut out)).unwrap();
    assert_eq!(out, [1 + 4 + 7 + 11, 2 + 5 + 8 + 12, 3 + 6]);
}
