//! Descriptions of reductions.

use super::call::KernelCall;
use super::fold_blocks::FoldBlocks;
use super::merged_dims::JointWalk;
use super::scalar::ScalarProgram;
use meshwright_plan::expr::Expr;
use meshwright_plan::{Computed, DType, Monoid};
use meshwright_sorted::SortedSet;
use serde::{Deserialize, Serialize};

/// A tensor that a fold reads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FoldOperand {
    /// Dtype of the elements.
    pub dtype: DType,
    /// Index of its dim for each dim of the fold; none if it lacks the dim.
    pub dims: Vec<Option<usize>>,
}

/// A fold on one device. Its dims are the dims of the result, then the reduced ones.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FoldCall {
    /// Function of the operands that computes each reduced element.
    pub program: ScalarProgram,
    /// The reduction.
    pub monoid: Monoid,
    /// Size of the device's block along each dim.
    pub sizes: Vec<usize>,
    /// Number of dims of the result.
    pub kept: usize,
    /// Operands, in the order in which the program loads them.
    pub operands: Vec<FoldOperand>,
    /// Dtype of the result.
    pub output: DType,
    /// The half type of operands and result; none if neither has one.
    pub half: Option<DType>,
}

/// Folds that do not depend on each other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FoldCalls(pub Vec<FoldCall>);

impl KernelCall for FoldCalls {
    const NAME: &'static str = "fold";
    const BY_ELEMENTS: bool = true;

    /// One for each signature, and another for the results of chunks.
    fn starts(&self) -> u64 {
        let cut = |c: &FoldCall| if c.is_cut() { DType::F32 } else { c.output };
        let first = self.0.iter().map(|c| (c.half, cut(c)));
        let second = self.0.iter().filter(|c| c.is_cut()).map(|c| (c.half, c.output));
        let many = |of: SortedSet<(Option<DType>, DType)>| of.len() as u64;
        many(first.collect()) + many(second.collect())
    }
}

impl FoldCall {
    /// The sum of the `f32` results of chunks, which are contiguous; each has the shape of the result.
    pub fn sum_of_chunks(chunks: usize, shape: &[usize], dtype: DType) -> Option<FoldCall> {
        let (expr, regs) = Expr::of_operands([DType::F32]);
        let dims = (1..=shape.len()).chain([0]).map(Some).collect();
        let operand = FoldOperand { dtype: DType::F32, dims };
        let sizes = [shape, &[chunks]].concat();
        let of = Computed { expr, reg: regs[0] };
        FoldCall::new(&of, Monoid::Sum, (sizes, shape.len()), vec![operand], dtype)
    }

    /// Describes the fold of an expression without positions; none if there is no kernel for it.
    pub fn new(
        computed: &Computed,
        monoid: Monoid,
        (sizes, kept): (Vec<usize>, usize),
        operands: Vec<FoldOperand>,
        output: DType,
    ) -> Option<FoldCall> {
        let float = |dtype: DType| dtype == DType::F32 || dtype.is_half();
        let known = |o: &FoldOperand| !o.dtype.is_pair() && o.dtype != DType::F64;
        let folds = matches!(monoid, Monoid::Sum | Monoid::Max | Monoid::Min);
        let of = computed.expr.nodes.get(usize::from(computed.reg))?.dtype;
        if !folds || !float(of) || !float(output) || !operands.iter().all(known) || sizes.contains(&0) {
            return None;
        }
        let dtypes = || computed.expr.nodes.iter().map(|n| n.dtype).chain([output]);
        let half = dtypes().find(|dtype| dtype.is_half());
        if dtypes().any(|dtype| dtype.is_half() && Some(dtype) != half) {
            return None;
        }
        let program = ScalarProgram::of(computed, half.unwrap_or(DType::BF16))?;
        if program.has_positions() {
            return None;
        }
        Some(FoldCall { program, monoid, sizes, kept, operands, output, half })
    }

    /// Whether the fold is split into chunks, whose results a second kernel folds: if operands have no gaps, and are
    /// read in vectors.
    pub fn is_cut(&self) -> bool {
        let strides: Vec<Vec<u64>> = self.operands.iter().map(|o| self.strides(o)).collect();
        let (kept, walk) = JointWalk::of_folds(&self.sizes, self.kept, &strides);
        let rank = walk.sizes.len();
        let dense = |along: usize| walk.sizes[along] > 1 && walk.strides.iter().any(|s| s[along] == 1);
        let along = if !dense(rank - 1) && dense(kept - 1) { kept - 1 } else { rank - 1 };
        let widest = self.operands.iter().map(|o| 16 / o.dtype.bytes()).min().unwrap_or(1);
        let width = (1..=widest.min(8)).rev().find(|w| walk.sizes[along].is_multiple_of(*w)).unwrap_or(1);
        let of = |sizes: &[usize]| sizes.iter().product::<usize>();
        let (mut results, mut steps) = (of(&walk.sizes[..kept]), of(&walk.sizes[kept..]));
        *(if along >= kept { &mut steps } else { &mut results }) /= width;
        FoldBlocks::of(results, steps, along >= kept).chunks > 1
    }

    /// Distances along the dims of the fold, in an operand without gaps.
    fn strides(&self, operand: &FoldOperand) -> Vec<u64> {
        let size = |of: usize| operand.dims.iter().position(|d| *d == Some(of)).map_or(1, |k| self.sizes[k]);
        let rank = operand.dims.iter().flatten().max().map_or(0, |last| last + 1);
        let stride = |d: &Option<usize>| d.map_or(0, |d| (d + 1..rank).map(size).product::<usize>() as u64);
        operand.dims.iter().map(stride).collect()
    }
}
