//! Random values of one device's block, as counts of a counter-based generator.

use crate::error::KernelError;
use meshwright_plan::random::{Distribution, Key};
use meshwright_plan::{DType, Dim, Dims, Zigzag};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Random values of one block of a tensor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RandomBlock {
    distribution: Distribution,
    stream: String,
    dtype: DType,
    /// Size of each dim of the whole tensor.
    sizes: Vec<usize>,
    /// Interval of each dim that this device holds.
    ranges: Vec<Range<usize>>,
    total: usize,
    /// The dim that counts examples.
    examples: Option<usize>,
    /// Dim and number of parts: see [`RandomBlock::in_parts`].
    parts: Option<(usize, usize)>,
    /// For each dim the order in which its positions are stored, where it is not their own.
    orders: Vec<Option<Zigzag>>,
}

/// Point of a run at which values are drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DrawPoint {
    /// The training step.
    pub step: u64,
    /// The index of a `repeat`.
    pub repeat: u32,
    /// The part of the batch that the step is at.
    pub part: usize,
}

/// Counts of a dense block for a device that draws by itself. The element at position `p` of `dims` has the count `first` + the
/// sum of each `p` times its stride.
#[derive(Clone, Debug, PartialEq)]
pub struct Draws {
    /// Key of the stream at the draw point.
    pub key: Key,
    /// The distribution.
    pub distribution: Distribution,
    /// The count of the first element, modulo 2^64 like all counts.
    pub first: u64,
    /// Size and stride of each dim of the block. Dims with common strides are merged.
    pub dims: Vec<(usize, u64)>,
}

/// Counts of the elements of the whole tensor.
pub struct Counting {
    /// The count of the first element.
    pub first: u64,
    /// Stride of each dim, in counts.
    pub strides: Vec<u64>,
}

impl RandomBlock {
    /// Prepares to draw the block `ranges` of a value of `sizes`; elements are counted row-major over the whole.
    ///
    /// # Errors
    /// If sizes and ranges do not fit, or the dtype is not one of the distribution.
    pub fn new(
        stream: &str,
        distribution: Distribution,
        dtype: DType,
        sizes: &[usize],
        ranges: &[Range<usize>],
    ) -> Result<RandomBlock, KernelError> {
        if sizes.len() != ranges.len() {
            return Err(KernelError::Rank { expected: sizes.len(), found: ranges.len() });
        }
        if let Some((n, r)) = sizes.iter().zip(ranges).find(|(n, r)| r.end > **n || r.start > r.end) {
            return Err(KernelError::Unsupported(format!("{r:?} of a dim of {n} is to be drawn")));
        }
        if (dtype == DType::Bool) != matches!(distribution, Distribution::Bernoulli { .. })
            || !(dtype == DType::Bool || dtype.is_float())
        {
            return Err(KernelError::Unsupported(format!("{distribution:?} has no values of {dtype}")));
        }
        Ok(RandomBlock {
            distribution,
            stream: stream.into(),
            dtype,
            sizes: sizes.to_vec(),
            ranges: ranges.to_vec(),
            total: ranges.iter().map(ExactSizeIterator::len).product(),
            examples: None,
            parts: None,
            orders: vec![None; sizes.len()],
        })
    }

    /// Sets the orders in which positions of the dims are stored: an element is the one of its position, wherever it lies.
    #[must_use]
    pub fn in_order(self, dims: &[Dim], table: &Dims) -> RandomBlock {
        RandomBlock { orders: dims.iter().map(|d| table.zigzag(*d)).collect(), ..self }
    }

    /// The position along a dim of what is stored at a place.
    pub fn position(&self, dim: usize, place: usize) -> usize {
        self.orders[dim].map_or(place, |order| order.position(place))
    }

    /// The positions along a dim of what is stored at some places: ranges in which they follow each other.
    pub fn positions(&self, dim: usize, places: Range<usize>) -> Vec<Range<usize>> {
        match self.orders[dim] {
            Some(order) if !places.is_empty() => order.positions(places),
            _ => vec![places],
        }
    }

    /// A block some of whose dims are stored in another order as blocks along one of them in which positions follow each other,
    /// with this dim; `None` of all others.
    pub fn in_pieces(&self) -> Option<(usize, Vec<RandomBlock>)> {
        let dim = self.orders.iter().position(Option::is_some)?;
        let piece = |range: Range<usize>| {
            let mut piece = self.clone();
            (piece.orders[dim], piece.ranges[dim]) = (None, range);
            piece.total = piece.shape().iter().product();
            piece
        };
        Some((dim, self.positions(dim, self.ranges[dim].clone()).into_iter().map(piece).collect()))
    }

    /// The order in which positions along a dim are stored, where it is not their own.
    pub fn order(&self, dim: usize) -> Option<Zigzag> {
        self.orders[dim]
    }

    /// Whether consumers can draw its values in their own kernels.
    pub fn can_be_drawn(&self) -> bool {
        let truths = matches!(self.distribution, Distribution::Bernoulli { .. });
        truths && self.orders.iter().all(Option::is_none)
    }

