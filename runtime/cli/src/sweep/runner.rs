//! Runs tasks, several at once, until all have ended or somebody stops them.

use super::child;
use super::child::{ProcessEnd, RunTask, Signal};
use crate::signals;
use meshwright_runs::at_work;
use meshwright_runs::memory::available_bytes;
use meshwright_sorted::SortedMap;
use rustix::process::{Pid, Signal as Kill, kill_process};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often is looked whether to stop.
const LOOK: Duration = Duration::from_millis(50);

/// The tasks that wait, the tasks that run, and whether they were asked to stop.
struct Running {
    queue: VecDeque<usize>,
    pids: SortedMap<usize, u32>,
    told: bool,
    /// Bytes of the running tasks, and bytes for all.
    taken: u64,
    available: u64,
}

/// What a slot does next.
enum Next {
    Run(usize),
    /// The next task does not fit along with the running ones.
    Wait,
    End,
}

impl Running {
    fn next(&mut self, tasks: &[RunTask]) -> Next {
        let Some(i) = self.queue.front().copied() else { return Next::End };
        // One alone may try: it says itself what it lacks.
        if self.taken > 0 && self.taken.saturating_add(tasks[i].bytes) > self.available {
            return Next::Wait;
        }
        self.queue.pop_front();
        self.taken += tasks[i].bytes;
        Next::Run(i)
    }
}

/// Runs all tasks, `jobs` at once as long as their Plans fit into the memory there is. `see` gets what happens to each of them.
/// A task that was stopped, or never started, has not ended.
pub(crate) fn run_all(tasks: &[RunTask], jobs: usize, stop: &AtomicBool, see: &mut dyn FnMut(usize, Signal)) {
    let running = Mutex::new(Running {
        queue: (0..tasks.len()).collect(),
        pids: SortedMap::new(),
        told: false,
        taken: 0,
        available: available_bytes().unwrap_or(u64::MAX),
    });
    std::thread::scope(|scope| {
        let (sender, signals) = channel();
        for _ in 0..jobs.min(tasks.len()) {
            let (sender, running) = (sender.clone(), &running);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let next = locked(running).next(tasks);
                    match next {
                        Next::Run(i) => {
                            run(i, &tasks[i], stop, running, &sender);
                            locked(running).taken -= tasks[i].bytes;
                        }
                        Next::Wait => std::thread::sleep(LOOK),
                        Next::End => break,
                    }
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
                tell(&mut locked(&running));
            }
        }
    });
}

fn locked(running: &Mutex<Running>) -> MutexGuard<'_, Running> {
    running.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Tells all processes to end with a checkpoint, once: a second signal would end them without.
fn tell(running: &mut Running) {
    if std::mem::replace(&mut running.told, true) {
        return;
    }
    running.pids.values().for_each(|pid| end(*pid));
}

/// Not as Ctrl-C does: a process of a script in the background ignores that, and so do the processes that it starts.
fn end(pid: u32) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // One that has just ended needs no telling.
        let _gone = kill_process(pid, Kill::TERM);
    }
}

fn run(
    i: usize,
    task: &RunTask,
    stop: &AtomicBool,
    running: &Mutex<Running>,
    sender: &Sender<(usize, Signal)>,
) {
    // Who listens is there until all senders are gone.
    let tell = |signal| drop(sender.send((i, signal)));
    let begin = Instant::now();
    let fails =
        |why: String| Signal::Ends { how: ProcessEnd::Failed(why), seconds: begin.elapsed().as_secs_f64() };
    // A process of a sweep that was killed ends when it notices: after its step.
    let mut waited = false;
    let log = loop {
        match child::log(task) {
            Ok(Some(log)) if !at_work(&task.run) => break log,
            Ok(_) => {}
            Err(e) => {
                return tell(fails(format!(
                    "`{}` cannot be used: {e}",
                    task.logs.path().join(&task.log).display()
                )));
            }
        }
        if !std::mem::replace(&mut waited, true) {
            tell(Signal::Waits);
        }
        if stop.load(Ordering::Relaxed) {
            return;
        }
        std::thread::sleep(LOOK);
    };
    let begin = Instant::now();
    let ends = |how: ProcessEnd| Signal::Ends { how, seconds: begin.elapsed().as_secs_f64() };
    let mut process = match child::start(task, log) {
        Ok(process) => process,
        Err(e) => return tell(ends(ProcessEnd::Failed(format!("its process does not start: {e}")))),
    };
    let pid = process.id();
    {
        let mut running = locked(running);
        running.pids.insert(i, pid);
        signals::started(pid);
        // Tasks that were asked to stop do not include this one.
        if running.told {
            end(pid);
        }
    }
    tell(Signal::Starts);
    let how = child::follow(&mut process, task, &mut |signal| tell(signal));
    locked(running).pids.remove(&i);
    signals::ended(pid);
    tell(ends(how.unwrap_or_else(|e| ProcessEnd::Failed(format!("its process cannot be followed: {e}")))));
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshwright_files::folder::Folder;

    #[test]
    fn what_does_not_fit_beside_others_waits() {
        let task =
            |bytes| RunTask { words: vec![], run: "r".into(), logs: Folder::at(""), log: "l".into(), bytes };
        let tasks = [task(60), task(50), task(500), task(1)];
        let queue = (0..4).collect();
        let mut r = Running { queue, pids: SortedMap::new(), told: false, taken: 0, available: 100 };
        assert!(matches!(r.next(&tasks), Next::Run(0)) && matches!(r.next(&tasks), Next::Wait));
        r.taken -= 60;
        assert!(matches!(r.next(&tasks), Next::Run(1)) && matches!(r.next(&tasks), Next::Wait));
        r.taken -= 50;
        // More than there is: it runs alone.
        assert!(matches!(r.next(&tasks), Next::Run(2)) && matches!(r.next(&tasks), Next::Wait));
        r.taken -= 500;
        assert!(matches!(r.next(&tasks), Next::Run(3)) && matches!(r.next(&tasks), Next::End));
    }
}
