//! Convolutions and pools, if the backend has no kernels for them (`kernels`): the element under each tap at each
//! position is selected into dims of its own; then a convolution is a contraction, and a pool a fold. The transpose
//! sums the selection.
//!
//! A selection has an element for each position and tap: 25 times the image for a kernel of 5 x 5. These steps take
//! this memory while they run, besides the Plan's buffers.

mod kernels;

use super::lower::{Lower, Named};
use super::reduce::identity;
use crate::error::LoweringError;
use crate::kernels::windows::PoolWork;
use crate::lowering::local::Local;
use crate::lowering::ops::{Binary, Reduce};
use crate::stored::extents;
use meshwright_plan::{BufId, DType, Dim, Dims, Monoid, Part, SlidingWindow, Step};
use std::ops::Range;

impl Lower<'_> {
    /// For each tap and each position (taps first) the element of the block `elements` that they meet; `elements.len()`
    /// where they meet none.
    fn meets(
        dims: &Dims,
        s: &SlidingWindow,
        elements: &Range<usize>,
        positions: &Range<usize>,
    ) -> Vec<usize> {
        let mut out = vec![];
        for t in 0..dims.size(s.tap) {
            for n in positions.clone() {
                let met = s.element(n, t, dims).filter(|i| elements.contains(i));
                out.push(met.map_or(elements.len(), |i| i - elements.start));
            }
        }
        out
    }

    /// The element under each tap at each position: the wide dim becomes two, taps and positions. Taps without an
    /// element get `nothing`.
    fn gather_windows(
        &mut self,
        table: &Dims,
        x: Named,
        s: &SlidingWindow,
        elements: &Range<usize>,
        positions: &Range<usize>,
        nothing: f64,
    ) -> Result<Named, LoweringError> {
        let axis = place(&x, s.wide)?;
        let met = Self::meets(table, s, elements, positions);
        let mut val = x.val;
        if met.contains(&elements.len()) {
            let mut shape = self.graph.shape(val).to_vec();
            shape[axis] = 1;
            let dtype = self.graph.dtype(val);
            let beyond = self.graph.full(&shape, dtype, nothing);
            val = self.graph.cat(vec![val, beyond], axis);
        }
        let at = self.graph.table(&[met.len()], met.iter().map(|i| *i as i32).collect());
        val = self.graph.select(val, axis, at);
        let mut shape = self.graph.shape(val).to_vec();
        shape.splice(axis..=axis, [table.size(s.tap), positions.len()]);
        let mut dims = x.dims;
        dims.splice(axis..=axis, [s.tap, s.narrow]);
        Ok(Named { val: self.graph.reshape(val, &shape), dims })
    }

    /// The transpose of [`Lower::gather_windows`]: adjacent dims of taps and positions become elements, each the sum
    /// over the taps that meet it.
    fn spread(
        &mut self,
        table: &Dims,
        x: Named,
        s: &SlidingWindow,
        elements: &Range<usize>,
        positions: &Range<usize>,
    ) -> Result<Named, LoweringError> {
        let axis = place(&x, s.tap)?;
        let met = Self::meets(table, s, elements, positions);
        let mut shape = self.graph.shape(x.val).to_vec();
        shape.splice(axis..=axis + 1, [met.len()]);
        let val = self.graph.reshape(x.val, &shape);
        let beyond = usize::from(met.contains(&elements.len()));
        shape[axis] = elements.len() + beyond;
        let dtype = self.graph.dtype(val);
        let zeros = self.graph.full(&shape, dtype, 0.0);
        let at = self.graph.table(&[met.len()], met.iter().map(|i| *i as i32).collect());
        let sum = self.graph.select_add(zeros, axis, at, val);
        let val = self.graph.slice(sum, axis, 0..elements.len());
        let mut dims = x.dims;
        dims.splice(axis..=axis + 1, [s.wide]);
        Ok(Named { val, dims })
    }

    /// See [`meshwright_plan::Prim::Convolve`].
    pub(crate) fn convolve(
        &mut self,
        step: &Step,
        slides: &[SlidingWindow],
        gives: Part,
    ) -> Result<(), LoweringError> {
        let table = &self.context.plan.dims;
        let ([a, b], [out]) = self.locals(step)?;
        let [x, w, y] = gives.arrange([&a, &b], &out);
        let sliding: Vec<Dim> = slides.iter().flat_map(|s| [s.wide, s.narrow, s.tap]).collect();
        self.context.check_aligned(&[x, w, y], &sliding)?;
        if x.dtype.wide() != w.dtype.wide() || x.dtype.wide() != y.dtype.wide() {
            return Err(LoweringError::Plan("the tensors of a convolution differ in dtype".into()));
        }
        let out = &out;
        if [x, w, y].iter().any(|l| l.elements() == 0) {
            self.write_number(0.0, out);
            return Ok(());
        }
        if let Some(s) =
            slides.iter().find(|s| w.range(s.tap).is_ok_and(|taps| taps.len() != table.size(s.tap)))
        {
            return Err(LoweringError::Plan(format!("the taps {} of a kernel are not whole", s.tap.0)));
        }
        if self.own_convolution(slides, gives, [&a, &b, out])? {
            return Ok(());
        }
        let digits = self.decisions.digits([a.buf, b.buf]);
        // The dims of the image with taps and positions for each wide dim.
        let mut dims = x.dims.clone();
        let mut ranges = x.ranges.clone();
        for s in slides {
            let axis = dims.iter().position(|d| *d == s.wide);
            let axis = axis.ok_or_else(|| format!("an operand lacks the dim {}", s.wide.0))?;
            dims.splice(axis..=axis, [s.tap, s.narrow]);
            ranges.splice(axis..=axis, [0..table.size(s.tap), y.range(s.narrow)?.clone()]);
        }
        let shape = ranges.iter().map(ExactSizeIterator::len).collect();
        let columns = Local { buf: BufId(u32::MAX), dtype: x.dtype, dims, ranges, shape };
        if gives == Part::Input {
            let (a, b) = (self.read(w).val, self.read(y).val);
            let Some(val) = self.product((a, w), (b, y), &columns, digits)? else {
                self.write_number(0.0, out);
                return Ok(());
            };
            let mut back = Named { val: self.wide(val), dims: columns.dims.clone() };
            for s in slides {
                back = self.spread(table, back, s, x.range(s.wide)?, y.range(s.narrow)?)?;
            }
            self.write(&back, out);
            return Ok(());
        }
        let mut image = self.read(x);
        for s in slides {
            image = self.gather_windows(table, image, s, x.range(s.wide)?, y.range(s.narrow)?, 0.0)?;
        }
        let (other, by) = if gives == Part::Result { (w, y) } else { (y, w) };
        let read = self.read(other).val;
        match self.product((image.val, &columns), (read, other), by, digits)? {
            Some(val) => self.write_val(val, out),
            None => self.write_number(0.0, out),
        }
        Ok(())
    }

    fn check_pool(
        &self,
        wide: &Local,
        narrow: &Local,
        slides: &[SlidingWindow],
    ) -> Result<(), LoweringError> {
        let sliding: Vec<Dim> = slides.iter().flat_map(|s| [s.wide, s.narrow]).collect();
        Ok(self.context.check_aligned(&[wide, narrow], &sliding)?)
    }

    /// See [`meshwright_plan::Prim::Pool`]. The dims are folded one after the other.
    pub(crate) fn pool(
        &mut self,
        step: &Step,
        monoid: Monoid,
        slides: &[SlidingWindow],
    ) -> Result<(), LoweringError> {
        let table = &self.context.plan.dims;
        let ([input], [out]) = self.locals(step)?;
        self.check_pool(&input, &out, slides)?;
        let fold = match monoid {
            Monoid::Sum => Reduce::Sum,
            Monoid::Max => Reduce::Max,
            Monoid::Min => Reduce::Min,
            other => return super::lower::unsupported(format!("a pool by {other}")),
        };
        let nothing = identity(monoid, input.dtype);
        if input.elements() == 0 {
            self.write_number(nothing, &out);
            return Ok(());
        }
        if self.own_pool(slides, (PoolWork::Fold(monoid), false), &[&input], &out)? {
            return Ok(());
        }
        let mut x = self.read(&input);
        x.val = self.wide(x.val);
        for s in slides {
            x = self.gather_windows(table, x, s, input.range(s.wide)?, out.range(s.narrow)?, nothing)?;
            let axis = place(&x, s.tap)?;
            let val = self.graph.reduce(fold, x.val, axis);
            let mut shape = self.graph.shape(val).to_vec();
            shape.remove(axis);
            x.dims.remove(axis);
            x.val = self.graph.reshape(val, &extents(&shape));
        }
        self.write(&x, &out);
        Ok(())
    }

    /// The transpose of a pool by sum.
    pub(crate) fn unpool(&mut self, step: &Step, slides: &[SlidingWindow]) -> Result<(), LoweringError> {
        let table = &self.context.plan.dims;
        let ([input], [out]) = self.locals(step)?;
        self.check_pool(&out, &input, slides)?;
        if input.elements() == 0 {
            self.write_number(0.0, &out);
            return Ok(());
        }
        if self.own_pool(slides, (PoolWork::Fold(Monoid::Sum), true), &[&input], &out)? {
            return Ok(());
        }
        let mut x = self.read(&input);
        x.val = self.wide(x.val);
        for s in slides {
            let axis = place(&x, s.narrow)?;
            let mut shape = self.graph.shape(x.val).to_vec();
            shape.insert(axis, 1);
            let val = self.graph.reshape(x.val, &shape);
            shape[axis] = table.size(s.tap);
            x.val = self.graph.expand(val, &shape);
            x.dims.insert(axis, s.tap);
            x = self.spread(table, x, s, out.range(s.wide)?, input.range(s.narrow)?)?;
        }
        self.write(&x, &out);
        Ok(())
    }

    /// See [`meshwright_plan::Prim::ArgmaxPool`].
    pub(crate) fn argmax_pool(
        &mut self,
        step: &Step,
        monoid: Monoid,
        slides: &[SlidingWindow],
    ) -> Result<(), LoweringError> {
        let ([input], [out]) = self.locals(step)?;
        self.check_pool(&input, &out, slides)?;
        if input.elements() == 0 {
            self.write_number(0.0, &out);
            return Ok(());
        }
        if self.own_pool(slides, (PoolWork::Tap(monoid), false), &[&input], &out)? {
            return Ok(());
        }
        let (table, slides) = apart(&self.context.plan.dims, slides);
        let (table, slides) = (&table, &slides[..]);
        let mut x = self.read(&input);
        for s in slides {
            x = self.gather_windows(table, x, s, input.range(s.wide)?, out.range(s.narrow)?, 0.0)?;
        }
        let taps: Vec<Dim> = slides.iter().map(|s| s.tap).collect();
        let val = self.align(&x, &[out.dims.as_slice(), &taps].concat());
        let (rank, count) = (out.dims.len(), table.elements(&taps));
        let val = self.graph.reshape(val, &[out.shape.as_slice(), &[count]].concat());
        // Taps that meet nothing are left out: a table over the positions of all slides, and the taps.
        let narrow: Vec<&SlidingWindow> =
            out.dims.iter().filter_map(|d| slides.iter().find(|s| s.narrow == *d)).collect();
        let mut shape = vec![];
        let mut places: Vec<Vec<usize>> = vec![vec![]];
        for d in &out.dims {
            if !narrow.iter().any(|s| s.narrow == *d) {
                shape.push(1);
                continue;
            }
            let range = out.range(*d)?;
            shape.push(range.len());
            let longer = |p: Vec<usize>| range.clone().map(move |n| [p.as_slice(), &[n]].concat());
            places = places.into_iter().flat_map(longer).collect();
        }
        let mut missed = vec![];
        for at in &places {
            for t in 0..count {
                let mut rest = t;
                let mut missing = false;
                for s in slides.iter().rev() {
                    let size = table.size(s.tap);
                    let (tap, held) = (rest % size, input.range(s.wide)?);
                    rest /= size;
                    let here = narrow.iter().zip(at).find(|(o, _)| o.narrow == s.narrow);
                    let met = here.and_then(|(_, n)| s.element(*n, tap, table));
                    missing |= met.is_none_or(|i| !held.contains(&i));
                }
                missed.push(i32::from(missing));
            }
        }
        let taken = if missed.contains(&1) {
            let mask = self.graph.table(&[shape.as_slice(), &[count]].concat(), missed);
            Some(self.truth(mask))
        } else {
            None
        };
        let (_, index) = self.first_best(val, rank, monoid == Monoid::Max, taken);
        // Windows without elements have the first index.
        let none = self.graph.scalar(Binary::Ge, index, count as f64);
        let index = self.graph.fill(index, none, 0.0);
        let val = self.graph.reshape(index, &extents(&out.shape));
        self.write_val(val, &out);
        Ok(())
    }

    /// See [`meshwright_plan::Prim::Unpool`].
    pub(crate) fn pool_choose(&mut self, step: &Step, slides: &[SlidingWindow]) -> Result<(), LoweringError> {
        let ([tap, values], [out]) = self.locals(step)?;
        self.check_pool(&out, &values, slides)?;
        self.context.check_aligned(&[&tap, &values], &[])?;
        if tap.dims != values.dims || tap.dtype != DType::I32 {
            return Err(LoweringError::Plan("taps and values of a pool differ in dims".into()));
        }
        if values.elements() == 0 {
            self.write_number(0.0, &out);
            return Ok(());
        }
        if self.own_pool(slides, (PoolWork::Choose, true), &[&tap, &values], &out)? {
            return Ok(());
        }
        let (table, slides) = apart(&self.context.plan.dims, slides);
        let (table, slides) = (&table, &slides[..]);
        // Taps before the positions of their slide; a value stands at its tap alone.
        let mut dims = values.dims.clone();
        for s in slides {
            let axis = dims.iter().position(|d| *d == s.narrow);
            let axis = axis.ok_or_else(|| format!("an operand lacks the dim {}", s.narrow.0))?;
            dims.insert(axis, s.tap);
        }
        let taps: Vec<Dim> = slides.iter().map(|s| s.tap).collect();
        let (sizes, count) = (table.shape(&taps), table.elements(&taps));
        let numbers = self.graph.table(&extents(&sizes), (0..count as i32).collect());
        let numbers = self.align(&Named { val: numbers, dims: taps }, &dims);
        let (tap, x) = (self.read(&tap), self.read(&values));
        let tap = self.align(&tap, &dims);
        let x = self.align(&x, &dims);
        let x = self.wide(x);
        let other = self.graph.binary(Binary::Ne, tap, numbers);
        let val = self.graph.fill(x, other, 0.0);
        let mut back = Named { val, dims };
        for s in slides {
            back = self.spread(table, back, s, out.range(s.wide)?, values.range(s.narrow)?)?;
        }
        self.write(&back, &out);
        Ok(())
    }
}

fn place(x: &Named, dim: Dim) -> Result<usize, LoweringError> {
    let found = x.dims.iter().position(|d| *d == dim);
    found.ok_or_else(|| LoweringError::Plan(format!("an operand lacks the dim {}", dim.0)))
}

/// The slides of a pool with taps that differ, and a table that has them: windows of one size may share the dim of their
/// taps, which no tensor has.
fn apart(dims: &Dims, slides: &[SlidingWindow]) -> (Dims, Vec<SlidingWindow>) {
    let mut dims = dims.clone();
    let mut tap = |s: &SlidingWindow| SlidingWindow { tap: dims.add("tap", dims.size(s.tap)), ..*s };
    let slides = slides.iter().map(&mut tap).collect();
    (dims, slides)
}
