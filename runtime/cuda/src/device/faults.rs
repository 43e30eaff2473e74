//! State of a GPU when it fails, and the step of the Plan that failed.
//!
//! CubeCL keeps an error with the memory that was therefore not written, and reports it at the next read: much later,
//! and without a step. So after each step the thread of the device, which launches in order, checks for an error. A
//! failure while no step runs has no step.

use burn_backend::Device as _;
use burn_cubecl::CubeDevice;
use cubecl::cuda::{CudaDevice, CudaRuntime};
use cubecl::device_handle::DeviceHandle;
use cubecl::server::Server as _;
use cubecl_runtime::runtime::Runtime;
use cubecl_server::stream::{FailureStore, WriteScoped};
use meshwright_exec::backend::{DeviceFault, FaultKind, RunPoint};
use meshwright_exec::{HeldMemory, SilentGpu};
use meshwright_gpu::load::Paths;
use meshwright_gpu::monitor::GpuMonitor;
use meshwright_sorted::SortedMap;
use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError};

type CudaServer = <CudaRuntime as Runtime>::Server;

/// A GPU of this process.
struct WatchedGpu {
    monitor: GpuMonitor,
    /// State at the first of the present errors.
    failed: Mutex<Option<Failed>>,
}

/// State at an error.
#[derive(Clone, Copy)]
struct Failed {
    /// The step; none before the first one of a run.
    at: Option<RunPoint>,
    /// The smallest allocation that failed, where one did: kernels that are only tried ask for more.
    asked: Option<u64>,
    /// Memory of the allocator then.
    held: HeldMemory,
}

/// Each GPU that this process uses, by number.
static GPUS: Mutex<SortedMap<usize, Arc<WatchedGpu>>> = Mutex::new(SortedMap::new());

/// Begins to watch a GPU, unless it is watched already.
pub(crate) fn watch(device: &CudaDevice, libraries: &Paths) {
    let mut gpus = GPUS.lock().unwrap_or_else(PoisonError::into_inner);
    let ordinal = u32::try_from(device.index).unwrap_or(u32::MAX);
    if !gpus.contains_key(&device.index)
        && let Some(monitor) = GpuMonitor::open(libraries, ordinal)
    {
        gpus.insert(device.index, Arc::new(WatchedGpu { monitor, failed: Mutex::default() }));
    }
}

fn of(index: usize) -> Option<Arc<WatchedGpu>> {
    GPUS.lock().unwrap_or_else(PoisonError::into_inner).get(&index).cloned()
}

/// State of a GPU that does not answer; the GPU itself is not queried.
pub(crate) fn silent(index: usize) -> Option<SilentGpu> {
    let gpu = of(index)?;
    Some(SilentGpu { name: gpu.monitor.name().clone(), health: gpu.monitor.health() })
}

/// A GPU as the thread of its engine knows it.
struct Reached {
    index: usize,
    gpu: Arc<WatchedGpu>,
    device: DeviceHandle<CudaServer>,
    /// The step of the current launches.
    at: Option<RunPoint>,
}

thread_local! {
    static REACHED: RefCell<Option<Reached>> = const { RefCell::new(None) };
}

/// Sets the step of later launches, or none. An error found after the earlier launches belongs to them: to their step,
/// or to the work before the first one, such as the upload of inputs.
pub(crate) fn reached(device: &CudaDevice, at: Option<RunPoint>) {
    REACHED.with_borrow_mut(|reached| {
        if reached.as_ref().is_none_or(|r| r.index != device.index) {
            let found = of(device.index);
            let device_handle = || DeviceHandle::new(device.to_id());
            *reached =
                found.map(|gpu| Reached { index: device.index, gpu, device: device_handle(), at: None });
        }
        let Some(Reached { gpu, device, at: now, .. }) = reached else { return };
        let (gpu, before) = (gpu.clone(), std::mem::replace(now, at));
        device.submit(move |server| gpu.look(server, before));
    });
}

impl WatchedGpu {
    /// Looks whether the device has errors after something was launched. An error that is gone was one that its cause has dealt
    /// with, such as a kernel that was only tried.
    fn look(&self, server: &mut CudaServer, at: Option<RunPoint>) {
        let fine = server.write_streams().parts().1.graph().is_empty();
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        match fine {
            true => *failed = None,
            false => {
                failed.get_or_insert_with(|| Failed::now(server, at));
            }
        }
    }
}

impl Failed {
    fn now(server: &mut CudaServer, at: Option<RunPoint>) -> Failed {
        // CubeCL has no other way to the errors than to ask for that of a buffer, and the buffers are not known here.
        let errors = format!("{:?}", server.write_streams().parts().1.graph());
        let asked = errors.split(NO_MEMORY).skip(1).filter_map(leading_number).min();
        let mut held = HeldMemory::default();
        for stream in server.stream_ids() {
            if let Some(usage) = server.memory_report(stream).map(|report| report.usage()) {
                held.in_use += usage.bytes_in_use;
                held.reserved += usage.bytes_reserved;
            }
        }
        Failed { at, asked, held }
    }
}

