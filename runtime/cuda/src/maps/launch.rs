//! The launch of element-wise steps.

use super::kernel::{MapShape, MapSpaceLaunch, element_wise};
use crate::kernel::arguments::{
    Arguments, address_type, first, half_type, moves, strides, vector_width, walked,
};
use crate::kernel::drawn::Drawn;
use crate::kernel::elements::{OperandSource, Pace};
use crate::kernel::operands::{BoundTensors, GpuLaunch, OwnInputs, ResultSlot, placed};
use crate::kernel::views::sliced;
use burn_cubecl::tensor::CubeTensor;
use cubecl::calculate_cube_count_elemwise;
use cubecl::prelude::*;
use meshwright_device::KernelError;
use meshwright_device::kernels::call::Computes;
use meshwright_device::kernels::join::JoinCall;
use meshwright_device::kernels::map::{MapCall, MapCalls, MapOperand};
use meshwright_device::kernels::merged_dims::JointWalk;
use meshwright_plan::DType;
use meshwright_sorted::SortedMap;
use std::ops::Range;

/// Most steps of a launch, whose tensors are arguments of it.
const MOST: usize = 32;
/// Threads that a step begins at a multiple of, so that no warp computes two.
const PLANE: usize = 32;

impl Computes<JoinCall> for GpuLaunch<'_> {
    /// Ranges of tensors and what is computed of tensors, put one after the other along a dim, and numbers between them.
    fn compute(self, call: &JoinCall) -> Result<Vec<CubeTensor>, KernelError> {
        let GpuLaunch { step, inputs: OwnInputs { tensors: inputs, .. }, outputs, .. } = self;
        let out = outputs[0].memory();
        let ranges = |tensor: &CubeTensor, range: &Range<usize>| {
            let whole = tensor.meta.shape.iter().map(|size| 0..*size).enumerate();
            sliced(tensor, whole.map(|(dim, all)| if dim == call.axis { range.clone() } else { all }))
        };
        let missing = || KernelError::Unsupported("a range is joined that is not there".into());
        let mut members = vec![];
        let mut inputs = inputs.into_iter();
        for part in &call.parts {
            let to = |at: &usize| ranges(&out, &(*at..at + part.map.sizes[call.axis])).ok_or_else(missing);
            let outputs: Vec<CubeTensor> = part.at.iter().map(to).collect::<Result<_, _>>()?;
            let of_part = inputs.by_ref().take(part.map.tensors());
            let inputs: Vec<CubeTensor> = match &part.range {
                Some(range) => {
                    of_part.map(|x| ranges(&x, range).ok_or_else(missing)).collect::<Result<_, _>>()?
                }
                None => of_part.collect(),
            };
            let given = vec![None; inputs.len()];
            members.push(BoundMap::new(&part.map, BoundTensors { inputs, outputs, given }, &[], false));
        }
        launch_all(&members, step);
        Ok(vec![out])
    }
}

/// Element-wise steps that do not depend on each other.
pub(in super::super) struct MapRun<'a> {
    calls: &'a [MapCall],
    outputs: &'a [ResultSlot<'a>],
    drawn: Vec<Drawn>,
    /// The number of the step, in the memory of the device.
    step: &'a CubeTensor,
}

impl Computes<MapCalls> for GpuLaunch<'_> {
    fn compute(self, calls: &MapCalls) -> Result<Vec<CubeTensor>, KernelError> {
        let GpuLaunch { rng, step, inputs, outputs, .. } = self;
        let of_call = |call: &MapCall| -> Vec<Drawn> {
            let drawn = |operand: &MapOperand| match operand {
                MapOperand::Drawn(draw) => Some(Drawn::new(draw, call.sizes.len(), rng)),
                MapOperand::Tensor { .. } => None,
            };
            call.operands.iter().filter_map(drawn).collect()
        };
        let drawn = calls.0.iter().flat_map(of_call).collect();
        MapRun { calls: &calls.0, outputs: &outputs, drawn, step }.run(inputs)
    }
}

