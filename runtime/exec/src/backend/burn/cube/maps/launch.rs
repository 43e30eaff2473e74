//! An element-wise step as an operation of the fusion queue, and the launch of its kernel.

use super::super::drawn::Drawn;
use super::call::{MapCall, MapOperand};
use super::kernel::{Kind, MapShape, MapSpaceLaunch, Source, element_wise};
use super::walk::Walk;
use crate::backend::RngState;
use burn_backend::cubecl::dtype_to_storage_type;
use burn_backend::{DType as BurnType, ExecutionError};
use burn_cubecl::CubeBackend;
use burn_cubecl::fusion::{CubeFusionHandle, FusionCubeRuntime};
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use burn_fusion::FusionTensor;
use burn_fusion::stream::{Operation, StreamId};
use burn_ir::{CustomOpIr, HandleContainer, OperationIr, TensorIr, TensorStatus};
use burn_std::Shape as Extents;
use cubecl::calculate_cube_count_elemwise;
use cubecl::prelude::*;
use meshwright_plan::DType;
use std::sync::Arc;

/// The operation when its turn has come.
#[derive(Debug)]
struct MapRun {
    call: Arc<MapCall>,
    inputs: Vec<TensorIr>,
    outputs: Vec<TensorIr>,
    drawn: Vec<Drawn>,
    /// Read when the operation is executed, before the next step sets it.
    step: CubeTensor,
}

/// Records an element-wise step of these operands, but for those that are drawn. `step` is in the memory of the device.
pub(in super::super) fn map(
    call: &Arc<MapCall>,
    rng: RngState,
    step: CubeTensor,
    inputs: Vec<FusionTensor<FusionCubeRuntime>>,
    outputs: &[TensorIr],
) -> Vec<FusionTensor<FusionCubeRuntime>> {
    let client = burn_fusion::get_client::<CubeBackend>(&step.device);
    let made = |out: &TensorIr| TensorIr::uninit(client.create_empty_handle(), out.shape.clone(), out.dtype);
    let outputs: Vec<TensorIr> = outputs.iter().map(made).collect();
    let inputs: Vec<TensorIr> = inputs.into_iter().map(FusionTensor::into_ir).collect();
    let told = CustomOpIr::new("meshwright_map", &inputs, &outputs);
    let drawn = call.operands.iter().filter_map(|operand| match operand {
        MapOperand::Drawn(kernel, places) => {
            Some(Drawn::new(&(kernel.clone(), places.clone()), call.sizes.len(), rng))
        }
        MapOperand::Tensor { .. } => None,
    });
    let operation = MapRun { drawn: drawn.collect(), call: call.clone(), inputs, outputs, step };
    client.register(StreamId::current(), OperationIr::Custom(told), operation)
}

impl Operation<FusionCubeRuntime> for MapRun {
    fn execute(&self, handles: &mut HandleContainer<CubeFusionHandle>) -> Result<(), ExecutionError> {
        let mut inputs: Vec<CubeTensor> = vec![];
        for ir in &self.inputs {
            inputs.push(match ir.dtype.is_float() {
                true => handles.get_float_tensor::<CubeBackend>(ir),
                false => handles.get_int_tensor::<CubeBackend>(ir),
            });
        }
        let made = Launch::of(self, inputs).go();
        for (ir, tensor) in self.outputs.iter().zip(made) {
            match ir.dtype.is_float() {
                true => handles.register_float_tensor::<CubeBackend>(&ir.id, tensor),
                false => handles.register_int_tensor::<CubeBackend>(&ir.id, tensor),
            }
        }
        Ok(())
    }
}

/// A call whose operands are there.
struct Launch<'a> {
    run: &'a MapRun,
    inputs: Vec<CubeTensor>,
    outputs: Vec<CubeTensor>,
    /// For each input the result that takes its storage.
    given: Vec<Option<usize>>,
    /// Along the inputs, the outputs, then what is drawn.
    walk: Walk,
    width: usize,
}

