//! Streams and events: work in order, on a thread for each stream.

use crate::lock;
use std::collections::VecDeque;
use std::ffi::c_int;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

type Task = Box<dyn FnOnce() + Send>;

/// Work in order.
pub(crate) struct Stream {
    queue: Mutex<Queue>,
    changed: Condvar,
    /// Less goes first.
    pub(crate) priority: c_int,
}

#[derive(Default)]
struct Queue {
    tasks: VecDeque<Task>,
    closed: bool,
}

impl Stream {
    pub(crate) fn new(priority: c_int) -> Arc<Stream> {
        let stream = Arc::new(Stream { queue: Mutex::default(), changed: Condvar::new(), priority });
        let worker = stream.clone();
        std::thread::spawn(move || worker.work());
        stream
    }

    fn work(&self) {
        loop {
            let mut queue = lock(&self.queue);
            let task = loop {
                if let Some(task) = queue.tasks.pop_front() {
                    break task;
                }
                if queue.closed {
                    return;
                }
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
            };
            drop(queue);
            task();
        }
    }

    pub(crate) fn push(&self, task: impl FnOnce() + Send + 'static) {
        lock(&self.queue).tasks.push_back(Box::new(task));
        self.changed.notify_all();
    }

    /// The thread ends after what is queued.
    pub(crate) fn close(&self) {
        lock(&self.queue).closed = true;
        self.changed.notify_all();
    }
}

/// One recording of an event: done when all streams have come to it.
pub(crate) struct Moment {
    left: Mutex<usize>,
    done: Condvar,
}

impl Moment {
    pub(crate) fn new(streams: usize) -> Arc<Moment> {
        Arc::new(Moment { left: Mutex::new(streams), done: Condvar::new() })
    }

    pub(crate) fn come(&self) {
        let mut left = lock(&self.left);
        *left -= 1;
        if *left == 0 {
            self.done.notify_all();
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        *lock(&self.left) == 0
    }

    pub(crate) fn wait(&self) {
        let mut left = lock(&self.left);
        while *left > 0 {
            left = self.done.wait(left).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// An event: its last recording. One that was never recorded is done.
pub(crate) struct Event {
    last: Mutex<Arc<Moment>>,
}

impl Event {
    pub(crate) fn new() -> Event {
        Event { last: Mutex::new(Moment::new(0)) }
    }

    pub(crate) fn last(&self) -> Arc<Moment> {
        lock(&self.last).clone()
    }

    /// Records the event on streams at once.
    pub(crate) fn record(&self, streams: &[Arc<Stream>]) {
        let moment = Moment::new(streams.len());
        *lock(&self.last) = moment.clone();
        for stream in streams {
            let moment = moment.clone();
            stream.push(move || moment.come());
        }
    }
}