    /// Sets the dim that counts examples.
    #[must_use]
    pub fn of_examples(self, examples: Option<usize>) -> RandomBlock {
        RandomBlock { examples, ..self }
    }

    /// Sets the dim `parts.0` that a step goes through in `parts.1` microbatches. A block then has the elements `part`, `part +
    /// parts.1`, and so on, of a tensor with `parts.1` times as many.
    #[must_use]
    pub fn in_parts(self, parts: Option<(usize, usize)>) -> RandomBlock {
        RandomBlock { parts, ..self }
    }

    /// Number of elements of the block.
    pub fn elements(&self) -> usize {
        self.total
    }

    /// The positions of the elements of a row along the last dim: ranges in which they follow each other.
    pub fn positions_of_row(&self) -> Vec<Range<usize>> {
        match self.ranges.split_last() {
            Some((last, outer)) => self.positions(outer.len(), last.clone()),
            None => vec![Range { start: 0, end: 1 }],
        }
    }

    /// Elements of a row of the block.
    pub fn row(&self) -> usize {
        self.ranges.last().map_or(1, ExactSizeIterator::len)
    }

    /// Dtype of the values.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Shape of the block.
    pub fn shape(&self) -> Vec<usize> {
        self.ranges.iter().map(ExactSizeIterator::len).collect()
    }

    /// Counts of the block at a draw point, with dims merged.
    pub fn draws(&self, seed: u64, moment: DrawPoint, first_example: Option<u64>) -> Draws {
        let all = self.draws_by_dim(seed, moment, first_example);
        let mut dims: Vec<(usize, u64)> = vec![];
        for (size, stride) in all.dims {
            match dims.last_mut() {
                _ if size == 1 => {}
                Some(outer) if outer.1 == stride.wrapping_mul(size as u64) => {
                    *outer = (outer.0 * size, stride)
                }
                _ => dims.push((size, stride)),
            }
        }
        Draws { dims, ..all }
    }

    /// Counts of the block at a draw point, with a stride for every dim: from its first position on, and along a dim in another
    /// order from the first of all, since what is stored at a place is the element of its position.
    pub fn draws_by_dim(&self, seed: u64, moment: DrawPoint, first_example: Option<u64>) -> Draws {
        let (key, mut first, strides) = self.counted(seed, moment, first_example);
        let in_place =
            self.ranges.iter().zip(&strides).zip(&self.orders).filter(|(_, order)| order.is_none());
        for ((range, stride), _) in in_place {
            first = first.wrapping_add((range.start as u64).wrapping_mul(*stride));
        }
        let dims = self.ranges.iter().map(ExactSizeIterator::len).zip(strides).collect();
        Draws { key, distribution: self.distribution, first, dims }
    }

    /// Key of the stream, count of the first element of the whole tensor, and stride of each dim.
    pub fn counted(
        &self,
        seed: u64,
        DrawPoint { step, repeat, part }: DrawPoint,
        first_example: Option<u64>,
    ) -> (Key, u64, Vec<u64>) {
        let Counting { first, strides } = self.counting(first_example, part);
        (Key::of_step(seed, &self.stream, step).at(step as u32, repeat), first, strides)
    }

    /// Distribution of the values.
    pub fn distribution(&self) -> &Distribution {
        &self.distribution
    }

    /// Counts at a microbatch: row-major over the whole tensor, or for each example row-major over the other dims.
    pub fn counting(&self, first_example: Option<u64>, part: usize) -> Counting {
        let mut strides = vec![0; self.sizes.len()];
        let by_example = first_example.and(self.examples);
        let (mut stride, mut first) = (1, 0);
        for (i, n) in self.sizes.iter().enumerate().rev().filter(|(i, _)| Some(*i) != by_example) {
            let parts = self.parts.filter(|(at, _)| *at == i).map_or(1, |(_, parts)| parts as u64);
            if parts > 1 {
                first = stride * part as u64;
            }
            strides[i] = stride * parts;
            stride *= *n as u64 * parts;
        }
        let Some(at) = by_example else { return Counting { first, strides } };
        // Examples of a microbatch are as many apart as there are microbatches.
        let (part, parts) = match self.parts {
            Some((dim, parts)) if dim == at => (part as u64, parts as u64),
            _ => (0, 1),
        };
        strides[at] = stride * parts;
        Counting { first: first_example.unwrap_or(0).wrapping_add(part).wrapping_mul(stride), strides }
    }

    /// Count of the first element of a row of the block.
    pub fn first_of_row(&self, counting: &Counting, row: usize) -> u64 {
        let Some((last, outer)) = self.ranges.split_last() else { return counting.first };
        let mut rest = row;
        let start = self.position(outer.len(), last.start);
        let mut first = counting.first.wrapping_add(start as u64 * counting.strides[outer.len()]);
        for (dim, (stride, r)) in counting.strides.iter().zip(outer).enumerate().rev() {
            let at = self.position(dim, r.start + rest % r.len());
            first = first.wrapping_add(at as u64 * stride);
            rest /= r.len();
        }
        first
    }
}
