use super::{Rng, indices, same_for_all_pools};
use crate::kernels::{DrawBlock, DrawPoint, KernelError, RandomBlock, SliceMut};
use meshwright_plan::DType;
use meshwright_plan::random::{Distribution, Key, draw, draw_f32};

const NORMAL: Distribution = Distribution::Normal { mean: 1.0, std: 0.5 };

#[test]
fn any_block_is_that_part_of_the_whole() {
    let mut rng = Rng(5);
    for round in 0..200 {
        let sizes = rng.shape(4);
        let ranges: Vec<_> = sizes
            .iter()
            .map(|n| {
                let start = rng.below(n + 1);
                start..start + rng.below(n - start + 1)
            })
            .collect();
        let shape: Vec<usize> = ranges.iter().map(ExactSizeIterator::len).collect();
        let key = Key::of_step(3, "s", round);
        let at = |i: &Vec<usize>| {
            let global = i.iter().zip(&ranges).map(|(i, r)| i + r.start);
            global.zip(&sizes).fold(0u64, |p, (i, n)| p * *n as u64 + i as u64)
        };
        let places: Vec<u64> = indices(&shape).iter().map(at).collect();
        let kept = Distribution::Bernoulli { rate: 0.4 };
        let run = |d: Distribution, dtype: DType, out: SliceMut<'_>| {
            RandomBlock::new("s", d, dtype, &sizes, &ranges)
                .unwrap()
                .run(3, DrawPoint { step: round, ..DrawPoint::default() }, None, out)
                .unwrap();
        };
        let (mut wide, mut narrow, mut bits) =
            (vec![f64::NAN; places.len()], vec![f32::NAN; places.len()], vec![7; places.len()]);
        run(NORMAL, DType::F64, SliceMut::F64(&mut wide));
        run(NORMAL, DType::F32, SliceMut::F32(&mut narrow));
        run(kept, DType::Bool, SliceMut::Bool(&mut bits));
        for (k, i) in places.iter().enumerate() {
            assert_eq!(wide[k], draw(&NORMAL, key, *i), "{sizes:?} {ranges:?}");
            assert_eq!(narrow[k], draw_f32(&NORMAL, key, *i));
            assert_eq!(f64::from(bits[k]), draw(&kept, key, *i));
        }
    }
}

#[test]
fn large_blocks_are_the_same_with_any_pool() {
    for (sizes, ranges) in [
        (vec![300, 700], vec![17..290, 3..696]),
        (vec![2, 200_000], vec![1..2, 5..190_001]),
        (vec![3, 1, 90_000], vec![1..3, 0..1, 0..90_000]),
    ] {
        let n: usize = ranges.iter().map(ExactSizeIterator::len).product();
        let kernel = RandomBlock::new("s", NORMAL, DType::F32, &sizes, &ranges).unwrap();
        let drawn = same_for_all_pools(|| {
            let mut out = vec![f32::NAN; n];
            kernel
                .run(1, DrawPoint { step: 2, ..DrawPoint::default() }, None, SliceMut::F32(&mut out))
                .unwrap();
            out
        });
        assert!(drawn.iter().all(|x| x.is_finite()));
    }
}

#[test]
fn what_cannot_be_drawn_is_refused() {
    let kept = Distribution::Bernoulli { rate: 0.5 };
    let new = |d, dtype, sizes: &[usize], range: std::ops::Range<usize>| {
        RandomBlock::new("s", d, dtype, sizes, std::slice::from_ref(&range))
    };
    assert!(matches!(new(kept, DType::F32, &[3], 0..3), Err(KernelError::Unsupported(_))));
    assert!(matches!(new(NORMAL, DType::Bool, &[3], 0..3), Err(KernelError::Unsupported(_))));
    assert!(matches!(new(NORMAL, DType::I32, &[3], 0..3), Err(KernelError::Unsupported(_))));
    assert!(matches!(new(NORMAL, DType::F32, &[3], 1..4), Err(KernelError::Unsupported(_))));
    assert!(matches!(new(NORMAL, DType::F32, &[3, 2], 1..3), Err(KernelError::Rank { .. })));
    let kernel = new(NORMAL, DType::F32, &[3], 1..3).unwrap();
    assert!(
        kernel
            .run(0, DrawPoint { step: 1, ..DrawPoint::default() }, None, SliceMut::F32(&mut [0.0; 3]))
            .is_err()
    );
    assert!(
        kernel
            .run(0, DrawPoint { step: 1, ..DrawPoint::default() }, None, SliceMut::F64(&mut [0.0; 2]))
            .is_err()
    );
}

/// What an example gets is the same in batches of any size, wherever the dim that counts examples stands, and in any block.
#[test]
fn what_an_example_gets_depends_on_its_number_alone() {
    let key = Key::of_step(3, "s", 0);
    for at in 0..3 {
        let mut seen = meshwright_sorted::SortedMap::new();
        for (batch, first) in [(4, 0), (4, 4), (3, 0), (3, 3), (2, 6), (8, 0)] {
            let mut sizes = vec![5, 2];
            sizes.insert(at, batch);
            for range in [0..batch, 1..2] {
                let mut ranges = vec![0..5, 0..2];
                ranges.insert(at, range.clone());
                let shape: Vec<usize> = ranges.iter().map(ExactSizeIterator::len).collect();
                let mut out = vec![f64::NAN; shape.iter().product()];
                let kernel = RandomBlock::new("s", NORMAL, DType::F64, &sizes, &ranges).unwrap();
                let kernel = kernel.of_examples(Some(at));
                kernel
                    .run(
                        3,
                        DrawPoint { step: 0, ..DrawPoint::default() },
                        Some(first as u64),
                        SliceMut::F64(&mut out),
                    )
                    .unwrap();
                for (place, x) in indices(&shape).iter().zip(out) {
                    let mut place = place.clone();
                    let example = place.remove(at) + range.start + first;
                    assert_eq!(
                        *seen.entry((example, place.clone())).or_insert(x),
                        x,
                        "{at} {example} {place:?}"
                    );
                    let count = (example * 10 + place[0] * 2 + place[1]) as u64;
                    assert_eq!(x, draw(&NORMAL, key, count));
                }
            }
        }
        assert_eq!(seen.len(), 80);
    }
}
