//! The launch of the kernel that rounds a factor.

use super::kernel::{CODES, FactorShape, FactorSpaceLaunch, THREADS, TILE, round_factor};
use crate::kernel::arguments::{Arguments, address_type, first, half_type, moves, strides, walked};
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
    let width = [4, 2].into_iter().find(|width| walk.inner().is_multiple_of(*width)).unwrap_or(1);
    let (mut vectors, mut singles, mut operands) = (Arguments::default(), Arguments::default(), vec![]);
    for (i, (operand, input)) in map.operands.iter().zip(inputs).enumerate() {
        let MapOperand::Tensor { dtype, .. } = operand else { continue };
        let arg = walked(&walk, input, i);
        let source = match walk.strides[i].last() {
            _ if width > 1 && walk.is_vectors(i, first(input), width) => {
                OperandSource::Vector(vectors.push(*dtype, arg))
            }
            Some(0) => OperandSource::One(singles.push(*dtype, arg)),
            _ => OperandSource::Each(singles.push(*dtype, arg)),
        };
        operands.push((source, *dtype));
    }
    let rank = walk.sizes.len();
    let shape = FactorShape {
        program: map.program.clone(),
        operands,
        pace: Pace { rank, along: rank - 1, width },
        format: call.format,
        plain: call.plain,
        turned: call.turned,
    };
    let starts: &[usize] = if has_positions { &map.starts } else { &[] };
    let starts = starts.iter().map(|n| *n as u32).collect();
    let [rows, columns] = call.matrix;
    let mut sizes = walk.sizes.clone();
    sizes[rank - 1] /= width;
    let space = FactorSpaceLaunch::new(sizes.into_iter().collect(), starts, rows as u32, columns as u32);
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
            width,
            CODES,
            vectors.words.into_iter().collect(),
            vectors.halves.into_iter().collect(),
            vectors.bytes.into_iter().collect(),
            singles.words.into_iter().collect(),
            singles.halves.into_iter().collect(),
            singles.bytes.into_iter().collect(),
            outs.iter().map(|out| out.clone().into_tensor_arg()).collect(),
            space,
            shape,
            half_type(map.half),
        );
    }
    Ok(())
}
