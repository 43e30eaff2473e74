//! Blocks along one dim of a dense array, packed one after the other, and back.
//!
//! The blocks of several arrays may share the packed form. An array is seen as `outer x size x inner` view the dim; a block as
//! `outer x length x inner`. Where `outer` is 1 the packed form is the array itself.

use serde::{Deserialize, Serialize};
use std::ops::Range;

/// A block of an array with its offset in the packed form.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PackedBlock {
    /// Interval of the dim along which the array is cut.
    pub range: Range<usize>,
    /// Offset of the block in the packed form, in elements.
    pub start: usize,
}

/// Packed blocks of each array, and the number of elements of the packed form: the first block of each array, then the second of
/// each, and so on.
pub(crate) fn in_turn(arrays: &[(StridedView, &[Range<usize>])]) -> (Vec<Vec<PackedBlock>>, usize) {
    let mut blocks: Vec<Vec<PackedBlock>> = vec![vec![]; arrays.len()];
    let mut start = 0;
    for turn in 0..arrays.iter().map(|a| a.1.len()).max().unwrap_or(0) {
        for ((view, ranges), blocks) in arrays.iter().zip(&mut blocks) {
            if let Some(range) = ranges.get(turn) {
                blocks.push(PackedBlock { range: range.clone(), start });
                start += view.block(range.len());
            }
        }
    }
    (blocks, start)
}

/// An array seen from one of its dims.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StridedView {
    /// Product of the extents before the dim.
    pub outer: usize,
    /// Extent of the dim.
    pub size: usize,
    /// Product of the extents after the dim.
    pub inner: usize,
}

impl StridedView {
    /// View of an array of that shape from its dim `at`.
    pub fn new(shape: &[usize], at: usize) -> StridedView {
        StridedView {
            outer: shape[..at].iter().product(),
            size: shape[at],
            inner: shape[at + 1..].iter().product(),
        }
    }

    /// Elements of a block of that length.
    pub fn block(&self, length: usize) -> usize {
        self.outer * length * self.inner
    }

    /// Whether blocks are contiguous without packing.
    pub fn is_contiguous(&self) -> bool {
        self.outer <= 1
    }
}

/// Copies blocks of `array` to their places in `packed`. `bytes` is the size of an element; blocks are ranges of the dim.
pub fn pack(array: &[u8], packed: &mut [u8], view: StridedView, blocks: &[PackedBlock], bytes: usize) {
    each_run(view, blocks, bytes, |whole, part| packed[part].copy_from_slice(&array[whole]));
}

/// The inverse of [`pack`]; elements in no block keep their values.
pub fn unpack(packed: &[u8], array: &mut [u8], view: StridedView, blocks: &[PackedBlock], bytes: usize) {
    each_run(view, blocks, bytes, |whole, part| array[whole].copy_from_slice(&packed[part]));
}

fn each_run(
    view: StridedView,
    blocks: &[PackedBlock],
    bytes: usize,
    mut copy: impl FnMut(Range<usize>, Range<usize>),
) {
    let unit = view.inner * bytes;
    for block in blocks {
        let run = block.range.len() * unit;
        let mut part = block.start * bytes;
        for o in 0..view.outer {
            let whole = (o * view.size + block.range.start) * unit;
            copy(whole..whole + run, part..part + run);
            part += run;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packing_a_middle_dim_and_back() {
        // 2 x 3 x 2, blocks 0..2 and 2..3 of the middle.
        let array: Vec<u8> = (0..12).collect();
        let view = StridedView::new(&[2, 3, 2], 1);
        let (blocks, elements) = in_turn(&[(view, &[0..2, 2..3, 3..3])]);
        let mut packed = vec![0; elements];
        pack(&array, &mut packed, view, &blocks[0], 1);
        assert_eq!(packed, [0, 1, 2, 3, 6, 7, 8, 9, 4, 5, 10, 11]);
        let mut back = vec![0; 12];
        unpack(&packed, &mut back, view, &blocks[0], 1);
        assert_eq!(back, array);
    }

    #[test]
    fn packing_two_arrays_in_turn_and_back() {
        // 2 x 3, cut along the inner dim, and 3, cut after the first.
        let arrays: [Vec<u8>; 2] = [(0..6).collect(), (10..13).collect()];
        let views = [StridedView::new(&[2, 3], 1), StridedView::new(&[3], 0)];
        let (blocks, elements) = in_turn(&[(views[0], &[0..2, 2..3]), (views[1], &[0..1, 1..3])]);
        let mut packed = vec![0; elements];
        for k in 0..2 {
            pack(&arrays[k], &mut packed, views[k], &blocks[k], 1);
        }
        assert_eq!(packed, [0, 1, 3, 4, 10, 2, 5, 11, 12]);
        for k in 0..2 {
            let mut back = vec![0; arrays[k].len()];
            unpack(&packed, &mut back, views[k], &blocks[k], 1);
            assert_eq!(back, arrays[k]);
        }
    }
}
