//! What a process knows of the collectives it takes part in, and of the other ranks. All calls of the library are made
//! here, under one lock.
//!
//! **The way of a collective.** Where calls are compared, and on the first collective of a group, each member sends its
//! call to the first member of the group, which compares them and sends its verdict to all (*gathering*: nothing of the
//! data moves, and the collective may fail). Then, or at once where calls are not compared, the members start the
//! operations of the library, in the order in which they posted (*running*: it cannot be taken back).
//!
//! **Communicators** are made when the first collective of a group starts: see [`start`].

mod start;

use super::mail::Mail;
use super::moves::{Kit, Place, Run};
use super::sys::Comm;
use super::wire::{Header, Key, Message, Posted, Status, Verdict};
use crate::{Call, CallName, CommError, Group, Mismatch, Side, Tag};
use start::Meeting;
use std::collections::{BTreeMap, VecDeque};
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
    pub(super) mail: Mail,
    groups: BTreeMap<Arc<[usize]>, OfGroup>,
    /// Groups without a communicator, in the order of their first collective.
    unmade: VecDeque<Arc<[usize]>>,
    ops: BTreeMap<Serial, Op>,
    posted: Serial,
    /// Calls of groups whose first member this is, by position.
    gathered: BTreeMap<Key, Vec<Option<Header>>>,
    /// Verdicts on collectives that this rank has not come to yet: they have failed.
    foretold: BTreeMap<Key, Verdict>,
    /// The last collective that this rank posted, and the one that it waits for.
    pub(super) last: Option<CallName>,
    pub(super) waits: Option<Key>,
    /// The last answer of each rank that was asked where it is, and when it came.
    pub(super) answers: BTreeMap<usize, (Instant, Status)>,
    pub(super) left: BTreeMap<usize, Posted>,
    /// Letters for the devices of this process, each with the process that sent it; and what has come of those of which more
    /// is on its way.
    pub(super) letters: VecDeque<(usize, Vec<u8>)>,
    torn: BTreeMap<usize, Vec<u8>>,
    /// Who ended everything, and why.
    pub(super) aborted: Option<(usize, String)>,
    /// The library is called no more: it might touch memory that it was lent and that has been taken back.
    pub(super) stopped: bool,
}

/// Most bytes of a part of a letter: with what is around it, MPI can still count them.
const PART: usize = 1 << 30;

struct OfGroup {
    comm: Option<Comm>,
    posted: u64,
    /// Collectives that have not started, in order.
    queue: VecDeque<Serial>,
    meeting: Meeting,
}

impl OfGroup {
    fn new(comm: Option<Comm>) -> OfGroup {
        OfGroup { comm, posted: 0, queue: VecDeque::new(), meeting: Meeting::default() }
    }
}

pub(super) struct Op {
    key: Key,
    position: usize,
    pub(super) name: CallName,
    call: Call<'static>,
    phase: Phase,
    /// Whether calls were compared.
    agreed: bool,
    /// Why it cannot end well, though the library has begun it.
    pub(super) hopeless: Option<CommError>,
}

enum Phase {
    Gathering,
    Ready,
    Running(Run),
    Ended(Result<(), CommError>),
}

/// Notes that a communicator is being made, for whoever has to end the process if that never ends.
pub(super) trait Making {
    fn begins(&self, call: &CallName, members: &[usize]);
    fn ends(&self);
}

impl Engine {
    pub(super) fn new(world: Comm, data: Comm, control: Comm, kit: Kit) -> Result<Engine, String> {
        let (rank, size) = (world.rank()?, world.size()?);
        let all: Arc<[usize]> = (0..size).collect();
        Ok(Engine {
            rank,
            size,
            kit,
            world,
            mail: Mail::new(control)?,
            groups: BTreeMap::from([(all, OfGroup::new(Some(data)))]),
            unmade: VecDeque::new(),
            ops: BTreeMap::new(),
            posted: 0,
            gathered: BTreeMap::new(),
            foretold: BTreeMap::new(),
            last: None,
            waits: None,
            answers: BTreeMap::new(),
            left: BTreeMap::new(),
            letters: VecDeque::new(),
            torn: BTreeMap::new(),
            aborted: None,
            stopped: false,
        })
    }

