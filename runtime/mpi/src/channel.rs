//! The control channel: messages between processes beside the data, on a communicator of their own.

use crate::message::Message;
use crate::sys::{Comm, Requests, Result, Type};
use meshwright_comm::wire;
use meshwright_sorted::SortedMap;
use std::collections::VecDeque;
use std::sync::Arc;

/// Tags of a message's last, or only, part, and of those before it.
const LAST: i32 = 0;
const MORE: i32 = 1;

/// Most bytes of a part, which MPI can count.
const PART: usize = 1 << 30;

/// Sends and receives [`Message`]s. Messages from one rank arrive in the order in which it sent them.
pub(super) struct ControlChannel {
    comm: Comm,
    byte: Type,
    part: usize,
    outgoing: Vec<(Requests, Arc<Vec<u8>>)>,
    incoming: VecDeque<Incoming>,
    /// What has come from each rank of a message of which more follows.
    unfinished: SortedMap<usize, Vec<u8>>,
}

/// A part that is on its way.
struct Incoming {
    source: usize,
    last: bool,
    requests: Requests,
    bytes: Vec<u8>,
}

/// A message that has come.
pub(super) struct Received {
    pub(super) from: usize,
    pub(super) message: Message,
    bytes: Vec<u8>,
    payload: usize,
}

impl Received {
    /// The bytes that follow the message.
    pub(super) fn payload(&self) -> &[u8] {
        &self.bytes[self.payload..]
    }
}

#[expect(unsafe_code, reason = "hands memory of its own to the library")]
impl ControlChannel {
    /// A channel whose messages are cut into parts of at most `limit` bytes.
    pub(super) fn new(comm: Comm, limit: usize) -> Result<ControlChannel> {
        Ok(ControlChannel {
            comm,
            byte: Type::bytes(1)?,
            part: limit.clamp(1, PART),
            outgoing: Vec::new(),
            incoming: VecDeque::new(),
            unfinished: SortedMap::new(),
        })
    }

    pub(super) fn send(&mut self, to: usize, message: &Message) -> Result<()> {
        self.send_bytes(to, &Arc::new(wire::encode(message)))
    }

    /// Sends an encoded message with its payload.
    pub(super) fn send_bytes(&mut self, to: usize, bytes: &Arc<Vec<u8>>) -> Result<()> {
        let mut requests = Requests::new();
        let mut parts = bytes.chunks(self.part).peekable();
        let mut sent = Ok(());
        while let (Ok(()), Some(part)) = (&sent, parts.next()) {
            let tag = if parts.peek().is_some() { MORE } else { LAST };
            // SAFETY: the bytes are kept until they are sent; if this is dropped before, the library is not called any more.
            sent = unsafe { requests.send(self.comm, (part.as_ptr(), part.len(), self.byte), to, tag) };
        }
        self.outgoing.push((requests, bytes.clone()));
        sent
    }

    /// Whether all that was sent has left.
    pub(super) fn is_sent(&self) -> bool {
        self.outgoing.is_empty()
    }

    /// Moves what can be moved.
    pub(super) fn poll(&mut self) -> Result<()> {
        let mut failed = Ok(());
        self.outgoing.retain_mut(|(requests, _)| match requests.test() {
            Ok(ended) => !ended,
            Err(e) => {
                failed = Err(e);
                false
            }
        });
        failed?;
        while let Some(found) = self.comm.probe()? {
            let mut bytes = vec![0; found.bytes];
            let mut requests = Requests::new();
            let to = (bytes.as_mut_ptr(), bytes.len(), self.byte);
            // SAFETY: the bytes are kept until they have come; if this is dropped before, the library is not called any
            // more. Nobody else receives on this communicator, so it is this message that comes.
            unsafe { requests.receive(self.comm, to, found.source, found.tag)? };
            self.incoming.push_back(Incoming {
                source: found.source,
                last: found.tag == LAST,
                requests,
                bytes,
            });
        }
        Ok(())
    }

    /// The next message that has come.
    pub(super) fn next(&mut self) -> Result<Option<Received>> {
        let mut waiting = Vec::new();
        let mut i = 0;
        while let Some(part) = self.incoming.get_mut(i) {
            let source = part.source;
            // A long part of a rank may still be on its way when a later, short one is there.
            if waiting.contains(&source) || !part.requests.test()? {
                waiting.push(source);
                i += 1;
                continue;
            }
            let Some(part) = self.incoming.remove(i) else { break };
            let bytes = match self.unfinished.remove(&source) {
                Some(mut begun) => {
                    begun.extend_from_slice(&part.bytes);
                    begun
                }
                None => part.bytes,
            };
            if part.last {
                return received(source, bytes).map(Some);
            }
            self.unfinished.insert(source, bytes);
        }
        Ok(None)
    }
}

fn received(from: usize, bytes: Vec<u8>) -> Result<Received> {
    let decoded = wire::decode_head(&bytes).map(|(message, rest)| (message, rest.len()));
    let (message, rest) = decoded.map_err(|e| format!("a message of rank {from}: {e}"))?;
    let payload = bytes.len() - rest;
    match message {
        Message::Device(_) => {}
        _ if rest > 0 => return Err(format!("a message of rank {from} has {rest} bytes after its end")),
        _ => {}
    }
    Ok(Received { from, message, bytes, payload })
}
