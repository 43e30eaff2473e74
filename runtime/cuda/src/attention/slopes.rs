//! The gradients of scores, in tiles whose rows are queries. Weights are computed again from the greatest scores and the sums.

use super::decide::shift;
use super::elements::{KeyTile, Which, element, exponential, key_in_tile, score};
use super::scores::{AttentionShape, Beside, QueryLine, Space, of_query};
use super::staged::Staged;
use super::stream::Both;
use crate::kernel::program::evaluate;
use crate::kernel::tile::Two;
use cubecl::prelude::*;

/// Of one score: its weight times its factor, and the gradient of the matmul of query and key.
#[derive(CubeType)]
struct Slopes {
    weight: f32,
    product: f32,
}

/// The two queries of a thread: the first one, and the values of both that are the same for all keys.
#[derive(CubeType)]
pub(super) struct QueryRows {
    pub(super) row: u32,
    pub(super) lines: Sequence<QueryLine>,
    max: Sequence<f32>,
    scale: Sequence<f32>,
    delta: Sequence<f32>,
}

#[cube]
impl QueryRows {
    pub(super) fn new(row: u32, lines: Sequence<QueryLine>, #[comptime] shape: AttentionShape) -> QueryRows {
        let (mut max, mut scale, mut delta) =
            (Sequence::<f32>::new(), Sequence::<f32>::new(), Sequence::<f32>::new());
        #[unroll]
        for half in 0..2usize {
            max.push(shift(of_query(lines.index(half), comptime!(shape.max.unwrap_or(0)))));
            scale.push(of_query(lines.index(half), comptime!(shape.scale.unwrap_or(0))));
            delta.push(of_query(lines.index(half), comptime!(shape.delta.unwrap_or(0))));
        }
        QueryRows { row, lines, max, scale, delta }
    }
}

/// `product` is that of query and key, `by_weight` that of cotangent and value.
#[cube]
fn slope_at(
    beside: &Beside,
    space: &Space,
    queries: &QueryRows,
    staged: &Staged,
    tile: &KeyTile,
    product: f32,
    by_weight: f32,
    #[comptime] which: Which,
    #[comptime] shape: AttentionShape,
) -> Slopes {
    let half = comptime!(which.half);
    let (query, key) = (queries.row + comptime!(8 * half as u32), tile.first + key_in_tile(which));
    let line = queries.lines.index(half);
    let at = element(beside, space, line, staged, tile, product, which, comptime!(shape.clone()));
    let score = score(&at, space, query, key, comptime!(shape.clone()));
    let relative = score - *queries.max.index(half);
    let mut weight = exponential(relative, comptime!(shape.by)) * *queries.scale.index(half);
    // Beyond the end nothing is added, whatever is given for the last query.
    let is_within = query < space.rows && key < space.keys;
    if comptime!(!shape.whole) {
        weight = select(is_within, weight, 0.0f32);
    }
    let mut weighed = weight;
    let mut by_softmax = by_weight;
    if let Some(program) = comptime!(shape.weight.clone()) {
        let factor = evaluate(&at, program);
        weighed = weight * factor;
        by_softmax = by_weight * factor;
    }
    let mut product_slope = 0.0f32;
    if let Some(program) = comptime!(shape.slope.clone()) {
        product_slope = weight * (by_softmax - *queries.delta.index(half)) * evaluate(&at, program);
        // The slope at a product of nothing may be no number.
        if comptime!(!shape.whole) {
            product_slope = select(is_within, product_slope, 0.0f32);
        }
    }
    Slopes { weight: weighed, product: product_slope }
}

/// Replaces matmuls by their gradients, and matmuls of cotangents and values by weights times their factors, for the
/// keys of the tile from the 16 times `first`-th on.
#[cube]
pub(super) fn slopes(
    both: &mut Both,
    beside: &Beside,
    space: &Space,
    queries: &QueryRows,
    staged: &Staged,
    tile: &KeyTile,
    #[comptime] first: usize,
    #[comptime] columns: usize,
    #[comptime] shape: AttentionShape,
) {
    #[unroll]
    for at in 0..comptime!(columns / 4) {
        let mut made = Vector::<f32, Two>::zeroed();
        let mut weights = Vector::<f32, Two>::zeroed();
        #[unroll]
        for c in 0..2usize {
            let which = comptime!(Which { pair: first + at / 4, tile: at / 2 % 2, half: at % 2, key: c });
            let (product, by_weight) = (both.scores[at].extract(c), both.by_weights[at].extract(c));
            let own = comptime!(shape.clone());
            let found = slope_at(beside, space, queries, staged, tile, product, by_weight, which, own);
            made.insert(c, found.product);
            weights.insert(c, found.weight);
        }
        both.scores[at] = made;
        both.by_weights[at] = weights;
    }
}
