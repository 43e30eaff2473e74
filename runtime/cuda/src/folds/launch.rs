//! The launches of folds: one, or where it is cut into chunks two.

use super::kernel::{FoldShape, FoldSpaceLaunch, fold_elements};
use crate::kernel::arguments::{Arguments, address_type, first, half_type, moves, strides, walked};
use crate::kernel::elements::{OperandSource, Pace};
use crate::kernel::operands::{GpuLaunch, ResultSlot};
use crate::kernel::program::ScalarProgram;
use burn_backend::DType as BurnType;
use burn_backend::cubecl::dtype_to_storage_type;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use burn_std::Shape as Extents;
use cubecl::prelude::*;
use meshwright_device::KernelError;
use meshwright_device::kernels::call::Computes;
use meshwright_device::kernels::fold::{FoldCall, FoldCalls};
use meshwright_device::kernels::fold_blocks::{FoldBlocks, THREADS};
use meshwright_device::kernels::merged_dims::JointWalk;
use meshwright_device::stored::extents;
use meshwright_plan::DType;
use meshwright_sorted::SortedMap;

impl Computes<FoldCalls> for GpuLaunch<'_> {
    fn compute(self, calls: &FoldCalls) -> Result<Vec<CubeTensor>, KernelError> {
        Ok(fold(&calls.0, &self.inputs.tensors, &self.outputs))
    }
}

/// The results of folds that do not depend on each other, of these operands.
pub(in super::super) fn fold(
    calls: &[FoldCall],
    mut inputs: &[CubeTensor],
    outputs: &[ResultSlot<'_>],
) -> Vec<CubeTensor> {
    let mut folds = vec![];
    for (call, out) in calls.iter().zip(outputs) {
        folds.push(BoundFold::of_call(call, &inputs[..call.operands.len()], out));
        inputs = &inputs[call.operands.len()..];
    }
    launch_all(&folds);
    // Results of chunks are folded again.
    let cut: Vec<BoundFold<'_>> = folds
        .iter()
        .zip(outputs)
        .filter(|f| f.0.blocks.chunks > 1)
        .map(|(f, out)| f.of_chunks(out))
        .collect();
    launch_all(&cut);
    let mut last = cut.iter().map(|fold| &fold.out);
    let made = |fold: &BoundFold<'_>| match fold.blocks.chunks {
        1 => Some(fold.out.clone()),
        _ => last.next().cloned(),
    };
    folds.iter().filter_map(made).collect()
}

/// Launches folds, as many at a time as share a signature.
fn launch_all(folds: &[BoundFold<'_>]) {
    let mut launches: SortedMap<(usize, usize, Option<DType>, DType), Vec<&BoundFold<'_>>> = SortedMap::new();
    for fold in folds {
        let half = fold.call.half;
        launches.entry((fold.pace.width, fold.lanes(), half, fold.output)).or_default().push(fold);
    }
    for ((width, lanes, half, _), folds) in launches {
        let (mut vectors, mut singles) = (Arguments::default(), Arguments::default());
        let (mut outs, mut spaces, mut shapes, mut blocks) = (vec![], vec![], vec![], 0);
        for fold in &folds {
            shapes.push(fold.shape(fold.sources((&mut vectors, &mut singles))));
            spaces.push(fold.space(blocks));
            outs.push(fold.out.clone().into_tensor_arg());
            blocks += fold.blocks();
        }
        let Some(out) = folds.first().map(|fold| &fold.out) else { continue };
        let tensors = || folds.iter().flat_map(|f| f.inputs.iter().map(|i| i.0).chain([&f.out]));
        let address = tensors().map(address_type).max().unwrap_or_default();
        moves("FoldElements", tensors());
        #[expect(
            unsafe_code,
            reason = "the kernel checks how many results there are, and of how many elements"
        )]
        // SAFETY: as said.
        unsafe {
            fold_elements::launch_unchecked(
                &out.client,
                CubeCount::Static(blocks, 1, 1),
                CubeDim::new_1d(THREADS as u32),
                address,
                width,
                lanes,
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
                dtype_to_storage_type(out.dtype),
            );
        }
    }
}

/// A fold with its bound operands.
struct BoundFold<'a> {
    program: ScalarProgram,
    call: &'a FoldCall,
    inputs: Vec<(&'a CubeTensor, DType)>,
    /// Number of dims of the result, and of folded dims.
    walk: JointWalk,
    kept: usize,
    pace: Pace,
    blocks: FoldBlocks,
    results: usize,
    steps: usize,
    output: DType,
    /// Partial results of several chunks as `f32`, one after the other.
    out: CubeTensor,
}

impl<'a> BoundFold<'a> {
    fn of_call(call: &'a FoldCall, inputs: &'a [CubeTensor], out: &ResultSlot<'_>) -> BoundFold<'a> {
        let all = inputs.iter().zip(call.operands.iter().map(|o| o.dtype)).collect();
        let strides = inputs.iter().zip(&call.operands).map(|(input, o)| strides(input, &o.dims)).collect();
        BoundFold::new((call, call.program.clone()), all, (&call.sizes, strides), (out, false))
    }

    /// The fold of another fold's partial results.
    fn of_chunks(&'a self, out: &ResultSlot<'_>) -> BoundFold<'a> {
        let (chunks, call) = (self, self.call);
        let (kept, mut stride) = (&call.sizes[..call.kept], 1);
        let mut strides = vec![0; call.kept];
        for (dim, size) in strides.iter_mut().zip(kept).rev() {
            *dim = stride;
            stride *= *size as u64;
        }
        strides.push(stride);
        let sizes = [kept, &[chunks.blocks.chunks]].concat();
        let inputs = vec![(&chunks.out, DType::F32)];
        BoundFold::new((call, ScalarProgram::identity()), inputs, (&sizes, vec![strides]), (out, true))
    }

