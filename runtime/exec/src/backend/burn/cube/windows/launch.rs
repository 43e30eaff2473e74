//! The launches of windows.

use super::call::{ConvolveCall, PoolCall, WindowSlide};
use super::gather::{FactorShape, FactorSpaceLaunch};
use super::kernel::{ConvolveShape, ConvolveSpaceLaunch, convolve_in_registers, convolve_on_tensor_cores};
use super::pool::{PoolShape, PoolSpaceLaunch, PoolWork, pool_windows};
use super::slide::SlideLaunch;
use crate::backend::burn::cube::arguments::address_type;
use crate::backend::burn::cube::folds::fold;
use crate::backend::burn::cube::operands::ResultSlot;
use crate::backend::burn::cube::space::{WalkDim, strides, vector_along, walk, walk_of};
use crate::backend::burn::cube::tile::{UNITS, VECTOR};
use crate::engine::lowering::{extents, is_half};
use crate::kernels::KernelError;
use burn_backend::DType as BurnType;
use burn_backend::cubecl::dtype_to_storage_type;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use burn_std::Shape;
use cubecl::calculate_cube_count_elemwise;
use cubecl::prelude::*;

fn slides(all: &[WindowSlide], tensor: &CubeTensor) -> Vec<SlideLaunch> {
    let launch =
        |s: &WindowSlide| SlideLaunch::new(s.by_row, s.by_step, s.from, s.len, tensor.meta.strides[s.axis]);
    all.iter().map(launch).collect()
}

/// A factor of a convolution as a kernel reads it.
struct BoundFactor<'a> {
    rows: &'a [WalkDim],
    steps: &'a [WalkDim],
    slides: &'a [WindowSlide],
    by_row: Vec<usize>,
    by_step: Vec<usize>,
    by_group: Vec<usize>,
    tensor: &'a CubeTensor,
}

impl<'a> BoundFactor<'a> {
    /// The windows, which are the first operand, or the second one.
    fn new(call: &'a ConvolveCall, tensor: &'a CubeTensor, which: usize) -> BoundFactor<'a> {
        let (rows, slides) =
            if which == 0 { (&call.rows, &call.slides[..]) } else { (&call.columns, &[][..]) };
        BoundFactor {
            rows,
            steps: &call.steps,
            slides,
            by_row: strides(rows, tensor, which),
            by_step: strides(&call.steps, tensor, which),
            by_group: strides(&call.groups, tensor, which),
            tensor,
        }
    }

    /// How it is read: as vectors along what is summed or across it, as which it lies. Tiles for products in registers have vectors across it.
    fn shape(&self, tile_rows: usize, tile_steps: usize, on_tensor_cores: bool) -> FactorShape {
        let slid = self.slides.iter().map(|s| self.tensor.meta.strides[s.axis]);
        let others: Vec<usize> = slid.chain(self.by_group.iter().copied()).collect();
        let by_steps = vector_along(
            self.tensor,
            self.steps,
            &self.by_step,
            &[&self.by_row[..], &others].concat(),
            VECTOR,
        );
        let by_rows = vector_along(
            self.tensor,
            self.rows,
            &self.by_row,
            &[&self.by_step[..], &others].concat(),
            VECTOR,
        );
        let steps_first = self.by_step.last() == Some(&1);
        let along_steps = on_tensor_cores && (by_steps > by_rows || by_steps == by_rows && steps_first);
        FactorShape {
            rows: tile_rows,
            steps: tile_steps,
            along_steps,
            steps_first,
            width: if along_steps { by_steps } else { by_rows },
            slides: self.slides.iter().map(WindowSlide::shape).collect(),
        }
    }

    fn space(&self) -> FactorSpaceLaunch {
        FactorSpaceLaunch::new(
            walk(self.rows),
            walk(self.steps),
            self.by_row.iter().copied().collect(),
            self.by_step.iter().copied().collect(),
            self.by_group.iter().copied().collect(),
            slides(self.slides, self.tensor).into_iter().collect(),
        )
    }
}

