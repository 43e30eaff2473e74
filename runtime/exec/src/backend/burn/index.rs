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

fn positions(index: &Local) -> Result<(), LoweringError> {
    if index.dtype == DType::I32 {
        return Ok(());
    }
    Err(LoweringError::Plan(format!("positions are {}", index.dtype)))
}
