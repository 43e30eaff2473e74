//! The devices of a machine, and the reasons why a GPU cannot be used.

use super::driver::{Driver, Properties};
use super::load::{FoundLibrary, Library, LibraryKind, LoadError, Paths, functions};
use super::matmuls;
use super::monitor::GpuHealth;
use super::nvml::Nvml;
use std::ffi::c_int;
use std::path::PathBuf;

functions! {
    /// NCCL's functions for listing.
    NcclVersion needs "NCCL 2.18" {
        version = "ncclGetVersion" (*mut c_int) -> c_int;
    }
}

/// Oldest version of NCCL with everything that the transport uses (`ncclCommSplit`), as NCCL writes it.
pub const OLDEST_NCCL: u32 = 21_800;

/// Oldest CUDA, as 1000 * major + 10 * minor, whose driver orders collectives without the host.
pub const CUDA_OF_CONTEXT_EVENTS: u32 = 12_050;

/// The host's processor and memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cpu {
    /// Name of the model, if the system reports it.
    pub name: Option<String>,
    /// Threads that can run at once.
    pub cores: usize,
    /// Bytes of memory, if the system reports it.
    pub memory: Option<u64>,
}

/// A GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuReport {
    /// Its number among the GPUs that this process sees.
    pub ordinal: u32,
    /// Its properties by the driver.
    pub properties: Properties,
    /// Bytes of its free memory, if NVML reports them.
    pub free: Option<u64>,
    /// Others that it reaches by NVLink; none where NVML is missing.
    pub nvlink: Option<Vec<u32>>,
    /// Its state by NVML; none without NVML.
    pub health: Option<GpuHealth>,
}

/// The devices and libraries of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DevicesReport {
    /// The host.
    pub cpu: Cpu,
    /// GPUs in the order of their numbers.
    pub gpus: Vec<GpuReport>,
    /// Version of the driver, if NVML reports it.
    pub driver: Option<String>,
    /// CUDA as the driver offers it, or why there is none.
    pub cuda: Result<FoundLibrary, String>,
    /// cuBLASLt, or why there is none: then Burn's kernels compute products of matrices.
    pub cublas_lt: Result<FoundLibrary, String>,
    /// NCCL, or why there is none.
    pub nccl: Result<FoundLibrary, String>,
    /// The code of CUDA's mathematical functions, which compiling kernels needs, or why there is none.
    pub libdevice: Result<PathBuf, String>,
    /// Reasons why no GPU can be used, each with a remedy. Empty if all can.
    pub hindrances: Vec<String>,
    /// Shortcomings, each with a remedy.
    pub notes: Vec<String>,
}

/// `NCCL_VERSION_CODE` as people write it.
pub fn nccl_version(code: u32) -> String {
    let (major, rest) = (code / 10_000, code % 10_000);
    format!("{major}.{}.{}", rest / 100, rest % 100)
}

fn cuda_version(code: u32) -> String {
    format!("{}.{}", code / 1000, code % 1000 / 10)
}

/// Looks at the machine. `variable` reads the environment; `built_for_gpus` says whether this program has the engine for
/// GPUs.
pub fn look(
    paths: &Paths,
    variable: impl Fn(&str) -> Option<std::ffi::OsString>,
    built_for_gpus: bool,
) -> DevicesReport {
    let mut hindrances = Vec::new();
    let mut notes = Vec::new();
    let nvml = Nvml::open(paths);
    let mut gpus = Vec::new();
    let cuda = match Driver::open(paths) {
        Ok(driver) => {
            let version = driver.version().unwrap_or(0);
            if version < CUDA_OF_CONTEXT_EVENTS {
                notes.push(format!(
                    "the driver offers CUDA {}: with a driver of CUDA {} or newer, the host need not wait for collectives",
                    cuda_version(version),
                    cuda_version(CUDA_OF_CONTEXT_EVENTS)
                ));
            }
            match list(&driver, nvml.as_ref().ok()) {
                Ok(found) => gpus = found,
                Err(e) => hindrances.push(e),
            }
            if gpus.is_empty() && hindrances.is_empty() {
                hindrances.push("the driver shows no GPU: CUDA_VISIBLE_DEVICES may hide them".into());
            }
            Ok(FoundLibrary { version: cuda_version(version), path: driver.opened().path().to_owned() })
        }
        Err(e) => Err(e.to_string()),
    };
    hindrances.extend(cuda.as_ref().err().cloned());
    let (nccl, cublas_lt) = (nccl(paths), matmuls::installed(paths).map_err(|e| e.to_string()));
    let libdevice = libdevice(&variable);
    if cuda.is_ok() {
        // Without a GPU the rest does not matter.
        hindrances.extend(libdevice.as_ref().err().cloned());
        match &nccl {
            Err(e) if gpus.len() > 1 => hindrances.push(e.clone()),
            Err(e) => notes.push(format!("a mesh of several GPUs needs NCCL: {e}")),
            Ok(_) => {}
        }
        notes.extend(cublas_lt.as_ref().err().map(|e| {
            format!("Burn's kernels compute products of matrices, which takes longer than with cuBLASLt: {e}")
        }));
        notes.extend(nvml.as_ref().err().map(|e| format!("NVLink and free memory are not known: {e}")));
    }
    if !built_for_gpus {
        hindrances.push(
            "this program was built without GPUs: build it with `cargo build --release --features cuda`"
                .into(),
        );
    }
    let driver = nvml.ok().and_then(|n| n.driver_version());
    DevicesReport { cpu: cpu(), gpus, driver, cuda, cublas_lt, nccl, libdevice, hindrances, notes }
}

