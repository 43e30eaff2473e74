//! What is known of an attention when a Plan is loaded.

use super::super::drawn::can_be_drawn;
use super::super::program::ScalarProgram;
use super::super::tile::ROWS;
use super::scores::DECIDED;
use crate::engine::attention::AttentionSpace;
use crate::kernels::{RandomKernel, attention_constant};
use meshwright_plan::{AttentionOperands, AttentionPart, AttentionSpec, DType, Dim};

/// Widest query and value, so that what a cube accumulates is in registers.
const WIDEST: usize = 128;

/// What a tensor that is given has: which of its dims each dim of the scores is. A dim of its own is behind these.
#[derive(Clone, Debug)]
pub(crate) struct AttentionInput(pub(crate) Vec<Option<usize>>);

/// What a tensor that is made is like: the same, and its extents.
#[derive(Clone, Debug)]
pub(crate) struct AttentionOutput {
    pub(crate) dims: Vec<Option<usize>>,
    pub(crate) shape: Vec<usize>,
}

/// An attention of half types on one device.
#[derive(Clone, Debug)]
pub(crate) struct AttentionCall {
    pub(super) parts: Vec<AttentionPart>,
    /// How many dims of the scores are outer ones, and which belong to rows.
    pub(super) outer: usize,
    pub(super) sizes: Vec<usize>,
    pub(super) starts: Vec<usize>,
    pub(super) width: usize,
    pub(super) values: usize,
    pub(super) score: ScalarProgram,
    pub(super) slope: Option<ScalarProgram>,
    pub(super) weight: Option<ScalarProgram>,
    pub(super) extras: usize,
    pub(super) draws: Vec<(RandomKernel, Vec<usize>)>,
    /// The number that the tiles are which positions decide, if there are any.
    pub(super) decided: Option<f32>,
    /// Queries, keys, values if they are read, the cotangent of gradients, extra operands, then the greatest scores, the scale
    /// and delta where they are given.
    pub(crate) inputs: Vec<AttentionInput>,
    pub(crate) outputs: Vec<AttentionOutput>,
}

/// The operands that an attention multiplies.
pub(crate) struct AttentionFactors {
    pub(crate) half: DType,
    pub(crate) width: usize,
    pub(crate) values: usize,
}

impl AttentionCall {
    /// None where there is no kernel for it.
    pub(crate) fn new(
        spec: &AttentionSpec,
        parts: &[AttentionPart],
        space: &AttentionSpace,
        factors: &AttentionFactors,
        draws: Vec<(RandomKernel, Vec<usize>)>,
    ) -> Option<AttentionCall> {
        let at = AttentionOperands::of(parts);
        let gradient = at.scale.is_some();
        // Of values alone nothing is to be multiplied with them.
        if gradient && at.delta.is_none() {
            return None;
        }
        let fits = |n: usize| n.is_multiple_of(ROWS) && n <= WIDEST;
        if factors.width == 0 || !fits(factors.width) || !fits(factors.values) || !factors.half.is_half() {
            return None;
        }
        let sizes: Vec<usize> = space.ranges.iter().map(ExactSizeIterator::len).collect();
        // Outer positions, queries and keys are counted in 32 bits, and so are cubes.
        let outer = space.outer().len();
        let of = |sizes: &[usize]| sizes.iter().product::<usize>();
        let (keys, rows) = (sizes[sizes.len() - 1], of(&sizes[outer..sizes.len() - 1]));
        let counted = [keys, rows, of(&sizes[..outer]) * rows.max(keys).div_ceil(DECIDED)];
        if counted.into_iter().any(|n| n >= 1 << 31) {
            return None;
        }
        if !draws.iter().all(|d| can_be_drawn(d.0.distribution())) {
            return None;
        }
        let program = |of| ScalarProgram::of(&space.renumbered(of, spec), factors.half);
        let weight = match &spec.weight {
            Some(weight) => Some(program(weight)?),
            None => None,
        };
        Some(AttentionCall {
            parts: parts.to_vec(),
            outer,
            sizes,
            starts: space.ranges.iter().map(|r| r.start).collect(),
            width: factors.width,
            values: factors.values,
            score: program(&spec.score)?,
            slope: if gradient { Some(program(&spec.slope)?) } else { None },
            weight,
            extras: spec.extras,
            draws,
            decided: None,
            inputs: vec![],
            outputs: vec![],
        })
    }

    /// Says that positions decide tiles, all of whose scores are `number`.
    pub(crate) fn decide(&mut self, number: f32) {
        self.decided = Some(number);
    }
}

/// Which tiles positions decide, by queries and keys, and the number that all their scores are; none where there are no such tiles, or
/// where they differ.
pub(crate) fn decided(spec: &AttentionSpec, space: &AttentionSpace) -> Option<(Vec<Vec<bool>>, f32)> {
    let score = space.renumbered(&spec.score, spec);
    let rows: Vec<usize> = space.rows().iter().map(|d: &Dim| space.size(*d)).collect();
    let (all, keys) = (rows.iter().product::<usize>(), space.size(spec.key));
    let outer = space.outer().len();
    let mut number: Option<f64> = None;
    let mut table = vec![];
    for first in (0..all).step_by(DECIDED) {
        let last = all.min(first + DECIDED) - 1;
        let mut ranges = space.ranges.clone();
        // What the rows of the tile have along each dim: all of it where they come past its end.
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
            let found = attention_constant(&score, &ranges);
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
