use super::{Rng, dot, indices, same_for_all_pools};
use crate::kernels::instruction_set::Level;
use crate::kernels::{Access, ReduceKernel, Slice, SliceMut, ValueIndexF32, ValueIndexF64};
use half::{bf16, f16};
use meshwright_plan::{DType, Monoid};

/// Shapes to keep and to fold, with the strides of an input that has their dims in any order.
fn layout(rng: &mut Rng, folds: usize) -> (Vec<usize>, Vec<usize>, Access, usize) {
    let keep = rng.shape(3);
    let mut fold = rng.shape(folds);
    while folds == 1 && fold.is_empty() {
        fold = rng.shape(1);
    }
    let shape = [keep.clone(), fold.clone()].concat();
    let (strides, n) = rng.strides(&shape, &[]);
    let offset = rng.below(2) * 3;
    (keep, fold, Access { dtype: DType::F32, offset, strides }, n + offset)
}

fn members(x: &[f32], keep: &[usize], fold: &[usize], a: &Access) -> Vec<Vec<f64>> {
    let (ks, fs) = a.strides.split_at(keep.len());
    let inner = indices(fold);
    let at =
        |k: &Vec<usize>| inner.iter().map(move |f| a.offset + dot(k, ks) + dot(f, fs)).collect::<Vec<_>>();
    indices(keep).iter().map(|k| at(k).into_iter().map(|i| f64::from(x[i])).collect()).collect()
}

#[test]
fn folds_of_random_layouts() {
    let mut rng = Rng(11);
    for _ in 0..400 {
        let (keep, fold, access, n) = layout(&mut rng, 3);
        let x: Vec<f32> = (0..n).map(|_| (rng.unit() * 50.0).trunc() as f32 * 0.25).collect();
        let sets = members(&x, &keep, &fold, &access);
        for level in Level::available() {
            for (monoid, start, f) in [
                (Monoid::Sum, 0.0, (|a, b| a + b) as fn(f64, f64) -> f64),
                (Monoid::Max, f64::NEG_INFINITY, f64::max),
                (Monoid::Min, f64::INFINITY, f64::min),
            ] {
                let want: Vec<f64> = sets.iter().map(|s| s.iter().copied().fold(start, f)).collect();
                let kernel = ReduceKernel::new(monoid, &keep, &fold, &access, 0).unwrap().with_level(level);
                let mut out = vec![7.0f32; want.len()];
                kernel.run(Slice::F32(&x), SliceMut::F32(&mut out)).unwrap();
                let got: Vec<f64> = out.iter().map(|x| f64::from(*x)).collect();
                assert_eq!(got, want, "{monoid} {keep:?} {fold:?} {access:?}");

                // These are numbers of the half types; their sums are numbers of `f32`.
                macro_rules! half {
                    ($t:ident, $kind:ident) => {
                        let halves: Vec<$t> = x.iter().map(|x| $t::from_f32(*x)).collect();
                        let narrow = Access { dtype: DType::$kind, ..access.clone() };
                        let kernel = ReduceKernel::new(monoid, &keep, &fold, &narrow, 0).unwrap();
                        let kernel = kernel.with_level(level);
                        let got: Vec<f64> = if monoid == Monoid::Sum {
                            let mut out = vec![7.0f32; want.len()];
                            kernel.run(Slice::$kind(&halves), SliceMut::F32(&mut out)).unwrap();
                            out.into_iter().map(f64::from).collect()
                        } else {
                            let mut out = vec![$t::ONE; want.len()];
                            kernel.run(Slice::$kind(&halves), SliceMut::$kind(&mut out)).unwrap();
                            out.into_iter().map(f64::from).collect()
                        };
                        assert_eq!(got, want, "{monoid} of {} {keep:?} {fold:?}", DType::$kind);
                    };
                }
                half!(bf16, BF16);
                half!(f16, F16);

                let ints: Vec<i32> = x.iter().map(|x| (*x * 4.0) as i32).collect();
                let access = Access { dtype: DType::I32, ..access.clone() };
                let kernel = ReduceKernel::new(monoid, &keep, &fold, &access, 0).unwrap().with_level(level);
                let mut out = vec![7; want.len()];
                kernel.run(Slice::I32(&ints), SliceMut::I32(&mut out)).unwrap();
                let want: Vec<i32> = want.iter().map(|x| (*x * 4.0) as i32).collect();
                assert_eq!(out, want, "{monoid} {keep:?} {fold:?}");
            }
            for (monoid, any) in [(Monoid::And, false), (Monoid::Or, true)] {
                let access = Access { dtype: DType::Bool, ..access.clone() };
                let truth: Vec<u8> = x.iter().map(|x| u8::from((*x > -11.0) != any)).collect();
                let hit = |x: &f64| (*x > -11.0) != any;
                let want = sets.iter().map(|s| if any { s.iter().any(hit) } else { s.iter().all(hit) });
                let want: Vec<u8> = want.map(u8::from).collect();
                let kernel = ReduceKernel::new(monoid, &keep, &fold, &access, 0).unwrap().with_level(level);
                let mut out = vec![7; want.len()];
                kernel.run(Slice::Bool(&truth), SliceMut::Bool(&mut out)).unwrap();
                assert_eq!(out, want, "{monoid} {keep:?} {fold:?}");
            }
        }
    }
}

