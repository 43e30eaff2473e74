//! The calls of a transport that a collective makes, on tensors of the device.

use crate::stored::{stored_as, stored_shape};
use burn_backend::Shape;
use burn_ir::{TensorId, TensorIr, TensorStatus};
use meshwright_plan::{BufferLayout, CollectiveKind, DType, Monoid};
use serde::{Deserialize, Serialize};

/// A tensor that a transport reads or writes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CallPiece {
    /// Its id; none if the piece is empty and the device has no tensor for it.
    pub tensor: Option<TensorId>,
    /// Dtype of the elements as the transport reads or writes them.
    pub dtype: DType,
    /// Extents of the tensor; a packed tensor has one.
    pub shape: Vec<usize>,
    /// Whether the lifetime of a sent tensor ends with the call. False for received tensors.
    pub ends: bool,
}

impl CallPiece {
    /// A piece without elements and without a tensor.
    pub fn none(dtype: DType) -> CallPiece {
        CallPiece { tensor: None, dtype, shape: vec![0], ends: false }
    }

    /// The tensor that the call writes, as the device stores it; none without a tensor.
    pub fn result(&self) -> Option<TensorIr> {
        let shape = Shape::from(stored_shape(self.dtype, &self.shape));
        let result = |id| TensorIr { id, shape, status: TensorStatus::NotInit, dtype: stored_as(self.dtype) };
        self.tensor.map(result)
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// One call of a transport: of an all-reduce or a broadcast any number of pieces, of all others one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TransportCall {
    /// Kind of the collective.
    pub kind: CollectiveKind,
    /// Reduction of the elements; none for a call that only moves them.
    pub monoid: Option<Monoid>,
    /// The only member that sends, by position in the group; none where all do.
    pub root: Option<usize>,
    /// Layouts of the sent and of the received tensor: the part of each that belongs to each member.
    pub layouts: [BufferLayout; 2],
    /// Tensors that the call sends.
    pub send: Vec<CallPiece>,
    /// Tensors that the call writes, one for each of `send`.
    pub receive: Vec<CallPiece>,
}

impl TransportCall {
    /// Whether results may overwrite their operands.
    pub fn in_place(&self) -> bool {
        self.layouts.iter().all(|l| matches!(l, BufferLayout::Whole))
    }
}
