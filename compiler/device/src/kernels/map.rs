//! Descriptions of element-wise kernels.

use super::call::KernelCall;
use super::random::RandomBlock;
use super::result::{GivenResult, ResultMemory};
use super::scalar::ScalarProgram;
use crate::stored::stored_as;
use burn_ir::TensorIr;
use meshwright_plan::DType;
use meshwright_plan::expr::{Expr, Reg};
use meshwright_sorted::SortedSet;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// An operand of an element-wise step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum MapOperand {
    /// A tensor.
    Tensor {
        /// Dtype of the elements.
        dtype: DType,
        /// Index of its dim for each dim of the step; none if it lacks the dim.
        dims: Vec<Option<usize>>,
    },
    /// Truth values that the kernel draws, with the dim of the step for each of their dims.
    Drawn((RandomBlock, Vec<usize>)),
}

/// An element-wise step on one device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MapCall {
    /// Function that computes each element of the results.
    pub program: ScalarProgram,
    /// Size of the device's block along each dim.
    pub sizes: Vec<usize>,
    /// Global position at which the block begins along each dim.
    pub starts: Vec<usize>,
    /// Operands, in the order in which the program loads them.
    pub operands: Vec<MapOperand>,
    /// Dtype of each result. Each result has all dims.
    pub outputs: Vec<DType>,
    /// Operands that may donate their storage to each result, as indices among tensors, the best first.
    pub over: Vec<Vec<usize>>,
    /// The half type of operands and results; none if the step has none.
    pub half: Option<DType>,
    /// Whether long rows of results may have gaps between them.
    pub gaps: bool,
}

/// Element-wise steps that do not depend on each other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MapCalls(pub Vec<MapCall>);

impl KernelCall for MapCalls {
    const NAME: &'static str = "map";
    const BY_ELEMENTS: bool = true;

    /// Steps are one kernel where they share a signature.
    fn starts(&self) -> u64 {
        self.0.iter().map(|c| c.half).collect::<SortedSet<_>>().len() as u64
    }

    fn result_memory(&self, _: &[TensorIr]) -> ResultMemory {
        let (mut first, mut all) = (0, vec![]);
        for call in &self.0 {
            let result = |over: &Vec<usize>| GivenResult {
                over: over.iter().map(|i| first + i).collect(),
                gaps: call.gaps,
                alike: false,
            };
            all.extend(call.over.iter().map(result));
            first += call.tensors();
        }
        ResultMemory::Given(all)
    }
}

impl MapCall {
    /// Describes a step on the block `space`; none if there is no kernel for it.
    pub fn new(
        (expr, regs): (&Expr, &[Reg]),
        space: &[Range<usize>],
        operands: Vec<MapOperand>,
        outputs: Vec<DType>,
    ) -> Option<MapCall> {
        let known = |dtype: &DType| !dtype.is_pair() && *dtype != DType::F64;
        let read = operands.iter().all(|operand| match operand {
            MapOperand::Tensor { dtype, .. } => known(dtype),
            MapOperand::Drawn((kernel, _)) => kernel.can_be_drawn(),
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
            gaps: true,
        })
    }

    /// Number of operands that are tensors.
    pub fn tensors(&self) -> usize {
        self.operands.iter().filter(|o| matches!(o, MapOperand::Tensor { .. })).count()
    }

    /// Applies the donations of a Plan: pairs of an operand, as an index among tensors, and the result that takes its storage.
    pub fn with_donations(mut self, donations: &[(usize, usize)]) -> MapCall {
        prefer(&mut self.over, donations);
        self
    }
}

/// Moves the operand whose storage a Plan donates to a result to the front of the result's list, and drops it from the lists of
/// other results.
pub(crate) fn prefer(over: &mut [Vec<usize>], donations: &[(usize, usize)]) {
    for (result, over) in over.iter_mut().enumerate() {
        over.retain(|i| !donations.iter().any(|(from, to)| from == i && *to != result));
        over.sort_by_key(|i| !donations.contains(&(*i, result)));
    }
}

/// The tensor operands of the same dtype and layout, for each result.
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