#[test]
fn places_of_the_greatest_and_least() {
    let mut rng = Rng(5);
    for round in 0..400 {
        let (keep, fold, access, n) = layout(&mut rng, 1);
        // Few different values, so that there are ties; sometimes NaN and infinities.
        let values = [-1.0, 0.5, 2.0, f32::NAN, f32::NEG_INFINITY, f32::INFINITY];
        let x: Vec<f32> = (0..n).map(|_| values[rng.below(if round % 3 == 0 { 6 } else { 3 })]).collect();
        for (monoid, none) in [(Monoid::ArgMax, f32::NEG_INFINITY), (Monoid::ArgMin, f32::INFINITY)] {
            let want: Vec<ValueIndexF32> = members(&x, &keep, &fold, &access)
                .iter()
                .map(|set| {
                    let rank = |v: f64| match (v.is_nan(), monoid) {
                        (true, _) => (1, 0.0),
                        (_, Monoid::ArgMax) => (0, v),
                        _ => (0, -v),
                    };
                    let mut best: Option<usize> = None;
                    for (i, v) in set.iter().enumerate() {
                        if best.is_none_or(|b| rank(*v) > rank(set[b])) {
                            best = Some(i);
                        }
                    }
                    match best {
                        Some(i) => ValueIndexF32 { value: set[i] as f32, index: 100 + i as u32 },
                        None => ValueIndexF32 { value: none, index: u32::MAX },
                    }
                })
                .collect();
            for level in Level::available() {
                let kernel = ReduceKernel::new(monoid, &keep, &fold, &access, 100).unwrap().with_level(level);
                assert_eq!(kernel.out_dtype(), DType::PairF32);
                let mut out = vec![ValueIndexF32::default(); want.len()];
                kernel.run(Slice::F32(&x), SliceMut::PairF32(&mut out)).unwrap();
                for (got, want) in out.iter().zip(&want) {
                    let same = got.value == want.value || got.value.is_nan() && want.value.is_nan();
                    assert!(same && got.index == want.index, "{got:?}, not {want:?}: {keep:?} {fold:?}");
                }
            }
        }
    }
    let access = Access::dense(DType::I32, &[4]);
    let kernel = ReduceKernel::new(Monoid::ArgMin, &[], &[4], &access, 7).unwrap();
    let mut out = [ValueIndexF64::default()];
    kernel.run(Slice::I32(&[3, -9, i32::MAX, -9]), SliceMut::PairF64(&mut out)).unwrap();
    assert_eq!(out[0], ValueIndexF64 { value: -9.0, index: 8 });
}

#[test]
fn nan_is_the_greatest_and_the_least() {
    for at in [0, 17, 99] {
        let mut x = vec![1.0f32; 100];
        x[at] = f32::NAN;
        for monoid in [Monoid::Max, Monoid::Min] {
            for (keep, fold) in [(vec![], vec![100]), (vec![1], vec![10, 10])] {
                let access = Access::dense(DType::F32, &[keep.clone(), fold.clone()].concat());
                let mut out = [0.0];
                let kernel = ReduceKernel::new(monoid, &keep, &fold, &access, 0).unwrap();
                kernel.run(Slice::F32(&x), SliceMut::F32(&mut out)).unwrap();
                assert!(out[0].is_nan());
            }
        }
    }
}

#[test]
fn long_sums_are_accurate_and_the_same_for_any_pool() {
    let n = 1 << 20;
    let x: Vec<f32> = (0..n).map(|i| 0.1 + (i % 7) as f32 * 1e-3).collect();
    let exact: f64 = x.iter().map(|x| f64::from(*x)).sum();
    for (keep, fold) in [(vec![], vec![n]), (vec![1024], vec![1024]), (vec![4], vec![n / 4])] {
        for columns in [false, true] {
            let (k, f): (usize, usize) = (keep.iter().product(), fold.iter().product());
            let strides = if columns { vec![1, k] } else { vec![f, 1] };
            let strides = strides[2 - keep.len() - 1..].to_vec();
            let access = Access { dtype: DType::F32, offset: 0, strides };
            let kernel = ReduceKernel::new(Monoid::Sum, &keep, &fold, &access, 0).unwrap();
            let sums = same_for_all_pools(|| {
                let mut out = vec![0.0f32; k];
                kernel.run(Slice::F32(&x), SliceMut::F32(&mut out)).unwrap();
                out
            });
            let sum: f64 = sums.iter().map(|x| f64::from(*x)).sum();
            assert!((sum - exact).abs() < 1e-7 * exact, "{sum} {exact}");
        }
    }
}

