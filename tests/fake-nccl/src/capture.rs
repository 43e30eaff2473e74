//! Graphs: what streams record in place of doing it, in lanes that wait for each other as the streams did.

use crate::cuda::SUCCESS;
use crate::lock;
use crate::stream::{Moment, Stream, Task};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::{Arc, Mutex, Weak};
use std::thread::ThreadId;

pub(crate) const UNSUPPORTED: c_int = 900;
const INVALIDATED: c_int = 901;
const MERGE: c_int = 902;
const UNJOINED: c_int = 904;
const ISOLATION: c_int = 905;
pub(crate) const CAPTURED_EVENT: c_int = 907;

/// How strict a capture is, and a thread, by the numbers of the driver.
const GLOBAL: c_int = 0;
const RELAXED: c_int = 2;

/// Work that is recorded. When it is launched it gives what is to be done then, in the order of the stream.
pub(crate) type Node = Arc<dyn Fn() -> Task + Send + Sync>;

thread_local! {
    static MODE: Cell<c_int> = const { Cell::new(GLOBAL) };
}

/// Captures that are open.
static OPEN: Mutex<Vec<Weak<Capture>>> = Mutex::new(Vec::new());

/// Sets what this thread may do while others capture; gives what was set.
pub(crate) fn exchange_mode(mode: c_int) -> c_int {
    MODE.replace(mode)
}

/// Whether this thread may not ask for memory, or for the state of events, since some thread captures. That breaks the captures
/// off.
pub(crate) fn is_prohibited() -> bool {
    if MODE.get() == RELAXED {
        return false;
    }
    let mut open = lock(&OPEN);
    open.retain(|capture| capture.upgrade().is_some_and(|capture| !lock(&capture.state).closed));
    let disturbed = open.iter().filter_map(Weak::upgrade).filter(|capture| {
        capture.mode == GLOBAL || capture.mode != RELAXED && capture.thread == std::thread::current().id()
    });
    disturbed.map(|capture| lock(&capture.state).broken = true).count() > 0
}

enum GraphStep {
    Work(Node),
    Record(usize),
    Wait(usize),
}

/// A graph while it is captured.
pub(crate) struct Capture {
    mode: c_int,
    thread: ThreadId,
    state: Mutex<CaptureState>,
}

#[derive(Default)]
struct CaptureState {
    /// What each stream has recorded; the first is where it began.
    lanes: Vec<Vec<GraphStep>>,
    /// By lane what it comes after: so many steps of each lane.
    seen: Vec<BTreeMap<usize, usize>>,
    /// What each recording of an event comes after.
    events: Vec<BTreeMap<usize, usize>>,
    broken: bool,
    closed: bool,
}

impl CaptureState {
    fn push(&mut self, lane: usize, step: GraphStep) {
        self.lanes[lane].push(step);
        self.seen[lane].insert(lane, self.lanes[lane].len());
    }

    /// Another stream takes part.
    fn join(&mut self) -> usize {
        self.lanes.push(vec![]);
        self.seen.push(BTreeMap::new());
        self.lanes.len() - 1
    }
}

/// A stream's part in a capture.
#[derive(Clone)]
pub(crate) struct Lane {
    capture: Arc<Capture>,
    lane: usize,
}

/// The recording of an event in a capture.
#[derive(Clone)]
pub(crate) struct CapturedEvent {
    capture: Arc<Capture>,
    event: usize,
}

impl Lane {
    /// The part of the stream where a capture begins.
    pub(crate) fn begin(mode: c_int) -> Lane {
        let mut state = CaptureState::default();
        let lane = state.join();
        let thread = std::thread::current().id();
        let capture = Arc::new(Capture { mode, thread, state: Mutex::new(state) });
        lock(&OPEN).push(Arc::downgrade(&capture));
        Lane { capture, lane }
    }

    /// Whether it still goes on.
    pub(crate) fn is_open(&self) -> bool {
        !lock(&self.capture.state).closed
    }

