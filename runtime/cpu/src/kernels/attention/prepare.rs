//! Preparation of the attention kernel: offsets of elements, tiles, and the maps of scores.

use super::super::instruction_set::Level;
use super::super::{Access, KernelError, MapKernel, RandomBlock, SliceMut};
use meshwright_device::kernels::attention::bounds::decided;
use meshwright_plan::expr::Scalar;
use meshwright_plan::{AttentionOperands, AttentionPart, Computed, DType};
use meshwright_sorted::{SortedMap, SortedSet};
use std::ops::Range;

/// Queries (positions of the row dims) of a tile, at most.
const ROWS: usize = 128;
/// Keys of a tile, at most.
const KEYS: usize = 256;
/// Keys of a tile under a mask by positions: smaller tiles, so that more can be skipped.
const KEYS_OF_MASK: usize = 128;

/// Strides of an operand or a result along each outer dim, each row dim, the keys, and each dim of its own (the width,
/// or the dims of the values); 0 for a missing dim.
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

/// The input of the preparation. Dims of the scores are the outer dims, the rows, and the keys, in this order.
#[derive(Clone, Debug)]
pub struct AttentionPlan {
    /// Type of queries, keys, values and results.
    pub dtype: DType,
    /// The parts of attention that it computes.
    pub parts: Vec<AttentionPart>,
    /// Sizes of the dims that keys or values have, with whether queries, keys and values all have it.
    pub outer: Vec<(usize, bool)>,
    /// Sizes of the other dims of the queries.
    pub rows: Vec<usize>,
    /// Number of keys.
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
    /// Slopes of scores by the bias, if it has a gradient of its own.
    pub bias: Option<Computed>,
    /// See `score`.
    pub weight: Option<Computed>,
    /// Positions of the maximum, the sum and the values that it goes on with: the last operands.
    pub state: Option<[usize; 3]>,
    /// Whether factors that are made here are rounded to TF32.
    pub rounds: bool,
    /// Random blocks, each with the dim of the scores of each of its own dims.
    pub draws: Vec<(RandomBlock, Vec<usize>)>,
}

/// The fate of a tile's elements.
#[derive(Clone, Debug)]
pub(super) enum TileMap {
    /// One number for all.
    Number(f64),
    /// The element itself.
    Same,
    /// A map, by rows along the only row dim that is cut, and keys.
    Map(SortedMap<(usize, usize), MapKernel>),
}

/// The map of each tile: one for all, or others for tiles that a condition on positions splits.
#[derive(Clone, Debug)]
pub(super) struct TileMaps {
    each: Vec<TileMap>,
    /// Index of the map, by first row and first key.
    of: SortedMap<(usize, usize), usize>,
}

impl TileMaps {
    fn number(x: f64) -> TileMaps {
        TileMaps { each: vec![TileMap::Number(x)], of: SortedMap::new() }
    }

    /// The map of a tile.
    pub(super) fn at(&self, rows: &RowTile, keys: (usize, usize)) -> &TileMap {
        &self.each[self.of.get(&(rows.first, keys.0)).copied().unwrap_or(0)]
    }
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
    /// Offsets of the rows, and of the elements of a row, of each operand and result.
    pub(super) reads: Vec<[Vec<usize>; 2]>,
    pub(super) writes: Vec<[Vec<usize>; 2]>,
    pub(super) score: TileMaps,
    pub(super) slope: TileMaps,
    /// Slopes by the bias; `None` where they are those by the product, or are not asked for.
    pub(super) bias_slope: Option<TileMaps>,
    pub(super) weight: TileMaps,
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

