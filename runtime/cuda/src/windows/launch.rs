//! The launches of windows.

use super::cells::{CELL, CellShape};
use super::few_columns::{EachShape, EachSpaceLaunch, convolve_each};
use super::gather::{FactorShape, FactorSpaceLaunch};
use super::kernel::{ConvolveShape, ConvolveSpaceLaunch, convolve_on_tensor_cores};
use super::registers::{RegistersShape, convolve_in_registers};
use super::window_map::{WindowMapLaunch, WindowMapShape};
use crate::folds::{chunk_memory, fold};
use crate::kernel::arguments::address_type;
use crate::kernel::operands::GpuLaunch;
use crate::kernel::space::{WalkDim, in_vectors, strides, vector_along, walk, walk_of};
use crate::kernel::tile::{UNITS, VECTOR};
use burn_backend::DType as BurnType;
use burn_backend::cubecl::dtype_to_storage_type;
use burn_cubecl::tensor::CubeTensor;
use cubecl::calculate_cube_count_elemwise;
use cubecl::prelude::*;
use meshwright_device::KernelError;
use meshwright_device::kernels::call::Computes;
use meshwright_device::kernels::windows::{ConvolveCall, ConvolveWay, WindowSlide};
use meshwright_device::stored::is_half;

pub(super) fn slides(all: &[WindowSlide], tensor: &CubeTensor) -> Vec<WindowMapLaunch> {
    let launch = |s: &WindowSlide| {
        WindowMapLaunch::new(s.by_row, s.by_step, s.from, s.len, tensor.meta.strides[s.axis])
    };
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
        let slides = if which == 0 { &call.slides[..] } else { &[][..] };
        let is_columns = which == 1 && call.tiles.way != ConvolveWay::Each;
        let rows = if is_columns { &call.columns } else { &call.rows };
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

    /// Strides along the reduction dim, sliding dims, and groups.
    fn others(&self) -> Vec<usize> {
        let slid = self.slides.iter().map(|s| self.tensor.meta.strides[s.axis]);
        slid.chain(self.by_step.iter().copied()).chain(self.by_group.iter().copied()).collect()
    }

    /// Widest vectors, of at most these widths, along the reduction dim and across it.
    fn widths(&self, most: [usize; 2]) -> [usize; 2] {
        let slid: Vec<usize> = self.slides.iter().map(|s| self.tensor.meta.strides[s.axis]).collect();
        let others = [&self.by_row[..], &slid, &self.by_group].concat();
        [
            vector_along(self.tensor, self.steps, &self.by_step, &others, most[0]),
            vector_along(self.tensor, self.rows, &self.by_row, &self.others(), most[1]),
        ]
    }

    fn slide_shapes(&self) -> Vec<WindowMapShape> {
        self.slides.iter().map(WindowSlide::shape).collect()
    }

    /// Tiles for tensor cores: as vectors along the reduction dim or across it, as the factor is stored.
    fn shape(&self, tile_rows: usize, tile_steps: usize) -> FactorShape {
        let [by_steps, by_rows] = self.widths([VECTOR; 2]);
        let steps_first = self.by_step.last() == Some(&1);
        let along_steps = by_steps > by_rows || by_steps == by_rows && steps_first;
        FactorShape {
            rows: tile_rows,
            steps: tile_steps,
            along_steps,
            width: if along_steps { by_steps } else { by_rows },
            slides: self.slide_shapes(),
        }
    }

    /// Tiles for matmuls in registers. Columns of a vector, which is written at once, are contiguous.
    fn cells(&self, tile_rows: usize, tile_steps: usize, is_columns: bool) -> CellShape {
        let slides = self.slide_shapes();
        let (rows, steps) = (tile_rows, tile_steps);
        let single = CellShape { rows, steps, along_steps: false, width: 1, beside: CELL, slides };
        let [by_steps, by_rows] = self.widths([CELL.min(single.own_steps()), CELL]);
        let (along_steps, width) = (by_steps > by_rows, by_steps.max(by_rows));
        let beside = if is_columns { CELL } else { by_rows };
        CellShape { along_steps, width, beside, ..single }
    }

    /// Rows whose last dim is walked in vectors of this width.
    fn space(&self, width: usize) -> FactorSpaceLaunch {
        let mut by_row = self.by_row.clone();
        FactorSpaceLaunch::new(
            walk_of(&in_vectors(self.rows, width, &mut [&mut by_row])),
            walk(self.steps),
            by_row.into_iter().collect(),
            self.by_step.iter().copied().collect(),
            self.by_group.iter().copied().collect(),
            slides(self.slides, self.tensor).into_iter().collect(),
        )
    }
}