    pub(crate) fn work(&self, node: Node) {
        lock(&self.capture.state).push(self.lane, GraphStep::Work(node));
    }

    pub(crate) fn record(&self) -> CapturedEvent {
        let mut state = lock(&self.capture.state);
        let event = state.events.len();
        state.push(self.lane, GraphStep::Record(event));
        let seen = state.seen[self.lane].clone();
        state.events.push(seen);
        CapturedEvent { capture: self.capture.clone(), event }
    }

    /// What it recorded, by the stream where it began.
    pub(crate) fn end(self, gpu: c_int) -> Result<Graph, c_int> {
        let mut state = lock(&self.capture.state);
        state.closed = true;
        if state.broken {
            return Err(INVALIDATED);
        }
        let joined = |lane: usize| state.seen[0].get(&lane).copied().unwrap_or(0) == state.lanes[lane].len();
        if !(0..state.lanes.len()).all(joined) {
            return Err(UNJOINED);
        }
        let (lanes, events) = (std::mem::take(&mut state.lanes), state.events.len());
        Ok(Graph { lanes: Arc::new(lanes), events, beside: vec![], gpu })
    }
}

impl CapturedEvent {
    /// A stream waits for it, which takes part from then on; `lane` is its part so far.
    pub(crate) fn awaited(&self, lane: Option<Lane>) -> Result<Lane, c_int> {
        let mut state = lock(&self.capture.state);
        if state.closed {
            return Err(CAPTURED_EVENT);
        }
        let lane = match lane {
            Some(lane) if !Arc::ptr_eq(&lane.capture, &self.capture) => return Err(MERGE),
            Some(lane) => lane,
            None => Lane { capture: self.capture.clone(), lane: state.join() },
        };
        let seen = state.events[self.event].clone();
        for (of, steps) in seen {
            let known = state.seen[lane.lane].entry(of).or_default();
            *known = steps.max(*known);
        }
        state.push(lane.lane, GraphStep::Wait(self.event));
        Ok(lane)
    }
}

/// What a stream that captures may not wait for.
pub(crate) const UNCAPTURED: c_int = ISOLATION;

/// A graph, or one that can be launched.
pub struct Graph {
    lanes: Arc<Vec<Vec<GraphStep>>>,
    events: usize,
    /// Streams for all lanes but the first, where it can be launched.
    beside: Vec<Arc<Stream>>,
    gpu: c_int,
}

impl Graph {
    /// Recorded work in it.
    pub(crate) fn nodes(&self) -> usize {
        self.lanes.iter().flatten().filter(|step| matches!(step, GraphStep::Work(_))).count()
    }

    pub(crate) fn launchable(&self) -> Graph {
        let beside = self.lanes.iter().skip(1).map(|_| Stream::new(self.gpu, 0)).collect();
        Graph { lanes: self.lanes.clone(), events: self.events, beside, gpu: self.gpu }
    }

    /// Does all of it, in the order of a stream.
    pub(crate) fn launch(&self, stream: &Stream) -> c_int {
        let moments: Vec<Arc<Moment>> = (0..self.events).map(|_| Moment::new(1)).collect();
        let streams = std::iter::once(stream).chain(self.beside.iter().map(|s| &**s));
        for (lane, stream) in self.lanes.iter().zip(streams) {
            let task = |step: &GraphStep| -> Task {
                match step {
                    GraphStep::Work(node) => node(),
                    GraphStep::Record(event) => {
                        let moment = moments[*event].clone();
                        Box::new(move || moment.come())
                    }
                    GraphStep::Wait(event) => {
                        let moment = moments[*event].clone();
                        Box::new(move || moment.wait())
                    }
                }
            };
            let tasks: Vec<Task> = lane.iter().map(task).collect();
            stream.push(move || tasks.into_iter().for_each(|task| task()));
        }
        SUCCESS
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        self.beside.iter().for_each(|stream| stream.close());
    }
}
