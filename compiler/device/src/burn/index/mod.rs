//! Lookups in tables, and their transpose.
//!
//! Dims that indices and table share are counted with the looked-up dims, so that both steps are a selection of rows of a
//! matrix.

use super::lower::{Lower, Named};
use crate::error::LoweringError;
use crate::kernels::index::ScatterCall;
use crate::lowering::graph::Val;
use crate::lowering::local::Local;
use crate::lowering::ops::{Binary, Reduce};
use crate::stored::extents;
use burn_backend::DType as BurnType;
use meshwright_plan::{DType, Dim, Step};
use std::ops::Range;

mod kernels;

/// Positions that the indices name in a tensor with `dims`, one index for each dim.
pub(crate) struct Positions {
    indices: Vec<Local>,
    /// For each the range that this device holds, and its size.
    held: Vec<Range<usize>>,
    /// Dims of the indices: shared with the tensor, and the rest.
    shared: Vec<Dim>,
    rest: Vec<Dim>,
    /// The tensor's other dims.
    columns: Vec<Dim>,
    /// Sizes of the shared dims.
    sizes: Vec<usize>,
}

impl Positions {
    fn of(of: &Local, dims: &[Dim], indices: &[Local]) -> Result<Positions, LoweringError> {
        if indices.len() != dims.len() {
            return Err(LoweringError::Plan(format!("{} indices of {} dims", indices.len(), dims.len())));
        }
        indices.iter().try_for_each(positions)?;
        let held = dims.iter().map(|d| of.range(*d).cloned()).collect::<Result<_, _>>()?;
        let (mut shared, mut rest) = (vec![], vec![]);
        for d in indices.iter().flat_map(|i| &i.dims) {
            let group = if of.at(*d).is_some() { &mut shared } else { &mut rest };
            if !group.contains(d) {
                group.push(*d);
            }
        }
        let columns = of.dims.iter().filter(|d| !dims.contains(d) && !shared.contains(d)).copied().collect();
        let sizes = Lower::sizes(&shared, &indices.iter().collect::<Vec<_>>());
        Ok(Positions { indices: indices.to_vec(), held, shared, rest, columns, sizes })
    }

    /// The tensor as a matrix: rows are shared and indexed dims, columns all others.
    fn height(&self) -> usize {
        self.sizes.iter().chain(&self.held.iter().map(ExactSizeIterator::len).collect::<Vec<_>>()).product()
    }
}

