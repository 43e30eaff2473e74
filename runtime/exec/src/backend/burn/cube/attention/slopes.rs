//! The gradients of scores. Weights are computed again from the greatest scores and the sums. One kernel goes through the keys of some
//! queries, and another through the queries of some keys, so that every sum has one order: nothing is added by atomics (FlashAttention-2, Dao
//! 2023, arXiv 2307.08691, section 3.1.2, has one kernel, which computes less and adds the gradients of queries as they come).

use super::super::exp2::exp;
use super::super::program::evaluate;
use super::super::tile::Two;
use super::decide::shift;
use super::draws::{by_columns, by_rows};
use super::scores::{AttentionShape, Beside, QueryLine, Space, element, four_lines, of_query, score};
use cubecl::prelude::*;

/// Of one score: its weight times its factor, and the gradient of the product of query and key.
#[derive(CubeType)]
struct Slopes {
    weight: f32,
    product: f32,
}

/// `product` is that of query and key, `by_weight` that of cotangent and value.
#[cube]
fn slopes_at<E: Float>(
    beside: &Beside,
    space: &Space,
    line: &QueryLine,
    drawn: &Sequence<Array<f32>>,
    query: u32,
    key: u32,
    product: f32,
    by_weight: f32,
    #[comptime] which: usize,
    #[comptime] shape: AttentionShape,
) -> Slopes {
    let at = element(beside, space, line, drawn, key, product, which, comptime!(shape.clone()));
    let score = score::<E>(&at, space, query, key, comptime!(shape.clone()));
    let max = of_query(beside, line, comptime!(shape.max.unwrap_or(0)));
    let scale = of_query(beside, line, comptime!(shape.scale.unwrap_or(0)));
    let mut weight = exp(score - shift(max)) * scale;
    // Beyond the end nothing is added, whatever is given for the last query.
    let is_within = query < space.rows && key < space.keys;
    if comptime!(!shape.whole) {
        weight = select(is_within, weight, 0.0f32);
    }
    let mut weighed = weight;
    let mut by_softmax = by_weight;
    if let Some(program) = comptime!(shape.weight.clone()) {
        let factor = evaluate::<E>(&at, program);
        weighed = weight * factor;
        by_softmax = by_weight * factor;
    }
    let mut product_slope = 0.0f32;
    if let Some(program) = comptime!(shape.slope.clone()) {
        let delta = of_query(beside, line, comptime!(shape.delta.unwrap_or(0)));
        product_slope = weight * (by_softmax - delta) * evaluate::<E>(&at, program);
        // The slope at a product of nothing may be no number.
        if comptime!(!shape.whole) {
            product_slope = select(is_within, product_slope, 0.0f32);
        }
    }
    Slopes { weight: weighed, product: product_slope }
}

/// Puts the gradients of products in their place, where queries are rows.
#[cube]
pub(super) fn slopes_by_rows<E: Float>(
    products: &mut Array<Vector<f32, Two>>,
    by_weights: &Array<Vector<f32, Two>>,
    beside: &Beside,
    space: &Space,
    lines: &Sequence<QueryLine>,
    row: u32,
    first_key: u32,
    #[comptime] shape: AttentionShape,
) {
    #[unroll]
    for pair in 0..comptime!(shape.columns / 16) {
        let first = first_key + comptime!(16 * pair as u32) + UNIT_POS % 4 * 2u32;
        let drawn = by_rows(beside, lines.index(0), lines.index(1), first, comptime!(shape.clone()));
        #[unroll]
        for place in 0..4usize {
            let (tile, half) = comptime!((place / 2, place % 2));
            let at = comptime!(2 * (2 * pair + tile) + half);
            let mut made = Vector::<f32, Two>::zeroed();
            #[unroll]
            for c in 0..2usize {
                let slopes = slopes_at::<E>(
                    beside,
                    space,
                    lines.index(half),
                    &drawn,
                    row + comptime!(8 * half as u32),
                    first + comptime!((8 * tile + c) as u32),
                    products[at].extract(c),
                    by_weights[at].extract(c),
                    comptime!(2 * place + c),
                    comptime!(shape.clone()),
                );
                made.insert(c, slopes.product);
            }
            products[at] = made;
        }
    }
}

/// The same where keys are rows; and weights in place of the products of cotangents and values. `at` is the outer position, the first query
/// of the tile, and the first key of the unit.
#[cube]
pub(super) fn slopes_by_columns<E: Float>(
    products: &mut Array<Vector<f32, Two>>,
    by_weights: &mut Array<Vector<f32, Two>>,
    beside: &Beside,
    space: &Space,
    at: (u32, u32, u32),
    #[comptime] shape: AttentionShape,
) {
    let (outer, first_query, key) = at;
    #[unroll]
    for pair in 0..comptime!(shape.columns / 16) {
        let query = first_query + comptime!(16 * pair as u32) + UNIT_POS % 4 * 2u32;
        let lines = four_lines(beside, space, outer, query, comptime!(shape.clone()));
        let drawn = by_columns(beside, &lines, key, comptime!(shape.clone()));
        #[unroll]
        for place in 0..4usize {
            let (tile, half) = comptime!((place / 2, place % 2));
            let at = comptime!(2 * (2 * pair + tile) + half);
            let mut made = Vector::<f32, Two>::zeroed();
            let mut weights = Vector::<f32, Two>::zeroed();
            #[unroll]
            for c in 0..2usize {
                let slopes = slopes_at::<E>(
                    beside,
                    space,
                    lines.index(comptime!(2 * tile + c)),
                    &drawn,
                    query + comptime!((8 * tile + c) as u32),
                    key + comptime!(8 * half as u32),
                    products[at].extract(c),
                    by_weights[at].extract(c),
                    comptime!(2 * place + c),
                    comptime!(shape.clone()),
                );
                made.insert(c, slopes.product);
                weights.insert(c, slopes.weight);
            }
            products[at] = made;
            by_weights[at] = weights;
        }
    }
}
