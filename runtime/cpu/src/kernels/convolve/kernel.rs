//! The kernel's gradient: for every tap the sum over all positions.

use super::pack::Image;
use super::shape::{ConvolveRow, ConvolveShape, INPUT, KERNEL, RESULT, Sweep, TapRun, offsets, rows, runs};
use super::tile::{Factors, MOST_ROWS, Stretch, Tiled};
use crate::kernels::instruction_set::Level;
use crate::kernels::par;

/// Most parts that the images are cut into; each has sums of its own, which are added in order.
const PARTS: usize = 16;

/// A prepared gradient.
#[derive(Clone, Debug)]
pub(super) struct ToKernel {
    input: Image,
    result: Image,
    rows: Vec<ConvolveRow>,
    /// For each outer tap the rows of positions that have it: number of the row, and of the input's.
    met: Vec<Vec<(usize, usize)>>,
    sweep: Sweep,
    runs: Vec<TapRun>,
    /// Images and groups, as offsets in input and result.
    batch: Vec<[usize; 2]>,
    groups: Vec<[usize; 2]>,
    /// Where each row of the sums `[groups][outer taps][taps][ins]` goes, and the lanes in it.
    goes: Vec<usize>,
    lanes: Vec<usize>,
    ins: usize,
    padded: usize,
}

impl ToKernel {
    pub(super) fn new(shape: &ConvolveShape, unit: usize) -> ToKernel {
        let (last, outer) = match shape.slides.split_last() {
            Some((last, outer)) => (last.clone(), outer),
            None => (super::Sliding::still(), &[][..]),
        };
        let sweep = last.over_positions().remove(0);
        let of = |tensor: usize, s: &super::Sliding| {
            (if tensor == INPUT { s.elements.len() } else { s.positions.len() }, s.strides[tensor])
        };
        let outer_of =
            |tensor: usize| -> Vec<(usize, usize)> { outer.iter().map(|s| of(tensor, s)).collect() };
        let input = Image::new(
            INPUT,
            &outer_of(INPUT),
            of(INPUT, &last),
            std::slice::from_ref(&sweep),
            &shape.ins,
            1,
        );
        let result = Image::new(RESULT, &outer_of(RESULT), of(RESULT, &last), &[], &shape.outs, unit);
        let table: Vec<_> = outer.iter().map(|s| (s.over_positions(), 0, s.taps, s.elements.len())).collect();
        let rows = rows(&table);
        let mut taps = vec![0];
        for s in outer {
            taps = taps.iter().flat_map(|o| (0..s.taps).map(move |t| o + t * s.strides[KERNEL])).collect();
        }
        let mut met = vec![Vec::new(); taps.len()];
        for (n, row) in rows.iter().enumerate() {
            for (tap, from) in &row.taps {
                met[*tap].push((n, *from));
            }
        }
        let (ins, outs) = (offsets(&shape.ins, KERNEL), offsets(&shape.outs, KERNEL));
        let padded = outs.len().next_multiple_of(unit);
        let mut goes = Vec::new();
        for g in offsets(&shape.groups, KERNEL) {
            for t in &taps {
                for (tap, _) in &sweep.taps {
                    for i in &ins {
                        goes.push(g + t + tap * last.strides[KERNEL] + i);
                    }
                }
            }
        }
        let pairs = |dims: &[super::Shared]| -> Vec<[usize; 2]> {
            offsets(dims, INPUT).into_iter().zip(offsets(dims, RESULT)).map(|(a, b)| [a, b]).collect()
        };
        ToKernel {
            input,
            result,
            rows,
            met,
            runs: runs(&sweep),
            sweep,
            batch: pairs(&shape.batch),
            groups: pairs(&shape.groups),
            goes,
            lanes: outs,
            ins: ins.len(),
            padded,
        }
    }

    pub(super) fn run<T: Tiled>(&self, level: Level, x: &[T], y: &[T], out: &mut [T]) {
        out.fill(T::default());
        let size = self.goes.len() * self.padded;
        if size == 0 || self.batch.is_empty() || self.sweep.count == 0 {
            return;
        }
        // Few images are cut into rows. How, depends on sizes alone, and so does the order of the sums.
        let total = self.batch.len() * self.rows.len();
        let parts = total.min(PARTS);
        let mut sums = vec![T::default(); parts * size];
        let weight = total * self.sweep.count / parts.max(1);
        par::parts(&mut sums, size, weight.max(1), &|base, sums| {
            for (k, sums) in sums.chunks_exact_mut(size).enumerate() {
                let n = base / size + k;
                self.part(level, x, y, n * total / parts..(n + 1) * total / parts, sums);
            }
        });
        for sums in sums.chunks_exact(size) {
            for (sums, at) in sums.chunks_exact(self.padded).zip(&self.goes) {
                sums.iter().zip(&self.lanes).for_each(|(s, o)| out[at + o] += *s);
            }
        }
    }

    /// Sums over a range of rows of all images.
    fn part<T: Tiled>(&self, level: Level, x: &[T], y: &[T], range: std::ops::Range<usize>, sums: &mut [T]) {
        let rows = self.rows.len();
        let mut input = vec![T::default(); self.input.elements()];
        let mut result = vec![T::default(); self.result.elements()];
        let group = self.goes.len() * self.padded / self.groups.len().max(1);
        for b in range.start / rows..range.end.div_ceil(rows) {
            let wanted = range.start.saturating_sub(b * rows)..(range.end - b * rows).min(rows);
            for (g, from) in self.groups.iter().enumerate() {
                self.input.copy(x, self.batch[b][0] + from[0], &mut input);
                self.result.copy(y, self.batch[b][1] + from[1], &mut result);
                self.image(level, &input, &result, &wanted, &mut sums[g * group..(g + 1) * group]);
            }
        }
    }

    /// Adds the sums over some rows of one image.
    fn image<T: Tiled>(
        &self,
        level: Level,
        input: &[T],
        result: &[T],
        wanted: &std::ops::Range<usize>,
        sums: &mut [T],
    ) {
        let mut stretches = Vec::new();
        let mut tile = [T::default(); MOST_ROWS * 16];
        let most = T::rows(level);
        for (tap, met) in self.met.iter().enumerate() {
            for run in &self.runs {
                stretches.clear();
                for (row, from) in met.iter().filter(|m| wanted.contains(&m.0)) {
                    let (a, b) = (self.input.at(*from, run.at), self.result.at(*row, 0));
                    stretches.push(Stretch { a, b, len: self.sweep.count });
                }
                let f = Factors {
                    a: input,
                    across: 1,
                    along: self.sweep.advance * self.ins,
                    b: result,
                    step: self.padded,
                    stretches: &stretches,
                };
                let first = (tap * self.sweep.taps.len() + run.index) * self.ins;
                let rows = run.len * self.ins;
                let tiles = rows.div_ceil(most);
                for lane in (0..self.padded).step_by(T::LANES) {
                    for t in 0..tiles {
                        let (q, end) = (t * rows / tiles, (t + 1) * rows / tiles);
                        T::tile(level, end - q, &f, [q, lane], &mut tile);
                        for (m, tile) in (q..end).zip(tile.chunks_exact(T::LANES)) {
                            let sums = &mut sums[(first + m) * self.padded + lane..][..T::LANES];
                            sums.iter_mut().zip(tile).for_each(|(s, t)| *s += *t);
                        }
                    }
                }
            }
        }
    }
}
