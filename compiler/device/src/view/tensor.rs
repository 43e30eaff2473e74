//! A tensor of a launch.

use crate::slot::Slots;
use burn_ir::{TensorIr, TensorStatus};
use serde::Serialize;

/// A tensor of a launch.
#[derive(Debug, Serialize)]
pub struct TensorView {
    /// Storage: `b7` is buffer 7 of the Plan, `i7` its indices, `k0` a constant, `t12` a temporary.
    pub slot: String,
    /// Dtype of its elements.
    pub dtype: &'static str,
    /// Its extents.
    pub shape: Vec<usize>,
    /// Whether its lifetime ends with this launch, which reads it.
    pub ends: bool,
    /// Offsets of a result in the arena, in bytes, in the order of the launch's runs, without repetitions of the same; empty if
    /// it has memory of its own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub at: Vec<u64>,
}

impl TensorView {
    pub(super) fn of(slots: &Slots, t: &TensorIr, at: Vec<u64>) -> TensorView {
        TensorView {
            slot: slots.name(t.id),
            dtype: t.dtype.name(),
            shape: t.shape.to_vec(),
            ends: t.status == TensorStatus::ReadWrite,
            at,
        }
    }
}
