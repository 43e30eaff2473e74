//! A tile of queries by keys: its scores, the factors of its weights, and the products that it takes part in.

use super::super::instruction_set::multiversion;
use super::super::math::Real;
use super::super::matrix::Matrix;
use super::super::random::bernoulli;
use super::super::rows::Scratched;
use super::super::{Arg, KernelError, Slice, SliceMut};
use super::prepare::{AttentionKernel, RowTile, TileMap, TileMaps};
use meshwright_device::kernels::attention::bounds::constant;
use meshwright_exec::backend::RngState;

/// Elements of an operand, and of results that tasks write disjoint parts of.
pub(super) trait TileElement: Scratched {
    /// A number of `f64`.
    fn number(x: f64) -> Self;
    /// The elements, to be written.
    fn out<'a>(x: &'a mut [Self]) -> SliceMut<'a>;
    /// The nearest number of TF32.
    fn tf32(self) -> Self;
    /// Less than all numbers.
    const LEAST: Self;
}

macro_rules! tile_element {
    ($t:ident, $kind:ident) => {
        impl TileElement for $t {
            #[allow(clippy::cast_possible_truncation, reason = "numbers of a model")]
            fn number(x: f64) -> $t {
                x as $t
            }
            fn out<'a>(x: &'a mut [$t]) -> SliceMut<'a> {
                SliceMut::$kind(x)
            }
            #[allow(clippy::cast_possible_truncation, reason = "TF32 has fewer digits")]
            fn tf32(self) -> $t {
                meshwright_plan::tf32(self as f32) as $t
            }
            const LEAST: $t = $t::NEG_INFINITY;
        }
    };
}
tile_element!(f32, F32);
tile_element!(f64, F64);

multiversion! {
    /// Each row becomes `exp(x - shift)`; `sums` are added to where they are wanted.
    pub(super) fn shifted[T: Real](x: &mut [T], keys: usize, shift: &[T], sums: &mut [T]) {
        for ((row, s), sum) in x.chunks_exact_mut(keys).zip(shift).zip(sums) {
            let mut lanes = [T::default(); 16];
            let mut chunks = row.chunks_exact_mut(16);
            for chunk in &mut chunks {
                for (x, lane) in chunk.iter_mut().zip(&mut lanes) {
                    *x = (*x - *s).exp::<FMA>();
                    *lane += *x;
                }
            }
            let mut rest = T::default();
            for x in chunks.into_remainder() {
                *x = (*x - *s).exp::<FMA>();
                rest += *x;
            }
            let mut n = 16;
            while n > 1 {
                n /= 2;
                for i in 0..n {
                    let other = lanes[i + n];
                    lanes[i] += other;
                }
            }
            *sum += lanes[0] + rest;
        }
    }
}

multiversion! {
    /// `x = x * factor`, with one a row.
    pub(super) fn scale_rows[T: Real](x: &mut [T], columns: usize, factor: &[T]) {
        for (row, f) in x.chunks_exact_mut(columns).zip(factor) {
            for x in row {
                *x *= *f;
            }
        }
    }
}

multiversion! {
    /// `x = x * y`.
    pub(super) fn multiply[T: Real](x: &mut [T], y: &[T]) {
        for (x, y) in x.iter_mut().zip(y) {
            *x *= *y;
        }
    }
}

multiversion! {
    /// `x = x * number`.
    pub(super) fn scale[T: Real](x: &mut [T], by: T) {
        for x in x {
            *x *= by;
        }
    }
}

multiversion! {
    /// `d = p * (d - delta)`, with one delta a row.
    pub(super) fn through_softmax[T: Real](d: &mut [T], p: &[T], keys: usize, delta: &[T]) {
        for ((d, p), delta) in d.chunks_exact_mut(keys).zip(p.chunks_exact(keys)).zip(delta) {
            for (d, p) in d.iter_mut().zip(p) {
                *d = *p * (*d - *delta);
            }
        }
    }
}

