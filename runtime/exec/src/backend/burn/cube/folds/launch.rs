//! A fold as an operation of the fusion queue, and the launches of its kernel: one, or where it is cut into chunks two.

use super::super::arguments::{Arguments, first, half_type, strides};
use super::super::elements::{Pace, Source};
use super::super::program::ScalarProgram;
use super::super::walk::Walk;
use super::blocks::Blocks;
use super::call::FoldCall;
use super::kernel::{FoldShape, FoldSpaceLaunch, fold_elements};
use crate::engine::lowering::extents;
use burn_backend::cubecl::dtype_to_storage_type;
use burn_backend::{DType as BurnType, ExecutionError};
use burn_cubecl::fusion::{CubeFusionHandle, FusionCubeRuntime};
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{CubeBackend, CubeDevice};
use burn_fusion::FusionTensor;
use burn_fusion::stream::{Operation, StreamId};
use burn_ir::{CustomOpIr, HandleContainer, OperationIr, TensorIr};
use burn_std::Shape as Extents;
use cubecl::prelude::*;
use meshwright_plan::DType;
use std::sync::Arc;

/// The operation when its turn has come.
#[derive(Debug)]
struct FoldRun {
    call: Arc<FoldCall>,
    inputs: Vec<TensorIr>,
    output: TensorIr,
}

/// Whether a device has units that wait for each other at no great cost.
pub(in super::super) fn is_there(device: &CubeDevice) -> bool {
    !matches!(device, CubeDevice::Cpu(_))
}

/// Records a fold of these operands.
pub(in super::super) fn fold(
    call: &Arc<FoldCall>,
    inputs: Vec<FusionTensor<FusionCubeRuntime>>,
    outputs: &[TensorIr],
) -> Vec<FusionTensor<FusionCubeRuntime>> {
    let (Some(first), [out]) = (inputs.first(), outputs) else { return vec![] };
    let client = first.client.clone();
    let output = TensorIr::uninit(client.create_empty_handle(), out.shape.clone(), out.dtype);
    let inputs: Vec<TensorIr> = inputs.into_iter().map(FusionTensor::into_ir).collect();
    let told = CustomOpIr::new("meshwright_fold", &inputs, std::slice::from_ref(&output));
    let operation = FoldRun { call: call.clone(), inputs, output };
    client.register(StreamId::current(), OperationIr::Custom(told), operation)
}

impl Operation<FusionCubeRuntime> for FoldRun {
    fn execute(&self, handles: &mut HandleContainer<CubeFusionHandle>) -> Result<(), ExecutionError> {
        let mut inputs: Vec<CubeTensor> = vec![];
        for ir in &self.inputs {
            inputs.push(match ir.dtype.is_float() {
                true => handles.get_float_tensor::<CubeBackend>(ir),
                false => handles.get_int_tensor::<CubeBackend>(ir),
            });
        }
        let made = self.call.run(&inputs);
        handles.register_float_tensor::<CubeBackend>(&self.output.id, made);
        Ok(())
    }
}

impl FoldCall {
    /// The result.
    fn run(&self, inputs: &[CubeTensor]) -> CubeTensor {
        let reads = inputs.iter().zip(&self.operands).map(|(input, o)| strides(input, &o.dims));
        let fold = OneFold {
            program: self.program.clone(),
            call: self,
            inputs: inputs.iter().zip(self.operands.iter().map(|o| o.dtype)).collect(),
            sizes: &self.sizes,
            strides: reads.collect(),
        };
        let (made, chunks) = fold.launch();
        if chunks == 1 {
            return made;
        }
        // What the chunks gave, folded.
        let kept: usize = self.sizes[..self.kept].iter().product();
        let mut dims = vec![0; self.kept];
        let mut stride = 1;
        for (dim, size) in dims.iter_mut().zip(&self.sizes).rev() {
            *dim = stride;
            stride *= *size as u64;
        }
        dims.push(kept as u64);
        let sizes = [&self.sizes[..self.kept], &[chunks]].concat();
        let fold = OneFold {
            program: ScalarProgram::identity(),
            call: self,
            inputs: vec![(&made, DType::F32)],
            sizes: &sizes,
            strides: vec![dims],
        };
        fold.launch_with(Some(1)).0
    }
}

/// One of the launches.
struct OneFold<'a> {
    program: ScalarProgram,
    call: &'a FoldCall,
    inputs: Vec<(&'a CubeTensor, DType)>,
    sizes: &'a [usize],
    /// Of each input along all dims.
    strides: Vec<Vec<u64>>,
}

