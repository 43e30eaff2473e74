//! Against plain loops, on blocks with ragged edges, in several orders of storage, with every instruction set.

use super::shape::KERNEL;
use super::*;

/// A dim of the three tensors: lengths in input, kernel and result; `None` where it is lacking.
struct Along {
    lens: [Option<usize>; 3],
    slide: Option<usize>,
}

/// Elements, taps, positions, stride, dilation, low.
type Slid = (std::ops::Range<usize>, usize, std::ops::Range<usize>, usize, usize, usize);

/// One convolution: sliding dims, and lengths of the four kinds of others.
struct Case {
    slides: Vec<Slid>,
    batch: usize,
    groups: usize,
    ins: usize,
    outs: usize,
    /// Whether the channels are stored before what slides.
    first: bool,
}

impl Case {
    fn dims(&self) -> Vec<Along> {
        let plain = |lens| Along { lens, slide: None };
        let batch = plain([Some(self.batch), None, Some(self.batch)]);
        let groups = plain([Some(self.groups); 3]);
        let (ins, outs) =
            (plain([Some(self.ins), Some(self.ins), None]), plain([None, Some(self.outs), Some(self.outs)]));
        let mut slides: Vec<Along> = self
            .slides
            .iter()
            .enumerate()
            .map(|(k, s)| Along { lens: [Some(s.0.len()), Some(s.1), Some(s.2.len())], slide: Some(k) })
            .collect();
        let mut out = vec![batch];
        if self.first {
            out.extend([groups, ins, outs]);
            out.append(&mut slides);
        } else {
            out.append(&mut slides);
            out.extend([groups, ins, outs]);
        }
        out
    }

    /// The shape, and the number of elements of each tensor.
    fn shape(&self) -> (ConvolveShape, [usize; 3]) {
        let dims = self.dims();
        let mut strides = vec![[0; 3]; dims.len()];
        let mut elements = [1; 3];
        for t in 0..3 {
            for (d, strides) in dims.iter().zip(&mut strides).rev() {
                if let Some(len) = d.lens[t] {
                    strides[t] = elements[t];
                    elements[t] *= len;
                }
            }
        }
        let mut shape = ConvolveShape::default();
        for (d, strides) in dims.iter().zip(strides) {
            if let Some(k) = d.slide {
                let s = &self.slides[k];
                shape.slides.push(Sliding {
                    stride: s.3,
                    dilation: s.4,
                    low: s.5,
                    elements: s.0.clone(),
                    taps: s.1,
                    positions: s.2.clone(),
                    strides,
                });
                continue;
            }
            let shared = Shared { len: d.lens.iter().flatten().copied().next().unwrap_or(1), strides };
            match d.lens.map(|l| l.is_some()) {
                [true, false, true] => shape.batch.push(shared),
                [true, true, true] => shape.groups.push(shared),
                [true, true, false] => shape.ins.push(shared),
                _ => shape.outs.push(shared),
            }
        }
        (shape, elements)
    }
}

/// Calls `f` with the places in the three tensors of every product.
fn products(shape: &ConvolveShape, mut f: impl FnMut([usize; 3])) {
    let mut places = vec![[0; 3]];
    for d in [&shape.batch, &shape.groups, &shape.ins, &shape.outs].into_iter().flatten() {
        let longer = places
            .iter()
            .flat_map(|p| (0..d.len).map(move |i| std::array::from_fn(|t| p[t] + i * d.strides[t])));
        places = longer.collect();
    }
    for s in &shape.slides {
        let mut longer: Vec<[usize; 3]> = Vec::new();
        for p in &places {
            for n in s.positions.clone() {
                for t in 0..s.taps {
                    let i = (n * s.stride + t * s.dilation) as i64 - s.low as i64;
                    if i >= s.elements.start as i64 && i < s.elements.end as i64 {
                        let at = [i as usize - s.elements.start, t, n - s.positions.start];
                        longer.push(std::array::from_fn(|k| p[k] + at[k] * s.strides[k]));
                    }
                }
            }
        }
        places = longer;
    }
    places.into_iter().for_each(&mut f);
}

fn numbers(n: usize, seed: usize) -> Vec<f64> {
    (0..n).map(|i| ((i * 31 + seed * 17) % 23) as f64 / 4.0 - 2.5).collect()
}