impl<'a> MapRun<'a> {
    /// For steps without draws.
    pub(in super::super) fn new(
        calls: &'a [MapCall],
        outputs: &'a [ResultSlot<'a>],
        step: &'a CubeTensor,
    ) -> MapRun<'a> {
        MapRun { calls, outputs, drawn: vec![], step }
    }

    /// The results of these inputs.
    pub(in super::super) fn run(&self, inputs: OwnInputs) -> Result<Vec<CubeTensor>, KernelError> {
        let members = self.members(inputs)?;
        launch_all(&members, self.step);
        Ok(members.into_iter().flat_map(|member| member.outputs).collect())
    }

    /// The steps with their tensors.
    fn members(&self, inputs: OwnInputs) -> Result<Vec<BoundMap<'_>>, KernelError> {
        let (mut outputs, mut drawn) = (self.outputs, &self.drawn[..]);
        let (mut tensors, mut ended) = (inputs.tensors.into_iter(), inputs.ended.into_iter());
        let mut members = vec![];
        for call in self.calls {
            let reads = dims(call).count();
            let draws = call.operands.len() - reads;
            let inputs = OwnInputs {
                tensors: tensors.by_ref().take(reads).collect(),
                ended: ended.by_ref().take(reads).collect(),
            };
            let results = &outputs[..call.outputs.len()];
            let tensors = placed(inputs, results, (&call.over, &call.sizes))?;
            members.push(BoundMap::new(call, tensors, &drawn[..draws], true));
            (outputs, drawn) = (&outputs[call.outputs.len()..], &drawn[draws..]);
        }
        Ok(members)
    }
}

