//! What is known of a fold when a Plan is loaded.

use super::scalar::ScalarProgram;
use meshwright_plan::expr::Expr;
use meshwright_plan::{Computed, DType, Monoid};

/// A tensor that is read: which of its dims each dim of the fold is.
#[derive(Clone, Debug)]
pub struct FoldOperand {
    pub dtype: DType,
    pub dims: Vec<Option<usize>>,
}

/// A fold on one device. Its dims are those of the result, then those that are folded.
#[derive(Clone, Debug)]
pub struct FoldCall {
    pub program: ScalarProgram,
    pub monoid: Monoid,
    /// Of the device's block of each dim, and how many dims the result has.
    pub sizes: Vec<usize>,
    pub kept: usize,
    pub operands: Vec<FoldOperand>,
    pub output: DType,
    /// The half type of what is read and written.
    pub half: Option<DType>,
}

impl FoldCall {
    /// The sum of results in `f32` of so many chunks, which lie one after the other; each has the shape of the result.
    pub fn sum_of_chunks(chunks: usize, shape: &[usize], dtype: DType) -> Option<FoldCall> {
        let (expr, regs) = Expr::of_operands([DType::F32]);
        let dims = (1..=shape.len()).chain([0]).map(Some).collect();
        let operand = FoldOperand { dtype: DType::F32, dims };
        let sizes = [shape, &[chunks]].concat();
        let of = Computed { expr, reg: regs[0] };
        FoldCall::new(&of, Monoid::Sum, (sizes, shape.len()), vec![operand], dtype)
    }

    /// Of an expression that knows no positions; none where there is no kernel for it.
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
