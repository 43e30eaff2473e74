//! Attention by Burn's operations, tile by tile. A value that is kept between two tiles has either queries or keys,
//! never both, as in FlashAttention (Dao et al. 2022, arXiv 2205.14135, algorithms 1 and 4), whose tiles are cut along the keys
//! too.

mod fused;
mod turns;

use super::lower::{Lower, Named};
use crate::error::LoweringError;
use crate::kernels::matmul::FactorDigits;
use crate::kernels::random::RandomBlock;
use crate::lowering::graph::Val;
use crate::lowering::local::Local;
use crate::lowering::ops::Reduce;
use crate::stored::{extents, is_half, stored_as};
use burn_ir::FloatOperationIr as FloatOp;
use meshwright_plan::expr::UnaryFn;
use meshwright_plan::{AttentionOperands, AttentionPart, AttentionSpec, Computed, DType, Dim, Step};
use std::ops::Range;

/// An attention on one device.
struct Whole<'s> {
    spec: &'s AttentionSpec,
    parts: &'s [AttentionPart],
    at: AttentionOperands,
    reads: Vec<Local>,
    writes: Vec<Local>,
}

/// Some of its scores: all keys of some queries.
struct Scores<'s> {
    whole: &'s Whole<'s>,
    /// Dims and dtype of the scores.
    space: Local,
    /// Position of the keys among their dims.
    key: usize,
    /// Operands and results that belong to the scores.
    reads: Vec<Local>,
    writes: Vec<Local>,
    /// Operands of the expression behind the product: extra ones, and random values.
    loads: Vec<Val>,
}

/// Tile size along each dim of the scores, within the limit of live scores. The first dims are cut first: matmuls of whole
/// queries with whole keys are faster than narrow ones.
fn tile(space: &Local, key: usize, most: usize) -> Vec<usize> {
    let mut tile = space.shape.clone();
    for i in (0..tile.len()).filter(|i| *i != key) {
        let others = tile.iter().product::<usize>() / tile[i].max(1);
        tile[i] = (most / others.max(1)).clamp(1, tile[i].max(1));
    }
    tile
}

/// Ranges of a tile along some dims.
fn within(block: &Local, space: &Local) -> Local {
    let mut part = block.clone();
    for (i, d) in block.dims.iter().enumerate() {
        if let Ok(range) = space.range(*d) {
            part.ranges[i] = range.clone();
            part.shape[i] = range.len();
        }
    }
    part
}

