//! Result from input and kernel, and input from result and kernel: the same walk over the destination.

use super::pack::Image;
use super::shape::{ConvolveRow, ConvolveShape, KERNEL, RESULT, Sweep, TapRun, offsets, rows, runs};
use super::tile::{Factors, MOST_ROWS, Stretch, Tiled};
use crate::kernels::instruction_set::Level;
use crate::kernels::par;

/// Parts that work is cut into where there are few images.
const PARTS: usize = 16;

/// A prepared walk.
#[derive(Clone, Debug)]
pub(super) struct ToImage {
    image: Image,
    rows: Vec<ConvolveRow>,
    /// Walks along the last sliding dim with their runs, and where their kernel begins.
    sweeps: Vec<(Sweep, Vec<TapRun>, usize)>,
    /// Offset in the kernel of every row of its copy, `[groups][sweeps][outer taps][taps][ins]`, and of the lanes in it.
    weights: Vec<usize>,
    of_lanes: Vec<usize>,
    /// Elements of one group's copy of the kernel.
    group: usize,
    /// Images, as offsets in source and destination.
    batch: Vec<[usize; 2]>,
    groups: Vec<[usize; 2]>,
    /// Stride of the last sliding dim in the destination.
    stride: usize,
    /// Channels of the source.
    ins: usize,
    /// Offsets of the lanes in the destination, and whether they lie side by side.
    lanes: Vec<usize>,
    side_by_side: bool,
    /// Lanes with those that fill up a vector.
    padded: usize,
    /// Rows along the first outer dim of one image, and elements of such a row in the destination: 1 and the image where
    /// that dim is not the outermost of it.
    heads: usize,
    head: usize,
    /// Whether images lie one after the other in the destination.
    apart: bool,
    elements: usize,
}

impl ToImage {
    /// From the tensor `source` to `to`, which has that many elements.
    pub(super) fn new(
        shape: &ConvolveShape,
        source: usize,
        to: usize,
        elements: usize,
        unit: usize,
    ) -> ToImage {
        let forward = to == RESULT;
        let (ins, outs) = if forward { (&shape.ins, &shape.outs) } else { (&shape.outs, &shape.ins) };
        let sweeps = |s: &super::Sliding| if forward { s.over_positions() } else { s.over_elements() };
        let lens = |s: &super::Sliding| {
            let (e, p) = (s.elements.len(), s.positions.len());
            if forward { [e, p] } else { [p, e] }
        };
        let (last, outer) = match shape.slides.split_last() {
            Some((last, outer)) => (last.clone(), outer),
            None => (super::Sliding::still(), &[][..]),
        };
        let along = sweeps(&last);
        let source_rows: Vec<(usize, usize)> =
            outer.iter().map(|s| (lens(s)[0], s.strides[source])).collect();
        let image = Image::new(source, &source_rows, (lens(&last)[0], last.strides[source]), &along, ins, 1);
        let table: Vec<_> = outer.iter().map(|s| (sweeps(s), s.strides[to], s.taps, lens(s)[0])).collect();

        let (of_ins, lanes) = (offsets(ins, KERNEL), offsets(outs, to));
        let of_lanes = offsets(outs, KERNEL);
        let padded = lanes.len().next_multiple_of(unit);
        let mut taps = vec![0];
        for s in outer {
            taps = taps.iter().flat_map(|o| (0..s.taps).map(move |t| o + t * s.strides[KERNEL])).collect();
        }
        let mut weights = Vec::new();
        let mut walks = Vec::new();
        for g in offsets(&shape.groups, KERNEL) {
            for s in &along {
                if walks.len() < along.len() {
                    walks.push((s.clone(), runs(s), weights.len() * padded));
                }
                for t in &taps {
                    for (tap, _) in &s.taps {
                        for i in &of_ins {
                            weights.push(g + t + tap * last.strides[KERNEL] + i);
                        }
                    }
                }
            }
        }
        let group = weights.len() * padded / offsets(&shape.groups, KERNEL).len().max(1);
        let pairs = |dims: &[super::Shared]| -> Vec<[usize; 2]> {
            offsets(dims, source).into_iter().zip(offsets(dims, to)).map(|(a, b)| [a, b]).collect()
        };
        let batch = pairs(&shape.batch);
        let one = elements / batch.len().max(1);
        let apart = batch.iter().enumerate().all(|(i, b)| b[1] == i * one);
        let (heads, head) = match outer.first() {
            Some(s) if apart && s.strides[to] * lens(s)[1] == one && lens(s)[1] > 0 => {
                (lens(s)[1], s.strides[to])
            }
            _ => (1, one),
        };
        ToImage {
            rows: rows(&table),
            sweeps: walks,
            group,
            weights,
            of_lanes,
            groups: pairs(&shape.groups),
            batch,
            stride: last.strides[to],
            ins: of_ins.len(),
            side_by_side: lanes.iter().enumerate().all(|(i, o)| i == *o),
            lanes,
            padded,
            heads,
            head,
            apart,
            elements,
            image,
        }
    }

