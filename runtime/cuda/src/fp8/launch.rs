//! The launch of the kernel that rounds a factor.

use super::kernel::{FactorShape, FactorSpaceLaunch, THREADS, TILE, round_factor};
use crate::kernel::arguments::{Arguments, address_type, half_type, moves, strides, walked};
use crate::kernel::elements::{OperandSource, Pace};
use crate::kernel::operands::{GpuLaunch, OwnInputs, ResultSlot};
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;
use meshwright_device::KernelError;
use meshwright_device::kernels::call::Computes;
use meshwright_device::kernels::fp8_factor::Fp8FactorCall;
use meshwright_device::kernels::map::MapOperand;
use meshwright_device::kernels::merged_dims::JointWalk;

impl Computes<Fp8FactorCall> for GpuLaunch<'_> {
    fn compute(self, call: &Fp8FactorCall) -> Result<Vec<CubeTensor>, KernelError> {
        let GpuLaunch { step, inputs: OwnInputs { tensors: inputs, .. }, outputs, .. } = self;
        let outs: Vec<CubeTensor> = outputs.iter().map(ResultSlot::memory).collect();
        launch(call, &inputs, &outs, step)?;
        Ok(outs)
    }
}

fn launch(
    call: &Fp8FactorCall,
    inputs: &[CubeTensor],
    outs: &[CubeTensor],
    clock: &CubeTensor,
) -> Result<(), KernelError> {
    let map = &call.map;
    let mut all = vec![];
    for (operand, input) in map.operands.iter().zip(inputs) {
        let MapOperand::Tensor { dims, .. } = operand else {
            return Err(KernelError::Unsupported("a value that is rounded to FP8 is drawn".into()));
        };
        all.push(strides(input, dims));
    }
    let has_positions = map.program.has_positions();
    let walk = match has_positions {
        true => JointWalk::apart(&map.sizes, &all),
        false => JointWalk::joined(&map.sizes, &all),
    };
    let (mut arguments, mut operands) = (Arguments::default(), vec![]);
    for (i, (operand, input)) in map.operands.iter().zip(inputs).enumerate() {
        if let MapOperand::Tensor { dtype, .. } = operand {
            operands.push((OperandSource::Each(arguments.push(*dtype, walked(&walk, input, i))), *dtype));
        }
    }
    let rank = walk.sizes.len();
    let shape = FactorShape {
        program: map.program.clone(),
        operands,
        pace: Pace { rank, along: rank - 1, width: 1 },
        format: call.format,
        plain: call.plain,
        turned: call.turned,
    };
    let starts: &[usize] = if has_positions { &map.starts } else { &[] };
    let starts = starts.iter().map(|n| *n as u32).collect();
    let [rows, columns] = call.matrix;
    let space = FactorSpaceLaunch::new(walk.sizes.into_iter().collect(), starts, rows as u32, columns as u32);
    let tensors = || inputs.iter().chain(outs);
    let address = tensors().map(address_type).max().unwrap_or_default();
    moves("RoundFactor", tensors());
    let blocks = rows.div_ceil(TILE) * columns.div_ceil(TILE);
    #[expect(unsafe_code, reason = "the kernel checks rows and columns")]
    // SAFETY: as said; results have as many elements as the matrix.
    unsafe {
        round_factor::launch_unchecked(
            &clock.client,
            CubeCount::Static(blocks as u32, 1, 1),
            CubeDim::new_1d(THREADS as u32),
            address,
            1,
            arguments.words.into_iter().collect(),
            arguments.halves.into_iter().collect(),
            arguments.bytes.into_iter().collect(),
            outs.iter().map(|out| out.clone().into_tensor_arg()).collect(),
            space,
            shape,
            half_type(map.half),
        );
    }
    Ok(())
}
