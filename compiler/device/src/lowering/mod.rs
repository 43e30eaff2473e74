//! The lowering of a Plan for one device: the part that all targets share.

pub(super) mod build;
pub(super) mod chunk;
pub(super) mod chunks;
pub(super) mod compile;
pub mod contraction;
pub(super) mod dispatch;
pub(super) mod graph;
pub(super) mod host;
pub(super) mod links;
pub mod local;
pub(super) mod ops;
pub(super) mod residuals;
pub(super) mod turn_order;

use crate::decisions::Decisions;
use crate::decisions::def_use::DefUse;
use crate::error::NoAttentionKernel;
use crate::lowering::graph::{GraphBuilder, Val};
use crate::lowering::local::{DeviceContext, Local};
use crate::slot::TensorSlot;
use crate::stored::{stored_as, stored_shape};
use crate::target::Target;
use meshwright_plan::{BufId, DType, Monoid, Plan, Prim};
use meshwright_sorted::{SortedMap, SortedSet};

/// Lowers the steps of one Plan for one device.
pub(crate) struct Lowering<'a> {
    /// The device.
    pub context: DeviceContext<'a>,
    /// The operations of the step that is lowered.
    pub graph: GraphBuilder,
    /// The dtype of the values of each buffer of pairs.
    pub pairs: SortedMap<BufId, DType>,
    /// The def-use table of the Plan.
    pub uses: DefUse<'a>,
    /// Decisions of the passes so far.
    pub decisions: Decisions,
    /// Slots of stored `relu` bits, by step.
    pub bits: SortedMap<usize, TensorSlot>,
    /// Slots of the bits that a step drew for another one of its iteration, by step.
    pub drawn_bits: SortedMap<usize, TensorSlot>,
    /// Steps at which no group of products runs, since its tensors could not lie at equal distances.
    pub apart: SortedSet<usize>,
    /// See [`DevicePlan`](crate::DevicePlan).
    pub attention_without_kernel: SortedMap<usize, NoAttentionKernel>,
}

/// A tensor of a buffer: its slot, and its dtype.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plane {
    pub slot: TensorSlot,
    pub dtype: DType,
}

impl<'a> Lowering<'a> {
    pub(crate) fn new(plan: &'a Plan, rank: usize, target: Target) -> Lowering<'a> {
        Lowering {
            context: DeviceContext::new(plan, rank),
            graph: GraphBuilder::new(plan, target),
            pairs: values_of_pairs(plan),
            uses: DefUse::of(plan),
            decisions: Decisions::default(),
            bits: SortedMap::new(),
            drawn_bits: SortedMap::new(),
            apart: SortedSet::new(),
            attention_without_kernel: SortedMap::new(),
        }
    }

    /// The dtype of the values of a buffer in two parts.
    pub(crate) fn value_type(&self, buf: BufId, dtype: DType) -> DType {
        if dtype.is_pair() { self.pairs.get(&buf).copied().unwrap_or(DType::I32) } else { dtype }
    }

    /// The tensors of a buffer, whether or not it has elements on this device: of pairs that are stored in two parts the
    /// values and the indices.
    pub(crate) fn planes(&self, buf: BufId, dtype: DType) -> Vec<Plane> {
        if let Some(factor) = self.decisions.fp8.factors.get(&buf) {
            let forms = [(factor.plain, TensorSlot::Buffer(buf)), (factor.turned, TensorSlot::Turned(buf))];
            let stored = forms.into_iter().filter(|form| form.0);
            return stored.map(|(_, slot)| Plane { slot, dtype: DType::U8 }).collect();
        }
        if !dtype.is_pair() || self.graph.target.host_kernels {
            return vec![Plane { slot: TensorSlot::Buffer(buf), dtype }];
        }
        let values = self.value_type(buf, dtype);
        let values = Plane { slot: TensorSlot::Buffer(buf), dtype: values };
        vec![values, Plane { slot: TensorSlot::Indices(buf), dtype: DType::I32 }]
    }

    /// Whether a tensor of this number of elements exists.
    pub(crate) fn exists(&self, elements: usize) -> bool {
        elements > 0 || self.graph.target.host_kernels
    }

    /// Slots of a buffer on this device; none if it has no elements.
    pub(crate) fn slots(&self, buf: BufId) -> Result<Vec<TensorSlot>, String> {
        let Some(buffer) = self.context.plan.buffers.get(buf.0 as usize) else {
            return Err(format!("there is no buffer {}", buf.0));
        };
        let elements: usize = buffer.shape(&self.context.plan.mesh, &self.context.coords).iter().product();
        let planes = if self.exists(elements) { self.planes(buf, buffer.dtype) } else { vec![] };
        Ok(planes.into_iter().map(|p| p.slot).collect())
    }

    /// The bits of attention that a step is the only one to read.
    pub(crate) fn bits_that_end(&self, step: usize) -> Option<TensorSlot> {
        self.drawn_bits.get(self.decisions.attention_bits.shared.get(&step)?).copied()
    }

    /// One of a buffer's tensors.
    pub(crate) fn read_plane(&mut self, local: &Local, plane: Plane) -> Val {
        let shape = stored_shape(plane.dtype, &local.shape);
        self.graph.read(plane.slot, &shape, stored_as(plane.dtype))
    }
}

/// Dtype of the values of each buffer of pairs: that of the folded values.
fn values_of_pairs(plan: &Plan) -> SortedMap<BufId, DType> {
    let mut found: SortedMap<BufId, DType> = SortedMap::new();
    let dtype = |buf: BufId| plan.buffers.get(buf.0 as usize).map(|b| b.dtype);
    for step in &plan.steps {
        for (k, out) in step.writes.iter().enumerate() {
            let Some(from) = step.reads.get(k).or(step.reads.first()).map(|f| f.buf) else { continue };
            let folds = matches!(&step.prim, Prim::Reduce { monoid: Monoid::ArgMax | Monoid::ArgMin });
            let value = if folds { dtype(from) } else { found.get(&from).copied() };
            found.extend(value.map(|v| (out.buf, v)));
        }
    }
    found
}
