//! How fast this machine is: limits of processor time in tests hold on the machine on which they were set, and grow with the
//! slowness of any other.
//!
//! **Invariant:** a limit never shrinks, and never grows by more than five times.

use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeMap;
use std::time::Duration;

/// Seconds that [`work`] takes where the limits were set: a core of a server that nothing else uses.
const USUAL: f64 = 0.035;
/// Most that a limit grows by: what is slower than that is no machine to test on.
const MOST: f64 = 5.0;

/// How many times longer this thread takes for its work now than a thread of the machine where limits were set: at least 1.
///
/// Others share the machine, and its speed doubles and halves within a second: ask right before or after what has a limit.
#[must_use]
pub fn slowness() -> f64 {
    let begin = thread_time();
    std::hint::black_box(work());
    ((thread_time() - begin).as_secs_f64() / USUAL).clamp(1.0, MOST)
}

/// What a compiler does most: it allocates, compares, and follows pointers through more memory than the nearest caches hold.
fn work() -> u64 {
    let mut state = 1_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    let mut all: BTreeMap<u64, Box<[u64; 4]>> = BTreeMap::new();
    for _ in 0..100_000 {
        let key = next();
        all.entry(key).or_insert_with(|| Box::new([key; 4]))[0] += 1;
    }
    let found = (0..100_000).filter_map(|_| all.range(next()..).next());
    found.fold(0, |sum: u64, (_, v)| sum.wrapping_add(v[0]))
}

/// Processor time of this thread so far.
#[must_use]
pub fn thread_time() -> Duration {
    time_of(ClockId::ThreadCPUTime)
}

/// Processor time of this process so far.
#[must_use]
pub fn process_time() -> Duration {
    time_of(ClockId::ProcessCPUTime)
}

fn time_of(clock: ClockId) -> Duration {
    let t = clock_gettime(clock);
    Duration::new(t.tv_sec.unsigned_abs(), u32::try_from(t.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_limit_grows_and_never_shrinks() {
        assert!((1.0..=super::MOST).contains(&super::slowness()));
    }
}
