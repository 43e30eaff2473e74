//! What the threads of a process share: the engine under its lock, and the pulse.
//!
//! **The pulse** is a thread that looks after the engine while the device computes: it answers other ranks, hears that they
//! end, and moves what is in flight.

use super::engine::{Engine, Making};
use crate::CallName;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often the pulse looks, with collectives in flight and without.
const BUSY: Duration = Duration::from_micros(300);
const IDLE: Duration = Duration::from_millis(5);

/// How long messages that everything ends may take to leave.
const FLUSH: Duration = Duration::from_millis(300);

pub(super) struct Shared {
    engine: Mutex<Engine>,
    pub(super) rank: usize,
    pub(super) size: usize,
    /// The process was told to end.
    pub(super) interrupted: AtomicBool,
    making: Mutex<Option<NowMaking>>,
    /// How long a communicator may take.
    most: Mutex<Duration>,
    ends: AtomicBool,
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

impl Shared {
    pub(super) fn new(engine: Engine, most: Duration) -> Shared {
        let (rank, size) = (engine.rank, engine.size);
        Shared {
            engine: Mutex::new(engine),
            rank,
            size,
            interrupted: AtomicBool::new(false),
            making: Mutex::new(None),
            most: Mutex::new(most),
            ends: AtomicBool::new(false),
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

    pub(super) fn interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    pub(super) fn set_most(&self, most: Duration) {
        *lock(&self.most) = most;
    }

    /// Sends what waits to be sent, within bounds.
    pub(super) fn flush(&self, engine: &mut Engine) {
        let since = Instant::now();
        while !engine.stopped && !engine.mail.is_sent() && since.elapsed() < FLUSH {
            if engine.mail.poll().is_err() {
                return;
            }
            std::thread::yield_now();
        }
    }

    /// Starts the pulse, which ends with the last other user of what is shared, or by [`Shared::end_pulse`].
    pub(super) fn start_pulse(self: &Arc<Self>) -> std::io::Result<JoinHandle<()>> {
        let shared = Arc::downgrade(self);
        std::thread::Builder::new().name("mpi pulse".into()).spawn(move || pulse(&shared))
    }

    pub(super) fn end_pulse(&self) {
        self.ends.store(true, Ordering::Relaxed);
    }

    fn beat(&self) -> Duration {
        if let Some(making) = &*lock(&self.making) {
            let waited = making.since.elapsed();
            if self.interrupted() || waited > *lock(&self.most) {
                // The thread that makes it is in the library, and never comes back.
                let NowMaking { call, members, .. } = making;
                say(&format!(
                    "error: rank {} waited {:.1} s in {call} for the ranks {members:?} to set up their communicator: \
                     one of them is stopped or dead",
                    self.rank,
                    waited.as_secs_f64()
                ));
                super::fatal(1);
            }
        }
        let engine = match self.engine.try_lock() {
            Ok(engine) => Some(engine),
            Err(TryLockError::Poisoned(e)) => Some(e.into_inner()),
            // Whoever has it does the work.
            Err(TryLockError::WouldBlock) => None,
        };
        let Some(mut engine) = engine else { return IDLE };
        // An error is noted in the engine, and told by the next call.
        let _noted = engine.step(None);
        if engine.pending() > 0 { BUSY } else { IDLE }
    }
}

fn pulse(shared: &Weak<Shared>) {
    loop {
        let pause = match shared.upgrade() {
            Some(shared) if !shared.ends.load(Ordering::Relaxed) => shared.beat(),
            _ => return,
        };
        std::thread::sleep(pause);
    }
}

impl Making for Shared {
    fn begins(&self, call: &CallName, members: &[usize]) {
        let (since, call, members) = (Instant::now(), call.clone(), members.to_vec());
        *lock(&self.making) = Some(NowMaking { since, call, members });
    }

    fn ends(&self) {
        *lock(&self.making) = None;
    }
}