impl Lower<'_> {
    /// See [`meshwright_plan::Prim::Attention`].
    pub(crate) fn attention(
        &mut self,
        step: &Step,
        spec: &AttentionSpec,
        parts: &[AttentionPart],
    ) -> Result<(), LoweringError> {
        let reads: Vec<Local> = step.reads.iter().map(|o| self.local(o)).collect::<Result<_, _>>()?;
        let writes: Vec<Local> = step.writes.iter().map(|o| self.local(o)).collect::<Result<_, _>>()?;
        self.context.check_aligned(&reads.iter().chain(&writes).collect::<Vec<_>>(), &[])?;
        let at = AttentionOperands::of(parts);
        if reads.len() != spec.operands(parts) || writes.len() != parts.len() {
            return Err(LoweringError::Plan("an attention of other operands than it says".into()));
        }
        let range = |d| reads.iter().find_map(|l| l.range(d).ok().cloned());
        let ranges: Option<Vec<_>> = spec.space.iter().map(|d| range(*d)).collect();
        let Some(ranges) = ranges else { return Err(LoweringError::Plan("scores of unknown dims".into())) };
        let shape: Vec<usize> = ranges.iter().map(ExactSizeIterator::len).collect();
        let dtype = reads[0].dtype.wide();
        let space = Local { dtype, dims: spec.space.clone(), ranges, shape, ..reads[0].clone() };
        if let Some(state) = spec.state(parts).filter(|_| space.elements() == 0) {
            return self.turn_of_no_keys(&Whole { spec, parts, at, reads, writes }, state);
        }
        if space.elements() == 0 {
            for (part, out) in parts.iter().zip(&writes).filter(|(_, o)| o.elements() > 0) {
                let none = match part {
                    AttentionPart::Max => f64::NEG_INFINITY,
                    AttentionPart::Result => f64::NAN,
                    _ => 0.0,
                };
                self.write_number(none, out);
            }
            return Ok(());
        }
        match self.fused_attention((spec, parts), &reads, &writes)? {
            None => return Ok(()),
            Some(because) => self.attention_without_kernel.insert(self.graph.step, because),
        };
        let tile = tile(&space, space.position(spec.key)?, self.graph.target.scores_at_once);
        let whole = Whole { spec, parts, at, reads, writes };
        let made = self.attention_tiles(&whole, &space, &tile, 0)?;
        for (named, out) in made.iter().zip(&whole.writes) {
            self.write(named, out);
        }
        Ok(())
    }

    /// Results for some scores, cut along the dims from that one on. Results that have such a dim are concatenated along it,
    /// others are added.
    fn attention_tiles(
        &mut self,
        whole: &Whole<'_>,
        space: &Local,
        tile: &[usize],
        from: usize,
    ) -> Result<Vec<Named>, LoweringError> {
        let Some(i) = (from..tile.len()).find(|i| tile[*i] < space.shape[*i]) else {
            return self.attention_tile(whole, space);
        };
        let Range { start, end } = space.ranges[i].clone();
        let mut pieces: Vec<Vec<Named>> = vec![];
        for first in (start..end).step_by(tile[i]) {
            let mut piece = space.clone();
            piece.ranges[i] = first..end.min(first + tile[i]);
            piece.shape[i] = piece.ranges[i].len();
            for (at, result) in self.attention_tiles(whole, &piece, tile, i + 1)?.into_iter().enumerate() {
                match pieces.get_mut(at) {
                    Some(of) => of.push(result),
                    None => pieces.push(vec![result]),
                }
            }
        }
        Ok(pieces.into_iter().map(|of| self.put_together(of, space.dims[i])).collect())
    }

    fn put_together(&mut self, pieces: Vec<Named>, along: Dim) -> Named {
        let dims = pieces[0].dims.clone();
        let all: Vec<Val> = pieces.iter().map(|p| p.val).collect();
        let val = match dims.iter().position(|d| *d == along) {
            Some(axis) => self.graph.cat(all, axis),
            None => {
                let first = all[0];
                all[1..].iter().fold(first, |sum, next| self.graph.add(sum, *next))
            }
        };
        Named { val, dims }
    }

    fn attention_tile(&mut self, whole: &Whole<'_>, space: &Local) -> Result<Vec<Named>, LoweringError> {
        let part = |all: &[Local]| all.iter().map(|l| within(l, space)).collect::<Vec<_>>();
        let (reads, writes) = (part(&whole.reads), part(&whole.writes));
        let mut scores = Scores {
            whole,
            key: space.position(whole.spec.key)?,
            space: space.clone(),
            reads,
            writes,
            loads: vec![],
        };
        scores.loads = self.attention_loads(&scores)?;
        if whole.at.scale.is_some() {
            self.attention_gradients(&scores)
        } else {
            self.attention_forward(&scores)
        }
    }

    /// An operand's elements in a tile.
    fn tile_of(&mut self, s: &Scores<'_>, operand: usize) -> Named {
        let (all, part) = (&s.whole.reads[operand], &s.reads[operand]);
        let Named { mut val, dims } = self.read(all);
        for (axis, (all, part)) in all.ranges.iter().zip(&part.ranges).enumerate() {
            val = self.graph.slice(val, axis, part.start - all.start..part.end - all.start);
        }
        Named { val, dims }
    }

    fn attention_loads(&mut self, s: &Scores<'_>) -> Result<Vec<Val>, LoweringError> {
        let (space, mut loads) = (&s.space, vec![]);
        for extra in s.whole.at.extras..s.whole.at.extras + s.whole.spec.extras {
            let val = self.beside_scores(s, extra);
            loads.push(if s.reads[extra].dtype == DType::Bool { self.truth(val) } else { val });
        }
        for drawn in &s.whole.spec.draws {
            let sizes = self.context.plan.dims.shape(&drawn.dims);
            let ranges: Vec<_> =
                drawn.dims.iter().map(|d| space.range(*d).cloned()).collect::<Result<_, _>>()?;
            let shape: Vec<usize> = ranges.iter().map(ExactSizeIterator::len).collect();
            let whole = Local { dims: drawn.dims.clone(), ranges: ranges.clone(), shape, ..space.clone() };
            let random = RandomBlock::new(&drawn.stream, drawn.distribution, DType::Bool, &sizes, &ranges)?
                .of_examples(self.context.examples_of(&whole))
                .in_parts(self.context.parts_of(&whole))
                .in_order(&drawn.dims, &self.context.plan.dims);
            let val = self.graph.random(&random, stored_as(DType::Bool));
            let val = self.align(&Named { val, dims: whole.dims }, &space.dims);
            loads.push(self.truth(val));
        }
        Ok(loads)
    }

    /// An operand with the dims of the scores, or 1 where it lacks one.
    fn beside_scores(&mut self, s: &Scores<'_>, operand: usize) -> Val {
        let read = self.tile_of(s, operand);
        let val = self.align(&read, &s.space.dims);
        self.wide(val)
    }

    /// A matmul of two tensors with the extents of `out`, summed in `f32` at least. If one factor has a half type, a
    /// computed other one is rounded to it, since GPUs are ten times as fast with factors of half types; the sum is not
    /// rounded.
    fn attention_product(
        &mut self,
        a: (Val, &Local),
        b: (Val, &Local),
        out: &Local,
    ) -> Result<Val, LoweringError> {
        let half = [a.0, b.0].map(|v| self.graph.dtype(v)).into_iter().find(|dtype| is_half(*dtype));
        let mut factor = |v| half.map_or(v, |half| self.graph.cast(v, half));
        let (a, b) = ((factor(a.0), a.1), (factor(b.0), b.1));
        let out = Local { dtype: out.dtype.wide(), ..out.clone() };
        match self.product(a, b, &out, FactorDigits::All)? {
            Some(val) => Ok(val),
            None => Ok(self.graph.full(&extents(&out.shape), stored_as(out.dtype), 0.0)),
        }
    }

    /// The product of queries and keys, and the scores.
    fn attention_scores(&mut self, s: &Scores<'_>) -> Result<(Val, Val), LoweringError> {
        let (q, k) = (self.tile_of(s, 0).val, self.tile_of(s, 1).val);
        let product = self.attention_product((q, &s.reads[0]), (k, &s.reads[1]), &s.space)?;
        let loads = [&[product], s.loads.as_slice()].concat();
        Ok((product, self.expression(&s.whole.spec.score, &loads, &s.space)?))
    }

    /// Weights times their factors.
    fn weighed(&mut self, s: &Scores<'_>, x: Val) -> Result<Val, LoweringError> {
        let Some(weight) = &s.whole.spec.weight else { return Ok(x) };
        let loads = [&[x], s.loads.as_slice()].concat();
        let factor = self.expression(weight, &loads, &s.space)?;
        Ok(self.graph.mul(x, factor))
    }

    /// A factor that an attention makes.
    fn made_factor(&mut self, s: &Scores<'_>, x: Val) -> Result<Val, LoweringError> {
        if s.whole.spec.rounds { self.function(UnaryFn::Tf32, x, s.space.dtype) } else { Ok(x) }
    }

    fn attention_forward(&mut self, s: &Scores<'_>) -> Result<Vec<Named>, LoweringError> {
        let (_, score) = self.attention_scores(s)?;
        let max = match s.whole.at.max {
            Some(max) => self.beside_scores(s, max),
            None => self.graph.reduce(Reduce::Max, score, s.key),
        };
        let (max, shift, before) = self.turn(s, max);
        let shifted = self.graph.sub(score, shift);
        let e = self.graph.float(FloatOp::Exp, shifted);
        let mut made = vec![];
        for (part, out) in s.whole.parts.iter().zip(&s.writes) {
            made.push(match part {
                AttentionPart::Max => self.without_keys(s, max),
                AttentionPart::Sum => {
                    let sum = self.sum_of_weights(s, e);
                    self.with_sum(s, sum, before)
                }
                _ => {
                    let values = s.whole.at.values.unwrap_or(0);
                    let weights = self.weighed(s, e)?;
                    let weights = self.made_factor(s, weights)?;
                    let v = self.tile_of(s, values).val;
                    let mut val = self.attention_product((weights, &s.space), (v, &s.reads[values]), out)?;
                    val = self.with_values(s, val, out, before);
                    if *part == AttentionPart::Result {
                        let sum = self.sum_of_weights(s, e);
                        let sum = self.with_sum(s, sum, before);
                        let sum = self.align(&sum, &out.dims);
                        let scale = self.graph.float(FloatOp::Recip, sum);
                        val = self.graph.mul(val, scale);
                    }
                    Named { val, dims: out.dims.clone() }
                }
            });
        }
        Ok(made)
    }

    fn sum_of_weights(&mut self, s: &Scores<'_>, weights: Val) -> Named {
        let sum = self.graph.reduce(Reduce::Sum, weights, s.key);
        self.without_keys(s, sum)
    }

    /// A value with one element for all keys, without their dim.
    fn without_keys(&mut self, s: &Scores<'_>, val: Val) -> Named {
        let (mut dims, mut shape) = (s.space.dims.clone(), s.space.shape.clone());
        dims.remove(s.key);
        shape.remove(s.key);
        Named { val: self.graph.reshape(val, &extents(&shape)), dims }
    }

    fn attention_gradients(&mut self, s: &Scores<'_>) -> Result<Vec<Named>, LoweringError> {
        let (Some(max), Some(scale), Some(cotangent)) =
            (s.whole.at.max, s.whole.at.scale, s.whole.at.cotangent)
        else {
            return Err(LoweringError::Plan("a gradient of attention without its operands".into()));
        };
        let (product, score) = self.attention_scores(s)?;
        let max = self.beside_scores(s, max);
        let shifted = self.graph.sub(score, max);
        let e = self.graph.float(FloatOp::Exp, shifted);
        let scale = self.beside_scores(s, scale);
        let weights = self.graph.mul(e, scale);
        let (mut through, mut back) = (None, None);
        if let (Some(values), Some(delta)) = (s.whole.at.values, s.whole.at.delta) {
            let (v, dy) = (&s.reads[values], &s.reads[cotangent]);
            let dy_val = self.tile_of(s, cotangent).val;
            let v_val = self.tile_of(s, values).val;
            let by_weight = self.attention_product((dy_val, dy), (v_val, v), &s.space)?;
            let by_softmax = self.weighed(s, by_weight)?;
            let delta = self.beside_scores(s, delta);
            let inner = self.graph.sub(by_softmax, delta);
            let of_scores = self.graph.mul(weights, inner);
            through = Some(of_scores);
            back = Some(self.times_slope(s, of_scores, product, &s.whole.spec.slope)?);
        }
        let mut made = vec![];
        for (part, out) in s.whole.parts.iter().zip(&s.writes) {
            if let (AttentionPart::Bias, Some(through), Some(bias)) = (part, through, &s.whole.spec.bias) {
                let of_scores = self.times_slope(s, through, product, &bias.slope)?;
                made.push(self.summed_to(s, of_scores, out));
                continue;
            }
            let (of_scores, other) = match (part, back) {
                (AttentionPart::Query, Some(back)) => (back, 1),
                (AttentionPart::Key, Some(back)) => (back, 0),
                _ => (self.weighed(s, weights)?, cotangent),
            };
            let of_scores = self.made_factor(s, of_scores)?;
            let other_val = self.tile_of(s, other).val;
            let val = self.attention_product((of_scores, &s.space), (other_val, &s.reads[other]), out)?;
            made.push(Named { val, dims: out.dims.clone() });
        }
        Ok(made)
    }

    /// The gradient of scores times a derivative of these.
    fn times_slope(
        &mut self,
        s: &Scores<'_>,
        of_scores: Val,
        product: Val,
        slope: &Computed,
    ) -> Result<Val, LoweringError> {
        let loads = [&[product], s.loads.as_slice()].concat();
        let slope = self.expression(slope, &loads, &s.space)?;
        Ok(self.graph.mul(of_scores, slope))
    }

    /// A value with all dims of the scores, summed over those that a result lacks.
    fn summed_to(&mut self, s: &Scores<'_>, mut val: Val, out: &Local) -> Named {
        let (lacking, kept): (Vec<usize>, Vec<usize>) =
            (0..s.space.dims.len()).partition(|i| out.at(s.space.dims[*i]).is_none());
        for axis in lacking {
            val = self.graph.reduce(Reduce::Sum, val, axis);
        }
        let shape: Vec<usize> = kept.iter().map(|i| s.space.shape[*i]).collect();
        let dims = kept.iter().map(|i| s.space.dims[*i]).collect();
        Named { val: self.graph.reshape(val, &extents(&shape)), dims }
    }
}
