//! Description of an attention kernel.

use super::super::call::{CallWork, KernelCall};
use super::super::random::RandomBlock;
use super::super::scalar::ScalarProgram;
use super::bounds::constant;
use super::space::AttentionSpace;
use super::tiles::{AttentionPasses, AttentionTiles, AttentionWidths, DECIDED};
use crate::error::NoAttentionKernel;
use meshwright_plan::{AttentionOperands, AttentionPart, AttentionSpec, DType, Dim, Zigzag};
use serde::{Deserialize, Serialize};

/// Rows that a warp computes at a time on tensor cores.
const ROWS: usize = 16;

/// Words of a bit for each score of such a tile.
const WORDS: usize = DECIDED * DECIDED / 32;

/// Most words that are drawn ahead, 256 MiB: beyond, memory is worth more than the time to draw in each kernel that reads them.
const MOST_AHEAD: usize = 1 << 26;

/// An operand: the index of its dim for each dim of the scores, none if it lacks the dim. The dim of its width comes last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttentionInput(pub Vec<Option<usize>>);

/// A result of an attention.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttentionOutput {
    /// Index of its dim for each dim of the scores; none if it lacks the dim.
    pub dims: Vec<Option<usize>>,
    /// Extents.
    pub shape: Vec<usize>,
}

/// An attention of half types or of `f32` on one device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttentionCall {
    /// Parts that the step computes, one for each result.
    pub parts: Vec<AttentionPart>,
    /// Number of outer dims, which are the first dims of the scores. The dims of queries and the dim of keys follow.
    pub outer: usize,
    /// Size of the device's block along each dim of the scores.
    pub sizes: Vec<usize>,
    /// Global position at which the block begins along each dim of the scores.
    pub starts: Vec<usize>,
    /// Width of queries and keys, in elements.
    pub width: usize,
    /// Width of values, in elements; 0 if no values are read.
    pub values: usize,
    /// Extents of tiles.
    pub tiles: AttentionTiles,
    /// Function that computes a score from the dot product of a query and a key.
    pub score: ScalarProgram,
    /// Derivative of `score` by the dot product; none if the step computes no gradients.
    pub slope: Option<ScalarProgram>,
    /// Derivative of `score` by the bias; none if the step does not compute its gradient.
    pub bias: Option<ScalarProgram>,
    /// Factor of each weight, such as that of dropout; none if all factors are 1.
    pub weight: Option<ScalarProgram>,
    /// Number of extra operands of the functions.
    pub extras: usize,
    /// Blocks of random values, each with the dim of the scores for each of its dims.
    pub draws: Vec<(RandomBlock, Vec<usize>)>,
    /// Score of all elements of decided tiles; none if no tile is decided.
    pub decided: Option<f32>,
    /// True if it goes on with what other keys have given.
    pub continues: bool,
    /// True if factors that the kernels make are rounded to TF32: see [`AttentionSpec::rounds`].
    pub rounds: bool,
    /// Queries, keys, values if they are read, the cotangent of gradients, extra operands, then the greatest scores, the scale
    /// and delta where they are given, or the maximum, the sum and the values of other keys. What is drawn ahead and the table of
    /// decided tiles follow, which have none of the dims.
    pub inputs: Vec<AttentionInput>,
    /// Results, one for each of `parts`.
    pub outputs: Vec<AttentionOutput>,
}

/// What an attention draws ahead: the same dims and draws, without operands and results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttentionDraws(pub AttentionCall);

impl KernelCall for AttentionDraws {
    const NAME: &'static str = "attention_draws";

    fn work(&self) -> CallWork {
        let drawn = |(block, _): &(RandomBlock, Vec<usize>)| block.shape().iter().product::<usize>() as u64;
        CallWork { draws: self.0.draws.iter().map(drawn).sum(), ..CallWork::default() }
    }
}

impl KernelCall for AttentionCall {
    const NAME: &'static str = "attention";

    /// One for the gradient of queries, one for those of keys and values or one for each, one for that of the bias.
    fn starts(&self) -> u64 {
        let has = |part| u64::from(self.parts.contains(&part));
        let [key, value] = [AttentionPart::Key, AttentionPart::Value].map(has);
        let keys = if self.tiles.apart { key + value } else { key.max(value) };
        (has(AttentionPart::Query) + keys + has(AttentionPart::Bias)).max(1)
    }
}