impl Lower<'_> {
    /// The rows that operands name: see [`Lower::rows_at`].
    fn rows_named(&mut self, p: &Positions) -> (Val, Val) {
        let over = [p.shared.as_slice(), &p.rest].concat();
        let shape = Self::sizes(&over, &p.indices.iter().collect::<Vec<_>>());
        let named: Vec<(Named, Range<usize>)> =
            p.indices.iter().zip(&p.held).map(|(index, held)| (self.read(index), held.clone())).collect();
        self.rows_at(&named, [&p.shared, &p.rest], &shape)
    }

    /// Rows that indices over `[shared, rest]`, which have these sizes, name on this device, and whether each of them
    /// is on another one (its row is then a valid row of this device).
    fn rows_at(
        &mut self,
        indices: &[(Named, Range<usize>)],
        [shared, rest]: [&[Dim]; 2],
        sizes: &[usize],
    ) -> (Val, Val) {
        let over = [shared, rest].concat();
        let (mut at, mut beyond) = (None, None);
        for (index, held) in indices {
            let index = self.align(index, &over);
            let index = self.convert(index, BurnType::I32);
            let e = &mut self.graph;
            let (under, above) = (
                e.scalar(Binary::Lt, index, held.start as f64),
                e.scalar(Binary::Ge, index, held.end as f64),
            );
            let outside = e.binary(Binary::Or, under, above);
            let index = e.scalar(Binary::Sub, index, held.start as f64);
            let index = e.fill(index, outside, 0.0);
            // The first counts most.
            let sum = at.map(|before| {
                let scaled = e.scalar(Binary::Mul, before, held.len() as f64);
                e.add(scaled, index)
            });
            at = Some(sum.unwrap_or(index));
            beyond = Some(beyond.map_or(outside, |b| e.binary(Binary::Or, b, outside)));
        }
        let e = &mut self.graph;
        let (Some(mut at), Some(beyond)) = (at, beyond) else {
            let none = e.table(&[1], vec![0]);
            return (none, none);
        };
        if !shared.is_empty() {
            let held: usize = indices.iter().map(|(_, held)| held.len()).product();
            let mut shape = sizes[..shared.len()].to_vec();
            let count: usize = shape.iter().product();
            shape.resize(sizes.len(), 1);
            let base = e.table(&shape, (0..count).map(|i| (i * held) as i32).collect());
            at = e.add(at, base);
        }
        let shape = extents(sizes);
        let (at, beyond) = (e.expand(at, &shape), e.expand(beyond, &shape));
        let n: usize = e.shape(at).iter().product();
        (e.reshape(at, &[n]), e.reshape(beyond, &[n, 1]))
    }

    /// See [`meshwright_plan::Prim::Lookup`].
    pub(crate) fn lookup(&mut self, step: &Step, dims: &[Dim]) -> Result<(), LoweringError> {
        let (table, indices, out) = self.indexed(step, dims)?;
        if table.elements() == 0 {
            self.write_number(0.0, &out);
            return Ok(());
        }
        let p = Positions::of(&table, dims, &indices)?;
        if let Some(call) = self.index_call(&p, dims, [&table, &out]) {
            self.record(call, std::iter::once(&table).chain(&indices), &[out]);
            return Ok(());
        }
        let (at, beyond) = self.rows_named(&p);
        let x = self.read(&table);
        let x = self.align(&x, &[p.shared.as_slice(), dims, &p.columns].concat());
        let width: usize = Self::sizes(&p.columns, &[&table]).iter().product();
        let x = self.graph.reshape(x, &[p.height(), width]);
        let rows = self.graph.select(x, 0, at);
        let rows = self.graph.fill(rows, beyond, 0.0);
        let mut sized: Vec<&Local> = indices.iter().collect();
        sized.push(&table);
        let dims = [p.shared, p.rest, p.columns].concat();
        let shape = extents(&Self::sizes(&dims, &sized));
        let val = self.graph.reshape(rows, &shape);
        self.write(&Named { val, dims }, &out);
        Ok(())
    }

    /// See [`meshwright_plan::Prim::ScatterAdd`]. Rows that this device does not hold are added as zeros, and of
    /// several additions to one row the backend does the first first, so that the sum is the same every time.
    pub(crate) fn scatter_add(&mut self, step: &Step, dims: &[Dim]) -> Result<(), LoweringError> {
        let (values, indices, out) = self.indexed(step, dims)?;
        if values.elements() == 0 || indices.iter().any(|i| i.elements() == 0) || out.elements() == 0 {
            self.write_number(0.0, &out);
            return Ok(());
        }
        let p = Positions::of(&out, dims, &indices)?;
        let call = self.index_call(&p, dims, [&out, &values]);
        if let Some(call) = call.and_then(|c| ScatterCall::new(c, out.dtype, &extents(&out.shape))) {
            self.record(call, std::iter::once(&values).chain(&indices), &[out]);
            return Ok(());
        }
        let mut x = self.read(&values);
        x.val = self.wide(x.val);
        // Dims that neither an index nor the result has are summed first.
        let has = |d: &Dim| out.at(*d).is_some() || indices.iter().any(|i| i.at(*d).is_some());
        for d in values.dims.iter().filter(|d| !has(d)) {
            let Some(axis) = x.dims.iter().position(|o| o == d) else { continue };
            x.val = self.graph.reduce(Reduce::Sum, x.val, axis);
            let mut shape = self.graph.shape(x.val).to_vec();
            shape.remove(axis);
            x.dims.remove(axis);
            x.val = self.graph.reshape(x.val, &extents(&shape));
        }
        let (at, beyond) = self.rows_named(&p);
        let all = [p.shared.as_slice(), &p.rest, &p.columns].concat();
        let mut sized: Vec<&Local> = indices.iter().collect();
        sized.push(&out);
        let sizes = Self::sizes(&all, &sized);
        let x = self.align(&x, &all);
        let x = self.graph.expand(x, &extents(&sizes));
        let width: usize = Self::sizes(&p.columns, &[&out]).iter().product();
        let count = sizes.iter().product::<usize>() / width;
        let x = self.graph.reshape(x, &[count, width]);
        let x = self.graph.fill(x, beyond, 0.0);
        let dtype = self.graph.dtype(x);
        let zeros = self.graph.full(&[p.height(), width], dtype, 0.0);
        let sum = self.graph.select_add(zeros, 0, at, x);
        let dims = [p.shared.as_slice(), dims, &p.columns].concat();
        let shape = Self::sizes(&dims, &[&out]);
        let val = self.graph.reshape(sum, &shape);
        self.write(&Named { val, dims }, &out);
        Ok(())
    }

    /// The first operand, the indices, and the result.
    fn indexed(&self, step: &Step, dims: &[Dim]) -> Result<(Local, Vec<Local>, Local), LoweringError> {
        let reads = step.reads.iter().map(|o| self.local(o)).collect::<Result<Vec<_>, _>>()?;
        let (Some((first, indices)), [out]) = (reads.split_first(), &step.writes[..]) else {
            return Err(LoweringError::Plan("an index without operands or result".into()));
        };
        let out = self.local(out)?;
        self.context.check_aligned(&reads.iter().chain([&out]).collect::<Vec<_>>(), dims)?;
        Ok((first.clone(), indices.to_vec(), out))
    }
}

