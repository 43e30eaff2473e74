//! The lowering of a Plan for one device: what backends share when they turn steps into operations.

use super::context::{DeviceContext, Local};
use super::epilogues::Epilogues;
use super::graph::{Capabilities, GraphBuilder, TensorSlot, Val};
use super::inlined::InlinedValues;
use super::masks::Masks;
use super::row_groups::RowGroups;
use crate::kernels::KernelError;
use burn_backend::DType as BurnType;
use meshwright_plan::{Arity, BufId, DType, Monoid, Plan, Prim};
use std::collections::BTreeMap;

/// Why a step could not be lowered.
pub(crate) enum LoweringError {
    Plan(String),
    Kernel(KernelError),
}

impl From<String> for LoweringError {
    fn from(problem: String) -> Self {
        LoweringError::Plan(problem)
    }
}

impl From<Arity> for LoweringError {
    fn from(arity: Arity) -> Self {
        LoweringError::Plan(arity.to_string())
    }
}

impl From<KernelError> for LoweringError {
    fn from(error: KernelError) -> Self {
        LoweringError::Kernel(error)
    }
}

/// Lowers the steps of one Plan for one device, of a backend with kernels `K`.
pub(crate) struct Lowering<'a, K> {
    pub(crate) context: DeviceContext<'a>,
    pub(crate) graph: GraphBuilder,
    /// What the values of each buffer of pairs are.
    pub(crate) pairs: BTreeMap<BufId, DType>,
    /// Kernels of the whole program, by number.
    pub(crate) kernels: Vec<K>,
    /// What is drawn where it is read.
    pub(crate) masks: Masks,
    /// Steps along rows that are one kernel.
    pub(crate) rows: RowGroups,
    /// What is computed where it is folded.
    pub(crate) inlined: InlinedValues,
    /// What products do beside.
    pub(crate) epilogues: Epilogues,
    /// By step with a `relu` where its bits are kept, and the kernel that keeps them.
    pub(crate) bits: BTreeMap<usize, (TensorSlot, usize)>,
}

/// A tensor of a buffer: where it is, and what its elements are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plane {
    pub(crate) slot: TensorSlot,
    pub(crate) dtype: DType,
}

/// Burn's dtype in which elements are stored. Truth values are bytes; a pair in one part is one `u64`, or two.
pub(crate) fn stored_as(dtype: DType) -> BurnType {
    match dtype {
        DType::F64 => BurnType::F64,
        DType::F32 => BurnType::F32,
        DType::BF16 => BurnType::BF16,
        DType::F16 => BurnType::F16,
        DType::I32 => BurnType::I32,
        DType::U8 | DType::Bool => BurnType::U8,
        DType::PairF32 | DType::PairF64 => BurnType::U64,
    }
}

/// Whether elements are stored in it, but not computed.
pub(crate) fn is_half(dtype: BurnType) -> bool {
    matches!(dtype, BurnType::BF16 | BurnType::F16)
}

/// The extents of a tensor: a scalar has one.
pub(crate) fn extents(shape: &[usize]) -> Vec<usize> {
    if shape.is_empty() { vec![1] } else { shape.to_vec() }
}

/// The shape in which a tensor is stored: a pair of 16 bytes takes two elements.
pub(crate) fn stored_shape(dtype: DType, shape: &[usize]) -> Vec<usize> {
    let mut shape = extents(shape);
    if dtype == DType::PairF64 {
        shape.push(2);
    }
    shape
}

impl<'a, K> Lowering<'a, K> {
    pub(crate) fn new(plan: &'a Plan, rank: usize, capabilities: Capabilities) -> Lowering<'a, K> {
        Lowering {
            context: DeviceContext::new(plan, rank),
            graph: GraphBuilder::new(capabilities),
            pairs: values_of_pairs(plan),
            kernels: vec![],
            masks: Masks::default(),
            rows: RowGroups::default(),
            inlined: InlinedValues::default(),
            epilogues: Epilogues::default(),
            bits: BTreeMap::new(),
        }
    }

    /// The dtype of the values of a buffer in two parts.
    pub(crate) fn value_type(&self, buf: BufId, dtype: DType) -> DType {
        if dtype.is_pair() { self.pairs.get(&buf).copied().unwrap_or(DType::I32) } else { dtype }
    }

    /// The tensors of a buffer, whether or not it has elements on this device: of pairs that are stored in two parts the
    /// values and the indices.
    pub(crate) fn planes(&self, buf: BufId, dtype: DType) -> Vec<Plane> {
        if !dtype.is_pair() || self.graph.capabilities.host_kernels {
            return vec![Plane { slot: TensorSlot::Buffer(buf), dtype }];
        }
        let values = self.value_type(buf, dtype);
        let values = Plane { slot: TensorSlot::Buffer(buf), dtype: values };
        vec![values, Plane { slot: TensorSlot::Indices(buf), dtype: DType::I32 }]
    }

    /// Whether a tensor of so many elements exists.
    pub(crate) fn exists(&self, elements: usize) -> bool {
        elements > 0 || self.graph.capabilities.host_kernels
    }

    /// Where the elements of a buffer are on this device; nowhere if there are none.
    pub(crate) fn slots(&self, buf: BufId) -> Result<Vec<TensorSlot>, String> {
        let Some(buffer) = self.context.plan.buffers.get(buf.0 as usize) else {
            return Err(format!("there is no buffer {}", buf.0));
        };
        let elements: usize = buffer.shape(&self.context.plan.mesh, &self.context.coords).iter().product();
        let planes = if self.exists(elements) { self.planes(buf, buffer.dtype) } else { vec![] };
        Ok(planes.into_iter().map(|p| p.slot).collect())
    }

    /// One of a buffer's tensors.
    pub(crate) fn read_plane(&mut self, local: &Local, plane: Plane) -> Val {
        let shape = stored_shape(plane.dtype, &local.shape);
        self.graph.read(plane.slot, &shape, stored_as(plane.dtype))
    }
}

/// Of what dtype the values of each buffer of pairs are: that of what was folded.
fn values_of_pairs(plan: &Plan) -> BTreeMap<BufId, DType> {
    let mut found: BTreeMap<BufId, DType> = BTreeMap::new();
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
