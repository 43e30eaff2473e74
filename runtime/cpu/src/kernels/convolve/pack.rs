//! Images and kernels in the order in which tiles read them.

use super::shape::{Shared, Sweep, offsets};
use super::tile::Tiled;

/// The layout of a copied image: rows along all sliding dims but the last, columns along the last one with zeros around them, and
/// channels.
#[derive(Clone, Debug)]
pub(super) struct Image {
    /// Offset of each row.
    rows: Vec<usize>,
    /// Columns that there are, and their stride.
    columns: usize,
    stride: usize,
    /// Columns of zeros before, and columns in all.
    before: usize,
    pub(super) width: usize,
    /// Offset of each channel.
    channels: Vec<usize>,
    /// True if columns and channels have the layout of the copy already.
    dense: bool,
    /// Number of channels, rounded up to whole vectors.
    padded: usize,
}

impl Image {
    /// The image with channels along `channels`, of the tensor of that number. `rows` are lengths and strides of the outer
    /// dims, `columns` those of the last; the sweeps say what is read beyond them.
    pub(super) fn new(
        tensor: usize,
        rows: &[(usize, usize)],
        (columns, stride): (usize, usize),
        sweeps: &[Sweep],
        channels: &[Shared],
        unit: usize,
    ) -> Image {
        let read =
            || sweeps.iter().filter(|s| s.count > 0).flat_map(|s| s.taps.iter().map(move |t| (s, t.1)));
        let low = read().map(|(_, at)| at).min().unwrap_or(0).min(0);
        let high = read().map(|(s, at)| at + ((s.count - 1) * s.advance) as i64 + 1).max().unwrap_or(0);
        let before = low.unsigned_abs() as usize;
        let dims: Vec<Shared> = rows.iter().map(|(len, s)| Shared { len: *len, strides: [*s; 3] }).collect();
        let channels = offsets(channels, tensor);
        let padded = channels.len().next_multiple_of(unit);
        let in_order = channels.iter().enumerate().all(|(i, o)| i == *o);
        Image {
            rows: offsets(&dims, 0),
            columns,
            stride,
            before,
            width: before + columns.max(high.max(0) as usize),
            dense: in_order && stride == channels.len() && padded == channels.len(),
            channels,
            padded,
        }
    }

    /// Elements of the copy.
    pub(super) fn elements(&self) -> usize {
        self.rows.len() * self.width * self.padded
    }

    /// Offset of a column of a row; the column may be one of the zeros.
    pub(super) fn at(&self, row: usize, column: i64) -> usize {
        (row * self.width + (self.before as i64 + column) as usize) * self.padded
    }

    /// Copies the image that begins at element `start`. What is around it was set to 0 before and stays.
    pub(super) fn copy<T: Tiled>(&self, from: &[T], start: usize, into: &mut [T]) {
        if self.columns * self.padded == 0 {
            return;
        }
        for (r, row) in self.rows.iter().enumerate() {
            let into = &mut into[self.at(r, 0)..][..self.columns * self.padded];
            let at = start + row;
            if self.dense {
                into.copy_from_slice(&from[at..at + into.len()]);
            } else {
                for (c, into) in into.chunks_exact_mut(self.padded).enumerate() {
                    let at = at + c * self.stride;
                    into.iter_mut().zip(&self.channels).for_each(|(into, o)| *into = from[at + o]);
                }
            }
        }
    }
}
