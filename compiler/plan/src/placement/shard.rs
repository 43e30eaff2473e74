//! Shards of a dim: ragged, balanced and nested (see `docs/how-a-program-becomes-a-plan.md`, "Uneven shards").

use crate::{Axis, Mesh};
use std::ops::Range;

/// Piece `i` of `k` of `0..n`: contiguous, balanced, the first `n % k` pieces one longer.
pub fn piece(n: usize, k: usize, i: usize) -> Range<usize> {
    let (q, r) = (n / k, n % k);
    let lo = i * q + i.min(r);
    lo..lo + q + usize::from(i < r)
}

/// The shard of `0..n` that the device at `coords` holds when it is split over `axes`, major first. The shard at `[a]`
/// is the union of the shards at `[a, b]`; shards may be empty.
pub fn shard(n: usize, axes: &[Axis], mesh: &Mesh, coords: &[usize]) -> Range<usize> {
    axes.iter().fold(0..n, |range, a| {
        let p = piece(range.len(), mesh.size(*a), coords[a.0 as usize]);
        range.start + p.start..range.start + p.end
    })
}

/// Size of the largest shard: that of the device at the origin.
pub fn largest_shard(n: usize, axes: &[Axis], mesh: &Mesh) -> usize {
    axes.iter().fold(n, |n, a| n.div_ceil(mesh.size(*a)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_cover_nest_and_balance() {
        let mesh = Mesh::new([("a", 3), ("b", 4)]);
        for n in 0..40 {
            let mut next = 0;
            for a in 0..3 {
                let outer = shard(n, &[Axis(0)], &mesh, &[a, 0]);
                assert_eq!(outer.start, next);
                for b in 0..4 {
                    let inner = shard(n, &[Axis(0), Axis(1)], &mesh, &[a, b]);
                    assert_eq!(inner.start, next);
                    assert!(inner.len() <= largest_shard(n, &[Axis(0), Axis(1)], &mesh));
                    next = inner.end;
                }
                assert_eq!(outer.end, next);
            }
            assert_eq!(next, n);
        }
    }
}
