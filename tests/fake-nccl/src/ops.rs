//! A communicator, and what runs on its stream.

use crate::capture::Node;
use crate::exchange::Meeting;
use crate::faults::{self, FakeFault};
use crate::fold::{fold, size};
use crate::stream::{Stream, Task};
use crate::{cuda, lock};
use std::collections::BTreeMap;
use std::ffi::{CString, c_int};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub(crate) const SYSTEM: c_int = 2;
pub(crate) const ARGUMENT: c_int = 4;
pub(crate) const USAGE: c_int = 5;
pub(crate) const REMOTE: c_int = 6;
pub(crate) const PROGRESS: c_int = 7;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    AllReduce,
    AllGather,
    ReduceScatter,
    Broadcast,
    Reduce,
    Send,
    Receive,
}

/// One call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FakeOp {
    pub(crate) what: What,
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) count: usize,
    pub(crate) dtype: c_int,
    pub(crate) fold: c_int,
    /// The root, or the other side.
    pub(crate) peer: c_int,
}

impl FakeOp {
    /// What all members must agree on.
    fn header(&self) -> [u8; 32] {
        let mut h = [0; 32];
        h[..8].copy_from_slice(&self.count.to_ne_bytes());
        h[8] = self.what as u8;
        h[12..16].copy_from_slice(&self.dtype.to_ne_bytes());
        h[16..20].copy_from_slice(&self.fold.to_ne_bytes());
        if matches!(self.what, What::Broadcast | What::Reduce) {
            h[20..24].copy_from_slice(&self.peer.to_ne_bytes());
        }
        if self.what == What::Receive {
            h[8] = What::Send as u8;
        }
        h
    }

    fn bytes(&self) -> usize {
        self.count * size(self.dtype).unwrap_or(0)
    }

    /// Bytes read and written by a member.
    fn spans(&self, n: usize, me: usize) -> (usize, usize) {
        let b = self.bytes();
        let root = self.peer as usize == me;
        match self.what {
            What::AllReduce => (b, b),
            What::AllGather => (b, b * n),
            What::ReduceScatter => (b * n, b),
            What::Broadcast => (if root { b } else { 0 }, b),
            What::Reduce => (b, if root { b } else { 0 }),
            What::Send => (b, 0),
            What::Receive => (0, b),
        }
    }

    /// Why it is refused.
    pub(crate) fn problem(&self, n: usize, me: usize) -> Option<String> {
        if size(self.dtype).is_none() {
            return Some(format!("no type {}", self.dtype));
        }
        let peers = matches!(self.what, What::Broadcast | What::Reduce | What::Send | What::Receive);
        if peers && !(0..n as c_int).contains(&self.peer) {
            return Some(format!("rank {} of {n}", self.peer));
        }
        let (read, write) = self.spans(n, me);
        let here = |address, bytes| bytes == 0 || cuda::is_device_memory(address, bytes);
        if !here(self.from, read) || !here(self.to, write) {
            return Some(format!("{:?}: not the memory of a GPU", self.what));
        }
        None
    }
}

/// A member's communicator.
pub(crate) struct Comm {
    pub(crate) meeting: Meeting,
    pub(crate) name: String,
    pub(crate) members: usize,
    pub(crate) me: usize,
    pub(crate) gpu: c_int,
    pub(crate) blocking: bool,
    pub(crate) state: Mutex<CommState>,
    pub(crate) aborted: AtomicBool,
}

#[derive(Default)]
pub(crate) struct CommState {
    /// Work that is not on its stream yet, or communicators that are being made.
    pub(crate) pending: usize,
    /// Operations that have not ended.
    pub(crate) running: usize,
    /// Calls in graphs that are there.
    pub(crate) in_graphs: usize,
    pub(crate) error: c_int,
    pub(crate) text: CString,
    pub(crate) splits: u64,
    /// This member's messages in the collectives that ended last.
    written: Vec<String>,
    collectives: u64,
    sent: BTreeMap<c_int, u64>,
    received: BTreeMap<c_int, u64>,
}