/// Bytes of a GPU's memory; none if the driver does not report it.
pub fn memory(paths: &Paths, ordinal: u32) -> Option<u64> {
    Driver::open(paths).and_then(|driver| driver.properties(ordinal)).map(|p| p.memory).ok()
}

fn list(driver: &Driver, nvml: Option<&Nvml>) -> Result<Vec<GpuReport>, String> {
    let count = driver.count().map_err(|e| e.to_string())?;
    let all: Result<Vec<Properties>, _> = (0..count).map(|ordinal| driver.properties(ordinal)).collect();
    let all = all.map_err(|e| e.to_string())?;
    let report = |(ordinal, own): (u32, &Properties)| {
        let others = (0..count).zip(&all).filter(|(other, _)| *other != ordinal);
        let nvlink = nvml.map(|nvml| {
            others.filter(|(_, p)| nvml.linked(&own.bus_id, &p.bus_id)).map(|(other, _)| other).collect()
        });
        let free = nvml.and_then(|nvml| nvml.memory(&own.bus_id)).map(|m| m.free);
        let health = nvml.map(|nvml| nvml.health(&own.bus_id, None));
        GpuReport { ordinal, properties: own.clone(), free, nvlink, health }
    };
    Ok((0..count).zip(&all).map(report).collect())
}

fn nccl(paths: &Paths) -> Result<FoundLibrary, String> {
    let library = Library::open(LibraryKind::Nccl, paths).map_err(|e: LoadError| e.to_string())?;
    let f = NcclVersion::load(&library).map_err(|e| e.to_string())?;
    let mut version = 0;
    #[expect(unsafe_code, reason = "a function of NCCL")]
    // SAFETY: writes an integer.
    unsafe {
        (f.version)(&raw mut version);
    }
    let code = u32::try_from(version).unwrap_or(0);
    let found = FoundLibrary { version: nccl_version(code), path: library.path().to_owned() };
    if code < OLDEST_NCCL {
        return Err(too_old(&found));
    }
    Ok(found)
}

/// Why an old NCCL will not do.
pub fn too_old(found: &FoundLibrary) -> String {
    let oldest = nccl_version(OLDEST_NCCL);
    format!(
        "NCCL {} at {} is too old: {oldest} or newer is needed; {}",
        found.version,
        found.path,
        LibraryKind::Nccl.remedy()
    )
}

/// The folder in which the compiler of GPU kernels (CubeCL's) looks for it: in `CUDA_PATH` alone if it is set,
/// otherwise in the usual folders.
fn libdevice(variable: impl Fn(&str) -> Option<std::ffi::OsString>) -> Result<PathBuf, String> {
    let usual = ["/usr/local/cuda", "/opt/cuda", "/usr/lib/cuda", "/usr"];
    let roots = match variable("CUDA_PATH") {
        Some(root) => vec![PathBuf::from(root)],
        None => usual.map(PathBuf::from).to_vec(),
    };
    let tried: Vec<PathBuf> = roots.iter().map(|r| r.join("nvvm/libdevice/libdevice.10.bc")).collect();
    tried.iter().find(|file| file.is_file()).cloned().ok_or_else(|| {
        let tried: Vec<String> = tried.iter().map(|file| file.display().to_string()).collect();
        format!(
            "libdevice, which compiling kernels needs, was not found: tried {}; install CUDA's toolkit, or \
             `pip install nvidia-nvvm`, and set CUDA_PATH to the folder that holds nvvm",
            tried.join(", ")
        )
    })
}

fn cpu() -> Cpu {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let (info, memory) = (read("/proc/cpuinfo"), read("/proc/meminfo"));
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|l| l.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let kib = field(&memory, "MemTotal").and_then(|v| v.split(' ').next()?.parse::<u64>().ok());
    Cpu {
        name: field(&info, "model name"),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        memory: kib.map(|k| k * 1024),
    }
}
