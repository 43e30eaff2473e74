//! The gradients of queries, keys and values: weights are computed again from the scores, tile by tile.

use super::super::matrix::{Matrix, product};
use super::super::{KernelError, Slice, par};
use super::output::SharedOut;
use super::prepare::{AttentionKernel, TileMap};
use super::tile::{TileAt, TileElement, multiply, scale, scale_rows, shifted, through_softmax, vanishes};
use meshwright_exec::backend::RngState;
use meshwright_plan::AttentionPart;
use rayon::prelude::*;

/// Buffers of a task.
struct BackwardScratch<T> {
    /// Weights, and what flows back to the scores.
    weights: Vec<T>,
    back: Vec<T>,
    slopes: Vec<T>,
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
    let tasks = kernel.outer_count(&|shared| shared);
    let each = kernel.outer_count(&|shared| !shared);
    let task = |s: &mut BackwardScratch<T>, task: usize| {
        let mut at = vec![0; kernel.plan.outer.len()];
        kernel.outer_at(task, &|shared| shared, &mut at);
        (0..each).try_for_each(|i| {
            kernel.outer_at(i, &|shared| !shared, &mut at);
            kernel.backward(reads, outs, rng, &at, s)
        })
    };
    let rows: usize = kernel.plan.rows.iter().product();
    let pairs = tasks.saturating_mul(each).saturating_mul(rows).saturating_mul(kernel.plan.keys);
    if par::worth(pairs.saturating_mul(kernel.reads[0][1].len().max(1))) {
        (0..tasks).into_par_iter().try_for_each_init(BackwardScratch::default, task)
    } else {
        let mut s = BackwardScratch::default();
        (0..tasks).try_for_each(|i| task(&mut s, i))
    }
}

impl AttentionKernel {
    fn gives(&self, part: AttentionPart) -> Option<usize> {
        self.plan.parts.iter().position(|p| *p == part)
    }

    /// All tiles at one position of the outer dims.
    fn backward<T: TileElement>(
        &self,
        reads: &[Slice<'_>],
        outs: &[SharedOut<T>],
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
                self.backward_tile(&TileAt { kernel: self, reads, rng, outer, rows, keys }, s)?;
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
        let q = Matrix { data: &s.q, row: width, column: 1 };
        let dy = Matrix { data: &s.cotangent, row: values, column: 1 };
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
            match slope {
                TileMap::Number(f) => scale(self.level, &mut s.back, T::number(*f)),
                _ => multiply(self.level, &mut s.back, &s.slopes),
            }
            let back = Matrix { data: &s.back, row: count, column: 1 };
            if self.gives(AttentionPart::Query).is_some() {
                let to = &mut s.of_queries[tile.rows.first * width..(tile.rows.first + n) * width];
                product(to, [n, width, count], back, k, true, false);
            }
            if self.gives(AttentionPart::Key).is_some() {
                product(&mut s.of_keys, [count, width, n], back.transposed(), q, true, false);
            }
        }
        if self.gives(AttentionPart::Value).is_some() {
            tile.weigh(&mut s.weights, &mut s.factors, &s.drawn)?;
            let p = Matrix { data: &s.weights, row: count, column: 1 };
            product(&mut s.of_values, [count, values, n], p.transposed(), dy, true, false);
        }
        Ok(())
    }
}
