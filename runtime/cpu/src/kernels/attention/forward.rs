//! The forward pass: greatest scores, sums of exponentials, and values weighted by these.

use super::super::matrix::{Matrix, product};
use super::super::{KernelError, Slice, SliceMut, par};
use super::backward;
use super::prepare::{AttentionKernel, RowTile, TileMap};
use super::tile::{TileAt, TileElement, greatest, multiply, scale, scale_rows, shifted, vanishes};
use meshwright_exec::backend::RngState;
use meshwright_plan::AttentionPart;
use rayon::prelude::*;

/// A result that tasks write disjoint elements of.
pub(super) struct SharedOut<T>(*mut T, usize);

#[expect(unsafe_code, reason = "tasks write disjoint elements of strided results")]
// SAFETY: no two tasks write the same element, and nobody reads before all have ended.
unsafe impl<T: Send> Send for SharedOut<T> {}
#[expect(unsafe_code, reason = "as above")]
// SAFETY: as above.
unsafe impl<T: Send> Sync for SharedOut<T> {}

impl<T: Copy> SharedOut<T> {
    fn new(x: &mut [T]) -> Self {
        SharedOut(x.as_mut_ptr(), x.len())
    }

    /// Adds elements of a task's own from a place on; `steps` says where each lies.
    #[expect(unsafe_code, reason = "tasks write disjoint elements of strided results")]
    pub(super) fn add(&self, at: usize, steps: &[usize], x: &[T])
    where
        T: std::ops::AddAssign,
    {
        let Some(last) = steps.iter().max().filter(|_| x.len() == steps.len()) else { return };
        assert!(at + last < self.1, "elements beyond the result");
        if *last + 1 == steps.len() && steps.is_sorted() {
            // SAFETY: within the result, as was just checked, and of this task alone.
            let to = unsafe { std::slice::from_raw_parts_mut(self.0.add(at), steps.len()) };
            to.iter_mut().zip(x).for_each(|(to, x)| *to += *x);
            return;
        }
        for (step, x) in steps.iter().zip(x) {
            // SAFETY: as above.
            unsafe { *self.0.add(at + step) += *x }
        }
    }
}

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

impl AttentionKernel {
    pub(super) fn go<T: TileElement>(
        &self,
        reads: &[Slice<'_>],
        outs: &mut [SliceMut<'_>],
        rng: RngState,
    ) -> Result<(), KernelError> {
        let mut shared: Vec<SharedOut<T>> = vec![];
        for out in outs {
            let Some(x) = T::of_mut(out.reborrow()) else {
                return Err(KernelError::DType { expected: self.plan.dtype, found: out.dtype() });
            };
            x.fill(T::default());
            shared.push(SharedOut::new(x));
        }
        if self.operands.scale.is_some() {
            return backward::run(self, reads, &shared, rng);
        }
        let outer = self.outer_count(&|_| true);
        let tasks = outer * self.tiles.len();
        let own = self.reads[0][1].len().max(1);
        let task = |s: &mut ForwardScratch<T>, task: usize| {
            let mut at = vec![0; self.plan.outer.len()];
            self.outer_at(task / self.tiles.len(), &|_| true, &mut at);
            self.forward(reads, &shared, rng, &at, &self.tiles[task % self.tiles.len()], s)
        };
        let (rows, keys) = self.most();
        if par::worth(tasks.saturating_mul(rows * keys.max(1)).saturating_mul(own)) {
            (0..tasks).into_par_iter().try_for_each_init(ForwardScratch::default, task)
        } else {
            let mut s = ForwardScratch::default();
            (0..tasks).try_for_each(|i| task(&mut s, i))
        }
    }

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
            self.weigh(tile, &mut s.scores, &mut s.factors, &s.drawn)?;
            let v = tile.keys_of(values, &mut s.packed);
            let p = Matrix { data: &s.scores, row: count, column: 1 };
            product(&mut s.values, [n, columns, count], p, v, true, false);
        }
        Ok(())
    }

    /// Multiplies weights by their factors.
    pub(super) fn weigh<T: TileElement>(
        &self,
        tile: &TileAt<'_>,
        x: &mut [T],
        factors: &mut Vec<T>,
        drawn: &[Vec<u8>],
    ) -> Result<(), KernelError> {
        match tile.of(&self.weight) {
            TileMap::Number(f) if *f == 1.0 => {}
            TileMap::Number(f) => scale(self.level, x, T::number(*f)),
            map => {
                factors.resize(x.len(), T::default());
                tile.map(map, factors, drawn)?;
                multiply(self.level, x, factors);
            }
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

    /// Adds rows to a result, which is 0 where nothing was added.
    pub(super) fn store<T: TileElement>(
        &self,
        write: usize,
        out: &SharedOut<T>,
        outer: &[usize],
        rows: &RowTile,
        x: &[T],
    ) {
        let base: usize = self.plan.writes[write].outer.iter().zip(outer).map(|(s, i)| s * i).sum();
        let [offsets, own] = &self.writes[write];
        for (row, at) in x.chunks_exact(own.len().max(1)).zip(&offsets[rows.first..rows.first + rows.len]) {
            out.add(base + at, own, row);
        }
    }
}
