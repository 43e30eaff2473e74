//! Random truth values that kernels draw themselves, equal bit by bit to those that are drawn into memory elsewhere.

use super::program::truth;
use super::random::{Generator, generator, least_word};
use cubecl::prelude::*;
use meshwright_device::kernels::random::{Draws, RandomBlock};
use meshwright_exec::backend::RngState;
use meshwright_plan::random::{Distribution, Truths};

/// Draws of a call: key and first count, strides of the count along each dim of the kernel, and the conversion of bits
/// to truth values.
#[derive(Clone, Debug)]
pub(crate) struct Drawn {
    pub(crate) draws: Draws,
    pub(crate) strides: Vec<u64>,
    of: Truths,
}

impl Drawn {
    /// For a kernel with `dims` dims; `places` are the block's dims among them. Only truth values are drawn so.
    pub(crate) fn new((kernel, places): &(RandomBlock, Vec<usize>), dims: usize, rng: RngState) -> Drawn {
        let draws = kernel.draws_by_dim(rng.seed, rng.moment(), rng.first_example);
        let mut strides = vec![0; dims];
        places.iter().zip(&draws.dims).for_each(|(place, dim)| strides[*place] = dim.1);
        let Distribution::Bernoulli { rate } = draws.distribution else { unreachable!("only truth values") };
        Drawn { strides, of: Truths::of(rate), draws }
    }

    /// Number of elements that share a counter.
    pub(crate) fn to_a_counter(&self) -> usize {
        self.of.to_a_counter as usize
    }

    /// Whether counts along the last of these dims are contiguous, and each aligned group of `of` elements has one
    /// counter.
    pub(crate) fn is_in_groups(&self, strides: &[u64], of: usize) -> bool {
        let Some((last, others)) = strides.split_last() else { return false };
        let whole = |n: &u64| n.is_multiple_of(of as u64);
        *last == 1 && whole(&self.draws.first) && others.iter().all(whole)
    }

    /// The source of the `which`-th draw in registers, `width` elements at a time; `strides` as the kernel walks.
    pub(crate) fn source(&self, which: usize, strides: &[u64], width: usize) -> DrawnSource {
        let many = self.to_a_counter();
        let group = many.min(width);
        let in_groups = 2 * group >= many && width.is_multiple_of(group) && self.is_in_groups(strides, group);
        DrawnSource { which, many, in_groups }
    }

    /// Arguments of the kernel; `strides` as it walks.
    pub(crate) fn launch(&self, strides: &[u64]) -> DrawLaunch {
        let strides = strides.iter().copied().collect();
        DrawLaunch::new(generator(&self.draws), self.draws.first, strides, least_word(self.of))
    }
}

/// Index of the draw, number of elements that share a counter, and whether a vector has whole counters or a half of
/// one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct DrawnSource {
    pub(crate) which: usize,
    pub(crate) many: usize,
    pub(crate) in_groups: bool,
}

/// Truth values that are drawn.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct Draw {
    pub(crate) generator: Generator,
    /// The count of the first, and how far the next along each dim is.
    pub(crate) first: u64,
    pub(crate) strides: Sequence<u64>,
    /// The least word that is true.
    least: u32,
}

#[cube]
impl Draw {
    /// The value of a word, of whose bits the highest count.
    pub(crate) fn truth(&self, word: u32) -> f32 {
        truth(self.is_true(word))
    }

    /// The same as a truth value.
    pub(crate) fn is_true(&self, word: u32) -> bool {
        word >= self.least
    }
}
