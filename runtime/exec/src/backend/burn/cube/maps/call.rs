//! What is known of an element-wise step when a Plan is loaded.

use super::super::drawn::can_be_drawn;
use super::super::program::ScalarProgram;
use crate::kernels::RandomKernel;
use meshwright_plan::DType;
use meshwright_plan::expr::{Expr, Reg};
use std::ops::Range;

/// What a step reads.
#[derive(Clone, Debug)]
pub(crate) enum MapOperand {
    /// A tensor, and which of its dims each dim of the step is.
    Tensor { dtype: DType, dims: Vec<Option<usize>> },
    /// Truth values that the kernel draws, and which dim of the step each of theirs is.
    Drawn((RandomKernel, Vec<usize>)),
}

/// An element-wise step on one device.
#[derive(Clone, Debug)]
pub(crate) struct MapCall {
    pub(super) program: ScalarProgram,
    /// Of the device's block of each dim, and where it begins.
    pub(super) sizes: Vec<usize>,
    pub(super) starts: Vec<usize>,
    pub(super) operands: Vec<MapOperand>,
    /// Of the results; all have all dims.
    pub(super) outputs: Vec<DType>,
    /// The half type of what is read and written.
    pub(super) half: Option<DType>,
}

impl MapCall {
    /// None where there is no kernel for it.
    pub(crate) fn new(
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
            operands,
            outputs,
            half,
        })
    }
}
