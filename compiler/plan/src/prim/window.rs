//! Windows: which interval of an operand an interval of a loop needs. Convolution, pooling, slices, shifts, padding,
//! joining and cutting of dims all say what they need of a split dim in this one form, and one exchange serves them.

use crate::{Axis, Dim, Dims, Mesh, shard};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// A monotone map from intervals `lo..hi` of a loop of size `of` to intervals of an operand's dim:
/// `ceil((lo * mul + before) / div) .. floor(((hi - 1) * mul + after) / div) + 1`, cut to what the dim has; with `lo` and
/// `hi - 1` exchanged where `mul` is negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Window {
    /// Size of the loop, whose shards decide.
    pub of: usize,
    /// Steps of the operand for `div` steps of the loop; negative where it runs the other way.
    pub mul: i64,
    /// Steps of the loop for `mul` steps of the operand; at least 1.
    pub div: i64,
    /// Offset of the first element that is needed.
    pub before: i64,
    /// Offset of the last element that is needed.
    pub after: i64,
}

impl Window {
    /// A loop of size `of` whose element `i` needs element `i + start`.
    pub fn shifted(of: usize, start: i64) -> Window {
        Window { of, mul: 1, div: 1, before: start, after: start }
    }

    /// A loop of size `of` whose element `i` needs elements `i * inner .. (i + 1) * inner`: the outer part of a dim that
    /// is cut in two.
    pub fn cut(of: usize, inner: usize) -> Window {
        Window { of, mul: inner as i64, div: 1, before: 0, after: inner as i64 - 1 }
    }

    /// A loop of size `of` whose element `i` needs element `i / inner`: what the outer of two dims gives to their join.
    pub fn joined(of: usize, inner: usize) -> Window {
        Window { of, mul: 1, div: inner as i64, before: 1 - inner as i64, after: 0 }
    }

    /// A loop of size `of` whose element `i` needs element `of - 1 - i`.
    pub fn reversed(of: usize) -> Window {
        let last = of as i64 - 1;
        Window { of, mul: -1, div: 1, before: last, after: last }
    }

    /// The interval of a dim of size `size` that the interval `loops` needs.
    pub fn need(&self, size: usize, loops: &Range<usize>) -> Range<usize> {
        if loops.is_empty() {
            return 0..0;
        }
        let (lo, last) = (loops.start as i64, loops.end as i64 - 1);
        let (lo, last) = if self.mul < 0 { (last, lo) } else { (lo, last) };
        let first = (lo * self.mul + self.before + self.div - 1).div_euclid(self.div);
        let end = (last * self.mul + self.after).div_euclid(self.div) + 1;
        let cut = |v: i64| v.clamp(0, size as i64) as usize;
        let (first, end) = (cut(first), cut(end));
        if first < end { first..end } else { 0..0 }
    }

    /// The interval of a dim of size `size` that the device at `coords` needs, if the loop is split over `axes`.
    pub fn shard(&self, size: usize, axes: &[Axis], mesh: &Mesh, coords: &[usize]) -> Range<usize> {
        self.need(size, &shard(self.of, axes, mesh, coords))
    }

    /// Elements of the largest interval that a device needs.
    pub fn largest(&self, size: usize, axes: &[Axis], mesh: &Mesh) -> usize {
        coords_along(axes, mesh).map(|c| self.shard(size, axes, mesh, &c).len()).max().unwrap_or(0)
    }

    /// Most elements that a device needs beyond its own shard of a dim that is split over the same axes.
    pub fn missing(&self, size: usize, axes: &[Axis], mesh: &Mesh) -> usize {
        self.lacks(size, axes, mesh).max().unwrap_or(0)
    }

    /// Elements that all devices along the axes together need beyond their own shards.
    pub fn missing_in_all(&self, size: usize, axes: &[Axis], mesh: &Mesh) -> usize {
        self.lacks(size, axes, mesh).sum()
    }

    fn lacks<'a>(
        &'a self,
        size: usize,
        axes: &'a [Axis],
        mesh: &'a Mesh,
    ) -> impl Iterator<Item = usize> + 'a {
        coords_along(axes, mesh).map(move |c| {
            let (own, need) = (shard(size, axes, mesh, &c), self.shard(size, axes, mesh, &c));
            let shared = own.end.min(need.end).saturating_sub(own.start.max(need.start));
            need.len() - shared
        })
    }

    /// True if every device needs exactly its own shard of a dim that is split over the same axes.
    pub fn is_own(&self, size: usize, axes: &[Axis], mesh: &Mesh) -> bool {
        coords_along(axes, mesh).all(|c| {
            let (own, need) = (shard(size, axes, mesh, &c), self.shard(size, axes, mesh, &c));
            own == need || own.is_empty() && need.is_empty()
        })
    }
}

/// Coordinates of every device along some axes, at the origin of all others.
pub fn coords_along<'a>(axes: &'a [Axis], mesh: &'a Mesh) -> impl Iterator<Item = Vec<usize>> + 'a {
    let count: usize = axes.iter().map(|a| mesh.size(*a)).product();
    (0..count).map(move |mut i| {
        let mut coords = vec![0; mesh.axes.len()];
        for a in axes.iter().rev() {
            coords[usize::from(a.0)] = i % mesh.size(*a);
            i /= mesh.size(*a);
        }
        coords
    })
}

