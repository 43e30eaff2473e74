//! The thread that plays the devices of other processes: it posts their calls as their letters come.

use super::devices::{Several, told};
use super::letter::Letter;
use super::moves::Staging;
use crate::threads::Pending;
use crate::{Abort, CommError, Group, ThreadsTransport, Transport};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread::Thread;
use std::time::Duration;

/// How often it looks for letters while a device waits for some, and otherwise.
const BUSY: Duration = Duration::from_micros(50);
const IDLE: Duration = Duration::from_millis(1);

/// A courier that was started and has no work yet.
pub(super) struct Courier {
    thread: Thread,
    work: Sender<Weak<Several>>,
}

/// The end of everything, as MPI tells it.
pub(super) enum Told {
    /// This process was told to end.
    ToEnd,
    /// Another process has ended all, for that device.
    Aborted { device: usize, reason: String },
}

impl Courier {
    /// Starts the thread with the ends of the devices that are elsewhere, and a way to end the devices here.
    pub(super) fn start(
        others: Vec<ThreadsTransport>,
        own: Option<Arc<dyn Abort>>,
    ) -> std::io::Result<Courier> {
        let (work, wait) = channel();
        let thread = std::thread::Builder::new().name("mpi courier".into());
        let thread = thread.spawn(move || run(others, own, &wait))?;
        Ok(Courier { thread: thread.thread().clone(), work })
    }

    pub(super) fn thread(&self) -> &Thread {
        &self.thread
    }

    /// Gives it its work.
    pub(super) fn works_for(self, several: &Arc<Several>) {
        // It waits for nothing else, so it is there.
        let _there = self.work.send(Arc::downgrade(several));
    }
}

/// A device of another process.
struct Elsewhere {
    /// None when it has left.
    end: Option<ThreadsTransport>,
    aborter: Arc<dyn Abort>,
}

fn run(others: Vec<ThreadsTransport>, own: Option<Arc<dyn Abort>>, wait: &Receiver<Weak<Several>>) {
    let Ok(several) = wait.recv() else { return };
    let elsewhere = |end: ThreadsTransport| {
        let aborter = end.aborter();
        (end.rank(), Elsewhere { end: Some(end), aborter })
    };
    let mut devices: BTreeMap<usize, Elsewhere> = others.into_iter().map(elsewhere).collect();
    // Collectives with the memory that came by letter.
    let mut under_way: Vec<(Pending, Staging)> = vec![];
    let mut over = false;
    while let Some(several) = several.upgrade() {
        let letters = {
            let mut engine = several.mpi.engine();
            // An error is noted in the engine, and told below.
            let _noted = engine.step(None);
            std::mem::take(&mut engine.letters)
        };
        for (process, letter) in letters {
            match Letter::read(&letter) {
                Some(letter) => deliver(letter, &mut devices, &mut under_way),
                None => {
                    if let Some(own) = &own {
                        own.abort(&format!("process {process} sent what this one does not understand"));
                    }
                }
            }
        }
        if !over && let Some(told) = told(&several) {
            over = true;
            match told {
                Told::ToEnd => {
                    if let Some(own) = &own {
                        own.abort("its process was told to end");
                    }
                }
                Told::Aborted { device, reason } => {
                    let known = devices.get(&device).map(|d| &d.aborter).or(own.as_ref());
                    if let Some(aborter) = known {
                        aborter.abort(&reason);
                    }
                }
            }
        }
        under_way.retain(|(pending, _)| !pending.is_over());
        if several.alive.load(Ordering::Acquire) == 0 && under_way.is_empty() {
            break;
        }
        let busy = several.under_way.load(Ordering::Relaxed) > 0 || !under_way.is_empty();
        drop(several);
        if busy { std::thread::sleep(BUSY) } else { std::thread::park_timeout(IDLE) }
    }
}

fn deliver(
    letter: Letter,
    devices: &mut BTreeMap<usize, Elsewhere>,
    under_way: &mut Vec<(Pending, Staging)>,
) {
    match letter {
        Letter::Came { from, members, tag, call, data } => {
            let Some(Elsewhere { end: Some(end), .. }) = devices.get_mut(&from) else { return };
            let Ok(group) = Group::new(members, from) else { return };
            #[expect(unsafe_code, reason = "posts the memory of a letter")]
            // SAFETY: the memory is kept with the handle until that is over; results are absent, so nothing but the fold reads
            // or writes here.
            let entered: Result<Pending, CommError> = unsafe { end.enter(&group, &tag, call) };
            // A call that fails has failed for the devices here too, which say so.
            if let Ok(pending) = entered {
                under_way.push((pending, data));
            }
        }
        Letter::Ended { from, reason } => {
            let Some(device) = devices.get_mut(&from) else { return };
            if let Some(reason) = reason {
                device.aborter.abort(&reason);
            }
            drop(device.end.take());
        }
    }
}