    /// Accesses of a tile to the operands of its map: the tile itself, the extra operands, and the random blocks.
    fn accesses(&self, shape: &[usize], first: usize) -> Vec<Access> {
        let mut out = vec![Access::dense(self.dtype, shape)];
        for extra in &self.reads[first..self.beside()] {
            let mut strides = extra.outer.clone();
            strides.extend(&extra.rows);
            strides.push(extra.key);
            out.push(Access { dtype: extra.dtype.unwrap_or(self.dtype), offset: 0, strides });
        }
        out.extend(self.draws.iter().map(|_| Access::dense(DType::Bool, shape)));
        out
    }

    /// End of the extra operands.
    pub(super) fn beside(&self) -> usize {
        self.state.map_or(self.reads.len(), |s| s[0])
    }

    /// First key and number of keys of each tile.
    fn key_tiles(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let along = (self.outer.len() + self.rows.len()) as u16;
        let counts = self.score.expr.nodes.iter().any(|n| n.scalar == Scalar::Index(along));
        let (keys, most) = (self.keys, if counts { KEYS_OF_MASK } else { KEYS });
        (0..keys).step_by(most).map(move |k| (k, most.min(keys - k)))
    }

    /// Positions along the row dims of a row.
    pub(super) fn row_at(&self, row: usize) -> Vec<usize> {
        let mut at = vec![0; self.rows.len()];
        let mut rest = row;
        for (a, n) in at.iter_mut().zip(&self.rows).rev() {
            *a = rest % n;
            rest /= n;
        }
        at
    }

    /// The indices of a tile along the dims of the scores, at any position of the outer ones.
    fn indices(&self, rows: &RowTile, keys: (usize, usize)) -> Vec<Range<usize>> {
        let outer = self.outer.iter().map(|(n, _)| (0, *n));
        let shape = self.tile_shape(rows.len, keys.1);
        let row = self.row_at(rows.first);
        let inner = row.iter().chain([&keys.0]).copied().zip(shape[self.outer.len()..].iter().copied());
        self.starts.iter().zip(outer.chain(inner)).map(|(s, (first, n))| s + first..s + first + n).collect()
    }

    fn maps(&self, of: &Computed, tiles: &[RowTile], first: usize) -> Result<TileMaps, KernelError> {
        let mut seen: Vec<(Computed, SortedSet<(usize, usize)>)> = vec![];
        let mut which = SortedMap::new();
        for rows in tiles {
            for keys in self.key_tiles() {
                let of = decided(of, &self.indices(rows, keys));
                let at = seen.iter().position(|(o, _)| *o == of).unwrap_or(seen.len());
                if at == seen.len() {
                    seen.push((of, SortedSet::new()));
                }
                seen[at].1.insert((rows.len, keys.1));
                which.insert((rows.first, keys.0), at);
            }
        }
        if seen.is_empty() {
            seen.push((of.clone(), SortedSet::new()));
        }
        let each = seen.iter().map(|(of, shapes)| self.map(of, shapes, first)).collect::<Result<_, _>>()?;
        Ok(TileMaps { each, of: which })
    }

    /// A map for tiles of these shapes.
    fn map(
        &self,
        of: &Computed,
        shapes: &SortedSet<(usize, usize)>,
        first: usize,
    ) -> Result<TileMap, KernelError> {
        let nodes = &of.expr.nodes;
        if nodes.get(usize::from(of.reg)).is_some_and(|n| n.scalar == Scalar::Load(0)) {
            return Ok(TileMap::Same);
        }
        if !nodes.iter().any(|n| matches!(n.scalar, Scalar::Load(_) | Scalar::Index(_))) {
            return self.number(of).map(TileMap::Number);
        }
        let map = |(rows, keys): &(usize, usize)| {
            let shape = self.tile_shape(*rows, *keys);
            let map =
                MapKernel::new(&of.expr, &shape, &self.accesses(&shape, first), &self.starts, &[of.reg])?;
            Ok(((*rows, *keys), map))
        };
        shapes.iter().map(map).collect::<Result<_, _>>().map(TileMap::Map)
    }