/// A part of a slice.
fn from(slice: Slice<'_>, at: usize) -> Slice<'_> {
    match slice {
        Slice::F64(s) => Slice::F64(&s[at.min(s.len())..]),
        Slice::F32(s) => Slice::F32(&s[at.min(s.len())..]),
        Slice::BF16(s) => Slice::BF16(&s[at.min(s.len())..]),
        Slice::F16(s) => Slice::F16(&s[at.min(s.len())..]),
        Slice::I32(s) => Slice::I32(&s[at.min(s.len())..]),
        Slice::U8(s) => Slice::U8(&s[at.min(s.len())..]),
        Slice::Bool(s) => Slice::Bool(&s[at.min(s.len())..]),
        Slice::PairF32(s) => Slice::PairF32(&s[at.min(s.len())..]),
        Slice::PairF64(s) => Slice::PairF64(&s[at.min(s.len())..]),
    }
}

/// The place of a tile, and the operands of its step.
pub(super) struct TileAt<'a> {
    pub(super) kernel: &'a AttentionKernel,
    pub(super) reads: &'a [Slice<'a>],
    pub(super) rng: RngState,
    /// Positions along the outer dims.
    pub(super) outer: &'a [usize],
    pub(super) rows: &'a RowTile,
    /// First key and how many.
    pub(super) keys: (usize, usize),
}

