//! Kernels of our own as operations of the queue that fuses Burn's: they are recorded, and launched when their turn comes.

use burn_cubecl::CubeBackend;
use burn_cubecl::fusion::{CubeFusionHandle, FusionCubeRuntime};
use burn_cubecl::tensor::CubeTensor;
use burn_fusion::FusionTensor;
use burn_fusion::client::GlobalFusionClient;
use burn_fusion::stream::{Operation, StreamId};
use burn_ir::{CustomOpIr, HandleContainer, OperationIr, TensorIr};

/// A tensor of the queue.
pub(super) type QueuedTensor = FusionTensor<FusionCubeRuntime>;

/// Records what is made of these tensors, in memory like `outputs`.
pub(super) fn record<O: Operation<FusionCubeRuntime> + 'static>(
    name: &'static str,
    client: &GlobalFusionClient<FusionCubeRuntime>,
    inputs: Vec<QueuedTensor>,
    outputs: &[TensorIr],
    operation: impl FnOnce(Vec<TensorIr>, Vec<TensorIr>) -> O,
) -> Vec<QueuedTensor> {
    let made = |out: &TensorIr| TensorIr::uninit(client.create_empty_handle(), out.shape.clone(), out.dtype);
    let outputs: Vec<TensorIr> = outputs.iter().map(made).collect();
    let inputs: Vec<TensorIr> = inputs.into_iter().map(FusionTensor::into_ir).collect();
    let told = CustomOpIr::new(name, &inputs, &outputs);
    client.register(StreamId::current(), OperationIr::Custom(told), operation(inputs, outputs))
}

/// The tensors of an operation whose turn has come.
pub(super) fn tensors(
    handles: &mut HandleContainer<CubeFusionHandle>,
    inputs: &[TensorIr],
) -> Vec<CubeTensor> {
    let tensor = |ir: &TensorIr| match ir.dtype.is_float() {
        true => handles.get_float_tensor::<CubeBackend>(ir),
        false => handles.get_int_tensor::<CubeBackend>(ir),
    };
    inputs.iter().map(tensor).collect()
}

/// Gives an operation's results to the queue.
pub(super) fn register(
    handles: &mut HandleContainer<CubeFusionHandle>,
    outputs: &[TensorIr],
    made: impl IntoIterator<Item = CubeTensor>,
) {
    for (ir, tensor) in outputs.iter().zip(made) {
        match ir.dtype.is_float() {
            true => handles.register_float_tensor::<CubeBackend>(&ir.id, tensor),
            false => handles.register_int_tensor::<CubeBackend>(&ir.id, tensor),
        }
    }
}
