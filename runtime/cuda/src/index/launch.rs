//! The launches of lookups and their transposes.

use super::kernels::{IndexSpaceLaunch, IndexedLaunch, look_up_rows, scatter_each};
use super::order::{THREADS as ORDER_THREADS, chunk_of, order_entries, sort_chunks, sort_threads};
use super::sums::{SumShape, THREADS, scatter_few_rows, scatter_ordered};
use crate::folds::{chunk_memory, fold};
use crate::kernel::arguments::address_type;
use crate::kernel::operands::GpuLaunch;
use crate::kernel::space::{in_vectors, strides, vector_along, walk, walk_of};
use burn_backend::DType as BurnType;
use burn_backend::cubecl::dtype_to_storage_type;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use burn_std::{Metadata, Shape, Strides};
use cubecl::calculate_cube_count_elemwise;
use cubecl::prelude::*;
use meshwright_device::KernelError;
use meshwright_device::kernels::call::Computes;
use meshwright_device::kernels::index::{IndexCall, ScatterCall, ScatterWay};

/// Most threads that share a row's columns: together they read 128 bytes of `f32`, in vectors of four elements.
const LANES: usize = 8;

impl Computes<IndexCall> for GpuLaunch<'_> {
    /// Looks up the rows that indices name.
    fn compute(self, call: &IndexCall) -> Result<Vec<CubeTensor>, KernelError> {
        let ([table, indices @ ..], [slot]) = (&self.inputs.tensors[..], &self.outputs[..]) else {
            return Err(KernelError::Count { expected: 2, found: self.inputs.tensors.len() });
        };
        let out = slot.memory();
        let run = IndexRun::new(call, (table, &out), indices, 8);
        let threads = run.outer() * run.entries() * run.columns();
        let dim = CubeDim::new(&out.client, threads);
        #[expect(
            unsafe_code,
            reason = "the kernel checks how many elements there are, and indices by what is held"
        )]
        // SAFETY: as said.
        unsafe {
            look_up_rows::launch_unchecked(
                &out.client,
                calculate_cube_count_elemwise(&out.client, threads, dim),
                dim,
                run.address(),
                run.width,
                table.clone().into_tensor_arg(),
                run.indices(),
                out.clone().into_tensor_arg(),
                run.space(),
                run.width,
                dtype_to_storage_type(table.dtype),
                dtype_to_storage_type(out.dtype),
            );
        }
        Ok(vec![out])
    }
}

impl Computes<ScatterCall> for GpuLaunch<'_> {
    /// The sums of entries by the rows that indices name.
    fn compute(self, call: &ScatterCall) -> Result<Vec<CubeTensor>, KernelError> {
        let ([entries, indices @ ..], [slot]) = (&self.inputs.tensors[..], &self.outputs[..]) else {
            return Err(KernelError::Count { expected: 2, found: self.inputs.tensors.len() });
        };
        let ScatterCall { index, way, fold: sum } = call;
        if let (Some(sum), ScatterWay::Rows { chunks, each }) = (sum, way) {
            let all = chunk_memory(entries, &slot.ir.shape.to_vec(), *chunks);
            let first = CubeTensor { meta: without_first(&all.meta).into(), ..all.clone() };
            IndexRun::new(index, (&first, entries), indices, 4).by_rows(*chunks, *each, all.meta.strides[0]);
            return Ok(fold(std::slice::from_ref(sum), &[all], &self.outputs));
        }
        let out = slot.memory();
        let run = IndexRun::new(index, (&out, entries), indices, 4);
        match way {
            ScatterWay::Each => run.by_elements(),
            ScatterWay::Rows { chunks, each } => run.by_rows(*chunks, *each, 0),
            ScatterWay::Ordered => run.in_order(),
        }
        Ok(vec![out])
    }
}

/// A tensor without its first dim, where that begins.
fn without_first(meta: &Metadata) -> Metadata {
    let [shape, strides] =
        [meta.shape.iter(), meta.strides.iter()].map(|of| of.skip(1).copied().collect::<Vec<_>>());
    Metadata::new(Shape::from(shape), Strides::from(strides))
}

