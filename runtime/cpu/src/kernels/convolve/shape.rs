//! Sizes and strides of a convolution on this device.

use std::ops::Range;

/// Which of the three tensors, as a position in arrays of three: input, kernel, result.
pub(crate) const INPUT: usize = 0;
/// The kernel.
pub(crate) const KERNEL: usize = 1;
/// The result.
pub(crate) const RESULT: usize = 2;

/// A dim that does not slide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shared {
    /// Elements that the device holds.
    pub len: usize,
    /// Strides in input, kernel and result; 0 where it is lacking.
    pub strides: [usize; 3],
}

/// A dim that slides: tap `t` of position `n` meets element `n * stride + t * dilation - low`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sliding {
    /// Elements from one position to the next.
    pub stride: usize,
    /// Elements from one tap to the next.
    pub dilation: usize,
    /// Elements of padding before the first.
    pub low: usize,
    /// Global elements that the device holds.
    pub elements: Range<usize>,
    /// Taps, all of them.
    pub taps: usize,
    /// Global positions that the device holds.
    pub positions: Range<usize>,
    /// Strides of elements, taps and positions in input, kernel and result.
    pub strides: [usize; 3],
}

/// All dims of a convolution.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConvolveShape {
    /// Dims of input and result.
    pub batch: Vec<Shared>,
    /// Dims of all three.
    pub groups: Vec<Shared>,
    /// Dims of input and kernel.
    pub ins: Vec<Shared>,
    /// Dims of kernel and result.
    pub outs: Vec<Shared>,
    /// Dims that slide.
    pub slides: Vec<Sliding>,
}

/// A walk along one dim of the destination: its element `first + q * step` gets, of each tap, element `at + q * advance`
/// of the source where there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::kernels) struct Sweep {
    pub(super) first: usize,
    pub(super) step: usize,
    pub(super) count: usize,
    pub(super) advance: usize,
    /// Taps with their first source element, by that.
    pub(super) taps: Vec<(usize, i64)>,
}

impl Sliding {
    /// A window of one tap over one element: what stands where no dim slides.
    pub(super) fn still() -> Sliding {
        Sliding { stride: 1, dilation: 1, low: 0, elements: 0..1, taps: 1, positions: 0..1, strides: [0; 3] }
    }

    /// Walks over positions, reading elements.
    pub(in crate::kernels) fn over_positions(&self) -> Vec<Sweep> {
        let first = (self.positions.start * self.stride) as i64 - (self.low + self.elements.start) as i64;
        let taps = (0..self.taps).map(|t| (t, first + (t * self.dilation) as i64));
        vec![Sweep {
            first: 0,
            step: 1,
            count: self.positions.len(),
            advance: self.stride,
            taps: taps.collect(),
        }]
    }

    /// Walks over elements, reading positions: one for each remainder by the stride, since other taps meet those.
    pub(in crate::kernels) fn over_elements(&self) -> Vec<Sweep> {
        let (n, stride) = (self.elements.len(), self.stride as i64);
        let sweep = |first: usize| {
            let at = |t: usize| {
                let from = (self.elements.start + first + self.low) as i64 - (t * self.dilation) as i64;
                (from.rem_euclid(stride) == 0)
                    .then(|| (t, from.div_euclid(stride) - self.positions.start as i64))
            };
            let mut taps: Vec<(usize, i64)> = (0..self.taps).filter_map(at).collect();
            taps.reverse();
            Sweep { first, step: self.stride, count: (n - first).div_ceil(self.stride), advance: 1, taps }
        };
        (0..n.min(self.stride)).map(sweep).collect()
    }
}

/// Offsets of all positions along some dims in one tensor, row-major.
pub(super) fn offsets(dims: &[Shared], tensor: usize) -> Vec<usize> {
    let mut out = vec![0];
    for d in dims {
        out = out.iter().flat_map(|o| (0..d.len).map(move |i| o + i * d.strides[tensor])).collect();
    }
    out
}

/// A stretch of taps of a sweep that lie next to each other in the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TapRun {
    /// First source element of the first.
    pub(super) at: i64,
    /// Position of the first among the sweep's taps.
    pub(super) index: usize,
    pub(super) len: usize,
}

/// The stretches of a sweep.
pub(super) fn runs(sweep: &Sweep) -> Vec<TapRun> {
    let mut out: Vec<TapRun> = Vec::new();
    for (index, (_, at)) in sweep.taps.iter().enumerate() {
        match out.last_mut() {
            Some(r) if r.at + r.len as i64 == *at => r.len += 1,
            _ => out.push(TapRun { at: *at, index, len: 1 }),
        }
    }
    out
}

/// One position of the destination along all sliding dims but the last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::kernels) struct ConvolveRow {
    /// Position along the first of them (0 where there is none).
    pub(in crate::kernels) head: usize,
    /// Offset in the destination.
    pub(in crate::kernels) to: usize,
    /// For each tap along them that meets an element: its number, and the number of the source's row.
    pub(in crate::kernels) taps: Vec<(usize, usize)>,
}

/// The rows of a destination. `sweeps` are those of each dim but the last, with the stride in the destination, the number of
/// taps and of source elements.
pub(in crate::kernels) fn rows(outer: &[(Vec<Sweep>, usize, usize, usize)]) -> Vec<ConvolveRow> {
    let mut out = vec![ConvolveRow { head: 0, to: 0, taps: vec![(0, 0)] }];
    for (k, (sweeps, stride, taps, elements)) in outer.iter().enumerate() {
        // Positions of this dim in order: which taps meet which element.
        let mut points: Vec<(usize, Vec<(usize, usize)>)> = Vec::new();
        for s in sweeps {
            for q in 0..s.count {
                let meets = s.taps.iter().filter_map(|(t, at)| {
                    let i = usize::try_from(at + (q * s.advance) as i64).ok()?;
                    (i < *elements).then_some((*t, i))
                });
                points.push((s.first + q * s.step, meets.collect()));
            }
        }
        points.sort();
        let mut longer = Vec::new();
        for row in &out {
            for (at, met) in &points {
                let each = row
                    .taps
                    .iter()
                    .flat_map(|(t, i)| met.iter().map(move |m| (t * taps + m.0, i * elements + m.1)));
                longer.push(ConvolveRow {
                    head: if k == 0 { *at } else { row.head },
                    to: row.to + at * stride,
                    taps: each.collect(),
                });
            }
        }
        out = longer;
    }
    out
}
