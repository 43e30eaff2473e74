//! What is known before the kernel runs: where elements lie, how the work is cut, and the maps of scores.

use super::super::level::Level;
use super::super::{Access, KernelError, MapKernel, RandomKernel, Slice, SliceMut};
use crate::backend::RngState;
use meshwright_plan::{AttentionOperands, AttentionPart, Computed, DType};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// Queries (positions of the row dims) of a tile, at most.
const ROWS: usize = 128;
/// Keys of a tile, at most.
const KEYS: usize = 256;

/// How an operand or a result is walked: its stride along each outer dim, each row dim, the keys, and each dim of its own
/// (the width, or that of the values). 0 where it lacks the dim.
#[derive(Clone, Debug, Default)]
pub struct AttentionAccess {
    /// Type of the elements.
    pub dtype: Option<DType>,
    /// Along the outer dims.
    pub outer: Vec<usize>,
    /// Along the row dims.
    pub rows: Vec<usize>,
    /// Along the keys.
    pub key: usize,
    /// Sizes of the dims of its own, and strides along these.
    pub own: Vec<(usize, usize)>,
}

/// What an attention kernel is prepared from. The dims of the scores are the outer ones, the rows, and the keys, in this order.
#[derive(Clone, Debug)]
pub struct AttentionPlan {
    /// Type of queries, keys, values and results.
    pub dtype: DType,
    /// What it gives.
    pub parts: Vec<AttentionPart>,
    /// Sizes of the dims that keys or values have, with whether queries, keys and values all have it.
    pub outer: Vec<(usize, bool)>,
    /// Sizes of the other dims of the queries.
    pub rows: Vec<usize>,
    /// How many keys there are.
    pub keys: usize,
    /// The operands in order.
    pub reads: Vec<AttentionAccess>,
    /// The results in order.
    pub writes: Vec<AttentionAccess>,
    /// The global index of the first position along each dim of the scores.
    pub starts: Vec<usize>,
    /// Scores, their slopes and the factors of weights; `Index(k)` counts the dims of the scores.
    pub score: Computed,
    /// See `score`.
    pub slope: Computed,
    /// See `score`.
    pub weight: Option<Computed>,
    /// What is drawn, each with the dim of the scores that each of its own dims is.
    pub draws: Vec<(RandomKernel, Vec<usize>)>,
}

/// What becomes of the elements of a tile.
#[derive(Clone, Debug)]
pub(super) enum TileMap {
    /// One number for all.
    Number(f64),
    /// The element itself.
    Same,
    /// A map, by rows along the only row dim that is cut, and keys.
    Map(BTreeMap<(usize, usize), MapKernel>),
}

/// Rows that are taken at a time.
#[derive(Clone, Debug)]
pub(super) struct RowTile {
    pub(super) first: usize,
    pub(super) len: usize,
}

/// A prepared attention.
#[derive(Clone, Debug)]
pub struct AttentionKernel {
    pub(super) plan: AttentionPlan,
    pub(super) operands: AttentionOperands,
    pub(super) tiles: Vec<RowTile>,
    /// For every operand and result where each row and each element of its own lies.
    pub(super) reads: Vec<[Vec<usize>; 2]>,
    pub(super) writes: Vec<[Vec<usize>; 2]>,
    pub(super) score: TileMap,
    pub(super) slope: TileMap,
    pub(super) weight: TileMap,
    pub(super) level: Level,
}

/// Row-major offsets of all positions.
fn table(dims: impl Iterator<Item = (usize, usize)>) -> Vec<usize> {
    dims.fold(vec![0], |before, (size, stride)| {
        before.iter().flat_map(|b| (0..size).map(move |i| b + i * stride)).collect()
    })
}

impl AttentionPlan {
    fn tables(&self, a: &AttentionAccess) -> [Vec<usize>; 2] {
        let rows = table(self.rows.iter().copied().zip(a.rows.iter().copied()));
        [rows, table(a.own.iter().copied())]
    }

    /// The number of trailing row dims that tiles hold whole, and how many positions of the dim before them.
    fn cut(&self) -> (usize, usize) {
        let mut whole = 1;
        for (i, n) in self.rows.iter().enumerate().rev() {
            if whole * n > ROWS {
                return (i, (ROWS / whole).max(1));
            }
            whole *= n;
        }
        (0, self.rows.first().copied().unwrap_or(1))
    }