/// A lookup or scatter with its bound operands.
struct IndexRun<'a> {
    call: &'a IndexCall,
    table: &'a CubeTensor,
    entries: &'a CubeTensor,
    indices: &'a [CubeTensor],
    /// Elements of a vector along the last column.
    width: usize,
}

impl<'a> IndexRun<'a> {
    /// Vectors of at most `most` elements.
    fn new(
        call: &'a IndexCall,
        (table, entries): (&'a CubeTensor, &'a CubeTensor),
        indices: &'a [CubeTensor],
        most: usize,
    ) -> IndexRun<'a> {
        let dims = &call.dims;
        let of = |tensor: &CubeTensor, which: usize, more: Vec<usize>| {
            let others = [strides(&dims.outer, tensor, which), more].concat();
            let own = strides(&dims.columns, tensor, which);
            vector_along(tensor, &dims.columns, &own, &others, most)
        };
        let rows = dims.indexed.iter().map(|dim| table.meta.strides[dim.axis]).collect();
        let width = of(table, 0, rows).min(of(entries, 1, strides(&dims.entries, entries, 1)));
        IndexRun { call, table, entries, indices, width }
    }

    fn outer(&self) -> usize {
        self.call.dims.outer.iter().map(|dim| dim.size).product()
    }

    fn entries(&self) -> usize {
        self.call.dims.entries.iter().map(|dim| dim.size).product()
    }

    /// Number of columns in vectors.
    fn columns(&self) -> usize {
        self.call.dims.columns.iter().map(|dim| dim.size).product::<usize>() / self.width
    }

    fn address(&self) -> AddressType {
        let all = [self.table, self.entries].into_iter().chain(self.indices);
        all.map(address_type).max().unwrap_or_default()
    }

    fn indices(&self) -> SequenceArg<OwnedTensor<i32>> {
        self.indices.iter().map(|index| index.clone().into_tensor_arg()).collect()
    }

    fn space(&self) -> IndexSpaceLaunch {
        let (dims, width) = (&self.call.dims, self.width);
        let [mut table_by_column, mut by_column] =
            [(self.table, 0), (self.entries, 1)].map(|(tensor, which)| strides(&dims.columns, tensor, which));
        let sizes = in_vectors(&dims.columns, width, &mut [&mut table_by_column, &mut by_column]);
        let indexed = self.indices.iter().zip(&dims.indexed).enumerate().map(|(i, (index, dim))| {
            IndexedLaunch::new(
                dim.held.start as i32,
                dim.held.len() as u32,
                dim.held.len() as i32,
                strides(&dims.outer, index, 2 + i).into_iter().collect(),
                strides(&dims.entries, index, 2 + i).into_iter().collect(),
                self.table.meta.strides[dim.axis],
            )
        });
        IndexSpaceLaunch::new(
            walk(&dims.outer),
            walk(&dims.entries),
            walk_of(&sizes),
            indexed.collect(),
            self.call.rows as u32,
            strides(&dims.outer, self.table, 0).into_iter().collect(),
            table_by_column.into_iter().collect(),
            strides(&dims.outer, self.entries, 1).into_iter().collect(),
            strides(&dims.entries, self.entries, 1).into_iter().collect(),
            by_column.into_iter().collect(),
        )
    }

    /// Each element of the table on its own.
    fn by_elements(&self) {
        let threads = self.outer() * self.call.rows * self.columns();
        let client = &self.table.client;
        let dim = CubeDim::new(client, threads);
        #[expect(unsafe_code, reason = "the kernel checks how many elements there are")]
        // SAFETY: as said.
        unsafe {
            scatter_each::launch_unchecked(
                client,
                calculate_cube_count_elemwise(client, threads, dim),
                dim,
                self.address(),
                self.width,
                self.entries.clone().into_tensor_arg(),
                self.indices(),
                self.table.clone().into_tensor_arg(),
                self.space(),
                threads,
                self.width,
                dtype_to_storage_type(self.entries.dtype),
                dtype_to_storage_type(self.table.dtype),
            );
        }
    }

    fn sum_shape(&self) -> SumShape {
        SumShape { width: self.width, lanes: self.columns().next_power_of_two().min(LANES) }
    }

    /// Entries in the order of rows: the first entry of each row, and the entries.
    fn order(&self) -> [CubeTensor; 2] {
        let (client, device) = (&self.table.client, &self.table.device);
        let new = |many: usize| {
            let (client, device) = (client.clone(), device.clone());
            empty_device_contiguous_dtype(client, device, Shape::from([many]), BurnType::U32)
        };
        let (outer, entries, rows) = (self.outer(), self.entries(), self.call.rows);
        let chunk = chunk_of(entries);
        let sorted = entries.next_multiple_of(chunk);
        let [chunk_rows, chunk_entries] = [new(outer * sorted), new(outer * sorted)];
        let (starts, order) = (new(outer * (rows + 1)), new(outer * entries));
        let all = [&chunk_rows, &starts, &order].into_iter().chain(self.indices);
        let address = all.map(address_type).max().unwrap_or_default();
        let (sorts, places) = (outer * sorted / chunk, outer * (sorted + rows + 1).div_ceil(ORDER_THREADS));
        #[expect(unsafe_code, reason = "the kernels check how many rows and entries there are")]
        // SAFETY: as said.
        unsafe {
            sort_chunks::launch_unchecked(
                client,
                CubeCount::Static(sorts as u32, 1, 1),
                CubeDim::new_1d(sort_threads(chunk) as u32),
                address,
                self.indices(),
                chunk_rows.clone().into_tensor_arg(),
                chunk_entries.clone().into_tensor_arg(),
                self.space(),
                chunk,
            );
            order_entries::launch_unchecked(
                client,
                CubeCount::Static(places as u32, 1, 1),
                CubeDim::new_1d(ORDER_THREADS as u32),
                address,
                chunk_rows.into_tensor_arg(),
                chunk_entries.into_tensor_arg(),
                starts.clone().into_tensor_arg(),
                order.clone().into_tensor_arg(),
                entries as u32,
                rows as u32,
                chunk,
            );
        }
        [starts, order]
    }

    /// Entries are put in order, then summed.
    fn in_order(&self) {
        let [starts, order] = self.order();
        let (client, shape) = (&self.table.client, self.sum_shape());
        let blocks = self.columns().div_ceil(shape.lanes);
        let grid = self.outer() * self.call.rows.div_ceil(shape.groups()) * blocks;
        let address = [&starts, &order].map(address_type).into_iter().max().unwrap_or_default();
        #[expect(unsafe_code, reason = "the kernel checks how many rows and columns there are")]
        // SAFETY: as said.
        unsafe {
            scatter_ordered::launch_unchecked(
                client,
                CubeCount::Static(grid as u32, 1, 1),
                CubeDim::new_1d(THREADS as u32),
                self.address().max(address),
                self.width,
                self.entries.clone().into_tensor_arg(),
                starts.into_tensor_arg(),
                order.into_tensor_arg(),
                self.table.clone().into_tensor_arg(),
                self.space(),
                self.call.rows as u32,
                shape,
                dtype_to_storage_type(self.entries.dtype),
                dtype_to_storage_type(self.table.dtype),
            );
        }
    }

    /// Each row scans all entries, in chunks of `each` entries; results of chunks are `apart` elements apart.
    fn by_rows(&self, chunks: usize, each: usize, apart: usize) {
        let (client, shape) = (&self.table.client, self.sum_shape());
        let all_rows = self.outer() * self.call.rows;
        let grid = all_rows * self.columns().div_ceil(shape.lanes) * chunks;
        #[expect(unsafe_code, reason = "the kernel checks how many entries and columns there are")]
        // SAFETY: as said.
        unsafe {
            scatter_few_rows::launch_unchecked(
                client,
                CubeCount::Static(grid as u32, 1, 1),
                CubeDim::new_1d(THREADS as u32),
                self.address(),
                self.width,
                self.entries.clone().into_tensor_arg(),
                self.indices(),
                self.table.clone().into_tensor_arg(),
                self.space(),
                all_rows as u32,
                each as u32,
                apart,
                shape,
                dtype_to_storage_type(self.entries.dtype),
                dtype_to_storage_type(self.table.dtype),
            );
        }
    }
}
