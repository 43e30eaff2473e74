//! Descriptions of reductions.

use super::scalar::ScalarProgram;
use meshwright_plan::expr::Expr;
use meshwright_plan::{Computed, DType, Monoid};

/// A tensor that a fold reads.
#[derive(Clone, Debug)]
pub struct FoldOperand {
    /// Dtype of the elements.
    pub dtype: DType,
    /// Index of its dim for each dim of the fold; none if it lacks the dim.
    pub dims: Vec<Option<usize>>,
}

/// A fold on one device. Its dims are the dims of the result, then the reduced ones.
#[derive(Clone, Debug)]
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
}
