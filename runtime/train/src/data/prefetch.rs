//! Prepares the next piece of work on a thread of its own while one is being used.

use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;

/// Values that a background thread makes in order, ahead of their use. Dropping it ends the thread.
#[derive(Debug)]
pub struct Prefetch<T, E> {
    receiver: Option<Receiver<Result<T, E>>>,
    thread: Option<JoinHandle<()>>,
}

impl<T: Send + 'static, E: Send + 'static> Prefetch<T, E> {
    /// Makes `make(n)` for each `n` of `steps`, at most `ahead` (at least 1) of them before they are asked for. An error ends it.
    ///
    /// # Errors
    ///
    /// Where the system gives no thread.
    pub fn new(
        steps: impl Iterator<Item = u64> + Send + 'static,
        ahead: usize,
        mut make: impl FnMut(u64) -> Result<T, E> + Send + 'static,
    ) -> std::io::Result<Self> {
        // One more is in the thread's hands, so a channel of `ahead - 1` makes `ahead`.
        let (sender, receiver) = sync_channel(ahead.saturating_sub(1));
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
        Ok(Prefetch { receiver: Some(receiver), thread: Some(thread) })
    }
}

impl<T, E> Iterator for Prefetch<T, E> {
    type Item = Result<T, E>;

    /// The next value; waits until it is made. A panic of the thread goes on here.
    fn next(&mut self) -> Option<Self::Item> {
        let next = self.receiver.as_ref()?.recv();
        if next.is_err() {
            self.receiver = None;
            if let Some(Err(panic)) = self.thread.take().map(JoinHandle::join) {
                std::panic::resume_unwind(panic);
            }
        }
        next.ok()
    }
}

impl<T, E> Drop for Prefetch<T, E> {
    fn drop(&mut self) {
        // First the receiver: a thread that waits to send must wake and end.
        self.receiver = None;
        if let Some(thread) = self.thread.take() {
            // A panic that nobody asked the result of has been printed, and must not abort a drop.
            drop(thread.join());
        }
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
            Prefetch::<_, ()>::new(3..7, 2, |n| Ok(n * n)).unwrap().collect::<Result<_, _>>().unwrap();
        assert_eq!(got, [9, 16, 25, 36]);
    }

    #[test]
    fn makes_the_next_one_unasked_but_not_more() {
        let (made, seen) = mpsc::channel();
        let mut it = Prefetch::<_, ()>::new(0.., 1, move |n| {
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
    fn dropping_it_ends_the_thread() {
        let alive = Arc::new(Mutex::new(()));
        let held = Arc::clone(&alive);
        let mut it = Prefetch::<_, ()>::new(0.., 3, move |n| {
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
        let mut it = Prefetch::new(0.., 2, |n| if n < 2 { Ok(n) } else { Err("no more") }).unwrap();
        assert_eq!(
            [it.next(), it.next(), it.next(), it.next()],
            [Some(Ok(0)), Some(Ok(1)), Some(Err("no more")), None]
        );
    }

    #[test]
    fn a_panic_goes_on_where_the_value_is_used() {
        let mut it = Prefetch::<u64, ()>::new(0.., 1, |_| std::panic::panic_any("boom")).unwrap();
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| it.next()));
        assert_eq!(caught.unwrap_err().downcast_ref::<&str>(), Some(&"boom"));
    }
}
