//! Lanes: streams of the transport, each with the calls that are on it in order. All collectives share the first one. Each link
//! of a pipeline has one of its own, so that a message that is received ahead of its time keeps nobody waiting.

use crate::nccl::device::{DeviceEvent, Gpu, OwnStream};
use crate::{CallName, Group, RecordedCalls};
use meshwright_gpu::driver::DriverError;
use meshwright_sorted::SortedMap;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The lane of collectives.
pub(super) const COLLECTIVES: usize = 0;

/// Whose communicator it is: a group's, or that of a link between the same ranks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::nccl) struct CommKey {
    /// Groups come before links.
    is_link: bool,
    ranks: Arc<[usize]>,
}

impl CommKey {
    /// That of a group.
    pub(in crate::nccl) fn group(group: &Group) -> CommKey {
        CommKey { is_link: false, ranks: group.shared_ranks().clone() }
    }

    /// That of a link.
    pub(in crate::nccl) fn link(link: &Group) -> CommKey {
        CommKey { is_link: true, ranks: link.shared_ranks().clone() }
    }

    /// That which a call uses.
    pub(in crate::nccl) fn of_call(group: &Group, name: &CallName) -> CommKey {
        if name.tag.is_message { CommKey::link(group) } else { CommKey::group(group) }
    }

    /// How many ranks it has.
    pub(super) fn size(&self) -> usize {
        self.ranks.len()
    }
}

/// A call on a stream.
pub(super) struct StreamOp {
    pub(super) name: CallName,
    pub(super) group: Group,
    /// Input is there; none where the host had waited for it.
    pub(super) ready: Option<DeviceEvent>,
    pub(super) done: DeviceEvent,
    pub(super) runs_since: Option<Instant>,
    pub(super) timeout: Duration,
    /// The recorded calls, if it is a launch of these.
    pub(super) recorded: Option<RecordedCalls>,
}

/// A stream, and the calls on it that have not ended.
pub(super) struct Lane {
    pub(super) stream: OwnStream,
    queue: VecDeque<StreamOp>,
    /// Number of the first in the queue: all before it have ended.
    pub(super) first: u64,
}

impl Lane {
    fn new(stream: OwnStream) -> Lane {
        Lane { stream, queue: VecDeque::new(), first: 0 }
    }

    /// The event at the end of a call, if that has not ended.
    pub(super) fn done(&self, number: u64) -> Option<DeviceEvent> {
        let at = number.checked_sub(self.first)?;
        self.queue.get(usize::try_from(at).ok()?).map(|op| op.done)
    }

    /// Number of calls at the front that have ended. The next one runs from now on, if its input is there.
    fn count_ended(&mut self, gpu: &Gpu) -> Result<usize, DriverError> {
        let mut ended = 0;
        for op in &mut self.queue {
            if gpu.is_done(op.done)? {
                ended += 1;
                continue;
            }
            if op.runs_since.is_none() && op.ready.map_or(Ok(true), |ready| gpu.is_done(ready))? {
                op.runs_since = Some(Instant::now());
            }
            break;
        }
        Ok(ended)
    }
}

/// All lanes, that of collectives first.
pub(super) struct Lanes {
    all: Vec<Lane>,
    /// The lane of each link.
    links: SortedMap<CommKey, usize>,
    /// Events that nothing waits for any more.
    pub(super) spare: Vec<DeviceEvent>,
}

impl Lanes {
    /// That of collectives alone.
    pub(super) fn new(stream: OwnStream) -> Lanes {
        Lanes { all: vec![Lane::new(stream)], links: SortedMap::new(), spare: vec![] }
    }

    /// Adds that of a link.
    pub(super) fn add(&mut self, link: CommKey, stream: OwnStream) {
        self.links.insert(link, self.all.len());
        self.all.push(Lane::new(stream));
    }

    /// The lane of a communicator.
    pub(super) fn number(&self, key: &CommKey) -> usize {
        self.links.get(key).copied().unwrap_or(COLLECTIVES)
    }

    pub(super) fn at(&self, lane: usize) -> &Lane {
        &self.all[lane]
    }

    /// Adds a call to a lane; gives its number there.
    pub(super) fn push(&mut self, lane: usize, op: StreamOp) -> u64 {
        let lane = &mut self.all[lane];
        lane.queue.push_back(op);
        lane.first + lane.queue.len() as u64 - 1
    }

    /// Whether all that was posted has ended.
    pub(super) fn is_idle(&self) -> bool {
        self.all.iter().all(|lane| lane.queue.is_empty())
    }

    /// The first call of each lane that has not ended; that of the given lane comes first.
    pub(super) fn fronts(&self, lane: usize) -> impl Iterator<Item = &StreamOp> {
        self.all[lane..].iter().chain(&self.all[..lane]).filter_map(|lane| lane.queue.front())
    }

    /// How many calls at the front of each lane have ended.
    pub(super) fn count_ended(&mut self, gpu: &Gpu) -> Result<Vec<usize>, DriverError> {
        self.all.iter_mut().map(|lane| lane.count_ended(gpu)).collect()
    }

    /// Takes calls that have ended from the fronts of the lanes.
    pub(super) fn retire(&mut self, ended: Vec<usize>) {
        for (lane, ended) in self.all.iter_mut().zip(ended) {
            for op in lane.queue.drain(..ended) {
                if let (Some(calls), Some(since)) = (&op.recorded, op.runs_since) {
                    calls.took(since.elapsed());
                }
                self.spare.extend(op.ready);
                self.spare.push(op.done);
                lane.first += 1;
            }
        }
    }

    /// All events, in the end.
    pub(super) fn take_events(&mut self) -> Vec<DeviceEvent> {
        let left = self.all.drain(..).flat_map(|lane| lane.queue);
        left.flat_map(|op| op.ready.into_iter().chain([op.done])).chain(self.spare.drain(..)).collect()
    }
}
