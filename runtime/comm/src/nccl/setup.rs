//! Opening the libraries, and what ranks must know of each other before the first collective.

use super::api::{Nccl, OLDEST_SHARING};
use super::device::Gpu;
use super::options::{LaunchOrder, NcclOptions};
use super::stream::Inner;

use crate::{Collectives, CommError, Group, Tag, Transport};
use meshwright_gpu::devices::nccl_version as dotted;
use meshwright_gpu::driver::Driver;
use meshwright_sorted::SortedSet;
use serde::{Deserialize, Serialize};
use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::sync::OnceLock;

pub(super) struct Prepared {
    pub(super) inner: Inner,
    pub(super) note: Option<String>,
    /// Whether calls can be recorded.
    pub(super) records_calls: bool,
}

/// What a rank tells the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    process: u64,
    host: u64,
    gpu: u64,
    nccl: u32,
    host_sync: bool,
    context_events: bool,
}

/// A number that no other process has.
fn process() -> u64 {
    static PROCESS: OnceLock<u64> = OnceLock::new();
    *PROCESS.get_or_init(|| RandomState::new().hash_one((std::process::id(), std::time::SystemTime::now())))
}

fn hash(of: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

/// The same number for all processes of a machine, containers included.
fn host() -> u64 {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    hash((read("/proc/sys/kernel/random/boot_id"), read("/etc/machine-id")))
}

pub(super) fn make(
    control: &mut dyn Transport,
    ordinal: u32,
    options: &NcclOptions,
) -> Result<Prepared, CommError> {
    let rank = control.rank();
    let failed = |reason: String| CommError::Library { rank, call: None, reason };
    // Where there is no GPU, nobody misses NCCL.
    let driver = Driver::open(&options.paths).map_err(|e| failed(e.to_string()))?;
    let count = driver.count().map_err(|e| failed(e.to_string()))?;
    if ordinal >= count {
        return Err(failed(format!(
            "there is no GPU {ordinal}: this process sees {count} (CUDA_VISIBLE_DEVICES chooses among them)"
        )));
    }
    let nccl = Nccl::open(&options.paths).map_err(failed)?;
    let gpu = Gpu::open(driver, ordinal).map_err(|e| failed(e.to_string()))?;
    let mine = Record {
        process: process(),
        host: host(),
        gpu: hash(&gpu.bus_id),
        nccl: nccl.version(),
        host_sync: options.launch_order == LaunchOrder::HostSync,
        context_events: gpu.has_context_events(),
    };
    let records = exchange(control, mine)?;
    if let Some(problem) = different_versions(&records, nccl.path()).or_else(|| cannot_share(&records)) {
        return Err(failed(problem));
    }
    let why = why_host_sync(&records);
    let inner = Inner::new(gpu, nccl, (rank, control.aborter()), why.is_some());
    let inner = inner.map_err(|e| failed(e.to_string()))?;
    let records_calls = !inner.host_waits && a_process_each(&records);
    let note = why.filter(|_| options.launch_order != LaunchOrder::HostSync);
    Ok(Prepared { inner, note, records_calls })
}

fn exchange(control: &mut dyn Transport, mine: Record) -> Result<Vec<Record>, CommError> {
    let (n, rank) = (control.size(), control.rank());
    let world = match Group::world(n, rank) {
        Ok(world) => world,
        Err(e) => unreachable!("the group of all ranks: {e}"),
    };
    control.gather_values(&world, &Tag::new(0, "set-up of NCCL", 0), &mine)
}

fn different_versions(records: &[Record], path: &str) -> Option<String> {
    let first = records.first()?;
    let (other, record) = records.iter().enumerate().find(|(_, r)| r.nccl != first.nccl)?;
    let version = |r: &Record| dotted(r.nccl);
    Some(format!(
        "rank 0 has NCCL {}, rank {other} has {}: all need the same (this rank's is {path})",
        version(first),
        version(record)
    ))
}

/// The first two ranks with the same GPU.
fn shared(records: &[Record], also: impl Fn(&Record, &Record) -> bool) -> Option<(usize, usize)> {
    let same = |a: &Record, b: &Record| (a.host, a.gpu) == (b.host, b.gpu) && also(a, b);
    let pairs = (0..records.len()).flat_map(|a| (a + 1..records.len()).map(move |b| (a, b)));
    pairs.into_iter().find(|(a, b)| same(&records[*a], &records[*b]))
}

fn cannot_share(records: &[Record]) -> Option<String> {
    let (a, b) = shared(records, |_, _| true)?;
    let version = records[a].nccl;
    if version >= OLDEST_SHARING {
        return None;
    }
    Some(format!(
        "ranks {a} and {b} have the same GPU, which NCCL {} does not allow: give each rank its own, or take NCCL {} or \
         newer with NCCL_MULTI_RANK_GPU_ENABLE=1",
        dotted(version),
        dotted(OLDEST_SHARING)
    ))
}

/// Whether each rank has a process of its own. NCCL says of processes with several GPUs that recorded calls may wait for each
/// other forever.
fn a_process_each(records: &[Record]) -> bool {
    let processes: SortedSet<u64> = records.iter().map(|r| r.process).collect();
    processes.len() == records.len()
}

/// Why the host has to wait; none where the device can order everything.
fn why_host_sync(records: &[Record]) -> Option<String> {
    if let Some(rank) = records.iter().position(|r| r.host_sync) {
        return Some(format!("rank {rank} asks for it"));
    }
    if let Some(rank) = records.iter().position(|r| !r.context_events) {
        return Some(format!(
            "the driver of rank {rank} has no events of contexts (CUDA 12.5 or newer is needed): the host waits before and \
             after every collective"
        ));
    }
    let (a, b) = shared(records, |a, b| a.process == b.process)?;
    Some(format!(
        "ranks {a} and {b} of one process share a GPU: the host waits before and after every collective"
    ))
}
