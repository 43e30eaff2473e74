//! Uploads of the next step's inputs during this step: through CubeCL's pinned memory, on a stream of their own. Their
//! consumers wait for them on the device, not on the host.

use burn_cubecl::CubeDevice;
use burn_cubecl::tensor::CubeTensor;
use burn_std::id::StreamId;
use meshwright_burn::transfer::elements;
use meshwright_exec::HostTensor;

/// A dense tensor with the elements of one of the host, without pairs. The copy follows other inputs, and overlaps with
/// the computation.
pub(crate) fn sent(host: HostTensor, device: &CubeDevice) -> CubeTensor {
    let (bytes, shape, dtype) = elements(host).into_parts();
    let mut aside = device.client().clone();
    #[expect(unsafe_code, reason = "a stream is named")]
    // SAFETY: the tensor is new on the stream, and CubeCL makes every other stream that uses it wait for it.
    unsafe {
        aside.set_stream(StreamId { value: StreamId::current().value.wrapping_add(1) });
    }
    let memory = aside.create(bytes);
    CubeTensor::new_contiguous(device.client().clone(), device.clone(), shape, memory, dtype)
}