/// The key of the bits that an attention draws ahead.
pub(crate) struct AttentionBitsKey<'a> {
    pub spec: &'a AttentionSpec,
    pub space: AttentionSpace,
    pub draws: Vec<(RandomBlock, Vec<usize>)>,
    pub words: usize,
    /// True of a step that gives gradients.
    pub of_gradient: bool,
}

impl AttentionBitsKey<'_> {
    /// True if another attention draws the same bits in the same order.
    pub(crate) fn draws_as(&self, other: &AttentionBitsKey<'_>) -> bool {
        let order = |of: &AttentionSpace| (of.dims.clone(), of.ranges.clone(), of.outer().len());
        let alone = |of: &AttentionSpec| AttentionSpec { continues: false, ..of.clone() };
        alone(self.spec) == alone(other.spec)
            && order(&self.space) == order(&other.space)
            && self.draws == other.draws
    }
}

/// The operands that an attention multiplies.
pub(crate) struct AttentionFactors {
    /// That of queries, keys and values.
    pub dtype: DType,
    /// Width of queries and keys.
    pub width: usize,
    /// Width of values; 0 if there are none.
    pub values: usize,
    /// Bytes of shared memory that a block of the target may have.
    pub shared: usize,
}

impl AttentionCall {
    /// Describes an attention. Decided tiles, inputs and outputs are added afterwards.
    ///
    /// # Errors
    /// The call, or the reason why there is no kernel.
    pub(crate) fn new(
        spec: &AttentionSpec,
        parts: &[AttentionPart],
        space: &AttentionSpace,
        factors: &AttentionFactors,
        draws: Vec<(RandomBlock, Vec<usize>)>,
    ) -> Result<AttentionCall, NoAttentionKernel> {
        let at = AttentionOperands::of(parts);
        let gradient = at.scale.is_some();
        // The gradient of values alone needs no matmul with them.
        if gradient && at.delta.is_none() {
            return Err(NoAttentionKernel::ValuesAlone);
        }
        let tiles = tiles(spec, parts, factors)?;
        let sizes: Vec<usize> = space.ranges.iter().map(ExactSizeIterator::len).collect();
        // Outer positions, queries, keys and blocks are counted in 32 bits.
        let outer = space.outer().len();
        let of = |sizes: &[usize]| sizes.iter().product::<usize>();
        let (keys, rows) = (sizes[sizes.len() - 1], of(&sizes[outer..sizes.len() - 1]));
        let of_bias = spec.bias.as_ref().filter(|_| parts.contains(&AttentionPart::Bias));
        let blocks = |n: usize| n.div_ceil(DECIDED);
        let all = of(&sizes[..outer]) * blocks(rows.max(keys));
        let counted = [keys, rows, if of_bias.is_some() { all * blocks(rows.min(keys)) } else { all }];
        if let Some(most) = counted.into_iter().find(|n| *n >= 1 << 31) {
            return Err(NoAttentionKernel::Positions(most));
        }
        let program = |of| {
            let (of, dtype) = (space.renumbered(of, spec), factors.dtype);
            let lacking = || NoAttentionKernel::Function(ScalarProgram::lacking(&of, dtype));
            ScalarProgram::of(&of, dtype).ok_or_else(lacking)
        };
        Ok(AttentionCall {
            parts: parts.to_vec(),
            outer,
            sizes,
            starts: space.ranges.iter().map(|r| r.start).collect(),
            width: factors.width,
            values: factors.values,
            tiles,
            score: program(&spec.score)?,
            slope: if gradient { Some(program(&spec.slope)?) } else { None },
            bias: of_bias.map(|bias| program(&bias.slope)).transpose()?,
            weight: spec.weight.as_ref().map(program).transpose()?,
            extras: spec.extras,
            draws,
            decided: None,
            continues: spec.continues,
            rounds: spec.rounds,
            inputs: vec![],
            outputs: vec![],
        })
    }

    /// Number of 32-bit words with a bit for each truth value, if a kernel of its own draws them before the others run: 0 where
    /// nothing is drawn, where keys are so few that a launch costs more than drawing anew, and where the words would take too
    /// much memory.
    pub fn words_ahead(&self) -> usize {
        let key = self.sizes.len() - 1;
        let of = |sizes: &[usize]| sizes.iter().product::<usize>();
        let [outer, rows] = [&self.sizes[..self.outer], &self.sizes[self.outer..key]].map(of);
        ahead([outer, rows, self.sizes[key]], self.draws.len())
    }

    /// The kernel that only draws.
    pub fn draws_ahead(&self) -> AttentionDraws {
        AttentionDraws(AttentionCall {
            parts: vec![],
            width: 0,
            values: 0,
            score: ScalarProgram::default(),
            slope: None,
            bias: None,
            weight: None,
            extras: 0,
            continues: false,
            inputs: vec![],
            outputs: vec![],
            ..self.clone()
        })
    }

