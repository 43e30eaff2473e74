//! The launch of pools.

use super::launch::{slides, widened};
use super::pool::{PoolShape, PoolSpaceLaunch, pool_windows};
use crate::kernel::arguments::address_type;
use crate::kernel::operands::GpuLaunch;
use crate::kernel::space::{in_vectors, strides, vector_along, walk, walk_of};
use crate::kernel::tile::VECTOR;
use burn_backend::cubecl::dtype_to_storage_type;
use burn_cubecl::tensor::CubeTensor;
use cubecl::calculate_cube_count_elemwise;
use cubecl::prelude::*;
use meshwright_device::KernelError;
use meshwright_device::kernels::call::Computes;
use meshwright_device::kernels::windows::{PoolCall, WindowSlide};

impl Computes<PoolCall> for GpuLaunch<'_> {
    /// Operands are the one of the pool, after the taps if these choose.
    fn compute(self, call: &PoolCall) -> Result<Vec<CubeTensor>, KernelError> {
        let inputs = &self.inputs.tensors[..];
        let ([slot], [chosen, ..], [.., input]) = (&self.outputs[..], inputs, inputs) else {
            return Err(KernelError::Count { expected: 1, found: inputs.len() });
        };
        let out = slot.memory();
        let [mut by_row, mut chosen_by_row] = [input, chosen].map(|tensor| strides(&call.rows, tensor, 0));
        let mut out_by_row = strides(&call.rows, &out, 1);
        let along = |tensor: &CubeTensor, own: &[usize]| {
            let slid: Vec<usize> = call.slides.iter().map(|s| tensor.meta.strides[s.axis]).collect();
            vector_along(tensor, &call.rows, own, &slid, VECTOR)
        };
        let width = along(input, &by_row).min(along(chosen, &chosen_by_row)).min(vector_along(
            &out,
            &call.rows,
            &out_by_row,
            &[],
            VECTOR,
        ));
        let sizes = in_vectors(&call.rows, width, &mut [&mut by_row, &mut chosen_by_row, &mut out_by_row]);
        let units: usize = sizes.iter().product();
        let space = PoolSpaceLaunch::new(
            walk_of(&sizes),
            walk(&call.taps),
            slides(&call.slides, input).into_iter().collect(),
            by_row.into_iter().collect(),
            slides(&call.slides, chosen).into_iter().collect(),
            chosen_by_row.into_iter().collect(),
            out_by_row.into_iter().collect(),
        );
        let slides = call.slides.iter().map(WindowSlide::shape).collect();
        let client = &out.client;
        let dim = CubeDim::new(client, units);
        let types = [input.dtype, out.dtype, widened(input.dtype)].map(dtype_to_storage_type);
        #[expect(unsafe_code, reason = "the kernel checks how many results there are")]
        // SAFETY: as said.
        unsafe {
            pool_windows::launch_unchecked(
                client,
                calculate_cube_count_elemwise(client, units, dim),
                dim,
                [input, chosen, &out].map(address_type).into_iter().max().unwrap_or_default(),
                width,
                input.clone().into_tensor_arg(),
                chosen.clone().into_tensor_arg(),
                out.clone().into_tensor_arg(),
                space,
                PoolShape { work: call.work, slides, width },
                types[0],
                types[1],
                types[2],
            );
        }
        Ok(vec![out])
    }
}
