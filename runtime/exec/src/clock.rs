//! CPU time of the process.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// CPU time that all threads of this process have used so far.
pub fn process_cpu_time() -> Duration {
    let t = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(t.tv_sec).unwrap_or(0), u32::try_from(t.tv_nsec).unwrap_or(0))
}