impl Lower<'_> {
    /// See [`meshwright_plan::Prim::DynamicUpdateSlice`]. Rows of the value are selected for all positions; positions
    /// without a row keep their value.
    pub(crate) fn dynamic_update_slice(
        &mut self,
        step: &Step,
        [dim, from]: [Dim; 2],
        iteration: Option<Dim>,
    ) -> Result<(), LoweringError> {
        let ([all, value, start], [out]) = self.locals(step)?;
        self.context.check_aligned(&[&all, &value, &start, &out], &[])?;
        positions(&start)?;
        let whole = self.read(&all);
        let skipped = usize::from(iteration.is_some());
        if all.dims != out.dims || iteration.is_some_and(|of| out.dims.first() != Some(&of)) {
            return Err(LoweringError::Plan("dims of input and result differ".into()));
        }
        let (dims, shape) = (out.dims[skipped..].to_vec(), out.shape[skipped..].to_vec());
        let before = iteration.map_or(whole.val, |of| self.slice_of_iteration(of, whole.val, &shape));
        let before = Named { val: before, dims: dims.clone() };
        let (held, count) = (out.range(dim)?.clone(), value.range(from)?.len());
        let columns: Vec<Dim> =
            dims.iter().filter(|d| **d != dim && !start.dims.contains(d)).copied().collect();
        let rows = Self::sizes(&start.dims, &[&start]);
        let along = [start.dims.as_slice(), &[dim]].concat();
        let index = self.graph.count(along.len(), along.len() - 1, held.len(), held.start);
        let first = self.read(&start);
        let first = self.align(&first, &along);
        let index = Named { val: self.graph.sub(index, first), dims: along.clone() };
        let sizes = [rows.as_slice(), &[held.len()]].concat();
        let (at, other) = self.rows_at(&[(index, 0..count)], [&start.dims, &[dim]], &sizes);
        let taken = [start.dims.as_slice(), &[from], &columns].concat();
        let value_of = self.read(&value);
        let new = self.align(&value_of, &taken);
        let new = self.graph.expand(new, &extents(&Self::sizes(&taken, &[&value, &out])));
        let width: usize = Self::sizes(&columns, &[&out]).iter().product();
        let rows: usize = rows.iter().product();
        let new = self.graph.reshape(new, &[rows * count, width]);
        let new = self.graph.select(new, 0, at);
        let order = [along.as_slice(), &columns].concat();
        let old = self.align(&before, &order);
        let old = self.graph.reshape(old, &[rows * held.len(), width]);
        let made = self.graph.choose(other, old, new);
        let made = self.graph.reshape(made, &extents(&Self::sizes(&order, &[&out])));
        let made = self.align(&Named { val: made, dims: order }, &dims);
        let made = match iteration {
            Some(of) => self.update_of_iteration(of, [whole.val, made], &out.shape),
            None => made,
        };
        self.write_val(made, &out);
        Ok(())
    }
}

fn positions(index: &Local) -> Result<(), LoweringError> {
    if index.dtype == DType::I32 {
        return Ok(());
    }
    Err(LoweringError::Plan(format!("positions are {}", index.dtype)))
}