impl TileAt<'_> {
    pub(super) fn elements(&self) -> usize {
        self.rows.len * self.keys.1
    }

    /// The one number that all scores of the tile are, where positions alone decide it.
    pub(super) fn constant(&self) -> Option<f64> {
        let plan = &self.kernel.plan;
        let row = self.kernel.plan.row_at(self.rows.first);
        let shape = plan.tile_shape(self.rows.len, self.keys.1);
        let place = self.outer.iter().chain(&row).chain([&self.keys.0]);
        let first = plan.starts.iter().zip(place).map(|(s, i)| s + i);
        let indices: Vec<_> = first.zip(shape).map(|(first, n)| first..first + n).collect();
        constant(&plan.score, &indices)
    }

    /// The offset of an operand at the outer position of the tile.
    pub(super) fn base(&self, read: usize) -> usize {
        self.kernel.plan.reads[read].outer.iter().zip(self.outer).map(|(s, i)| s * i).sum()
    }

    /// Truth values that are drawn for the tile.
    pub(super) fn draw(&self, into: &mut Vec<Vec<u8>>) {
        let plan = &self.kernel.plan;
        into.resize(plan.draws.len(), vec![]);
        for ((random, dims), out) in plan.draws.iter().zip(into) {
            out.resize(self.elements(), 0);
            let (key, first, strides) =
                random.counted(self.rng.seed, self.rng.moment(), self.rng.first_example);
            let (outer, rows) = (plan.outer.len(), plan.rows.len());
            let own = |dim: usize| dims.iter().position(|d| *d == dim);
            let at = |dim: usize, i: usize| {
                let of = |own: usize| {
                    (random.position(own, plan.starts[dim] + i) as u64).wrapping_mul(strides[own])
                };
                own(dim).map_or(0, of)
            };
            let base = self.outer.iter().enumerate().fold(first, |sum, (d, i)| sum.wrapping_add(at(d, *i)));
            // What lacks the keys is drawn once for all of them.
            let begin = plan.starts[outer + rows] + self.keys.0;
            let places = begin..begin + self.keys.1;
            let (step, keys) = match own(outer + rows) {
                Some(own) => (strides[own], random.positions(own, places)),
                None => (0, vec![places]),
            };
            for (r, line) in out.chunks_exact_mut(self.keys.1).enumerate() {
                let place = self.kernel.plan.row_at(self.rows.first + r);
                let first =
                    place.iter().enumerate().fold(base, |sum, (d, i)| sum.wrapping_add(at(outer + d, *i)));
                let mut line = line;
                for range in &keys {
                    let first = first.wrapping_add((range.start as u64).wrapping_mul(step));
                    let (now, later) = line.split_at_mut(range.len());
                    bernoulli(self.kernel.level, random.distribution(), key, (first, step), now);
                    line = later;
                }
            }
        }
    }

    /// The map for a tile of this size.
    pub(super) fn of<'b>(&self, maps: &'b TileMaps) -> &'b TileMap {
        maps.at(self.rows, self.keys)
    }

    /// Applies a map to a tile in place.
    pub(super) fn map<T: TileElement>(
        &self,
        map: &TileMap,
        x: &mut [T],
        drawn: &[Vec<u8>],
    ) -> Result<(), KernelError> {
        match map {
            TileMap::Same => Ok(()),
            TileMap::Number(v) => {
                x.fill(T::number(*v));
                Ok(())
            }
            TileMap::Map(maps) => {
                let Some(map) = maps.get(&(self.rows.len, self.keys.1)) else {
                    return Err(KernelError::Unsupported("a tile of an unknown shape".into()));
                };
                let row = self.kernel.plan.row_at(self.rows.first);
                let mut args = vec![Arg::Out(0)];
                let beside = self.reads.iter().enumerate().take(self.kernel.plan.beside());
                for (i, read) in beside.skip(self.kernel.operands.extras) {
                    let a = &self.kernel.plan.reads[i];
                    let rows: usize = a.rows.iter().zip(&row).map(|(s, i)| s * i).sum();
                    args.push(Arg::Slice(from(*read, self.base(i) + rows + self.keys.0 * a.key)));
                }
                args.extend(drawn.iter().map(|d| Arg::Slice(Slice::Bool(d))));
                let mut out = [T::out(x)];
                if map.counts() {
                    let place = [self.outer, &row, &[self.keys.0]].concat();
                    let first: Vec<usize> =
                        self.kernel.plan.starts.iter().zip(&place).map(|(s, i)| s + i).collect();
                    return map.counted_from(&first).run(&args, &mut out);
                }
                map.run(&args, &mut out)
            }
        }
    }

    /// Multiplies weights by their factors.
    pub(super) fn weigh<T: TileElement>(
        &self,
        x: &mut [T],
        factors: &mut Vec<T>,
        drawn: &[Vec<u8>],
    ) -> Result<(), KernelError> {
        match self.of(&self.kernel.weight) {
            TileMap::Number(f) if *f == 1.0 => {}
            TileMap::Number(f) => scale(self.kernel.level, x, T::number(*f)),
            map => {
                factors.resize(x.len(), T::default());
                self.map(map, factors, drawn)?;
                multiply(self.kernel.level, x, factors);
            }
        }
        Ok(())
    }

    /// Multiplies weights by their factors, and rounds them, if they are to be, for the product that reads them.
    pub(super) fn weigh_for_product<T: TileElement>(
        &self,
        x: &mut [T],
        factors: &mut Vec<T>,
        drawn: &[Vec<u8>],
    ) -> Result<(), KernelError> {
        self.weigh(x, factors, drawn)?;
        self.round(x);
        Ok(())
    }

    /// Rounds factors of a product, if they are to be.
    pub(super) fn round<T: TileElement>(&self, factors: &mut [T]) {
        if self.kernel.plan.rounds {
            factors.iter_mut().for_each(|x| *x = x.tf32());
        }
    }

    /// Rows of an operand, one after the other.
    pub(super) fn pack_rows<T: TileElement>(&self, read: usize, into: &mut Vec<T>) {
        let (Some(x), [rows, own]) = (T::of(self.reads[read]), &self.kernel.reads[read]) else { return };
        let base = self.base(read);
        into.clear();
        for r in &rows[self.rows.first..self.rows.first + self.rows.len] {
            let at = base + r;
            match step(own) {
                Some(1) => into.extend_from_slice(&x[at..at + own.len()]),
                _ => into.extend(own.iter().map(|o| x[at + o])),
            }
        }
    }

    /// The keys' or values' part of the tile: as it lies there, or packed.
    pub(super) fn keys_of<'b, T: TileElement>(
        &'b self,
        read: usize,
        scratch: &'b mut Vec<T>,
    ) -> Matrix<'b, T> {
        let (x, own) = (T::of(self.reads[read]).unwrap_or(&[]), &self.kernel.reads[read][1]);
        let row = self.kernel.plan.reads[read].key;
        let base = self.base(read) + self.keys.0 * row;
        if let Some(column) = step(own) {
            return Matrix { data: &x[base.min(x.len())..], row, column };
        }
        scratch.clear();
        for k in 0..self.keys.1 {
            scratch.extend(own.iter().map(|o| x[base + k * row + o]));
        }
        Matrix { data: scratch, row: own.len(), column: 1 }
    }
}

/// The step of offsets that have one.
fn step(offsets: &[usize]) -> Option<usize> {
    match offsets {
        [] | [_] => Some(1),
        [a, b, ..] => {
            let step = b.checked_sub(*a)?;
            offsets.iter().enumerate().all(|(i, o)| *o == i * step).then_some(step)
        }
    }
}

/// The greatest of a row and a number; NaN if any is.
pub(super) fn greatest<T: TileElement>(level: super::super::instruction_set::Level, row: &[T], than: T) -> T {
    than.greater(T::greatest(level, row))
}

/// Whether the exponential of a score is 0 beside the greatest scores of all rows, whatever else there is.
pub(super) fn vanishes<T: TileElement>(score: f64, greatest: &[T]) -> bool {
    // Far beyond where exponentials of any float are 0.
    let least = T::number(score) + T::number(2000.0);
    greatest.iter().all(|m| *m > least && m.finite())
}