    fn row_tiles(&self) -> Vec<RowTile> {
        if self.rows.contains(&0) {
            return vec![];
        }
        let (at, chunk) = self.cut();
        let Some(cut) = self.rows.get(at) else { return vec![RowTile { first: 0, len: 1 }] };
        let before: usize = self.rows[..at].iter().product();
        let inner: usize = self.rows[at + 1..].iter().product();
        let mut out = vec![];
        for lead in 0..before {
            for c in (0..*cut).step_by(chunk) {
                let len = chunk.min(cut - c);
                out.push(RowTile { first: (lead * cut + c) * inner, len: len * inner });
            }
        }
        out
    }

    /// Shape of a tile over the dims of the scores.
    pub(super) fn tile_shape(&self, rows: usize, keys: usize) -> Vec<usize> {
        let mut shape = vec![1; self.outer.len()];
        let (at, _) = self.cut();
        if !self.rows.is_empty() {
            let inner: usize = self.rows[at + 1..].iter().product();
            shape.extend(vec![1; at]);
            shape.push(rows / inner.max(1));
            shape.extend(&self.rows[at + 1..]);
        }
        shape.push(keys);
        shape
    }

    /// How a tile walks the tensors that a map reads: the tile itself, the extra operands, and what is drawn.
    fn accesses(&self, shape: &[usize], first: usize) -> Vec<Access> {
        let mut out = vec![Access::dense(self.dtype, shape)];
        for extra in &self.reads[first..] {
            let mut strides = extra.outer.clone();
            strides.extend(&extra.rows);
            strides.push(extra.key);
            out.push(Access { dtype: extra.dtype.unwrap_or(self.dtype), offset: 0, strides });
        }
        out.extend(self.draws.iter().map(|_| Access::dense(DType::Bool, shape)));
        out
    }

    fn map(&self, of: &Computed, tiles: &[RowTile], first: usize) -> Result<TileMap, KernelError> {
        use meshwright_plan::expr::Scalar;
        if of.expr.nodes.get(usize::from(of.reg)).is_some_and(|n| n.scalar == Scalar::Load(0)) {
            return Ok(TileMap::Same);
        }
        let mut reads = vec![of.reg];
        let mut number = true;
        while let Some(r) = reads.pop() {
            let Some(node) = of.expr.nodes.get(usize::from(r)) else { continue };
            number &= !matches!(node.scalar, Scalar::Load(_) | Scalar::Index(_));
            reads.extend(node.scalar.reads());
        }
        if number {
            return self.number(of).map(TileMap::Number);
        }
        let mut maps = BTreeMap::new();
        for tile in tiles {
            for start in (0..self.keys).step_by(KEYS) {
                let keys = KEYS.min(self.keys - start);
                if let Entry::Vacant(free) = maps.entry((tile.len, keys)) {
                    let shape = self.tile_shape(tile.len, keys);
                    let map = MapKernel::new(&of.expr, &shape, &self.accesses(&shape, first), &self.starts, &[of.reg])?;
                    free.insert(map);
                }
            }
        }
        Ok(TileMap::Map(maps))
    }

    /// An expression that reads nothing.
    fn number(&self, of: &Computed) -> Result<f64, KernelError> {
        let mut expr = of.expr.clone();
        for n in &mut expr.nodes {
            if matches!(n.scalar, meshwright_plan::expr::Scalar::Load(_) | meshwright_plan::expr::Scalar::Index(_)) {
                // Nothing that is asked for reads it.
                n.scalar = meshwright_plan::expr::Scalar::Const(0.0);
            }
        }
        let map = MapKernel::new(&expr, &[1], &[], &[0], &[of.reg])?;
        if self.dtype == DType::F64 {
            let mut x = [0.0f64];
            map.run(&[], &mut [SliceMut::F64(&mut x)])?;
            return Ok(x[0]);
        }
        let mut x = [0.0f32];
        map.run(&[], &mut [SliceMut::F32(&mut x)])?;
        Ok(f64::from(x[0]))
    }
}