    /// Adds a call that was checked, of a group of several members. Nothing happens to its memory before [`Engine::begin`].
    pub(super) fn enter(
        &mut self,
        group: &Group,
        tag: &Tag,
        call: Call<'static>,
        compare: bool,
    ) -> Result<Serial, CommError> {
        let name = call.name(tag);
        self.check_alive(&name)?;
        self.last = Some(name.clone());
        let members = group.shared_ranks().clone();
        let state = self.groups.entry(members.clone()).or_insert_with(|| OfGroup::new(None));
        let first = state.posted == 0;
        if first && state.comm.is_none() {
            self.unmade.push_back(members.clone());
        }
        let key = Key { members, number: state.posted };
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
            self.ops.insert(serial, Op { key, position, name, call, phase, agreed, hopeless: None });
        }
        Ok(serial)
    }

    /// Begins with a collective that was entered. Whatever fails here, this collective may be under way: after an error
    /// it must be released as after a wait.
    pub(super) fn begin(&mut self, serial: Serial, making: &dyn Making) -> Result<(), CommError> {
        let Some(op) = self.ops.get(&serial) else { return Ok(()) };
        let (key, position, name) = (op.key.clone(), op.position, op.name.clone());
        let header = op.agreed.then(|| Message::header(&key, &name.tag, &op.call));
        let greeted = match header {
            Some(bytes) if position == 0 => match Message::decode(&bytes) {
                Some(Message::Header(key, header)) => self.gather(self.rank, key, header),
                _ => unreachable!("a header that was just written"),
            },
            Some(bytes) => self.mail.send_bytes(key.members[0], bytes),
            None => Ok(()),
        };
        self.answered(greeted, Some(&name))?;
        if let Some(verdict) = self.foretold.remove(&key) {
            self.hear(key, verdict);
        }
        self.step(Some(making))?;
        // Errors that all members find now are told by `post`, as by other transports.
        self.ops.get(&serial).and_then(Op::result).cloned().unwrap_or(Ok(()))
    }

    /// Notes an abort, if none is noted, and tells all others if it is this rank's.
    pub(super) fn abort(&mut self, rank: usize, reason: &str) {
        if self.aborted.is_some() {
            return;
        }
        self.aborted = Some((rank, reason.into()));
        if rank == self.rank {
            self.tell_all(&Message::Abort(rank, reason.into()));
        }
    }

    /// Sends a letter to the devices of another process, in parts that MPI can count.
    pub(super) fn send_letter(&mut self, to: usize, letter: &[u8]) -> Result<(), String> {
        if self.stopped {
            return Ok(());
        }
        let parts = letter.chunks(self.kit.limit.min(PART));
        let last = parts.len() - 1;
        for (i, part) in parts.enumerate() {
            self.mail.send_bytes(to, Message::letter(i < last, part))?;
        }
        Ok(())
    }

    /// Sends a message to all others, those that cannot be reached left out.
    pub(super) fn tell_all(&mut self, message: &Message) {
        if self.stopped {
            return;
        }
        for rank in (0..self.size).filter(|r| *r != self.rank) {
            let _unreachable = self.mail.send(rank, message);
        }
    }

    /// How many collectives this rank has posted on each group.
    pub(super) fn posted(&self) -> Posted {
        self.groups.iter().map(|(members, group)| (members.clone(), group.posted)).collect()
    }

    pub(super) fn status(&self) -> Status {
        let unmade = self.unmade.iter().cloned().collect();
        Status { last: self.last.clone(), waits: self.waits.clone(), posted: self.posted(), unmade }
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
        let moved = self.take_mail();
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
        let place = op.place(comm);
        let Phase::Running(run) = &mut op.phase else { return Ok(()) };
        if op.hopeless.is_some() {
            // What was not begun is not missed by the library: it could take this for done.
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

    fn take_mail(&mut self) -> Result<(), String> {
        self.mail.poll()?;
        while let Some((from, message)) = self.mail.next()? {
            match message {
                Message::Header(key, header) => self.gather(from, key, header)?,
                Message::Verdict(key, verdict) => self.hear(key, verdict),
                Message::Withdraw(key) => {
                    if let Some(position) = key.members.iter().position(|r| *r == from) {
                        self.withdraw(key, position)?;
                    }
                }
                Message::Ready(members) => self.member_is_ready(from, &members)?,
                Message::Make(members) => self.all_are_ready(&members),
                Message::Ask => {
                    let status = self.status();
                    self.mail.send(from, &Message::Answer(status))?;
                }
                Message::Answer(status) => {
                    self.answers.insert(from, (Instant::now(), status));
                }
                Message::Abort(rank, reason) => self.abort(rank, &reason),
                Message::Left(posted) => self.program_inputs(from, posted),
                Message::Letter(more, part) => {
                    let mut letter = self.torn.remove(&from).unwrap_or_default();
                    if letter.is_empty() {
                        letter = part;
                    } else {
                        letter.extend(part);
                    }
                    if more {
                        self.torn.insert(from, letter);
                    } else {
                        self.letters.push_back((from, letter));
                    }
                }
            }
        }
        Ok(())
    }

    /// A member has come, and this is the first member of its group. One that comes after the verdict is told it too.
    fn gather(&mut self, from: usize, key: Key, header: Header) -> Result<(), String> {
        let Some(position) = key.members.iter().position(|r| *r == from) else { return Ok(()) };
        let calls =
            self.gathered.entry(key.clone()).or_insert_with(|| key.members.iter().map(|_| None).collect());
        let conflict = calls.iter().enumerate().find_map(|(i, other)| {
            let other = other.as_ref()?;
            Call::conflict((position, &header.tag, &header.call), (i, &other.tag, &other.call))?;
            Some(i)
        });
        if let Some(other) = conflict.and_then(|i| calls[i].take().map(|h| (i, h))) {
            return self.decide(key, Verdict::Conflict(Box::new([(position, header), other])));
        }
        calls[position] = Some(header);
        if calls.iter().all(Option::is_some) { self.decide(key, Verdict::Go) } else { Ok(()) }
    }

    /// A member wants to give up; this is the first member of its group. Too late if all have come.
    fn withdraw(&mut self, key: Key, position: usize) -> Result<(), String> {
        if self.gathered.contains_key(&key) { self.decide(key, Verdict::Withdrawn(position)) } else { Ok(()) }
    }

    /// Tells all members what becomes of a collective.
    fn decide(&mut self, key: Key, verdict: Verdict) -> Result<(), String> {
        self.gathered.remove(&key);
        let message = Message::Verdict(key.clone(), verdict);
        for member in key.members.iter().filter(|r| **r != self.rank) {
            self.mail.send(*member, &message)?;
        }
        if let Message::Verdict(key, verdict) = message {
            self.hear(key, verdict);
        }
        Ok(())
    }

    fn hear(&mut self, key: Key, verdict: Verdict) {
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
            Verdict::Withdrawn(position) => {
                CommError::Withdrawn { rank: key.members[*position], call: op.name.clone() }
            }
            Verdict::Conflict(sides) => {
                let [a, b] = &**sides;
                let as_said = |s: &'_ (usize, Header)| (s.0, s.1.tag.clone());
                let what = Call::conflict((a.0, &as_said(a).1, &a.1.call), (b.0, &as_said(b).1, &b.1.call));
                let side = |(position, header): &(usize, Header)| Side {
                    rank: key.members[*position],
                    call: header.call.name(&header.tag),
                    details: header.call.describe(),
                };
                let mut sides = [side(a), side(b)];
                sides.sort_by_key(|side| side.rank);
                CommError::Mismatch(Box::new(Mismatch { what: what.unwrap_or("call"), sides }))
            }
        };
        self.end(serial, Err(error));
    }

    /// A rank comes to no further collective.
    fn leaves(&mut self, rank: usize, posted: Posted) {
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
    fn left_without(&self, key: &Key) -> Option<usize> {
        let came =
            |posted: &Posted| posted.iter().any(|(members, n)| *members == key.members && *n > key.number);
        let left = self.left.iter().filter(|(rank, _)| key.members.contains(rank));
        left.filter(|(_, posted)| !came(posted)).map(|(rank, _)| *rank).next()
    }

    fn end(&mut self, serial: Serial, result: Result<(), CommError>) {
        if let Some(op) = self.ops.get_mut(&serial) {
            op.phase = Phase::Ended(result);
        }
    }

    pub(super) fn op(&self, serial: Serial) -> Option<&Op> {
        self.ops.get(&serial)
    }

    /// Collectives that have not ended.
    pub(super) fn pending(&self) -> usize {
        self.ops.values().filter(|op| !op.has_ended()).count()
    }

    /// The handle of a collective goes. One that runs must have ended: see [`Engine::stopped`].
    pub(super) fn forget(&mut self, serial: Serial) {
        if let Some(op) = self.ops.remove(&serial)
            && let Some(group) = self.groups.get_mut(&op.key.members)
        {
            group.queue.retain(|s| *s != serial);
        }
    }

    /// This rank wants to give a collective up, if it still gathers.
    pub(super) fn give_up(&mut self, serial: Serial) -> Result<(), CommError> {
        if self.stopped {
            return Ok(());
        }
        let Some(op) = self.ops.get(&serial).filter(|op| op.is_gathering()) else { return Ok(()) };
        let (key, position, name) = (op.key.clone(), op.position, op.name.clone());
        let told = match position {
            0 => self.withdraw(key, 0),
            _ => self.mail.send(key.members[0], &Message::Withdraw(key)),
        };
        self.answered(told, Some(&name))
    }
}

impl Op {
    fn place(&self, comm: Comm) -> Place {
        let (position, members, number) = (self.position, self.key.members.len(), self.key.number);
        Place { comm, position, members, number }
    }

    pub(super) fn key(&self) -> &Key {
        &self.key
    }

    /// How it ended, if it has.
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