/// What sums of elements are in.
fn widened(dtype: BurnType) -> BurnType {
    if is_half(dtype) { BurnType::F32 } else { dtype }
}

/// The result of a convolution of these operands.
pub(in super::super) fn convolve(
    call: &ConvolveCall,
    inputs: &[CubeTensor],
    outputs: &[ResultSlot<'_>],
) -> Result<Vec<CubeTensor>, KernelError> {
    let ([windowed, other], [slot]) = (inputs, outputs) else {
        return Err(KernelError::Count { expected: 2, found: inputs.len() });
    };
    let Some(sum) = &call.fold else {
        let out = slot.memory();
        ConvolveRun { call, windowed, other }.launch(&out, 0, &out.meta.strides);
        return Ok(vec![out]);
    };
    let shape = slot.ir.shape.to_vec();
    let chunks = [vec![call.tiles.chunks], extents(&shape)].concat();
    let (client, device) = (windowed.client.clone(), windowed.device.clone());
    let chunks = empty_device_contiguous_dtype(client, device, Shape::from(chunks), BurnType::F32);
    let strides: Vec<usize> = chunks.meta.strides.iter().copied().collect();
    ConvolveRun { call, windowed, other }.launch(&chunks, strides[0], &strides[1..]);
    Ok(fold(std::slice::from_ref(sum), &[chunks], outputs))
}

/// A convolution whose operands are there.
struct ConvolveRun<'a> {
    call: &'a ConvolveCall,
    windowed: &'a CubeTensor,
    other: &'a CubeTensor,
}

impl ConvolveRun<'_> {
    /// To a tensor, in which chunks are that far apart and whose other dims have these strides.
    fn launch(&self, out: &CubeTensor, apart: usize, out_strides: &[usize]) {
        let (call, tiles) = (self.call, self.call.tiles);
        let of = |dims: &[WalkDim]| -> Vec<usize> {
            dims.iter().map(|dim| dim.axes[2].map_or(0, |axis| out_strides[axis])).collect()
        };
        let (by_row, by_column, by_group) = (of(&call.rows), of(&call.columns), of(&call.groups));
        let others = [&by_row[..], &by_group, &[apart]].concat();
        let most = if tiles.on_tensor_cores { 2 } else { VECTOR };
        let width = vector_along(out, &call.columns, &by_column, &others, most);
        let [windows, factor] =
            [(self.windowed, 0), (self.other, 1)].map(|(t, i)| BoundFactor::new(call, t, i));
        let shape = ConvolveShape {
            windowed: windows.shape(tiles.rows, tiles.steps, tiles.on_tensor_cores),
            other: factor.shape(tiles.columns, tiles.steps, tiles.on_tensor_cores),
            width,
        };
        let count =
            |dims: &[WalkDim], tile: usize| dims.iter().map(|d| d.size).product::<usize>().div_ceil(tile);
        let (row_tiles, column_tiles) = (count(&call.rows, tiles.rows), count(&call.columns, tiles.columns));
        let cubes = row_tiles * column_tiles * count(&call.groups, 1) * tiles.chunks;
        let space = ConvolveSpaceLaunch::new(
            windows.space(),
            factor.space(),
            walk(&call.groups),
            by_row.into_iter().collect(),
            by_column.into_iter().collect(),
            by_group.into_iter().collect(),
            row_tiles as u32,
            column_tiles as u32,
            tiles.each as u32,
            apart,
        );
        self.run(out, space, shape, cubes as u32);
    }

    fn run(&self, out: &CubeTensor, space: ConvolveSpaceLaunch, shape: ConvolveShape, cubes: u32) {
        let [windowed, other] = [self.windowed, self.other].map(|t| t.clone().into_tensor_arg());
        let (client, units) = (&out.client, CubeDim::new_1d(UNITS as u32));
        let address =
            [self.windowed, self.other, out].map(address_type).into_iter().max().unwrap_or_default();
        let (read, read_other, width) = (shape.windowed.width, shape.other.width, shape.width);
        let [first, second, result] =
            [self.windowed, self.other, out].map(|t| dtype_to_storage_type(t.dtype));
        let result_arg = out.clone().into_tensor_arg();
        let cubes = CubeCount::Static(cubes, 1, 1);
        #[expect(unsafe_code, reason = "the kernels check how many rows, columns and steps there are")]
        // SAFETY: as said.
        unsafe {
            if self.call.tiles.on_tensor_cores {
                convolve_on_tensor_cores::launch_unchecked(
                    client, cubes, units, address, read, read_other, VECTOR, width, windowed, other,
                    result_arg, space, shape, first, result,
                );
            } else {
                let sum = widened(self.windowed.dtype);
                let bytes = VECTOR * sum.size();
                let sum = dtype_to_storage_type(sum);
                convolve_in_registers::launch_unchecked(
                    client, cubes, units, address, read, read_other, VECTOR, width, windowed, other,
                    result_arg, space, shape, bytes, first, second, result, sum,
                );
            }
        }
    }
}