impl AttentionKernel {
    /// Prepares.
    ///
    /// # Errors
    /// If a map does not fit its operands.
    pub fn new(plan: AttentionPlan) -> Result<AttentionKernel, KernelError> {
        let operands = AttentionOperands::of(&plan.parts);
        if operands.extras > plan.reads.len() || plan.writes.len() != plan.parts.len() {
            return Err(KernelError::Count { expected: operands.extras, found: plan.reads.len() });
        }
        if !plan.dtype.is_float() || plan.dtype.is_half() {
            return Err(KernelError::Unsupported(format!("an attention of {}", plan.dtype)));
        }
        let tiles = plan.row_tiles();
        let score = plan.map(&plan.score, &tiles, operands.extras)?;
        let backward = operands.scale.is_some();
        let slope =
            if backward { plan.map(&plan.slope, &tiles, operands.extras)? } else { TileMap::Number(1.0) };
        let weight = match &plan.weight {
            Some(w) => plan.map(w, &tiles, operands.extras)?,
            None => TileMap::Number(1.0),
        };
        let tables = |all: &[AttentionAccess]| all.iter().map(|a| plan.tables(a)).collect();
        Ok(AttentionKernel {
            operands,
            tiles,
            reads: tables(&plan.reads),
            writes: tables(&plan.writes),
            score,
            slope,
            weight,
            level: Level::best(),
            plan,
        })
    }

    /// Computes.
    ///
    /// # Errors
    /// If the operands are not what was prepared for.
    pub(crate) fn run(&self, reads: &[Slice<'_>], outs: &mut [SliceMut<'_>], rng: RngState) -> Result<(), KernelError> {
        if reads.len() != self.plan.reads.len() || outs.len() != self.plan.writes.len() {
            return Err(KernelError::Count { expected: self.plan.reads.len(), found: reads.len() });
        }
        for (slice, (access, tables)) in reads.iter().zip(self.plan.reads.iter().zip(&self.reads)) {
            super::super::check_in(slice, access.dtype.unwrap_or(self.plan.dtype), self.reach(access, tables))?;
        }
        for (out, (access, tables)) in outs.iter().zip(self.plan.writes.iter().zip(&self.writes)) {
            super::super::check_out(out, self.plan.dtype, self.reach(access, tables))?;
        }
        match self.plan.dtype {
            DType::F64 => self.go::<f64>(reads, outs, rng),
            _ => self.go::<f32>(reads, outs, rng),
        }
    }

    /// Elements that an operand has at least, and a result has.
    fn reach(&self, access: &AttentionAccess, tables: &[Vec<usize>; 2]) -> usize {
        let none = |(n, stride): (&usize, &usize)| *n == 0 && *stride > 0;
        let outer = self.plan.outer.iter().map(|(n, _)| *n).collect::<Vec<_>>();
        if outer.iter().zip(&access.outer).any(none)
            || self.plan.rows.iter().zip(&access.rows).any(none)
            || none((&self.plan.keys, &access.key))
            || access.own.iter().any(|(n, _)| *n == 0)
        {
            return 0;
        }
        let outer: usize = outer.iter().zip(&access.outer).map(|(n, s)| n.saturating_sub(1) * s).sum();
        let inner: usize = tables.iter().map(|t| t.iter().max().copied().unwrap_or(0)).sum();
        outer + inner + self.plan.keys.saturating_sub(1) * access.key + 1
    }

    /// First key and number of keys of each tile.
    pub(super) fn key_tiles(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let keys = self.plan.keys;
        (0..keys).step_by(KEYS).map(move |k| (k, KEYS.min(keys - k)))
    }

    /// The largest tile.
    pub(super) fn most(&self) -> (usize, usize) {
        (self.tiles.iter().map(|t| t.len).max().unwrap_or(0), KEYS.min(self.plan.keys))
    }

    /// Positions along the outer dims of a number of them.
    pub(super) fn outer_at(&self, mut at: usize, of: &dyn Fn(bool) -> bool, into: &mut [usize]) {
        for (i, (n, shared)) in self.plan.outer.iter().enumerate().rev() {
            if of(*shared) {
                into[i] = at % n;
                at /= n;
            }
        }
    }

    /// How many positions there are along the outer dims that `of` chooses.
    pub(super) fn outer_count(&self, of: &dyn Fn(bool) -> bool) -> usize {
        self.plan.outer.iter().filter(|o| of(o.1)).map(|o| o.0).product()
    }
}
