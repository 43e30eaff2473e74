//! Lookups in tables, and their transpose.
//!
//! Dims that index and table share are counted with the looked-up dim, so that both steps are a selection of rows of a
//! matrix.

use super::lower::{Lower, Named};
use crate::engine::context::Local;
use crate::engine::graph::Val;
use crate::engine::lowering::{LoweringError, extents};
use crate::engine::ops::{Binary, Reduce};
use burn_backend::DType as BurnType;
use meshwright_plan::{DType, Dim, Step};
use std::ops::Range;

impl Lower<'_> {
    /// Rows of a matrix of `shared` times `held` rows that indices over `[shared, rest]` name, and whether each of them is
    /// one that this device does not hold (its row is then one that it has).
    fn rows_named(
        &mut self,
        index: &Named,
        shared: &[Dim],
        rest: &[Dim],
        sizes: &[usize],
        held: &Range<usize>,
    ) -> (Val, Val) {
        let at = self.align(index, &[shared, rest].concat());
        let at = self.convert(at, BurnType::I32);
        let e = &mut self.graph;
        let (under, over) =
            (e.scalar(Binary::Lt, at, held.start as f64), e.scalar(Binary::Ge, at, held.end as f64));
        let beyond = e.binary(Binary::Or, under, over);
        let at = e.scalar(Binary::Sub, at, held.start as f64);
        let mut at = e.fill(at, beyond, 0.0);
        if !shared.is_empty() {
            let count: usize = sizes.iter().product();
            let mut shape = sizes.to_vec();
            shape.resize(shared.len() + rest.len(), 1);
            let base = e.table(&shape, (0..count).map(|i| (i * held.len()) as i32).collect());
            at = e.add(at, base);
        }
        let n: usize = e.shape(at).iter().product();
        (e.reshape(at, &[n]), e.reshape(beyond, &[n, 1]))
    }

    /// See [`meshwright_plan::Prim::Lookup`].
    pub(super) fn lookup(&mut self, step: &Step, dim: Dim) -> Result<(), LoweringError> {
        let ([table, index], [out]) = self.locals(step)?;
        self.context.check_aligned(&[&table, &index, &out], &[dim])?;
        positions(&index)?;
        let held = table.range(dim)?.clone();
        if table.elements() == 0 {
            self.write_number(0.0, &out);
            return Ok(());
        }
        let shared: Vec<Dim> = index.dims.iter().filter(|d| table.at(**d).is_some()).copied().collect();
        let rest: Vec<Dim> = index.dims.iter().filter(|d| table.at(**d).is_none()).copied().collect();
        let columns: Vec<Dim> =
            table.dims.iter().filter(|d| **d != dim && !shared.contains(d)).copied().collect();
        let sizes = Self::sizes(&shared, &[&index]);
        let named = self.read(&index);
        let (at, beyond) = self.rows_named(&named, &shared, &rest, &sizes, &held);
        let x = self.read(&table);
        let x = self.align(&x, &[shared.as_slice(), &[dim], &columns].concat());
        let width: usize = Self::sizes(&columns, &[&table]).iter().product();
        let height = sizes.iter().product::<usize>() * held.len();
        let x = self.graph.reshape(x, &[height, width]);
        let rows = self.graph.select(x, 0, at);
        let rows = self.graph.fill(rows, beyond, 0.0);
        let dims = [shared, rest, columns].concat();
        let shape = extents(&Self::sizes(&dims, &[&index, &table]));
        let val = self.graph.reshape(rows, &shape);
        self.write(&Named { val, dims }, &out);
        Ok(())
    }

    /// See [`meshwright_plan::Prim::ScatterAdd`]. Rows that this device does not hold are added as zeros, and of
    /// several additions to one row the backend does the first first, so that the sum is the same every time.
    pub(super) fn scatter_add(&mut self, step: &Step, dim: Dim) -> Result<(), LoweringError> {
        let ([values, index], [out]) = self.locals(step)?;
        self.context.check_aligned(&[&values, &index, &out], &[dim])?;
        positions(&index)?;
        let held = out.range(dim)?.clone();
        if values.elements() == 0 || index.elements() == 0 {
            self.write_number(0.0, &out);
            return Ok(());
        }
        let shared: Vec<Dim> = index.dims.iter().filter(|d| out.at(**d).is_some()).copied().collect();
        let rest: Vec<Dim> = index.dims.iter().filter(|d| out.at(**d).is_none()).copied().collect();
        let columns: Vec<Dim> =
            out.dims.iter().filter(|d| **d != dim && !shared.contains(d)).copied().collect();
        let mut x = self.read(&values);
        x.val = self.wide(x.val);
        // What neither the index nor the result has is summed before.
        for d in values.dims.iter().filter(|d| index.at(**d).is_none() && out.at(**d).is_none()) {
            let Some(axis) = x.dims.iter().position(|o| o == d) else { continue };
            x.val = self.graph.reduce(Reduce::Sum, x.val, axis);
            let mut shape = self.graph.shape(x.val).to_vec();
            shape.remove(axis);
            x.dims.remove(axis);
            x.val = self.graph.reshape(x.val, &extents(&shape));
        }
        let sizes = Self::sizes(&shared, &[&index]);
        let named = self.read(&index);
        let (at, beyond) = self.rows_named(&named, &shared, &rest, &sizes, &held);
        let dims = [shared.as_slice(), &rest, &columns].concat();
        let all = Self::sizes(&dims, &[&index, &out]);
        let x = self.align(&x, &dims);
        let x = self.graph.expand(x, &extents(&all));
        let width: usize = Self::sizes(&columns, &[&out]).iter().product();
        let count = all.iter().product::<usize>() / width;
        let x = self.graph.reshape(x, &[count, width]);
        let x = self.graph.fill(x, beyond, 0.0);
        let height = sizes.iter().product::<usize>() * held.len();
        let dtype = self.graph.dtype(x);
        let zeros = self.graph.full(&[height, width], dtype, 0.0);
        let sum = self.graph.select_add(zeros, 0, at, x);
        let dims = [shared.as_slice(), &[dim], &columns].concat();
        let shape = Self::sizes(&dims, &[&out]);
        let val = self.graph.reshape(sum, &shape);
        self.write(&Named { val, dims }, &out);
        Ok(())
    }
}

impl Lower<'_> {
    /// See [`meshwright_plan::Prim::DynamicUpdateSlice`]. Rows of the value are selected for all positions, and what is there stays where
    /// a position has none.
    pub(super) fn dynamic_update_slice(
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
        let (at, other) = self.rows_named(&index, &start.dims, &[dim], &rows, &(0..count));
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