/// Launches steps, those with vectors of one width and one half type at once. `clock` has the number of the step of training.
fn launch_all(members: &[BoundMap<'_>], clock: &CubeTensor) {
    let mut launches: SortedMap<(usize, Option<DType>), Vec<&BoundMap<'_>>> = SortedMap::new();
    for member in members {
        launches.entry((member.width, member.call.half)).or_default().push(member);
    }
    for ((width, half), members) in launches {
        members.chunks(MOST).for_each(|members| launch(width, half, members, clock));
    }
}

fn launch(width: usize, half: Option<DType>, members: &[&BoundMap<'_>], clock: &CubeTensor) {
    let (mut vectors, mut singles, mut results) =
        (Arguments::default(), Arguments::default(), Arguments::default());
    let (mut shapes, mut spaces, mut draws, mut units) = (vec![], vec![], vec![], 0);
    for member in members {
        let outputs = member.results(&mut results);
        let operands = member.sources(&outputs, (&mut vectors, &mut singles), draws.len());
        let of_outputs = member.inputs.len() + member.outputs.len();
        let strides = member.walk.strides[of_outputs..].iter();
        draws.extend(member.drawn.iter().zip(strides).map(|(drawn, strides)| drawn.launch(strides)));
        let rank = member.walk.sizes.len();
        let (program, pace) = (member.call.program.clone(), Pace { rank, along: rank - 1, width });
        spaces.push(member.space(units));
        units = (units + member.vectors()).next_multiple_of(PLANE);
        shapes.push(MapShape { program, operands, outputs, pace });
    }
    let client = &clock.client;
    let dim = CubeDim::new(client, units);
    let all = || members.iter().flat_map(|m| m.inputs.iter().chain(&m.outputs));
    let address = all().map(address_type).max().unwrap_or_default();
    moves("ElementWise", all());
    let step = (!draws.is_empty()).then(|| clock.clone().into_tensor_arg());
    #[expect(unsafe_code, reason = "the kernel checks how many vectors each step has")]
    // SAFETY: as said.
    unsafe {
        element_wise::launch_unchecked(
            client,
            calculate_cube_count_elemwise(client, units, dim),
            dim,
            address,
            width,
            vectors.words.into_iter().collect(),
            vectors.halves.into_iter().collect(),
            vectors.bytes.into_iter().collect(),
            singles.words.into_iter().collect(),
            singles.halves.into_iter().collect(),
            singles.bytes.into_iter().collect(),
            results.words.into_iter().collect(),
            results.halves.into_iter().collect(),
            results.bytes.into_iter().collect(),
            draws.into_iter().collect(),
            step.into_iter().collect(),
            spaces.into_iter().collect(),
            shapes,
            half_type(half),
        );
    }
}

/// An element-wise step with its bound operands.
struct BoundMap<'a> {
    call: &'a MapCall,
    inputs: Vec<CubeTensor>,
    outputs: Vec<CubeTensor>,
    drawn: &'a [Drawn],
    /// For each input the result that takes its storage.
    given: Vec<Option<usize>>,
    /// Along the inputs, the outputs, then the draws.
    walk: JointWalk,
    width: usize,
}

impl<'a> BoundMap<'a> {
    /// For operands and results, with the result that takes each operand's storage. `gaps` says whether rows of results
    /// may have gaps.
    fn new(
        call: &'a MapCall,
        BoundTensors { inputs, outputs, given }: BoundTensors,
        drawn: &'a [Drawn],
        gaps: bool,
    ) -> BoundMap<'a> {
        let own: Vec<Option<usize>> = (0..call.sizes.len()).map(Some).collect();
        let all: Vec<Vec<u64>> = (inputs.iter().zip(dims(call)).map(|(input, dims)| strides(input, dims)))
            .chain(outputs.iter().map(|out| strides(out, &own)))
            .chain(drawn.iter().map(|drawn| drawn.strides.clone()))
            .collect();
        let walk = match call.program.has_positions() {
            true => JointWalk::apart(&call.sizes, &all),
            false => JointWalk::joined(&call.sizes, &all),
        };
        let all: Vec<(usize, &CubeTensor)> = inputs.iter().chain(&outputs).enumerate().collect();
        let width = vector_width(&walk, &all[..inputs.len()], &all[inputs.len()..], gaps);
        BoundMap { call, inputs, outputs, drawn, given, walk, width }
    }

    /// Number of vectors.
    fn vectors(&self) -> usize {
        let outer: usize = self.walk.sizes[..self.walk.sizes.len() - 1].iter().product();
        outer * self.walk.inner().div_ceil(self.width)
    }

    fn is_vector(&self, input: usize, width: usize) -> bool {
        self.walk.is_vectors(input, first(&self.inputs[input]), width)
    }

    /// The slots and types of the results, whose arguments are added.
    fn results(&self, arguments: &mut Arguments) -> Vec<(usize, DType)> {
        let mut slots = vec![];
        for (o, (out, dtype)) in self.outputs.iter().zip(&self.call.outputs).enumerate() {
            let arg = walked(&self.walk, out, self.inputs.len() + o);
            slots.push((arguments.push(*dtype, arg), *dtype));
        }
        slots
    }

    /// Sources of operands, whose arguments are added: as vectors, or one element at a time. `drawn` draws come before
    /// these.
    fn sources(
        &self,
        outputs: &[(usize, DType)],
        (vectors, singles): (&mut Arguments, &mut Arguments),
        drawn: usize,
    ) -> Vec<(OperandSource, DType)> {
        let (mut sources, mut input, mut draw) = (vec![], 0, 0);
        for operand in &self.call.operands {
            let MapOperand::Tensor { dtype, .. } = operand else {
                let strides = &self.walk.strides[self.inputs.len() + self.outputs.len() + draw];
                let source = self.drawn[draw].source(drawn + draw, strides, self.width);
                sources.push((OperandSource::Drawn(source), DType::Bool));
                draw += 1;
                continue;
            };
            let i = input;
            input += 1;
            let source = match (self.given[i], self.walk.strides[i].last()) {
                (Some(o), _) => OperandSource::Output(outputs[o].0),
                (None, last) => {
                    let arg = walked(&self.walk, &self.inputs[i], i);
                    match last {
                        _ if self.width > 1 && self.is_vector(i, self.width) => {
                            OperandSource::Vector(vectors.push(*dtype, arg))
                        }
                        Some(0) => OperandSource::One(singles.push(*dtype, arg)),
                        _ => OperandSource::Each(singles.push(*dtype, arg)),
                    }
                }
            };
            sources.push((source, *dtype));
        }
        sources
    }

    /// The dims, for threads from `first` on.
    fn space(&self, first: usize) -> MapSpaceLaunch {
        let mut sizes = self.walk.sizes.clone();
        if let Some(inner) = sizes.last_mut() {
            *inner = inner.div_ceil(self.width);
        }
        let starts: &[usize] = if self.call.program.has_positions() { &self.call.starts } else { &[] };
        let starts = starts.iter().map(|n| *n as u32).collect();
        MapSpaceLaunch::new(sizes.into_iter().collect(), starts, first, self.vectors())
    }
}

/// The dims of each tensor that is read.
fn dims(call: &MapCall) -> impl Iterator<Item = &Vec<Option<usize>>> {
    call.operands.iter().filter_map(|operand| match operand {
        MapOperand::Tensor { dims, .. } => Some(dims),
        MapOperand::Drawn(..) => None,
    })
}
