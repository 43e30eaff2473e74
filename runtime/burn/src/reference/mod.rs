//! The kernels of GPUs as plain loops: they run a device plan for a GPU on any machine. Tests compare the decisions of
//! the passes for devices and the lowering with this reference; it says nothing about the kernels that run on a GPU.
//!
//! RefTensor are `f64`, rounded to `f32` after each operation as in registers of a GPU, and to the dtype of a result where it is stored.

mod attention;
mod folds;
mod index;
mod maps;
mod product;
mod rows;
mod scalar;
mod values;
mod windows;

use meshwright_device::KernelError;
use meshwright_device::kernels::Kernel;
use meshwright_device::launch::Launch;
use meshwright_exec::backend::RngState;
pub(super) use values::RefTensor;

/// The results of a kernel.
pub(super) fn run(
    (kernel, rng): (&Kernel, RngState),
    inputs: &[RefTensor],
    launch: &Launch,
) -> Result<Vec<RefTensor>, KernelError> {
    let mut outputs: Vec<RefTensor> =
        launch.writes.iter().map(|t| RefTensor::zeros(t.shape.to_vec())).collect();
    let outs = &mut outputs[..];
    match kernel {
        Kernel::Map(calls) => maps::maps(calls, rng, inputs, outs)?,
        Kernel::Join(call) => maps::join(call, rng, inputs, &mut outs[0])?,
        Kernel::Fold(calls) => folds::folds(calls, inputs, outs)?,
        Kernel::Rows(call) => rows::rows(call, rng, inputs, outs)?,
        Kernel::AttentionDraws(call) => attention::draws(call, rng, &mut outs[0])?,
        Kernel::Attention(call) => attention::attention(call, rng, inputs, outs)?,
        Kernel::LookUp(call) => index::look_up(call, inputs, &mut outs[0]),
        Kernel::Scatter(call) => index::scatter(&call.index, inputs, &mut outs[0]),
        Kernel::Convolve(call) => windows::convolve(call, inputs, &mut outs[0]),
        Kernel::Pool(call) => windows::pool(call, inputs, &mut outs[0]),
        Kernel::Product(call) => product::product(call, inputs, outs),
        other => return Err(KernelError::Unsupported(format!("there is no kernel `{}`", other.name()))),
    }
    Ok(outputs)
}