/// Type of the sum of elements.
pub(super) fn widened(dtype: BurnType) -> BurnType {
    if is_half(dtype) { BurnType::F32 } else { dtype }
}

impl Computes<ConvolveCall> for GpuLaunch<'_> {
    fn compute(self, call: &ConvolveCall) -> Result<Vec<CubeTensor>, KernelError> {
        let ([windowed, other], [slot]) = (&self.inputs.tensors[..], &self.outputs[..]) else {
            return Err(KernelError::Count { expected: 2, found: self.inputs.tensors.len() });
        };
        let Some(sum) = &call.fold else {
            let out = slot.memory();
            ConvolveRun { call, windowed, other }.launch(&out, 0, &out.meta.strides);
            return Ok(vec![out]);
        };
        let chunks = chunk_memory(windowed, &slot.ir.shape.to_vec(), call.tiles.chunks);
        let strides: Vec<usize> = chunks.meta.strides.iter().copied().collect();
        ConvolveRun { call, windowed, other }.launch(&chunks, strides[0], &strides[1..]);
        Ok(fold(std::slice::from_ref(sum), &[chunks], &self.outputs))
    }
}

/// A convolution with its bound operands.
struct ConvolveRun<'a> {
    call: &'a ConvolveCall,
    windowed: &'a CubeTensor,
    other: &'a CubeTensor,
}

