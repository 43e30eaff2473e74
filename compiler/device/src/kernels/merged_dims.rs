//! Walk of a kernel through its tensors: dims that are adjacent in all of them are merged, and contiguous elements
//! are read and written together.

use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Sizes and strides of a kernel that walks several tensors together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JointWalk {
    /// Size of each dim of the walk.
    pub sizes: Vec<usize>,
    /// Strides of each tensor along the dims of the walk, in elements; 0 where it lacks a dim.
    pub strides: Vec<Vec<u64>>,
}

impl JointWalk {
    /// With dims merged if this changes no offset, and at least one left.
    pub fn joined(sizes: &[usize], strides: &[Vec<u64>]) -> JointWalk {
        let mut walk = JointWalk { sizes: vec![], strides: vec![vec![]; strides.len()] };
        for (dim, size) in sizes.iter().enumerate().filter(|(_, size)| **size != 1) {
            let follows = |(of, all): (&Vec<u64>, &Vec<u64>)| {
                all.last().is_some_and(|outer| *outer == of[dim].wrapping_mul(*size as u64))
            };
            let joins = !walk.sizes.is_empty() && strides.iter().zip(&walk.strides).all(follows);
            if joins && let Some(last) = walk.sizes.last_mut() {
                *last *= size;
                strides.iter().zip(&mut walk.strides).for_each(|(of, all)| {
                    if let Some(stride) = all.last_mut() {
                        *stride = of[dim];
                    }
                });
            } else {
                walk.sizes.push(*size);
                strides.iter().zip(&mut walk.strides).for_each(|(of, all)| all.push(of[dim]));
            }
        }
        if walk.sizes.is_empty() { JointWalk::apart(&[1], &vec![vec![0]; strides.len()]) } else { walk }
    }

    /// Dims of results and reduced dims, each merged among themselves, at least one of either; and the number of the former.
    pub fn of_folds(sizes: &[usize], kept: usize, strides: &[Vec<u64>]) -> (usize, JointWalk) {
        let apart = |range: Range<usize>| {
            let strides: Vec<Vec<u64>> = strides.iter().map(|s| s[range.clone()].to_vec()).collect();
            JointWalk::joined(&sizes[range], &strides)
        };
        let (mut all, folded) = (apart(0..kept), apart(kept..sizes.len()));
        let many = all.sizes.len();
        all.sizes.extend(folded.sizes);
        all.strides.iter_mut().zip(folded.strides).for_each(|(of, more)| of.extend(more));
        (many, all)
    }

    /// Without merged dims.
    pub fn apart(sizes: &[usize], strides: &[Vec<u64>]) -> JointWalk {
        match sizes {
            [] => JointWalk { sizes: vec![1], strides: vec![vec![0]; strides.len()] },
            _ => JointWalk { sizes: sizes.to_vec(), strides: strides.to_vec() },
        }
    }

    /// Elements along the last dim.
    pub fn inner(&self) -> usize {
        self.sizes.last().copied().unwrap_or(1)
    }

    /// True if the tensor, from that element on, can be read in vectors of `width` elements along the last dim.
    pub fn is_vectors(&self, which: usize, first: u64, width: usize) -> bool {
        self.is_vectors_along(which, self.sizes.len() - 1, first, width)
    }

    /// Whether a gap follows the last whole vector of a row, if a row has more than one element: reads and writes there
    /// have no effect.
    pub fn has_gaps(&self, which: usize, first: u64, width: usize) -> bool {
        let reach = self.inner().next_multiple_of(width) as u64;
        match self.strides[which][..] {
            [.., 0] => true,
            [.., row, 1] => row >= reach && self.is_vectors(which, first, width),
            _ => false,
        }
    }

    /// Whether all positions of the other dims share one row.
    pub fn is_one_row(&self, which: usize) -> bool {
        self.strides[which].split_last().is_some_and(|(_, outer)| outer.iter().all(|stride| *stride == 0))
    }

    /// Whether vectors of `width` elements can be read along any dim.
    pub fn is_vectors_along(&self, which: usize, along: usize, first: u64, width: usize) -> bool {
        let width = width as u64;
        let follows = |(dim, stride): (usize, &u64)| {
            if dim == along { *stride == 1 } else { stride.is_multiple_of(width) }
        };
        first.is_multiple_of(width) && self.strides[which].iter().enumerate().all(follows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dims_are_joined_where_all_tensors_have_them_next_to_each_other() {
        // `[batch seq model]`, a bias `[model]` and a scale `[batch]`.
        let strides = [vec![32, 8, 1], vec![0, 0, 1], vec![1, 0, 0]];
        let walk = JointWalk::joined(&[2, 4, 8], &strides[..2]);
        assert_eq!(walk, JointWalk { sizes: vec![8, 8], strides: vec![vec![8, 1], vec![0, 1]] });
        assert_eq!(JointWalk::joined(&[2, 4, 8], &strides).sizes, [2, 4, 8]);
        let same = [vec![32, 8, 1], vec![32, 8, 1]];
        assert_eq!(
            JointWalk::joined(&[2, 4, 8], &same),
            JointWalk { sizes: vec![64], strides: vec![vec![1]; 2] }
        );
        // Gaps between rows.
        assert_eq!(JointWalk::joined(&[2, 4, 8], &[vec![64, 16, 1]]).sizes, [8, 8]);
        assert_eq!(
            JointWalk::joined(&[1, 1], &[vec![5, 1]]),
            JointWalk { sizes: vec![1], strides: vec![vec![0]] }
        );
    }

    #[test]
    fn dims_of_results_and_of_folds_are_joined_apart() {
        let strides = [vec![32, 8, 4, 1], vec![0, 0, 4, 1], vec![8, 1, 0, 0]];
        let walk = JointWalk { sizes: vec![8, 8], strides: vec![vec![8, 1], vec![0, 1], vec![1, 0]] };
        assert_eq!(
            JointWalk::of_folds(&[2, 4, 2, 4], 2, &[vec![32, 8, 4, 1], vec![0, 0, 4, 1], vec![4, 1, 0, 0]]),
            (1, walk)
        );
        assert_eq!(JointWalk::of_folds(&[2, 4, 2, 4], 2, &strides).0, 2);
        // One row.
        assert_eq!(JointWalk::of_folds(&[1, 8], 1, &[vec![0, 1]]).1.sizes, [1, 8]);
    }

    #[test]
    fn vectors_may_reach_into_gaps_between_rows_and_no_further() {
        let walk = JointWalk::apart(&[3, 7], &[vec![8, 1], vec![7, 1], vec![1, 0], vec![0, 1]]);
        let gaps = |which| walk.has_gaps(which, 0, 4);
        assert_eq!([gaps(0), gaps(1), gaps(2), gaps(3)], [true, false, true, false]);
        assert!(!walk.has_gaps(0, 2, 4));
        assert_eq!([0, 2, 3].map(|which| walk.is_one_row(which)), [false, false, true]);
    }

    #[test]
    fn vectors_begin_and_follow_at_multiples_of_their_width() {
        let walk = JointWalk::apart(&[2, 8], &[vec![8, 1], vec![6, 1], vec![0, 1], vec![1, 2]]);
        assert_eq!((walk.inner(), walk.sizes.iter().product::<usize>()), (8, 16));
        let taken = |which| walk.is_vectors(which, 0, 4);
        assert_eq!([taken(0), taken(1), taken(2), taken(3)], [true, false, true, false]);
        assert!(!walk.is_vectors(0, 2, 4) && walk.is_vectors(1, 2, 2));
    }
}
