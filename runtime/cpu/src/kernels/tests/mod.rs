//! Every kernel against a naive reference, on every instruction set of the machine.
#![allow(clippy::unwrap_used, reason = "tests")]

mod cumsum;
mod map;
mod math;
mod moves;
mod pool;
mod random;
mod reduce;
mod rows;
mod top_k;

use super::dense_strides;

/// A small generator of test numbers.
pub(super) struct Rng(pub(super) u64);

impl Rng {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    pub(super) fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    /// Between -1 and 1.
    pub(super) fn unit(&mut self) -> f64 {
        self.next() as f64 / (1u64 << 30) as f64 - 1.0
    }

    /// A shape of up to `rank` dims; now and then empty or of ones.
    pub(super) fn shape(&mut self, rank: usize) -> Vec<usize> {
        let n = self.below(rank + 1);
        (0..n)
            .map(|_| match self.below(12) {
                0 => 0,
                1 => 1,
                2..5 => 1 + self.below(70),
                _ => 1 + self.below(12),
            })
            .collect()
    }

    /// Strides of a dense operand that has some of the dims in some order, and how many elements it has.
    pub(super) fn strides(&mut self, shape: &[usize], lack: &[usize]) -> (Vec<usize>, usize) {
        let mut dims: Vec<usize> = (0..shape.len()).filter(|d| !lack.contains(d)).collect();
        for i in (1..dims.len()).rev() {
            dims.swap(i, self.below(i + 1));
        }
        let own: Vec<usize> = dims.iter().map(|d| shape[*d]).collect();
        let mut strides = vec![0; shape.len()];
        for (d, s) in dims.iter().zip(dense_strides(&own)) {
            strides[*d] = s;
        }
        (strides, own.iter().product())
    }
}

/// Every index of a shape, row-major.
pub(super) fn indices(shape: &[usize]) -> Vec<Vec<usize>> {
    let total: usize = shape.iter().product();
    (0..total)
        .map(|mut i| {
            let mut index = vec![0; shape.len()];
            for d in (0..shape.len()).rev() {
                index[d] = i % shape[d];
                i /= shape[d];
            }
            index
        })
        .collect()
}

pub(super) fn dot(index: &[usize], strides: &[usize]) -> usize {
    index.iter().zip(strides).map(|(i, s)| i * s).sum()
}

/// Runs `f` in pools of 1, 2 and 3 threads and on the calling thread; all results must be equal.
pub(super) fn same_for_all_pools<R: PartialEq + std::fmt::Debug + Send>(f: impl Fn() -> R + Sync) -> R {
    let alone = f();
    for threads in 1..=3 {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        assert!(pool.install(&f) == alone, "{threads} threads give another result");
    }
    alone
}
