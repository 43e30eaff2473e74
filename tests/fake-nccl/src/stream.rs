//! Streams and events: work in order, on a thread for each stream.

use crate::capture::{CapturedEvent, Graph, Lane, Node};
use crate::faults::{KernelFault, kernel_fault};
use crate::lock;
use std::cell::Cell;
use std::collections::VecDeque;
use std::ffi::c_int;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

pub(crate) type Task = Box<dyn FnOnce() + Send>;

thread_local! {
    /// Kernels that the stream of this thread has run: its clock.
    static RUN: Cell<u64> = const { Cell::new(0) };
}

/// The stream of this thread, of that GPU, has run a kernel. One that is to stall never comes back from here.
pub(crate) fn kernel_ran(gpu: c_int) {
    RUN.set(RUN.get() + 1);
    if let Some(KernelFault::Stall) = kernel_fault(gpu) {
        loop {
            std::thread::park();
        }
    }
}

/// Work in order.
pub(crate) struct Stream {
    queue: Mutex<Queue>,
    changed: Condvar,
    /// Its part in a graph that is captured.
    lane: Mutex<Option<Lane>>,
    pub(crate) gpu: c_int,
    /// Less goes first.
    pub(crate) priority: c_int,
}

#[derive(Default)]
struct Queue {
    tasks: VecDeque<Task>,
    closed: bool,
    /// Set when the thread has ended.
    ended: bool,
}

impl Stream {
    pub(crate) fn new(gpu: c_int, priority: c_int) -> Arc<Stream> {
        let stream = Arc::new(Stream {
            queue: Mutex::default(),
            changed: Condvar::new(),
            lane: Mutex::default(),
            gpu,
            priority,
        });
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
                    queue.ended = true;
                    return;
                }
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
            };
            drop(queue);
            task();
        }
    }

    pub(crate) fn push(&self, task: impl FnOnce() + Send + 'static) {
        let mut queue = lock(&self.queue);
        if queue.ended {
            // Another thread has destroyed the stream since this one looked which there are: all before this is done.
            drop(queue);
            return task();
        }
        queue.tasks.push_back(Box::new(task));
        self.changed.notify_all();
    }

    /// Does it in its turn, or records it where a graph is captured.
    pub(crate) fn launch(&self, work: impl Fn() + Send + Sync + 'static) {
        let work = Arc::new(work);
        self.launch_prepared(Arc::new(move || {
            let work = work.clone();
            Box::new(move || work())
        }));
    }

    /// The same of what is prepared each time that it is launched.
    pub(crate) fn launch_prepared(&self, node: Node) {
        match self.lane() {
            Some(lane) => lane.work(node),
            None => self.push(node()),
        }
    }

    /// Its part in the graph that is captured, while that goes on.
    pub(crate) fn lane(&self) -> Option<Lane> {
        let mut lane = lock(&self.lane);
        if lane.as_ref().is_some_and(|lane| !lane.is_open()) {
            *lane = None;
        }
        lane.clone()
    }

    /// Records from now on; false where it does already.
    pub(crate) fn capture(&self, mode: c_int) -> bool {
        let begins = self.lane().is_none();
        if begins {
            *lock(&self.lane) = Some(Lane::begin(mode));
        }
        begins
    }

    /// What was recorded; none where nothing was captured.
    pub(crate) fn captured(&self) -> Option<Result<Graph, c_int>> {
        let lane = lock(&self.lane).take()?;
        Some(lane.end(self.gpu))
    }

    pub(crate) fn is_capturing(&self) -> bool {
        self.lane().is_some()
    }

    /// What comes after this comes after an event of a capture, of which this stream is then a part.
    pub(crate) fn wait_captured(&self, event: &CapturedEvent) -> Result<(), c_int> {
        let lane = event.awaited(self.lane())?;
        *lock(&self.lane) = Some(lane);
        Ok(())
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
    /// Where that was in a capture, which part of it.
    captured: Mutex<Option<CapturedEvent>>,
    /// That of its last recording.
    pub(crate) gpu: AtomicI32,
    /// How many kernels its stream had run at its last recording.
    pub(crate) kernels: Arc<AtomicU64>,
}

impl Event {
    pub(crate) fn new() -> Event {
        Event {
            last: Mutex::new(Moment::new(0)),
            captured: Mutex::default(),
            gpu: AtomicI32::new(-1),
            kernels: Arc::default(),
        }
    }

    pub(crate) fn last(&self) -> Arc<Moment> {
        lock(&self.last).clone()
    }

    /// The part of a capture that its last recording is.
    pub(crate) fn captured(&self) -> Option<CapturedEvent> {
        lock(&self.captured).clone()
    }

    /// Records the event on a stream, or in the graph that is captured there.
    pub(crate) fn record_on(&self, stream: Arc<Stream>) {
        match stream.lane() {
            Some(lane) => *lock(&self.captured) = Some(lane.record()),
            None => self.record(&[stream]),
        }
    }

    /// Records the event on streams at once, none of which captures.
    pub(crate) fn record(&self, streams: &[Arc<Stream>]) {
        *lock(&self.captured) = None;
        let moment = Moment::new(streams.len());
        *lock(&self.last) = moment.clone();
        for stream in streams {
            self.gpu.store(stream.gpu, Ordering::Relaxed);
            let (moment, kernels) = (moment.clone(), self.kernels.clone());
            stream.push(move || {
                kernels.store(RUN.get(), Ordering::Relaxed);
                moment.come();
            });
        }
    }
}
