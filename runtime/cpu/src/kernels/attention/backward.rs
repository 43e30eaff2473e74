//! The gradients of queries, keys, values and a bias: weights are computed again from the scores, tile by tile.

use super::super::matrix::{Matrix, product};
use super::super::{KernelError, Slice, par};
use super::output::SharedOut;
use super::prepare::{AttentionKernel, TileMap};
use super::tile::{TileAt, TileElement, multiply, scale, scale_rows, shifted, through_softmax, vanishes};
use meshwright_exec::backend::RngState;
use meshwright_plan::AttentionPart;
use rayon::prelude::*;

/// Tasks at least, where the gradient of a bias is a sum over positions of the outer dims: these are taken in so many parts,
/// whatever the number of threads, so that the order of the sum is one.
const TASKS: usize = 16;

/// Buffers of a task.
struct BackwardScratch<T> {
    /// Weights, and what flows back to the scores.
    weights: Vec<T>,
    back: Vec<T>,
    slopes: Vec<T>,
    bias_slopes: Vec<T>,
    factors: Vec<T>,
    drawn: Vec<Vec<u8>>,
    q: Vec<T>,
    cotangent: Vec<T>,
    max: Vec<T>,
    scale: Vec<T>,
    delta: Vec<T>,
    sums: Vec<T>,
    packed: Vec<T>,
    packed_values: Vec<T>,
    /// The gradients: of all queries, and of a tile of keys and values.
    of_queries: Vec<T>,
    of_keys: Vec<T>,
    of_values: Vec<T>,
}

impl<T> Default for BackwardScratch<T> {
    fn default() -> Self {
        BackwardScratch {
            weights: vec![],
            back: vec![],
            slopes: vec![],
            bias_slopes: vec![],
            factors: vec![],
            drawn: vec![],
            q: vec![],
            cotangent: vec![],
            max: vec![],
            scale: vec![],
            delta: vec![],
            sums: vec![],
            packed: vec![],
            packed_values: vec![],
            of_queries: vec![],
            of_keys: vec![],
            of_values: vec![],
        }
    }
}