impl Launch<'_> {
    fn of(run: &MapRun, inputs: Vec<CubeTensor>) -> Launch<'_> {
        let (mut outputs, mut given) = (vec![], vec![None; inputs.len()]);
        for (o, ir) in run.outputs.iter().enumerate() {
            let gives = |i: &usize| given[*i].is_none() && run.gives(*i, &inputs[*i], ir.dtype);
            let from = (0..inputs.len()).find(gives);
            outputs.push(match from {
                Some(i) => {
                    given[i] = Some(o);
                    inputs[i].clone()
                }
                None => empty_device_contiguous_dtype(
                    run.step.client.clone(),
                    run.step.device.clone(),
                    Extents::from(ir.shape.to_vec()),
                    ir.dtype,
                ),
            });
        }
        let sizes = &run.call.sizes;
        let of_input = |(input, dims): (&CubeTensor, &Vec<Option<usize>>)| strides(input, dims);
        let own: Vec<Option<usize>> = (0..sizes.len()).map(Some).collect();
        let all: Vec<Vec<u64>> = (inputs.iter().zip(run.dims()).map(of_input))
            .chain(outputs.iter().map(|out| strides(out, &own)))
            .chain(run.drawn.iter().map(|drawn| drawn.strides.clone()))
            .collect();
        let walk = match run.call.program.has_positions() {
            true => Walk::apart(sizes, &all),
            false => Walk::joined(sizes, &all),
        };
        let mut launch = Launch { run, inputs, outputs, given, walk, width: 1 };
        launch.width = [8, 4, 2].into_iter().find(|width| launch.fits(*width)).unwrap_or(1);
        launch
    }

    /// Whether vectors of so many elements can be written; of words at most four at a time.
    fn fits(&self, width: usize) -> bool {
        let vectors = |(i, out): (usize, &CubeTensor)| {
            width * out.dtype.size() <= 16 && self.walk.is_vectors(self.inputs.len() + i, first(out), width)
        };
        let reads = |i: usize| !self.is_vector(i, width) || width * self.inputs[i].dtype.size() <= 16;
        self.walk.inner().is_multiple_of(width)
            && self.outputs.iter().enumerate().all(vectors)
            && (0..self.inputs.len()).all(reads)
    }

    fn is_vector(&self, input: usize, width: usize) -> bool {
        self.walk.is_vectors(input, first(&self.inputs[input]), width)
    }

    /// A tensor as the kernel walks it.
    fn arg(&self, tensor: &CubeTensor, which: usize) -> TensorArg {
        let strides: Vec<usize> = self.walk.strides[which].iter().map(|n| *n as usize).collect();
        let extent = |(size, stride): (&usize, &usize)| if *stride == 0 { 1 } else { *size };
        let shape: Vec<usize> = self.walk.sizes.iter().zip(&strides).map(extent).collect();
        #[expect(unsafe_code, reason = "the strides are those of the tensor, of dims that are joined")]
        // SAFETY: no position along the dims of the kernel is beyond the tensor's.
        unsafe {
            TensorArg::from_raw_parts(tensor.handle.clone(), strides.into(), shape.into())
        }
    }

    /// How operands are read, and the tensors that are, by kind: as vectors, and one element at a time.
    fn sources(&self, slots: &[(usize, DType)]) -> (Vec<(Source, DType)>, [Tensors; 2]) {
        let (mut sources, mut tensors) = (vec![], [Tensors::default(), Tensors::default()]);
        let (mut input, mut draw) = (0, 0);
        for operand in &self.run.call.operands {
            let MapOperand::Tensor { dtype, .. } = operand else {
                let which = self.inputs.len() + self.outputs.len() + draw;
                let four = self.width.is_multiple_of(4)
                    && self.run.drawn[draw].is_four_to_a_count(&self.walk.strides[which]);
                sources.push((Source::Drawn(draw, four), DType::Bool));
                draw += 1;
                continue;
            };
            let i = input;
            input += 1;
            if let Some(o) = self.given[i] {
                sources.push((Source::Output(slots[o].0), *dtype));
                continue;
            }
            let arg = self.arg(&self.inputs[i], i);
            let source = match self.walk.strides[i].last() {
                _ if self.width > 1 && self.is_vector(i, self.width) => {
                    Source::Vector(tensors[0].push(*dtype, arg))
                }
                Some(0) => Source::One(tensors[1].push(*dtype, arg)),
                _ => Source::Each(tensors[1].push(*dtype, arg)),
            };
            sources.push((source, *dtype));
        }
        (sources, tensors)
    }

    /// The results in order.
    fn go(self) -> Vec<CubeTensor> {
        let call = &self.run.call;
        let mut results = Tensors::default();
        let mut slots = vec![];
        for (o, (out, dtype)) in self.outputs.iter().zip(&call.outputs).enumerate() {
            slots.push((results.push(*dtype, self.arg(out, self.inputs.len() + o)), *dtype));
        }
        let (operands, [vectors, singles]) = self.sources(&slots);
        let shape = MapShape {
            program: call.program.clone(),
            operands,
            outputs: slots,
            rank: self.walk.sizes.len(),
            width: self.width,
        };
        let many = self.walk.elements() / self.width;
        let mut sizes = self.walk.sizes.clone();
        if let Some(inner) = sizes.last_mut() {
            *inner /= self.width;
        }
        let starts = call.starts.iter().map(|n| *n as u32);
        let space = MapSpaceLaunch::new(sizes.into_iter().collect(), starts.collect(), many);
        let first = self.inputs.len() + self.outputs.len();
        let draws = self.run.drawn.iter().enumerate();
        let draws = draws.map(|(i, drawn)| drawn.launch(&self.walk.strides[first + i]));
        let client = &self.run.step.client;
        let dim = CubeDim::new(client, many);
        let all = self.inputs.iter().chain(&self.outputs);
        let address = all.map(CubeTensor::required_address_type).max().unwrap_or_default();
        let step = (!self.run.drawn.is_empty()).then(|| self.run.step.clone().into_tensor_arg());
        let half = match call.half {
            Some(DType::BF16) => BurnType::BF16,
            Some(_) => BurnType::F16,
            None => BurnType::F32,
        };
        #[expect(unsafe_code, reason = "the kernel checks how many vectors there are")]
        // SAFETY: as said.
        unsafe {
            element_wise::launch_unchecked(
                client,
                calculate_cube_count_elemwise(client, many, dim),
                dim,
                address,
                self.width,
                vectors.words.into_iter().collect(),
                vectors.halves.into_iter().collect(),
                vectors.bytes.into_iter().collect(),
                singles.words.into_iter().collect(),
                singles.halves.into_iter().collect(),
                singles.bytes.into_iter().collect(),
                results.words.into_iter().collect(),
                results.halves.into_iter().collect(),
                results.bytes.into_iter().collect(),
                draws.collect(),
                step.into_iter().collect(),
                space,
                shape,
                dtype_to_storage_type(half),
            );
        }
        self.outputs
    }
}

