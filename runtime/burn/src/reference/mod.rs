//! The kernels of GPUs as plain loops: they run a device plan for a GPU on any machine. Tests compare the decisions of
//! the passes for devices and the lowering with this reference; it says nothing about the kernels that run on a GPU.
//!
//! Their elements are `f64`, rounded to `f32` after each operation as in registers of a GPU, and to the dtype of a result where
//! it is stored.

mod attention;
mod folds;
mod index;
mod maps;
mod matmul;
mod matmul_group;
mod rows;
mod scalar;
mod values;
mod windows;

use meshwright_device::KernelError;
use meshwright_device::kernels::Kernel;
use meshwright_device::kernels::call::Launcher;
use meshwright_device::launch::Launch;
use meshwright_exec::backend::RngState;
pub(super) use values::RefTensor;

/// A launch that plain loops compute.
struct Reference<'a> {
    rng: RngState,
    inputs: &'a [RefTensor],
    /// Zeros, which become the results.
    outputs: &'a mut [RefTensor],
}

impl Launcher for Reference<'_> {
    type Results = ();
}

fn other_operands() -> KernelError {
    KernelError::Unsupported("a launch has other operands than its kernel".into())
}

/// The results of a kernel.
pub(super) fn run(
    (kernel, rng): (&Kernel, RngState),
    inputs: &[RefTensor],
    launch: &Launch,
) -> Result<Vec<RefTensor>, KernelError> {
    let mut outputs: Vec<RefTensor> =
        launch.writes.iter().map(|t| RefTensor::zeros(t.shape.to_vec())).collect();
    kernel.compute(Reference { rng, inputs, outputs: &mut outputs })?;
    Ok(outputs)
}