    /// An expression that reads nothing.
    fn number(&self, of: &Computed) -> Result<f64, KernelError> {
        let map = MapKernel::new(&of.expr, &[1], &[], &[0], &[of.reg])?;
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
        let states = plan.state.map_or(0, |s| s.len());
        if operands.extras + states > plan.reads.len()
            || plan.beside() + states != plan.reads.len()
            || plan.writes.len() != plan.parts.len()
        {
            return Err(KernelError::Count { expected: operands.extras, found: plan.reads.len() });
        }
        if !plan.dtype.is_float() || plan.dtype.is_half() {
            return Err(KernelError::Unsupported(format!("an attention of {}", plan.dtype)));
        }
        let tiles = plan.row_tiles();
        let score = plan.maps(&plan.score, &tiles, operands.extras)?;
        let backward = operands.scale.is_some();
        let slope =
            if backward { plan.maps(&plan.slope, &tiles, operands.extras)? } else { TileMaps::number(1.0) };
        let of_bias =
            plan.bias.as_ref().filter(|of| plan.parts.contains(&AttentionPart::Bias) && **of != plan.slope);
        let bias_slope = of_bias.map(|of| plan.maps(of, &tiles, operands.extras)).transpose()?;
        let weight = match &plan.weight {
            Some(w) => plan.maps(w, &tiles, operands.extras)?,
            None => TileMaps::number(1.0),
        };
        let tables = |all: &[AttentionAccess]| all.iter().map(|a| plan.tables(a)).collect();
        Ok(AttentionKernel {
            operands,
            tiles,
            reads: tables(&plan.reads),
            writes: tables(&plan.writes),
            score,
            slope,
            bias_slope,
            weight,
            level: Level::best(),
            plan,
        })
    }

    /// Elements that an operand has at least, and a result has.
    pub(super) fn reach(&self, access: &AttentionAccess, [_, own]: &[Vec<usize>; 2]) -> usize {
        let none = |(n, stride): (&usize, &usize)| *n == 0 && *stride > 0;
        let outer = self.plan.outer.iter().map(|(n, _)| *n).collect::<Vec<_>>();
        if outer.iter().zip(&access.outer).any(none)
            || self.plan.rows.iter().zip(&access.rows).any(none)
            || none((&self.plan.keys, &access.key))
            || access.own.iter().any(|(n, _)| *n == 0)
        {
            return 0;
        }
        // By sizes: there is no row at all where one dim of the rows has no position, which an operand may lack.
        let dims = outer.iter().zip(&access.outer).chain(self.plan.rows.iter().zip(&access.rows));
        let places: usize = dims.map(|(n, s)| n.saturating_sub(1) * s).sum();
        let own = own.iter().max().copied().unwrap_or(0);
        places + own + self.plan.keys.saturating_sub(1) * access.key + 1
    }

    /// First key and number of keys of each tile.
    pub(super) fn key_tiles(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        self.plan.key_tiles()
    }

    /// The largest tile.
    pub(super) fn most(&self) -> (usize, usize) {
        (self.tiles.iter().map(|t| t.len).max().unwrap_or(0), KEYS.min(self.plan.keys))
    }

    /// Whether queries, keys and values all have an outer dim.
    pub(super) fn is_shared(&self, outer: usize) -> bool {
        self.plan.outer[outer].1
    }

    /// Positions along the outer dims that `of` chooses of a number of them.
    pub(super) fn outer_at(&self, mut at: usize, of: &dyn Fn(usize) -> bool, into: &mut [usize]) {
        for (i, (n, _)) in self.plan.outer.iter().enumerate().rev() {
            if of(i) {
                into[i] = at % n;
                at /= n;
            }
        }
    }

    /// Number of positions along the outer dims that `of` chooses.
    pub(super) fn outer_count(&self, of: &dyn Fn(usize) -> bool) -> usize {
        self.plan.outer.iter().enumerate().filter(|(i, _)| of(*i)).map(|(_, o)| o.0).product()
    }
}
