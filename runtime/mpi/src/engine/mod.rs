//! State of the collectives of a process, and of the other ranks. All calls of the library are made here, under one
//! lock.
//!
//! **The way of a collective.** Where calls are compared, and on the first collective of a group, each member sends its
//! call to the first member of the group, which compares them and sends its verdict to all (*gathering*: nothing of the
//! data moves, and the collective may fail). Then, or at once where calls are not compared, the members start the
//! operations of the library, in the order in which they posted (*running*: it cannot be taken back).
//!
//! **Communicators** are made when the first collective of a group starts: see [`start`].

mod readiness;
mod start;

use crate::channel::{ControlChannel, Received};
use crate::collective_state::{Kit, Member};
use crate::message::{CollectiveId, Header, Message, PostCounts, Status, Verdict};
use crate::moves::RunningCollective;
use crate::sys::Comm;
use meshwright_comm::parts::{PostedCall, Signature};
use meshwright_comm::{CallName, CommError, Group, Tag, wire};
use meshwright_sorted::SortedMap;
use readiness::Readiness;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

/// Number of a collective in the order in which this rank posted them.
pub(super) type Serial = u64;

pub(super) struct Engine {
    pub(super) rank: usize,
    pub(super) size: usize,
    kit: Kit,
    /// The parent of communicators.
    world: Comm,
    pub(super) channel: ControlChannel,
    groups: SortedMap<Arc<[usize]>, OfGroup>,
    /// Groups without a communicator, in the order of their first collective.
    unmade: VecDeque<Arc<[usize]>>,
    ops: SortedMap<Serial, EngineOp>,
    posted: Serial,
    /// Calls of groups whose first member this is, by position.
    gathered: SortedMap<CollectiveId, Vec<Option<Header>>>,
    /// Verdicts on collectives that this rank has not come to yet: they have failed.
    foretold: SortedMap<CollectiveId, Verdict>,
    /// The last collective that this rank posted, and the one that it waits for.
    pub(super) last_call: Option<CallName>,
    pub(super) waits: Option<CollectiveId>,
    /// The last answer of each rank that was asked where it is, and when it came.
    pub(super) answers: SortedMap<usize, (Instant, Status)>,
    pub(super) left: SortedMap<usize, PostCounts>,
    /// Messages for the devices of this process.
    pub(super) device_messages: VecDeque<Received>,
    /// Rank and reason of an abort.
    pub(super) aborted: Option<(usize, String)>,
    /// The library is called no more: it might touch memory that it was lent and that has been taken back.
    pub(super) stopped: bool,
}

struct OfGroup {
    comm: Option<Comm>,
    posted: u64,
    /// Collectives that have not started, in order.
    queue: VecDeque<Serial>,
    readiness: Readiness,
}

impl OfGroup {
    fn new(comm: Option<Comm>) -> OfGroup {
        OfGroup { comm, posted: 0, queue: VecDeque::new(), readiness: Readiness::default() }
    }
}

pub(super) struct EngineOp {
    key: CollectiveId,
    position: usize,
    pub(super) name: CallName,
    tag: Tag,
    call: PostedCall,
    phase: Phase,
    /// Whether calls were compared.
    agreed: bool,
    /// Why it cannot end well, though the library has begun it.
    pub(super) hopeless: Option<CommError>,
}

enum Phase {
    Gathering,
    Ready,
    Running(RunningCollective),
    Ended(Result<(), CommError>),
}

/// Notes that a communicator is being made: if that never ends, the process must be ended.
pub(super) trait Making {
    fn begins(&self, call: &CallName, members: &[usize]);
    fn ends(&self);
}

impl Engine {
    pub(super) fn new(world: Comm, data: Comm, control: Comm, kit: Kit) -> Result<Engine, String> {
        let (rank, size) = (world.rank()?, world.size()?);
        let (all, limit): (Arc<[usize]>, _) = ((0..size).collect(), kit.limit);
        Ok(Engine {
            rank,
            size,
            kit,
            world,
            channel: ControlChannel::new(control, limit)?,
            groups: SortedMap::from([(all, OfGroup::new(Some(data)))]),
            unmade: VecDeque::new(),
            ops: SortedMap::new(),
            posted: 0,
            gathered: SortedMap::new(),
            foretold: SortedMap::new(),
            last_call: None,
            waits: None,
            answers: SortedMap::new(),
            left: SortedMap::new(),
            device_messages: VecDeque::new(),
            aborted: None,
            stopped: false,
        })
    }

