//! Shards of given lengths: the positions of a dim that the stages of a pipeline have.
//!
//! A virtual stage is a chunk of a stage: chunk `c` of stage `r` among `p` is virtual stage `c p + r` (Narayanan et al. 2021,
//! section 2.2). Virtual stages have the positions of a dim in order. A device stores its chunks one behind the other, so that
//! its shard of what is stored is contiguous; with one chunk, positions are stored in order.

use crate::Axis;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The lengths of the shards of a dim.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Cuts {
    /// The axes of the stages, major first.
    pub axes: Vec<Axis>,
    /// Positions of each virtual stage, in order.
    pub lengths: Vec<usize>,
    /// Virtual stages of a stage.
    pub chunks: usize,
}

impl Cuts {
    /// Stages.
    pub fn stages(&self) -> usize {
        self.lengths.len() / self.chunks.max(1)
    }

    /// Positions of each chunk of a stage.
    pub fn of_stage(&self, stage: usize) -> impl Iterator<Item = usize> + '_ {
        self.lengths.iter().skip(stage).step_by(self.stages().max(1)).copied()
    }

    /// What a stage stores.
    pub fn stored(&self, stage: usize) -> Range<usize> {
        let length = |s: usize| self.of_stage(s).sum::<usize>();
        let begin = (0..stage).map(length).sum();
        begin..begin + length(stage)
    }

    /// What a stage stores of one of its chunks.
    pub fn chunk(&self, stage: usize, chunk: usize) -> Range<usize> {
        let begin = self.stored(stage).start + self.of_stage(stage).take(chunk).sum::<usize>();
        begin..begin + self.of_stage(stage).nth(chunk).unwrap_or(0)
    }

    /// Whether positions are stored in another order.
    pub fn reorders(&self) -> bool {
        self.chunks > 1
    }

    /// The position that is stored at a place.
    pub fn position(&self, mut place: usize) -> usize {
        let stages = self.stages();
        let chunks = |stage: usize| (0..self.chunks).map(move |chunk| chunk * stages + stage);
        for stage in (0..stages).flat_map(chunks) {
            match place.checked_sub(self.lengths[stage]) {
                Some(rest) => place = rest,
                None => return self.lengths[..stage].iter().sum::<usize>() + place,
            }
        }
        place
    }

    /// The position that is stored at each place.
    pub fn positions(&self) -> Vec<usize> {
        let begins: Vec<usize> =
            self.lengths.iter().scan(0, |at, n| Some(std::mem::replace(at, *at + n))).collect();
        let stages = self.stages();
        let chunks = |stage: usize| (0..self.chunks).map(move |chunk| chunk * stages + stage);
        (0..stages).flat_map(chunks).flat_map(|v| begins[v]..begins[v] + self.lengths[v]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_of_a_stage_are_stored_together() {
        let cuts = Cuts { axes: vec![Axis(0)], lengths: vec![3, 2, 1, 2], chunks: 2 };
        assert_eq!(cuts.positions(), [0, 1, 2, 5, 3, 4, 6, 7]);
        assert!(cuts.positions().into_iter().eq((0..8).map(|place| cuts.position(place))));
        assert_eq!([cuts.stored(0), cuts.stored(1)], [0..4, 4..8]);
        assert_eq!([cuts.chunk(0, 1), cuts.chunk(1, 0)], [3..4, 4..6]);
        let one = Cuts { lengths: vec![1, 0, 4], chunks: 1, ..cuts };
        assert_eq!(one.positions(), [0, 1, 2, 3, 4]);
        assert_eq!([one.stored(0), one.stored(1), one.stored(2)], [0..1, 1..1, 1..5]);
    }
}
