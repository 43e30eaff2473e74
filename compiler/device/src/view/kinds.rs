//! The parts of a launch that only launches of its kind have.

use super::tensor::TensorView;
use crate::collective::calls::{CallPiece, TransportCall};
use crate::launch::{CollectiveLaunch, DevicePlan, LaunchKind, LoopLaunch};
use crate::slot::{Slots, TensorSlot};
use crate::text::operation_name;
use meshwright_plan::Plan;
use serde::Serialize;

/// The parts that launches of a kind have; a field is absent where the kind has none.
#[derive(Debug, Default, Serialize)]
pub struct KindView {
    /// For `burn`: the operations of its graph, in their order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub operations: Vec<OperationView>,
    /// For a collective: its group and its calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collective: Option<CollectiveView>,
    /// For `wait`: the launch that started the collective.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<u32>,
    /// For `loop`: its iterations.
    #[serde(rename = "loop", skip_serializing_if = "Option::is_none")]
    pub iterations: Option<LoopView>,
}

/// An operation of Burn.
#[derive(Debug, Serialize)]
pub struct OperationView {
    /// Its name, such as `permute`.
    pub name: String,
    /// The tensors that it reads.
    pub reads: Vec<TensorView>,
    /// The tensors that it writes.
    pub writes: Vec<TensorView>,
}

/// A collective.
#[derive(Debug, Serialize)]
pub struct CollectiveView {
    /// Ranks of the group.
    pub ranks: Vec<usize>,
    /// Whether a `wait` ends it.
    #[serde(rename = "async")]
    pub starts: bool,
    /// Calls of the transport, in their order.
    pub calls: Vec<CallView>,
}

/// A call of the transport.
#[derive(Debug, Serialize)]
pub struct CallView {
    /// Kind of the collective, such as `all_reduce`.
    pub op: String,
    /// Reduction of the elements; null for a call that only moves them.
    pub reduction: Option<String>,
    /// The only member that sends, by position in the group; null where all do.
    pub root: Option<usize>,
    /// Tensors that it sends; null for a device that sends nothing.
    pub sends: Vec<Option<TensorView>>,
    /// Tensors that it writes, one for each of `sends`.
    pub receives: Vec<Option<TensorView>>,
}

/// A loop.
#[derive(Debug, Serialize)]
pub struct LoopView {
    /// Name of the dim that is iterated.
    pub dim: String,
    /// Number of iterations on this device.
    pub iterations: usize,
    /// The lowest position.
    pub from: usize,
    /// Whether it runs from the last position to the first.
    pub reverse: bool,
    /// Values that an iteration passes to the next.
    pub carries: Vec<CarryView>,
}

/// A value that an iteration passes to the next.
#[derive(Debug, Serialize)]
pub struct CarryView {
    /// Slot before the first iteration.
    pub start: String,
    /// Slot within an iteration.
    pub current: String,
    /// Slot of the value for the next iteration.
    pub next: String,
    /// Slot after the last iteration.
    pub last: String,
    /// Whether the lifetime of `start` ends with the loop.
    pub ends: bool,
}

impl KindView {
    /// Of the launches of a plan.
    pub(super) fn of(device: &DevicePlan, plan: &Plan, kind: &LaunchKind) -> KindView {
        let slots = &device.slots;
        match kind {
            LaunchKind::Burn(burn) => {
                let operations = burn.graph.operations.iter().map(|o| OperationView {
                    name: operation_name(o),
                    reads: o.inputs().map(|t| TensorView::of(slots, t, vec![])).collect(),
                    writes: o.outputs().map(|t| TensorView::of(slots, t, vec![])).collect(),
                });
                KindView { operations: operations.collect(), ..KindView::default() }
            }
            LaunchKind::Collective(c) => {
                KindView { collective: Some(CollectiveView::of(slots, c)), ..KindView::default() }
            }
            LaunchKind::Wait { start, .. } => KindView { start: Some(start.0), ..KindView::default() },
            LaunchKind::Loop(of) => {
                KindView { iterations: Some(LoopView::of(plan, of)), ..KindView::default() }
            }
            LaunchKind::Kernel(_) | LaunchKind::Free => KindView::default(),
        }
    }
}

impl CollectiveView {
    fn of(slots: &Slots, c: &CollectiveLaunch) -> CollectiveView {
        CollectiveView {
            ranks: c.prepared.group.ranks().to_vec(),
            starts: c.async_id.is_some(),
            calls: c.calls.iter().map(|call| CallView::of(slots, call)).collect(),
        }
    }
}

impl CallView {
    fn of(slots: &Slots, call: &TransportCall) -> CallView {
        let pieces = |of: &[CallPiece]| of.iter().map(|piece| sent(slots, piece)).collect();
        CallView {
            op: call.kind.to_string(),
            reduction: call.monoid.map(|m| format!("{m:?}").to_lowercase()),
            root: call.root,
            sends: pieces(&call.send),
            receives: pieces(&call.receive),
        }
    }
}

/// The tensor of a piece.
fn sent(slots: &Slots, piece: &CallPiece) -> Option<TensorView> {
    let slot = slots.name(piece.tensor?);
    Some(TensorView {
        slot,
        dtype: piece.dtype.name(),
        shape: piece.shape.clone(),
        ends: piece.ends,
        at: vec![],
    })
}

impl LoopView {
    fn of(plan: &Plan, of: &LoopLaunch) -> LoopView {
        let carries = of.carries.iter().map(|c| {
            let [start, current, next, last] =
                [c.start, c.current, c.next, c.last].map(|b| TensorSlot::Buffer(b).to_string());
            CarryView { start, current, next, last, ends: c.ends }
        });
        LoopView {
            dim: plan.dims.name(of.dim).to_string(),
            iterations: of.times(),
            from: of.from,
            reverse: of.reverse,
            carries: carries.collect(),
        }
    }
}
