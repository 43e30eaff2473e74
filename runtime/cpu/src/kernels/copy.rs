//! Strided copies: slices, other orders of dims, repetition.

use super::data::Element;
use super::instruction_set::{Level, multiversion};
use super::strided_walk::{Walk, copy_strided};
use super::{Access, KernelError, Slice, SliceMut, par};
use meshwright_plan::DType;

/// Side of the squares that transpositions go by: a line of the cache for 4-byte elements.
const TILE: usize = 16;

/// Copies as many bytes from one place to another.
pub fn copy_bytes(from: &[u8], to: &mut [u8]) {
    par::parts(to, 1 << 16, 1, &|base, part| part.copy_from_slice(&from[base..base + part.len()]));
}

/// A prepared copy into a dense array.
#[derive(Clone, Debug)]
pub struct CopyKernel {
    dtype: DType,
    walk: Walk,
    total: usize,
    reach: usize,
    /// The dim along which the source is contiguous, if that is not the innermost.
    contiguous: Option<usize>,
    level: Level,
}

impl CopyKernel {
    /// Prepares `out[i] = from[i]` over `shape`; strides of 0 repeat.
    ///
    /// # Errors
    /// If a stride is missing.
    pub fn new(shape: &[usize], from: &Access) -> Result<CopyKernel, KernelError> {
        let walk = Walk::new(shape, &[from])?;
        let last = walk.shape.len() - 1;
        let contiguous = if walk.inner_stride(0) > 1 {
            (0..last).rev().find(|d| walk.strides[0][*d] == 1 && walk.shape[*d] >= TILE / 2)
        } else {
            None
        };
        let total = shape.iter().product();
        Ok(CopyKernel {
            dtype: from.dtype,
            walk,
            total,
            reach: from.reach(shape),
            contiguous,
            level: Level::best(),
        })
    }

    /// Copies.
    ///
    /// # Errors
    /// If dtypes or lengths of the operands are not what was prepared for.
    pub fn run(&self, from: Slice<'_>, out: SliceMut<'_>) -> Result<(), KernelError> {
        super::check_in(&from, self.dtype, self.reach)?;
        super::check_out(&out, self.dtype, self.total)?;
        if self.total == 0 {
            return Ok(());
        }
        match (from, out) {
            (Slice::F64(f), SliceMut::F64(o)) => self.copy(f, o),
            (Slice::F32(f), SliceMut::F32(o)) => self.copy(f, o),
            (Slice::BF16(f), SliceMut::BF16(o)) => self.copy(f, o),
            (Slice::F16(f), SliceMut::F16(o)) => self.copy(f, o),
            (Slice::I32(f), SliceMut::I32(o)) => self.copy(f, o),
            (Slice::U8(f) | Slice::Bool(f), SliceMut::U8(o) | SliceMut::Bool(o)) => self.copy(f, o),
            (Slice::PairF32(f), SliceMut::PairF32(o)) => self.copy(f, o),
            (Slice::PairF64(f), SliceMut::PairF64(o)) => self.copy(f, o),
            _ => {}
        }
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn with_level(mut self, level: Level) -> CopyKernel {
        self.level = level;
        self
    }

    fn copy<T: Element>(&self, from: &[T], out: &mut [T]) {
        match self.contiguous {
            Some(d) => self.transpose(from, out, d),
            None => {
                let (inner, stride) = (self.walk.inner(), self.walk.inner_stride(0));
                par::parts(out, inner, 1, &|base, part| {
                    let first = base / inner;
                    self.walk.each_row(first..first + part.len() / inner, |row, [at]| {
                        copy_strided(&mut part[(row - first) * inner..][..inner], from, at, stride);
                    });
                });
            }
        }
    }

    /// Copies with dim `d` contiguous in the source and the last dim contiguous in the output. The dims up to `d` are
    /// walked as planes, those between `d` and the last as slices of a plane.
    fn transpose<T: Element>(&self, from: &[T], out: &mut [T], d: usize) {
        let (shape, strides) = (&self.walk.shape, &self.walk.strides[0]);
        let last = shape.len() - 1;
        let out_strides = super::dense_strides(shape);
        let plane = out_strides[d] * shape[d];
        let cols = shape[last];
        // Position in the source of an index over some of the dims.
        let position = |mut index: usize, dims: std::ops::Range<usize>| {
            let mut at = 0;
            for k in dims.rev() {
                at += index % shape[k] * strides[k];
                index /= shape[k];
            }
            at
        };
        let slices: usize = shape[d + 1..last].iter().product();
        // Cut at whole rows of dim `d`; rows of one plane are walked together.
        let unit = out_strides[d];
        par::parts(out, unit * TILE, 1, &|base, part| {
            let mut row = base / unit;
            let end = row + part.len() / unit;
            while row < end {
                let (p, r) = (row / shape[d], row % shape[d]);
                let rows = (shape[d] - r).min(end - row);
                let at = self.walk.offsets[0] + position(p, 0..d) + r;
                let into = p * plane + r * unit - base;
                for s in 0..slices {
                    let from = &from[at + position(s, d + 1..last)..];
                    transpose(
                        self.level,
                        from,
                        strides[last],
                        &mut part[into + s * cols..],
                        unit,
                        rows,
                        cols,
                    );
                }
                row += rows;
            }
        });
    }
}

multiversion! {
    /// `out[i * unit + j] = from[j * stride + i]` for `i < rows`, `j < cols`.
    fn transpose[T: Element](from: &[T], stride: usize, out: &mut [T], unit: usize, rows: usize, cols: usize) {
        for i0 in (0..rows).step_by(TILE) {
            for j0 in (0..cols).step_by(TILE) {
                let (ni, nj) = (TILE.min(rows - i0), TILE.min(cols - j0));
                if ni == TILE && nj == TILE {
                    let mut tile = [[T::default(); TILE]; TILE];
                    for (j, line) in tile.iter_mut().enumerate() {
                        line.copy_from_slice(&from[(j0 + j) * stride + i0..][..TILE]);
                    }
                    for i in 0..TILE {
                        let line: [T; TILE] = std::array::from_fn(|j| tile[j][i]);
                        out[(i0 + i) * unit + j0..][..TILE].copy_from_slice(&line);
                    }
                } else {
                    for i in i0..i0 + ni {
                        for j in j0..j0 + nj {
                            out[i * unit + j] = from[j * stride + i];
                        }
                    }
                }
            }
        }
    }
}
