//! The calls of a transport that a collective makes, on tensors of the device.

use crate::slot::TensorSlot;
use meshwright_plan::{BufferLayout, CollectiveKind, DType, Monoid};

/// A tensor that a transport reads or writes.
#[derive(Clone, Debug)]
pub struct CallPiece {
    /// Where it is; nowhere if the device has no such tensor.
    pub slot: Option<TensorSlot>,
    /// What the transport sees.
    pub dtype: DType,
    pub shape: Vec<usize>,
    /// Of what is sent, whether it ends there.
    pub ends: bool,
}

impl CallPiece {
    /// No elements, of which there is no tensor.
    pub fn none(dtype: DType) -> CallPiece {
        CallPiece { slot: None, dtype, shape: vec![0], ends: false }
    }

    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// One call of a transport: of an all-reduce any number of pieces, of all others one.
#[derive(Clone, Debug)]
pub struct TransportCall {
    pub kind: CollectiveKind,
    pub monoid: Option<Monoid>,
    /// What of the inputs goes to whom, and what of the outputs comes from whom.
    pub layouts: [BufferLayout; 2],
    pub send: Vec<CallPiece>,
    pub receive: Vec<CallPiece>,
}

impl TransportCall {
    /// Whether results may overwrite their operands.
    pub fn in_place(&self) -> bool {
        self.layouts.iter().all(|l| matches!(l, BufferLayout::Whole))
    }
}