impl ConvolveRun<'_> {
    /// Launches the kernel. `apart` is the distance between chunks in `out`, and `out_strides` are the strides of its other dims.
    fn launch(&self, out: &CubeTensor, apart: usize, out_strides: &[usize]) {
        let (call, tiles) = (self.call, self.call.tiles);
        let of = |dims: &[WalkDim]| -> Vec<usize> {
            dims.iter().map(|dim| dim.axes[2].map_or(0, |axis| out_strides[axis])).collect()
        };
        if tiles.way == ConvolveWay::Each {
            return self.launch_each(out, apart, of(&call.rows));
        }
        let on_tensor_cores = tiles.way == ConvolveWay::TensorCores;
        let (by_row, by_column, by_group) = (of(&call.rows), of(&call.columns), of(&call.groups));
        let others = [&by_row[..], &by_group, &[apart]].concat();
        let most = if on_tensor_cores { 2 } else { CELL };
        let width = vector_along(out, &call.columns, &by_column, &others, most);
        let [windows, factor] =
            [(self.windowed, 0), (self.other, 1)].map(|(t, i)| BoundFactor::new(call, t, i));
        let count =
            |dims: &[WalkDim], tile: usize| dims.iter().map(|d| d.size).product::<usize>().div_ceil(tile);
        let (row_tiles, column_tiles) = (count(&call.rows, tiles.rows), count(&call.columns, tiles.columns));
        let cubes = row_tiles * column_tiles * count(&call.groups, 1) * tiles.chunks;
        let space = ConvolveSpaceLaunch::new(
            windows.space(1),
            factor.space(1),
            walk(&call.groups),
            by_row.into_iter().collect(),
            by_column.into_iter().collect(),
            by_group.into_iter().collect(),
            row_tiles as u32,
            column_tiles as u32,
            tiles.each as u32,
            apart,
        );
        if on_tensor_cores {
            let shape = ConvolveShape {
                windowed: windows.shape(tiles.rows, tiles.steps),
                other: factor.shape(tiles.columns, tiles.steps),
                width,
            };
            self.on_tensor_cores(out, space, shape, cubes as u32);
        } else {
            let shape = RegistersShape {
                windowed: windows.cells(tiles.rows, tiles.steps, false),
                other: factor.cells(tiles.columns, tiles.steps, true),
                width,
            };
            self.in_registers(out, space, shape, cubes as u32);
        }
    }

    /// Each element on its own, or vectors of them.
    fn launch_each(&self, out: &CubeTensor, apart: usize, mut out_by_row: Vec<usize>) {
        let (call, tiles) = (self.call, self.call.tiles);
        let factors = [(self.windowed, 0), (self.other, 1)].map(|(t, i)| BoundFactor::new(call, t, i));
        let mut width = vector_along(out, &call.rows, &out_by_row, &[apart], VECTOR);
        // A factor has a vector of its own for that of the result, or one element for all of it.
        let vectors = factors.each_ref().map(|factor| match factor.by_row.last() {
            Some(0) => None,
            _ => Some(vector_along(factor.tensor, factor.rows, &factor.by_row, &factor.others(), VECTOR)),
        });
        vectors.iter().flatten().for_each(|of| width = width.min(*of));
        // Sliding dims have offsets of their own.
        if call.slides.iter().any(|s| s.row + 1 == call.rows.len()) {
            width = 1;
        }
        let are_vectors = vectors.map(|of| of.is_some() && width > 1);
        let [read, read_other] = are_vectors.map(|is| if is { width } else { 1 });
        let sizes = in_vectors(&call.rows, width, &mut [&mut out_by_row]);
        let units = sizes.iter().product::<usize>() * tiles.chunks;
        let [windows, factor] = factors.map(|factor| factor.space(width));
        let space = EachSpaceLaunch::new(
            windows,
            factor,
            out_by_row.into_iter().collect(),
            tiles.each as u32,
            tiles.chunks as u32,
            apart,
        );
        let slides = call.slides.iter().map(WindowSlide::shape).collect();
        let [first, second, result] =
            [self.windowed, self.other, out].map(|t| dtype_to_storage_type(t.dtype));
        let dim = CubeDim::new(&out.client, units);
        #[expect(unsafe_code, reason = "the kernel checks how many results, steps and chunks there are")]
        // SAFETY: as said.
        unsafe {
            convolve_each::launch_unchecked(
                &out.client,
                calculate_cube_count_elemwise(&out.client, units, dim),
                dim,
                self.address(out),
                read,
                read_other,
                width,
                self.windowed.clone().into_tensor_arg(),
                self.other.clone().into_tensor_arg(),
                out.clone().into_tensor_arg(),
                space,
                EachShape { slides, width, are_vectors },
                first,
                second,
                result,
                dtype_to_storage_type(widened(self.windowed.dtype)),
            );
        }
    }

    fn address(&self, out: &CubeTensor) -> AddressType {
        [self.windowed, self.other, out].map(address_type).into_iter().max().unwrap_or_default()
    }

    fn on_tensor_cores(
        &self,
        out: &CubeTensor,
        space: ConvolveSpaceLaunch,
        shape: ConvolveShape,
        cubes: u32,
    ) {
        #[expect(unsafe_code, reason = "the kernel checks how many rows, columns and steps there are")]
        // SAFETY: as said.
        unsafe {
            convolve_on_tensor_cores::launch_unchecked(
                &out.client,
                CubeCount::Static(cubes, 1, 1),
                CubeDim::new_1d(UNITS as u32),
                self.address(out),
                shape.windowed.width,
                shape.other.width,
                VECTOR,
                shape.width,
                self.windowed.clone().into_tensor_arg(),
                self.other.clone().into_tensor_arg(),
                out.clone().into_tensor_arg(),
                space,
                shape,
                dtype_to_storage_type(self.windowed.dtype),
                dtype_to_storage_type(out.dtype),
            );
        }
    }

    fn in_registers(&self, out: &CubeTensor, space: ConvolveSpaceLaunch, shape: RegistersShape, cubes: u32) {
        let sum = widened(self.windowed.dtype);
        #[expect(unsafe_code, reason = "the kernel checks how many rows, columns and steps there are")]
        // SAFETY: as said.
        unsafe {
            convolve_in_registers::launch_unchecked(
                &out.client,
                CubeCount::Static(cubes, 1, 1),
                CubeDim::new_1d(UNITS as u32),
                self.address(out),
                shape.windowed.width,
                shape.other.width,
                CELL,
                shape.width,
                self.windowed.clone().into_tensor_arg(),
                self.other.clone().into_tensor_arg(),
                out.clone().into_tensor_arg(),
                space,
                shape,
                CELL * sum.size(),
                dtype_to_storage_type(self.windowed.dtype),
                dtype_to_storage_type(self.other.dtype),
                dtype_to_storage_type(out.dtype),
                dtype_to_storage_type(sum),
            );
        }
    }
}
