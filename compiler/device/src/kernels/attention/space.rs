//! The dims of an attention's scores as kernels count them: first the outer ones, each position of which is an
//! attention of its own, then the rows, which are the queries, then the keys.

use super::super::random::RandomBlock;
use crate::error::LoweringError;
use crate::lowering::local::{DeviceContext, Local};
use meshwright_plan::expr::Scalar;
use meshwright_plan::{AttentionSpec, Computed, DType, Dim, Drawn};
use std::ops::Range;

/// The dims of scores in that order, with the device's block of each.
pub struct AttentionSpace {
    /// Outer dims, dims of queries, dim of keys.
    pub dims: Vec<Dim>,
    /// Interval of each dim that the device holds, in positions of the global tensor.
    pub ranges: Vec<Range<usize>>,
    outer: usize,
}

impl AttentionSpace {
    /// Dims of an attention with these keys and values.
    ///
    /// # Errors
    /// If none of `reads`, the operands, has a dim of the scores.
    pub fn of(
        spec: &AttentionSpec,
        keys: &Local,
        values: Option<&Local>,
        reads: &[Local],
    ) -> Result<AttentionSpace, LoweringError> {
        let beside = |d: &Dim| keys.at(*d).is_some() || values.is_some_and(|v| v.at(*d).is_some());
        let queries: Vec<Dim> = spec.space.iter().copied().filter(|d| *d != spec.key).collect();
        let (outer, rows): (Vec<Dim>, Vec<Dim>) = queries.into_iter().partition(beside);
        let dims: Vec<Dim> = [outer.as_slice(), &rows, &[spec.key]].concat();
        let found = |d: &Dim| reads.iter().find_map(|l| l.range(*d).ok().cloned());
        let ranges = dims
            .iter()
            .map(|d| found(d).ok_or_else(|| LoweringError::Plan(format!("no operand has the dim {}", d.0))))
            .collect::<Result<_, _>>()?;
        Ok(AttentionSpace { dims, ranges, outer: outer.len() })
    }

    /// The dims that keys or values have.
    pub fn outer(&self) -> &[Dim] {
        &self.dims[..self.outer]
    }

    /// The other dims of queries.
    pub fn rows(&self) -> &[Dim] {
        &self.dims[self.outer..self.dims.len() - 1]
    }

    /// Group of a dim.
    fn place(&self, dim: Dim) -> usize {
        self.dims.iter().position(|d| *d == dim).unwrap_or(0)
    }

    /// Number of positions of a dim that the device holds.
    pub fn size(&self, dim: Dim) -> usize {
        self.ranges[self.place(dim)].len()
    }

    /// An expression whose indices count the dims in this order.
    pub fn renumbered(&self, of: &Computed, spec: &AttentionSpec) -> Computed {
        let mut of = of.clone();
        for n in &mut of.expr.nodes {
            if let Scalar::Index(k) = &mut n.scalar
                && let Some(dim) = spec.space.get(usize::from(*k))
            {
                *k = self.place(*dim) as u16;
            }
        }
        of
    }

    /// The block of random values of this device, with the dim of the scores for each of its dims.
    pub fn draw(
        &self,
        context: &DeviceContext<'_>,
        drawn: &Drawn,
        like: &Local,
    ) -> Result<(RandomBlock, Vec<usize>), LoweringError> {
        let places: Vec<usize> = drawn.dims.iter().map(|d| self.place(*d)).collect();
        let ranges: Vec<Range<usize>> = places.iter().map(|i| self.ranges[*i].clone()).collect();
        let shape = ranges.iter().map(ExactSizeIterator::len).collect();
        let whole = Local { dims: drawn.dims.clone(), ranges: ranges.clone(), shape, ..like.clone() };
        let sizes = context.plan.dims.shape(&drawn.dims);
        let random = RandomBlock::new(&drawn.stream, drawn.distribution, DType::Bool, &sizes, &ranges)?
            .of_examples(context.examples_of(&whole))
            .in_parts(context.parts_of(&whole))
            .in_order(&drawn.dims, &context.plan.dims);
        Ok((random, places))
    }
}
