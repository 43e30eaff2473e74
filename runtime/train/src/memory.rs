//! Memory of this process, as the system tells it.

/// Greatest resident memory so far, in bytes; 0 where the system does not tell.
pub(crate) fn peak_resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|l| l.starts_with("VmHWM:")).unwrap_or("");
    line.split_whitespace().nth(1).and_then(|n| n.parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// Resident memory now, in bytes; 0 where the system does not tell.
pub(crate) fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let resident = pages.split_whitespace().nth(1).and_then(|n| n.parse::<u64>().ok());
    resident.unwrap_or(0) * rustix::param::page_size() as u64
}
