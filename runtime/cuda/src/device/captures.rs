//! Restrictions on the threads of GPUs while a graph is recorded.

use burn_backend::Device as _;
use cubecl::cuda::{CudaDevice, CudaRuntime};
use cubecl::device_handle::DeviceHandle;
use cubecl_runtime::runtime::Runtime;
use meshwright_gpu::driver::Driver;
use meshwright_gpu::load::Paths;

/// Lets the thread of a GPU ask for memory and for the state of events while another GPU of this process records: CubeCL begins
/// each recording such that the driver would else refuse that to all threads.
pub(crate) fn allow_others(gpu: &CudaDevice, libraries: &Paths) {
    // Without a driver there is no GPU; another error reports that.
    let Ok(driver) = Driver::open(libraries) else { return };
    let allowed = DeviceHandle::<<CudaRuntime as Runtime>::Server>::new(gpu.to_id())
        .submit_blocking(move |_| driver.allow_calls_during_captures());
    debug_assert!(matches!(allowed, Ok(Ok(()))), "{allowed:?}");
}
