//! Zigzag order: each device along some axes has a range of positions from the front and the range as far from the end.
//!
//! What depends on positions, such as a causal mask, then leaves all devices as much to compute.

use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The order of the positions of a dim: of `2 k` ranges of equal length device `i` of `k` has range `i`, then range
/// `2 k - 1 - i`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Zigzag {
    /// Positions of a range.
    pub length: usize,
    /// Devices.
    pub devices: usize,
}

impl Zigzag {
    /// Of a dim of some size; `None` where the ranges would not be equal.
    pub fn new(size: usize, devices: usize) -> Option<Zigzag> {
        let ranges = 2 * devices;
        (devices > 0 && size.is_multiple_of(ranges)).then(|| Zigzag { length: size / ranges, devices })
    }

    /// The position at a place.
    pub fn position(&self, place: usize) -> usize {
        if self.length == 0 {
            return place;
        }
        let (range, within) = (place / self.length, place % self.length);
        let device = range / 2;
        let of = if range.is_multiple_of(2) { device } else { 2 * self.devices - 1 - device };
        of * self.length + within
    }

    /// The positions at some places in ranges, each as long as they follow each other.
    pub fn positions(&self, places: Range<usize>) -> Vec<Range<usize>> {
        let mut all: Vec<Range<usize>> = Vec::new();
        let mut at = places.start;
        while at < places.end {
            let end = ((at / self.length + 1) * self.length).min(places.end);
            let first = self.position(at);
            match all.last_mut() {
                Some(before) if before.end == first => before.end += end - at,
                _ => all.push(first..first + end - at),
            }
            at = end;
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_device_has_a_range_of_both_ends() {
        let order = Zigzag::new(12, 3).unwrap_or(Zigzag { length: 0, devices: 0 });
        let all: Vec<usize> = (0..12).map(|place| order.position(place)).collect();
        assert_eq!(all, [0, 1, 10, 11, 2, 3, 8, 9, 4, 5, 6, 7]);
        assert_eq!(order.positions(0..12), [0..2, 10..12, 2..4, 8..10, 4..8]);
        assert_eq!(order.positions(1..3), [1..2, 10..11]);
        assert_eq!(order.positions(4..4), [0..0; 0]);
        assert_eq!((Zigzag::new(10, 3), Zigzag::new(8, 0)), (None, None));
    }
}