    /// Adds a call that was checked, of a group of several members. Nothing happens to its memory before [`Engine::begin`].
    pub(super) fn enter(
        &mut self,
        group: &Group,
        tag: &Tag,
        call: PostedCall,
        compare: bool,
    ) -> Result<Serial, CommError> {
        let name = call.signature.name(tag);
        self.check_alive(&name)?;
        self.last_call = Some(name.clone());
        let members = group.shared_ranks().clone();
        let state = self.groups.entry(members.clone()).or_insert_with(|| OfGroup::new(None));
        let first = state.posted == 0;
        if first && state.comm.is_none() {
            self.unmade.push_back(members.clone());
        }
        let key = CollectiveId { members, number: state.posted };
        state.posted += 1;
        if let Some(rank) = self.left_without(&key) {
            return Err(CommError::Left { rank, call: name });
        }
        self.posted += 1;
        let serial = self.posted;
        let position = group.position();
        if let Some(state) = self.groups.get_mut(&key.members) {
            let agreed = compare || (first && state.comm.is_none());
            let phase = if agreed { Phase::Gathering } else { Phase::Ready };
            state.queue.push_back(serial);
            let tag = tag.clone();
            self.ops
                .insert(serial, EngineOp { key, position, name, tag, call, phase, agreed, hopeless: None });
        }
        Ok(serial)
    }

    /// Begins with a collective that was entered. Whatever fails here, this collective may be under way: after an error
    /// it must be released as after a wait.
    pub(super) fn begin(&mut self, serial: Serial, making: &dyn Making) -> Result<(), CommError> {
        let Some(op) = self.ops.get(&serial) else { return Ok(()) };
        let (key, position, name) = (op.key.clone(), op.position, op.name.clone());
        let header = || Header { tag: op.tag.clone(), signature: op.call.signature.clone() };
        let entered = match (op.agreed, position) {
            (false, _) => Ok(()),
            (true, 0) => {
                let header = header();
                self.gather(self.rank, key.clone(), header)
            }
            (true, _) => {
                let message = Message::Entered(key.clone(), header());
                self.channel.send(key.members[0], &message)
            }
        };
        self.answered(entered, Some(&name))?;

        if let Some(verdict) = self.foretold.remove(&key) {
            self.hear(key, verdict);
        }
        self.step(Some(making))?;
        // Errors that all members find now are reported by `post`, as by other transports.
        self.ops.get(&serial).and_then(EngineOp::result).cloned().unwrap_or(Ok(()))
    }

    /// Whether a group has its communicator.
    pub(super) fn has_comm(&self, group: &Group) -> bool {
        self.groups.get(group.ranks()).is_some_and(|of| of.comm.is_some())
    }

    /// Notes an abort, if none is noted, and sends it to all others if it is this rank's.
    pub(super) fn abort(&mut self, rank: usize, reason: &str) {
        if self.aborted.is_some() {
            return;
        }
        self.aborted = Some((rank, reason.into()));
        if rank == self.rank {
            self.tell_all(&Message::Abort(rank, reason.into()));
        }
    }

    /// Sends an encoded message with its payload to another process.
    pub(super) fn send_bytes(&mut self, to: usize, bytes: &Arc<Vec<u8>>) -> Result<(), String> {
        if self.stopped { Ok(()) } else { self.channel.send_bytes(to, bytes) }
    }

    /// Sends a message to all others, those that cannot be reached left out.
    pub(super) fn tell_all(&mut self, message: &Message) {
        if self.stopped {
            return;
        }
        let bytes = Arc::new(wire::encode(message));
        for rank in (0..self.size).filter(|r| *r != self.rank) {
            let _unreachable = self.channel.send_bytes(rank, &bytes);
        }
    }

    /// Number of collectives that this rank has posted on each group.
    pub(super) fn posted(&self) -> PostCounts {
        self.groups.iter().map(|(members, group)| (members.clone(), group.posted)).collect()
    }

    pub(super) fn status(&self) -> Status {
        let unmade = self.unmade.iter().cloned().collect();
        Status { last_call: self.last_call.clone(), waits: self.waits.clone(), posted: self.posted(), unmade }
    }

    /// Why nothing goes on any more, if so.
    pub(super) fn check_alive(&self, call: &CallName) -> Result<(), CommError> {
        match &self.aborted {
            Some((rank, reason)) => {
                Err(CommError::Aborted { rank: *rank, reason: reason.clone(), call: Some(call.clone()) })
            }
            None => Ok(()),
        }
    }

    /// The library's refusal as an error, which ends everything.
    pub(super) fn answered<T>(
        &mut self,
        result: Result<T, String>,
        call: Option<&CallName>,
    ) -> Result<T, CommError> {
        result.map_err(|reason| {
            let error = CommError::Library { rank: self.rank, call: call.cloned(), reason };
            self.abort(self.rank, &error.to_string());
            error
        })
    }

