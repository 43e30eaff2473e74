//! Reading and adding by index: lookups and their transpose.

use super::data::Element;
use super::half_types::Half;
use super::strided_walk::{Walk, copy_strided};
use super::{Access, Along, KernelError, Slice, SliceMut, par};
use meshwright_plan::DType;

impl Along {
    /// Position of a global index relative to the operand's start, if this device holds it.
    #[inline(always)]
    fn position(&self, index: i32) -> Option<usize> {
        let local = usize::try_from(index).ok()?.checked_sub(self.start)?;
        (local < self.len).then_some(local * self.stride)
    }

    /// Elements that an operand must have which has `reach` of them at position 0.
    fn reach(&self, reach: usize) -> usize {
        if reach == 0 {
            0
        } else {
            reach.saturating_add(self.len.saturating_sub(1).saturating_mul(self.stride))
        }
    }
}

fn indices(a: &Access) -> Result<(), KernelError> {
    if a.dtype == DType::I32 {
        return Ok(());
    }
    Err(KernelError::DType { expected: DType::I32, found: a.dtype })
}

/// A prepared lookup: `out[i] = table[along = index[i], i]`, and 0 where this device does not hold the index.
#[derive(Clone, Debug)]
pub struct LookupKernel {
    dtype: DType,
    /// Strides of the table, then of the index.
    walk: Walk,
    along: Along,
    total: usize,
    reach: [usize; 2],
}

impl LookupKernel {
    /// Prepares for an output that is dense over `shape`. `table` has stride 0 along the index's own dims; the dim that is
    /// looked up is `along`. The index is `I32`.
    ///
    /// # Errors
    /// If a stride is missing or the index is of another dtype.
    pub fn new(
        shape: &[usize],
        table: &Access,
        along: Along,
        index: &Access,
    ) -> Result<LookupKernel, KernelError> {
        indices(index)?;
        let held = if along.len == 0 { 0 } else { along.reach(table.reach(shape)) };
        Ok(LookupKernel {
            dtype: table.dtype,
            walk: Walk::new(shape, &[table, index])?,
            along,
            total: shape.iter().product(),
            reach: [held, index.reach(shape)],
        })
    }

    /// Looks up.
    ///
    /// # Errors
    /// If dtypes or lengths of the operands are not what was prepared for.
    pub fn run(&self, table: Slice<'_>, index: Slice<'_>, out: SliceMut<'_>) -> Result<(), KernelError> {
        super::check_in(&table, self.dtype, self.reach[0])?;
        super::check_in(&index, DType::I32, self.reach[1])?;
        super::check_out(&out, self.dtype, self.total)?;
        let Slice::I32(index) = index else { return Ok(()) };
        match (table, out) {
            (Slice::F64(t), SliceMut::F64(o)) => self.look_up(t, index, o),
            (Slice::F32(t), SliceMut::F32(o)) => self.look_up(t, index, o),
            (Slice::BF16(t), SliceMut::BF16(o)) => self.look_up(t, index, o),
            (Slice::F16(t), SliceMut::F16(o)) => self.look_up(t, index, o),
            (Slice::I32(t), SliceMut::I32(o)) => self.look_up(t, index, o),
            (Slice::U8(t) | Slice::Bool(t), SliceMut::U8(o) | SliceMut::Bool(o)) => self.look_up(t, index, o),
            (Slice::PairF32(t), SliceMut::PairF32(o)) => self.look_up(t, index, o),
            (Slice::PairF64(t), SliceMut::PairF64(o)) => self.look_up(t, index, o),
            _ => {}
        }
        Ok(())
    }

    fn look_up<T: Element>(&self, table: &[T], index: &[i32], out: &mut [T]) {
        if out.is_empty() {
            return;
        }
        let inner = self.walk.inner();
        let (step, index_step) = (self.walk.inner_stride(0), self.walk.inner_stride(1));
        par::parts(out, inner, 1, &|base, part| {
            let first = base / inner;
            self.walk.each_row(first..first + part.len() / inner, |row, [at, i]| {
                let out = &mut part[(row - first) * inner..][..inner];
                if index_step == 0 {
                    match self.along.position(index[i]) {
                        Some(p) => copy_strided(out, table, at + p, step),
                        None => out.fill(T::default()),
                    }
                } else {
                    for (j, out) in out.iter_mut().enumerate() {
                        let p = self.along.position(index[i + j * index_step]);
                        *out = p.map_or(T::default(), |p| table[at + j * step + p]);
                    }
                }
            });
        });
    }
}

/// A prepared scatter: `out = 0`, then `out[along = index[i], i] += values[i]` in ascending order of `i`; what this device
/// does not hold is dropped.
#[derive(Clone, Debug)]
pub struct ScatterAddKernel {
    dtype: DType,
    /// Strides of the values, of the index, then of the output.
    walk: Walk,
    along: Along,
    reach: [usize; 3],
    /// The output is rows of `along`, so that parts of it can be worked on apart.
    by_rows: bool,
}

