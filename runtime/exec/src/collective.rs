//! Collectives of a device plan on the memory of a device: the calls of the transport.

use meshwright_comm::{Buf, BufMut, BufferMismatch, Call, Slot as Bucket, Tag};
use meshwright_device::collective::Prepared;
use meshwright_device::collective::calls::{CallPiece, TransportCall};

/// Memory that a transport reads or writes during a call; it stays where it is as long as this lives.
pub trait CallMemory: Send + 'static {
    /// The elements, to be read.
    fn buf(&self, piece: &CallPiece) -> Result<Buf<'_>, BufferMismatch>;

    /// The elements, to be written.
    fn buf_mut(&mut self, piece: &CallPiece) -> Result<BufMut<'_>, BufferMismatch>;
}

/// Operands of a call.
pub(crate) struct CallTensors<M> {
    /// Nothing where a result overwrites its operand.
    pub(crate) send: Vec<Option<M>>,
    pub(crate) receive: Vec<M>,
}

/// The name of a collective among the calls of a run.
pub(crate) fn tag_of(prepared: &Prepared, sequence: u64) -> Tag {
    Tag::new(sequence, prepared.what.clone(), prepared.line)
}

/// The name of a message over a link.
pub(crate) fn tag_of_message(prepared: &Prepared, sequence: u64) -> Tag {
    match prepared.group.ranks() {
        [from, to] => tag_of(prepared, sequence).over_link([*from, *to]),
        _ => tag_of(prepared, sequence),
    }
}

/// A call on its memory.
pub(crate) fn call_on<'x, M: CallMemory>(
    call: &TransportCall,
    memory: &'x mut CallTensors<M>,
) -> Result<Call<'x>, BufferMismatch> {
    let pairs = call.send.iter().zip(&memory.send).zip(call.receive.iter().zip(&mut memory.receive));
    let mut buffers = Vec::with_capacity(call.send.len());
    for ((sent, from), (received, to)) in pairs {
        let input = from.as_ref().map(|m| m.buf(sent)).transpose()?;
        let output = to.buf_mut(received)?;
        buffers.push(match input {
            None => Bucket::InPlace(output),
            Some(input) => Bucket::Apart(input, output),
        });
    }
    let [send, receive] = call.layouts.clone();
    Ok(Call { kind: call.kind, monoid: call.monoid, root: call.root, send, receive, slots: buffers })
}
