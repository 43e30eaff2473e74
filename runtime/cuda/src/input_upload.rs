//! Inputs of the next step on their way to a GPU while it computes this one: through CubeCL's pinned memory, on a stream of their own.
//! What reads them waits for them on the device, and nobody on the host.

use burn_cubecl::CubeDevice;
use burn_cubecl::tensor::CubeTensor;
use burn_std::id::StreamId;
use meshwright_burn::transfer::elements;
use meshwright_exec::HostTensor;

/// A dense tensor with the elements of one of the host, which are none of pairs. They are copied behind other inputs, and beside all that is
/// computed.
pub(super) fn sent(host: HostTensor, device: &CubeDevice) -> CubeTensor {
    let (bytes, shape, dtype) = elements(host).into_parts();
    let mut aside = device.client().clone();
    #[expect(unsafe_code, reason = "a stream is named")]
    // SAFETY: what is made on the stream is new, and CubeCL has every other stream that uses it wait for it.
    unsafe {
        aside.set_stream(StreamId { value: StreamId::current().value.wrapping_add(1) });
    }
    let memory = aside.create(bytes);
    CubeTensor::new_contiguous(device.client().clone(), device.clone(), shape, memory, dtype)
}