impl OneFold<'_> {
    fn launch(&self) -> (CubeTensor, usize) {
        self.launch_with(None)
    }

    /// Gives what is made, and in how many chunks: as `f32` with a chunk after the other, or else the result.
    fn launch_with(&self, chunks: Option<usize>) -> (CubeTensor, usize) {
        let (kept, walk) = self.walk();
        let (along, width) = self.vectors(&walk, kept);
        let pace = Pace { rank: walk.sizes.len(), along, width };
        let by_rows = along >= kept;
        let of = |sizes: &[usize]| sizes.iter().product::<usize>();
        let (mut results, mut steps) = (of(&walk.sizes[..kept]), of(&walk.sizes[kept..]));
        *(if by_rows { &mut steps } else { &mut results }) /= width;
        let mut blocks = Blocks::of(results, steps, by_rows);
        if chunks.is_some() {
            (blocks.chunks, blocks.each) = (1, steps);
        }
        let call = self.call;
        let output = if blocks.chunks == 1 { call.output } else { DType::F32 };
        let out = self.empty(blocks.chunks, output);
        let (mut vectors, mut singles) = (Arguments::default(), Arguments::default());
        let operands = self.sources(&walk, pace, (&mut vectors, &mut singles));
        let mut sizes = walk.sizes.clone();
        sizes[along] /= width;
        let space = FoldSpaceLaunch::new(sizes.into_iter().collect(), results, steps, blocks.each);
        let shape = FoldShape {
            program: self.program.clone(),
            monoid: call.monoid,
            operands,
            output,
            kept,
            pace,
            results: blocks.results,
            folded: blocks.folded,
        };
        let tensors = self.inputs.iter().map(|(tensor, _)| *tensor).chain([&out]);
        let address = tensors.map(CubeTensor::required_address_type).max().unwrap_or_default();
        let lanes = if by_rows { 1 } else { width };
        #[expect(
            unsafe_code,
            reason = "the kernel checks how many results there are, and of how many elements"
        )]
        // SAFETY: as said.
        unsafe {
            fold_elements::launch_unchecked(
                &out.client,
                CubeCount::Static(blocks.cubes as u32, blocks.chunks as u32, 1),
                CubeDim::new_1d((blocks.results * blocks.folded) as u32),
                address,
                width,
                lanes,
                vectors.words.into_iter().collect(),
                vectors.halves.into_iter().collect(),
                vectors.bytes.into_iter().collect(),
                singles.words.into_iter().collect(),
                singles.halves.into_iter().collect(),
                singles.bytes.into_iter().collect(),
                out.clone().into_tensor_arg(),
                space,
                shape,
                half_type(call.half),
                dtype_to_storage_type(out.dtype),
            );
        }
        (out, blocks.chunks)
    }

    /// The dims of the result and those that are folded, each joined among themselves; at least one of either.
    fn walk(&self) -> (usize, Walk) {
        let apart = |range: std::ops::Range<usize>| {
            let strides: Vec<Vec<u64>> = self.strides.iter().map(|s| s[range.clone()].to_vec()).collect();
            Walk::joined(&self.sizes[range], &strides)
        };
        let (mut kept, folded) = (apart(0..self.call.kept), apart(self.call.kept..self.sizes.len()));
        let many = kept.sizes.len();
        kept.sizes.extend(folded.sizes);
        kept.strides.iter_mut().zip(folded.strides).for_each(|(all, more)| all.extend(more));
        (many, kept)
    }

    /// Along which dim vectors are, and how wide: that along which the first tensor that is read as vectors has them.
    fn vectors(&self, walk: &Walk, kept: usize) -> (usize, usize) {
        let rank = walk.sizes.len();
        for along in [rank - 1, kept - 1] {
            for width in [8, 4, 2] {
                let taken = |(i, (tensor, _)): (usize, &(&CubeTensor, DType))| {
                    walk.is_vectors_along(i, along, first(tensor), width) && width * tensor.dtype.size() <= 16
                };
                let scalar = |(i, _): (usize, &(&CubeTensor, DType))| walk.strides[i][along] == 0;
                let all = || self.inputs.iter().enumerate();
                let written = along >= kept || width <= 4;
                let fits = walk.sizes[along].is_multiple_of(width) && written;
                if fits && all().any(taken) && all().all(|o| taken(o) || scalar(o)) {
                    return (along, width);
                }
            }
        }
        // One at a time, with units next to each other along what lies next to each other.
        let dense = |along: usize| walk.strides.iter().any(|s| s[along] == 1) && walk.sizes[along] > 1;
        (if !dense(rank - 1) && dense(kept - 1) { kept - 1 } else { rank - 1 }, 1)
    }

    fn sources(
        &self,
        walk: &Walk,
        pace: Pace,
        (vectors, singles): (&mut Arguments, &mut Arguments),
    ) -> Vec<(Source, DType)> {
        let source = |(i, (tensor, dtype)): (usize, &(&CubeTensor, DType))| {
            let arg = walk.argument(tensor, i);
            let source = match walk.strides[i][pace.along] {
                1 if pace.width > 1 => Source::Vector(vectors.push(*dtype, arg)),
                0 => Source::One(singles.push(*dtype, arg)),
                _ => Source::Each(singles.push(*dtype, arg)),
            };
            (source, *dtype)
        };
        self.inputs.iter().enumerate().map(source).collect()
    }

    /// Memory for the results of so many chunks.
    fn empty(&self, chunks: usize, dtype: DType) -> CubeTensor {
        let like = self.inputs[0].0;
        let mut shape = extents(&self.sizes[..self.call.kept]);
        if chunks > 1 {
            shape.insert(0, chunks);
        }
        let dtype = match dtype {
            DType::BF16 => BurnType::BF16,
            DType::F16 => BurnType::F16,
            _ => BurnType::F32,
        };
        empty_device_contiguous_dtype(like.client.clone(), like.device.clone(), Extents::from(shape), dtype)
    }
}
