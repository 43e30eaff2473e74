//! The launch of a group of steps along rows.

use super::kernel::along_rows;
use super::shape::{RowShape, RowSpaceLaunch, WARP};
use super::staging::staged;
use crate::folds::{chunk_memory, fold};
use crate::kernel::arguments::{
    Arguments, address_type, first, half_type, moves, strides, vector_width, walked,
};
use crate::kernel::drawn::Drawn;
use crate::kernel::elements::{OperandSource, Pace};
use crate::kernel::operands::{BoundTensors, GpuLaunch, OwnInputs, ResultSlot, placed};
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;
use meshwright_device::KernelError;
use meshwright_device::kernels::call::Computes;
use meshwright_device::kernels::fold::FoldCall;
use meshwright_device::kernels::fold_blocks::BLOCKS;
use meshwright_device::kernels::map::MapOperand;
use meshwright_device::kernels::merged_dims::JointWalk;
use meshwright_device::kernels::rows::ResultOf;
use meshwright_device::kernels::rows::call::{MOST_THREADS, RowCall, THREADS, THREADS_OF_LONG, each};
use meshwright_exec::backend::RngState;
use meshwright_plan::DType;

/// Most blocks that sum over their rows, twice as many as keep a large GPU busy: a multiprocessor holds four of those
/// whose threads use few registers.
const BLOCKS_OF_COLUMNS: usize = 2 * BLOCKS;
/// Vectors that a thread reads before it computes.
const AHEAD: usize = 4;

impl Computes<RowCall> for GpuLaunch<'_> {
    fn compute(self, call: &RowCall) -> Result<Vec<CubeTensor>, KernelError> {
        let GpuLaunch { rng, step, inputs, outputs, .. } = self;
        let (results, columns) = outputs.split_at(outputs.len() - call.columns);
        let bound = BoundRows::new(call, rng, inputs, results)?;
        let sums = bound.launch(step);
        let mut made = bound.outputs;
        if let Some(sums) = sums {
            made.extend(fold(&sums.folds, &sums.parts, columns));
        }
        Ok(made)
    }
}

/// Each block's sums over its rows, and the folds that combine them.
struct ColumnParts {
    parts: Vec<CubeTensor>,
    folds: Vec<FoldCall>,
}

/// A row group with its bound operands.
struct BoundRows<'a> {
    call: &'a RowCall,
    inputs: Vec<CubeTensor>,
    outputs: Vec<CubeTensor>,
    drawn: Vec<Drawn>,
    /// For each input the result that takes its storage.
    given: Vec<Option<usize>>,
    /// Number of dims of the rows, and of dims along a row; the walk of the inputs, the outputs, then the draws.
    walk: JointWalk,
    rows: usize,
    width: usize,
}

impl<'a> BoundRows<'a> {
    fn new(
        call: &'a RowCall,
        rng: RngState,
        inputs: OwnInputs,
        results: &[ResultSlot<'_>],
    ) -> Result<BoundRows<'a>, KernelError> {
        // The dim of a row that is made up is none of a tensor's.
        let whole = &call.sizes[call.made_up..];
        let BoundTensors { inputs, outputs, given } = placed(inputs, results, (&call.over, whole))?;
        let drawn: Vec<Drawn> =
            call.operands.iter().filter_map(|o| drawn(o, call.sizes.len(), rng)).collect();
        let all: Vec<Vec<u64>> =
            (inputs.iter().zip(call.tensors()).map(|(input, dims)| strides(input, dims)))
                .chain(outputs.iter().zip(&call.results).map(|(out, r)| strides(out, &call.dims_of(r.1))))
                .chain(drawn.iter().map(|drawn| drawn.strides.clone()))
                .collect();
        let (rows, walk) = match call.has_positions {
            true => (call.rows, JointWalk::apart(&call.sizes, &all)),
            false => JointWalk::of_folds(&call.sizes, call.rows, &all),
        };
        let mut bound = BoundRows { call, inputs, outputs, drawn, given, walk, rows, width: 1 };
        bound.width = bound.widest();
        Ok(bound)
    }