/// Computes the gradients that the step gives; results are 0 before.
pub(super) fn run<T: TileElement>(
    kernel: &AttentionKernel,
    reads: &[Slice<'_>],
    outs: &[SharedOut<T>],
    rng: RngState,
) -> Result<(), KernelError> {
    let bias = kernel.gives(AttentionPart::Bias);
    let lacks = |i: usize| bias.is_some_and(|write| kernel.plan.writes[write].outer[i] == 0);
    let apart = |i: usize| kernel.is_shared(i) && !lacks(i);
    let summed = |i: usize| kernel.is_shared(i) && lacks(i);
    let alike = |i: usize| !kernel.is_shared(i);
    let [places, terms, each] =
        [&apart as &dyn Fn(usize) -> bool, &summed, &alike].map(|of| kernel.outer_count(of));
    let parts = TASKS.div_ceil(places.max(1)).min(terms).max(1);
    // The first part is added to the result itself.
    let mut sums: Vec<Vec<T>> =
        bias.iter().flat_map(|write| (1..parts).map(|_| vec![T::default(); outs[*write].len()])).collect();
    let of_parts: Vec<SharedOut<T>> = sums.iter_mut().map(|x| SharedOut::new(x)).collect();
    let task = |s: &mut BackwardScratch<T>, task: usize| {
        let mut at = vec![0; kernel.plan.outer.len()];
        let (place, part) = (task / parts, task % parts);
        kernel.outer_at(place, &apart, &mut at);
        let of_bias = bias.map(|write| if part == 0 { &outs[write] } else { &of_parts[part - 1] });
        (part * terms / parts..(part + 1) * terms / parts).try_for_each(|term| {
            kernel.outer_at(term, &summed, &mut at);
            (0..each).try_for_each(|i| {
                kernel.outer_at(i, &alike, &mut at);
                kernel.backward(reads, (outs, of_bias), rng, &at, s)
            })
        })
    };
    let rows: usize = kernel.plan.rows.iter().product();
    let pairs = [places, terms, each, rows, kernel.plan.keys].into_iter().fold(1, usize::saturating_mul);
    if par::worth(pairs.saturating_mul(kernel.reads[0][1].len().max(1))) {
        (0..places * parts).into_par_iter().try_for_each_init(BackwardScratch::default, task)?;
    } else {
        let mut s = BackwardScratch::default();
        (0..places * parts).try_for_each(|i| task(&mut s, i))?;
    }
    if let Some(write) = bias {
        sums.iter().for_each(|x| outs[write].add_all(x));
    }
    Ok(())
}

impl AttentionKernel {
    fn gives(&self, part: AttentionPart) -> Option<usize> {
        self.plan.parts.iter().position(|p| *p == part)
    }

    /// All tiles at one position of the outer dims.
    fn backward<T: TileElement>(
        &self,
        reads: &[Slice<'_>],
        (outs, of_bias): (&[SharedOut<T>], Option<&SharedOut<T>>),
        rng: RngState,
        outer: &[usize],
        s: &mut BackwardScratch<T>,
    ) -> Result<(), KernelError> {
        let (width, values) =
            (self.reads[0][1].len(), self.operands.cotangent.map_or(0, |v| self.reads[v][1].len()));
        let rows: usize = self.plan.rows.iter().product();
        s.of_queries.clear();
        s.of_queries
            .resize(if self.gives(AttentionPart::Query).is_some() { rows * width } else { 0 }, T::default());
        for keys in self.key_tiles() {
            s.of_keys.clear();
            s.of_keys.resize(keys.1 * width, T::default());
            s.of_values.clear();
            s.of_values.resize(keys.1 * values, T::default());
            for rows in &self.tiles {
                self.backward_tile(&TileAt { kernel: self, reads, rng, outer, rows, keys }, of_bias, s)?;
            }
            for (part, x) in [(AttentionPart::Key, &s.of_keys), (AttentionPart::Value, &s.of_values)] {
                let Some(write) = self.gives(part) else { continue };
                let a = &self.plan.writes[write];
                let base: usize = a.outer.iter().zip(outer).map(|(s, i)| s * i).sum();
                let own = &self.writes[write][1];
                for (row, k) in x.chunks_exact(own.len().max(1)).zip(keys.0..) {
                    outs[write].add(base + k * a.key, own, row);
                }
            }
        }
        if let Some(write) = self.gives(AttentionPart::Query) {
            for tile in &self.tiles {
                let part = &s.of_queries[tile.first * width..(tile.first + tile.len) * width];
                self.store(write, &outs[write], outer, tile, part);
            }
        }
        Ok(())
    }

    fn backward_tile<T: TileElement>(
        &self,
        tile: &TileAt<'_>,
        of_bias: Option<&SharedOut<T>>,
        s: &mut BackwardScratch<T>,
    ) -> Result<(), KernelError> {
        let (Some(max), Some(scales), Some(cotangent)) =
            (self.operands.max, self.operands.scale, self.operands.cotangent)
        else {
            return Err(KernelError::Unsupported("a gradient without its operands".into()));
        };
        let (n, count) = (tile.rows.len, tile.keys.1);
        let (width, values) = (self.reads[0][1].len(), self.reads[cotangent][1].len());
        tile.pack_rows(0, &mut s.q);
        tile.pack_rows(cotangent, &mut s.cotangent);
        tile.pack_rows(max, &mut s.max);
        tile.pack_rows(scales, &mut s.scale);
        if tile.constant().is_some_and(|score| vanishes(score, &s.max)) {
            return Ok(());
        }
        for m in &mut s.max {
            *m = if *m == T::LEAST { T::default() } else { *m };
        }
        let rows = |data, row| Matrix { data, row, column: 1 };
        let (q, dy) = (rows(&s.q, width), rows(&s.cotangent, values));
        let k = tile.keys_of(1, &mut s.packed);
        tile.draw(&mut s.drawn);
        s.weights.resize(tile.elements(), T::default());
        product(&mut s.weights, [n, count, width], q, k.transposed(), false, false);
        let of_scores = self.operands.values.zip(self.operands.delta);
        let slope = tile.of(&self.slope);
        if of_scores.is_some() && !matches!(slope, TileMap::Number(_)) {
            s.slopes.clear();
            s.slopes.extend_from_slice(&s.weights);
            tile.map(slope, &mut s.slopes, &s.drawn)?;
        }
        if let Some(maps) = &self.bias_slope {
            s.bias_slopes.clear();
            s.bias_slopes.extend_from_slice(&s.weights);
            tile.map(tile.of(maps), &mut s.bias_slopes, &s.drawn)?;
        }
        tile.map(tile.of(&self.score), &mut s.weights, &s.drawn)?;
        s.sums.resize(n, T::default());
        shifted(self.level, &mut s.weights, count, &s.max, &mut s.sums);
        scale_rows(self.level, &mut s.weights, count, &s.scale);
        if let Some((v, delta)) = of_scores {
            tile.pack_rows(delta, &mut s.delta);
            let v = tile.keys_of(v, &mut s.packed_values);
            s.back.resize(tile.elements(), T::default());
            product(&mut s.back, [n, count, values], dy, v.transposed(), false, false);
            tile.weigh(&mut s.back, &mut s.factors, &s.drawn)?;
            through_softmax(self.level, &mut s.back, &s.weights, count, &s.delta);
            if let (Some(out), Some(_)) = (of_bias, &self.bias_slope) {
                multiply(self.level, &mut s.bias_slopes, &s.back);
                self.add_to_bias(tile, out, &s.bias_slopes);
            }
            match slope {
                TileMap::Number(f) => scale(self.level, &mut s.back, T::number(*f)),
                _ => multiply(self.level, &mut s.back, &s.slopes),
            }
            if let (Some(out), None) = (of_bias, &self.bias_slope) {
                self.add_to_bias(tile, out, &s.back);
            }
            tile.round(&mut s.back);
            let back = rows(&s.back, count);
            if self.gives(AttentionPart::Query).is_some() {
                let to = &mut s.of_queries[tile.rows.first * width..(tile.rows.first + n) * width];
                product(to, [n, width, count], back, k, true, false);
            }
            if self.gives(AttentionPart::Key).is_some() {
                product(&mut s.of_keys, [count, width, n], back.transposed(), q, true, false);
            }
        }
        if self.gives(AttentionPart::Value).is_some() {
            tile.weigh_for_product(&mut s.weights, &mut s.factors, &s.drawn)?;
            let p = rows(&s.weights, count).transposed();
            product(&mut s.of_values, [count, values, n], p, dy, true, false);
        }
        Ok(())
    }
    /// Adds a tile of the gradient of scores to that of the bias.
    fn add_to_bias<T: TileElement>(&self, tile: &TileAt<'_>, out: &SharedOut<T>, x: &[T]) {
        let Some(write) = self.gives(AttentionPart::Bias) else { return };
        let (a, rows) = (&self.plan.writes[write], &self.writes[write][0][tile.rows.first..]);
        let outer: usize = a.outer.iter().zip(tile.outer).map(|(s, i)| s * i).sum();
        let first = outer + tile.keys.0 * a.key;
        // One place for all keys where the bias lacks their dim.
        let places: Vec<usize> = (0..tile.keys.1).map(|k| k * a.key).collect();
        for (row, at) in x.chunks_exact(tile.keys.1).zip(rows) {
            out.add(first + at, &places, row);
        }
    }
}
