//! Runs tasks, so many at once, until all have ended or somebody says stop.

use super::child;
use crate::signals;
use meshwright_train::runs::at_work;
use rustix::process::{Pid, Signal as Kill, kill_process};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

pub(crate) use super::child::{Ended, Task};

/// How often is looked whether to stop.
const LOOK: Duration = Duration::from_millis(50);

/// What happens to a task.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Signal {
    /// Another process is still at work in its folder, and is waited for.
    Waits,
    /// Its process runs.
    Starts,
    /// A step is done.
    Step { step: u64, loss: f64 },
    /// It has ended, after so many seconds.
    Ends { how: Ended, seconds: f64 },
}

/// The processes that run now, to be told to stop; and whether they were.
#[derive(Default)]
struct Running {
    pids: BTreeMap<usize, u32>,
    told: bool,
}

/// Runs all tasks. `see` is told what happens to which of them. A task that was stopped, or never started, has not ended.
pub(crate) fn run_all(tasks: &[Task], jobs: usize, stop: &AtomicBool, see: &mut dyn FnMut(usize, Signal)) {
    let queue: Mutex<VecDeque<usize>> = Mutex::new((0..tasks.len()).collect());
    let running = Mutex::new(Running::default());
    std::thread::scope(|scope| {
        let (sender, signals) = channel();
        for _ in 0..jobs.min(tasks.len()) {
            let sender = sender.clone();
            let (queue, running) = (&queue, &running);
            scope.spawn(move || {
                loop {
                    let next = queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                    let Some(i) = next.filter(|_| !stop.load(Ordering::Relaxed)) else { break };
                    run(i, &tasks[i], stop, running, &sender);
                }
            });
        }
        drop(sender);
        loop {
            match signals.recv_timeout(LOOK) {
                Ok((i, signal)) => see(i, signal),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if stop.load(Ordering::Relaxed) {
                tell(&mut running.lock().unwrap_or_else(PoisonError::into_inner));
            }
        }
    });
}

/// Tells all processes to end with a checkpoint, once: a second signal would end them without.
fn tell(running: &mut Running) {
    if std::mem::replace(&mut running.told, true) {
        return;
    }
    running.pids.values().for_each(|pid| interrupt(*pid));
}

fn interrupt(pid: u32) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // One that has just ended needs no telling.
        let _gone = kill_process(pid, Kill::INT);
    }
}

fn run(i: usize, task: &Task, stop: &AtomicBool, running: &Mutex<Running>, sender: &Sender<(usize, Signal)>) {
    // Who listens is there until all senders are gone.
    let tell = |signal| drop(sender.send((i, signal)));
    // A process of a sweep that was killed ends when it notices: after its step.
    let mut waited = false;
    while at_work(&task.run) {
        if !std::mem::replace(&mut waited, true) {
            tell(Signal::Waits);
        }
        if stop.load(Ordering::Relaxed) {
            return;
        }
        std::thread::sleep(LOOK);
    }
    let begin = Instant::now();
    let ends = |how: Ended| Signal::Ends { how, seconds: begin.elapsed().as_secs_f64() };
    let mut process = match child::start(task) {
        Ok(process) => process,
        Err(e) => return tell(ends(Ended::Failed(format!("its process does not start: {e}")))),
    };
    let pid = process.id();
    {
        let mut running = running.lock().unwrap_or_else(PoisonError::into_inner);
        running.pids.insert(i, pid);
        signals::started(pid);
        // Those who were told do not know of this one.
        if running.told {
            interrupt(pid);
        }
    }
    tell(Signal::Starts);
    let how = child::follow(&mut process, task, &mut |signal| tell(signal));
    running.lock().unwrap_or_else(PoisonError::into_inner).pids.remove(&i);
    signals::ended(pid);
    tell(ends(how.unwrap_or_else(|e| Ended::Failed(format!("its process cannot be followed: {e}")))));
}