/// The result of a pool of these operands: what is read, behind the taps where these choose.
pub(in super::super) fn pool(
    call: &PoolCall,
    inputs: Vec<CubeTensor>,
    outputs: &[ResultSlot<'_>],
) -> Result<Vec<CubeTensor>, KernelError> {
    let ([slot], Some(input)) = (outputs, inputs.last()) else {
        return Err(KernelError::Count { expected: 1, found: inputs.len() });
    };
    let (out, mut input, mut chosen) = (slot.memory(), input.clone(), inputs[0].clone());
    if call.work == PoolWork::Choose && chosen.meta.strides != input.meta.strides {
        (input, chosen) = (into_contiguous(input), into_contiguous(chosen));
    }
    let mut by_row = strides(&call.rows, &input, 0);
    let mut out_by_row = strides(&call.rows, &out, 1);
    let slid: Vec<usize> = call.slides.iter().map(|s| input.meta.strides[s.axis]).collect();
    let width = [&input, &chosen]
        .into_iter()
        .map(|t| vector_along(t, &call.rows, &by_row, &slid, VECTOR))
        .chain([vector_along(&out, &call.rows, &out_by_row, &[], VECTOR)])
        .min()
        .unwrap_or(1);
    let mut sizes: Vec<usize> = call.rows.iter().map(|dim| dim.size).collect();
    if let (Some(size), Some(from), Some(to)) = (sizes.last_mut(), by_row.last_mut(), out_by_row.last_mut()) {
        *size /= width;
        *from *= width;
        *to *= width;
    }
    let units: usize = sizes.iter().product();
    let space = PoolSpaceLaunch::new(
        walk_of(&sizes),
        walk(&call.taps),
        slides(&call.slides, &input).into_iter().collect(),
        by_row.into_iter().collect(),
        out_by_row.into_iter().collect(),
    );
    let shape =
        PoolShape { work: call.work, slides: call.slides.iter().map(WindowSlide::shape).collect(), width };
    let client = &out.client;
    let dim = CubeDim::new(client, units);
    let address = [&input, &chosen, &out].map(address_type).into_iter().max().unwrap_or_default();
    let types = [input.dtype, out.dtype, widened(input.dtype)].map(dtype_to_storage_type);
    #[expect(unsafe_code, reason = "the kernel checks how many results there are")]
    // SAFETY: as said.
    unsafe {
        pool_windows::launch_unchecked(
            client,
            calculate_cube_count_elemwise(client, units, dim),
            dim,
            address,
            width,
            input.into_tensor_arg(),
            chosen.into_tensor_arg(),
            out.clone().into_tensor_arg(),
            space,
            shape,
            types[0],
            types[1],
            types[2],
        );
    }
    Ok(vec![out])
}
