//! Steps whose kernels know no `bf16`: which operands are read and written as `f32` copies instead.

use meshwright_plan::{Operand, StepKind};

/// The operands of a step whose kernel computes in `f32` alone; empty for all others.
pub(crate) fn operands(kind: &mut StepKind) -> Vec<&mut Operand> {
    match kind {
        StepKind::Softmax { input, out, .. }
        | StepKind::LogSumExp { input, out, .. }
        | StepKind::CumSum { input, out, .. }
        | StepKind::TopK { input, out, .. }
        | StepKind::Pool { input, out, .. }
        | StepKind::ArgmaxPool { input, out, .. } => vec![input, out],
        StepKind::CrossEntropy { logits, label, out, .. } => vec![logits, label, out],
        StepKind::CrossEntropyGrad { logits, label, scale, out, .. } => vec![logits, label, scale, out],
        StepKind::Convolve { x, w, y, .. } => vec![x, w, y],
        StepKind::Unpool { tap, values, out, .. } => vec![tap, values, out],
        StepKind::Random { out, .. } => vec![out],
        StepKind::Map { .. }
        | StepKind::Contract { .. }
        | StepKind::Reduce { .. }
        | StepKind::Lookup { .. }
        | StepKind::ScatterAdd { .. }
        | StepKind::Shift { .. }
        | StepKind::Concat { .. }
        | StepKind::SplitDim { .. }
        | StepKind::MergeDims { .. }
        | StepKind::Copy(_)
        | StepKind::Collective(_)
        | StepKind::Wait { .. } => Vec::new(),
    }
}