/// CubeCL's words before the bytes of an allocation that failed.
const NO_MEMORY: &str = "out of device memory allocating ";

/// The number with which a text begins.
fn leading_number(text: &str) -> Option<u64> {
    text.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// State of a GPU, if an error in these words is the GPU's.
pub(crate) fn fault(device: &CubeDevice, problem: &str) -> Option<DeviceFault> {
    let CubeDevice::Cuda(cuda) = device else { return None };
    let gpu = of(cuda.index)?;
    let kind = kind(problem, |code| gpu.monitor.error_name(code))?;
    // Launches before the error are checked; if the thread of the device has ended, there is nothing more to find.
    let _ended = DeviceHandle::<CudaServer>::new(cuda.to_id()).submit_blocking(|_| ());
    let failed = *gpu.failed.lock().unwrap_or_else(PoisonError::into_inner);
    let kind = match (kind, failed) {
        (FaultKind::OutOfMemory(last), Some(first)) => FaultKind::OutOfMemory(first.asked.or(last)),
        (kind, _) => kind,
    };
    Some(DeviceFault {
        kind,
        gpu: gpu.monitor.name().clone(),
        at: failed.and_then(|f| f.at),
        held: failed.map(|f| f.held),
        device: gpu.monitor.memory(),
        health: gpu.monitor.health(),
    })
}

/// Errors after which a GPU, or a program's context on it, is unusable. Others are caused by the program's arguments.
const FAULTS: [&str; 18] = [
    "CUDA_ERROR_ASSERT",
    "CUDA_ERROR_CONTAINED",
    "CUDA_ERROR_CONTEXT_IS_DESTROYED",
    "CUDA_ERROR_DEVICE_UNAVAILABLE",
    "CUDA_ERROR_ECC_UNCORRECTABLE",
    "CUDA_ERROR_EXTERNAL_DEVICE",
    "CUDA_ERROR_HARDWARE_STACK_ERROR",
    "CUDA_ERROR_ILLEGAL_ADDRESS",
    "CUDA_ERROR_ILLEGAL_INSTRUCTION",
    "CUDA_ERROR_INVALID_ADDRESS_SPACE",
    "CUDA_ERROR_INVALID_PC",
    "CUDA_ERROR_LAUNCH_FAILED",
    "CUDA_ERROR_LAUNCH_TIMEOUT",
    "CUDA_ERROR_MISALIGNED_ADDRESS",
    "CUDA_ERROR_NO_DEVICE",
    "CUDA_ERROR_NVLINK_UNCORRECTABLE",
    "CUDA_ERROR_SYSTEM_NOT_READY",
    "CUDA_ERROR_UNKNOWN",
];

/// The fault of a GPU, from the words of CubeCL, of the driver, of cuBLASLt or of NCCL; none if they do not blame the
/// GPU.
fn kind(problem: &str, name: impl Fn(i32) -> String) -> Option<FaultKind> {
    let number = |before: &str| leading_number(problem.split_once(before)?.1);
    let asked = number(NO_MEMORY).or(number("can't allocate buffer of size: "));
    if asked.is_some() {
        return Some(FaultKind::OutOfMemory(asked));
    }
    let status = number(" failed with status ").or(number("Cuda failure "));
    let named = status.and_then(|code| i32::try_from(code).ok()).map(name);
    let says = |error: &str| named.as_deref() == Some(error) || problem.contains(error);
    let no_memory =
        ["CUDA_ERROR_OUT_OF_MEMORY", "CUBLAS_STATUS_ALLOC_FAILED", "Cuda failure 'out of memory'"];
    if no_memory.into_iter().any(says) {
        return Some(FaultKind::OutOfMemory(None));
    }
    FAULTS.into_iter().find(|error| says(error)).map(|error| FaultKind::Error(error.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_gpus_are_told_from_others() {
        let name =
            |code| if code == 700 { "CUDA_ERROR_ILLEGAL_ADDRESS".to_string() } else { format!("{code}") };
        let of = |problem: &str| match kind(problem, name) {
            Some(FaultKind::OutOfMemory(asked)) => format!("{asked:?}"),
            Some(FaultKind::Error(error)) => error,
            None => String::new(),
        };
        assert_eq!(of("x: out of device memory allocating 4096 bytes\nBacktrace"), "Some(4096)");
        assert_eq!(of("`cuMemAlloc` failed: CUDA_ERROR_OUT_OF_MEMORY (out of memory)"), "None");
        assert_eq!(of("NCCL: Cuda failure 'out of memory'"), "None");
        assert_eq!(of("cuEventSynchronize failed with status 700"), "CUDA_ERROR_ILLEGAL_ADDRESS");
        let said = "DriverError(CUDA_ERROR_ECC_UNCORRECTABLE, \"uncorrectable ECC error encountered\")";
        assert_eq!(of(said), "CUDA_ERROR_ECC_UNCORRECTABLE");
        assert_eq!(of("`cuModuleLoadData` failed: CUDA_ERROR_INVALID_PTX"), "");
        assert_eq!(of("rank 1 ended"), "");
    }
}
