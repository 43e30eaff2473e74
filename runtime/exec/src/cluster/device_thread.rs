//! A device of this process, as the thread that it is.

use crate::cluster::devices::{DeviceCollectives, DeviceKind};
use crate::engine::{Engine, panic_message};
use crate::error::{ExecError, Place};
use meshwright_comm::{Timeouts, Transport, flush_subnormals};
use meshwright_gpu::load::Paths;
use rayon::ThreadPool;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

type Job = Box<dyn FnOnce(&mut Engine) + Send>;

/// A device of this process: a thread with an engine, which does one job after the other, and others that share its work.
pub(super) struct Device {
    jobs: Option<Sender<Job>>,
    /// Its threads end when it is gone and their work is done.
    pool: Option<ThreadPool>,
    threads: Vec<JoinHandle<()>>,
    /// Whether its answer has timed out: it is not waited for again.
    lost: AtomicBool,
    /// Number of the step that was requested last.
    asked: Arc<AtomicU64>,
}

/// The result of a job on a device, with the index of the device in this process.
pub(super) type Answer<T> = (usize, Result<T, ExecError>);

impl Device {
    /// Gives up the thread, which does not finish its work.
    pub(super) fn leave(&self) {
        self.lost.store(true, Ordering::Relaxed);
    }

    /// Number of the running step, or of the last one; `None` before the first.
    pub(super) fn step_number(&self) -> Option<u64> {
        Some(self.asked.load(Ordering::Relaxed)).filter(|n| *n > 0)
    }

    /// It ends after the jobs that it has.
    pub(super) fn close(&mut self) {
        self.jobs = None;
        self.pool = None;
    }

    /// Waits for its end, up to the limit. A thread that does not end lasts until the process ends.
    pub(super) fn join(&mut self, limit: Option<Duration>) {
        let begin = Instant::now();
        let too_long = || limit.is_some_and(|limit| begin.elapsed() > limit);
        let ended = |threads: &[JoinHandle<()>]| threads.iter().all(JoinHandle::is_finished);
        while limit.is_some() && !ended(&self.threads) && !too_long() {
            std::thread::sleep(Duration::from_millis(2));
        }
        if !*self.lost.get_mut() && (limit.is_none() || ended(&self.threads)) {
            // The waiting job has reported a panic.
            self.threads.drain(..).for_each(|thread| drop(thread.join()));
        }
    }

    /// Sends a job; the answer comes through the channel, which closes if the thread is gone. False if the thread has
    /// ended.
    pub(super) fn ask<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Engine) -> Result<T, ExecError> + Send + 'static,
        local: usize,
        answer: Sender<Answer<T>>,
    ) -> bool {
        let job: Job = Box::new(move |engine| {
            let done = catch_unwind(AssertUnwindSafe(|| job(engine))).unwrap_or_else(|panic| {
                let place = Box::new(Place { rank: engine.rank(), ..Place::default() });
                let error = ExecError::Panicked { place, message: panic_message(&*panic) };
                let error = engine.explained(error);
                engine.abort(&error.to_string());
                Err(error)
            });
            let done = done.map_err(|error| engine.explained(error));
            // Without a receiver nobody needs the answer.
            let _ = answer.send((local, done));
        });
        let there = self.jobs.as_ref().filter(|_| !self.lost.load(Ordering::Relaxed));
        there.is_some_and(|jobs| jobs.send(job).is_ok())
    }
}

/// A device whose thread makes itself ready.
pub(super) struct Starting {
    rank: usize,
    device: Device,
    started: Receiver<Result<Arc<AtomicU64>, String>>,
}

impl Starting {
    pub(super) fn ready(self) -> Result<Device, ExecError> {
        let failed = |message: String| ExecError::Start { rank: self.rank, message };
        match self.started.recv() {
            Ok(Ok(asked)) => Ok(Device { asked, ..self.device }),
            Ok(Err(message)) => Err(failed(message)),
            Err(_) => Err(failed("it ended at once".into())),
        }
    }
}

/// Starts the thread of a device.
pub(super) fn spawn(
    rank: usize,
    end: Box<dyn Transport>,
    threads: usize,
    kind: DeviceKind,
    (collectives, timeouts, libraries): (DeviceCollectives, Timeouts, Paths),
) -> Result<Starting, ExecError> {
    let (jobs, inbox) = channel::<Job>();
    let (ready, started) = channel::<Result<Arc<AtomicU64>, String>>();
    let body = move || {
        let made = collectives
            .over(end, &kind, timeouts, libraries.clone())
            .and_then(|end| Engine::on(&kind, end, &libraries))
            .map_err(|e| match e {
                ExecError::Start { message, .. } => message,
                other => other.to_string(),
            });
        let (mut engine, told) = match made {
            Ok(engine) => {
                let told = ready.send(Ok(engine.asked()));
                (engine, told)
            }
            Err(message) => {
                // Without a receiver nobody needs the error.
                let _ = ready.send(Err(message));
                return;
            }
        };
        if told.is_err() {
            return;
        }
        while let Ok(job) = inbox.recv() {
            job(&mut engine);
        }
    };
    let (pool, threads) = threads_of(rank, threads).map_err(|message| ExecError::Start { rank, message })?;
    let body = Mutex::new(Some(body));
    pool.spawn_broadcast(move |context| {
        let body = if context.index() == 0 { body.lock().ok().and_then(|mut b| b.take()) } else { None };
        if let Some(body) = body {
            // Whoever waits for an answer learns that there is none.
            let _ = catch_unwind(AssertUnwindSafe(body));
        }
    });
    Ok(Starting {
        rank,
        device: Device {
            jobs: Some(jobs),
            pool: Some(pool),
            threads,
            lost: AtomicBool::new(false),
            asked: Arc::default(),
        },
        started,
    })
}

/// The threads of a device. The first is the device's own; a thread from elsewhere that took its place would leave
/// the memory of the pool behind.
fn threads_of(rank: usize, threads: usize) -> Result<(ThreadPool, Vec<JoinHandle<()>>), String> {
    let mut started = Vec::new();
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .spawn_handler(|thread| {
            let name = match thread.index() {
                0 => format!("device-{rank}"),
                other => format!("device-{rank}.{other}"),
            };
            let body = move || {
                flush_subnormals();
                thread.run();
            };
            started.push(std::thread::Builder::new().name(name).spawn(body)?);
            Ok(())
        })
        .build();
    pool.map(|pool| (pool, started)).map_err(|e| e.to_string())
}
