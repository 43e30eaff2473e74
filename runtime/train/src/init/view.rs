//! The transformation of another framework's tensor to the model's, and back: a part of it, a permutation of its dims,
//! and then other dims for the same elements.

use meshwright_files::RawTensor;
use meshwright_files::tensor::permuted;
use std::ops::Range;

/// Part and transformation of a tensor, in this order.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct View {
    /// The part along each dim of the file, in their order; all of the dims that are not listed.
    pub(crate) parts: Vec<DimPart>,
    pub(crate) order: DimOrder,
    pub(crate) reshape: Reshape,
}

/// The part along a dim.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum DimPart {
    /// `..`
    All,
    /// `0..64` or `..64`
    Positions(Range<usize>),
    /// `64..`
    From(usize),
    /// `part 2 of 3`, which are equal: the number of the part, from 0, and how many there are.
    Share(usize, usize),
}

/// The order of dims, as a tensor is taken.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum DimOrder {
    /// As in the file.
    #[default]
    Same,
    /// The last dim first, the first last.
    Reversed,
    /// The positions in the file of the dims here.
    Of(Vec<usize>),
}

/// Change of dims.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum Reshape {
    #[default]
    No,
    /// Any that hold as many.
    Any,
    /// Each dim of the file becomes this number of dims.
    Into(Vec<usize>),
}

impl DimPart {
    /// `..`, `0..64`, `..64`, `64..`, `3`, or `part 2 of 3`.
    pub(super) fn read(text: &str) -> Result<DimPart, String> {
        if let Some(rest) = text.strip_prefix("part ") {
            let (k, of) = rest.split_once(" of ").ok_or("a part is `part 2 of 3`")?;
            let number =
                |t: &str| t.trim().parse::<usize>().map_err(|_| format!("`{t}` is not a number of parts"));
            let (k, of) = (number(k)?, number(of)?);
            return match k {
                1.. if k <= of => Ok(DimPart::Share(k - 1, of)),
                _ => Err(format!("there is no part {k} of {of}: the first is 1")),
            };
        }
        if text == ".." {
            return Ok(DimPart::All);
        }
        if let Ok(one) = text.parse::<usize>() {
            return Ok(DimPart::Positions(one..one.saturating_add(1)));
        }
        let (from, to) = text
            .split_once("..")
            .ok_or("positions along a dim are `FROM..TO`, `FROM..`, `..TO`, `..` or `part 2 of 3`")?;
        let number = |t: &str| t.trim().parse::<usize>().map_err(|_| format!("`{t}` is not a position"));
        let from = if from.trim().is_empty() { 0 } else { number(from)? };
        if to.trim().is_empty() {
            return Ok(DimPart::From(from));
        }
        let to = number(to)?;
        match from < to {
            true => Ok(DimPart::Positions(from..to)),
            false => Err(format!("`[{text}]` are no positions")),
        }
    }

    /// Its positions along a dim of that size.
    pub(super) fn within(&self, size: usize) -> Result<Range<usize>, String> {
        match self {
            DimPart::All => Ok(0..size),
            DimPart::Positions(p) if p.end <= size => Ok(p.clone()),
            DimPart::Positions(p) => Err(format!("without {}..{}", p.start, p.end)),
            DimPart::From(from) if *from < size => Ok(*from..size),
            DimPart::From(from) => Err(format!("without a position {from}")),
            DimPart::Share(k, of) if size.is_multiple_of(*of) => {
                let each = size / of;
                Ok(k * each..(k + 1) * each)
            }
            DimPart::Share(_, of) => Err(format!("and {size} cannot be divided into {of} equal parts")),
        }
    }

    /// Its positions along the dim of the file, of which it has `size` elements.
    fn of_whole(&self, size: usize) -> Range<usize> {
        match self {
            DimPart::All => 0..size,
            DimPart::Positions(p) => p.clone(),
            DimPart::From(from) => *from..from + size,
            DimPart::Share(k, _) => k * size..(k + 1) * size,
        }
    }

    /// Length of that dim, as far as this part knows it.
    fn whole(&self, size: usize) -> usize {
        match self {
            DimPart::Share(_, of) => of * size,
            other => other.of_whole(size).end,
        }
    }
}

