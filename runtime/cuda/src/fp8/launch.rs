//! The launches of the kernel that rounds factors: one for all whose operands are read in vectors of the same width.

use super::kernel::{CODES, FactorShape, FactorSpaceLaunch, THREADS, TILE, round_factors};
use crate::kernel::arguments::{Arguments, address_type, first, half_type, moves, strides, walked};
use crate::kernel::elements::{OperandSource, Pace};
use crate::kernel::operands::{GpuLaunch, OwnInputs, ResultSlot};
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;
use meshwright_device::KernelError;
use meshwright_device::kernels::call::Computes;
use meshwright_device::kernels::fp8_factor::{Fp8FactorCall, Fp8FactorCalls};
use meshwright_device::kernels::map::MapOperand;
use meshwright_device::kernels::merged_dims::JointWalk;
use meshwright_plan::DType;
use meshwright_sorted::SortedMap;

impl Computes<Fp8FactorCalls> for GpuLaunch<'_> {
    fn compute(self, calls: &Fp8FactorCalls) -> Result<Vec<CubeTensor>, KernelError> {
        let GpuLaunch { step, inputs: OwnInputs { tensors, .. }, outputs, .. } = self;
        let outs: Vec<CubeTensor> = outputs.iter().map(ResultSlot::memory).collect();
        let (mut inputs, mut results) = (&tensors[..], &outs[..]);
        let mut launches: SortedMap<(usize, Option<DType>), Vec<BoundFactor<'_>>> = SortedMap::new();
        for call in &calls.0 {
            let (own, made);
            (own, inputs) = inputs.split_at(call.map.operands.len());
            (made, results) = results.split_at(call.results());
            let factor = BoundFactor::new(call, own, made)?;
            launches.entry((factor.width, call.map.half)).or_default().push(factor);
        }
        launches.into_iter().for_each(|((width, half), factors)| launch(&factors, (width, half), step));
        Ok(outs)
    }
}

/// A factor with its bound operands and results.
struct BoundFactor<'a> {
    call: &'a Fp8FactorCall,
    inputs: &'a [CubeTensor],
    outs: &'a [CubeTensor],
    walk: JointWalk,
    /// Elements of a vector of operands.
    width: usize,
}

impl<'a> BoundFactor<'a> {
    fn new(
        call: &'a Fp8FactorCall,
        inputs: &'a [CubeTensor],
        outs: &'a [CubeTensor],
    ) -> Result<BoundFactor<'a>, KernelError> {
        let map = &call.map;
        let mut all = vec![];
        for (operand, input) in map.operands.iter().zip(inputs) {
            let MapOperand::Tensor { dims, .. } = operand else {
                return Err(KernelError::Unsupported("a value that is rounded to FP8 is drawn".into()));
            };
            all.push(strides(input, dims));
        }
        let walk = match map.program.has_positions() {
            true => JointWalk::apart(&map.sizes, &all),
            false => JointWalk::joined(&map.sizes, &all),
        };
        let width = [4, 2].into_iter().find(|width| walk.inner().is_multiple_of(*width)).unwrap_or(1);
        Ok(BoundFactor { call, inputs, outs, walk, width })
    }

    fn blocks(&self) -> u32 {
        let [rows, columns] = self.call.matrix;
        (rows.div_ceil(TILE) * columns.div_ceil(TILE)) as u32
    }

    /// The parameters of its blocks; `result` is the first of its results.
    fn shape(&self, (vectors, singles): (&mut Arguments, &mut Arguments), result: usize) -> FactorShape {
        let mut operands = vec![];
        for (i, (operand, input)) in self.call.map.operands.iter().zip(self.inputs).enumerate() {
            let MapOperand::Tensor { dtype, .. } = operand else { continue };
            let arg = walked(&self.walk, input, i);
            let source = match self.walk.strides[i].last() {
                _ if self.width > 1 && self.walk.is_vectors(i, first(input), self.width) => {
                    OperandSource::Vector(vectors.push(*dtype, arg))
                }
                Some(0) => OperandSource::One(singles.push(*dtype, arg)),
                _ => OperandSource::Each(singles.push(*dtype, arg)),
            };
            operands.push((source, *dtype));
        }
        let rank = self.walk.sizes.len();
        FactorShape {
            program: self.call.map.program.clone(),
            operands,
            pace: Pace { rank, along: rank - 1, width: self.width },
            format: self.call.format,
            plain: self.call.plain,
            turned: self.call.turned,
            result,
        }
    }

    /// Its dims, for blocks from `first` on.
    fn space(&self, first: u32) -> FactorSpaceLaunch {
        let map = &self.call.map;
        let starts: &[usize] = if map.program.has_positions() { &map.starts } else { &[] };
        let [rows, columns] = self.call.matrix;
        let mut sizes = self.walk.sizes.clone();
        if let Some(inner) = sizes.last_mut() {
            *inner /= self.width;
        }
        FactorSpaceLaunch::new(
            sizes.into_iter().collect(),
            starts.iter().map(|n| *n as u32).collect(),
            rows as u32,
            columns as u32,
            first,
            self.blocks(),
        )
    }
}

/// Launches factors whose operands have this half type, and are read in vectors of this width.
fn launch(factors: &[BoundFactor<'_>], (width, half): (usize, Option<DType>), clock: &CubeTensor) {
    let (mut vectors, mut singles) = (Arguments::default(), Arguments::default());
    let (mut outs, mut spaces, mut shapes, mut blocks) = (vec![], vec![], vec![], 0);
    for factor in factors {
        shapes.push(factor.shape((&mut vectors, &mut singles), outs.len()));
        spaces.push(factor.space(blocks));
        outs.extend(factor.outs.iter().map(|out| out.clone().into_tensor_arg()));
        blocks += factor.blocks();
    }
    let tensors = || factors.iter().flat_map(|factor| factor.inputs.iter().chain(factor.outs));
    let address = tensors().map(address_type).max().unwrap_or_default();
    moves("RoundFactors", tensors());
    #[expect(unsafe_code, reason = "the kernel checks rows and columns")]
    // SAFETY: as said; results have as many elements as the matrix.
    unsafe {
        round_factors::launch_unchecked(
            &clock.client,
            CubeCount::Static(blocks, 1, 1),
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
            outs.into_iter().collect(),
            spaces.into_iter().collect(),
            shapes,
            half_type(half),
        );
    }
}
