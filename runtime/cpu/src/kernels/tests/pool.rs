//! Pools against plain loops, shared by threads or not.

use crate::kernels::{PoolKernel, PoolWork, Slice, SliceMut, Sliding};
use meshwright_plan::{DType, Monoid};

/// 40 images of 31 x 3 channels under windows of 3 by 2; images lie outside, then rows, then channels.
const IMAGES: usize = 40;
const ROWS: usize = 31;
const POSITIONS: usize = 16;
const CHANNELS: usize = 70;

fn slide() -> Sliding {
    Sliding {
        stride: 2,
        dilation: 1,
        low: 1,
        elements: 0..ROWS,
        taps: 3,
        positions: 0..POSITIONS,
        strides: [CHANNELS, 0, CHANNELS],
    }
}

fn kernel(work: PoolWork, back: bool) -> PoolKernel {
    let (from, to) = if back { (POSITIONS, ROWS) } else { (ROWS, POSITIONS) };
    let plain = [(IMAGES, [from * CHANNELS, to * CHANNELS]), (CHANNELS, [1, 1])];
    PoolKernel::new(work, DType::F32, &plain, &[slide()], [IMAGES * from * CHANNELS, IMAGES * to * CHANNELS])
        .unwrap()
}

fn numbers(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 37) % 101) as f32 - 50.0).collect()
}

/// The elements under a position with their taps.
fn under(n: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..3).filter_map(move |t| Some((t, (n * 2 + t).checked_sub(1)?))).filter(|(_, i)| *i < ROWS)
}

fn each(mut f: impl FnMut(usize, usize, usize)) {
    for b in 0..IMAGES {
        for n in 0..POSITIONS {
            (0..CHANNELS).for_each(|c| f(b, n, c));
        }
    }
}

fn threads<T: Send + PartialEq + std::fmt::Debug>(f: impl Fn() -> T + Sync) -> T {
    let on = |n: usize| rayon::ThreadPoolBuilder::new().num_threads(n).build().unwrap().install(&f);
    let one = on(1);
    assert_eq!(one, on(3));
    one
}

#[test]
fn folds_taps_and_their_transposes() {
    let x = numbers(IMAGES * ROWS * CHANNELS);
    let y = numbers(IMAGES * POSITIONS * CHANNELS);
    let place = |b: usize, n: usize, c: usize, len: usize| (b * len + n) * CHANNELS + c;
    let fold = |m: Monoid| {
        threads(|| {
            let mut out = vec![7.0; y.len()];
            kernel(PoolWork::Fold(m), false).run(Slice::F32(&x), None, SliceMut::F32(&mut out)).unwrap();
            out
        })
    };
    let (sum, max, min) = (fold(Monoid::Sum), fold(Monoid::Max), fold(Monoid::Min));
    let taps = threads(|| {
        let mut out = vec![7; y.len()];
        kernel(PoolWork::Tap(Monoid::Max), false).run(Slice::F32(&x), None, SliceMut::I32(&mut out)).unwrap();
        out
    });
    let (mut spread, mut chosen) = (vec![0.0; x.len()], vec![0.0; x.len()]);
    each(|b, n, c| {
        let o = place(b, n, c, POSITIONS);
        let seen: Vec<(usize, f32)> = under(n).map(|(t, i)| (t, x[place(b, i, c, ROWS)])).collect();
        assert_eq!(sum[o], seen.iter().map(|s| s.1).sum::<f32>());
        assert_eq!(max[o], seen.iter().map(|s| s.1).fold(f32::MIN, f32::max));
        assert_eq!(min[o], seen.iter().map(|s| s.1).fold(f32::MAX, f32::min));
        assert_eq!(Some(taps[o] as usize), seen.iter().find(|s| s.1 == max[o]).map(|s| s.0));
        for (t, i) in under(n) {
            spread[place(b, i, c, ROWS)] += y[o];
            chosen[place(b, i, c, ROWS)] += if t as i32 == taps[o] { y[o] } else { 0.0 };
        }
    });
    let back = |work, first: Slice<'_>, values: Option<Slice<'_>>| {
        let mut out = vec![7.0; x.len()];
        kernel(work, true).run(first, values, SliceMut::F32(&mut out)).unwrap();
        out
    };
    assert_eq!(threads(|| back(PoolWork::Spread, Slice::F32(&y), None)), spread);
    assert_eq!(threads(|| back(PoolWork::Choose, Slice::I32(&taps), Some(Slice::F32(&y)))), chosen);
}

#[test]
fn what_is_no_number_wins() {
    let mut x = numbers(IMAGES * ROWS * CHANNELS);
    x[CHANNELS * 4] = f32::NAN;
    let mut out = vec![0.0; IMAGES * POSITIONS * CHANNELS];
    kernel(PoolWork::Fold(Monoid::Max), false).run(Slice::F32(&x), None, SliceMut::F32(&mut out)).unwrap();
    // Element 4 is under position 2 alone, in the middle.
    assert!(out[CHANNELS * 2].is_nan() && !out[CHANNELS].is_nan());
    let mut taps = vec![0; out.len()];
    kernel(PoolWork::Tap(Monoid::Max), false).run(Slice::F32(&x), None, SliceMut::I32(&mut taps)).unwrap();
    assert_eq!(taps[CHANNELS * 2], 1);
}