impl View {
    /// The shape that a tensor of `shape` gets, before it is reshaped.
    ///
    /// # Errors
    ///
    /// If it lacks these parts or dims.
    pub(crate) fn shape(&self, shape: &[usize]) -> Result<Vec<usize>, String> {
        let taken: Vec<usize> = self.ranges(shape)?.iter().map(Range::len).collect();
        let order = self.order(taken.len());
        if order.len() != taken.len() {
            return Err(format!("it is {shape:?}, not of {} dims", order.len()));
        }
        Ok(order.iter().map(|d| taken[*d]).collect())
    }

    /// Whether a tensor of `shape` becomes one of `wanted`.
    pub(crate) fn gives(&self, shape: &[usize], wanted: &[usize]) -> bool {
        let elements = |s: &[usize]| s.iter().product::<usize>();
        let reshaped = |s: &[usize]| match &self.reshape {
            Reshape::Any => elements(s) == elements(wanted),
            _ => self.unshaped(wanted).is_some_and(|w| w == s),
        };
        self.shape(shape).is_ok_and(|s| reshaped(&s))
    }

    /// A tensor that [`View::gives`] one of the shape `wanted`.
    pub(crate) fn of(&self, mut tensor: RawTensor, wanted: &[usize]) -> RawTensor {
        let width = tensor.dtype.bytes();
        let ranges = self.ranges(&tensor.shape).unwrap_or_default();
        if ranges.iter().zip(&tensor.shape).any(|(r, n)| r.len() != *n) {
            let taken = runs(&tensor.shape, &ranges);
            tensor.data = taken
                .into_iter()
                .flat_map(|r| &tensor.data[r.start * width..r.end * width])
                .copied()
                .collect();
            tensor.shape = ranges.iter().map(Range::len).collect();
        }
        let order = self.order(tensor.shape.len());
        if order.iter().enumerate().any(|(i, d)| i != *d) {
            tensor.data = permuted(&tensor.data, width, &tensor.shape, &order);
        }
        RawTensor { shape: wanted.to_vec(), ..tensor }
    }

    /// The shape in the file of what becomes a tensor of `shape` here, and where it lies in the file's tensor; none where only
    /// the file would say.
    pub(crate) fn source(&self, shape: &[usize]) -> Option<SourcePart> {
        let turned = self.unshaped(shape)?;
        let order = self.order(turned.len());
        if order.len() != turned.len() || self.parts.len() > turned.len() {
            return None;
        }
        let part: Vec<usize> = inverse(&order).iter().map(|d| turned[*d]).collect();
        let parts = self.parts.iter().chain(std::iter::repeat(&DimPart::All));
        let (ranges, whole) = parts.zip(&part).map(|(p, n)| (p.of_whole(*n), p.whole(*n))).unzip();
        Some(SourcePart { ranges, whole })
    }

    /// The bytes, as the file has them, of what is a tensor of `shape` here.
    pub(crate) fn back(&self, data: &[u8], width: usize, shape: &[usize]) -> Vec<u8> {
        let turned = self.unshaped(shape).unwrap_or_else(|| shape.to_vec());
        let order = inverse(&self.order(turned.len()));
        match order.iter().enumerate().any(|(i, d)| i != *d) {
            true => permuted(data, width, &turned, &order),
            false => data.to_vec(),
        }
    }

    /// The range along each dim.
    fn ranges(&self, shape: &[usize]) -> Result<Vec<Range<usize>>, String> {
        if self.parts.len() > shape.len() {
            return Err(format!("it is {shape:?}, not of {} dims or more", self.parts.len()));
        }
        let parts = self.parts.iter().chain(std::iter::repeat(&DimPart::All));
        let within = parts.zip(shape).map(|(p, n)| p.within(*n));
        within.collect::<Result<_, _>>().map_err(|why| format!("it is {shape:?}, {why}"))
    }

    /// A shape of here before it was reshaped; none where it does not tell.
    fn unshaped(&self, shape: &[usize]) -> Option<Vec<usize>> {
        match &self.reshape {
            Reshape::No => Some(shape.to_vec()),
            Reshape::Any => None,
            Reshape::Into(counts) => {
                let mut rest = shape;
                let mut out = Vec::with_capacity(counts.len());
                for n in counts {
                    let (dims, more) = rest.split_at_checked(*n)?;
                    out.push(dims.iter().product());
                    rest = more;
                }
                rest.is_empty().then_some(out)
            }
        }
    }