/// A graph's hold on a communicator.
struct GraphUser(Arc<Comm>);

impl GraphUser {
    fn of(comm: &Arc<Comm>) -> GraphUser {
        lock(&comm.state).in_graphs += 1;
        GraphUser(comm.clone())
    }
}

impl Drop for GraphUser {
    fn drop(&mut self) {
        lock(&self.0.state).in_graphs -= 1;
    }
}

impl CommState {
    /// Whether something keeps the communicator from its end, as NCCL has it: graphs do, as long as they are there.
    pub(crate) fn is_busy(&self) -> bool {
        self.running + self.pending + self.in_graphs > 0
    }
}

impl Comm {
    pub(crate) fn fail(&self, code: c_int, text: &str) {
        let mut state = lock(&self.state);
        if state.error == 0 {
            state.error = code;
            state.text = CString::new(text).unwrap_or_default();
        }
    }

    pub(crate) fn ended(&self) -> bool {
        self.aborted.load(Ordering::SeqCst)
    }

    /// Names of the messages of an operation, numbered in the order of the calls.
    fn number(&self, op: &FakeOp) -> String {
        let mut state = lock(&self.state);
        let next = |of: &mut u64| {
            *of += 1;
            *of
        };
        match op.what {
            What::Send => {
                format!("send.{}.{}.{}", self.me, op.peer, next(state.sent.entry(op.peer).or_default()))
            }
            What::Receive => {
                format!("send.{}.{}.{}", op.peer, self.me, next(state.received.entry(op.peer).or_default()))
            }
            _ => format!("all.{}", next(&mut state.collectives)),
        }
    }

    /// Puts a group of calls on a stream; they run at the same time.
    pub(crate) fn launch(self: &Arc<Self>, ops: Vec<FakeOp>, stream: &Arc<Stream>) -> c_int {
        if let Some(problem) = ops.iter().find_map(|op| op.problem(self.members, self.me)) {
            self.fail(ARGUMENT, &problem);
            return ARGUMENT;
        }
        if stream.is_capturing() {
            self.capture(ops, stream);
            return if self.blocking { 0 } else { PROGRESS };
        }
        let fault = faults::next(self.gpu);
        if fault == Some(FakeFault::Refuse) {
            self.fail(SYSTEM, "refused on purpose");
            return SYSTEM;
        }
        let task = self.prepared(&ops, fault);
        if self.blocking {
            stream.push(task);
            return 0;
        }
        let queue = stream.clone();
        self.meanwhile(move || queue.push(task));
        PROGRESS
    }