#[test]
fn what_has_no_meaning_is_an_error() {
    let new = |m, dtype, fold: &[usize]| ReduceKernel::new(m, &[], fold, &Access::dense(dtype, fold), 0);
    assert!(new(Monoid::And, DType::F32, &[3]).is_err());
    assert!(new(Monoid::Sum, DType::Bool, &[3]).is_err());
    assert!(new(Monoid::Sum, DType::PairF32, &[3]).is_err());
    assert!(new(Monoid::ArgMax, DType::F32, &[3, 2]).is_err());
    let kernel = new(Monoid::Sum, DType::F32, &[3]).unwrap();
    assert!(kernel.run(Slice::F32(&[1.0; 2]), SliceMut::F32(&mut [0.0])).is_err());
    assert!(kernel.run(Slice::F32(&[1.0; 3]), SliceMut::F32(&mut [0.0; 2])).is_err());
}

#[test]
fn products_of_random_layouts() {
    let mut rng = Rng(19);
    for _ in 0..200 {
        let (keep, fold, access, n) = layout(&mut rng, 3);
        // Powers of two, whose products are exact, and few enough zeros for most products to be none.
        let x: Vec<f32> = (0..n).map(|_| [1.0, 2.0, -0.5, -1.0, 1.0, 0.0][rng.below(41) % 6]).collect();
        let sets = members(&x, &keep, &fold, &access);
        let want: Vec<f64> = sets.iter().map(|s| s.iter().product()).collect();
        for level in Level::available() {
            let kernel = ReduceKernel::new(Monoid::Prod, &keep, &fold, &access, 0).unwrap().with_level(level);
            let mut out = vec![7.0f32; want.len()];
            kernel.run(Slice::F32(&x), SliceMut::F32(&mut out)).unwrap();
            let got: Vec<f64> = out.iter().map(|x| f64::from(*x)).collect();
            assert_eq!(got, want, "{keep:?} {fold:?} {access:?}");

            let ints: Vec<i32> = x.iter().map(|x| (*x * 2.0) as i32).collect();
            let integers = Access { dtype: DType::I32, ..access.clone() };
            let kernel =
                ReduceKernel::new(Monoid::Prod, &keep, &fold, &integers, 0).unwrap().with_level(level);
            let mut out = vec![7; want.len()];
            kernel.run(Slice::I32(&ints), SliceMut::I32(&mut out)).unwrap();
            let wraps = sets.iter().map(|s| s.iter().fold(1i32, |p, x| p.wrapping_mul((*x * 2.0) as i32)));
            assert_eq!(out, wraps.collect::<Vec<_>>(), "{keep:?} {fold:?}");
        }
    }
}

#[test]
fn squares_are_scaled_before_they_are_summed() {
    let x: Vec<f32> = (0..70_000).map(|i| (i % 13 - 6) as f32 * 1e37).collect();
    let wide: Vec<f64> = x.iter().map(|x| f64::from(*x) * 1e260).collect();
    let access = |dtype| Access { dtype, offset: 0, strides: vec![700, 1] };
    let scaled = |dtype, x: f64| (x * meshwright_plan::square_scale(dtype)).powi(2);
    let sums = |dtype, of: &dyn Fn(usize) -> f64| -> Vec<f64> {
        (0..100).map(|row| (0..700).map(|i| scaled(dtype, of(row * 700 + i))).sum()).collect()
    };
    for level in Level::available() {
        let kernel = |dtype| ReduceKernel::scaled_squares(&[100], &[700], &access(dtype)).unwrap();
        let (mut out, mut out_wide) = (vec![0f32; 100], vec![0f64; 100]);
        kernel(DType::F32).with_level(level).run(Slice::F32(&x), SliceMut::F32(&mut out)).unwrap();
        kernel(DType::F64).with_level(level).run(Slice::F64(&wide), SliceMut::F64(&mut out_wide)).unwrap();
        let near = |got: f64, want: f64, by: f64| (got - want).abs() <= by * want && want > 0.0;
        let want = sums(DType::F32, &|i| f64::from(x[i]));
        assert!(out.iter().zip(want).all(|(got, want)| near(f64::from(*got), want, 1e-6)));
        let want = sums(DType::F64, &|i| wide[i]);
        assert!(out_wide.iter().zip(want).all(|(got, want)| near(*got, want, 1e-12)));
    }
    assert!(ReduceKernel::scaled_squares(&[], &[3], &access(DType::BF16)).is_err());
}