    /// Products for each element of the destination.
    fn weight(&self) -> usize {
        let taps: usize = self.rows.iter().map(|r| r.taps.len()).max().unwrap_or(0);
        let along: usize = self.sweeps.iter().map(|s| s.0.taps.len()).max().unwrap_or(0);
        (taps * along * self.ins).max(1)
    }

    pub(super) fn run<T: Tiled>(&self, level: Level, source: &[T], kernel: &[T], out: &mut [T]) {
        if self.elements == 0 {
            return;
        }
        let mut weights = vec![T::default(); self.weights.len() * self.padded];
        for (row, at) in weights.chunks_exact_mut(self.padded.max(1)).zip(&self.weights) {
            row.iter_mut().zip(&self.of_lanes).for_each(|(w, o)| *w = kernel[at + o]);
        }
        if !self.apart {
            self.part(level, source, &weights, 0..self.batch.len(), 0, out);
            return;
        }
        // Whole images, or where they are few a number of rows of them.
        let rows = self.batch.len() * self.heads;
        let unit = if self.batch.len() >= PARTS { self.heads } else { rows.div_ceil(PARTS) };
        par::parts(out, unit * self.head, self.weight(), &|base, part| {
            let first = base / self.head;
            self.part(level, source, &weights, first..first + part.len() / self.head, base, part);
        });
    }

    /// Rows of images, `base` being the position of `out` in the whole.
    fn part<T: Tiled>(
        &self,
        level: Level,
        source: &[T],
        weights: &[T],
        range: std::ops::Range<usize>,
        base: usize,
        out: &mut [T],
    ) {
        let heads = if self.apart { self.heads } else { 1 };
        let mut image = vec![T::default(); self.image.elements()];
        let mut stretches = Vec::new();
        for b in range.start / heads..range.end.div_ceil(heads) {
            let [from, to] = self.batch[b];
            let first = range.start.saturating_sub(b * heads);
            let wanted = first..(range.end - b * heads).min(heads);
            for (g, [group_from, group_to]) in self.groups.iter().enumerate() {
                self.image.copy(source, from + group_from, &mut image);
                for row in self.rows.iter().filter(|r| heads == 1 || wanted.contains(&r.head)) {
                    let at = to + group_to + row.to - base;
                    for (sweep, runs, start) in self.sweeps.iter().filter(|s| s.0.count > 0) {
                        self.stretches(row, sweep, runs, g * self.group + start, &mut stretches);
                        let f = Factors {
                            a: &image,
                            across: sweep.advance * self.ins,
                            along: 1,
                            b: weights,
                            step: self.padded,
                            stretches: &stretches,
                        };
                        self.row(level, &f, sweep, at, out);
                    }
                }
            }
        }
    }

    fn stretches(
        &self,
        row: &ConvolveRow,
        sweep: &Sweep,
        runs: &[TapRun],
        start: usize,
        out: &mut Vec<Stretch>,
    ) {
        out.clear();
        for (tap, from) in &row.taps {
            for r in runs {
                let a = self.image.at(*from, r.at);
                let b = start + (tap * sweep.taps.len() + r.index) * self.ins * self.padded;
                out.push(Stretch { a, b, len: r.len * self.ins });
            }
        }
    }

    /// One row of the destination.
    fn row<T: Tiled>(&self, level: Level, f: &Factors<'_, T>, sweep: &Sweep, at: usize, out: &mut [T]) {
        let mut sums = [T::default(); MOST_ROWS * 16];
        let most = T::rows(level);
        let tiles = sweep.count.div_ceil(most);
        for lane in (0..self.padded).step_by(T::LANES) {
            let lanes = &self.lanes[lane..self.lanes.len().min(lane + T::LANES)];
            for t in 0..tiles {
                // Tiles of about the same size.
                let (q, end) = (t * sweep.count / tiles, (t + 1) * sweep.count / tiles);
                T::tile(level, end - q, f, [q * f.across, lane], &mut sums);
                for (m, sums) in (q..end).zip(sums.chunks_exact(T::LANES)) {
                    let at = at + (sweep.first + m * sweep.step) * self.stride;
                    if self.side_by_side {
                        out[at + lane..][..lanes.len()].copy_from_slice(&sums[..lanes.len()]);
                    } else {
                        lanes.iter().zip(sums).for_each(|(o, s)| out[at + o] = *s);
                    }
                }
            }
        }
    }
}
