//! State that the threads of a process share: the engine under its lock, and the progress thread.
//!
//! **The progress thread** is a thread that looks after the engine while the device computes: it answers other ranks, hears that
//! they end, and moves what is in flight. **The watch** is one that never touches the engine: it ends the process where the
//! thread that makes a communicator, and so keeps the engine, does not come back from the library.

use crate::engine::{Engine, Making};
use crate::job::abort_job;
use crate::timing::LAST_ANSWER;
use meshwright_comm::{CallName, flush_subnormals};
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError, Weak};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

/// Interval of the progress thread, with collectives in flight and without.
const BUSY: Duration = Duration::from_micros(300);
const IDLE: Duration = Duration::from_millis(5);

/// Interval of the watch without anything to watch; it is woken otherwise.
const ASLEEP: Duration = Duration::from_secs(1);

/// Limit for sending an abort.
const FLUSH: Duration = Duration::from_millis(300);

pub(super) struct SharedEngine {
    engine: Mutex<Engine>,
    pub(super) rank: usize,
    pub(super) size: usize,
    /// Whether a termination signal has come.
    pub(super) interrupted: AtomicBool,
    making: Mutex<Option<NowMaking>>,
    /// Limit for making a communicator.
    most: Mutex<Duration>,
    watch: OnceLock<Thread>,
    ends: AtomicBool,
    exit: fn(i32) -> !,
}

struct NowMaking {
    since: Instant,
    call: CallName,
    members: Vec<usize>,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Says something where everything else has failed.
pub(super) fn say(text: &str) {
    // At once, since several processes write to the same end.
    let _nobody_listens = std::io::stderr().write_all(format!("{text}\n").as_bytes());
}

impl SharedEngine {
    pub(super) fn new(engine: Engine, most: Duration, exit: fn(i32) -> !) -> SharedEngine {
        let (rank, size) = (engine.rank, engine.size);
        SharedEngine {
            engine: Mutex::new(engine),
            rank,
            size,
            interrupted: AtomicBool::new(false),
            making: Mutex::new(None),
            most: Mutex::new(most),
            watch: OnceLock::new(),
            ends: AtomicBool::new(false),
            exit,
        }
    }

    pub(super) fn engine(&self) -> MutexGuard<'_, Engine> {
        lock(&self.engine)
    }

    /// The engine, unless another thread keeps it longer than that.
    pub(super) fn engine_within(&self, most: Duration) -> Option<MutexGuard<'_, Engine>> {
        let since = Instant::now();
        loop {
            match self.engine.try_lock() {
                Ok(engine) => return Some(engine),
                Err(TryLockError::Poisoned(e)) => return Some(e.into_inner()),
                Err(TryLockError::WouldBlock) if since.elapsed() >= most => return None,
                Err(TryLockError::WouldBlock) => std::thread::sleep(BUSY),
            }
        }
    }

    /// The engine, however long another thread copies under its lock; but the members of the communicator where it is one
    /// that takes longer than that.
    pub(super) fn engine_unless_making(&self, most: Duration) -> Result<MutexGuard<'_, Engine>, Vec<usize>> {
        loop {
            if let Some(engine) = self.engine_within(IDLE) {
                return Ok(engine);
            }
            if let Some(making) = lock(&self.making).as_ref().filter(|m| m.since.elapsed() >= most) {
                return Err(making.members.clone());
            }
        }
    }

    pub(super) fn interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    pub(super) fn set_most(&self, most: Duration) {
        *lock(&self.most) = most;
    }

    /// Sends queued messages, within bounds.
    pub(super) fn flush(&self, engine: &mut Engine) {
        let since = Instant::now();
        while !engine.stopped && !engine.channel.is_sent() && since.elapsed() < FLUSH {
            if engine.channel.poll().is_err() {
                return;
            }
            std::thread::yield_now();
        }
    }

    /// Starts the progress thread and the watch, which end with the last other user of what is shared, or by
    /// [`SharedEngine::end_threads`].
    pub(super) fn start_threads(self: &Arc<Self>) -> std::io::Result<JoinHandle<()>> {
        let shared = Arc::downgrade(self);
        let watch = std::thread::Builder::new().name("mpi watch".into()).spawn(move || watch(&shared))?;
        let _first = self.watch.set(watch.thread().clone());
        let shared = Arc::downgrade(self);
        std::thread::Builder::new().name("mpi progress".into()).spawn(move || progress(&shared))
    }

    pub(super) fn end_threads(&self) {
        self.ends.store(true, Ordering::Relaxed);
        self.wake_watch();
    }

    fn wake_watch(&self) {
        if let Some(watch) = self.watch.get() {
            watch.unpark();
        }
    }

    /// Ends the process where a communicator is made without end.
    fn look_at_making(&self) -> Duration {
        let making = lock(&self.making);
        let Some(NowMaking { since, call, members }) = &*making else { return ASLEEP };
        let waited = since.elapsed();
        if (self.interrupted() && waited >= LAST_ANSWER) || waited > *lock(&self.most) {
            say(&format!(
                "error: rank {} timed out after {:.1} s in {call}; waiting for ranks {members:?} to set up their communicator: \
                 one of them is stopped or dead",
                self.rank,
                waited.as_secs_f64()
            ));
            abort_job(1);
            (self.exit)(1);
        }
        IDLE
    }

    fn look_at_engine(&self) -> Duration {
        let engine = match self.engine.try_lock() {
            Ok(engine) => Some(engine),
            Err(TryLockError::Poisoned(e)) => Some(e.into_inner()),
            // Whoever has it does the work.
            Err(TryLockError::WouldBlock) => None,
        };
        let Some(mut engine) = engine else { return IDLE };
        // The engine notes an error, and the next call reports it.
        let _noted = engine.step(Some(self));
        if engine.pending() > 0 { BUSY } else { IDLE }
    }
}

fn progress(shared: &Weak<SharedEngine>) {
    flush_subnormals();
    while let Some(pause) = pause_after(shared, SharedEngine::look_at_engine) {
        std::thread::sleep(pause);
    }
}

fn watch(shared: &Weak<SharedEngine>) {
    while let Some(pause) = pause_after(shared, SharedEngine::look_at_making) {
        std::thread::park_timeout(pause);
    }
}

/// Does a round's work, unless there is none any more.
fn pause_after(shared: &Weak<SharedEngine>, round: fn(&SharedEngine) -> Duration) -> Option<Duration> {
    let shared = shared.upgrade()?;
    (!shared.ends.load(Ordering::Relaxed)).then(|| round(&shared))
}

impl Making for SharedEngine {
    fn begins(&self, call: &CallName, members: &[usize]) {
        let (since, call, members) = (Instant::now(), call.clone(), members.to_vec());
        *lock(&self.making) = Some(NowMaking { since, call, members });
        self.wake_watch();
    }

    fn ends(&self) {
        *lock(&self.making) = None;
    }
}
