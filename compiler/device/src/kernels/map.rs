//! What is known of an element-wise step when a Plan is loaded.

use super::random::{RandomBlock, can_be_drawn};
use super::scalar::ScalarProgram;
use crate::stored::stored_as;
use meshwright_plan::DType;
use meshwright_plan::expr::{Expr, Reg};
use std::ops::Range;

/// What a step reads.
#[derive(Clone, Debug)]
pub enum MapOperand {
    /// A tensor, and which of its dims each dim of the step is.
    Tensor { dtype: DType, dims: Vec<Option<usize>> },
    /// Truth values that the kernel draws, and which dim of the step each of theirs is.
    Drawn((RandomBlock, Vec<usize>)),
}

/// An element-wise step on one device.
#[derive(Clone, Debug)]
pub struct MapCall {
    pub program: ScalarProgram,
    /// Of the device's block of each dim, and where it begins.
    pub sizes: Vec<usize>,
    pub starts: Vec<usize>,
    pub operands: Vec<MapOperand>,
    /// Of the results; all have all dims.
    pub outputs: Vec<DType>,
    /// For each result the operands in whose place it can be, counted among tensors, the best first.
    pub over: Vec<Vec<usize>>,
    /// The half type of what is read and written.
    pub half: Option<DType>,
}

impl MapCall {
    /// None where there is no kernel for it.
    pub fn new(
        (expr, regs): (&Expr, &[Reg]),
        space: &[Range<usize>],
        operands: Vec<MapOperand>,
        outputs: Vec<DType>,
    ) -> Option<MapCall> {
        let known = |dtype: &DType| !dtype.is_pair() && *dtype != DType::F64;
        let read = operands.iter().all(|operand| match operand {
            MapOperand::Tensor { dtype, .. } => known(dtype),
            MapOperand::Drawn((kernel, _)) => can_be_drawn(kernel.distribution()),
        });
        if !read || !outputs.iter().all(known) {
            return None;
        }
        let half = expr.nodes.iter().map(|n| n.dtype).find(|dtype| dtype.is_half());
        // Positions are counted in 32 bits.
        if space.iter().any(|range| i32::try_from(range.end).is_err()) {
            return None;
        }
        Some(MapCall {
            program: ScalarProgram::of_several(expr, regs, half.unwrap_or(DType::BF16))?,
            sizes: space.iter().map(ExactSizeIterator::len).collect(),
            starts: space.iter().map(|range| range.start).collect(),
            over: alike(space.len(), &operands, &outputs),
            operands,
            outputs,
            half,
        })
    }

    /// How many of the operands are tensors.
    pub fn tensors(&self) -> usize {
        self.operands.iter().filter(|o| matches!(o, MapOperand::Tensor { .. })).count()
    }

    /// The same where a Plan hands the storage of operands to results: pairs of an operand, counted among tensors, and a result.
    pub fn with_donations(mut self, donations: &[(usize, usize)]) -> MapCall {
        prefer(&mut self.over, donations);
        self
    }
}

/// Puts first, of the operands in whose place each result can be, the one whose storage a Plan hands to it, and leaves it to that alone.
pub fn prefer(over: &mut [Vec<usize>], donations: &[(usize, usize)]) {
    for (result, over) in over.iter_mut().enumerate() {
        over.retain(|i| !donations.iter().any(|(from, to)| from == i && *to != result));
        over.sort_by_key(|i| !donations.contains(&(*i, result)));
    }
}

/// For each result the operands, of those that are tensors, that are alike.
fn alike(dims: usize, operands: &[MapOperand], outputs: &[DType]) -> Vec<Vec<usize>> {
    let tensors = operands.iter().filter_map(|operand| match operand {
        MapOperand::Tensor { dtype, dims } => Some((dtype, dims)),
        MapOperand::Drawn(_) => None,
    });
    let whole: Vec<Option<DType>> =
        tensors.map(|(dtype, of)| of.iter().copied().eq((0..dims).map(Some)).then_some(*dtype)).collect();
    let over = |out: &DType| {
        let fits = |i: &usize| whole[*i].is_some_and(|dtype| stored_as(dtype) == stored_as(*out));
        (0..whole.len()).filter(fits).collect()
    };
    outputs.iter().map(over).collect()
}