    /// Widest vectors of the tensors that have an element for each of a row.
    fn widest(&self) -> usize {
        let inputs = self.inputs.iter().enumerate().filter(|(i, _)| !self.is_of_row(*i));
        let outputs =
            self.outputs.iter().enumerate().filter(|(o, _)| self.call.results[*o].1 == ResultOf::Elements);
        let inputs: Vec<(usize, &CubeTensor)> = inputs.collect();
        let outputs: Vec<(usize, &CubeTensor)> =
            outputs.map(|(o, out)| (self.inputs.len() + o, out)).collect();
        // Sums over rows have no gaps, and are written in words.
        let gaps = self.call.columns == 0;
        vector_width(&self.walk, &inputs, &outputs, gaps)
    }

    /// Whether an input has one element for a row.
    fn is_of_row(&self, input: usize) -> bool {
        self.walk.strides[input][self.rows..].iter().all(|stride| *stride == 0)
    }

    /// Launches the kernel. Returns the sums over the rows, if there are any.
    fn launch(&self, step: &CubeTensor) -> Option<ColumnParts> {
        let (mut vectors, mut singles) = (Arguments::default(), Arguments::default());
        let (mut whole, mut of_rows) = (Arguments::default(), Arguments::default());
        let mut results = vec![];
        for (o, (out, (dtype, of))) in self.outputs.iter().zip(&self.call.results).enumerate() {
            let arg = walked(&self.walk, out, self.inputs.len() + o);
            let list = if *of == ResultOf::Elements { &mut whole } else { &mut of_rows };
            results.push((list.push(*dtype, arg), *dtype));
        }
        let operands = self.sources(&results, (&mut vectors, &mut singles));
        let of_draws = &self.walk.strides[self.inputs.len() + self.outputs.len()..];
        let draws = self.drawn.iter().zip(of_draws).map(|(drawn, strides)| drawn.launch(strides));
        let (shape, space) = (self.shape(operands, results), self.space());
        let many: usize = self.walk.sizes[..self.rows].iter().product();
        let step = (!self.drawn.is_empty()).then(|| step.clone().into_tensor_arg());
        let address = self.inputs.iter().chain(&self.outputs).map(address_type).max().unwrap_or_default();
        let client = &self.inputs.first().or(self.outputs.first())?.client;
        let hardware = &client.properties().hardware;
        let size = (hardware.num_streaming_multiprocessors, hardware.max_shared_memory_size);
        let in_turn = staged(&shape, self.vectors(), many, size);
        let blocks = in_turn.as_ref().map_or_else(|| self.blocks(many, shape.beside), |(_, blocks)| *blocks);
        let shape = in_turn.map_or(shape, |(shape, _)| shape);
        let sums = self.column_parts(blocks);
        let parts = || sums.iter().flat_map(|sums| &sums.parts);
        moves("AlongRows", self.inputs.iter().chain(&self.outputs).chain(parts()));
        #[expect(unsafe_code, reason = "the kernel checks how many rows there are, and vectors of a row")]
        // SAFETY: as said.
        unsafe {
            along_rows::launch_unchecked(
                client,
                CubeCount::Static(blocks as u32, 1, 1),
                CubeDim::new_1d((shape.threads * shape.beside) as u32),
                address,
                self.width,
                1,
                vectors.words.into_iter().collect(),
                vectors.halves.into_iter().collect(),
                vectors.bytes.into_iter().collect(),
                singles.words.into_iter().collect(),
                singles.halves.into_iter().collect(),
                singles.bytes.into_iter().collect(),
                whole.words.into_iter().collect(),
                whole.halves.into_iter().collect(),
                whole.bytes.into_iter().collect(),
                of_rows.words.into_iter().collect(),
                of_rows.halves.into_iter().collect(),
                of_rows.bytes.into_iter().collect(),
                parts().map(|part| part.clone().into_tensor_arg()).collect(),
                draws.collect(),
                step.into_iter().collect(),
                space,
                shape,
                half_type(self.call.half),
            );
        }
        sums
    }

    /// A block has parallel rows, or if it sums over rows, some of these one after the other.
    fn blocks(&self, rows: usize, beside: usize) -> usize {
        let all = rows.div_ceil(beside);
        if self.call.columns > 0 { all.min(BLOCKS_OF_COLUMNS) } else { all }
    }

