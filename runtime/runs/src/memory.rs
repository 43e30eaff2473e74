//! Memory of this process, and its limits, by the system.

use meshwright_diag::{Diagnostic, codes};
use meshwright_files::Checked;
use meshwright_files::text::bytes as shown;
use std::path::{Path, PathBuf};

/// Memory of a device on a thread without any values: its stack, its kernels and its part of the allocator. Measured
/// with 100 to 2,000 devices.
const DEVICE_BYTES: u64 = 2 << 20;

/// Memory for each pair of a process's devices, measured likewise.
const PAIR_BYTES: u64 = 700;

/// A number of `/proc/self/status` or `/proc/meminfo`, in bytes.
fn kilobytes(file: &str, key: &str) -> Option<u64> {
    let text = std::fs::read_to_string(file).ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix(':'))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

/// Greatest resident memory so far, in bytes; 0 where the system does not tell.
pub fn peak_resident_bytes() -> u64 {
    kilobytes("/proc/self/status", "VmHWM").unwrap_or(0)
}

/// Resident memory now, in bytes; 0 where the system does not tell.
pub fn resident_bytes() -> u64 {
    kilobytes("/proc/self/status", "VmRSS").unwrap_or(0)
}

/// Memory of the host, in bytes; none where the system does not tell.
pub fn total_bytes() -> Option<u64> {
    kilobytes("/proc/meminfo", "MemTotal")
}

/// Bytes that this process may still take: what the system has, and what limits leave of it. None where nothing tells.
pub fn available_bytes() -> Option<u64> {
    let free = |key| kilobytes("/proc/meminfo", key);
    let system = free("MemAvailable").map(|m| m + free("SwapFree").unwrap_or(0));
    let limit = rustix::process::getrlimit(rustix::process::Resource::As).current;
    let limited = limit.map(|l| l.saturating_sub(kilobytes("/proc/self/status", "VmSize").unwrap_or(0)));
    [system, limited, cgroup_bytes()].into_iter().flatten().min()
}

/// Bytes left by the control groups of this process, the narrowest of them.
fn cgroup_bytes() -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let number =
        |at: &Path, name: &str| std::fs::read_to_string(at.join(name)).ok()?.trim().parse::<u64>().ok();
    let left = groups.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, group) = (parts.next()?, parts.next()?);
        // Version 2 has one tree, version 1 one for memory.
        let (root, limit, used) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max", "memory.current"),
            "memory" => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
            _ => return None,
        };
        let at = PathBuf::from(format!("{root}{group}"));
        let within = at.ancestors().take_while(|a| a.starts_with(root));
        within
            .filter_map(|a| {
                Some(number(a, limit)?.saturating_sub(number(a, used)?.saturating_sub(cached(a))))
            })
            .min()
    });
    left.min()
}

/// Used bytes of a control group that the system frees when they are needed: cached files. Version 1 has the sums with
/// those of nested groups under other names.
fn cached(group: &Path) -> u64 {
    let stat = std::fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let of = |key: &str| {
        let line = stat.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix(' '))?;
        line.trim().parse::<u64>().ok()
    };
    let file = |kind: &str| of(&format!("total_{kind}")).or_else(|| of(kind)).unwrap_or(0);
    file("inactive_file") + file("active_file")
}

/// Whether this number of devices can start in this process.
///
/// # Errors
/// E0401.
pub fn devices_fit(devices: usize) -> Checked<()> {
    let n = devices as u64;
    let pairs = n.saturating_mul(n).saturating_mul(PAIR_BYTES);
    let needed = n.saturating_mul(DEVICE_BYTES).saturating_add(pairs);
    let Some(available) = available_bytes().filter(|a| needed > *a) else { return Ok(()) };
    let message = format!(
        "{devices} devices in one process take about {} before they hold anything, and {} are available",
        shown(needed),
        shown(available)
    );
    let d = Diagnostic::error(codes::E0401, message);
    Err(Box::new(
        d.help("take a smaller mesh, or spread the mesh over several machines (`meshwright launch`)"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_tells_what_there_is() {
        let (now, most) = (resident_bytes(), peak_resident_bytes());
        assert!(now > 1 << 20 && most >= now / 2, "{now} {most}");
        let free = available_bytes().unwrap_or(0);
        assert!(free > 1 << 20, "{free}");
        assert!(devices_fit(1).is_ok() && devices_fit(1 << 30).is_err());
    }
}