    /// Does all that can be done without waiting. Communicators are made only for those who can note it.
    pub(super) fn step(&mut self, making: Option<&dyn Making>) -> Result<(), CommError> {
        if self.stopped {
            return Ok(());
        }
        let moved = self.take_messages();
        self.answered(moved, None)?;
        if self.aborted.is_some() {
            return Ok(());
        }
        self.start_ready(making)?;
        let running: Vec<Serial> =
            self.ops.iter().filter(|(_, op)| op.is_running()).map(|(serial, _)| *serial).collect();
        running.into_iter().try_for_each(|serial| self.advance(serial))
    }

    /// Goes on with one collective.
    pub(super) fn advance(&mut self, serial: Serial) -> Result<(), CommError> {
        if self.stopped {
            return Ok(());
        }
        let Some(op) = self.ops.get_mut(&serial) else { return Ok(()) };
        let Some(comm) = self.groups.get(&op.key.members).and_then(|g| g.comm) else { return Ok(()) };
        let place = op.member(comm);
        let Phase::Running(run) = &mut op.phase else { return Ok(()) };
        if op.hopeless.is_some() {
            // The library does not wait for parts that were not begun: it could take this for done.
            return Ok(());
        }
        #[expect(unsafe_code, reason = "goes on with the memory of a call")]
        // SAFETY: the memory is valid until the handle of this collective has ended, which takes it out of `ops` or sets
        // `stopped`.
        let ended = unsafe { run.advance(&self.kit, &place) };
        match ended {
            Ok(false) => Ok(()),
            Ok(true) => {
                op.phase = Phase::Ended(Ok(()));
                Ok(())
            }
            Err(e) => self.broken(serial, e),
        }
    }

    /// The library has refused something of a collective, of which other parts may be under way.
    fn broken(&mut self, serial: Serial, reason: String) -> Result<(), CommError> {
        let name = self.ops.get(&serial).map(|op| op.name.clone());
        let refused = self.answered(Err(reason), name.as_ref());
        if let (Err(e), Some(op)) = (&refused, self.ops.get_mut(&serial)) {
            op.hopeless = Some(e.clone());
        }
        refused
    }

    fn take_messages(&mut self) -> Result<(), String> {
        self.channel.poll()?;
        while let Some(received) = self.channel.next()? {
            let from = received.from;
            match received.message {
                Message::Entered(key, header) => self.gather(from, key, header)?,
                Message::Verdict(key, verdict) => self.hear(key, verdict),
                Message::Cancel(key) => {
                    if let Some(position) = key.members.iter().position(|r| *r == from) {
                        self.cancel_for(key, position)?;
                    }
                }
                Message::Ready(members) => self.member_is_ready(from, &members)?,
                Message::Make(members) => self.all_are_ready(&members),
                Message::Ask => {
                    let status = self.status();
                    self.channel.send(from, &Message::Answer(status))?;
                }
                Message::Answer(status) => {
                    self.answers.insert(from, (Instant::now(), status));
                }
                Message::Abort(rank, reason) => self.abort(rank, &reason),
                Message::Left(posted) => self.leaves(from, posted),
                Message::Device(_) => self.device_messages.push_back(received),
            }
        }
        Ok(())
    }

    /// A member has entered, and this is the first member of its group. One that enters after the verdict gets it too.
    fn gather(&mut self, from: usize, key: CollectiveId, header: Header) -> Result<(), String> {
        let Some(position) = key.members.iter().position(|r| *r == from) else { return Ok(()) };
        let calls =
            self.gathered.entry(key.clone()).or_insert_with(|| key.members.iter().map(|_| None).collect());
        let conflict = calls.iter().enumerate().find_map(|(i, other)| {
            let other = other.as_ref()?;
            Signature::conflict(
                (position, &header.tag, &header.signature),
                (i, &other.tag, &other.signature),
            )?;
            Some(i)
        });
        if let Some(other) = conflict.and_then(|i| calls[i].take().map(|h| (i, h))) {
            return self.decide(key, Verdict::Conflict(Box::new([(position, header), other])));
        }
        calls[position] = Some(header);
        if calls.iter().all(Option::is_some) { self.decide(key, Verdict::Go) } else { Ok(()) }
    }

    /// A member wants to cancel; this is the first member of its group. Too late if all have entered.
    fn cancel_for(&mut self, key: CollectiveId, position: usize) -> Result<(), String> {
        if self.gathered.contains_key(&key) { self.decide(key, Verdict::Cancelled(position)) } else { Ok(()) }
    }

    /// Sends all members the verdict on a collective.
    fn decide(&mut self, key: CollectiveId, verdict: Verdict) -> Result<(), String> {
        self.gathered.remove(&key);
        let message = Message::Verdict(key.clone(), verdict);
        for member in key.members.iter().filter(|r| **r != self.rank) {
            self.channel.send(*member, &message)?;
        }
        if let Message::Verdict(key, verdict) = message {
            self.hear(key, verdict);
        }
        Ok(())
    }

