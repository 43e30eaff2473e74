//! Walking several operands at once: merged dims, rows, and strided reads.

use super::data::Element;
use super::{Access, KernelError};

/// Most dims that an iteration can have after merging.
pub(super) const MAX_DIMS: usize = 16;

/// A shape with strides of several operands. Dims of size 1 are gone, and neighbors that every operand walks as one dim
/// are merged; there is at least one dim.
#[derive(Clone, Debug)]
pub(super) struct Walk {
    /// Sizes.
    pub(super) shape: Vec<usize>,
    /// Strides of each operand.
    pub(super) strides: Vec<Vec<usize>>,
    /// Offset of each operand.
    pub(super) offsets: Vec<usize>,
}

impl Walk {
    /// Merges what can be merged. Fails if a stride is missing or too many dims are left.
    pub(super) fn new(shape: &[usize], accesses: &[&Access]) -> Result<Walk, KernelError> {
        for a in accesses {
            a.check_rank(shape)?;
        }
        let mut walk = Walk {
            shape: vec![],
            strides: vec![vec![]; accesses.len()],
            offsets: accesses.iter().map(|a| a.offset).collect(),
        };
        for d in (0..shape.len()).rev().filter(|d| shape[*d] != 1) {
            // Dims are pushed innermost first and reversed at the end.
            let joins = walk.shape.last().is_some_and(|inner| {
                let mut pairs = accesses.iter().zip(&walk.strides);
                pairs.all(|(a, s)| s.last().is_some_and(|s| a.strides[d] == s.saturating_mul(*inner)))
            });
            match walk.shape.last_mut() {
                Some(inner) if joins => *inner = inner.saturating_mul(shape[d]),
                _ => {
                    walk.shape.push(shape[d]);
                    for (a, s) in accesses.iter().zip(&mut walk.strides) {
                        s.push(a.strides[d]);
                    }
                }
            }
        }
        if walk.shape.is_empty() {
            walk.shape.push(1);
            walk.strides.iter_mut().for_each(|s| s.push(0));
        }
        if walk.shape.len() > MAX_DIMS {
            return Err(KernelError::Unsupported(format!("an iteration over more than {MAX_DIMS} dims")));
        }
        walk.shape.reverse();
        walk.strides.iter_mut().for_each(|s| s.reverse());
        Ok(walk)
    }

    /// Size of the innermost dim.
    pub(super) fn inner(&self) -> usize {
        self.shape[self.shape.len() - 1]
    }

    /// Stride of an operand along the innermost dim.
    pub(super) fn inner_stride(&self, operand: usize) -> usize {
        self.strides[operand][self.shape.len() - 1]
    }

    /// How many rows (walks of the innermost dim) there are.
    pub(super) fn rows(&self) -> usize {
        if self.inner() == 0 { 0 } else { self.shape[..self.shape.len() - 1].iter().product() }
    }

    /// Calls `f` with the number of each row in the range and the operands' positions at its start.
    #[inline(always)]
    pub(super) fn each_row<const K: usize>(
        &self,
        rows: std::ops::Range<usize>,
        mut f: impl FnMut(usize, [usize; K]),
    ) {
        if rows.is_empty() {
            return;
        }
        let outer = self.shape.len() - 1;
        let mut index = [0usize; MAX_DIMS];
        let mut at: [usize; K] = std::array::from_fn(|k| self.offsets[k]);
        let mut rest = rows.start;
        for d in (0..outer).rev() {
            index[d] = rest % self.shape[d];
            rest /= self.shape[d];
            for (k, at) in at.iter_mut().enumerate() {
                *at += index[d] * self.strides[k][d];
            }
        }
        for row in rows {
            f(row, at);
            for d in (0..outer).rev() {
                index[d] += 1;
                if index[d] < self.shape[d] {
                    for (k, at) in at.iter_mut().enumerate() {
                        *at += self.strides[k][d];
                    }
                    break;
                }
                index[d] = 0;
                for (k, at) in at.iter_mut().enumerate() {
                    *at -= (self.shape[d] - 1) * self.strides[k][d];
                }
            }
        }
    }
}

/// Calls `f(into, from, n)` for each stretch of the innermost dim within elements `start..start + n` of an iteration:
/// position in the block, position in the operand, length.
#[inline(always)]
pub(super) fn stretches(
    shape: &[usize],
    strides: &[usize],
    offset: usize,
    start: usize,
    n: usize,
    mut f: impl FnMut(usize, usize, usize),
) {
    if n == 0 {
        return;
    }
    let last = shape.len() - 1;
    let mut index = [0usize; MAX_DIMS];
    let mut rest = start;
    let mut at = offset;
    for d in (0..=last).rev() {
        index[d] = rest % shape[d];
        rest /= shape[d];
        at += index[d] * strides[d];
    }
    let mut done = 0;
    while done < n {
        let len = (shape[last] - index[last]).min(n - done);
        f(done, at, len);
        done += len;
        at -= index[last] * strides[last];
        index[last] = 0;
        for d in (0..last).rev() {
            index[d] += 1;
            at += strides[d];
            if index[d] < shape[d] {
                break;
            }
            at -= index[d] * strides[d];
            index[d] = 0;
        }
    }
}

/// `into[i] = from[at + i * stride]`.
#[inline(always)]
pub(super) fn copy_strided<T: Element>(into: &mut [T], from: &[T], at: usize, stride: usize) {
    match stride {
        0 => into.fill(from[at]),
        1 => {
            let from = &from[at..at + into.len()];
            // A call of memcpy costs more than a few moves.
            if into.len() <= 16 {
                into.iter_mut().zip(from).for_each(|(i, f)| *i = *f);
            } else {
                into.copy_from_slice(from);
            }
        }
        _ => into.iter_mut().zip(from[at..].iter().step_by(stride)).for_each(|(i, f)| *i = *f),
    }
}
