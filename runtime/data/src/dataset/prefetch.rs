//! Prepares the next pieces of work on threads of their own while one is being used.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;

/// Values that background threads make ahead of their use, and that come in order: of `n` threads the first makes every `n`th
/// one. Dropping it ends the threads.
#[derive(Debug)]
pub struct Prefetch<T, E> {
    threads: Vec<Worker<T, E>>,
    /// Whose value comes next.
    turn: usize,
}

#[derive(Debug)]
struct Worker<T, E> {
    receiver: Receiver<Result<T, E>>,
    thread: JoinHandle<()>,
}

impl<T: Send + 'static, E: Send + 'static> Prefetch<T, E> {
    /// Makes `make(n)` for each `n` of `steps`, at most `ahead` (at least 1 for each of `threads`) of them before they are asked
    /// for. An error ends it.
    ///
    /// # Errors
    ///
    /// Where the system gives no thread.
    pub fn new(
        steps: impl Iterator<Item = u64> + Clone + Send + 'static,
        (ahead, threads): (usize, usize),
        make: impl Fn(u64) -> Result<T, E> + Send + Sync + 'static,
    ) -> std::io::Result<Self> {
        let make = Arc::new(make);
        let count = threads.max(1);
        let mut threads = Vec::with_capacity(count);
        for first in 0..count {
            // One more is in the thread's hands, so a channel of `ahead - 1` makes `ahead`.
            let (sender, receiver) = sync_channel((ahead / count).saturating_sub(1));
            let (make, steps) = (make.clone(), steps.clone().skip(first).step_by(count));
            let thread = std::thread::Builder::new().name("data".into()).spawn(move || {
                for step in steps {
                    let made = make(step);
                    let last = made.is_err();
                    // Sending fails when nobody will receive any more.
                    if sender.send(made).is_err() || last {
                        return;
                    }
                }
            })?;
            threads.push(Worker { receiver, thread });
        }
        Ok(Prefetch { threads, turn: 0 })
    }
}

impl<T, E> Prefetch<T, E> {
    /// Ends all threads: what one of them panicked with, if it did.
    fn end(&mut self) -> Option<Box<dyn std::any::Any + Send>> {
        // First the receivers: a thread that waits to send must wake and end.
        let threads: Vec<JoinHandle<()>> = self.threads.drain(..).map(|m| m.thread).collect();
        threads.into_iter().filter_map(|t| t.join().err()).next()
    }
}

impl<T, E> Iterator for Prefetch<T, E> {
    type Item = Result<T, E>;

    /// The next value; waits until it is made. A panic of its thread goes on here.
    fn next(&mut self) -> Option<Self::Item> {
        let next = self.threads.get(self.turn)?.receiver.recv();
        match &next {
            Ok(Ok(_)) => self.turn = (self.turn + 1) % self.threads.len(),
            // Later batches that other threads have read are dropped.
            Ok(Err(_)) => drop(self.end()),
            Err(_) => {
                if let Some(panic) = self.end() {
                    std::panic::resume_unwind(panic);
                }
            }
        }
        next.ok()
    }
}

impl<T, E> Drop for Prefetch<T, E> {
    fn drop(&mut self) {
        // The panic of a thread whose result is dropped has been printed, and must not abort the drop.
        drop(self.end());
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex, mpsc};
    use std::time::Duration;

    #[test]
    fn gives_all_in_order_and_then_ends() {
        let got: Vec<u64> =
            Prefetch::<_, ()>::new(3..7, (2, 1), |n| Ok(n * n)).unwrap().collect::<Result<_, _>>().unwrap();
        assert_eq!(got, [9, 16, 25, 36]);
    }

    #[test]
    fn makes_the_next_one_unasked_but_not_more() {
        let (made, seen) = mpsc::channel();
        let mut it = Prefetch::<_, ()>::new(0.., (1, 1), move |n| {
            let _ = made.send(n);
            Ok(n)
        })
        .unwrap();
        let wait = Duration::from_secs(20);
        assert_eq!(seen.recv_timeout(wait), Ok(0));
        assert_eq!(it.next(), Some(Ok(0)));
        assert_eq!(seen.recv_timeout(wait), Ok(1));
        assert!(seen.recv_timeout(Duration::from_millis(50)).is_err());
    }

    #[test]
    fn several_threads_give_all_in_order_and_work_at_once() {
        for threads in 1..6 {
            let got: Vec<u64> = Prefetch::<_, ()>::new(10..27, (4, threads), |n| {
                std::thread::sleep(Duration::from_millis(n % 3));
                Ok(n)
            })
            .unwrap()
            .collect::<Result<_, _>>()
            .unwrap();
            assert_eq!(got, (10..27).collect::<Vec<_>>());
        }
        // Each waits for the other: one thread would not get on.
        let both = Arc::new(std::sync::Barrier::new(2));
        let mut it = Prefetch::<_, ()>::new(0..4, (2, 2), move |n| {
            both.wait();
            Ok(n)
        })
        .unwrap();
        assert_eq!([it.next(), it.next(), it.next(), it.next()], [0, 1, 2, 3].map(|n| Some(Ok(n))));
        let mut it = Prefetch::new(0.., (3, 3), |n| if n == 4 { Err(n) } else { Ok(n) }).unwrap();
        assert_eq!(it.by_ref().last(), Some(Err(4)));
        assert_eq!(it.next(), None);
    }

    #[test]
    fn dropping_it_ends_the_thread() {
        let alive = Arc::new(Mutex::new(()));
        let held = Arc::clone(&alive);
        let mut it = Prefetch::<_, ()>::new(0.., (3, 1), move |n| {
            let _guard = held.lock();
            Ok(n)
        })
        .unwrap();
        assert_eq!(it.next(), Some(Ok(0)));
        drop(it);
        assert_eq!(Arc::strong_count(&alive), 1);
    }

    #[test]
    fn an_error_comes_in_its_place_and_ends_it() {
        let mut it = Prefetch::new(0.., (2, 1), |n| if n < 2 { Ok(n) } else { Err("no more") }).unwrap();
        assert_eq!(
            [it.next(), it.next(), it.next(), it.next()],
            [Some(Ok(0)), Some(Ok(1)), Some(Err("no more")), None]
        );
    }

    #[test]
    fn a_panic_goes_on_where_the_value_is_used() {
        let mut it = Prefetch::<u64, ()>::new(0.., (1, 1), |_| std::panic::panic_any("boom")).unwrap();
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| it.next()));
        assert_eq!(caught.unwrap_err().downcast_ref::<&str>(), Some(&"boom"));
    }
}
