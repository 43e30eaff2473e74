//! Folds of scalar expressions.

use super::Reference;
use super::scalar::{computed, joined, nothing};
use super::values::positions;
use meshwright_device::KernelError;
use meshwright_device::kernels::call::Computes;
use meshwright_device::kernels::fold::FoldCalls;

impl Computes<FoldCalls> for Reference<'_> {
    fn compute(self, calls: &FoldCalls) -> Result<(), KernelError> {
        let Reference { inputs, outputs, .. } = self;
        let mut first = 0;
        for (call, out) in calls.0.iter().zip(outputs) {
            let own = inputs.get(first..first + call.operands.len());
            let own =
                own.ok_or(KernelError::Count { expected: call.operands.len(), found: inputs.len() - first })?;
            first += call.operands.len();
            let folded: usize = call.sizes[call.kept..].iter().product();
            out.numbers.fill(nothing(call.monoid));
            for (number, position) in positions(&call.sizes).enumerate() {
                let load = |n: usize| own[n].at(&call.operands[n].dims, &position);
                let made = computed(&call.program, load, |_| 0)[0];
                let result = &mut out.numbers[number / folded];
                *result = joined(call.monoid, *result, made);
            }
        }
        Ok(())
    }
}