impl MapRun {
    /// The dims of each tensor that is read.
    fn dims(&self) -> impl Iterator<Item = &Vec<Option<usize>>> {
        self.call.operands.iter().filter_map(|operand| match operand {
            MapOperand::Tensor { dims, .. } => Some(dims),
            MapOperand::Drawn(..) => None,
        })
    }

    /// Whether a result of that type can take the storage of an input: each element is read by the unit that writes in its place.
    fn gives(&self, i: usize, input: &CubeTensor, dtype: BurnType) -> bool {
        let ends = self.inputs[i].status == TensorStatus::ReadWrite && input.can_mut();
        let Some(dims) = self.dims().nth(i) else { return false };
        let same = dims.iter().copied().eq((0..self.call.sizes.len()).map(Some))
            && input.meta.shape.iter().copied().eq(extents_of(&self.call.sizes));
        // Nowhere two elements in one place, and no other order than by rows.
        let (shape, strides) = (&input.meta.shape, &input.meta.strides);
        let by_rows = (1..shape.rank()).all(|d| shape[d - 1] == 1 || strides[d - 1] >= strides[d] * shape[d])
            && (0..shape.rank()).all(|d| shape[d] == 1 || strides[d] > 0);
        ends && same && by_rows && input.dtype == dtype
    }
}

fn extents_of(sizes: &[usize]) -> Vec<usize> {
    crate::engine::lowering::extents(sizes)
}

/// How far the next position along each dim of a step is.
fn strides(tensor: &CubeTensor, dims: &[Option<usize>]) -> Vec<u64> {
    let stride = |at: &Option<usize>| at.map_or(0, |i| tensor.meta.strides[i] as u64);
    dims.iter().map(stride).collect()
}

/// The first element of a tensor, in elements from the start of its memory.
fn first(tensor: &CubeTensor) -> u64 {
    tensor.handle.offset_start.unwrap_or(0) / tensor.dtype.size() as u64
}

/// Arguments by kind.
#[derive(Default)]
struct Tensors {
    words: Vec<TensorArg>,
    halves: Vec<TensorArg>,
    bytes: Vec<TensorArg>,
}

impl Tensors {
    /// Gives its slot.
    fn push(&mut self, dtype: DType, arg: TensorArg) -> usize {
        let list = match Kind::of(dtype) {
            Kind::Word => &mut self.words,
            Kind::Half => &mut self.halves,
            Kind::Byte => &mut self.bytes,
        };
        list.push(arg);
        list.len() - 1
    }
}
