//! The forward pass: greatest scores, sums of exponentials, and values weighted by these. It begins with nothing, or continues
//! with the results for other keys.

use super::super::matrix::{Matrix, product};
use super::super::{KernelError, Slice, par};
use super::output::SharedOut;
use super::prepare::{AttentionKernel, RowTile};
use super::tile::{TileAt, TileElement, greatest, multiply, scale_rows, shifted, vanishes};
use meshwright_exec::backend::RngState;
use meshwright_plan::AttentionPart;
use rayon::prelude::*;

/// Buffers of a task.
struct ForwardScratch<T> {
    scores: Vec<T>,
    factors: Vec<T>,
    drawn: Vec<Vec<u8>>,
    q: Vec<T>,
    packed: Vec<T>,
    max: Vec<T>,
    shift: Vec<T>,
    /// The greatest scores before a tile, then what they make of what was summed.
    before: Vec<T>,
    sum: Vec<T>,
    values: Vec<T>,
}

impl<T> Default for ForwardScratch<T> {
    fn default() -> Self {
        ForwardScratch {
            scores: vec![],
            factors: vec![],
            drawn: vec![],
            q: vec![],
            packed: vec![],
            max: vec![],
            shift: vec![],
            before: vec![],
            sum: vec![],
            values: vec![],
        }
    }
}

/// Computes all results, a tile of queries at a position of the outer dims by itself.
pub(super) fn run<T: TileElement>(
    kernel: &AttentionKernel,
    reads: &[Slice<'_>],
    outs: &[SharedOut<T>],
    rng: RngState,
) -> Result<(), KernelError> {
    let outer = kernel.outer_count(&|_| true);
    let tasks = outer * kernel.tiles.len();
    let own = kernel.reads[0][1].len().max(1);
    let task = |s: &mut ForwardScratch<T>, task: usize| {
        let mut at = vec![0; kernel.plan.outer.len()];
        kernel.outer_at(task / kernel.tiles.len(), &|_| true, &mut at);
        kernel.forward(reads, outs, rng, &at, &kernel.tiles[task % kernel.tiles.len()], s)
    };
    let (rows, keys) = kernel.most();
    if par::worth(tasks.saturating_mul(rows * keys.max(1)).saturating_mul(own)) {
        (0..tasks).into_par_iter().try_for_each_init(ForwardScratch::default, task)
    } else {
        let mut s = ForwardScratch::default();
        (0..tasks).try_for_each(|i| task(&mut s, i))
    }
}

impl AttentionKernel {
    fn forward<T: TileElement>(
        &self,
        reads: &[Slice<'_>],
        outs: &[SharedOut<T>],
        rng: RngState,
        outer: &[usize],
        rows: &RowTile,
        s: &mut ForwardScratch<T>,
    ) -> Result<(), KernelError> {
        let n = rows.len;
        let here = |keys: (usize, usize)| TileAt { kernel: self, reads, rng, outer, rows, keys };
        let columns = self.operands.values.map_or(0, |v| self.reads[v][1].len());
        here((0, 0)).pack_rows(0, &mut s.q);
        s.max.clear();
        s.max.resize(n, T::LEAST);
        if let Some(max) = self.operands.max {
            here((0, 0)).pack_rows(max, &mut s.max);
        }
        s.sum.clear();
        s.sum.resize(n, T::default());
        s.values.clear();
        s.values.resize(n * columns, T::default());
        if let Some([max, sum, values]) = self.plan.state {
            here((0, 0)).pack_rows(max, &mut s.max);
            here((0, 0)).pack_rows(sum, &mut s.sum);
            here((0, 0)).pack_rows(values, &mut s.values);
        }
        let (constant, first): (Vec<_>, Vec<_>) =
            self.key_tiles().map(|keys| (keys, here(keys).constant())).partition(|k| k.1.is_some());
        for (keys, score) in first.into_iter().chain(constant) {
            if !score.is_some_and(|score| vanishes(score, &s.max)) {
                self.forward_tile(&here(keys), columns, s)?;
            }
        }
        if self.plan.parts.contains(&AttentionPart::Result) {
            s.before.clear();
            s.before.extend(s.sum.iter().map(|sum| T::ONE / *sum));
            scale_rows(self.level, &mut s.values, columns, &s.before);
        }
        self.write(outs, outer, rows, s);
        Ok(())
    }

    /// One tile of keys, `columns` elements of a value.
    fn forward_tile<T: TileElement>(
        &self,
        tile: &TileAt<'_>,
        columns: usize,
        s: &mut ForwardScratch<T>,
    ) -> Result<(), KernelError> {
        let (n, count) = (tile.rows.len, tile.keys.1);
        let width = self.reads[0][1].len();
        s.scores.resize(tile.elements(), T::default());
        let k = tile.keys_of(1, &mut s.packed);
        let q = Matrix { data: &s.q, row: width, column: 1 };
        product(&mut s.scores, [n, count, width], q, k.transposed(), false, false);
        tile.draw(&mut s.drawn);
        tile.map(tile.of(&self.score), &mut s.scores, &s.drawn)?;
        s.before.clear();
        if self.operands.max.is_none() {
            for (row, m) in s.scores.chunks_exact(count).zip(&mut s.max) {
                s.before.push(*m);
                *m = greatest(self.level, row, *m);
            }
        }
        if self.plan.parts == [AttentionPart::Max] {
            return Ok(());
        }
        // Of scores that are all `-inf` the exponentials are 0.
        s.shift.clear();
        s.shift.extend(s.max.iter().map(|m| if *m == T::LEAST { T::default() } else { *m }));
        if !s.before.is_empty() {
            for (old, new) in s.before.iter_mut().zip(&s.shift) {
                *old = (*old - *new).exp::<false>();
            }
            multiply(self.level, &mut s.sum, &s.before);
            if columns > 0 {
                scale_rows(self.level, &mut s.values, columns, &s.before);
            }
        }
        shifted(self.level, &mut s.scores, count, &s.shift, &mut s.sum);
        if let Some(values) = self.operands.values {
            tile.weigh_for_product(&mut s.scores, &mut s.factors, &s.drawn)?;
            let v = tile.keys_of(values, &mut s.packed);
            let p = Matrix { data: &s.scores, row: count, column: 1 };
            product(&mut s.values, [n, columns, count], p, v, true, false);
        }
        Ok(())
    }

    fn write<T: TileElement>(
        &self,
        outs: &[SharedOut<T>],
        outer: &[usize],
        rows: &RowTile,
        s: &ForwardScratch<T>,
    ) {
        for (i, (part, out)) in self.plan.parts.iter().zip(outs).enumerate() {
            let of = match part {
                AttentionPart::Max => &s.max,
                AttentionPart::Sum => &s.sum,
                _ => &s.values,
            };
            self.store(i, out, outer, rows, of);
        }
    }
}