    /// Does it a little later, until when this communicator is not ready.
    fn meanwhile(self: &Arc<Self>, put: impl FnOnce() + Send + 'static) {
        lock(&self.state).pending += 1;
        let comm = self.clone();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_micros(300));
            put();
            lock(&comm.state).pending -= 1;
        });
    }

    /// Calls that are about to run, numbered among those of the communicator.
    fn prepared(self: &Arc<Self>, ops: &[FakeOp], fault: Option<FakeFault>) -> Task {
        let ops: Vec<(FakeOp, String)> = ops.iter().map(|op| (*op, self.number(op))).collect();
        lock(&self.state).running += 1;
        let comm = self.clone();
        Box::new(move || {
            comm.run(&ops, fault);
            lock(&comm.state).running -= 1;
        })
    }

    /// Puts a group of calls into the graph that the stream captures.
    fn capture(self: &Arc<Self>, ops: Vec<FakeOp>, stream: &Arc<Stream>) {
        let user = GraphUser::of(self);
        let node: Node = Arc::new(move || {
            let comm = &user.0;
            // What is refused by the host cannot be refused here.
            let fault =
                faults::next(comm.gpu).map(|f| if f == FakeFault::Refuse { FakeFault::Error } else { f });
            comm.prepared(&ops, fault)
        });
        if self.blocking {
            return stream.launch_prepared(node);
        }
        let queue = stream.clone();
        self.meanwhile(move || queue.launch_prepared(node));
    }

    fn run(&self, ops: &[(FakeOp, String)], fault: Option<FakeFault>) {
        match fault {
            Some(FakeFault::Stall) => {
                while !self.ended() {
                    std::thread::sleep(Duration::from_micros(200));
                }
                return;
            }
            Some(FakeFault::Error) => {
                self.fail(REMOTE, "a fault on purpose: the other side is gone");
                return;
            }
            Some(FakeFault::Slow) => std::thread::sleep(Duration::from_millis(300)),
            Some(FakeFault::Refuse) | None => {}
        }
        for (op, name) in ops {
            self.give(op, name);
        }
        // What is sent has been taken at the end, which may be long after it was there: the others of the group come first.
        let (sends, others): (Vec<_>, Vec<_>) = ops.iter().partition(|(op, _)| op.what == What::Send);
        for (op, name) in others.into_iter().chain(sends) {
            if self.take(op, name).is_none() {
                return;
            }
        }
        // All have come to these collectives, so all are done with the ones before.
        let own = |(op, name): &(FakeOp, String)| match op.what {
            What::Send | What::Receive => None,
            _ => Some(format!("{name}.{}", self.me)),
        };
        let now: Vec<String> = ops.iter().filter_map(own).collect();
        if !now.is_empty() {
            let before = std::mem::replace(&mut lock(&self.state).written, now);
            before.iter().for_each(|name| self.meeting.discard(name));
        }
    }

    fn give(&self, op: &FakeOp, name: &str) {
        let (read, _) = op.spans(self.members, self.me);
        let mut message = op.header().to_vec();
        if read > 0 {
            // SAFETY: checked at the launch; memory in use is not freed, or the program under test is wrong.
            message.extend_from_slice(unsafe { std::slice::from_raw_parts(op.from as *const u8, read) });
        }
        match op.what {
            What::Receive => {}
            What::Send => self.meeting.offer(name, &message),
            _ => self.meeting.offer(&format!("{name}.{}", self.me), &message),
        }
    }

    fn message(&self, op: &FakeOp, name: &str, from: usize) -> Option<Vec<u8>> {
        let mut message = self.meeting.get(name, || self.ended())?;
        let header = op.header();
        if message[..header.len()] != header {
            self.fail(USAGE, &format!("{name}: ranks {from} and {} made different calls", self.me));
            return None;
        }
        Some(message.split_off(header.len()))
    }

    fn take(&self, op: &FakeOp, name: &str) -> Option<()> {
        let write = |at: usize, bytes: &[u8]| {
            // SAFETY: as for reading.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), (op.to + at) as *mut u8, bytes.len()) }
        };
        match op.what {
            What::Send => return self.meeting.taken(name, || self.ended()),
            What::Receive => {
                write(0, &self.message(op, name, op.peer as usize)?);
                self.meeting.discard(name);
                return Some(());
            }
            _ => {}
        }
        let all: Option<Vec<Vec<u8>>> =
            (0..self.members).map(|m| self.message(op, &format!("{name}.{m}"), m)).collect();
        let all = all?;
        let folded = |range: std::ops::Range<usize>| {
            let mut all = all.iter().map(|m| &m[range.clone()]);
            let mut acc = all.next().unwrap_or_default().to_vec();
            for next in all {
                if !fold(op.fold, op.dtype, &mut acc, next) {
                    self.fail(ARGUMENT, "no such reduction");
                }
            }
            acc
        };
        let (bytes, me) = (op.bytes(), self.me);
        match op.what {
            What::AllReduce => write(0, &folded(0..bytes)),
            What::AllGather => all.iter().enumerate().for_each(|(m, piece)| write(m * bytes, piece)),
            What::ReduceScatter => write(0, &folded(me * bytes..(me + 1) * bytes)),
            What::Broadcast => write(0, &all[op.peer as usize]),
            What::Reduce if op.peer as usize == me => write(0, &folded(0..bytes)),
            What::Reduce | What::Send | What::Receive => {}
        }
        Some(())
    }
}
