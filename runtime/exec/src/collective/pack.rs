//! Blocks along one dim of a dense array, packed one after the other, and back.
//!
//! An array is seen as `outer x size x inner` view the dim; a block as `outer x length x inner`. Where `outer` is 1 the
//! packed form is the array itself.

use std::ops::Range;

/// An array seen from one of its dims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StridedView {
    /// Product of the extents before the dim.
    pub(crate) outer: usize,
    /// Extent of the dim.
    pub(crate) size: usize,
    /// Product of the extents after the dim.
    pub(crate) inner: usize,
}

impl StridedView {
    pub(crate) fn new(shape: &[usize], at: usize) -> StridedView {
        StridedView {
            outer: shape[..at].iter().product(),
            size: shape[at],
            inner: shape[at + 1..].iter().product(),
        }
    }

    /// Elements of a block of that length.
    pub(crate) fn block(&self, length: usize) -> usize {
        self.outer * length * self.inner
    }

    /// Whether blocks lie one after the other without packing.
    pub(crate) fn is_contiguous(&self) -> bool {
        self.outer <= 1
    }
}

/// Copies blocks of `array` to `packed`, in order. `bytes` is the size of an element; blocks are ranges of the dim.
pub(crate) fn pack(
    array: &[u8],
    packed: &mut [u8],
    view: StridedView,
    blocks: &[Range<usize>],
    bytes: usize,
) {
    each_run(view, blocks, bytes, |whole, part| packed[part].copy_from_slice(&array[whole]));
}

/// The inverse of [`pack`]; elements in no block keep their values.
pub(crate) fn unpack(
    packed: &[u8],
    array: &mut [u8],
    view: StridedView,
    blocks: &[Range<usize>],
    bytes: usize,
) {
    each_run(view, blocks, bytes, |whole, part| array[whole].copy_from_slice(&packed[part]));
}

fn each_run(
    view: StridedView,
    blocks: &[Range<usize>],
    bytes: usize,
    mut copy: impl FnMut(Range<usize>, Range<usize>),
) {
    let unit = view.inner * bytes;
    let mut part = 0;
    for block in blocks {
        let run = block.len() * unit;
        for o in 0..view.outer {
            let whole = (o * view.size + block.start) * unit;
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
        let mut packed = vec![0; 12];
        pack(&array, &mut packed, view, &[0..2, 2..3, 3..3], 1);
        assert_eq!(packed, [0, 1, 2, 3, 6, 7, 8, 9, 4, 5, 10, 11]);
        let mut back = vec![0; 12];
        unpack(&packed, &mut back, view, &[0..2, 2..3, 3..3], 1);
        assert_eq!(back, array);
    }
}