    /// Memory for the blocks' sums over their rows.
    fn column_parts(&self, blocks: usize) -> Option<ColumnParts> {
        let RowCall { columns, results, sizes, rows, .. } = self.call;
        let like = self.inputs.first().or(self.outputs.first()).filter(|_| *columns > 0)?;
        let along = &sizes[*rows..];
        let parts = (0..*columns).map(|_| chunk_memory(like, along, blocks)).collect();
        let of = |(dtype, _): &(DType, ResultOf)| FoldCall::sum_of_chunks(blocks, along, *dtype);
        let folds = results[results.len() - columns..].iter().map(of).collect::<Option<_>>()?;
        Some(ColumnParts { parts, folds })
    }

    /// Vectors of a row.
    fn vectors(&self) -> usize {
        let outer: usize = self.walk.sizes[self.rows..self.walk.sizes.len() - 1].iter().product();
        outer * self.walk.inner().div_ceil(self.width)
    }

    fn shape(&self, operands: Vec<(OperandSource, DType)>, results: Vec<(usize, DType)>) -> RowShape {
        let RowCall { passes, folds, held, values, columns, .. } = self.call;
        let (vectors, rank) = (self.vectors(), self.walk.sizes.len());
        // Gaps between shorter rows of a row are read too.
        let each = (each(*held, *columns) / self.width).max(vectors.div_ceil(MOST_THREADS)).max(1);
        let (threads, all) = match self.call.keeps {
            true => (threads(vectors, each), THREADS),
            false => (THREADS_OF_LONG, THREADS_OF_LONG),
        };
        let each = if self.call.keeps { vectors.div_ceil(threads) } else { 0 };
        RowShape {
            passes: passes.clone(),
            folds: folds.clone(),
            operands,
            results,
            held: *held,
            values: *values,
            columns: *columns,
            rows: self.rows,
            pace: Pace { rank, along: rank - 1, width: self.width },
            threads,
            beside: (all / threads).max(1),
            each,
            ahead: AHEAD,
            even: each * threads == vectors,
            reaches: !self.walk.inner().is_multiple_of(self.width),
            staging: None,
        }
    }

    fn space(&self) -> RowSpaceLaunch {
        let mut sizes = self.walk.sizes.clone();
        if let Some(inner) = sizes.last_mut() {
            *inner = inner.div_ceil(self.width);
        }
        let starts: &[usize] = if self.call.has_positions { &self.call.starts } else { &[] };
        let rows: usize = sizes[..self.rows].iter().product();
        RowSpaceLaunch::new(
            sizes.into_iter().collect(),
            starts.iter().map(|n| *n as u32).collect(),
            rows,
            self.vectors(),
            self.walk.inner(),
        )
    }

    /// Sources of operands, whose arguments are added.
    fn sources(
        &self,
        results: &[(usize, DType)],
        (vectors, singles): (&mut Arguments, &mut Arguments),
    ) -> Vec<(OperandSource, DType)> {
        let (mut sources, mut input, mut draw) = (vec![], 0, 0);
        for operand in &self.call.operands {
            let MapOperand::Tensor { dtype, .. } = operand else {
                let strides = &self.walk.strides[self.inputs.len() + self.outputs.len() + draw];
                let source = self.drawn[draw].source(draw, strides, self.width);
                sources.push((OperandSource::Drawn(source), DType::Bool));
                draw += 1;
                continue;
            };
            let (i, tensor) = (input, &self.inputs[input]);
            input += 1;
            let arg = || walked(&self.walk, tensor, i);
            let source = match (self.given[i], self.walk.strides[i].last()) {
                (Some(o), _) => OperandSource::Output(results[o].0),
                _ if self.width > 1 && self.walk.is_vectors(i, first(tensor), self.width) => {
                    OperandSource::Vector(vectors.push(*dtype, arg()))
                }
                (None, Some(0)) => OperandSource::One(singles.push(*dtype, arg())),
                _ => OperandSource::Each(singles.push(*dtype, arg())),
            };
            sources.push((source, *dtype));
        }
        sources
    }
}

/// Threads for a row of these vectors, `each` of them for a thread: whole warps if one is not enough.
fn threads(vectors: usize, each: usize) -> usize {
    let threads = vectors.div_ceil(each).max(vectors.min(WARP));
    if threads > WARP { threads.next_multiple_of(WARP) } else { threads.next_power_of_two() }
}

fn drawn(operand: &MapOperand, dims: usize, rng: RngState) -> Option<Drawn> {
    match operand {
        MapOperand::Drawn(draw) => Some(Drawn::new(draw, dims, rng)),
        MapOperand::Tensor { .. } => None,
    }
}