    /// A program of inputs with these strides along dims of these sizes; in one chunk if `whole`.
    fn new(
        (call, program): (&'a FoldCall, ScalarProgram),
        inputs: Vec<(&'a CubeTensor, DType)>,
        (sizes, strides): (&[usize], Vec<Vec<u64>>),
        (result, whole): (&ResultSlot<'_>, bool),
    ) -> BoundFold<'a> {
        let (kept, walk) = JointWalk::of_folds(sizes, call.kept, &strides);
        let (along, width) = vectors(&walk, kept, &inputs);
        let of = |sizes: &[usize]| sizes.iter().product::<usize>();
        let (mut results, mut steps) = (of(&walk.sizes[..kept]), of(&walk.sizes[kept..]));
        *(if along >= kept { &mut steps } else { &mut results }) /= width;
        let mut blocks = FoldBlocks::of(results, steps, along >= kept);
        if whole {
            (blocks.chunks, blocks.each) = (1, steps);
        }
        let output = if blocks.chunks == 1 { call.output } else { DType::F32 };
        let out = match blocks.chunks {
            1 => result.memory(),
            chunks => chunk_memory(inputs[0].0, &sizes[..call.kept], chunks),
        };
        let pace = Pace { rank: walk.sizes.len(), along, width };
        BoundFold { program, call, inputs, walk, kept, pace, blocks, results, steps, output, out }
    }

    /// Results that a thread has.
    fn lanes(&self) -> usize {
        if self.pace.along >= self.kept { 1 } else { self.pace.width }
    }

    fn blocks(&self) -> u32 {
        (self.blocks.result_blocks * self.blocks.chunks) as u32
    }

    fn shape(&self, operands: Vec<(OperandSource, DType)>) -> FoldShape {
        FoldShape {
            program: self.program.clone(),
            monoid: self.call.monoid,
            operands,
            output: self.output,
            kept: self.kept,
            pace: self.pace,
            results: self.blocks.results,
            folded: self.blocks.folded,
        }
    }

    /// The dims, for blocks from `first` on.
    fn space(&self, first: u32) -> FoldSpaceLaunch {
        let mut sizes = self.walk.sizes.clone();
        sizes[self.pace.along] /= self.pace.width;
        FoldSpaceLaunch::new(
            sizes.into_iter().collect(),
            self.results,
            self.steps,
            self.blocks.each,
            first,
            self.blocks.result_blocks as u32,
            self.blocks(),
        )
    }

    fn sources(&self, (vectors, singles): (&mut Arguments, &mut Arguments)) -> Vec<(OperandSource, DType)> {
        let source = |(i, (tensor, dtype)): (usize, &(&CubeTensor, DType))| {
            let arg = walked(&self.walk, tensor, i);
            let source = match self.walk.strides[i][self.pace.along] {
                1 if self.pace.width > 1 => OperandSource::Vector(vectors.push(*dtype, arg)),
                0 => OperandSource::One(singles.push(*dtype, arg)),
                _ => OperandSource::Each(singles.push(*dtype, arg)),
            };
            (source, *dtype)
        };
        self.inputs.iter().enumerate().map(source).collect()
    }
}

/// Along which dim vectors are, and how wide: all tensors have them there, or one element for all of a vector.
fn vectors(walk: &JointWalk, kept: usize, inputs: &[(&CubeTensor, DType)]) -> (usize, usize) {
    let rank = walk.sizes.len();
    for along in [rank - 1, kept - 1] {
        for width in [8, 4, 2] {
            let taken = |(i, (tensor, _)): (usize, &(&CubeTensor, DType))| {
                walk.is_vectors_along(i, along, first(tensor), width) && width * tensor.dtype.size() <= 16
            };
            let one = |(i, _): (usize, &(&CubeTensor, DType))| walk.strides[i][along] == 0;
            let all = || inputs.iter().enumerate();
            // Results are written as words in the worst case.
            let written = along >= kept || width <= 4;
            let fits = walk.sizes[along].is_multiple_of(width) && written;
            if fits && all().any(taken) && all().all(|o| taken(o) || one(o)) {
                return (along, width);
            }
        }
    }
    // One element at a time, with adjacent threads along the contiguous dim.
    let dense = |along: usize| walk.strides.iter().any(|s| s[along] == 1) && walk.sizes[along] > 1;
    (if !dense(rank - 1) && dense(kept - 1) { kept - 1 } else { rank - 1 }, 1)
}

/// Memory for the results of these chunks, in `f32`, one after the other.
pub(in super::super) fn chunk_memory(like: &CubeTensor, kept: &[usize], chunks: usize) -> CubeTensor {
    let shape = [vec![chunks], extents(kept)].concat();
    let (client, device) = (like.client.clone(), like.device.clone());
    empty_device_contiguous_dtype(client, device, Extents::from(shape), BurnType::F32)
}