    /// For each dim of the scores the order in which its positions are stored, where it is not their own and something is drawn
    /// along it.
    pub fn orders(&self) -> Vec<Option<Zigzag>> {
        let along = |(block, places): &(RandomBlock, Vec<usize>), dim| {
            places.iter().position(|place| *place == dim).and_then(|i| block.order(i))
        };
        (0..self.sizes.len()).map(|dim| self.draws.iter().find_map(|draw| along(draw, dim))).collect()
    }

    /// Sets the score of all elements of decided tiles.
    pub fn decide(&mut self, number: f32) {
        self.decided = Some(number);
    }
}

/// The tiles of an attention.
fn tiles(
    spec: &AttentionSpec,
    parts: &[AttentionPart],
    factors: &AttentionFactors,
) -> Result<AttentionTiles, NoAttentionKernel> {
    let AttentionFactors { dtype, width, values, shared } = *factors;
    let of = AttentionWidths { width, values, bytes: dtype.bytes() };
    if width == 0 || !of.takes(width, ROWS) {
        return Err(NoAttentionKernel::Width { width, widest: of.widest() });
    }
    if !of.takes(values, ROWS) {
        return Err(NoAttentionKernel::ValuesWidth { width: values, widest: of.widest() });
    }
    let has = |part| parts.contains(&part);
    let passes = AttentionPasses {
        forward: AttentionOperands::of(parts).scale.is_none(),
        query_grad: has(AttentionPart::Query),
        key_grad: has(AttentionPart::Key) || has(AttentionPart::Value),
        bias_grad: has(AttentionPart::Bias),
    };
    // The maximum, the scale and delta, or what other keys have given.
    AttentionTiles::of(of, passes, spec.extras + 3, shared)
}

/// Table of tiles, by queries and keys, with true for each tile whose scores depend on positions alone; and the score
/// of all their elements. None if there are no such tiles, or if their scores differ.
pub fn decided(spec: &AttentionSpec, space: &AttentionSpace) -> Option<(Vec<Vec<bool>>, f32)> {
    let score = space.renumbered(&spec.score, spec);
    let rows: Vec<usize> = space.rows().iter().map(|d: &Dim| space.size(*d)).collect();
    let (all, keys) = (rows.iter().product::<usize>(), space.size(spec.key));
    let outer = space.outer().len();
    let mut number: Option<f64> = None;
    let mut table = vec![];
    for first in (0..all).step_by(DECIDED) {
        let last = all.min(first + DECIDED) - 1;
        let mut ranges = space.ranges.clone();
        // Extents of the tile's rows along each dim, clipped at its end.
        let mut inner = 1;
        for (i, n) in rows.iter().enumerate().rev() {
            let (from, to) = (first / inner, last / inner);
            if from / n == to / n {
                let start = ranges[outer + i].start;
                ranges[outer + i] = start + from % n..start + to % n + 1;
            }
            inner *= n;
        }
        let mut line = vec![];
        for key in (0..keys).step_by(DECIDED) {
            let start = space.ranges[outer + rows.len()].start;
            ranges[outer + rows.len()] = start + key..start + keys.min(key + DECIDED);
            let found = constant(&score, &ranges);
            if found.is_some_and(|x| number.is_some_and(|n| n != x)) {
                return None;
            }
            number = found.or(number);
            line.push(found.is_some());
        }
        table.push(line);
    }
    Some((table, number? as f32))
}

/// See [`AttentionCall::words_ahead`].
fn ahead([outer, rows, keys]: [usize; 3], draws: usize) -> usize {
    let tiles = outer * rows.div_ceil(DECIDED) * keys.div_ceil(DECIDED) * draws;
    if keys > DECIDED && tiles <= MOST_AHEAD / WORDS { tiles * WORDS } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_drawn_ahead_is_worth_a_launch_and_fits() {
        // A layer of GPT small takes 24 MiB.
        assert_eq!(ahead([16 * 12, 1024, 1024], 1) * 4, 24 << 20);
        assert_eq!(ahead([1, 65, 65], 2), 2 * 4 * WORDS);
        assert_eq!(ahead([16 * 12, 1024, 1024], 0), 0);
        assert_eq!(ahead([16 * 12, 1024, DECIDED], 1), 0);
        assert_eq!(ahead([16 * 12, 8192, 8192], 1), 0);
    }
}