    fn hear(&mut self, key: CollectiveId, verdict: Verdict) {
        let op = self.ops.iter_mut().find(|(_, op)| op.key == key && op.is_gathering());
        let Some((serial, op)) = op else {
            self.foretold.insert(key, verdict);
            return;
        };
        let serial = *serial;
        let error = match &verdict {
            Verdict::Go => {
                op.phase = Phase::Ready;
                return;
            }
            Verdict::Cancelled(position) => {
                let rank = key.members.get(*position);
                rank.map(|rank| CommError::Cancelled { rank: *rank, call: op.name.clone() })
            }
            Verdict::Conflict(sides) => {
                let [(a, x), (b, y)] = &**sides;
                let (a, b) = ((*a, &x.tag, &x.signature), (*b, &y.tag, &y.signature));
                let known = key.members.len() > a.0.max(b.0);
                known.then(|| CommError::mismatch(&key.members, a, b)).flatten()
            }
        };
        let error = error.unwrap_or_else(|| CommError::Library {
            rank: self.rank,
            call: Some(op.name.clone()),
            reason: format!("the first member of the group gave a verdict without sense: {verdict:?}"),
        });
        self.end(serial, Err(error));
    }

    /// A rank comes to no further collective.
    fn leaves(&mut self, rank: usize, posted: PostCounts) {
        self.left.insert(rank, posted);
        let hopeless: Vec<Serial> = self
            .ops
            .iter()
            .filter(|(_, op)| !op.has_ended() && self.left_without(&op.key).is_some())
            .map(|(serial, _)| *serial)
            .collect();
        for serial in hopeless {
            let Some(op) = self.ops.get_mut(&serial) else { continue };
            let error = CommError::Left { rank, call: op.name.clone() };
            if op.is_running() { op.hopeless = Some(error) } else { op.phase = Phase::Ended(Err(error)) }
        }
    }

    /// The lowest rank that has left without coming to a collective.
    fn left_without(&self, key: &CollectiveId) -> Option<usize> {
        let came = |posted: &PostCounts| {
            posted.iter().any(|(members, n)| *members == key.members && *n > key.number)
        };
        let left = self.left.iter().filter(|(rank, _)| key.members.contains(rank));
        left.filter(|(_, posted)| !came(posted)).map(|(rank, _)| *rank).next()
    }

    fn end(&mut self, serial: Serial, result: Result<(), CommError>) {
        if let Some(op) = self.ops.get_mut(&serial) {
            op.phase = Phase::Ended(result);
        }
    }

    pub(super) fn op(&self, serial: Serial) -> Option<&EngineOp> {
        self.ops.get(&serial)
    }

    /// Collectives that have not ended.
    pub(super) fn pending(&self) -> usize {
        self.ops.values().filter(|op| !op.has_ended()).count()
    }

    /// The handle of a collective goes. One that runs must have ended: see [`Engine::stopped`].
    pub(super) fn remove(&mut self, serial: Serial) {
        if let Some(op) = self.ops.remove(&serial)
            && let Some(group) = self.groups.get_mut(&op.key.members)
        {
            group.queue.retain(|s| *s != serial);
        }
    }

    /// This rank wants to cancel a collective, if it still gathers.
    pub(super) fn cancel(&mut self, serial: Serial) -> Result<(), CommError> {
        if self.stopped {
            return Ok(());
        }
        let Some(op) = self.ops.get(&serial).filter(|op| op.is_gathering()) else { return Ok(()) };
        let (key, position, name) = (op.key.clone(), op.position, op.name.clone());
        let told = match position {
            0 => self.cancel_for(key, 0),
            _ => self.channel.send(key.members[0], &Message::Cancel(key)),
        };
        self.answered(told, Some(&name))
    }
}

impl EngineOp {
    fn member(&self, comm: Comm) -> Member {
        let (position, members, number) = (self.position, self.key.members.len(), self.key.number);
        Member { comm, position, members, number }
    }

    pub(super) fn key(&self) -> &CollectiveId {
        &self.key
    }

    /// The result, if it has ended.
    pub(super) fn result(&self) -> Option<&Result<(), CommError>> {
        match &self.phase {
            Phase::Ended(result) => Some(result),
            _ => None,
        }
    }

    fn has_ended(&self) -> bool {
        matches!(self.phase, Phase::Ended(_))
    }

    fn is_gathering(&self) -> bool {
        matches!(self.phase, Phase::Gathering)
    }

    /// Whether the library may be touching its memory.
    pub(super) fn is_running(&self) -> bool {
        matches!(self.phase, Phase::Running(_))
    }
}
