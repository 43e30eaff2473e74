//! Element-wise kernels, and joins of ranges.

use super::scalar::{computed, drawn};
use super::values::{RefTensor, positions, row_major};
use super::{Reference, other_operands};
use meshwright_device::KernelError;
use meshwright_device::kernels::call::Computes;
use meshwright_device::kernels::join::JoinCall;
use meshwright_device::kernels::map::{MapCall, MapCalls, MapOperand};
use meshwright_exec::backend::RngState;

/// Operands of a kernel over some dims.
pub(super) struct StepInputs<'a>(Vec<StepInput<'a>>);

enum StepInput<'a> {
    Tensor(&'a RefTensor, &'a [Option<usize>]),
    /// Random values, the sizes of their dims, and which dim of the kernel each is.
    Drawn(Vec<f64>, Vec<usize>, &'a [usize]),
}

impl<'a> StepInputs<'a> {
    /// Tensors are taken from the inputs in order.
    pub(super) fn new(
        operands: &'a [MapOperand],
        rng: RngState,
        inputs: &mut impl Iterator<Item = &'a RefTensor>,
    ) -> Result<StepInputs<'a>, KernelError> {
        let lacking = || KernelError::Count { expected: operands.len(), found: 0 };
        let of = |operand: &'a MapOperand| match operand {
            MapOperand::Tensor { dims, .. } => {
                Ok(StepInput::Tensor(inputs.next().ok_or_else(lacking)?, dims.as_slice()))
            }
            MapOperand::Drawn((block, places)) => {
                Ok(StepInput::Drawn(drawn(block, rng)?, block.shape(), places.as_slice()))
            }
        };
        Ok(StepInputs(operands.iter().map(of).collect::<Result<_, KernelError>>()?))
    }

    /// An operand's element at a position of the kernel.
    pub(super) fn at(&self, which: usize, position: &[usize]) -> f64 {
        match &self.0[which] {
            StepInput::Tensor(values, dims) => values.at(dims, position),
            StepInput::Drawn(numbers, sizes, places) => {
                let own: Vec<usize> = places.iter().map(|dim| position[*dim]).collect();
                numbers[row_major(sizes, &own)]
            }
        }
    }
}

impl Computes<MapCalls> for Reference<'_> {
    fn compute(self, calls: &MapCalls) -> Result<(), KernelError> {
        maps(&calls.0, self.rng, self.inputs, self.outputs)
    }
}

/// Element-wise steps.
pub(super) fn maps(
    calls: &[MapCall],
    rng: RngState,
    inputs: &[RefTensor],
    outputs: &mut [RefTensor],
) -> Result<(), KernelError> {
    let (mut inputs, mut outputs) = (inputs.iter(), outputs.iter_mut());
    for call in calls {
        let operands = StepInputs::new(&call.operands, rng, &mut inputs)?;
        let mut outs: Vec<&mut RefTensor> = outputs.by_ref().take(call.outputs.len()).collect();
        for (number, position) in positions(&call.sizes).enumerate() {
            let load = |n| operands.at(n, &position);
            let made = computed(&call.program, load, |dim| call.starts[dim] + position[dim]);
            outs.iter_mut().zip(made).for_each(|(out, x)| out.numbers[number] = x);
        }
    }
    Ok(())
}

impl Computes<JoinCall> for Reference<'_> {
    fn compute(self, call: &JoinCall) -> Result<(), KernelError> {
        let Reference { rng, inputs, outputs: [out] } = self else { return Err(other_operands()) };
        let mut inputs = inputs;
        for part in &call.parts {
            let of_part;
            (of_part, inputs) = inputs.split_at(part.map.tensors());
            let ranged: Option<RefTensor> = part.range.as_ref().map(|range| {
                let mut taken = RefTensor::zeros(part.map.sizes.clone());
                for (number, mut position) in positions(&part.map.sizes).enumerate() {
                    position[call.axis] += range.start;
                    let place = row_major(&of_part[0].shape, &position);
                    taken.numbers[number] = of_part[0].numbers[place];
                }
                taken
            });
            let mut made = vec![RefTensor::zeros(part.map.sizes.clone()); part.at.len()];
            let of_part = ranged.as_ref().map_or(of_part, std::slice::from_ref);
            maps(std::slice::from_ref(&part.map), rng, of_part, &mut made)?;
            for (made, at) in made.iter().zip(&part.at) {
                for (number, mut position) in positions(&part.map.sizes).enumerate() {
                    position[call.axis] += at;
                    let place = row_major(&out.shape, &position);
                    out.numbers[place] = made.numbers[number];
                }
            }
        }
        Ok(())
    }
}