    fn order(&self, dims: usize) -> Vec<usize> {
        match &self.order {
            DimOrder::Same => (0..dims).collect(),
            DimOrder::Reversed => (0..dims).rev().collect(),
            DimOrder::Of(order) => order.clone(),
        }
    }
}

/// A part of a tensor of a file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SourcePart {
    /// Its range along each dim.
    pub(crate) ranges: Vec<Range<usize>>,
    /// The shape of the tensor, as far as the part knows it.
    pub(crate) whole: Vec<usize>,
}

fn inverse(order: &[usize]) -> Vec<usize> {
    let mut out = vec![0; order.len()];
    order.iter().enumerate().for_each(|(i, d)| out[*d] = i);
    out
}

/// The elements of a part of a row-major tensor, in order: runs along its last dim.
pub(crate) fn runs(shape: &[usize], part: &[Range<usize>]) -> Vec<Range<usize>> {
    let Some((last, outer)) = part.split_last() else { return std::iter::once(0..1).collect() };
    let mut starts = vec![0];
    for (range, size) in outer.iter().zip(shape) {
        starts = starts.iter().flat_map(|s| range.clone().map(move |i| s * size + i)).collect();
    }
    let size = shape.last().copied().unwrap_or(1);
    starts.iter().map(|s| s * size + last.start..s * size + last.end).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshwright_plan::DType;

    fn bytes(shape: &[usize]) -> RawTensor {
        let n = shape.iter().product::<usize>() as u8;
        RawTensor { dtype: DType::U8, shape: shape.to_vec(), data: (0..n).collect() }
    }

    #[test]
    fn parts_order_and_shape_change_in_turn() {
        let tensor = bytes(&[4, 3]);
        let view =
            View { parts: vec![DimPart::Positions(1..3)], order: DimOrder::Reversed, reshape: Reshape::Any };
        assert_eq!(view.shape(&[4, 3]), Ok(vec![3, 2]));
        assert!(view.gives(&[4, 3], &[3, 2]) && view.gives(&[4, 3], &[6]) && !view.gives(&[4, 3], &[5]));
        assert!(!view.gives(&[2, 3], &[3, 2]), "there is no third row");
        let turned = view.of(tensor, &[6]);
        assert_eq!((turned.shape, turned.data), (vec![6], vec![3, 6, 4, 7, 5, 8]));
        let view = View { order: DimOrder::Of(vec![1, 2, 0]), ..View::default() };
        assert_eq!(view.of(bytes(&[2, 3, 2]), &[3, 2, 2]).data, [0, 6, 1, 7, 2, 8, 3, 9, 4, 10, 5, 11]);
        assert!(View { order: DimOrder::Of(vec![0]), ..View::default() }.shape(&[4, 3]).is_err());
    }

    #[test]
    fn columns_are_taken_and_find_their_way_back() {
        let view = View {
            parts: vec![DimPart::All, DimPart::Share(1, 3)],
            order: DimOrder::Reversed,
            reshape: Reshape::Into(vec![2, 1]),
        };
        assert!(view.gives(&[2, 12], &[2, 2, 2]) && view.gives(&[2, 12], &[4, 1, 2]));
        assert!(!view.gives(&[2, 12], &[8]) && !view.gives(&[2, 11], &[2, 2, 2]));
        let tensor = bytes(&[2, 12]);
        let taken = view.of(tensor, &[2, 2, 2]);
        assert_eq!(taken.data, [4, 16, 5, 17, 6, 18, 7, 19]);
        let source = view.source(&[2, 2, 2]);
        let part = SourcePart { ranges: vec![0..2, 4..8], whole: vec![2, 12] };
        assert_eq!(source, Some(part.clone()));
        assert_eq!(view.back(&taken.data, 1, &[2, 2, 2]), [4, 5, 6, 7, 16, 17, 18, 19]);
        assert_eq!(runs(&part.whole, &part.ranges), [4..8, 16..20]);
        assert_eq!(View { reshape: Reshape::Any, ..View::default() }.source(&[2, 2]), None);
    }
}
