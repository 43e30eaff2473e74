//! The efficiency of a matrix product by its shape.

use crate::machine::MatmulShape;
use crate::work::Matmul;

/// Least elements of the summed dim that a unit takes where a sum is split among units.
const LEAST_SPLIT: f64 = 512.0;

/// The part of the best rate in 0..=1 that a product reaches on `units`: whole tiles, whole waves, filling of pipelines. A
/// pipeline is filled for each tile, or, where a unit reads ahead, once for all tiles that it computes one after the other. The
/// tile and the split of the sum that reach most count, as libraries choose them.
pub fn efficiency(of: &Matmul, shape: &MatmulShape, units: f64) -> f64 {
    let mut best: f64 = 0.0;
    for (rows, columns, rate) in &shape.tiles {
        let tiles = (of.m.div_ceil(*rows as u64) * of.n.div_ceil(*columns as u64) * of.batch) as f64;
        let area = (rows * columns) as f64;
        for split in [1.0, 2.0, 4.0, 8.0] {
            let k = of.k as f64 / split;
            if split > 1.0 && (tiles * split > 2.0 * units || k < LEAST_SPLIT) {
                break;
            }
            let waves = (tiles * split / units).ceil();
            let useful = (of.m * of.n * of.batch) as f64 / (area * units * waves / split);
            let summed = if shape.ahead { waves * k } else { k };
            let filled = summed / (summed + shape.fill);
            best = best.max(rate * useful * filled * if split > 1.0 { shape.split } else { 1.0 });
        }
    }
    best.min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshwright_plan::Arithmetic;

    fn of(m: u64, n: u64, k: u64) -> f64 {
        shaped(m, n, k, false)
    }

    fn shaped(m: u64, n: u64, k: u64, ahead: bool) -> f64 {
        let tiles = vec![(256, 128, 1.0), (128, 128, 0.9), (64, 64, 0.5)];
        let shape = MatmulShape { issue: 0.85, fill: 400.0, tiles, split: 0.92, ahead, source: None };
        efficiency(&Matmul { m, n, k, batch: 1, arithmetic: Arithmetic::BF16, fp8: false }, &shape, 108.0)
    }

    #[test]
    fn whole_waves_and_long_sums_are_efficient() {
        // 108 tiles of 256 x 128 are one wave.
        assert!((of(256 * 108, 128, 1 << 20) - 1.0).abs() < 1e-3);
        // One row more makes a second wave with one tile of another size in it.
        assert!(of(256 * 108 + 1, 128, 1 << 20) < 0.95);
        assert!((of(256 * 108, 128, 400) - 0.5).abs() < 1e-12);
        assert!(of(8, 8, 64) < 0.001);
    }

    /// Of four waves of tiles with 400 elements each, the first alone waits for what fills it.
    #[test]
    fn units_that_read_ahead_fill_once() {
        let (each, once) = (of(256 * 108, 512, 400), shaped(256 * 108, 512, 400, true));
        assert!((each - 0.5).abs() < 1e-12 && (once - 0.8).abs() < 1e-12, "{each} {once}");
        assert_eq!(of(64, 64, 400), shaped(64, 64, 400, true), "of one tile");
    }

    #[test]
    fn a_long_sum_is_split_among_units() {
        assert!(of(128, 128, 65_536) > 3.0 * of(128, 128, 1_000));
    }
}