impl ScatterAddKernel {
    /// Prepares for the iteration `shape`, which has all dims of the values. `out` has stride 0 along dims that are summed;
    /// the dim that is scattered to is `along`. Values are floats or `I32`; the index is `I32`.
    ///
    /// # Errors
    /// If a stride is missing or a dtype is another.
    pub fn new(
        shape: &[usize],
        values: &Access,
        index: &Access,
        out: &Access,
        along: Along,
    ) -> Result<ScatterAddKernel, KernelError> {
        indices(index)?;
        // Sums of half types are `f32`.
        if values.dtype.wide() != out.dtype {
            return Err(KernelError::DType { expected: values.dtype, found: out.dtype });
        }
        if !values.dtype.is_float() && values.dtype != DType::I32 {
            return Err(KernelError::Unsupported(format!("a sum of {}", values.dtype)));
        }
        let one = out.reach(shape);
        Ok(ScatterAddKernel {
            dtype: values.dtype,
            walk: Walk::new(shape, &[values, index, out])?,
            along,
            reach: [
                values.reach(shape),
                index.reach(shape),
                if along.len == 0 { 0 } else { along.reach(one) },
            ],
            by_rows: along.stride > 0 && one <= along.stride,
        })
    }

    /// Adds up. The output may be longer than what is reached: all of it is set to 0 first.
    ///
    /// # Errors
    /// If dtypes or lengths of the operands are not what was prepared for.
    pub fn run(&self, values: Slice<'_>, index: Slice<'_>, out: SliceMut<'_>) -> Result<(), KernelError> {
        super::check_in(&values, self.dtype, self.reach[0])?;
        super::check_in(&index, DType::I32, self.reach[1])?;
        super::check_in(&out.as_slice(), self.dtype.wide(), self.reach[2])?;
        let Slice::I32(index) = index else { return Ok(()) };
        match (values, out) {
            (Slice::F64(v), SliceMut::F64(o)) => self.add(v, index, o, |a, b| a + b),
            (Slice::F32(v), SliceMut::F32(o)) => self.add(v, index, o, |a, b| a + b),
            (Slice::BF16(v), SliceMut::F32(o)) => self.add(v, index, o, |a, b| a + b.wide()),
            (Slice::F16(v), SliceMut::F32(o)) => self.add(v, index, o, |a, b| a + b.wide()),
            (Slice::I32(v), SliceMut::I32(o)) => self.add(v, index, o, i32::wrapping_add),
            _ => {}
        }
        Ok(())
    }

    fn add<V: Element, T: Element>(
        &self,
        values: &[V],
        index: &[i32],
        out: &mut [T],
        plus: impl Fn(T, V) -> T + Sync,
    ) {
        let work = |first: usize, part: &mut [T]| {
            part.fill(T::default());
            self.add_part(values, index, first, part, &plus);
        };
        let rows = self.walk.rows() * self.walk.inner();
        if self.by_rows && !out.is_empty() {
            // Each part goes through all indices, so parts are worth their while only if values outweigh those.
            par::parts(out, self.along.stride, rows / out.len() + 1, &work);
        } else {
            work(0, out);
        }
    }

    /// Adds what belongs to `part`, which begins at element `first` of the output.
    fn add_part<V: Element, T: Element>(
        &self,
        values: &[V],
        index: &[i32],
        first: usize,
        part: &mut [T],
        plus: &impl Fn(T, V) -> T,
    ) {
        let inner = self.walk.inner();
        let [vs, is, os] = [0, 1, 2].map(|k| self.walk.inner_stride(k));
        self.walk.each_row(0..self.walk.rows(), |_, [v, i, o]| {
            if is == 0 {
                let Some(p) = self.along.position(index[i]) else { return };
                // Parts are whole rows of `along`, so a row of values is in one part or in none.
                let Some(at) = (o + p).checked_sub(first).filter(|at| *at < part.len()) else { return };
                if vs == 1 && os == 1 {
                    let out = part[at..at + inner].iter_mut();
                    out.zip(&values[v..v + inner]).for_each(|(o, v)| *o = plus(*o, *v));
                } else {
                    for j in 0..inner {
                        let out = &mut part[at + j * os];
                        *out = plus(*out, values[v + j * vs]);
                    }
                }
            } else {
                for j in 0..inner {
                    let Some(p) = self.along.position(index[i + j * is]) else { continue };
                    let at = (o + j * os + p).wrapping_sub(first);
                    if let Some(out) = part.get_mut(at) {
                        *out = plus(*out, values[v + j * vs]);
                    }
                }
            }
        });
    }
}
