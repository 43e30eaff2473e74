//! The calls of a transport that a collective makes, on tensors of the device.

use crate::engine::graph::Slot;
use meshwright_comm::{Buf, BufMut, BufferMismatch, Call, Part, Slot as Bucket};
use meshwright_plan::{DType, Monoid};
use std::sync::Arc;

/// A tensor that a transport reads or writes.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    /// Where it is; nowhere if the device has no such tensor.
    pub(crate) slot: Option<Slot>,
    /// What the transport sees.
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<usize>,
    /// Of what is sent, whether it ends there.
    pub(crate) ends: bool,
}

impl Piece {
    /// No elements, of which there is no tensor.
    pub(crate) fn none(dtype: DType) -> Piece {
        Piece { slot: None, dtype, shape: vec![0], ends: false }
    }

    pub(crate) fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// What a transport is asked for. Counts and parts are in elements.
#[derive(Clone, Debug)]
pub(crate) enum CallKind {
    AllReduce(Monoid),
    AllGather(Arc<[usize]>),
    ReduceScatter(Monoid, Arc<[usize]>),
    AllToAll(Arc<[usize]>, Arc<[usize]>),
    Permute(Arc<[Part]>, Arc<[Part]>),
}

/// One call of a transport: of an all-reduce any number of pieces, of all others one.
#[derive(Clone, Debug)]
pub(crate) struct TransportCall {
    pub(crate) kind: CallKind,
    pub(crate) send: Vec<Piece>,
    pub(crate) receive: Vec<Piece>,
}

/// Memory that a transport reads or writes during a call; it stays where it is as long as this lives.
pub(crate) trait CallMemory: Send + 'static {
    /// The elements, to be read.
    fn buf(&self, piece: &Piece) -> Result<Buf<'_>, BufferMismatch>;

    /// The elements, to be written.
    fn buf_mut(&mut self, piece: &Piece) -> Result<BufMut<'_>, BufferMismatch>;

    /// Whether nobody else reads it, so that a result may overwrite it.
    fn is_unique(&self) -> bool;
}

/// What a call works on.
pub(crate) struct CallTensors<M> {
    /// Nothing where a result overwrites its operand.
    pub(crate) send: Vec<Option<M>>,
    pub(crate) receive: Vec<M>,
}

impl TransportCall {
    /// Whether results may overwrite their operands.
    pub(crate) fn in_place(&self) -> bool {
        matches!(self.kind, CallKind::AllReduce(_))
    }

    /// The call on its memory.
    pub(crate) fn on<'x, M: CallMemory>(
        &self,
        memory: &'x mut CallTensors<M>,
    ) -> Result<Call<'x>, BufferMismatch> {
        let pairs = self.send.iter().zip(&memory.send).zip(self.receive.iter().zip(&mut memory.receive));
        let mut buffers = Vec::with_capacity(self.send.len());
        for ((sent, from), (received, to)) in pairs {
            let input = from.as_ref().map(|m| m.buf(sent)).transpose()?;
            let output = to.buf_mut(received)?;
            buffers.push(match input {
                None => Bucket::InPlace(output),
                Some(input) => Bucket::Apart(input, output),
            });
        }
        if let CallKind::AllReduce(monoid) = self.kind {
            return Ok(Call::AllReduce { monoid, bucket: buffers });
        }
        let Some(Bucket::Apart(input, output)) = buffers.pop() else { return Ok(Call::Barrier) };
        Ok(match &self.kind {
            CallKind::AllReduce(_) => Call::Barrier,
            CallKind::AllGather(counts) => Call::AllGather { input, counts: counts.clone(), output },
            CallKind::ReduceScatter(monoid, counts) => {
                Call::ReduceScatter { monoid: *monoid, input, counts: counts.clone(), output }
            }
            CallKind::AllToAll(send, receive) => {
                Call::AllToAll { input, send: send.clone(), output, receive: receive.clone() }
            }
            CallKind::Permute(send, receive) => {
                Call::Permute { input, send: send.clone(), output, receive: receive.clone() }
            }
        })
    }
}
