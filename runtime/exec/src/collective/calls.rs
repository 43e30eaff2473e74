//! The calls of a transport that a collective makes, on tensors of the device.

use crate::engine::graph::TensorSlot;
use meshwright_comm::{Buf, BufMut, BufferMismatch, Call, Layout, Slot as Bucket};
use meshwright_plan::{CollectiveKind, DType, Monoid};

/// A tensor that a transport reads or writes.
#[derive(Clone, Debug)]
pub(crate) struct CallPiece {
    /// Where it is; nowhere if the device has no such tensor.
    pub(crate) slot: Option<TensorSlot>,
    /// What the transport sees.
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<usize>,
    /// Of what is sent, whether it ends there.
    pub(crate) ends: bool,
}

impl CallPiece {
    /// No elements, of which there is no tensor.
    pub(crate) fn none(dtype: DType) -> CallPiece {
        CallPiece { slot: None, dtype, shape: vec![0], ends: false }
    }

    pub(crate) fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// One call of a transport: of an all-reduce any number of pieces, of all others one.
#[derive(Clone, Debug)]
pub(crate) struct TransportCall {
    pub(crate) kind: CollectiveKind,
    pub(crate) monoid: Option<Monoid>,
    /// What of the inputs goes to whom, and what of the outputs comes from whom.
    pub(crate) layouts: [Layout; 2],
    pub(crate) send: Vec<CallPiece>,
    pub(crate) receive: Vec<CallPiece>,
}

/// Memory that a transport reads or writes during a call; it stays where it is as long as this lives.
pub(crate) trait CallMemory: Send + 'static {
    /// The elements, to be read.
    fn buf(&self, piece: &CallPiece) -> Result<Buf<'_>, BufferMismatch>;

    /// The elements, to be written.
    fn buf_mut(&mut self, piece: &CallPiece) -> Result<BufMut<'_>, BufferMismatch>;
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
        self.layouts.iter().all(|l| matches!(l, Layout::Whole))
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
        let [send, receive] = self.layouts.clone();
        Ok(Call { kind: self.kind, monoid: self.monoid, root: None, send, receive, slots: buffers })
    }
}
