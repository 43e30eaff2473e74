//! Work that may take minutes and has no steps to count: from time to time it is said that it goes on.

use crate::output::console::Console;
use crate::output::text::seconds;
use std::panic::resume_unwind;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Time without a word. Each further word takes twice as long as the one before: a few of them tell of an hour.
const FIRST: Duration = Duration::from_secs(5);

/// The result of `work`, with a note on standard error that `what` goes on after a while.
pub(crate) fn patiently<T: Send>(what: &str, console: &mut Console, work: impl FnOnce() -> T + Send) -> T {
    watched(FIRST, work, |time| console.note(&format!("{what}: {} so far", seconds(time.as_secs_f64()))))
}

fn watched<T: Send>(first: Duration, work: impl FnOnce() -> T + Send, mut say: impl FnMut(Duration)) -> T {
    std::thread::scope(|scope| {
        let (working, ended) = channel::<()>();
        let worker = scope.spawn(move || {
            let _until_the_end = working;
            work()
        });
        let (begin, mut next) = (Instant::now(), first);
        while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(next.saturating_sub(begin.elapsed())) {
            say(begin.elapsed());
            next *= 2;
        }
        worker.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_work_is_told_of_and_short_work_is_not() {
        let told = |work: u64| {
            let mut told = 0;
            let result = watched(
                Duration::from_millis(20),
                || {
                    std::thread::sleep(Duration::from_millis(work));
                    work
                },
                |_| told += 1,
            );
            assert_eq!(result, work);
            told
        };
        assert_eq!(told(0), 0);
        // After 20, 40, 80 and 160 ms.
        assert!((1..=4).contains(&told(200)));
    }
}
