//! Messages between ranks beside the data, on a communicator of their own.

use super::sys::{Comm, Requests, Result, Type};
use super::wire::Message;
use std::collections::VecDeque;

/// Sends and receives [`Message`]s. Messages from one rank arrive in the order in which it sent them.
pub(super) struct Mail {
    comm: Comm,
    byte: Type,
    outgoing: Vec<(Requests, Box<[u8]>)>,
    incoming: VecDeque<Incoming>,
}

struct Incoming {
    source: usize,
    requests: Requests,
    bytes: Box<[u8]>,
}

#[expect(unsafe_code, reason = "hands memory of its own to the library")]
impl Mail {
    pub(super) fn new(comm: Comm) -> Result<Mail> {
        Ok(Mail { comm, byte: Type::bytes(1)?, outgoing: Vec::new(), incoming: VecDeque::new() })
    }

    pub(super) fn send(&mut self, to: usize, message: &Message) -> Result<()> {
        self.send_bytes(to, message.encode())
    }

    pub(super) fn send_bytes(&mut self, to: usize, bytes: Vec<u8>) -> Result<()> {
        let bytes = bytes.into_boxed_slice();
        let mut requests = Requests::new();
        // SAFETY: the bytes are kept until they are sent; if this is dropped before, the library is not called any more.
        unsafe { requests.send(self.comm, (bytes.as_ptr(), bytes.len(), self.byte), to, 0)? };
        self.outgoing.push((requests, bytes));
        Ok(())
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
            let mut bytes = vec![0; found.bytes].into_boxed_slice();
            let mut requests = Requests::new();
            let to = (bytes.as_mut_ptr(), bytes.len(), self.byte);
            // SAFETY: the bytes are kept until they have come; if this is dropped before, the library is not called any
            // more. Nobody else receives on this communicator, so it is this message that comes.
            unsafe { requests.receive(self.comm, to, found.source, 0)? };
            self.incoming.push_back(Incoming { source: found.source, requests, bytes });
        }
        Ok(())
    }

    /// The next message that has come, with the rank that sent it.
    pub(super) fn next(&mut self) -> Result<Option<(usize, Message)>> {
        let mut waiting = Vec::new();
        for i in 0..self.incoming.len() {
            let source = self.incoming[i].source;
            // A long message of a rank may still be on its way when a later, short one is there.
            if waiting.contains(&source) {
                continue;
            }
            if !self.incoming[i].requests.test()? {
                waiting.push(source);
                continue;
            }
            let Some(found) = self.incoming.remove(i) else { break };
            let Some(message) = Message::decode(&found.bytes) else {
                return Err(format!(
                    "rank {source} sent what this rank does not understand: do all ranks run the same build?"
                ));
            };
            return Ok(Some((source, message)));
        }
        Ok(None)
    }
}