fn check(case: &Case) {
    let (shape, elements) = case.shape();
    let all = [0, 1, 2].map(|t| numbers(elements[t], t + 1));
    for (gives, t) in [(Part::Input, INPUT), (Part::Kernel, KERNEL), (Part::Result, RESULT)] {
        let mut want = vec![0.0; elements[t]];
        let others: Vec<usize> = (0..3).filter(|k| *k != t).collect();
        products(&shape, |p| want[p[t]] += all[others[0]][p[others[0]]] * all[others[1]][p[others[1]]]);
        for level in Level::available() {
            let kernel = ConvolveKernel::new(DType::F64, gives, &shape, elements).unwrap();
            let mut got = vec![9.0; elements[t]];
            kernel.compute(level, &all[others[0]], &all[others[1]], &mut got);
            // Multiples of 1/16 below 2^20: every sum is exact in both types.
            assert_eq!(got, want, "{gives:?} {level:?} {shape:?}");
            let kernel = ConvolveKernel::new(DType::F32, gives, &shape, elements).unwrap();
            let narrow = |v: &Vec<f64>| v.iter().map(|x| *x as f32).collect::<Vec<f32>>();
            let mut got = vec![9.0; elements[t]];
            kernel.compute(level, &narrow(&all[others[0]]), &narrow(&all[others[1]]), &mut got);
            assert_eq!(got, narrow(&want), "{gives:?} {level:?} {shape:?}");
        }
    }
}

#[test]
fn all_parts_equal_plain_loops() {
    for first in [false, true] {
        // The whole of a small image; the last two devices of a split one; strided, dilated, padded, empty ones.
        let whole = |n: usize, k: usize| (0..n, k, 0..n, 1, 1, k / 2);
        check(&Case { slides: vec![whole(7, 3), whole(9, 5)], batch: 2, groups: 1, ins: 3, outs: 5, first });
        check(&Case { slides: vec![whole(20, 9)], batch: 3, groups: 1, ins: 1, outs: 17, first });
        check(&Case {
            slides: vec![(2..9, 5, 4..8, 1, 1, 2), whole(5, 9)],
            batch: 1,
            groups: 2,
            ins: 2,
            outs: 3,
            first,
        });
        check(&Case {
            slides: vec![(3..7, 3, 2..4, 2, 1, 0), (0..9, 2, 0..3, 3, 2, 1)],
            batch: 2,
            groups: 1,
            ins: 2,
            outs: 2,
            first,
        });
        check(&Case {
            slides: vec![whole(3, 2), (1..4, 2, 0..2, 2, 1, 1), whole(4, 3)],
            batch: 1,
            groups: 3,
            ins: 1,
            outs: 1,
            first,
        });
        check(&Case {
            slides: vec![(0..5, 3, 2..2, 1, 1, 1), whole(4, 3)],
            batch: 2,
            groups: 1,
            ins: 2,
            outs: 2,
            first,
        });
        check(&Case { slides: vec![(3..3, 3, 1..3, 1, 1, 1)], batch: 2, groups: 1, ins: 2, outs: 2, first });
        check(&Case {
            slides: vec![whole(6, 3), (0..4, 6, 0..6, 2, 3, 9)],
            batch: 1,
            groups: 1,
            ins: 1,
            outs: 2,
            first,
        });
    }
}

/// Results are the same however many threads there are, to the last bit.
#[test]
fn threads_change_nothing() {
    let whole = |n: usize, k: usize| (0..n, k, 0..n, 1, 1, k / 2);
    for batch in [1, 20] {
        let case = Case {
            slides: vec![whole(30, 5), whole(30, 5)],
            batch,
            groups: 1,
            ins: 8,
            outs: 8,
            first: false,
        };
        let (shape, elements) = case.shape();
        let all = [0, 1, 2]
            .map(|t| -> Vec<f32> { numbers(elements[t], t).iter().map(|v| (*v / 3.0) as f32).collect() });
        for (gives, t) in [(Part::Input, INPUT), (Part::Kernel, KERNEL), (Part::Result, RESULT)] {
            let kernel = ConvolveKernel::new(DType::F32, gives, &shape, elements).unwrap();
            let others: Vec<usize> = (0..3).filter(|k| *k != t).collect();
            let run = |threads: usize| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                let mut out = vec![0.0; elements[t]];
                pool.install(|| {
                    kernel
                        .run(
                            Slice::F32(&all[others[0]]),
                            Slice::F32(&all[others[1]]),
                            SliceMut::F32(&mut out),
                        )
                        .unwrap();
                });
                out
            };
            assert_eq!(run(1), run(3), "{gives:?}");
        }
    }
}
