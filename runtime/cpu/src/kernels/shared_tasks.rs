//! A board on which a thread posts tasks; other threads poll it and help.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

/// Polls of a waiting thread before it yields to other threads of the machine.
const SPINS: usize = 1 << 14;

/// One row of tasks at a time, posted by one thread.
#[derive(Debug, Default)]
pub(super) struct Board {
    /// True once a helper was asked to poll.
    pub(super) told: AtomicBool,
    /// The posted tasks.
    job: AtomicPtr<TaskRow<'static>>,
    /// Number of threads that may be reading the posted tasks.
    helpers: AtomicUsize,
}

/// A row of tasks.
struct TaskRow<'t> {
    task: &'t (dyn Fn(usize) + Sync),
    count: usize,
    /// The first task that no thread has taken.
    next: AtomicUsize,
    /// True once a helper's task has panicked.
    failed: AtomicBool,
}

impl TaskRow<'_> {
    /// Runs tasks until all are taken.
    fn work(&self) {
        loop {
            let k = self.next.fetch_add(1, Ordering::Relaxed);
            if k >= self.count {
                return;
            }
            (self.task)(k);
        }
    }
}

/// Removes the posted tasks when dropped, and waits for their helpers, also if a task panics.
struct Posted<'b>(&'b Board);

impl Drop for Posted<'_> {
    fn drop(&mut self) {
        self.0.job.store(null_mut(), Ordering::SeqCst);
        let mut looks = 0;
        while self.0.helpers.load(Ordering::SeqCst) > 0 {
            looks += 1;
            if looks % SPINS == 0 { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
    }
}

impl Board {
    /// Runs tasks by number, together with helping threads. Only one thread posts tasks on a board.
    ///
    /// # Panics
    /// If a task panics.
    pub(super) fn share(&self, count: usize, task: &(dyn Fn(usize) + Sync)) {
        let job = TaskRow { task, count, next: AtomicUsize::new(0), failed: AtomicBool::new(false) };
        {
            let _posted = Posted(self);
            self.job.store((&raw const job).cast_mut().cast(), Ordering::SeqCst);
            job.work();
        }
        assert!(!job.failed.load(Ordering::Relaxed), "a thread that helped has panicked");
    }

    /// Runs posted tasks; returns whether there were any.
    #[expect(unsafe_code, reason = "what is posted lives on the stack of the thread that posts it")]
    pub(super) fn help(&self) -> bool {
        if self.job.load(Ordering::Relaxed).is_null() {
            return false;
        }
        self.helpers.fetch_add(1, Ordering::SeqCst);
        let job = self.job.load(Ordering::SeqCst);
        let found = !job.is_null();
        if found {
            // SAFETY: the tasks were read after this thread was counted as a helper, so they were still posted then. The posting
            // thread removes them first, then waits until no helper is left, and only then drops them.
            let job = unsafe { &*job };
            if catch_unwind(AssertUnwindSafe(|| job.work())).is_err() {
                job.failed.store(true, Ordering::Relaxed);
            }
        }
        self.helpers.fetch_sub(1, Ordering::SeqCst);
        found
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// Every task runs once, whoever runs it, and all have run when the call returns.
    #[test]
    fn each_task_runs_once() {
        let (board, done) = (Board::default(), AtomicBool::new(false));
        let helped = AtomicUsize::new(0);
        std::thread::scope(|s| {
            for _ in 0..3 {
                s.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        helped.fetch_add(usize::from(board.help()), Ordering::Relaxed);
                    }
                });
            }
            for round in 0..2000 {
                let runs: Vec<AtomicUsize> = (0..round % 40).map(|_| AtomicUsize::new(0)).collect();
                board.share(runs.len(), &|k| {
                    runs[k].fetch_add(1, Ordering::Relaxed);
                });
                assert!(runs.iter().all(|r| r.load(Ordering::Relaxed) == 1), "{round}");
            }
            // Tasks that wait for each other need several threads.
            let met = AtomicUsize::new(0);
            board.share(2, &|_| {
                met.fetch_add(1, Ordering::SeqCst);
                while met.load(Ordering::SeqCst) < 2 {
                    std::thread::yield_now();
                }
            });
            done.store(true, Ordering::Relaxed);
        });
        assert!(helped.load(Ordering::Relaxed) > 0);
    }

    #[test]
    fn the_thread_that_shares_tasks_panics_if_one_of_them_does() {
        let (board, done) = (Board::default(), AtomicBool::new(false));
        std::thread::scope(|s| {
            s.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    board.help();
                }
            });
            for bad in 0..50 {
                let shared = catch_unwind(AssertUnwindSafe(|| {
                    board.share(50, &|k| assert_ne!(k, bad));
                }));
                assert!(shared.is_err());
            }
            board.share(3, &|_| {});
            done.store(true, Ordering::Relaxed);
        });
    }
}