/// The slide of a kernel along a dim: tap `t` of position `n` meets element `n * stride + t * dilation - low`, and nothing
/// where there is no such element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SlidingWindow {
    /// The dim that is slid along.
    pub wide: Dim,
    /// The positions; the same dim as `wide` where the size stays.
    pub narrow: Dim,
    /// The taps of the kernel.
    pub tap: Dim,
    /// Elements from one position to the next.
    pub stride: usize,
    /// Elements from one tap to the next.
    pub dilation: usize,
    /// Elements of padding before the first.
    pub low: usize,
}

impl SlidingWindow {
    /// Elements from the first tap to the last.
    pub fn reach(&self, dims: &Dims) -> usize {
        (dims.size(self.tap) - 1) * self.dilation
    }

    /// The window of `wide` that positions need.
    pub fn of_positions(&self, dims: &Dims) -> Window {
        let low = self.low as i64;
        let after = self.reach(dims) as i64 - low;
        Window { of: dims.size(self.narrow), mul: self.stride as i64, div: 1, before: -low, after }
    }

    /// The window of positions that elements of `wide` need: the positions of which a tap may meet them.
    pub fn of_elements(&self, dims: &Dims) -> Window {
        let low = self.low as i64;
        let before = low - self.reach(dims) as i64;
        Window { of: dims.size(self.wide), mul: 1, div: self.stride as i64, before, after: low }
    }

    /// The element that a tap meets at a position.
    pub fn element(&self, position: usize, tap: usize, dims: &Dims) -> Option<usize> {
        let i = (position * self.stride + tap * self.dilation).checked_sub(self.low)?;
        (i < dims.size(self.wide)).then_some(i)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The needed interval, by going through every position and tap.
    fn slow(s: &SlidingWindow, dims: &Dims, positions: &Range<usize>) -> Option<(usize, usize)> {
        let met =
            positions.clone().flat_map(|n| (0..dims.size(s.tap)).filter_map(move |t| s.element(n, t, dims)));
        let (lo, hi) = met.fold((usize::MAX, 0), |(lo, hi), i| (lo.min(i), hi.max(i + 1)));
        (lo < hi).then_some((lo, hi))
    }

    #[test]
    fn windows_hold_all_that_is_met_and_no_more_at_the_ends() {
        let mesh = Mesh::new([("a", 3), ("b", 2)]);
        for (wide, taps, stride, dilation, low) in [
            (28, 9, 1, 1, 4),
            (7, 3, 2, 1, 1),
            (11, 2, 3, 2, 0),
            (5, 9, 1, 1, 4),
            (6, 3, 1, 2, 2),
            (4, 1, 3, 1, 0),
        ] {
            let reach = (taps - 1) * dilation;
            let narrow = (wide + 2 * low - reach - 1) / stride + 1;
            let mut dims = Dims::default();
            let (i, n, t) = (dims.add("i", wide), dims.add("n", narrow), dims.add("t", taps));
            let s = SlidingWindow { wide: i, narrow: n, tap: t, stride, dilation, low };
            for axes in [vec![], vec![Axis(0)], vec![Axis(1), Axis(0)]] {
                for c in coords_along(&axes, &mesh) {
                    let positions = shard(narrow, &axes, &mesh, &c);
                    let need = s.of_positions(&dims).shard(wide, &axes, &mesh, &c);
                    if let Some((lo, hi)) = slow(&s, &dims, &positions) {
                        assert!(need.start <= lo && need.end >= hi, "{s:?} {positions:?} {need:?}");
                        assert!(need.len() <= (positions.len() - 1) * stride + reach + 1);
                    }
                    let elements = shard(wide, &axes, &mesh, &c);
                    let need = s.of_elements(&dims).shard(narrow, &axes, &mesh, &c);
                    for n in 0..narrow {
                        let meets =
                            (0..taps).any(|t| s.element(n, t, &dims).is_some_and(|i| elements.contains(&i)));
                        assert!(!meets || need.contains(&n), "{s:?} {elements:?} {need:?} {n}");
                    }
                }
            }
        }
    }

    #[test]
    fn cut_and_joined_dims_need_what_lies_there() {
        assert_eq!(Window::cut(4, 3).need(12, &(1..3)), 3..9);
        assert_eq!(Window::joined(12, 3).need(4, &(4..8)), 1..3);
        assert_eq!(Window::joined(12, 3).need(4, &(3..6)), 1..2);
        assert_eq!(Window::shifted(5, -2).need(5, &(0..3)), 0..1);
        assert_eq!(Window::shifted(5, -2).need(5, &(0..2)), 0..0);
        assert_eq!(Window::reversed(7).need(7, &(0..3)), 4..7);
        assert_eq!(Window::reversed(7).need(7, &(3..7)), 0..4);
        let mesh = Mesh::new([("a", 2)]);
        assert!(Window::cut(4, 3).is_own(12, &[Axis(0)], &mesh));
        assert!(!Window::cut(3, 3).is_own(9, &[Axis(0)], &mesh));
        assert_eq!(Window::shifted(6, 1).missing(6, &[Axis(0)], &mesh), 1);
        // The first device lacks one element, the last has none behind it.
        assert_eq!(Window::shifted(6, 1).missing_in_all(6, &[Axis(0)], &mesh), 1);
    }
}
