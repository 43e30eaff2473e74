//! The part of an attention's scores that positions alone do not hide, as a causal mask does.

use meshwright_device::kernels::attention::bounds::constant;
use meshwright_plan::expr::Scalar;
use meshwright_plan::{AttentionSpec, Operand, Plan, Step};
use std::ops::Range;

/// Tiles along a dim. A mask hides whole tiles.
const TILES: usize = 32;

/// The greatest part among the devices at the first and the last coordinates, in 0..=1: with a split sequence the last device
/// sees most.
pub(crate) fn visible(plan: &Plan, step: &Step, spec: &AttentionSpec) -> f64 {
    let ends: [fn(usize) -> usize; 2] = [|_| 0, |size| size - 1];
    let part = |end: fn(usize) -> usize| {
        let coords: Vec<usize> = plan.mesh.axes.iter().map(|a| end(a.size)).collect();
        let range = |dim| {
            let of = |o: &Operand| {
                let at = o.dims.iter().position(|d| *d == dim)?;
                Some(plan.buffer(o.buf).extents[at].range(&plan.mesh, &coords))
            };
            step.all().find_map(of).unwrap_or(0..plan.dims.size(dim))
        };
        of_ranges(spec, &spec.space.iter().map(|d| range(*d)).collect::<Vec<_>>())
    };
    ends.into_iter().map(part).fold(0.0, f64::max)
}

/// The part of the scores of all devices together.
pub(crate) fn balanced(plan: &Plan, spec: &AttentionSpec) -> f64 {
    of_ranges(spec, &spec.space.iter().map(|d| 0..plan.dims.size(*d)).collect::<Vec<_>>())
}

/// The part of all tiles in which some score is not decided by positions.
fn of_ranges(spec: &AttentionSpec, ranges: &[Range<usize>]) -> f64 {
    let indexed = |k: usize| spec.score.expr.nodes.iter().any(|n| n.scalar == Scalar::Index(k as u16));
    let mut tiles = vec![ranges.to_vec()];
    for k in (0..ranges.len()).filter(|k| indexed(*k)) {
        let cut = |tile: Vec<Range<usize>>| {
            let Range { start, end } = tile[k].clone();
            let size = (end - start).div_ceil(TILES).max(1);
            let pieces = (start..end).step_by(size).map(move |at| at..(at + size).min(end));
            pieces.map(move |piece| {
                let mut tile = tile.clone();
                tile[k] = piece;
                tile
            })
        };
        tiles = tiles.into_iter().flat_map(cut).collect();
    }
    let elements = |tile: &[Range<usize>]| tile.iter().map(|r| r.len() as f64).product::<f64>();
    let shown: f64 = tiles.iter().filter(|t| constant(&spec.score, t).is_none()).map(|t| elements(t)).sum();
    let all = elements(ranges);
    if all > 0.0 { shown / all } else { 1.0 }
}
